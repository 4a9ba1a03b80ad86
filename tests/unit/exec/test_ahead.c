#include "tests/unit/cuda_double/case.h"
#include "tests/unit/gpu/map_now.h"

#include <fcntl.h>
#include <sys/mman.h>

#include "daemon/base/time.h"
#include "daemon/exec/exec.h"
#include "daemon/gpu/words.h"

/*
 * Operations in a row on one GPU (a double), without a look of the processor in between: exec_run is not
 * called while the GPU works through them. The test is the clients' streams: it writes the words that
 * operations wait for, and reads those that tell their end.
 */

#define RANKS 2u
#define OPS 5u
#define COUNT 1000u
#define PART (2 * MIB)
#define WITHIN_NS (20 * TIME_S)

struct words {
    _Atomic uint64_t ready[OPS], ended[OPS];
};

static struct gpu_devices *gpus;
static struct exec *exec;
static struct exec_comm *comm;
static struct budget *budget;
static struct budget_account *account;
static struct memory *words_memory, *buffers[RANKS];
static struct words *words; /* as the client has them */
static struct fence fences[OPS];
static bool by_gpu[OPS];
static enum status results[OPS];
static unsigned done;

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * TIME_S + (uint64_t)now.tv_nsec;
}

static void comm_failed(void *context, const struct error *cause, uint64_t at_ns)
{
    (void)context;
    (void)at_ns;
    (void)fprintf(stderr, "%s\n", cause->text);
    _exit(1);
}

static void op_done(void *context, const struct error *result, uint64_t at_ns)
{
    (void)at_ns;
    *(enum status *)context = result->status;
    done++;
}

static void make_words(void)
{
    struct error error;
    int fd = memfd_create("words", MFD_ALLOW_SEALING);
    CHECK(fd >= 0 && ftruncate(fd, 4096) == 0 && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(words != MAP_FAILED);
    memset((void *)words, 0, sizeof *words);
    CHECK_RESULT(memory_open_memfd(fd, 4096, &words_memory, &error), STATUS_OK);
    CHECK(close(fd) == 0);
}

static struct memory *import(void)
{
    struct memory *memory = NULL;
    struct error error;
    int fd = case_shared_memory(0, PART);
    CHECK_RESULT(gpu_memory_reserve(gpus, 0, PART, &memory, &error), STATUS_OK);
    map_now(memory, fd, PART);
    CHECK(close(fd) == 0);
    return memory;
}

static cuda_pointer address(uint32_t rank)
{
    return (cuda_pointer)(uintptr_t)memory_range(buffers[rank], 0, PART);
}

static void open_comm(uint64_t comm_id)
{
    static const uint32_t node_of_rank[RANKS] = {0}, peers[1] = {0};
    static const char *const names[1] = {"a"};
    const struct exec_comm_handler handler = {.failed = comm_failed};
    struct comm_map facts = {.comm_id = comm_id,
                             .owner_uid = 1000,
                             .account = account,
                             .ranks = {.size = RANKS, .node_count = 1},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .slice_bytes = EXEC_SLICE_BYTES_DEFAULT,
                             .name = "ahead"};
    struct comm_map *map;
    struct error error;
    CHECK_RESULT(comm_map_new(&facts, &map, &error), STATUS_OK);
    CHECK_RESULT(exec_comm_new(exec, map, &handler, &comm, &error), STATUS_OK);
    comm_map_release(map);
    make_words();
}

static void open_all(uint32_t ahead, uint64_t waits)
{
    struct error error;
    CHECK_RESULT(budget_new(NULL, &budget, &error), STATUS_OK);
    budget_set_ceiling(budget, BUDGET_GPU_WAITS, waits);
    CHECK_RESULT(budget_open(budget, 1000, NULL, &account, &error), STATUS_OK);
    CHECK_RESULT(gpu_devices_open(true, &gpus, &error), STATUS_OK);
    case_load();
    gpu_words_set_ahead(gpus, ahead);
    CHECK_RESULT(exec_new(NULL, &exec, &error), STATUS_OK);
    exec_set_gpus(exec, gpus);
    open_comm(1);
    case_context(0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int32_t values[COUNT];
        buffers[rank] = import();
        for (uint32_t i = 0; i < COUNT; i++) {
            values[i] = (int32_t)(i * (rank + 1) + rank);
        }
        OK(beyond.copy_from_host_now(address(rank), values, sizeof values));
    }
}

static void close_all(void)
{
    struct budget_info held;
    struct error error;
    budget_account_info(account, &held);
    CHECK(held.used[BUDGET_GPU_WAITS] == 0);
    CHECK_RESULT(gpu_devices_check(gpus, 0, &error), STATUS_OK);
    exec_comm_free(comm);
    exec_free(exec);
    memory_unref(words_memory);
    memory_unref(buffers[0]);
    memory_unref(buffers[1]);
    gpu_devices_close(gpus);
    budget_close(account);
    budget_free(budget);
}

/* An all-reduce in place. The first rank's stream orders it. */
static void submit(uint32_t index)
{
    struct exec_rank ranks[RANKS];
    struct error error;
    uint64_t ready_at = offsetof(struct words, ready) + index * sizeof(uint64_t);
    uint64_t ended_at = offsetof(struct words, ended) + index * sizeof(uint64_t);
    fences[index] = (struct fence){.word = memory_range(words_memory, ready_at, sizeof(uint64_t)),
                                   .value = index + 1,
                                   .gpu_word = gpu_words_find(buffers[0], words_memory, ready_at)};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        void *at = (void *)(uintptr_t)address(rank);
        ranks[rank] = (struct exec_rank){.input = at,
                                         .output = at,
                                         .count_elements = COUNT,
                                         .on_gpu = true,
                                         .input_bytes = COUNT * sizeof(int32_t),
                                         .output_bytes = COUNT * sizeof(int32_t),
                                         .input_memory = buffers[rank],
                                         .output_memory = buffers[rank]};
    }
    ranks[0].waits = &fences[index];
    ranks[0].wait_count = 1;
    ranks[0].ended_gpu_word = gpu_words_find(buffers[0], words_memory, ended_at);
    ranks[0].ended_value = index + 1;
    ranks[0].ended_by_gpu = &by_gpu[index];
    struct exec_call call = {.terms.kind = OP_KIND_ALL_REDUCE,
                             .terms.dtype = DTYPE_I32,
                             .terms.reduce = REDUCE_SUM,
                             .terms.count_elements = COUNT,
                             .terms.bucket_ops = 1,
                             .seq = index + 1,
                             .rank_count = RANKS,
                             .ranks = ranks,
                             .done = op_done,
                             .context = &results[index]};
    results[index] = STATUS_INTERNAL;
    CHECK_RESULT(exec_submit(comm, &call, &error), STATUS_OK);
}

static uint64_t ran_ahead(void)
{
    static struct gpu_groups_info info;
    gpu_groups_info(gpus, &info);
    return info.ran_ahead;
}

/* As the daemon's loop does. */
static void turn(void)
{
    exec_tick(exec, now_ns());
    (void)exec_run(exec, now_ns());
}

static void run_until(unsigned operations)
{
    uint64_t until_ns = now_ns() + WITHIN_NS;
    while (done < operations) {
        CHECK(now_ns() < until_ns);
        turn();
    }
}

/* The client's stream reaches the operation, and then waits for its end. */
static void reach(uint32_t index)
{
    atomic_store_explicit(&words->ready[index], index + 1, memory_order_release);
}

static void wait_ended(uint32_t index)
{
    uint64_t until_ns = now_ns() + WITHIN_NS;
    while (atomic_load_explicit(&words->ended[index], memory_order_acquire) != index + 1) {
        CHECK(now_ns() < until_ns);
        case_sleep_ms(1);
    }
}

/* Each operation sums both ranks' values, so each after the first doubles them. */
static void check_values(uint32_t operations)
{
    case_context(0);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        int32_t values[COUNT];
        OK(beyond.copy_to_host_now(values, address(rank), sizeof values));
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK(values[i] == (int32_t)(i * 3 + 1) << (operations - 1));
        }
    }
}

/* The GPU works so slowly that what comes behind the first operation is put behind it. */
static void begin_row(uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        submit(i);
    }
    reach(first);
    (void)exec_run(exec, now_ns());
}

static void in_a_row(int unused)
{
    (void)unused;
    open_all(OPS - 1, 100);
    begin_row(0, OPS);
    CHECK(ran_ahead() == OPS - 1 && done == 0);
    for (uint32_t i = 0; i < OPS; i++) { /* nobody looks meanwhile */
        wait_ended(i);
        CHECK(by_gpu[i] && done == 0);
        if (i + 1 < OPS) {
            case_sleep_ms(20);
            CHECK(atomic_load(&words->ended[i + 1]) == 0); /* the GPU waits for the client's stream */
            reach(i + 1);
        }
    }
    check_values(OPS);
    run_until(OPS);
    for (uint32_t i = 0; i < OPS; i++) {
        CHECK_RESULT(results[i], STATUS_OK);
    }
    close_all();
}

/* The setting, and the user's limit, bound how many wait on the GPU. The others wait as usual. */
static void bounds(int by_user)
{
    open_all(by_user ? OPS : 2, by_user ? 3 : 100);
    begin_row(0, OPS);
    CHECK(ran_ahead() == (by_user ? 3 : 2));
    for (uint32_t i = 1; i < OPS; i++) {
        reach(i);
    }
    run_until(OPS);
    check_values(OPS);
    close_all();
}

static void off(int unused)
{
    (void)unused;
    open_all(0, 100);
    begin_row(0, 2);
    CHECK(gpu_word_address(&fences[0].gpu_word) == 0 && ran_ahead() == 0);
    reach(1);
    run_until(2);
    CHECK(!by_gpu[0] && !by_gpu[1] && atomic_load(&words->ended[1]) == 0);
    check_values(2);
    close_all();
}

/* A client's stream never comes. The operation is cancelled, as at its deadline; the one behind goes on. */
static void never_comes(int unused)
{
    const struct error late = {.status = STATUS_TIMED_OUT, .text = "late"};
    (void)unused;
    open_all(OPS, 100);
    begin_row(0, 3);
    CHECK(ran_ahead() == 2);
    run_until(1);
    for (int i = 0; i < 20; i++) {
        case_sleep_ms(2);
        turn();
    }
    CHECK(done == 1);
    exec_cancel(comm, 2, 1, &late, now_ns());
    run_until(2);
    CHECK_RESULT(results[1], STATUS_TIMED_OUT);
    CHECK(done == 2 && atomic_load(&words->ended[2]) == 0);
    reach(2);
    run_until(3);
    CHECK_RESULT(results[2], STATUS_OK);
    close_all();
}

static void words_ended(void *context)
{
    *(bool *)context = true;
}

/*
 * All streams share one queue of the GPU. commd ends the wait of a client that never comes, and then writes
 * its word from a stream, too. This write comes behind the wait of another communicator, so it is done only
 * after the operation, the communicator and the client's memory are gone.
 */
static void client_is_gone(int unused)
{
    const struct error late = {.status = STATUS_TIMED_OUT, .text = "late"};
    bool ended = false;
    (void)unused;
    open_all(OPS, 100);
    struct exec_comm *const first_comm = comm;
    struct memory *const first_words = words_memory;
    begin_row(0, 2);
    open_comm(2);
    begin_row(2, 4);
    CHECK(ran_ahead() == 2);
    exec_cancel(first_comm, 2, 1, &late, now_ns());
    run_until(3);
    CHECK_RESULT(results[1], STATUS_TIMED_OUT);
    CHECK_RESULT(results[3], STATUS_INTERNAL);
    exec_comm_free(first_comm); /* returns, although the GPU still waits for the other client */
    memory_when_ended(first_words, words_ended, &ended);
    memory_unref(first_words);
    turn();
    CHECK(!ended);
    reach(3);
    run_until(4);
    CHECK_RESULT(results[3], STATUS_OK);
    submit(4); /* behind the write: the GPU has not failed */
    reach(4);
    run_until(5);
    CHECK_RESULT(results[4], STATUS_OK);
    for (uint64_t until_ns = now_ns() + WITHIN_NS; !ended; turn()) {
        CHECK(now_ns() < until_ns);
    }
    close_all();
}

/* A rank is lost: all operations end, those in the row as well. */
static void aborted(int unused)
{
    const struct error lost = {.status = STATUS_RANK_LOST, .text = "lost"};
    (void)unused;
    open_all(OPS, 100);
    begin_row(0, OPS);
    exec_comm_abort(comm, &lost);
    run_until(OPS);
    for (uint32_t i = 0; i < OPS; i++) {
        CHECK_RESULT(results[i], STATUS_RANK_LOST);
    }
    close_all();
}

static void run_slowly(void (*body)(int), int argument)
{
    setenv("CUDA_DOUBLE_DELAY_US", "100000", 1);
    case_run_with(body, argument);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

static void test_in_a_row(void **state)
{
    (void)state;
    run_slowly(in_a_row, 0);
}

static void test_bounds(void **state)
{
    (void)state;
    run_slowly(bounds, 0);
    run_slowly(bounds, 1);
    case_run(off);
}

static void test_ends(void **state)
{
    (void)state;
    run_slowly(never_comes, 0);
    run_slowly(aborted, 0);
    setenv("CUDA_DOUBLE_CONNECTIONS", "1", 1); /* all streams share one queue of the GPU */
    run_slowly(never_comes, 0);
    run_slowly(aborted, 0);
    run_slowly(client_is_gone, 0);
    unsetenv("CUDA_DOUBLE_CONNECTIONS");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_a_row),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
