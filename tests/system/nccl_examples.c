#include "tests/system/nccl_program.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

/* Programs as NCCL's documentation and its performance tests have them. */

#define WORDS (BUFFER_BYTES / sizeof(int32_t))

static int32_t words[WORDS];

static int32_t value_of(int rank, size_t index, int round)
{
    return (int32_t)((uint32_t)(rank + 1) * 7919u + (uint32_t)index * 31u + (uint32_t)round);
}

static int32_t sum_of(int ranks, size_t index, int round)
{
    uint32_t sum = 0;
    for (int rank = 0; rank < ranks; rank++) {
        sum += (uint32_t)value_of(rank, index, round);
    }
    return (int32_t)sum;
}

static cuda_pointer at(cuda_pointer base, size_t index)
{
    return base + (cuda_pointer)(index * sizeof(int32_t));
}

static void put(const struct local *local, cuda_pointer to, size_t count, size_t first, int round)
{
    for (size_t i = 0; i < count; i++) {
        words[i] = value_of(local->rank, first + i, round);
    }
    write_gpu(local, to, words, count * sizeof *words);
}

static void check_word(const struct local *local, const char *what, size_t index, int32_t wanted)
{
    if (words[index] != wanted) {
        fprintf(stderr, "rank %d: %s: element %zu is %d, not %d\n", local->rank, what, index, words[index],
                wanted);
        exit(EXIT_FAILURE);
    }
}

static void get(const struct local *local, cuda_pointer from, size_t count)
{
    read_gpu(local, from, words, count * sizeof *words);
}

static void group(void (*call)(struct local *local, size_t count, bool in_place), size_t count, bool in_place)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        call(local, count, in_place);
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

/* --- The loops of the performance tests: each size, in place and not, several operations behind each other
 * --- */

#define AGAIN 3 /* operations of a group, which the next ones overwrite */

static void call_all_reduce(struct local *local, size_t count, bool in_place)
{
    cuda_pointer to = in_place ? local->send : local->receive;
    expect(ncclAllReduce(AT(local->send), AT(to), count, ncclInt32, ncclMax, local->comm, STREAM(local)),
           ncclSuccess, "ncclAllReduce");
}

static void call_all_gather(struct local *local, size_t count, bool in_place)
{
    cuda_pointer from = in_place ? at(local->receive, (size_t)local->rank * count) : local->send;
    expect(ncclAllGather(AT(from), AT(local->receive), count, ncclInt32, local->comm, STREAM(local)),
           ncclSuccess, "ncclAllGather");
}

static void call_reduce_scatter(struct local *local, size_t count, bool in_place)
{
    cuda_pointer to = in_place ? at(local->send, (size_t)local->rank * count) : local->receive;
    expect(ncclReduceScatter(AT(local->send), AT(to), count, ncclInt32, ncclSum, local->comm, STREAM(local)),
           ncclSuccess, "ncclReduceScatter");
}

/* ncclAlltoAll came with 2.28: older programs write it so. */
static void call_all_to_all(struct local *local, size_t count, bool in_place)
{
    (void)in_place;
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    for (int peer = 0; peer < size; peer++) {
        expect(ncclSend(AT(at(local->send, (size_t)peer * count)), count, ncclInt32, peer, local->comm,
                        STREAM(local)),
               ncclSuccess, "ncclSend");
        expect(ncclRecv(AT(at(local->receive, (size_t)peer * count)), count, ncclInt32, peer, local->comm,
                        STREAM(local)),
               ncclSuccess, "ncclRecv");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

static void repeat_all_reduces(size_t count)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    for (int turn = 0; turn < AGAIN; turn++) {
        EACH(local)
        {
            call_all_reduce(local, count, false);
        }
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

static void loop_all_reduce(size_t count, int round)
{
    for (int in_place = 0; in_place < 2; in_place++) {
        EACH(local)
        {
            poison(local);
            put(local, local->send, count, 0, round);
        }
        if (in_place == 0) {
            repeat_all_reduces(count);
        } else {
            group(call_all_reduce, count, true);
        }
        EACH(local)
        {
            get(local, in_place != 0 ? local->send : local->receive, count);
            for (size_t i = 0; i < count; i++) {
                check_word(local, "ncclAllReduce", i, value_of(size - 1, i, round));
            }
        }
    }
}

static void loop_blocks(size_t count, int round, bool in_place)
{
    size_t all = count * (size_t)size;
    EACH(local)
    {
        poison(local);
        put(local, in_place ? at(local->receive, (size_t)local->rank * count) : local->send, count, 0, round);
    }
    group(call_all_gather, count, in_place);
    EACH(local)
    {
        get(local, local->receive, all);
        for (size_t i = 0; i < all; i++) {
            check_word(local, "ncclAllGather", i, value_of((int)(i / count), i % count, round));
        }
        poison(local);
        put(local, local->send, all, 0, round);
    }
    group(call_reduce_scatter, count, in_place);
    EACH(local)
    {
        size_t first = (size_t)local->rank * count;
        get(local, in_place ? at(local->send, first) : local->receive, count);
        for (size_t i = 0; i < count; i++) {
            check_word(local, "ncclReduceScatter", i, sum_of(size, first + i, round));
        }
        poison(local);
        put(local, local->send, all, 0, round);
    }
    group(call_all_to_all, count, in_place);
    EACH(local)
    {
        get(local, local->receive, all);
        for (size_t i = 0; i < all; i++) {
            size_t index = (size_t)local->rank * count + i % count;
            check_word(local, "sends and receives", i, value_of((int)(i / count), index, round));
        }
    }
}

void case_loops(void)
{
    init_all();
    int round = 0;
    for (size_t count = 2; count * (size_t)size <= WORDS; count *= 16) {
        loop_all_reduce(count, round);
        loop_blocks(count, round, false);
        loop_blocks(count, round, true);
        round++;
    }
    destroy_all();
}

/* --- Parents and children, and several communicators of the same GPUs --- */

/* Puts the communicator's own rank where the checks look for it. */
static void swap(struct local *local, ncclComm_t *comm, int *rank)
{
    ncclComm_t own = local->comm;
    int own_rank = local->rank;
    local->comm = *comm;
    local->rank = *rank;
    *comm = own;
    *rank = own_rank;
}

/* Each communicator has operations between those of the other, in the same group and on the same streams.
 * Only those of one communicator run in the order of the calls. The child lives on when its parent is gone.
 */
void case_children(void)
{
    ncclComm_t children[LOCAL_MAX];
    int ranks[LOCAL_MAX];
    const size_t count = 1000;
    init_all();
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclCommSplit(local->comm, 0, -local->rank, &children[local - locals], NULL), ncclSuccess,
               "ncclCommSplit");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    EACH(local)
    {
        poison(local);
        put(local, local->send, count, 0, 0);
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclAllReduce(AT(local->send), AT(local->receive), count, ncclInt32, ncclSum, local->comm,
                             STREAM(local)),
               ncclSuccess, "the parent");
        expect(ncclAllGather(AT(local->send), AT(at(local->receive, count)), count, ncclInt32,
                             children[local - locals], STREAM(local)),
               ncclSuccess, "the child");
        expect(ncclAllReduce(AT(local->receive), AT(at(local->receive, count * (size_t)(size + 1))), count,
                             ncclInt32, ncclMin, local->comm, STREAM(local)),
               ncclSuccess, "the parent again");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    EACH(local)
    {
        get(local, local->receive, count * (size_t)(size + 2));
        for (size_t i = 0; i < count * (size_t)(size + 2); i++) {
            int block = (int)(i / count) - 1; /* the child counts its ranks backwards */
            bool is_of_parent = block < 0 || block == size;
            check_word(local, is_of_parent ? "parent" : "child", i,
                       is_of_parent ? sum_of(size, i % count, 0) : value_of(size - 1 - block, i % count, 0));
        }
    }
    EACH(local)
    {
        ranks[local - locals] = size - 1 - local->rank;
        expect(ncclCommFinalize(local->comm), ncclSuccess, "ncclCommFinalize");
        expect(ncclCommDestroy(local->comm), ncclSuccess, "ncclCommDestroy");
        local->comm = NULL;
        swap(local, &children[local - locals], &ranks[local - locals]);
    }
    check_all_work();
    destroy_all();
}

/* --- Communicators that do not block, as in NCCL's guide: poll after each call --- */

static void poll_after(const struct local *local, ncclResult_t result, const char *what)
{
    expect_true(result == ncclSuccess || result == ncclInProgress, what);
    expect(await_state(local->comm), ncclSuccess, what);
}

void case_polling(void)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        enter(local);
        ncclResult_t result = ncclCommInitRankConfig(&local->comm, size, program_id, local->rank, &config);
        expect_true(result == ncclSuccess || result == ncclInProgress, "ncclCommInitRankConfig");
    }
    ncclResult_t ended = ncclGroupEnd();
    EACH(local)
    {
        poll_after(local, ended, "ncclGroupEnd");
    }
    for (int round = 0; round < 20; round++) {
        size_t count = (size_t)round * 97 + 1;
        EACH(local)
        {
            poison(local);
            put(local, local->send, count, 0, round);
        }
        expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
        EACH(local)
        {
            ncclResult_t result = ncclAllReduce(AT(local->send), AT(local->receive), count, ncclInt32,
                                                ncclSum, local->comm, STREAM(local));
            expect_true(result == ncclSuccess || result == ncclInProgress, "ncclAllReduce");
        }
        ended = ncclGroupEnd();
        EACH(local)
        {
            poll_after(local, ended, "ncclGroupEnd");
            get(local, local->receive, count);
            for (size_t i = 0; i < count; i++) {
                check_word(local, "ncclAllReduce", i, sum_of(size, i, round));
            }
        }
    }
    EACH(local)
    {
        poll_after(local, ncclCommFinalize(local->comm), "ncclCommFinalize");
    }
    destroy_all();
}

/* --- Factors --- */

/* Each rank has a factor of its own, on the host or on its GPU, and destroys the operator before the group
 * ends. */
void case_factors(void)
{
    const size_t count = 513;
    init_all();
    for (int of_gpu = 0; of_gpu < 2; of_gpu++) {
        EACH(local)
        {
            int32_t factor = local->rank + 2;
            poison(local);
            put(local, local->send, count, 0, 0);
            write_gpu(local, at(local->send, count), &factor, sizeof factor);
        }
        expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
        EACH(local)
        {
            ncclRedOp_t op;
            int32_t factor = local->rank + 2;
            void *scalar = of_gpu != 0 ? AT(at(local->send, count)) : &factor;
            expect(ncclRedOpCreatePreMulSum(&op, scalar, ncclInt32,
                                            of_gpu != 0 ? ncclScalarDevice : ncclScalarHostImmediate,
                                            local->comm),
                   ncclSuccess, "ncclRedOpCreatePreMulSum");
            factor = 0; /* a factor of the host was read by now */
            expect(ncclAllReduce(AT(local->send), AT(local->receive), count, ncclInt32, op, local->comm,
                                 STREAM(local)),
                   ncclSuccess, "ncclAllReduce");
            expect(ncclRedOpDestroy(op, local->comm), ncclSuccess, "ncclRedOpDestroy");
        }
        expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
        EACH(local)
        {
            get(local, local->receive, count);
            for (size_t i = 0; i < count; i++) {
                uint32_t sum = 0;
                for (int rank = 0; rank < size; rank++) {
                    sum += (uint32_t)(rank + 2) * (uint32_t)value_of(rank, i, 0);
                }
                check_word(local, "a factor of each rank", i, (int32_t)sum);
            }
        }
    }
    destroy_all();
}

/* --- A watchdog aborts what hangs --- */

static void *abort_all(void *unused)
{
    (void)unused;
    EACH(local)
    {
        expect(ncclCommAbort(local->comm), ncclSuccess, "ncclCommAbort");
    }
    return NULL;
}

static void *watch(void *unused)
{
    (void)usleep(300000);
    return abort_all(unused);
}

/* All local ranks but the first submit an operation, and wait for their streams. Another thread aborts, one
 * communicator after the other. Then all processes go on with a new one. */
void case_watchdog(void)
{
    pthread_t watchdog;
    init_all();
    check_all_work();
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    for (struct local *local = locals + 1; local < locals + local_count; local++) {
        expect(ncclAllReduce(AT(local->send), AT(local->receive), 64, ncclInt32, ncclSum, local->comm,
                             STREAM(local)),
               ncclSuccess, "an operation that hangs");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    enter(&locals[1]);
    expect_true(driver->stream_query(locals[1].stream) == CUDA_RESULT_NOT_READY, "the stream waits");
    expect_true(pthread_create(&watchdog, NULL, watch, NULL) == 0, "a thread");
    EACH(local)
    {
        wait_stream(local);
    }
    (void)pthread_join(watchdog, NULL);
    next_id();
    init_all();
    check_all_work();
    destroy_all();
}

/* --- An abort by another thread while a group is open --- */

/* The calls that the group has collected fail, and the program goes on. */
void case_abort_in_group(void)
{
    pthread_t other;
    init_all();
    check_all_work();
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    for (int i = 0; i < AGAIN; i++) {
        EACH(local)
        {
            call_all_reduce(local, 64, false);
        }
    }
    expect_true(pthread_create(&other, NULL, abort_all, NULL) == 0, "a thread");
    (void)pthread_join(other, NULL);
    expect(ncclGroupEnd(), ncclInvalidUsage, "ncclGroupEnd");
    next_id();
    init_all();
    check_all_work();
    destroy_all();
}

/* --- Shrinking by one thread --- */

/* The communicator of several devices of one process loses its last rank, and nothing has failed. */
void case_shrink_group(void)
{
    int lost = size - 1;
    ncclComm_t next[LOCAL_MAX] = {NULL};
    init_all();
    check_all_work();
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        if (local->rank != lost) {
            expect(ncclCommShrink(local->comm, &lost, 1, &next[local - locals], NULL, 0), ncclSuccess,
                   "ncclCommShrink");
        }
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    check_all_work(); /* the parent works on */
    destroy_all();
    size--;
    local_count -= locals[local_count - 1].rank == lost ? 1 : 0;
    EACH(local)
    {
        int rank = -1;
        local->comm = next[local - locals];
        expect(ncclCommUserRank(local->comm, &rank), ncclSuccess, "ncclCommUserRank");
        expect_true(rank == local->rank, "the rank after the shrink");
    }
    check_all_work();
    destroy_all();
}
