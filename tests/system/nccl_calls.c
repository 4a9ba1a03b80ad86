#include "tests/cuda_double/cuda_double.h"
#include "tests/system/nccl_program.h"

#include <dlfcn.h>
#include <limits.h>
#include <string.h>

/* Calls that succeed: kinds, groups, messages, splits, memory, configs, operators, communicators' lives. */

#define COUNT_MAX 4099
#define RANKS_MAX 8

static int32_t words[RANKS_MAX * COUNT_MAX];

static int32_t value_of(int rank, size_t index)
{
    return (int32_t)((uint32_t)rank * 1000003u + (uint32_t)index * 7u + 1u);
}

/* The elements of `rank` from `first` on. */
static void put(const struct local *local, cuda_pointer to, size_t first, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        words[i] = value_of(local->rank, first + i);
    }
    write_gpu(local, to, words, count * sizeof *words);
}

/* Element i of the buffer is element `first` + i of that rank. */
static void compare(const struct local *local, cuda_pointer at, int rank, size_t first, size_t count,
                    const char *what)
{
    read_gpu(local, at, words, count * sizeof *words);
    for (size_t i = 0; i < count; i++) {
        if (words[i] != value_of(rank, first + i)) {
            fprintf(stderr, "rank %d: %s: element %zu is %d, not %d\n", local->rank, what, i, words[i],
                    value_of(rank, first + i));
            exit(EXIT_FAILURE);
        }
    }
}

static cuda_pointer block(cuda_pointer at, int index, size_t count)
{
    return at + (cuda_pointer)((size_t)index * count * sizeof(int32_t));
}

static void begin(size_t count)
{
    EACH(local)
    {
        poison(local);
        put(local, local->send, 0, (size_t)size * count);
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
}

static void end(void)
{
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

static void check_broadcast(size_t count, int root)
{
    begin(count);
    EACH(local)
    {
        expect(ncclBroadcast(local->rank == root ? AT(local->send) : NULL, AT(local->receive), count,
                             ncclInt32, root, local->comm, STREAM(local)),
               ncclSuccess, "ncclBroadcast");
    }
    end();
    EACH(local)
    {
        compare(local, local->receive, root, 0, count, "ncclBroadcast");
    }
    begin(count);
    EACH(local)
    {
        expect(ncclBcast(AT(local->send), count, ncclInt32, root, local->comm, STREAM(local)), ncclSuccess,
               "ncclBcast");
    }
    end();
    EACH(local)
    {
        compare(local, local->send, root, 0, count, "ncclBcast");
    }
}

static void check_gather(size_t count, int root)
{
    begin(count);
    EACH(local)
    {
        expect(ncclGather(AT(local->send), local->rank == root ? AT(local->receive) : NULL, count, ncclInt32,
                          root, local->comm, STREAM(local)),
               ncclSuccess, "ncclGather");
    }
    end();
    EACH(local)
    {
        for (int rank = 0; local->rank == root && rank < size; rank++) {
            compare(local, block(local->receive, rank, count), rank, 0, count, "ncclGather");
        }
    }
}

static void check_scatter(size_t count, int root)
{
    begin(count);
    EACH(local)
    {
        expect(ncclScatter(local->rank == root ? AT(local->send) : NULL, AT(local->receive), count, ncclInt32,
                           root, local->comm, STREAM(local)),
               ncclSuccess, "ncclScatter");
    }
    end();
    EACH(local)
    {
        compare(local, local->receive, root, (size_t)local->rank * count, count, "ncclScatter");
    }
}

static void check_all_to_all(size_t count)
{
    begin(count);
    EACH(local)
    {
        expect(
            ncclAlltoAll(AT(local->send), AT(local->receive), count, ncclInt32, local->comm, STREAM(local)),
            ncclSuccess, "ncclAlltoAll");
    }
    end();
    EACH(local)
    {
        for (int rank = 0; rank < size; rank++) {
            compare(local, block(local->receive, rank, count), rank, (size_t)local->rank * count, count,
                    "ncclAlltoAll");
        }
    }
}

void case_kinds(void)
{
    static const size_t counts[] = {1, 7, 1024, COUNT_MAX};
    init_all();
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (int root = 0; root < size; root++) {
            check_broadcast(counts[i], root);
            check_gather(counts[i], root);
            check_scatter(counts[i], root);
        }
        check_all_to_all(counts[i]);
    }
    destroy_all();
}

/* --- Groups and messages --- */

/* Two communicators of the same ranks, in one group, called in two orders by even and odd ranks. */
void case_groups(void)
{
    ncclComm_t others[LOCAL_MAX];
    init_all();
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclCommSplit(local->comm, 0, -local->rank, &others[local - locals], NULL), ncclSuccess,
               "ncclCommSplit");
    }
    end();
    expect(ncclGroupStart(), ncclSuccess, "an empty group");
    end();
    begin(COUNT_MAX / 8);
    EACH(local)
    {
        ncclComm_t comms[] = {local->comm, others[local - locals]};
        cuda_pointer to[] = {local->receive, block(local->receive, size, COUNT_MAX / 8)};
        for (int i = 0; i < 2; i++) {
            int which = (i + local->rank) % 2;
            expect(ncclGroupStart(), ncclSuccess, "an inner group");
            expect(ncclBroadcast(AT(local->send), AT(to[which]), COUNT_MAX / 8, ncclInt32, 0, comms[which],
                                 STREAM(local)),
                   ncclSuccess, "ncclBroadcast");
            expect(ncclGroupEnd(), ncclSuccess, "an inner group");
        }
    }
    end();
    EACH(local)
    {
        compare(local, local->receive, 0, 0, COUNT_MAX / 8, "the first communicator");
        compare(local, block(local->receive, size, COUNT_MAX / 8), size - 1, 0, COUNT_MAX / 8,
                "the second communicator");
        expect(ncclCommDestroy(others[local - locals]), ncclSuccess, "ncclCommDestroy");
    }
    destroy_all();
}

#define MESSAGES 3

static size_t message_count(int message)
{
    return (size_t)message * 450 + 5;
}

/* Every rank sends several messages to every rank, itself included. They match by their order. The receiver
 * takes bytes, as NCCL allows. */
void case_messages(void)
{
    size_t room = message_count(MESSAGES);
    init_all();
    begin(COUNT_MAX);
    EACH(local)
    {
        for (int peer = 0; peer < size; peer++) {
            for (int i = 0; i < MESSAGES; i++) {
                expect(ncclSend(AT(block(local->send, peer * MESSAGES + i, 1)), message_count(i), ncclInt32,
                                peer, local->comm, STREAM(local)),
                       ncclSuccess, "ncclSend");
                expect(ncclRecv(AT(block(local->receive, peer * MESSAGES + i, room)),
                                message_count(i) * sizeof(int32_t), ncclUint8, peer, local->comm,
                                STREAM(local)),
                       ncclSuccess, "ncclRecv");
            }
        }
    }
    end();
    EACH(local)
    {
        for (int peer = 0; peer < size; peer++) {
            for (int i = 0; i < MESSAGES; i++) {
                compare(local, block(local->receive, peer * MESSAGES + i, room), peer,
                        (size_t)local->rank * MESSAGES + (size_t)i, message_count(i), "ncclRecv");
            }
        }
    }
    destroy_all();
}

/* --- Splits --- */

/* What the ranks of one parity, or all, add up to. */
static float sum_of(int parity)
{
    float sum = 0;
    for (int rank = 0; rank < size; rank++) {
        sum += parity < 0 || rank % 2 == parity ? (float)(rank + 1) : 0;
    }
    return sum;
}

static void check_part(ncclComm_t *parts, bool is_half)
{
    float got[LOCAL_MAX];
    EACH(local)
    {
        float value = (float)(local->rank + 1);
        poison(local);
        write_gpu(local, local->send, &value, sizeof value);
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum,
                             parts[local - locals], STREAM(local)),
               ncclSuccess, "ncclAllReduce");
    }
    end();
    EACH(local)
    {
        read_gpu(local, local->receive, &got[local - locals], sizeof(float));
        expect_true(got[local - locals] == sum_of(is_half ? local->rank % 2 : -1), "the sum of a part");
        expect(ncclCommDestroy(parts[local - locals]), ncclSuccess, "ncclCommDestroy");
    }
}

/* Three splits of one communicator in one group: by parity, of odd ranks alone, of all. */
void case_splits(void)
{
    ncclComm_t halves[LOCAL_MAX], odd[LOCAL_MAX], all[LOCAL_MAX];
    int count = 0, rank = -1;
    init_all();
    memset(odd, 0xee, sizeof odd);
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        long i = local - locals;
        int color = local->rank % 2 == 1 ? 4 : NCCL_SPLIT_NOCOLOR;
        expect(ncclCommSplit(local->comm, local->rank % 2, 0, &halves[i], NULL), ncclSuccess, "halves");
        expect(ncclCommSplit(local->comm, color, 0, &odd[i], NULL), ncclSuccess, "odd ranks");
        expect(ncclCommSplit(local->comm, 9, -local->rank, &all[i], NULL), ncclSuccess, "all");
    }
    end();
    EACH(local)
    {
        long i = local - locals;
        expect_true((odd[i] != NULL) == (local->rank % 2 == 1), "no color gives no communicator");
        expect(ncclCommCount(all[i], &count), ncclSuccess, "ncclCommCount");
        expect(ncclCommUserRank(all[i], &rank), ncclSuccess, "ncclCommUserRank");
        expect_true(count == size && rank == size - 1 - local->rank, "size and rank of a part");
        expect(ncclCommDestroy(odd[i]), ncclSuccess, "ncclCommDestroy");
    }
    check_part(halves, true);
    check_part(all, false);
    check_all_work();
    destroy_all();
}

/* --- Memory --- */

void case_memory(void)
{
    init_all();
    struct local *local = &locals[0];
    void *memory = NULL, *handle = &memory;
    ncclWindow_t window = (ncclWindow_t)(void *)&memory;
    size_t bytes = 3u << 20;
    enter(local);
    expect(ncclMemAlloc(NULL, bytes), ncclInvalidArgument, "ncclMemAlloc");
    expect(ncclMemAlloc(&memory, 0), ncclInvalidArgument, "ncclMemAlloc");
    expect(ncclMemAlloc(&memory, bytes), ncclSuccess, "ncclMemAlloc");
    expect(ncclCommRegister(local->comm, memory, bytes, &handle), ncclSuccess, "ncclCommRegister");
    expect_true(handle == NULL, "a registration is null");
    expect(ncclCommRegister(local->comm, NULL, bytes, &handle), ncclInvalidArgument, "ncclCommRegister");
    expect(ncclCommWindowRegister(local->comm, memory, bytes, &window, 0), ncclSuccess,
           "ncclCommWindowRegister");
    expect_true(window == NULL, "a window is null");
    cuda_pointer own = local->send;
    local->send = (cuda_pointer)(uintptr_t)memory;
    check_all_work();
    local->send = own;
    expect(ncclCommWindowDeregister(local->comm, window), ncclSuccess, "ncclCommWindowDeregister");
    expect(ncclCommDeregister(local->comm, handle), ncclSuccess, "ncclCommDeregister");
    expect(ncclCommDeregister(NULL, handle), ncclInvalidArgument, "ncclCommDeregister");
    expect(ncclMemFree(AT(own)), ncclInvalidArgument, "memory of cudaMalloc");
    expect(ncclMemFree(memory), ncclSuccess, "ncclMemFree");
    expect(ncclMemFree(memory), ncclInvalidArgument, "ncclMemFree");
    expect(ncclMemFree(NULL), ncclSuccess, "ncclMemFree");
    destroy_all();
}

static void *cuda_symbol(const char *name)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    void *symbol = library != NULL ? dlsym(library, name) : NULL;
    expect_true(symbol != NULL, name);
    return symbol;
}

/* Memory of a new pool. */
static cuda_pointer alloc_from_pool(const struct local *local, int handle_types, size_t bytes)
{
    cuda_result (*create)(cuda_pool * pool, const struct cuda_pool_properties *properties);
    cuda_result (*alloc)(cuda_pointer * pointer, size_t bytes, cuda_pool pool, cuda_stream stream);
    void *symbols[] = {cuda_symbol("cuMemPoolCreate"), cuda_symbol("cuMemAllocFromPoolAsync")};
    memcpy(&create, &symbols[0], sizeof create);
    memcpy(&alloc, &symbols[1], sizeof alloc);
    struct cuda_pool_properties properties = {
        .type = CUDA_ALLOCATION_PINNED,
        .handle_types = handle_types,
        .location = {.type = CUDA_LOCATION_DEVICE, .id = local->device}};
    cuda_pool pool;
    cuda_pointer pointer = 0;
    cuda(create(&pool, &properties), "cuMemPoolCreate");
    cuda(alloc(&pointer, bytes, pool, local->stream), "cuMemAllocFromPoolAsync");
    return pointer;
}

/* Memory of CUDA memory pools works between its registration and the last end of it. */
void case_pools(void)
{
    init_all();
    struct local *local = &locals[0];
    void *handle = NULL, *again = NULL, *none = &handle;
    enter(local);
    cuda_pointer own = local->send, closed = alloc_from_pool(local, 0, BUFFER_BYTES);
    local->send = alloc_from_pool(local, CUDA_HANDLE_POSIX_FD, BUFFER_BYTES);
    wait_stream(local);
    expect(ncclCommRegister(local->comm, AT(closed), BUFFER_BYTES, &none), ncclInvalidUsage,
           "ncclCommRegister");
    expect_text("cudaMemPoolCreate");
    expect_true(none == NULL, "a registration that is refused is null");
    expect(ncclCommRegister(local->comm, AT(local->send), BUFFER_BYTES, &handle), ncclSuccess,
           "ncclCommRegister");
    expect(ncclCommRegister(local->comm, AT(local->send + 256), 256, &again), ncclSuccess,
           "ncclCommRegister");
    expect_true(handle != NULL && again == handle, "an allocation has one registration");
    expect(ncclCommDeregister(local->comm, again), ncclSuccess, "ncclCommDeregister");
    check_all_work();
    enter(local);
    expect(ncclCommDeregister(local->comm, handle), ncclSuccess, "ncclCommDeregister");
    expect(ncclCommDeregister(local->comm, handle), ncclInvalidArgument, "ncclCommDeregister");
    cuda(driver->memory_free_async(local->send, local->stream), "memory_free_async");
    cuda(driver->memory_free_async(closed, local->stream), "memory_free_async");
    wait_stream(local);
    local->send = own;
    destroy_all();
}

/* --- Configs, operators, life --- */

/* The configs of programs that were built for each version of NCCL. The bytes behind them are garbage. */
void case_configs(void)
{
    static const struct {
        size_t size;
        unsigned version;
    } known[] = {{24, 21405}, {40, 21701}, {48, 21801}, {72, 22703},
                 {80, 22809}, {88, 22902}, {96, 23007}, {120, 23203}};
    ncclUniqueId ids[2];
    ids[0] = program_id;
    memset(&ids[1], 0xee, sizeof ids[1]);
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        enter(local);
        expect(ncclCommInitRankScalable(&local->comm, size, local->rank, 2, ids, NULL), ncclSuccess,
               "ncclCommInitRankScalable");
    }
    end();
    check_all_work();
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        union {
            ncclConfig_t config;
            int words[32];
        } bytes;
        ncclConfig_t model = NCCL_CONFIG_INITIALIZER;
        ncclComm_t parts[LOCAL_MAX];
        memset(&bytes, 0x5a, sizeof bytes);
        for (size_t at = 4; at < known[i].size / sizeof(int); at++) {
            bytes.words[at] = INT_MIN;
        }
        bytes.config.size = known[i].size;
        bytes.config.magic = model.magic;
        bytes.config.version = known[i].version;
        bytes.config.blocking = 1;
        expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
        EACH(local)
        {
            expect(ncclCommSplit(local->comm, local->rank % 2, 0, &parts[local - locals], &bytes.config),
                   ncclSuccess, "ncclCommSplit with a config");
        }
        end();
        check_part(parts, true);
    }
    destroy_all();
}

static float scale_once(struct local *local, ncclRedOp_t op)
{
    float value = 3, got = 0;
    poison(local);
    write_gpu(local, local->send, &value, sizeof value);
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, op, local->comm, STREAM(local)),
           ncclSuccess, "a pre-multiplied sum");
    read_gpu(local, local->receive, &got, sizeof got);
    return got;
}

/* For processes of one rank. */
void case_operators(void)
{
    struct local *local = &locals[0];
    ncclComm_t other;
    ncclRedOp_t op, elsewhere, device_op;
    float factor = 0.25F, changed = 0.5F;
    init_all();
    cuda_pointer scalar = block(local->receive, 1, 64);
    expect(ncclCommSplit(local->comm, 0, 0, &other, NULL), ncclSuccess, "ncclCommSplit");
    expect(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, local->comm),
           ncclSuccess, "ncclRedOpCreatePreMulSum");
    expect(ncclRedOpCreatePreMulSum(&elsewhere, &factor, ncclFloat32, ncclScalarHostImmediate, other),
           ncclSuccess, "ncclRedOpCreatePreMulSum");
    expect(ncclRedOpCreatePreMulSum(&device_op, AT(scalar), ncclFloat32, ncclScalarDevice, local->comm),
           ncclSuccess, "ncclRedOpCreatePreMulSum");
    factor = 7; /* the factor was read already */
    expect_true(scale_once(local, op) == 0.75F * (float)size, "a factor of the host");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, elsewhere, local->comm,
                         STREAM(local)),
           ncclInvalidArgument, "an operator of another communicator");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat64, op, local->comm, STREAM(local)),
           ncclInvalidArgument, "an operator of another type");
    poison(local);
    write_gpu(local, scalar, &changed, sizeof changed); /* the operation reads it */
    write_gpu(local, local->send, &factor, sizeof factor);
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, device_op, local->comm,
                         STREAM(local)),
           ncclSuccess, "a factor of the GPU");
    read_gpu(local, local->receive, &factor, sizeof factor);
    expect_true(factor == 3.5F * (float)size, "a factor of the GPU");
    expect(ncclRedOpDestroy(elsewhere, local->comm), ncclInvalidArgument,
           "an operator of another communicator");
    expect(ncclRedOpDestroy(op, local->comm), ncclSuccess, "ncclRedOpDestroy");
    expect(ncclRedOpDestroy(op, local->comm), ncclInvalidArgument, "ncclRedOpDestroy");
    expect(ncclCommDestroy(other), ncclSuccess, "ncclCommDestroy");
    destroy_all();
}

void case_life(void)
{
    int number = -1;
    init_all();
    check_all_work();
    EACH(local)
    {
        expect(ncclCommCount(local->comm, &number), ncclSuccess, "ncclCommCount");
        expect_true(number == size, "the size");
        expect(ncclCommUserRank(local->comm, &number), ncclSuccess, "ncclCommUserRank");
        expect_true(number == local->rank, "the rank");
        expect(ncclCommCuDevice(local->comm, &number), ncclSuccess, "ncclCommCuDevice");
        expect_true(number == local->device, "the device");
    }
    EACH(local)
    {
        expect(ncclCommFinalize(local->comm), ncclSuccess, "ncclCommFinalize");
        expect(await_state(local->comm), ncclSuccess, "the state of a finalized communicator");
        expect(ncclCommCount(local->comm, &number), ncclSuccess, "ncclCommCount");
        expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, local->comm,
                             STREAM(local)),
               ncclInvalidUsage, "a call on a finalized communicator");
        expect(ncclCommFinalize(local->comm), ncclInvalidArgument, "finalized twice");
    }
    destroy_all();
    expect(ncclCommFinalize(NULL), ncclSuccess, "ncclCommFinalize");
    expect(ncclCommDestroy(NULL), ncclSuccess, "ncclCommDestroy");
    expect(ncclCommAbort(NULL), ncclSuccess, "ncclCommAbort");
    expect_true(strcmp(ncclGetErrorString(ncclSuccess), "no error") == 0, "a text");
    next_id();
    init_all();
    check_all_work();
    destroy_all();
}
