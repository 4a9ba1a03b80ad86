#include "tests/unit/cuda_double/nccl_case.h"

/* Windows of NCCL, with what the double refuses or spoils because NCCL would. */

static nccl_result register_all(const cuda_pointer *memory, const size_t *bytes, nccl_window_handle *windows)
{
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        here(rank);
        OK(nccl->register_window(comms[rank], at(memory[rank]), bytes[rank], &windows[rank],
                                 NCCL_WINDOW_SYMMETRIC));
        CHECK(windows[rank] == NULL); /* only when the group has ended */
    }
    return nccl->group_end();
}

/* Returns whether the sum of 1, 2 and 3 is what rank 1 gets. */
static bool sums(const cuda_pointer *at_rank)
{
    reduce_at(at_rank);
    here(1);
    return case_byte(at_rank[1]) == 6;
}

static const size_t whole[RANKS] = {2 * MIB, 2 * MIB, 2 * MIB};

static void windows(int unused)
{
    cuda_pointer memory[RANKS], shifted[RANKS];
    nccl_window_handle made[RANKS];
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        memory[rank] = mapped(rank);
        shifted[rank] = memory[rank] + (rank == 2 ? 64 : 0);
    }
    OK(register_all(memory, whole, made));
    CHECK(made[0] != NULL && sums(memory) && !sums(shifted));
    CHECK_RESULT(nccl->deregister_memory(comms[0], (void *)made[0]), NCCL_RESULT_INVALID_ARGUMENT);
    CHECK_RESULT(nccl->register_window(comms[0], at(memory[0]), 64, &made[0], 2),
                 NCCL_RESULT_INVALID_ARGUMENT);
    for (int rank = 0; rank < RANKS; rank++) {
        OK(nccl->deregister_window(comms[rank], NULL));
    }
    OK(register_all((cuda_pointer[]){mapped(0), mapped(1), mapped(2)}, whole, made));
    OK(nccl->deregister_window(comms[1], made[1]));
    CHECK_RESULT(nccl->deregister_window(comms[1], made[1]), NCCL_RESULT_INVALID_ARGUMENT);
    /* The ranks have different windows now: the next one has different places. */
    CHECK_RESULT(register_all((cuda_pointer[]){mapped(0), mapped(1), mapped(2)}, whole, made),
                 NCCL_RESULT_INTERNAL_ERROR);
}
CASE(windows)

static void refusals(int which)
{
    cuda_pointer memory[RANKS] = {0};
    size_t bytes[RANKS] = {MIB, MIB, MIB};
    nccl_window_handle made[RANKS];
    static const nccl_result expected[] = {NCCL_RESULT_UNHANDLED_CUDA_ERROR, NCCL_RESULT_INVALID_ARGUMENT,
                                           NCCL_RESULT_SYSTEM_ERROR};
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        here(rank);
        memory[rank] = which == 0 && rank == 1 ? case_alloc(2 * MIB) : mapped(rank);
        memory[rank] += which == 1 && rank == 1 ? 512 : 0;
        bytes[rank] = which == 2 && rank == 1 ? MIB / 2 : MIB;
    }
    CHECK_RESULT(register_all(memory, bytes, made), expected[which]);
    CHECK(state_of(comms[0]) != NCCL_RESULT_OK); /* the others, too: the communicator has failed */
}

static void test_refusals(void **state)
{
    (void)state;
    setenv("CUDA_DOUBLE_HANG_MS", "200", 1);
    for (int which = 0; which < 3; which++) {
        case_run_with(refusals, which); /* no virtual memory; alignment; sizes */
    }
    unsetenv("CUDA_DOUBLE_HANG_MS");
}

/* One thread's calls on several ranks belong in one group. */
static void alone(int unused)
{
    nccl_window_handle made;
    (void)unused;
    begin();
    CHECK_RESULT(nccl->register_window(comms[0], at(mapped(0)), MIB, &made, NCCL_WINDOW_SYMMETRIC),
                 NCCL_RESULT_SYSTEM_ERROR);
}
CASE(alone)

static void unmaps(int unused)
{
    cuda_pointer memory[RANKS];
    nccl_window_handle made[RANKS];
    (void)unused;
    begin();
    for (int rank = 0; rank < RANKS; rank++) {
        memory[rank] = mapped(rank);
    }
    OK(register_all(memory, whole, made));
    here(0);
    OK(cuda->address_unmap(memory[0], 2 * MIB));
    CHECK_RESULT(cuda->stream_synchronize(streams[0]), CUDA_RESULT_ILLEGAL_ADDRESS);
}
CASE(unmaps)

/* --- Versions --- */

static void version(int has_windows)
{
    load();
    CHECK((nccl->register_window != NULL) == (has_windows != 0));
    CHECK((nccl->deregister_window != NULL) == (has_windows != 0));
}

static void version_too_old(int unused)
{
    char why[256] = "";
    const struct nccl_library *none;
    (void)unused;
    CHECK(!nccl_library_load(&none, why, sizeof why) && none == NULL);
    CHECK(strstr(why, "too old") != NULL);
}

static void f8(int result)
{
    begin();
    here(0);
    OK(nccl->group_start());
    for (int rank = 0; rank < RANKS; rank++) {
        cuda_pointer memory = buffer(rank, "01234567", 8);
        CHECK_RESULT(all_reduce(rank, memory, memory, 8, NCCL_TYPE_F8E4M3), result);
    }
    CHECK_RESULT(nccl->group_end(), result);
}

static void run_as(const char *name, const char *value, void (*what)(int), int argument)
{
    setenv(name, value, 1);
    case_run_with(what, argument);
    unsetenv(name);
}

static void test_versions(void **state)
{
    (void)state;
    run_as("CUDA_DOUBLE_NCCL_VERSION", "21806", version_too_old, 0);
    run_as("CUDA_DOUBLE_NCCL_VERSION", "21900", version, 0);
    run_as("CUDA_DOUBLE_NCCL_VERSION", "22203", version, 0);
    run_as("CUDA_DOUBLE_NCCL_VERSION", "22703", version, 1);
    run_as("CUDA_DOUBLE_NCCL_VERSION", "22304", f8, NCCL_RESULT_INVALID_ARGUMENT);
    run_as("CUDA_DOUBLE_CAPABILITY", "80", f8, NCCL_RESULT_INVALID_ARGUMENT);
    run_as("CUDA_DOUBLE_CAPABILITY", "90", f8, NCCL_RESULT_OK);
}

/* --- The order of launches --- */

/* Two communicators on the same devices reach them in different orders. Returns whether all work ends. */
static void crosswise(int ends)
{
    nccl_comm first[2];
    cuda_stream others[RANKS], own[RANKS];
    cuda_pointer memory[2][2];
    load();
    OK(init_all(2, 1));
    memcpy(first, comms, sizeof first);
    OK(init_all(2, 1));
    for (int rank = 0; rank < 2; rank++) {
        here(rank);
        others[rank] = case_stream();
        own[rank] = streams[rank];
        memory[0][rank] = buffer(rank, "01234567", 8);
        memory[1][rank] = buffer(rank, "01234567", 8);
        OK(cuda->stream_synchronize(own[rank]));
    }
    uint64_t *words = NULL;
    cuda_pointer on_gpu;
    OK(cuda->host_alloc((void **)&words, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    words[0] = words[1] = 0;
    OK(cuda->host_device_pointer(&on_gpu, words, 0));
    for (int rank = 0; rank < 2; rank++) { /* the one comes late on device 0, the other on device 1 */
        here(rank);
        OK(cuda->stream_wait_value(rank == 0 ? own[0] : others[1], on_gpu, 1, CUDA_WAIT_VALUE_GEQ));
    }
    for (int which = 0; which < 2; which++) {
        OK(nccl->group_start());
        for (int rank = 0; rank < 2; rank++) {
            here(rank);
            OK(nccl->all_reduce(at(memory[which][rank]), at(memory[which][rank]), 8, NCCL_TYPE_U8,
                                NCCL_REDUCE_SUM, which == 0 ? first[rank] : comms[rank],
                                which == 0 ? own[rank] : others[rank]));
        }
        OK(nccl->group_end());
    }
    case_sleep_ms(100); /* both have begun, on one device each */
    __atomic_store_n(words, 1, __ATOMIC_RELEASE);
    case_sleep_ms(300);
    here(0);
    CHECK_RESULT(cuda->stream_query(own[0]), ends ? CUDA_RESULT_OK : CUDA_RESULT_NOT_READY);
    CHECK_RESULT(cuda->stream_query(others[0]), ends ? CUDA_RESULT_OK : CUDA_RESULT_NOT_READY);
    for (int rank = 0; rank < 2 && !ends; rank++) {
        OK(nccl->comm_abort(first[rank]));
    }
}

static void test_crosswise(void **state)
{
    (void)state;
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "0", 1);
    case_run_with(crosswise, 0);
    setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 1);
    case_run_with(crosswise, 1);
    run_as("CUDA_DOUBLE_NCCL_VERSION", "22505", crosswise, 0);
    unsetenv("NCCL_LAUNCH_ORDER_IMPLICIT");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_windows), cmocka_unit_test(test_refusals), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_unmaps),  cmocka_unit_test(test_versions), cmocka_unit_test(test_crosswise),
    };
    return cmocka_run_group_tests_name("cuda_double_nccl_windows", tests, NULL, NULL);
}
