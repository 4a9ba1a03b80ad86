#include "tests/unit/cuda_double/case.h"

#include <pthread.h>
#include <stdatomic.h>

#include "daemon/base/time.h"
#include "daemon/gpu/calls.h"

/* WAITS = True */

/* Calls that GPUs' threads make: their order, their bounds, and the end while one does not return. */

#define GPUS 2
#define CALLS 200
#define TURNS_MAX 2000

static struct loop *loop;
static struct gpu_devices *gpus;
static pthread_t main_thread;
static uint32_t not_done; /* calls that were put, and of whose end nobody was told yet */

struct one {
    struct gpu_call call; /* first */
    int number;
    atomic_bool ran;
    bool done;
    atomic_bool *blocks; /* null: it returns at once */
    int ran_at;          /* how many calls of this GPU ran before */
    _Atomic int *count;
};

static void run(struct gpu_call *call)
{
    struct one *one = (struct one *)call;
    CHECK(pthread_equal(pthread_self(), main_thread) == 0);
    while (one->blocks != NULL && atomic_load(one->blocks)) {
        (void)usleep(1000);
    }
    one->ran_at = atomic_fetch_add(one->count, 1);
    atomic_store(&one->ran, true);
}

static void done(struct gpu_call *call)
{
    struct one *one = (struct one *)call;
    CHECK(pthread_equal(pthread_self(), main_thread) != 0);
    CHECK(atomic_load(&one->ran) && !one->done);
    one->done = true;
    not_done--;
}

static void open_all(void)
{
    struct error error;
    main_thread = pthread_self();
    CHECK_RESULT(loop_new(&loop, &error), STATUS_OK);
    CHECK_RESULT(gpu_devices_open(true, &gpus, &error), STATUS_OK);
    CHECK_RESULT(gpu_calls_start(gpus, loop, &error), STATUS_OK);
}

static void close_all(void)
{
    gpu_devices_close(gpus);
    loop_free(loop);
}

static void turn(void)
{
    struct error error;
    CHECK_RESULT(loop_run_once(loop, 5, &error), STATUS_OK);
}

static void await_calls(uint32_t left)
{
    for (int i = 0; not_done > left; i++) {
        CHECK(i < TURNS_MAX);
        turn();
    }
}

static void put(struct one *one, uint32_t gpu, int number, _Atomic int *count, atomic_bool *blocks)
{
    *one =
        (struct one){.call = {.run = run, .done = done}, .number = number, .count = count, .blocks = blocks};
    not_done++;
    gpu_calls_put(gpus, gpu, GPU_CALLS_MEMORY, &one->call);
}

/* Calls of one GPU run in their order. One that does not return holds up its own GPU alone. */
static void order(int unused)
{
    static struct one ones[GPUS][CALLS];
    static _Atomic int counts[GPUS];
    atomic_bool blocks = true;
    (void)unused;
    open_all();
    for (int i = 0; i < CALLS; i++) {
        for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
            put(&ones[gpu][i], gpu, i, &counts[gpu], gpu == 0 && i == 0 ? &blocks : NULL);
        }
    }
    await_calls(CALLS);
    for (int i = 0; i < CALLS; i++) {
        CHECK(ones[1][i].done && ones[1][i].ran_at == i && !ones[0][i].done);
    }
    atomic_store(&blocks, false);
    await_calls(0);
    for (int i = 0; i < CALLS; i++) {
        CHECK(ones[0][i].done && ones[0][i].ran_at == i);
    }
    close_all();
}

/* Nothing more is opened on a GPU with too many calls, or with one that is late. The other GPU is free. */
static void bounds(int unused)
{
    static struct one ones[GPU_CALLS_MAX];
    static _Atomic int count;
    atomic_bool blocks = true;
    struct error error;
    (void)unused;
    open_all();
    for (uint32_t i = 0; i < GPU_CALLS_MAX; i++) {
        CHECK_RESULT(gpu_calls_check(gpus, 0, GPU_CALLS_MEMORY, &error), STATUS_OK);
        put(&ones[i], 0, (int)i, &count, &blocks);
    }
    CHECK_RESULT(gpu_calls_check(gpus, 0, GPU_CALLS_MEMORY, &error), STATUS_LIMIT);
    CHECK_RESULT(gpu_calls_check(gpus, 1, GPU_CALLS_MEMORY, &error), STATUS_OK);
    case_sleep_ms((long)(GPU_CALLS_LATE_NS / TIME_MS) + 100);
    CHECK_RESULT(gpu_calls_check(gpus, 0, GPU_CALLS_MEMORY, &error), STATUS_DEVICE);
    CHECK(strstr(error.text, "an earlier call of the driver") != NULL);
    CHECK_RESULT(gpu_calls_check(gpus, 1, GPU_CALLS_MEMORY, &error), STATUS_OK);
    atomic_store(&blocks, false);
    await_calls(0);
    CHECK_RESULT(gpu_calls_check(gpus, 0, GPU_CALLS_MEMORY, &error), STATUS_OK);
    close_all();
}

/* The end waits for calls that return, and leaves those that do not. */
static void ends(int hangs)
{
    static struct one ones[CALLS], stuck;
    static _Atomic int counts[GPUS];
    static atomic_bool blocks;
    (void)hangs;
    open_all();
    atomic_store(&blocks, hangs != 0);
    put(&stuck, 0, 0, &counts[0], &blocks);
    for (int i = 0; i < CALLS; i++) {
        put(&ones[i], 1, i, &counts[1], NULL);
    }
    close_all();
    for (int i = 0; i < CALLS; i++) {
        CHECK(ones[i].done);
    }
    CHECK(stuck.done == (hangs == 0));
}

static void end_without_hanging(int unused)
{
    (void)unused;
    ends(0);
}

static void end_while_one_hangs(int unused)
{
    (void)unused;
    ends(1);
}

static void test_order(void **state)
{
    (void)state;
    case_run(order);
}

static void test_bounds(void **state)
{
    (void)state;
    case_run(bounds);
}

static void test_ends(void **state)
{
    (void)state;
    case_run(end_without_hanging);
    case_run(end_while_one_hangs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
