#include "tests/unit/cuda_double/case.h"

#include <signal.h>

static void devices(int unused)
{
    (void)unused;
    struct cuda_uuid first;
    struct cuda_uuid second;
    int count = 0;
    setenv("CUDA_DOUBLE_DEVICES", "3", 1);
    setenv("CUDA_VISIBLE_DEVICES", "2,0", 1);
    setenv("CUDA_DOUBLE_MPS", "1", 1);
    case_load();
    OK(cuda->device_count(&count));
    CHECK(count == 2);
    OK(cuda->device_uuid(&first, 0));
    OK(cuda->device_uuid(&second, 1));
    CHECK(first.bytes[15] == 2 && second.bytes[15] == 0);
    cuda_device device;
    CHECK_RESULT(cuda->device_get(&device, 2), CUDA_RESULT_INVALID_DEVICE);
    int value = 0;
    OK(cuda->device_attribute(&value, CUDA_DEVICE_MPS_ENABLED, 0));
    CHECK(value == 1);
    OK(cuda->device_can_access(&value, 0, 1));
    CHECK(value == 1);
    OK(cuda->device_can_access(&value, 0, 0));
    CHECK(value == 0);
}
CASE(devices)

static void uuid_text(int fd)
{
    struct cuda_uuid uuid;
    char text[64] = "GPU-";
    case_load();
    OK(cuda->device_uuid(&uuid, 1));
    for (int i = 0; i < CUDA_UUID_BYTES; i++) {
        (void)snprintf(text + strlen(text), 8, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x",
                       uuid.bytes[i]);
    }
    case_send(fd, text, sizeof text, -1);
}

static void devices_by_uuid(int unused)
{
    (void)unused;
    int sockets[2];
    char text[64];
    struct cuda_uuid uuid;
    int count = 0;
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    pid_t pid = case_fork(uuid_text, sockets[1]);
    (void)case_receive(sockets[0], text, sizeof text);
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    setenv("CUDA_VISIBLE_DEVICES", text, 1);
    case_load();
    OK(cuda->device_count(&count));
    OK(cuda->device_uuid(&uuid, 0));
    CHECK(count == 1 && uuid.bytes[CUDA_UUID_BYTES - 1] == 1);
}
CASE(devices_by_uuid)

static void no_device(int unused)
{
    char why[256] = "";
    (void)unused;
    setenv("CUDA_VISIBLE_DEVICES", "", 1);
    CHECK(!cuda_driver_load(&cuda, why, sizeof why));
    CHECK(strstr(why, "CUDA_ERROR_NO_DEVICE") != NULL);
}
CASE(no_device)

static void forked(int unused)
{
    int count = 0;
    (void)unused;
    case_load();
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_RESULT(cuda->device_count(&count), CUDA_RESULT_NOT_INITIALIZED);
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}
CASE(forked)

static void context_needed(int unused)
{
    (void)unused;
    cuda_pointer pointer;
    cuda_context context = NULL;
    cuda_context other = NULL;
    cuda_stream stream;
    case_load();
    CHECK_RESULT(cuda->memory_alloc(&pointer, 16), CUDA_RESULT_INVALID_CONTEXT);
    CHECK_RESULT(cuda->stream_create(&stream, 0, 0), CUDA_RESULT_INVALID_CONTEXT);
    CHECK_RESULT(cuda->context_set((cuda_context)(uintptr_t)16), CUDA_RESULT_INVALID_CONTEXT);
    OK(cuda->context_retain(&context, 0));
    OK(cuda->context_retain(&other, 0));
    CHECK(context == other);
    OK(cuda->context_set(context));
    pointer = case_alloc(16);
    OK(cuda->stream_create(&stream, 0, 0));
    OK(cuda->context_release(0));
    OK(cuda->memory_free(pointer));
    OK(cuda->context_release(0));
    CHECK_RESULT(cuda->memory_alloc(&pointer, 16), CUDA_RESULT_INVALID_CONTEXT);
    CHECK_RESULT(cuda->context_release(0), CUDA_RESULT_INVALID_CONTEXT);
    case_context(0);
    CHECK_RESULT(cuda->stream_query(stream), CUDA_RESULT_INVALID_HANDLE);
}
CASE(context_needed)

static void read_by_cpu(int unused)
{
    (void)unused;
    case_load();
    case_context(0);
    volatile unsigned char *pointer = (volatile unsigned char *)(uintptr_t)case_alloc(64);
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGSEGV, SIG_DFL);
        (void)*pointer;
        _exit(0);
    }
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}
CASE(read_by_cpu)

static void placement(int unused)
{
    (void)unused;
    cuda_pointer base;
    size_t bytes;
    case_load();
    case_context(0);
    cuda_pointer small = case_alloc(100);
    cuda_pointer beside = case_alloc(100);
    cuda_pointer large = case_alloc(3 * MIB);
    CHECK(beside - small == 512);
    CHECK(large % (2 * MIB) == 0);
    OK(cuda->memory_range(&base, &bytes, beside + 99));
    CHECK(base == beside && bytes == 100);
    CHECK_RESULT(cuda->memory_range(&base, &bytes, beside + 100), CUDA_RESULT_NOT_FOUND);
    CHECK(case_byte(small) == 0xff);
    OK(cuda->set_bytes(small, 7, 100, NULL));
    CHECK(case_byte(small + 99) == 7 && case_byte(beside) == 0xff);
    uint64_t before;
    uint64_t after;
    OK(cuda->pointer_attribute(&before, CUDA_POINTER_BUFFER_ID, small));
    OK(cuda->memory_free(small));
    CHECK(case_alloc(100) == small); /* at once, and with nothing of the old bytes */
    OK(cuda->pointer_attribute(&after, CUDA_POINTER_BUFFER_ID, small));
    CHECK(before != after && case_byte(small) == 0xff);
    CHECK_RESULT(cuda->memory_free(small + 1), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->memory_alloc(&base, 0), CUDA_RESULT_INVALID_VALUE);
    case_context(1);
    CHECK(case_alloc(100) / (2 * MIB) != small / (2 * MIB));
}
CASE(placement)

static void out_of_memory(int unused)
{
    (void)unused;
    cuda_pointer pointers[4];
    size_t unused_bytes;
    size_t total;
    setenv("CUDA_DOUBLE_MEMORY_BYTES", "8388608", 1);
    case_load();
    case_context(0);
    OK(cuda->memory_info(&unused_bytes, &total));
    CHECK(unused_bytes == 8 * MIB && total == 8 * MIB);
    pointers[0] = case_alloc(5 * MIB); /* three blocks */
    OK(cuda->memory_info(&unused_bytes, &total));
    CHECK(unused_bytes == 2 * MIB);
    CHECK_RESULT(cuda->memory_alloc(&pointers[1], 3 * MIB), CUDA_RESULT_OUT_OF_MEMORY);
    pointers[1] = case_alloc(16);
    CHECK_RESULT(cuda->memory_alloc(&pointers[2], 2 * MIB), CUDA_RESULT_OUT_OF_MEMORY);
    case_context(1); /* another device has its own */
    pointers[3] = case_alloc(8 * MIB);
    case_context(0);
    OK(cuda->memory_free(pointers[0]));
    pointers[2] = case_alloc(6 * MIB);
}
CASE(out_of_memory)

static void attributes(int unused)
{
    (void)unused;
    unsigned type;
    int flag;
    uint64_t value;
    void *host;
    cuda_pointer managed;
    cuda_pointer pool;
    case_load();
    case_context(1);
    cuda_pointer plain = case_alloc(100);
    OK(cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, plain));
    CHECK(type == CUDA_MEMORY_DEVICE);
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_DEVICE, plain + 99));
    CHECK(flag == 1);
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_LEGACY_IPC, plain));
    CHECK(flag == 1);
    OK(cuda->pointer_attribute(&value, CUDA_POINTER_HANDLE_TYPES, plain));
    CHECK(value == 0);
    OK(cuda->pointer_attribute(&value, CUDA_POINTER_MAPPING_BYTES, plain));
    CHECK(value == 2 * MIB);
    CHECK_RESULT(cuda->pointer_attribute(&value, CUDA_POINTER_DEVICE, plain + 100),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (cuda_pointer)(uintptr_t)&type),
                 CUDA_RESULT_INVALID_VALUE);
    OK(cuda->host_alloc(&host, 100, 0));
    OK(cuda->pointer_attribute(&type, CUDA_POINTER_MEMORY_TYPE, (cuda_pointer)(uintptr_t)host));
    CHECK(type == CUDA_MEMORY_HOST);
    OK(beyond.alloc_managed(&managed, 100, CUDA_ATTACH_GLOBAL));
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_IS_MANAGED, managed));
    CHECK(flag == 1);
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_LEGACY_IPC, managed));
    CHECK(flag == 0);
    ((unsigned char *)(uintptr_t)managed)[5] = 1; /* for the CPU as well */
    OK(beyond.alloc_pool(&pool, 100, NULL));
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_LEGACY_IPC, pool));
    CHECK(flag == 0);
    struct cuda_ipc_handle handle;
    CHECK_RESULT(cuda->ipc_get(&handle, pool), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->ipc_get(&handle, managed), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->memory_free_async(pool, NULL));
    OK(cuda->memory_free(managed));
}
CASE(attributes)

static void host_memory(int unused)
{
    (void)unused;
    static unsigned char page[8192] __attribute__((aligned(4096)));
    cuda_pointer address;
    void *host;
    case_load();
    case_context(0);
    CHECK_RESULT(cuda->host_device_pointer(&address, page, 0), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->host_register(page, 4096, 0));
    CHECK_RESULT(cuda->host_device_pointer(&address, page, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->host_register(page + 4000, 200, 0), CUDA_RESULT_HOST_MEMORY_ALREADY_REGISTERED);
    CHECK_RESULT(cuda->host_unregister(page + 1), CUDA_RESULT_HOST_MEMORY_NOT_REGISTERED);
    OK(cuda->host_unregister(page));
    OK(cuda->host_register(page, sizeof page, CUDA_HOST_DEVICE_MAP));
    OK(cuda->host_device_pointer(&address, page + 8, 0));
    CHECK(address == (cuda_pointer)(uintptr_t)(page + 8));
    case_context(1); /* registered for one context alone */
    CHECK_RESULT(cuda->host_device_pointer(&address, page, 0), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->host_alloc(&host, 100, 0));
    OK(cuda->host_device_pointer(&address, host, 0));
    CHECK_RESULT(cuda->host_free((char *)host + 1), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->host_free(host));
    CHECK_RESULT(cuda->host_register((void *)(uintptr_t)4096, 4096, 0), CUDA_RESULT_INVALID_VALUE);
}
CASE(host_memory)

static void injected(int unused)
{
    (void)unused;
    void *host;
    cuda_pointer pointer;
    setenv("CUDA_DOUBLE_FAIL", "cuMemHostAlloc:2,cuMemAlloc:1+=1,cuMemsetD8Async:1=719", 1);
    case_load();
    case_context(0);
    OK(cuda->host_alloc(&host, 8, 0));
    CHECK_RESULT(cuda->host_alloc(&host, 8, 0), CUDA_RESULT_OUT_OF_MEMORY);
    OK(cuda->host_alloc(&host, 8, 0));
    CHECK_RESULT(cuda->memory_alloc(&pointer, 8), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->memory_alloc(&pointer, 8), CUDA_RESULT_INVALID_VALUE);
    beyond.inject("cuMemsetD8Async:1=719");
    pointer = case_alloc(8);
    CHECK_RESULT(cuda->set_bytes(pointer, 0, 8, NULL), CUDA_RESULT_LAUNCH_FAILED);
    CHECK_RESULT(cuda->memory_alloc(&pointer, 8), CUDA_RESULT_LAUNCH_FAILED); /* for good */
    case_context(1);
    pointer = case_alloc(8);
}
CASE(injected)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),        cmocka_unit_test(test_devices_by_uuid),
        cmocka_unit_test(test_no_device),      cmocka_unit_test(test_forked),
        cmocka_unit_test(test_context_needed), cmocka_unit_test(test_read_by_cpu),
        cmocka_unit_test(test_placement),      cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_attributes),     cmocka_unit_test(test_host_memory),
        cmocka_unit_test(test_injected),
    };
    return cmocka_run_group_tests_name("cuda_double_memory", tests, NULL, NULL);
}
