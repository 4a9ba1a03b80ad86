#include "tests/system/nccl_program.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

/* Calls on streams that are captured: each replay of the graph runs the operations anew. */

#define REPLAYS 50
#define COUNT 1031
#define MANY_REPLAYS 300 /* of more operations than a communicator may have open */
#define ITERATIONS 5     /* in a graph */
#define WORDS 257        /* of each iteration */

typedef struct cuda_graph_exec_handle *graph_exec;

static struct {
    cuda_result (*begin)(cuda_stream stream, int mode);
    cuda_result (*end)(cuda_stream stream, cuda_graph *graph);
    cuda_result (*instantiate)(graph_exec *exec, cuda_graph graph, unsigned long long flags);
    cuda_result (*launch)(graph_exec exec, cuda_stream stream);
    cuda_result (*exec_destroy)(graph_exec exec);
    cuda_result (*destroy)(cuda_graph graph);
} calls;

static float values[3 * COUNT];

static void look_up(void *library, const char *symbol, void *slot)
{
    void *address = dlsym(library, symbol);
    expect_true(library != NULL && address != NULL, symbol);
    memcpy(slot, &address, sizeof address);
}

static void load(void)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    look_up(library, "cuStreamBeginCapture_v2", &calls.begin);
    look_up(library, "cuStreamEndCapture", &calls.end);
    look_up(library, "cuGraphInstantiateWithFlags", &calls.instantiate);
    look_up(library, "cuGraphLaunch", &calls.launch);
    look_up(library, "cuGraphExecDestroy", &calls.exec_destroy);
    look_up(library, "cuGraphDestroy", &calls.destroy);
}

static void *part(cuda_pointer at, int index)
{
    return AT(at + (cuda_pointer)((size_t)index * COUNT * sizeof(float)));
}

/* A sum, a message with the block of the rank before, and a broadcast whose root has two buffers. */
static void operations(const struct local *local)
{
    int next = (local->rank + 1) % size, before = (local->rank + size - 1) % size;
    expect(ncclAllReduce(AT(local->send), part(local->receive, 0), COUNT, ncclFloat32, ncclSum, local->comm,
                         STREAM(local)),
           ncclSuccess, "ncclAllReduce");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    expect(ncclSend(AT(local->send), COUNT, ncclFloat32, next, local->comm, STREAM(local)), ncclSuccess,
           "ncclSend");
    expect(ncclRecv(part(local->receive, 1), COUNT, ncclFloat32, before, local->comm, STREAM(local)),
           ncclSuccess, "ncclRecv");
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    expect(ncclBroadcast(AT(local->send), part(local->receive, 2), COUNT, ncclFloat32, 1, local->comm,
                         STREAM(local)),
           ncclSuccess, "ncclBroadcast");
}

static float value_of(int rank, int replay, int index)
{
    return (float)((rank + 1) * (replay + 3) + index % 17);
}

static void check_replay(const struct local *local, int replay)
{
    int before = (local->rank + size - 1) % size;
    read_gpu(local, local->receive, values, sizeof values);
    for (int i = 0; i < COUNT; i++) {
        float sum = 0;
        for (int rank = 0; rank < size; rank++) {
            sum += value_of(rank, replay, i);
        }
        expect_true(values[i] == sum, "a sum of a replay");
        expect_true(values[COUNT + i] == value_of(before, replay, i), "a message of a replay");
        expect_true(values[2 * COUNT + i] == value_of(1, replay, i), "a broadcast of a replay");
    }
}

/* A factor in GPU memory would have to be read during the capture. So the call is refused, and the capture
 * goes on. */
static void refuse_factor(const struct local *local)
{
    ncclRedOp_t op;
    expect(ncclRedOpCreatePreMulSum(&op, AT(local->send), ncclFloat32, ncclScalarDevice, local->comm),
           ncclSuccess, "ncclRedOpCreatePreMulSum");
    expect(ncclAllReduce(AT(local->send), AT(local->receive), 4, ncclFloat32, op, local->comm, STREAM(local)),
           ncclInvalidUsage, "a factor of the GPU in a capture");
    expect_text("captured");
    expect(ncclRedOpDestroy(op, local->comm), ncclSuccess, "ncclRedOpDestroy");
}

/* For processes of one rank. */
void case_graph(void)
{
    struct local *local = &locals[0];
    cuda_graph graph;
    graph_exec exec;
    load();
    init_all();
    check_all_work();
    enter(local);
    cuda(calls.begin(local->stream, CUDA_CAPTURE_MODE_GLOBAL), "begin");
    operations(local);
    refuse_factor(local);
    cuda(calls.end(local->stream, &graph), "end");
    cuda(calls.instantiate(&exec, graph, 0), "instantiate");
    for (int replay = 0; replay < REPLAYS; replay++) {
        poison(local);
        for (int i = 0; i < COUNT; i++) {
            values[i] = value_of(local->rank, replay, i);
        }
        write_gpu(local, local->send, values, COUNT * sizeof *values);
        cuda(calls.launch(exec, local->stream), "launch");
        check_replay(local, replay);
        if (replay % 10 == 0) {
            check_all_work();
        }
    }
    cuda(calls.exec_destroy(exec), "exec_destroy");
    cuda(calls.destroy(graph), "destroy");
    destroy_all();
}

/* --- Several devices in one process, as NCCL's performance tests capture them: several iterations, in each a
 * group with a call for each device --- */

static int32_t words[ITERATIONS * WORDS];

/* Each rank's graph of one capture, or the one of all ranks in the first place. */
struct graphs {
    cuda_graph graph[LOCAL_MAX];
    graph_exec exec[LOCAL_MAX];
    int count;
};

static cuda_pointer iteration(cuda_pointer base, int index)
{
    return base + (cuda_pointer)((size_t)index * WORDS * sizeof(int32_t));
}

static uint32_t word_of(int rank, int replay, int index)
{
    return (uint32_t)(rank + 1) * 2654435761u + (uint32_t)replay * 40503u + (uint32_t)index * 31u;
}

/* The first iteration adds what the ranks have, each further one the results of the one before. */
static void reduce(const struct local *local, int index, cudaStream_t stream)
{
    cuda_pointer from = index == 0 ? local->send : iteration(local->receive, index - 1);
    expect(ncclAllReduce(AT(from), AT(iteration(local->receive, index)), WORDS, ncclInt32, ncclSum,
                         local->comm, stream),
           ncclSuccess, "ncclAllReduce");
}

static void reduce_all(int index)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        enter(local);
        reduce(local, index, STREAM(local));
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

static void prepare_replay(int replay)
{
    EACH(local)
    {
        poison(local);
        for (int i = 0; i < WORDS; i++) {
            words[i] = (int32_t)word_of(local->rank, replay, i);
        }
        write_gpu(local, local->send, words, WORDS * sizeof *words);
    }
}

static void check_iterations(const struct local *local, int replay)
{
    read_gpu(local, local->receive, words, sizeof words);
    for (int i = 0; i < WORDS; i++) {
        uint32_t wanted = 0;
        for (int rank = 0; rank < size; rank++) {
            wanted += word_of(rank, replay, i);
        }
        for (int k = 0; k < ITERATIONS; k++) {
            uint32_t got = (uint32_t)words[k * WORDS + i];
            if (got != wanted) {
                fprintf(stderr, "rank %d, replay %d, iteration %d: element %d is %u, not %u\n", local->rank,
                        replay, k, i, got, wanted);
                exit(EXIT_FAILURE);
            }
            wanted *= (uint32_t)size;
        }
    }
}

static void end_captures(struct graphs *graphs, int count)
{
    graphs->count = count;
    for (int i = 0; i < count; i++) {
        enter(&locals[i]);
        cuda(calls.end(locals[i].stream, &graphs->graph[i]), "end");
    }
    for (int i = 0; i < count; i++) {
        enter(&locals[i]);
        cuda(calls.instantiate(&graphs->exec[i], graphs->graph[i], 0), "instantiate");
    }
}

static void replay_all(const struct graphs *graphs, int replays)
{
    for (int replay = 0; replay < replays; replay++) {
        prepare_replay(replay);
        for (int i = 0; i < graphs->count; i++) {
            enter(&locals[i]);
            cuda(calls.launch(graphs->exec[i], locals[i].stream), "launch");
        }
        for (int i = 0; i < graphs->count; i++) {
            wait_stream(&locals[i]);
        }
        EACH(local)
        {
            check_iterations(local, replay);
        }
        if (replay % 100 == 0) {
            check_all_work(); /* outside of graphs */
        }
    }
}

static void destroy_graphs(const struct graphs *graphs)
{
    for (int i = 0; i < graphs->count; i++) {
        enter(&locals[i]);
        cuda(calls.exec_destroy(graphs->exec[i]), "exec_destroy");
        cuda(calls.destroy(graphs->graph[i]), "destroy");
    }
}

static void begin_captures(int mode)
{
    EACH(local)
    {
        enter(local);
        cuda(calls.begin(local->stream, mode), "begin");
    }
}

/* Each device's stream has a capture of its own. */
void case_graph_devices(void)
{
    static const int modes[] = {CUDA_CAPTURE_MODE_THREAD_LOCAL, CUDA_CAPTURE_MODE_RELAXED,
                                CUDA_CAPTURE_MODE_GLOBAL};
    struct graphs graphs = {.count = 0};
    load();
    init_all();
    check_all_work();
    for (int aggregated = 0; aggregated < 2; aggregated++) { /* all iterations in one group, as with -m */
        begin_captures(modes[aggregated]);
        expect(aggregated != 0 ? ncclGroupStart() : ncclSuccess, ncclSuccess, "ncclGroupStart");
        for (int i = 0; i < ITERATIONS; i++) {
            reduce_all(i);
        }
        expect(aggregated != 0 ? ncclGroupEnd() : ncclSuccess, ncclSuccess, "ncclGroupEnd");
        end_captures(&graphs, local_count);
        replay_all(&graphs, aggregated != 0 ? 50 : MANY_REPLAYS);
        destroy_graphs(&graphs);
    }
    destroy_all();
}

/* --- One capture that spreads to other streams and devices by events --- */

struct branch {
    cuda_stream stream;
    cuda_event event;
};

static void make_branches(struct branch branches[LOCAL_MAX])
{
    EACH(local)
    {
        struct branch *branch = &branches[local - locals];
        enter(local);
        cuda(driver->stream_create(&branch->stream, 1, 0), "stream_create");
        cuda(driver->event_create(&branch->event, CUDA_EVENT_DISABLE_TIMING), "event_create");
    }
}

/* The stream waits for what is in the other one now. */
static void follow(cuda_stream stream, cuda_stream other, const struct branch *of_other,
                   const struct local *local)
{
    enter(local);
    cuda(driver->event_record(of_other->event, other), "event_record");
    cuda(driver->stream_wait_event(stream, of_other->event, 0), "stream_wait_event");
}

/* The operations are on a side stream of each device. The first device's stream begins and ends the capture.
 */
void case_graph_spread(void)
{
    struct branch branches[LOCAL_MAX];
    struct graphs graphs = {.count = 0};
    load();
    init_all();
    check_all_work();
    make_branches(branches);
    enter(&locals[0]);
    cuda(calls.begin(locals[0].stream, CUDA_CAPTURE_MODE_GLOBAL), "begin");
    EACH(local)
    {
        follow(branches[local - locals].stream, locals[0].stream, &branches[0], &locals[0]);
    }
    for (int i = 0; i < ITERATIONS; i++) {
        expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
        EACH(local)
        {
            reduce(local, i, (cudaStream_t)(void *)branches[local - locals].stream);
        }
        expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    }
    EACH(local)
    {
        struct branch *branch = &branches[local - locals];
        follow(locals[0].stream, branch->stream, branch, local);
    }
    end_captures(&graphs, 1);
    replay_all(&graphs, MANY_REPLAYS);
    destroy_graphs(&graphs);
    destroy_all();
}

/* --- A thread for each device, which captures and replays without groups --- */

static void *capture_alone(void *argument)
{
    const struct local *local = argument;
    struct graphs *graphs = local->graphs;
    int at = (int)(local - locals);
    enter(local);
    cuda(calls.begin(local->stream, CUDA_CAPTURE_MODE_THREAD_LOCAL), "begin");
    for (int i = 0; i < ITERATIONS; i++) {
        reduce(local, i, STREAM(local));
    }
    cuda(calls.end(local->stream, &graphs->graph[at]), "end");
    cuda(calls.instantiate(&graphs->exec[at], graphs->graph[at], 0), "instantiate");
    return NULL;
}

void case_graph_threads(void)
{
    struct graphs graphs = {.count = local_count};
    pthread_t threads[LOCAL_MAX];
    load();
    init_all();
    check_all_work();
    EACH(local)
    {
        local->graphs = &graphs;
        expect_true(pthread_create(&threads[local - locals], NULL, capture_alone, local) == 0, "a thread");
    }
    EACH(local)
    {
        expect_true(pthread_join(threads[local - locals], NULL) == 0, "the thread's end");
    }
    replay_all(&graphs, MANY_REPLAYS);
    destroy_graphs(&graphs);
    destroy_all();
}

/* --- What cannot be captured --- */

/* One rank's streams in two graphs, in one group. NCCL refuses that, too. Afterwards both captures hold what
 * was captured before. */
static void refuse_two_graphs(const struct branch *branch)
{
    const struct local *one = &locals[0];
    cuda_graph graph;
    enter(one);
    cuda(calls.begin(branch->stream, CUDA_CAPTURE_MODE_RELAXED), "begin");
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        reduce(local, 0, STREAM(local));
    }
    reduce(one, 0, (cudaStream_t)(void *)branch->stream);
    expect(ncclGroupEnd(), ncclInvalidUsage, "two graphs of one communicator");
    expect_text("one CUDA graph must capture all streams of a communicator");
    enter(one);
    cuda(calls.end(branch->stream, &graph), "end");
    cuda(calls.destroy(graph), "destroy");
}

#define MEMORIES_MAX (LOCAL_MAX * (ITERATIONS + 1))

static void *memories[MEMORIES_MAX];
static int memory_count;

/* Calls that NCCL allows while streams are captured, and one that is refused. */
static void call_meanwhile(void)
{
    EACH(local)
    {
        void *memory = NULL, *handle = NULL;
        ncclRedOp_t op;
        ncclResult_t state;
        float factor = 2;
        enter(local);
        expect(ncclCommRegister(local->comm, AT(local->send), 4096, &handle), ncclSuccess,
               "ncclCommRegister");
        expect(ncclCommDeregister(local->comm, handle), ncclSuccess, "ncclCommDeregister");
        expect(ncclCommGetAsyncError(local->comm, &state), ncclSuccess, "ncclCommGetAsyncError");
        expect(state, ncclSuccess, "the communicator's state");
        expect(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat32, ncclScalarHostImmediate, local->comm),
               ncclSuccess, "ncclRedOpCreatePreMulSum");
        expect(ncclRedOpDestroy(op, local->comm), ncclSuccess, "ncclRedOpDestroy");
        expect(ncclMemAlloc(&memory, 1 << 20), ncclSuccess, "ncclMemAlloc");
        memories[memory_count++] = memory; /* freeing it waits for the GPU, which ends captures */
        refuse_factor(local);
    }
}

void case_graph_refused(void)
{
    struct branch branches[LOCAL_MAX];
    struct graphs graphs = {.count = 0};
    load();
    init_all();
    check_all_work();
    make_branches(branches);
    begin_captures(CUDA_CAPTURE_MODE_GLOBAL);
    refuse_two_graphs(&branches[0]);
    call_meanwhile();
    for (int i = 0; i < ITERATIONS; i++) {
        reduce_all(i);
        call_meanwhile();
    }
    end_captures(&graphs, local_count);
    replay_all(&graphs, 20);
    destroy_graphs(&graphs);
    check_all_work();
    while (memory_count > 0) {
        expect(ncclMemFree(memories[--memory_count]), ncclSuccess, "ncclMemFree");
    }
    destroy_all();
}
