#include "tests/unit/cuda_double/nccl_case.h"

#include <pthread.h>
#include <sched.h>

#include "kernels/convert_bits.h"

static void results(int unused)
{
    int32_t numbers[RANKS][6];
    int32_t back[6 * RANKS];
    cuda_pointer send[RANKS];
    cuda_pointer receive[RANKS];
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        for (int i = 0; i < 6; i++) {
            numbers[rank][i] = (i + 1) * (rank == 1 ? 100 : 1 + rank);
        }
        send[rank] = buffer(rank, numbers[rank], sizeof numbers[rank]);
        receive[rank] = case_alloc(sizeof back);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], receive[rank], 6, NCCL_TYPE_I32));
    }
    OK(nccl->group_end());
    for (int rank = 0; rank < RANKS; rank++) {
        read_back(rank, back, receive[rank], sizeof numbers[0]);
        CHECK(back[0] == 104 && back[5] == 624);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->reduce_scatter(at(send[rank]), at(receive[rank]), 2, NCCL_TYPE_I32, NCCL_REDUCE_MAX,
                                comms[rank], streams[rank]));
    }
    for (int rank = 0; rank < RANKS; rank++) { /* in place: this rank's block of the larger buffer */
        OK(nccl->all_gather(at(receive[rank]), at(receive[rank]), 0, NCCL_TYPE_I32, comms[rank],
                            streams[rank]));
        OK(nccl->broadcast(at(send[rank]), at(send[rank]), 6, NCCL_TYPE_I32, 2, comms[rank], streams[rank]));
    }
    OK(nccl->group_end());
    for (int rank = 0; rank < RANKS; rank++) {
        read_back(rank, back, receive[rank], 8);
        CHECK(back[0] == (rank * 2 + 1) * 100 && back[1] == (rank * 2 + 2) * 100);
        read_back(rank, back, send[rank], sizeof numbers[0]);
        CHECK(memcmp(back, numbers[2], sizeof numbers[2]) == 0);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        here(rank);
        OK(cuda->copy(receive[rank] + 24 * (cuda_pointer)rank, send[rank], 24, streams[rank]));
        OK(nccl->all_gather(at(receive[rank] + 24 * (cuda_pointer)rank), at(receive[rank]), 6, NCCL_TYPE_I32,
                            comms[rank], streams[rank]));
    }
    OK(nccl->group_end());
    read_back(0, back, receive[0], sizeof back);
    CHECK(back[0] == numbers[2][0] && back[17] == numbers[2][5]);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->comm_finalize(comms[rank]));
        OK(nccl->comm_destroy(comms[rank]));
    }
}
CASE(results)

/* Sums of short floats are rounded after each step. */
static void native_type(int unused)
{
    cuda_pointer send[RANKS];
    uint16_t back = 0;
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        uint16_t number = bits_f32_to_f16(rank == 0 ? 2048.0f : 1.0f);
        send[rank] = buffer(rank, &number, sizeof number);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_F16));
    }
    OK(nccl->group_end());
    read_back(0, &back, send[0], sizeof back);
    float sum = bits_f16_to_f32(back);
    /* It depends on the order; rounded once, it would always be 2050. */
    CHECK(sum == 2048.0f || sum == 2050.0f);
}
CASE(native_type)

static void in_stream_order(int unused)
{
    static uint64_t slots[512] __attribute__((aligned(4096)));
    cuda_pointer send[RANKS];
    int32_t one = 1;
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, &one, sizeof one);
    }
    OK(cuda->host_register(slots, sizeof slots, CUDA_HOST_DEVICE_MAP | CUDA_HOST_PORTABLE));
    here(1);
    OK(cuda->stream_wait_value(streams[1], (cuda_pointer)(uintptr_t)slots, 1, 0));
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32));
    }
    OK(nccl->group_end());
    case_sleep_ms(30);
    here(0); /* waits for the stream of rank 1 */
    CHECK_RESULT(cuda->stream_query(streams[0]), CUDA_RESULT_NOT_READY);
    __atomic_store_n(slots, 1, __ATOMIC_RELEASE);
    int32_t back = 0;
    read_back(0, &back, send[0], sizeof back);
    CHECK(back == RANKS);
}
CASE(in_stream_order)

static void duplicate(int unused)
{
    struct nccl_id id;
    (void)unused;
    load();
    OK(nccl->unique_id(&id));
    OK(nccl->group_start());
    here(0);
    OK(nccl->comm_init(&comms[0], 2, id, 0, NULL));
    OK(nccl->comm_init(&comms[1], 2, id, 1, NULL));
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_INVALID_USAGE);
    CHECK(strstr(nccl->last_error(NULL), "Duplicate GPU") != NULL);
    OK(nccl->comm_abort(comms[0]));
    OK(nccl->comm_abort(comms[1]));
    struct nccl_config wrong = config(1);
    wrong.magic = 0;
    CHECK_RESULT(nccl->comm_init(&comms[0], 1, id, 0, &wrong), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->comm_init(&comms[0], 1, id, 1, NULL), NCCL_RESULT_INVALID_ARGUMENT);
}
CASE(duplicate)

static void hangs(int unused)
{
    struct nccl_id id;
    int32_t one = 1;
    (void)unused;
    setenv("CUDA_DOUBLE_HANG_MS", "100", 1);
    load();
    OK(nccl->unique_id(&id));
    here(0);
    CHECK_RESULT(nccl->comm_init(&comms[0], 2, id, 0, NULL), NCCL_RESULT_SYSTEM_ERROR);
    CHECK(strstr(nccl->last_error(NULL), "would hang") != NULL);
    CHECK(comms[0] == NULL);
    OK(init_all(RANKS, 1));
    cuda_pointer send = buffer(0, &one, sizeof one);
    CHECK_RESULT(all_reduce(0, send, send, 1, NCCL_TYPE_I32), NCCL_RESULT_SYSTEM_ERROR);
    CHECK(strstr(nccl->last_error(NULL), "would hang") != NULL);
    CHECK(state_of(comms[2]) == NCCL_RESULT_SYSTEM_ERROR);
    CHECK_RESULT(all_reduce(1, send, send, 1, NCCL_TYPE_I32), NCCL_RESULT_SYSTEM_ERROR);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->comm_abort(comms[rank]));
        CHECK_RESULT(nccl->comm_destroy(comms[rank]), NCCL_RESULT_INVALID_ARGUMENT);
    }
}
CASE(hangs)

static void mismatch(int unused)
{
    cuda_pointer send[RANKS];
    int32_t numbers[2] = {1, 2};
    (void)unused;
    setenv("CUDA_DOUBLE_HANG_MS", "100", 1);
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, numbers, sizeof numbers);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], rank == 1 ? 1 : 2, NCCL_TYPE_I32));
    }
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_SYSTEM_ERROR);
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(state_of(comms[rank]) == NCCL_RESULT_SYSTEM_ERROR);
        OK(nccl->comm_abort(comms[rank]));
    }
}
CASE(mismatch)

static void polled(nccl_comm comm)
{
    int polls = 0;
    while (state_of(comm) == NCCL_RESULT_IN_PROGRESS) {
        polls++;
        CHECK(polls < 1000);
    }
    CHECK(polls > 0 && state_of(comm) == NCCL_RESULT_OK);
}

static void not_blocking(int unused)
{
    cuda_pointer send[RANKS];
    int32_t one = 1;
    (void)unused;
    load();
    CHECK_RESULT(init_all(RANKS, 0), NCCL_RESULT_IN_PROGRESS);
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, &one, sizeof one);
        CHECK_RESULT(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32),
                     NCCL_RESULT_INVALID_ARGUMENT);
        polled(comms[rank]);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32));
    }
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_IN_PROGRESS);
    here(0); /* not in the stream before its state is found OK */
    OK(cuda->stream_synchronize(streams[0]));
    CHECK_RESULT(all_reduce(0, send[0], send[0], 1, NCCL_TYPE_I32), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->comm_destroy(comms[0]), NCCL_RESULT_INVALID_USAGE);
    for (int rank = 0; rank < RANKS; rank++) {
        polled(comms[rank]);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        int32_t back = 0;
        read_back(rank, &back, send[rank], sizeof back);
        CHECK(back == RANKS);
        CHECK_RESULT(nccl->comm_finalize(comms[rank]), NCCL_RESULT_IN_PROGRESS);
        polled(comms[rank]);
        CHECK_RESULT(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32), NCCL_RESULT_INVALID_USAGE);
        OK(nccl->comm_destroy(comms[rank]));
    }
}
CASE(not_blocking)

static void not_blocking_hangs(int unused)
{
    struct nccl_id id;
    struct nccl_config with = config(0);
    (void)unused;
    setenv("CUDA_DOUBLE_HANG_MS", "50", 1);
    load();
    OK(nccl->unique_id(&id));
    here(0);
    CHECK_RESULT(nccl->comm_init(&comms[0], 2, id, 0, &with), NCCL_RESULT_IN_PROGRESS);
    CHECK(state_of(comms[0]) == NCCL_RESULT_IN_PROGRESS);
    while (state_of(comms[0]) == NCCL_RESULT_IN_PROGRESS) { /* the process has a limit */
        (void)sched_yield();
    }
    CHECK(state_of(comms[0]) == NCCL_RESULT_SYSTEM_ERROR);
    OK(nccl->comm_abort(comms[0]));
}
CASE(not_blocking_hangs)

/* Writes the word for which a stream waits, when the stream of rank 1 has ended, and a moment later. */
static void *ends_wait(void *words)
{
    here(1);
    OK(cuda->stream_synchronize(streams[1]));
    (void)usleep(300000);
    __atomic_store_n((uint64_t *)words, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* An abort ends NCCL's work at once, though another stream of the device waits. It returns after that wait,
 * because it frees memory. */
static void aborts_beside_a_wait(int unused)
{
    static uint64_t slots[512] __attribute__((aligned(4096)));
    cuda_pointer send[RANKS];
    cuda_stream beside;
    pthread_t thread;
    int32_t one = 1;
    (void)unused;
    setenv("CUDA_DOUBLE_FAIL", "ncclKernel:1", 1);
    begin();
    OK(cuda->host_register(slots, sizeof slots, CUDA_HOST_DEVICE_MAP | CUDA_HOST_PORTABLE));
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, &one, sizeof one);
    }
    here(0);
    OK(cuda->stream_create(&beside, CUDA_STREAM_NON_BLOCKING, 0));
    OK(cuda->stream_wait_value(beside, (cuda_pointer)(uintptr_t)slots, 1, 0));
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32));
    }
    OK(nccl->group_end());
    CHECK(pthread_create(&thread, NULL, ends_wait, slots) == 0);
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->comm_abort(comms[rank]));
    }
    CHECK(__atomic_load_n(slots, __ATOMIC_ACQUIRE) == 0);
    OK(nccl->group_end());
    CHECK(__atomic_load_n(slots, __ATOMIC_ACQUIRE) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
}
CASE(aborts_beside_a_wait)

static void aborts(int unused)
{
    static uint64_t slots[512] __attribute__((aligned(4096)));
    cuda_pointer send[RANKS];
    int32_t one = 1;
    (void)unused;
    setenv("CUDA_DOUBLE_HANG_MS", "100", 1);
    begin();
    OK(cuda->host_register(slots, sizeof slots, CUDA_HOST_DEVICE_MAP | CUDA_HOST_PORTABLE));
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, &one, sizeof one);
    }
    here(2);
    OK(cuda->stream_wait_value(streams[2], (cuda_pointer)(uintptr_t)slots, 1, 0));
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32));
    }
    OK(nccl->group_end());
    OK(nccl->comm_abort(comms[0]));
    here(0); /* rank 0's stream ends at once, the others when they abort */
    OK(cuda->stream_synchronize(streams[0]));
    here(1);
    CHECK_RESULT(cuda->stream_query(streams[1]), CUDA_RESULT_NOT_READY);
    OK(nccl->comm_abort(comms[1]));
    /* The last one waits for all streams, also for one that does not come to the work. Then it frees
     * memory, which waits for the device. */
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, ends_wait, slots) == 0);
    CHECK_RESULT(nccl->comm_abort(comms[2]), NCCL_RESULT_SYSTEM_ERROR);
    CHECK(__atomic_load_n(slots, __ATOMIC_ACQUIRE) == 1);
    CHECK(pthread_join(thread, NULL) == 0);
    here(1);
    OK(cuda->stream_synchronize(streams[1]));
    here(2);
    OK(cuda->stream_synchronize(streams[2]));
    int32_t back = 0;
    read_back(0, &back, send[0], sizeof back);
    CHECK(back == 1);
}
CASE(aborts)

/* A reduction to one rank, and messages crosswise, in one group. */
static void to_single_ranks(int unused)
{
    cuda_pointer send[RANKS], receive[RANKS], message[RANKS];
    int32_t back = 0;
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        int32_t number = 10 << rank;
        send[rank] = buffer(rank, &number, sizeof number);
        receive[rank] = case_alloc(sizeof number);
        message[rank] = case_alloc(sizeof number);
    }
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        void *result = rank == 1 ? at(receive[rank]) : NULL;
        OK(nccl->reduce(at(send[rank]), result, 1, NCCL_TYPE_I32, NCCL_REDUCE_SUM, 1, comms[rank],
                        streams[rank]));
        OK(nccl->send(at(send[rank]), 4, NCCL_TYPE_U8, (rank + 1) % RANKS, comms[rank], streams[rank]));
        OK(nccl->receive(at(message[rank]), 4, NCCL_TYPE_U8, (rank + RANKS - 1) % RANKS, comms[rank],
                         streams[rank]));
    }
    OK(nccl->group_end());
    read_back(1, &back, receive[1], sizeof back);
    CHECK(back == 70);
    for (int rank = 0; rank < RANKS; rank++) {
        read_back(rank, &back, message[rank], sizeof back);
        CHECK(back == 10 << (rank + RANKS - 1) % RANKS);
    }
    setenv("CUDA_DOUBLE_HANG_MS", "100", 1);
    OK(nccl->group_start());
    OK(nccl->send(at(send[0]), 4, NCCL_TYPE_U8, 1, comms[0], streams[0]));
    OK(nccl->receive(at(message[1]), 3, NCCL_TYPE_U8, 0, comms[1], streams[1]));
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_SYSTEM_ERROR);
}
CASE(to_single_ranks)

static void refusals(int unused)
{
    int32_t numbers[6] = {0};
    (void)unused;
    begin();
    cuda_pointer send = buffer(0, numbers, sizeof numbers);
    CHECK_RESULT(all_reduce(0, send, send + 4, 2, NCCL_TYPE_I32), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(all_reduce(0, send, send, 2, 12), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->all_reduce(at(send), at(send), 2, NCCL_TYPE_I32, 4, comms[0], streams[0]),
                 NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->all_reduce(at(send), at(send), 2, NCCL_TYPE_I32, 0, comms[0], streams[1]),
                 NCCL_RESULT_UNHANDLED_CUDA_ERROR);
    CHECK_RESULT(nccl->broadcast(at(send), at(send), 2, NCCL_TYPE_I32, RANKS, comms[0], streams[0]),
                 NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->all_gather(at(send), at(send + 4), 2, NCCL_TYPE_I32, comms[0], streams[0]),
                 NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_INVALID_USAGE);
    OK(nccl->group_start()); /* a call that fails inside makes the group fail */
    CHECK_RESULT(all_reduce(0, send, send, 2, 12), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_INVALID_ARGUMENT);
    struct nccl_id id;
    struct nccl_config with = config(0);
    nccl_comm other;
    OK(nccl->unique_id(&id));
    OK(nccl->group_start()); /* a blocking and a nonblocking one, in one group */
    OK(nccl->comm_init(&other, 1, id, 0, &with));
    OK(all_reduce(0, send, send, 2, NCCL_TYPE_I32));
    CHECK_RESULT(nccl->group_end(), NCCL_RESULT_INVALID_ARGUMENT);
    OK(nccl->comm_abort(other));
    beyond.inject("ncclAllReduce:1,ncclGroupStart:1=3");
    CHECK_RESULT(nccl->group_start(), NCCL_RESULT_INTERNAL_ERROR);
    CHECK_RESULT(all_reduce(0, send, send, 2, NCCL_TYPE_I32), NCCL_RESULT_SYSTEM_ERROR);
}
CASE(refusals)

/* The memory of one rank is not there. Its device breaks, and the other ranks wait until they abort. */
static void fault(int unused)
{
    cuda_pointer send[RANKS];
    int32_t one = 1;
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        send[rank] = buffer(rank, &one, sizeof one);
    }
    here(1);
    OK(cuda->memory_free(send[1]));
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        OK(all_reduce(rank, send[rank], send[rank], 1, NCCL_TYPE_I32));
    }
    OK(nccl->group_end());
    CHECK_RESULT(cuda->stream_synchronize(streams[1]), CUDA_RESULT_ILLEGAL_ADDRESS);
    CHECK(state_of(comms[1]) == NCCL_RESULT_UNHANDLED_CUDA_ERROR);
    here(0);
    CHECK_RESULT(cuda->stream_query(streams[0]), CUDA_RESULT_NOT_READY);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->comm_abort(comms[rank]));
    }
    OK(cuda->stream_synchronize(streams[0]));
}
CASE(fault)

static struct nccl_id shared_id;

static void *one_rank(void *argument)
{
    int rank = (int)(intptr_t)argument;
    int32_t one = 1;
    int32_t back = 0;
    here(rank);
    OK(nccl->comm_init(&comms[rank], RANKS, shared_id, rank, NULL));
    cuda_pointer memory = buffer(rank, &one, sizeof one);
    for (int i = 0; i < 5; i++) {
        OK(all_reduce(rank, memory, memory, 1, NCCL_TYPE_I32));
    }
    read_back(rank, &back, memory, sizeof back);
    CHECK(back == 243);
    OK(nccl->comm_destroy(comms[rank]));
    return NULL;
}

/* With a thread for each rank, no group is needed. */
static void threads(int unused)
{
    pthread_t all[RANKS];
    (void)unused;
    setenv("CUDA_DOUBLE_DELAY_US", "500", 1);
    load();
    OK(nccl->unique_id(&shared_id));
    for (int rank = 0; rank < RANKS; rank++) {
        CHECK(pthread_create(&all[rank], NULL, one_rank, (void *)(intptr_t)rank) == 0);
    }
    for (int rank = 0; rank < RANKS; rank++) {
        pthread_join(all[rank], NULL);
    }
}
CASE(threads)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_results),         cmocka_unit_test(test_native_type),
        cmocka_unit_test(test_in_stream_order), cmocka_unit_test(test_duplicate),
        cmocka_unit_test(test_hangs),           cmocka_unit_test(test_mismatch),
        cmocka_unit_test(test_not_blocking),    cmocka_unit_test(test_not_blocking_hangs),
        cmocka_unit_test(test_aborts),          cmocka_unit_test(test_aborts_beside_a_wait),
        cmocka_unit_test(test_refusals),        cmocka_unit_test(test_fault),
        cmocka_unit_test(test_threads),         cmocka_unit_test(test_to_single_ranks),
    };
    return cmocka_run_group_tests_name("cuda_double_nccl", tests, NULL, NULL);
}
