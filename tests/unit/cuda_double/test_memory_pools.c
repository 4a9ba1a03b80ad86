#include "tests/unit/cuda_double/case.h"

/* Memory pools within a process, and from an exporter at the other end of the socket to an importer. */
static int sockets[2];

struct shared {
    struct cuda_pool_pointer data;
    cuda_pointer pointer;
};

static cuda_pool make_pool(int device, int handle_types)
{
    cuda_pool pool;
    struct cuda_pool_properties properties = {.type = CUDA_ALLOCATION_PINNED,
                                              .handle_types = handle_types,
                                              .location = {.type = CUDA_LOCATION_DEVICE, .id = device}};
    OK(beyond.pool_create(&pool, &properties));
    return pool;
}

static cuda_pointer alloc_from(cuda_pool pool, size_t bytes, cuda_stream stream)
{
    cuda_pointer pointer;
    OK(beyond.alloc_from_pool(&pointer, bytes, pool, stream));
    return pointer;
}

static cuda_result allow(cuda_pool pool, int device, int flags)
{
    struct cuda_access access = {.location = {.type = CUDA_LOCATION_DEVICE, .id = device}, .flags = flags};
    return cuda->pool_set_access(pool, &access, 1);
}

static void attributes(int unused)
{
    (void)unused;
    int flag;
    uint64_t types;
    cuda_pool found, usual;
    cuda_pointer base;
    size_t bytes;
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool pool = make_pool(0, CUDA_HANDLE_POSIX_FD);
    cuda_pointer pointer = alloc_from(pool, 1000, stream);
    cuda_pointer large = alloc_from(pool, 3 * MIB, stream);
    cuda_pointer plain = case_alloc(1000);
    OK(cuda->pointer_attribute(&found, CUDA_POINTER_POOL, pointer + 999));
    CHECK(found == pool);
    OK(cuda->pointer_attribute(&found, CUDA_POINTER_POOL, plain));
    CHECK(found == NULL);
    OK(cuda->pointer_attribute(&types, CUDA_POINTER_HANDLE_TYPES, large));
    CHECK(types == CUDA_HANDLE_POSIX_FD);
    OK(cuda->pointer_attribute(&flag, CUDA_POINTER_LEGACY_IPC, pointer));
    CHECK(flag == 0);
    OK(cuda->memory_range(&base, &bytes, large + 5));
    CHECK(base == large && bytes == 3 * MIB);
    cuda_pointer other;
    OK(beyond.alloc_pool(&other, 1000, stream));
    OK(beyond.pool_default(&usual, 0));
    OK(cuda->pointer_attribute(&found, CUDA_POINTER_POOL, other));
    CHECK(found == usual && found != pool);
    OK(cuda->memory_free_async(other, stream));
    CHECK_RESULT(cuda->pointer_attribute(&found, CUDA_POINTER_POOL, other), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->memory_free_async(other, stream), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->memory_free_async(plain, stream), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->memory_free(large));
    OK(cuda->stream_synchronize(stream));
}
CASE(attributes)

/* What cannot be shared, and handles that do not live. */
static void refusals(int unused)
{
    (void)unused;
    int fd = -1;
    cuda_pool usual, next;
    struct cuda_pool_pointer data;
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool closed = make_pool(0, 0), open = make_pool(0, CUDA_HANDLE_POSIX_FD);
    OK(beyond.pool_default(&usual, 0));
    CHECK_RESULT(cuda->pool_export(&fd, usual, CUDA_HANDLE_POSIX_FD, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_export(&fd, closed, CUDA_HANDLE_POSIX_FD, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_export(&fd, open, CUDA_HANDLE_FABRIC, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_export(&fd, open, CUDA_HANDLE_POSIX_FD, 1), CUDA_RESULT_INVALID_VALUE);
    cuda_pointer pointer = alloc_from(open, 100, stream), in_closed = alloc_from(closed, 100, stream);
    CHECK_RESULT(cuda->pool_export_pointer(&data, pointer), CUDA_RESULT_INVALID_VALUE); /* not shared yet */
    OK(cuda->pool_export(&fd, open, CUDA_HANDLE_POSIX_FD, 0));
    OK(cuda->pool_export_pointer(&data, pointer));
    CHECK_RESULT(cuda->pool_export_pointer(&data, pointer + 8), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_export_pointer(&data, in_closed), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_import(&next, (void *)(intptr_t)fd, CUDA_HANDLE_POSIX_FD, 0),
                 CUDA_RESULT_INVALID_VALUE); /* of this process */
    close(fd);
    CHECK_RESULT(cuda->pool_destroy(usual), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->pool_destroy(closed));
    CHECK_RESULT(cuda->pool_destroy(closed), CUDA_RESULT_INVALID_VALUE);
    cuda_pointer late;
    CHECK_RESULT(beyond.alloc_from_pool(&late, 100, closed, stream), CUDA_RESULT_INVALID_VALUE);
    CHECK(make_pool(0, 0) != closed); /* it still has memory */
    OK(cuda->memory_free_async(in_closed, stream));
    OK(cuda->stream_synchronize(stream));
    CHECK(make_pool(0, 0) == closed); /* another one */
    struct cuda_pool_properties wrong = {.type = CUDA_ALLOCATION_PINNED,
                                         .location = {.type = CUDA_LOCATION_DEVICE, .id = 4}};
    CHECK_RESULT(beyond.pool_create(&next, &wrong), CUDA_RESULT_INVALID_VALUE);
}
CASE(refusals)

/* Work of another stream that overtakes the allocation touches nothing. */
static void order(int unused)
{
    (void)unused;
    void *memory;
    cuda_pointer word;
    case_load();
    case_context(0);
    cuda_stream stream = case_stream(), other = case_stream();
    OK(cuda->host_alloc(&memory, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    memset(memory, 0, 4096);
    OK(cuda->host_device_pointer(&word, memory, 0));
    OK(cuda->stream_wait_value(stream, word, 1, CUDA_WAIT_VALUE_GEQ));
    cuda_pointer early = alloc_from(make_pool(0, 0), 100, stream);
    OK(cuda->set_bytes(early, 1, 100, stream));
    OK(cuda->set_bytes(early, 1, 100, other));
    CHECK_RESULT(cuda->stream_synchronize(other), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(order)

/* Devices reach a pool's memory by the pool's own list. */
static void access_of_devices(int unused)
{
    (void)unused;
    case_load();
    cuda_context second = case_context(1);
    case_context(0);
    OK(cuda->context_enable_peer(second, 0));
    cuda_pool pool = make_pool(0, 0);
    cuda_pointer pointer = alloc_from(pool, 100, NULL);
    OK(cuda->stream_synchronize(NULL));
    CHECK_RESULT(allow(pool, 0, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(allow(pool, 9, CUDA_ACCESS_READ_WRITE), CUDA_RESULT_INVALID_VALUE);
    OK(allow(pool, 1, CUDA_ACCESS_READ_WRITE));
    OK(cuda->context_set(second));
    OK(cuda->set_bytes(pointer, 7, 100, NULL));
    OK(cuda->stream_synchronize(NULL));
    CHECK(case_byte(pointer + 99) == 7);
    OK(allow(pool, 1, 0));
    OK(cuda->set_bytes(pointer, 8, 100, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(access_of_devices)

/* ---- from process to process */

static pid_t start(void (*body)(int))
{
    CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets) == 0);
    pid_t pid = case_fork(body, sockets[1]);
    close(sockets[1]);
    return pid;
}

static void end(pid_t pid)
{
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(status == 0);
}

static void step(int fd)
{
    char one = 1;
    case_send(fd, &one, 1, -1);
}

static void await_step(int fd)
{
    char one;
    (void)case_receive(fd, &one, 1);
}

static void share(int fd, cuda_pool pool, cuda_pointer pointer)
{
    struct shared shared = {.pointer = pointer};
    int pool_fd = -1;
    OK(cuda->pool_export(&pool_fd, pool, CUDA_HANDLE_POSIX_FD, 0));
    OK(cuda->pool_export_pointer(&shared.data, pointer));
    case_send(fd, &shared, sizeof shared, pool_fd);
    close(pool_fd);
}

static cuda_pool receive(int fd, struct shared *shared)
{
    cuda_pool pool;
    int pool_fd = case_receive(fd, shared, sizeof *shared);
    OK(cuda->pool_import(&pool, (void *)(intptr_t)pool_fd, CUDA_HANDLE_POSIX_FD, 0));
    close(pool_fd);
    return pool;
}

static void filled(cuda_pointer pointer, unsigned char value, size_t bytes, cuda_stream stream)
{
    OK(cuda->set_bytes(pointer, value, bytes, stream));
    OK(cuda->stream_synchronize(stream));
}

/* Two allocations of a pool share a block. Both are freed in the order that CUDA wants; then the addresses
 * are used again, and the importer opens them anew. */
static void export_in_order(int fd)
{
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool pool = make_pool(0, CUDA_HANDLE_POSIX_FD);
    cuda_pointer first = alloc_from(pool, 1000, stream), second = alloc_from(pool, 1000, stream);
    filled(first, 1, 1000, stream);
    filled(second, 2, 1000, stream);
    share(fd, pool, first);
    share(fd, pool, second);
    await_step(fd);
    CHECK(case_byte(second + 999) == 3); /* the importer's */
    OK(cuda->memory_free_async(first, stream));
    CHECK(case_byte(second) == 3);
    OK(cuda->stream_synchronize(stream));
    cuda_pointer again = alloc_from(pool, 500, stream);
    CHECK(again == first);
    filled(again, 4, 500, stream);
    share(fd, pool, again);
    await_step(fd);
}

static void in_order(int unused)
{
    (void)unused;
    struct shared of[3];
    cuda_pointer at[3], base;
    size_t bytes;
    pid_t exporter = start(export_in_order);
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool pool = receive(sockets[0], &of[0]), twice = receive(sockets[0], &of[1]);
    OK(cuda->pool_import_pointer(&at[0], pool, &of[0].data));
    OK(cuda->pool_import_pointer(&at[1], twice, &of[1].data));
    CHECK(case_byte(at[0]) == 1 && case_byte(at[1] + 999) == 2);
    OK(cuda->memory_range(&base, &bytes, at[1] + 10));
    CHECK(base == at[1] && bytes == 1000);
    filled(at[1], 3, 1000, stream);
    OK(cuda->memory_free_async(at[0], stream));
    OK(cuda->stream_synchronize(stream));
    step(sockets[0]);
    OK(cuda->pool_destroy(receive(sockets[0], &of[2])));
    CHECK_RESULT(cuda->pool_import_pointer(&at[0], pool, &of[0].data), CUDA_RESULT_INVALID_VALUE); /* freed */
    OK(cuda->pool_import_pointer(&at[2], pool, &of[2].data));
    CHECK(case_byte(at[2] + 499) == 4);
    OK(cuda->memory_free(at[1]));
    OK(cuda->memory_free(at[2]));
    OK(cuda->pool_destroy(pool));
    step(sockets[0]);
    end(exporter);
}
CASE(in_order)

/* The exporter frees, and uses the addresses again, while they are open. */
static void export_freed_early(int fd)
{
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool pool = make_pool(0, CUDA_HANDLE_POSIX_FD);
    cuda_pointer pointer = alloc_from(pool, 1000, stream);
    filled(pointer, 1, 1000, stream);
    share(fd, pool, pointer);
    await_step(fd);
    CHECK(freopen("/dev/null", "w", stderr) != NULL); /* the double complains */
    OK(cuda->memory_free_async(pointer, stream));
    OK(cuda->stream_synchronize(stream));
    step(fd);
    CHECK(alloc_from(pool, 1000, stream) == pointer);
    share(fd, pool, pointer);
    await_step(fd);
}

static void freed_early(int unused)
{
    (void)unused;
    struct shared of;
    cuda_pointer at, again;
    pid_t exporter = start(export_freed_early);
    case_load();
    case_context(0);
    cuda_pool pool = receive(sockets[0], &of);
    OK(cuda->pool_import_pointer(&at, pool, &of.data));
    CHECK(case_byte(at) == 1);
    step(sockets[0]);
    await_step(sockets[0]);
    CHECK(case_byte(at) == 0xff);
    (void)receive(sockets[0], &of);
    CHECK_RESULT(cuda->pool_import_pointer(&again, pool, &of.data), CUDA_RESULT_ALREADY_MAPPED);
    OK(cuda->memory_free(at));
    OK(cuda->pool_import_pointer(&again, pool, &of.data));
    step(sockets[0]);
    end(exporter);
}
CASE(freed_early)

/* Memory is shared before the exporter's stream has come to it. */
static void export_before_its_turn(int fd)
{
    void *memory;
    cuda_pointer word;
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    OK(cuda->host_alloc(&memory, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    memset(memory, 0, 4096);
    OK(cuda->host_device_pointer(&word, memory, 0));
    OK(cuda->stream_wait_value(stream, word, 1, CUDA_WAIT_VALUE_GEQ));
    cuda_pool pool = make_pool(0, CUDA_HANDLE_POSIX_FD);
    share(fd, pool, alloc_from(pool, 1000, stream));
    await_step(fd);
}

static void before_its_turn(int unused)
{
    (void)unused;
    struct shared of;
    cuda_pointer at;
    pid_t exporter = start(export_before_its_turn);
    case_load();
    case_context(0);
    cuda_stream stream = case_stream();
    cuda_pool pool = receive(sockets[0], &of);
    OK(cuda->pool_import_pointer(&at, pool, &of.data));
    OK(cuda->set_bytes(at, 1, 10, stream));
    CHECK_RESULT(cuda->stream_synchronize(stream), CUDA_RESULT_ILLEGAL_ADDRESS);
    step(sockets[0]);
    end(exporter);
}
CASE(before_its_turn)

/* Data that lie, and an imported pool, which gives no memory and does not let other devices in by itself. */
static void export_two_pools(int fd)
{
    case_load();
    case_context(0);
    for (int i = 0; i < 2; i++) {
        cuda_pool pool = make_pool(0, CUDA_HANDLE_POSIX_FD);
        OK(allow(pool, 1, CUDA_ACCESS_READ_WRITE));
        cuda_pointer pointer = alloc_from(pool, 1000, NULL);
        filled(pointer, 1, 1000, NULL);
        share(fd, pool, pointer);
    }
    await_step(fd);
}

static void lies(int unused)
{
    (void)unused;
    struct shared of[2];
    int fd = -1;
    cuda_pointer at;
    cuda_pool none;
    pid_t exporter = start(export_two_pools);
    case_load();
    cuda_context second = case_context(1);
    case_context(0);
    cuda_pool pool = receive(sockets[0], &of[0]), other = receive(sockets[0], &of[1]);
    CHECK_RESULT(cuda->pool_import_pointer(&at, pool, &of[1].data), CUDA_RESULT_INVALID_VALUE);
    struct cuda_pool_pointer forged = of[0].data;
    memset(forged.bytes + 24, 0x55, 8);
    CHECK_RESULT(cuda->pool_import_pointer(&at, pool, &forged), CUDA_RESULT_INVALID_VALUE);
    memset(&forged, 0, sizeof forged);
    CHECK_RESULT(cuda->pool_import_pointer(&at, pool, &forged), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_import_pointer(&at, make_pool(0, CUDA_HANDLE_POSIX_FD), &of[0].data),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_import(&none, (void *)(intptr_t)sockets[0], CUDA_HANDLE_POSIX_FD, 0),
                 CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(cuda->pool_export(&fd, pool, CUDA_HANDLE_POSIX_FD, 0), CUDA_RESULT_INVALID_VALUE);
    CHECK_RESULT(beyond.alloc_from_pool(&at, 100, pool, NULL), CUDA_RESULT_INVALID_VALUE);
    OK(cuda->pool_import_pointer(&at, other, &of[1].data));
    OK(allow(other, 1, CUDA_ACCESS_READ_WRITE));
    OK(cuda->context_set(second));
    filled(at, 2, 1000, NULL);
    OK(cuda->pool_import_pointer(&at, pool, &of[0].data));
    OK(cuda->set_bytes(at, 2, 10, NULL));
    CHECK_RESULT(cuda->stream_synchronize(NULL), CUDA_RESULT_ILLEGAL_ADDRESS);
    step(sockets[0]);
    end(exporter);
}
CASE(lies)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attributes),      cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_order),           cmocka_unit_test(test_access_of_devices),
        cmocka_unit_test(test_in_order),        cmocka_unit_test(test_freed_early),
        cmocka_unit_test(test_before_its_turn), cmocka_unit_test(test_lies),
    };
    return cmocka_run_group_tests_name("cuda_double_memory_pools", tests, NULL, NULL);
}
