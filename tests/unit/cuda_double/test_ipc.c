#include "tests/unit/cuda_double/case.h"

#include <signal.h>

/* Two processes: the exporter, at the other end of the socket, and the importer. */
static int sockets[2];

static void tell(int fd, const void *bytes, size_t size)
{
    case_send(fd, bytes, size, -1);
}

static void hear(int fd, void *bytes, size_t size)
{
    (void)case_receive(fd, bytes, size);
}

static void step(int fd)
{
    char one = 1;
    tell(fd, &one, 1);
}

static void await_step(int fd)
{
    char one;
    hear(fd, &one, 1);
}

static pid_t start(void (*body)(int))
{
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    pid_t pid = case_fork(body, sockets[1]);
    close(sockets[1]);
    return pid;
}

static void join(pid_t pid)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

/* Exports an allocation filled with bytes of 5. The handle is made from an address that is not its base. */
static cuda_pointer export(int fd, size_t bytes)
{
    struct cuda_ipc_handle handle;
    cuda_pointer pointer = case_alloc(bytes);
    OK(cuda->set_bytes(pointer, 5, bytes, NULL));
    OK(cuda->stream_synchronize(NULL));
    OK(cuda->ipc_get(&handle, pointer + 10));
    tell(fd, &handle, sizeof handle);
    return pointer;
}

static cuda_pointer import(int fd)
{
    struct cuda_ipc_handle handle;
    cuda_pointer base;
    hear(fd, &handle, sizeof handle);
    OK(cuda->ipc_open(&base, handle, CUDA_IPC_LAZY_PEER_ACCESS));
    return base;
}

static void exporter_shares(int fd)
{
    setenv("CUDA_VISIBLE_DEVICES", "2", 1);
    case_load();
    case_context(0);
    cuda_pointer before = case_alloc(600); /* so that the exported one is not at its block's beginning */
    cuda_pointer pointer = export(fd, 1000);
    await_step(fd);
    CHECK(case_byte(pointer + 1) == 6);
    CHECK(case_byte(before) == 6); /* the block's neighbours are open to the importer, too */
    step(fd);
    await_step(fd);
}

static void shares(int unused)
{
    (void)unused;
    cuda_pointer base;
    size_t bytes;
    int device;
    pid_t pid = start(exporter_shares);
    case_load();
    case_context(2);
    cuda_pointer pointer = import(sockets[0]);
    CHECK(case_byte(pointer) == 5 && case_byte(pointer + 999) == 5);
    OK(cuda->memory_range(&base, &bytes, pointer + 999));
    CHECK(base == pointer && bytes == 1000);
    OK(cuda->pointer_attribute(&device, CUDA_POINTER_DEVICE, pointer));
    CHECK(device == 2);
    OK(cuda->set_bytes(pointer, 6, 1000, NULL));
    OK(cuda->set_bytes(pointer - 1024, 6, 600, NULL));
    OK(cuda->stream_synchronize(NULL));
    step(sockets[0]);
    await_step(sockets[0]);
    struct cuda_ipc_handle handle;
    CHECK_RESULT(cuda->ipc_get(&handle, pointer), CUDA_RESULT_INVALID_VALUE);
    step(sockets[0]);
    OK(cuda->ipc_close(pointer));
    CHECK_RESULT(cuda->ipc_close(pointer), CUDA_RESULT_INVALID_VALUE);
    join(pid);
}
CASE(shares)

static void same_process(int unused)
{
    (void)unused;
    struct cuda_ipc_handle handle;
    cuda_pointer base;
    case_load();
    case_context(0);
    cuda_pointer pointer = case_alloc(64);
    OK(cuda->ipc_get(&handle, pointer));
    CHECK_RESULT(cuda->ipc_open(&base, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_INVALID_CONTEXT);
    CHECK_RESULT(cuda->ipc_get(&handle, pointer + 64), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->ipc_get(&handle, (cuda_pointer)(uintptr_t)&base), CUDA_RESULT_INVALID_VALUE);
    memset(&handle, 0, sizeof handle);
    CHECK_RESULT(cuda->ipc_open(&base, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_INVALID_VALUE);
}
CASE(same_process)

static void exporter_twice(int fd)
{
    struct cuda_ipc_handle handle;
    case_load();
    case_context(0);
    cuda_pointer pointer = case_alloc(4 * MIB);
    OK(cuda->ipc_get(&handle, pointer));
    tell(fd, &handle, sizeof handle);
    await_step(fd);
}

static void twice(int unused)
{
    (void)unused;
    struct cuda_ipc_handle handle;
    cuda_pointer first;
    cuda_pointer second;
    uint64_t id;
    uint64_t again;
    pid_t pid = start(exporter_twice);
    case_load();
    case_context(0);
    hear(sockets[0], &handle, sizeof handle);
    CHECK_RESULT(cuda->ipc_open(&first, handle, 0), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->ipc_open(&first, handle, CUDA_IPC_LAZY_PEER_ACCESS));
    OK(cuda->pointer_attribute(&id, CUDA_POINTER_BUFFER_ID, first));
    OK(cuda->ipc_open(&second, handle, CUDA_IPC_LAZY_PEER_ACCESS));
    CHECK(first == second);
    OK(cuda->ipc_close(first));
    CHECK(case_byte(first) == 0xff); /* the other opening still has it */
    OK(cuda->ipc_close(first));
    OK(cuda->ipc_open(&second, handle, CUDA_IPC_LAZY_PEER_ACCESS));
    OK(cuda->pointer_attribute(&again, CUDA_POINTER_BUFFER_ID, second));
    CHECK(id != again);
    step(sockets[0]);
    join(pid);
}
CASE(twice)

static void exporter_repeats(int fd)
{
    struct cuda_ipc_handle handle;
    case_load();
    case_context(0);
    for (int i = 0; i < 2; i++) {
        cuda_pointer pointer = case_alloc(2 * MIB);
        OK(cuda->set_bytes(pointer, (unsigned char)i, 2 * MIB, NULL));
        OK(cuda->stream_synchronize(NULL));
        OK(cuda->ipc_get(&handle, pointer));
        tell(fd, &handle, sizeof handle);
        await_step(fd);
        OK(cuda->memory_free(pointer));
        step(fd);
        await_step(fd);
    }
}

/* A new allocation at the same address has the same handle. Memory that is open stays what it was, and keeps
 * its place. A stale handle does not open. */
static void repeats(int unused)
{
    (void)unused;
    struct cuda_ipc_handle first;
    struct cuda_ipc_handle second;
    cuda_pointer old;
    cuda_pointer new;
    cuda_pointer none;
    pid_t pid = start(exporter_repeats);
    case_load();
    case_context(0);
    hear(sockets[0], &first, sizeof first);
    OK(cuda->ipc_open(&old, first, CUDA_IPC_LAZY_PEER_ACCESS));
    step(sockets[0]);
    await_step(sockets[0]);
    CHECK_RESULT(cuda->ipc_open(&none, first, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_INVALID_VALUE);
    step(sockets[0]);
    hear(sockets[0], &second, sizeof second);
    CHECK(memcmp(&first, &second, sizeof first) == 0);
    CHECK_RESULT(cuda->ipc_open(&new, second, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_ALREADY_MAPPED);
    CHECK(case_byte(old) == 0);
    OK(cuda->ipc_close(old));
    OK(cuda->ipc_open(&new, second, CUDA_IPC_LAZY_PEER_ACCESS));
    CHECK(case_byte(new) == 1);
    step(sockets[0]);
    await_step(sockets[0]);
    CHECK(case_byte(new) == 1); /* freed there, open here */
    step(sockets[0]);
    join(pid);
}
CASE(repeats)

static void exporter_moves(int fd)
{
    case_load();
    case_context(0);
    cuda_pointer low = export(fd, 4 * MIB);
    cuda_pointer high = export(fd, 4 * MIB);
    await_step(fd);
    OK(cuda->memory_free(low));
    OK(cuda->memory_free(high));
    (void)export(fd, 2 * MIB);
    (void)export(fd, 4 * MIB); /* from the middle of the one to that of the other */
    (void)export(fd, 2 * MIB);
    (void)export(fd, 1000);
    await_step(fd);
}

/* Blocks that overlap in part cannot be open together, not even in another context. Other blocks
 * are opened. */
static void overlaps(int unused)
{
    (void)unused;
    struct cuda_ipc_handle handles[4];
    cuda_pointer base;
    pid_t pid = start(exporter_moves);
    case_load();
    cuda_context other = case_context(1);
    cuda_context own = case_context(0);
    cuda_pointer low = import(sockets[0]);
    cuda_pointer high = import(sockets[0]);
    step(sockets[0]);
    for (int i = 0; i < 4; i++) {
        hear(sockets[0], &handles[i], sizeof handles[i]);
    }
    OK(cuda->ipc_close(low));
    OK(cuda->ipc_open(&base, handles[0], CUDA_IPC_LAZY_PEER_ACCESS));
    CHECK_RESULT(cuda->ipc_open(&base, handles[1], CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_ALREADY_MAPPED);
    CHECK_RESULT(cuda->ipc_open(&base, handles[2], CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_ALREADY_MAPPED);
    OK(cuda->context_set(other));
    CHECK_RESULT(cuda->ipc_open(&base, handles[1], CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_ALREADY_MAPPED);
    OK(cuda->context_set(own));
    OK(cuda->ipc_open(&base, handles[3], CUDA_IPC_LAZY_PEER_ACCESS));
    OK(cuda->ipc_close(high));
    OK(cuda->ipc_open(&base, handles[1], CUDA_IPC_LAZY_PEER_ACCESS));
    OK(cuda->ipc_open(&base, handles[2], CUDA_IPC_LAZY_PEER_ACCESS));
    step(sockets[0]);
    join(pid);
}
CASE(overlaps)

static void exporter_is_killed(int fd)
{
    case_load();
    case_context(0);
    (void)export(fd, 4 * MIB);
    (void)export(fd, 4 * MIB);
    pause();
}

static size_t free_bytes(void)
{
    size_t unused_bytes;
    size_t total;
    OK(cuda->memory_info(&unused_bytes, &total));
    return unused_bytes;
}

static void killed(int unused)
{
    (void)unused;
    struct cuda_ipc_handle handle;
    cuda_pointer none;
    setenv("CUDA_DOUBLE_MEMORY_BYTES", "8388608", 1);
    pid_t pid = start(exporter_is_killed);
    case_load();
    case_context(0);
    cuda_pointer pointer = import(sockets[0]);
    hear(sockets[0], &handle, sizeof handle);
    CHECK(free_bytes() == 0);
    kill(pid, SIGKILL);
    CHECK(waitpid(pid, NULL, 0) == pid);
    CHECK(case_byte(pointer + 4 * MIB - 1) == 5);
    CHECK(free_bytes() == 4 * MIB); /* memory that is open here stays charged */
    CHECK_RESULT(cuda->ipc_open(&none, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->ipc_close(pointer));
    CHECK(free_bytes() == 8 * MIB);
    char command[PATH_MAX + 64];
    (void)snprintf(command, sizeof command, "test -z \"$(ls %s | grep block)\"", case_folder);
    CHECK(system(command) == 0);
}
CASE(killed)

static void allocates(int unused)
{
    (void)unused;
    case_load();
    case_context(0);
    for (size_t i = 0;; i = (i + 1) % 8) {
        cuda_pointer pointers[4];
        for (size_t k = 0; k < 4; k++) {
            OK(cuda->memory_alloc(&pointers[k], (i + k) % 2 == 0 ? 100 : 2 * MIB));
        }
        for (size_t k = 0; k < 4; k++) {
            OK(cuda->memory_free(pointers[k]));
        }
    }
}

/* Processes that are killed at any point leave nothing behind. */
static void storm(int unused)
{
    pid_t pids[4];
    (void)unused;
    for (int round = 0; round < 5; round++) {
        for (int i = 0; i < 4; i++) {
            pids[i] = case_fork(allocates, 0);
        }
        case_sleep_ms(60 + round * 7);
        for (int i = 0; i < 4; i++) {
            kill(pids[i], SIGKILL);
        }
        for (int i = 0; i < 4; i++) {
            int status = 0;
            CHECK(waitpid(pids[i], &status, 0) == pids[i] && WIFSIGNALED(status));
        }
    }
    case_load();
    case_context(0);
    CHECK(free_bytes() == 1024 * MIB);
    char command[PATH_MAX + 64];
    (void)snprintf(command, sizeof command, "test \"$(ls %s)\" = table", case_folder);
    CHECK(system(command) == 0);
}
CASE(storm)

static void exporter_on_another(int fd)
{
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    case_load();
    case_context(0);
    (void)export(fd, 64);
    (void)export(fd, 64);
    await_step(fd);
}

static void importer_without(int fd)
{
    struct cuda_ipc_handle handle;
    cuda_pointer base;
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    case_load();
    case_context(0);
    hear(fd, &handle, sizeof handle);
    CHECK_RESULT(cuda->ipc_open(&base, handle, CUDA_IPC_LAZY_PEER_ACCESS), CUDA_RESULT_INVALID_DEVICE);
}

/* Memory that was opened in the context of another device. Kernels of that device may touch it; kernels of
 * the memory's own device may not. */
static void on_another(int unused)
{
    (void)unused;
    int device;
    struct cuda_ipc_handle handle;
    pid_t pid = start(exporter_on_another);
    case_load();
    cuda_context own = case_context(1);
    case_context(0);
    cuda_pointer pointer = import(sockets[0]);
    OK(cuda->pointer_attribute(&device, CUDA_POINTER_DEVICE, pointer));
    CHECK(device == 1);
    OK(cuda->set_bytes(pointer, 1, 64, NULL));
    OK(cuda->stream_synchronize(NULL));
    OK(cuda->context_set(own));
    OK(cuda->set_bytes(pointer, 1, 64, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), CUDA_RESULT_ILLEGAL_ADDRESS);
    hear(sockets[0], &handle, sizeof handle);
    step(sockets[0]);
    join(pid);
}
CASE(on_another)

static void not_visible(int unused)
{
    (void)unused;
    struct cuda_ipc_handle handle;
    pid_t exporter = start(exporter_on_another);
    int far = sockets[0];
    pid_t importer = start(importer_without);
    hear(far, &handle, sizeof handle);
    tell(sockets[0], &handle, sizeof handle);
    join(importer);
    step(far);
    join(exporter);
}
CASE(not_visible)

static void closed_in_flight(int unused)
{
    (void)unused;
    static uint64_t flag __attribute__((aligned(4096)));
    pid_t pid = start(exporter_twice);
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pointer pointer = import(sockets[0]);
    OK(cuda->host_register(&flag, sizeof flag, CUDA_HOST_DEVICE_MAP));
    OK(cuda->stream_wait_value(stream, (cuda_pointer)(uintptr_t)&flag, 1, CUDA_WAIT_VALUE_GEQ));
    OK(cuda->set_bytes(pointer, 1, 64, stream));
    OK(cuda->ipc_close(pointer));
    __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
    CHECK_RESULT(cuda->stream_synchronize(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
    step(sockets[0]);
    join(pid);
}
CASE(closed_in_flight)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),      cmocka_unit_test(test_same_process),
        cmocka_unit_test(test_twice),       cmocka_unit_test(test_repeats),
        cmocka_unit_test(test_overlaps),    cmocka_unit_test(test_killed),
        cmocka_unit_test(test_storm),       cmocka_unit_test(test_on_another),
        cmocka_unit_test(test_not_visible), cmocka_unit_test(test_closed_in_flight),
    };
    return cmocka_run_group_tests_name("cuda_double_ipc", tests, NULL, NULL);
}
