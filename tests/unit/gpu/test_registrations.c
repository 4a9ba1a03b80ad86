#include "tests/unit/cuda_double/case.h"
#include "tests/unit/gpu/map_now.h"

#include "daemon/base/time.h"
#include "daemon/gpu/groups.h"
#include "daemon/gpu/nccl.h"
#include "daemon/gpu/registrations.h"

/*
 * Clients' memory that NCCL registers. The double spoils results if only some GPUs pass registered memory. It
 * breaks a context if memory is unmapped before it is deregistered, or deregistered while it is in use.
 */

#define GPUS 2u
#define PART (2 * MIB)
#define COUNT 1000u
#define WITHIN_NS (20 * TIME_S)

static struct gpu_devices *gpus;
static struct gpu_group *group;
static struct gpu_queue *queues[GPUS];
static struct budget *budget;
static struct budget_account *account;
static uint64_t clock_ns;

static uint64_t now_ns(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * TIME_S + (uint64_t)now.tv_nsec;
}

static void turn(void)
{
    case_sleep_ms(1);
    clock_ns = now_ns();
    gpu_groups_tick(gpus, clock_ns);
}

static struct gpu_groups_info info(void)
{
    static struct gpu_groups_info now;
    gpu_groups_info(gpus, &now);
    return now;
}

/* Also lets GPUs' memory wait, as commd's main thread does. */
static void wait_ready(void)
{
    struct error error;
    uint64_t until_ns = now_ns() + WITHIN_NS;
    enum gpu_group_state state;
    while ((state = gpu_group_poll(group, clock_ns, &error)) != GPU_GROUP_READY) {
        CHECK(state == GPU_GROUP_FORMS || state == GPU_GROUP_CALLS);
        CHECK(now_ns() < until_ns);
        turn();
    }
}

static void wait_for(uint64_t registered, uint32_t retired)
{
    uint64_t until_ns = now_ns() + WITHIN_NS;
    while (info().registered != registered || info().retired != retired) {
        CHECK(now_ns() < until_ns);
        turn();
    }
}

static void hold_group(void)
{
    static const uint32_t list[GPUS] = {0, 1};
    struct error error;
    CHECK_RESULT(gpu_group_hold(gpus, list, GPUS, clock_ns, &group, &error), STATUS_OK);
    wait_ready();
    CHECK(gpu_group_take(group, &group));
}

enum mode { OFF, ON, WINDOWS };

static void open_all(enum mode mode)
{
    static uint64_t limits[BUDGET_KINDS];
    struct error error;
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        limits[kind] = UINT64_C(1) << 40;
    }
    CHECK_RESULT(budget_new(limits, &budget, &error), STATUS_OK);
    CHECK_RESULT(budget_open(budget, 1000, NULL, &account, &error), STATUS_OK);
    CHECK_RESULT(gpu_devices_open(true, &gpus, &error), STATUS_OK);
    case_load();
    gpu_groups_set_register(gpus, mode != OFF, mode == WINDOWS);
    clock_ns = now_ns();
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        CHECK_RESULT(gpu_queue_new(gpus, gpu, NULL, &queues[gpu], &error), STATUS_OK);
    }
}

static void close_all(void)
{
    struct error error;
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        CHECK_RESULT(gpu_devices_check(gpus, gpu, &error), STATUS_OK);
        gpu_queue_free(queues[gpu]);
    }
    gpu_group_leave(group, &group);
    gpu_group_release(group, clock_ns);
    gpu_devices_close(gpus);
    budget_close(account);
    budget_free(budget);
}

/* Memory that came by a descriptor, as commd imports it. */
static struct memory *import(uint32_t gpu)
{
    struct memory *memory = NULL;
    struct error error;
    int fd = case_shared_memory((int)gpu, PART);
    CHECK_RESULT(gpu_memory_reserve(gpus, gpu, 2 * PART, &memory, &error), STATUS_OK);
    CHECK_RESULT(memory_charge(memory, account, &error), STATUS_OK);
    map_now(memory, fd, PART);
    CHECK(close(fd) == 0);
    return memory;
}

static int32_t value_of(uint32_t gpu, uint32_t i, int32_t turn_number)
{
    return (int32_t)(i * 3 + gpu * 1000003) + turn_number * 17;
}

/* An all-reduce in place of what is at these addresses. */
static void begin(void *const *at, int32_t turn_number)
{
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        int32_t values[COUNT];
        for (uint32_t i = 0; i < COUNT; i++) {
            values[i] = value_of(gpu, i, turn_number);
        }
        case_context((int)gpu);
        OK(beyond.copy_from_host_now((cuda_pointer)(uintptr_t)at[gpu], values, sizeof values));
    }
    struct gpu_transfers *transfers = gpu_group_transfers(group);
    gpu_transfers_clear(transfers);
    transfers->dtype = DTYPE_I32;
    transfers->reduce = REDUCE_SUM;
    struct gpu_transfer *transfer = gpu_transfers_add(transfers, GPU_TRANSFER_ALL_REDUCE, 0, COUNT);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        transfer->inputs[gpu] = transfer->outputs[gpu] = at[gpu];
    }
    gpu_group_call(group, queues);
}

static void end(void *const *at, int32_t turn_number)
{
    wait_ready();
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        int32_t sums[COUNT];
        case_context((int)gpu);
        OK(cuda->stream_synchronize(gpu_queue_stream(queues[gpu])));
        OK(beyond.copy_to_host_now(sums, (cuda_pointer)(uintptr_t)at[gpu], sizeof sums));
        for (uint32_t i = 0; i < COUNT; i++) {
            CHECK(sums[i] == value_of(0, i, turn_number) + value_of(1, i, turn_number));
        }
    }
}

static void run(void *const *at, int32_t turn_number)
{
    begin(at, turn_number);
    end(at, turn_number);
}

static void *address(const struct memory *memory)
{
    return memory_range(memory, 4096, COUNT * sizeof(int32_t));
}

static uint64_t charged(void)
{
    struct budget_info held;
    budget_account_info(account, &held);
    return held.used[BUDGET_MEMORIES];
}

static void once(int on)
{
    open_all(on ? ON : OFF);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    for (int32_t number = 0; number < 5; number++) {
        run(at, number);
        CHECK(info().registered == (on ? GPUS : 0) && info().registered_ever == info().registered);
    }
    memory_unref(memories[0]);
    CHECK(charged() == (on ? 2 : 1)); /* it is not gone before NCCL's thread has dropped it */
    wait_for(on ? 1 : 0, 0);
    CHECK(charged() == 1);
    memories[0] = import(0);
    at[0] = address(memories[0]);
    run(at, 6);
    CHECK(info().registered_ever == (on ? 3 : 0));
    gpu_group_give_up(group, &(struct error){.text = "test"}, clock_ns);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    CHECK(charged() == 0);
    close_all();
}

static void test_once(void **state)
{
    (void)state;
    case_run_with(once, 1);
    case_run_with(once, 0);
}

/* NCCL must not get registered memory from one GPU and other memory from another one. */
static void mixed(int unused)
{
    (void)unused;
    open_all(ON);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    case_context(1);
    void *other[GPUS] = {at[0], (void *)(uintptr_t)case_alloc(PART)};
    run(other, 1);
    CHECK(info().registered_ever == 0);
    run(at, 2);
    CHECK(info().registered == GPUS);
    run(other, 3); /* deregisters the first GPU's memory, which is never registered again */
    CHECK(info().registered == 1);
    run(at, 4);
    CHECK(info().registered == 0 && info().registered_ever == GPUS);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    close_all();
}

static void test_mixed(void **state)
{
    (void)state;
    case_run(mixed);
    setenv("CUDA_DOUBLE_DELAY_US", "3000", 1);
    case_run(mixed);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* Earlier work in other streams uses memory that the next call makes commd deregister: the call waits. */
static void in_use(int unused)
{
    struct error error;
    (void)unused;
    open_all(ON);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    case_context(1);
    void *other[GPUS] = {memory_range(memories[0], MIB, PART / 2), (void *)(uintptr_t)case_alloc(PART)};
    run(at, 1);
    uint64_t *word = NULL;
    cuda_pointer on_gpu = 0;
    OK(cuda->host_alloc((void **)&word, 4096, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP));
    OK(cuda->host_device_pointer(&on_gpu, word, 0));
    *word = 0;
    OK(cuda->stream_wait_value(gpu_queue_stream(queues[1]), on_gpu, 1, CUDA_WAIT_VALUE_GEQ));
    begin(at, 2);
    wait_ready();
    struct gpu_queue *first[GPUS] = {queues[0], queues[1]};
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        CHECK_RESULT(gpu_queue_new(gpus, gpu, NULL, &queues[gpu], &error), STATUS_OK);
    }
    begin(other, 3);
    for (int i = 0; i < 50; i++) {
        turn();
        CHECK(gpu_group_poll(group, clock_ns, &error) == GPU_GROUP_CALLS && info().registered == GPUS);
    }
    __atomic_store_n(word, 1, __ATOMIC_RELEASE);
    end(other, 3);
    CHECK(info().registered == 1);
    for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
        case_context((int)gpu);
        OK(cuda->stream_synchronize(gpu_queue_stream(first[gpu])));
        gpu_queue_free(first[gpu]);
    }
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    close_all();
}

static void test_in_use(void **state)
{
    (void)state;
    case_run(in_use);
}

/* A failure means that the memory is not registered, and nothing else. */
static void failures(int unused)
{
    static const char *const rules[] = {"ncclCommRegister:1=5", "ncclCommRegister:2=1", "cuEventCreate:1",
                                        "cuEventCreate:2"};
    (void)unused;
    open_all(ON);
    hold_group();
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct memory *memories[GPUS] = {import(0), import(1)};
        void *at[GPUS] = {address(memories[0]), address(memories[1])};
        beyond.inject(rules[i]);
        run(at, 1);
        beyond.inject(NULL);
        bool has_events = i > 1 && info().registered == GPUS; /* of the rounds before */
        CHECK(info().registered == 0 || has_events);
        run(at, 2);
        memory_unref(memories[0]);
        memory_unref(memories[1]);
        wait_for(0, 0);
    }
    close_all();
}

static void test_failures(void **state)
{
    (void)state;
    case_run(failures);
}

/* What is beyond the bound is not registered, and works. */
static void bound(int unused)
{
    static struct memory *memories[GPU_REGISTRATIONS_MAX / 2 + 1][GPUS];
    const size_t pairs = sizeof memories / sizeof memories[0];
    (void)unused;
    open_all(ON);
    hold_group();
    for (size_t i = 0; i < pairs; i++) {
        void *at[GPUS];
        for (uint32_t gpu = 0; gpu < GPUS; gpu++) {
            memories[i][gpu] = import(gpu);
            at[gpu] = address(memories[i][gpu]);
        }
        run(at, (int32_t)i);
        CHECK(info().registered == (i + 1 < pairs ? GPUS * (i + 1) : GPU_REGISTRATIONS_MAX));
    }
    for (size_t i = 0; i < pairs; i++) {
        memory_unref(memories[i][0]);
        memory_unref(memories[i][1]);
    }
    wait_for(0, 0);
    CHECK(charged() == 0);
    close_all();
}

static void test_bound(void **state)
{
    (void)state;
    setenv("CUDA_DOUBLE_MEMORY_BYTES", "4294967296", 1);
    case_run(bound);
    unsetenv("CUDA_DOUBLE_MEMORY_BYTES");
}

/* --- Windows --- */

/* Buffers at the same place are a window, made once and ended on both GPUs. */
static void window(int unused)
{
    (void)unused;
    open_all(WINDOWS);
    hold_group();
    CHECK(info().windows_ever == 0); /* the trial does not count */
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    for (int32_t number = 0; number < 5; number++) {
        run(at, number);
        CHECK(info().registered == GPUS && info().windows == 1 && info().windows_ever == 1);
    }
    memory_unref(memories[0]);
    wait_for(0, 0);
    CHECK(info().windows == 0 && charged() == 1);
    memories[0] = import(0);
    at[0] = address(memories[0]);
    run(at, 6);
    CHECK(info().windows == 1 && info().windows_ever == 2);
    gpu_group_give_up(group, &(struct error){.text = "test"}, clock_ns);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    CHECK(info().windows == 0 && !info().windows_refused && charged() == 0);
    close_all();
}

static void test_window(void **state)
{
    (void)state;
    case_run(window);
    setenv("CUDA_DOUBLE_DELAY_US", "3000", 1);
    case_run(window);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* NCCL's kernels would find other bytes at the peer: the window ends, and the memory is registered alone. */
static void window_misused(int unused)
{
    (void)unused;
    open_all(WINDOWS);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)}, *third = import(1);
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    void *shifted[GPUS] = {at[0], memory_range(memories[1], 8192, COUNT * sizeof(int32_t))};
    void *other[GPUS] = {at[0], address(third)};
    void *alone[GPUS] = {at[0], NULL};
    run(shifted, 1); /* not a window from the beginning */
    CHECK(info().registered == GPUS && info().windows_ever == 0);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    memories[0] = import(0);
    memories[1] = import(1);
    at[0] = shifted[0] = other[0] = alone[0] = address(memories[0]);
    at[1] = address(memories[1]);
    shifted[1] = memory_range(memories[1], 8192, COUNT * sizeof(int32_t));
    run(at, 2);
    CHECK(info().windows == 1);
    run(shifted, 3);
    CHECK(info().windows == 0 && info().registered == GPUS);
    run(at, 4); /* it would end again and again */
    CHECK(info().windows_ever == 1 && info().registered == GPUS);
    run(other, 5); /* with memory that could be part of a window */
    CHECK(info().windows_ever == 1 && info().registered == GPUS + 1);
    case_context(1);
    alone[1] = (void *)(uintptr_t)case_alloc(PART);
    run(alone, 6);
    CHECK(info().registered == GPUS);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    memory_unref(third);
    wait_for(0, 0);
    close_all();
}

static void test_window_misused(void **state)
{
    (void)state;
    case_run(window_misused);
    setenv("CUDA_DOUBLE_DELAY_US", "3000", 1);
    case_run(window_misused);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

/* A library without windows, or without windows among these GPUs: memory is registered without them. */
static void no_windows(int unused)
{
    (void)unused;
    open_all(WINDOWS);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    run(at, 1);
    CHECK(info().registered == GPUS && info().windows_ever == 0 && !info().windows_refused);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    close_all();
}

static void test_no_windows(void **state)
{
    static const char *const versions[] = {"21900", "22203", "22700"};
    (void)state;
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        setenv("CUDA_DOUBLE_NCCL_VERSION", versions[i], 1);
        case_run(no_windows);
    }
    unsetenv("CUDA_DOUBLE_NCCL_VERSION");
    setenv("CUDA_DOUBLE_NCCL_WINDOWS", "0", 1);
    case_run(no_windows);
    unsetenv("CUDA_DOUBLE_NCCL_WINDOWS");
}

/* The trial fails, so the communicator is refused. The next one forms without windows. */
static void trial_fails(int unused)
{
    static const uint32_t list[GPUS] = {0, 1};
    struct error error;
    enum gpu_group_state state = GPU_GROUP_FORMS;
    (void)unused;
    open_all(WINDOWS);
    beyond.inject("ncclCommWindowRegister:2=3");
    CHECK_RESULT(gpu_group_hold(gpus, list, GPUS, clock_ns, &group, &error), STATUS_OK);
    for (uint64_t until_ns = now_ns() + WITHIN_NS; state == GPU_GROUP_FORMS && now_ns() < until_ns; turn()) {
        state = gpu_group_poll(group, clock_ns, &error);
    }
    CHECK(state == GPU_GROUP_REFUSED && strstr(error.text, "ncclCommWindowRegister") != NULL);
    for (int i = 0; i < 1000 && !info().windows_refused; i++) {
        turn();
    }
    CHECK(info().windows_refused);
    gpu_group_release(group, clock_ns);
    clock_ns += GPU_GROUP_RETRY_NS + TIME_S;
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    run(at, 1);
    CHECK(info().registered == GPUS && info().windows_ever == 0);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    close_all();
}

/* An error with clients' memory ends NCCL's communicator. */
static void window_fails(int unused)
{
    struct error error;
    enum gpu_group_state state = GPU_GROUP_CALLS;
    (void)unused;
    open_all(WINDOWS);
    hold_group();
    struct memory *memories[GPUS] = {import(0), import(1)};
    void *at[GPUS] = {address(memories[0]), address(memories[1])};
    beyond.inject("ncclCommWindowRegister:2=3");
    begin(at, 1);
    for (uint64_t until_ns = now_ns() + WITHIN_NS; state == GPU_GROUP_CALLS && now_ns() < until_ns; turn()) {
        state = gpu_group_poll(group, clock_ns, &error);
    }
    CHECK(state == GPU_GROUP_FAILED && strstr(error.text, "ncclCommWindowRegister") != NULL);
    gpu_group_give_up(group, &error, clock_ns);
    memory_unref(memories[0]);
    memory_unref(memories[1]);
    wait_for(0, 0);
    CHECK(info().windows_refused && info().windows == 0 && charged() == 0);
    close_all();
}

static void test_window_fails(void **state)
{
    (void)state;
    case_run(trial_fails);
    case_run(window_fails);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_once),           cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_in_use),         cmocka_unit_test(test_failures),
        cmocka_unit_test(test_bound),          cmocka_unit_test(test_window),
        cmocka_unit_test(test_window_misused), cmocka_unit_test(test_no_windows),
        cmocka_unit_test(test_window_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
