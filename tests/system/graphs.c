/*
 * One rank of a program whose operations are in CUDA graphs. Each replay of a graph has other data. The
 * program checks every element of the results.
 *
 *   graphs NAME RANK SIZE MODE NUMBER DEVICE
 *
 * MODE is one of:
 *   - replays: replays two graphs with operations of all kinds NUMBER times, with other operations in between
 *   - pair: replays a graph with one all-reduce NUMBER times
 *   - forks: replays a graph whose operations are on two branches NUMBER times
 *   - dies: rank NUMBER ends itself in the middle of replays; the others learn that, and none hangs
 *   - waits: replays until commd or another rank is gone, then some more, and prints "lost: RESULT"
 *   - many: captures, replays and destroys NUMBER graphs, one after the other
 *   - full: captures NUMBER operations, the most that a graph holds; one more is refused
 *   - refused: captures what cannot be captured, and captures that are valid after it
 *   - until: as replays, until the file GRAPHS_STOP is there; prints "READY" after 20 replays
 *   - twice: runs two executables of one graph at once, which ends the communicator
 * The other modes ignore NUMBER.
 *
 * If something is wrong, it prints that and exits with 1.
 */
#include <dlfcn.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/graphs_steps.h"

typedef struct cuda_graph_exec_handle *cuda_graph_exec;

static struct {
    cuda_result (*begin)(cuda_stream stream, int mode);
    cuda_result (*end)(cuda_stream stream, cuda_graph *graph);
    cuda_result (*instantiate)(cuda_graph_exec *exec, cuda_graph graph, unsigned long long flags);
    cuda_result (*launch)(cuda_graph_exec exec, cuda_stream stream);
    cuda_result (*exec_destroy)(cuda_graph_exec exec);
    cuda_result (*destroy)(cuda_graph graph);
    unsigned long long (*calls)(void); /* of the double; null: a real driver */
} graphs;

#define SMALL 1000

struct captured {
    cuda_graph graph;
    cuda_graph_exec exec;
};

static comm_client_t *client;
static comm_t *comm;
static cuda_stream stream;
static int device;
static unsigned long counted; /* replays whose calls of the driver were counted */

static void fail(const char *what)
{
    fprintf(stderr, "rank %u: not so: %s (%s)\n", rank, what, comm_last_error());
    exit(EXIT_FAILURE);
}

static void expect(comm_result_t found, comm_result_t wanted, const char *text, const char *what)
{
    if (found != wanted || (text != NULL && strstr(comm_last_error(), text) == NULL)) {
        fprintf(stderr, "rank %u: %s: %s, not %s with \"%s\": %s\n", rank, what, comm_result_text(found),
                comm_result_text(wanted), text != NULL ? text : "", comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static void look_up(void *library, const char *symbol, void *slot)
{
    void *address = dlsym(library, symbol);
    memcpy(slot, &address, sizeof address);
    if (address == NULL && slot != (void *)&graphs.calls) {
        fail(symbol);
    }
}

static void load_graphs(void)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fail("the driver can be opened");
    }
    look_up(library, "cuStreamBeginCapture_v2", &graphs.begin);
    look_up(library, "cuStreamEndCapture", &graphs.end);
    look_up(library, "cuGraphInstantiateWithFlags", &graphs.instantiate);
    look_up(library, "cuGraphLaunch", &graphs.launch);
    look_up(library, "cuGraphExecDestroy", &graphs.exec_destroy);
    look_up(library, "cuGraphDestroy", &graphs.destroy);
    look_up(library, "cuda_double_calls", &graphs.calls);
}

static void end_capture(struct captured *out)
{
    check(graphs.end(stream, &out->graph), "cuStreamEndCapture");
    check(graphs.instantiate(&out->exec, out->graph, 0), "cuGraphInstantiateWithFlags");
}

static void capture(const struct step *steps, int count, struct captured *out)
{
    check(graphs.begin(stream, CUDA_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (int i = 0; i < count; i++) {
        operations++;
        expect_ok(step_run(&steps[i], comm, stream), step_name(steps[i].kind));
    }
    end_capture(out);
}

static void release(const struct captured *captured)
{
    check(graphs.exec_destroy(captured->exec), "cuGraphExecDestroy");
    check(graphs.destroy(captured->graph), "cuGraphDestroy");
}

static void fill(const struct step *steps, int count, uint32_t number)
{
    for (int i = 0; i < count; i++) {
        step_fill(&steps[i], number, stream);
    }
    check(driver->stream_synchronize(stream), "stream_synchronize");
}

static void check_results(const struct step *steps, int count, uint32_t number)
{
    for (int i = 0; i < count; i++) {
        step_fetch(&steps[i], stream);
    }
    check(driver->stream_synchronize(stream), "stream_synchronize");
    for (int i = 0; i < count; i++) {
        step_check(&steps[i], number);
    }
    operations += (unsigned long)count;
}

static void replay(const struct step *steps, int count, const struct captured *captured, uint32_t number)
{
    fill(steps, count, number);
    unsigned long long before = graphs.calls != NULL ? graphs.calls() : 0;
    check(graphs.launch(captured->exec, stream), "cuGraphLaunch");
    check(driver->stream_synchronize(stream), "stream_synchronize");
    if (graphs.calls != NULL && graphs.calls() != before + 2) {
        fail("the library calls CUDA at no replay");
    }
    counted += graphs.calls != NULL;
    check_results(steps, count, number);
}

static void done(void)
{
    expect_ok(comm_sync(comm, 0), "comm_sync");
    expect_ok(comm_barrier(comm, NULL), "comm_barrier");
    comm_destroy(comm);
    comm_client_close(client);
    printf("%lu replays without a call of the driver by the library\n", counted);
    printf("%lu operations checked\n", operations);
}

/* --- Replays --- */

#define FEW 3

/* Two graphs at once, on two streams. Ranks launch them in different orders. */
static void replay_both(const struct step *steps, const struct captured *all, const struct step *few_steps,
                        const struct captured *few, cuda_stream other, uint32_t number)
{
    bool few_first = (number + rank) % 2 == 0;
    fill(steps, STEP_KINDS, number);
    fill(few_steps, FEW, number + 1);
    check(graphs.launch((few_first ? few : all)->exec, few_first ? other : stream), "cuGraphLaunch");
    check(graphs.launch((few_first ? all : few)->exec, few_first ? stream : other), "cuGraphLaunch");
    check(driver->stream_synchronize(other), "stream_synchronize");
    check_results(few_steps, FEW, number + 1);
    check_results(steps, STEP_KINDS, number);
}

/* An operation that is not in a graph. */
static void run_eagerly(const struct step *step, uint32_t number)
{
    fill(step, 1, number);
    expect_ok(step_run(step, comm, stream), step_name(step->kind));
    check_results(step, 1, number);
}

static void mode_replays(uint32_t replays)
{
    struct step steps[STEP_KINDS], few_steps[FEW], eager;
    struct captured all, few;
    cuda_stream other;
    uint64_t digest = 0xcbf29ce484222325u;
    check(driver->stream_create(&other, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    for (int i = 0; i < STEP_KINDS; i++) {
        step_make(&steps[i], (enum step_kind)i, client, device);
    }
    for (int i = 0; i < FEW; i++) {
        step_make(&few_steps[i], (enum step_kind)i, client, device);
    }
    step_make(&eager, STEP_ALL_REDUCE, client, device);
    capture(steps, STEP_KINDS, &all);
    capture(few_steps, FEW, &few);
    for (uint32_t i = 0; i < replays; i++) {
        if (i % 7 == 0) {
            replay_both(steps, &all, few_steps, &few, other, i);
        } else {
            replay(steps, STEP_KINDS, &all, i);
        }
        for (int step = 0; step < STEP_KINDS; step++) {
            digest = step_digest(&steps[step], digest);
        }
        if (i % 5 == 0) {
            run_eagerly(&eager, i);
        }
    }
    release(&few);
    release(&all);
    printf("digest %016llx\n", (unsigned long long)digest);
}

/* Whether any rank sees the file. All ranks get the same answer. */
static bool must_stop(void)
{
    const char *path = getenv("GRAPHS_STOP");
    uint32_t seen = path == NULL || access(path, F_OK) == 0, any = 0;
    expect_ok(comm_all_reduce(comm, &seen, &any, 1, COMM_U32, COMM_MAX, NULL), "an all_reduce on the host");
    expect_ok(comm_sync(comm, 0), "comm_sync");
    return any != 0;
}

static void mode_until(void)
{
    struct step steps[STEP_KINDS];
    struct captured captured;
    uint64_t digest = 0xcbf29ce484222325u;
    for (int i = 0; i < STEP_KINDS; i++) {
        step_make(&steps[i], (enum step_kind)i, client, device);
    }
    capture(steps, STEP_KINDS, &captured);
    for (uint32_t i = 0; i < 20 || !must_stop(); i++) {
        replay(steps, STEP_KINDS, &captured, i);
        for (int step = 0; step < STEP_KINDS; step++) {
            digest = step_digest(&steps[step], digest);
        }
        if (i == 19) {
            printf("READY\n");
            (void)fflush(stdout);
        }
        (void)usleep(i >= 20 ? 5000 : 0); /* commd measures while no operation runs */
    }
    release(&captured);
    printf("digest %016llx\n", (unsigned long long)digest);
}

static void mode_pair(uint32_t replays)
{
    struct step step;
    struct captured captured;
    step_make(&step, STEP_ALL_REDUCE, client, device);
    capture(&step, 1, &captured);
    for (uint32_t i = 0; i < replays; i++) {
        replay(&step, 1, &captured, i);
    }
    release(&captured);
}

/* A graph with two branches, so the ranks' operations could come in any order. */
static void mode_forks(uint32_t replays)
{
    struct step steps[3];
    struct captured captured;
    cuda_stream branch;
    cuda_event forked, joined;
    check(driver->stream_create(&branch, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    check(driver->event_create(&forked, CUDA_EVENT_DISABLE_TIMING), "event_create");
    check(driver->event_create(&joined, CUDA_EVENT_DISABLE_TIMING), "event_create");
    for (int i = 0; i < 3; i++) {
        step_make(&steps[i], i == 1 ? STEP_RING : STEP_ALL_REDUCE, client, device);
    }
    check(graphs.begin(stream, CUDA_CAPTURE_MODE_THREAD_LOCAL), "cuStreamBeginCapture");
    check(driver->event_record(forked, stream), "event_record");
    check(driver->stream_wait_event(branch, forked, 0), "stream_wait_event");
    expect_ok(step_run(&steps[0], comm, stream), "all_reduce");
    expect_ok(step_run(&steps[1], comm, branch), "send and recv");
    check(driver->event_record(joined, branch), "event_record");
    check(driver->stream_wait_event(stream, joined, 0), "stream_wait_event");
    expect_ok(step_run(&steps[2], comm, stream), "all_reduce");
    end_capture(&captured);
    for (uint32_t i = 0; i < replays; i++) {
        replay(steps, 3, &captured, i);
    }
    release(&captured);
}

static void mode_many(uint32_t count)
{
    struct step steps[2];
    struct captured captured;
    step_make(&steps[0], STEP_ALL_REDUCE_IN_PLACE, client, device);
    step_make(&steps[1], STEP_ALL_GATHER_V, client, device);
    for (uint32_t i = 0; i < count; i++) {
        capture(steps, 2, &captured);
        replay(steps, 2, &captured, i);
        replay(steps, 2, &captured, i + count);
        release(&captured);
    }
}

/* --- Failures --- */

/* Lets the rest of a replay run, whatever its results are. */
static void replay_unchecked(const struct captured *captured)
{
    check(graphs.launch(captured->exec, stream), "cuGraphLaunch");
    check(driver->stream_synchronize(stream), "stream_synchronize");
}

static comm_result_t replay_until_lost(const struct captured *captured, uint32_t die_at)
{
    comm_result_t result = COMM_OK;
    for (uint32_t i = 0; result == COMM_OK; i++) {
        if (i == die_at) {
            (void)kill(getpid(), SIGKILL);
        }
        replay_unchecked(captured);
        result = comm_sync(comm, 0);
    }
    for (int i = 0; i < 100; i++) { /* a replay after the failure waits for nothing */
        replay_unchecked(captured);
    }
    return result;
}

static void mode_lost(uint32_t victim)
{
    struct step steps[3];
    struct captured captured;
    for (int i = 0; i < 3; i++) {
        step_make(&steps[i], STEP_ALL_REDUCE, client, device);
    }
    capture(steps, 3, &captured);
    replay(steps, 3, &captured, 0);
    printf("READY\n");
    (void)fflush(stdout);
    comm_result_t result = replay_until_lost(&captured, rank == victim ? 50 : UINT32_MAX);
    printf("lost: %s: %s\n", comm_result_text(result), comm_last_error());
    expect(comm_all_reduce(comm, steps[0].send, steps[0].receive, 1, COMM_U32, COMM_SUM, NULL), result, NULL,
           "a call after the failure");
    comm_destroy(comm);
    replay_unchecked(&captured);
    comm_client_close(client);
    replay_unchecked(&captured);
    release(&captured);
    printf("%lu operations checked\n", operations);
    exit(EXIT_SUCCESS);
}

static comm_result_t reduce_with(void *send, void *receive, const comm_call_options_t *options)
{
    return comm_all_reduce(comm, send, receive, SMALL, COMM_U32, COMM_SUM, options);
}

/* The library refuses each of these calls, and the capture goes on. */
static void refuse_all(const struct step *step)
{
    static uint32_t plain[SMALL];
    comm_request_t *request;
    comm_queue_t *queue;
    comm_event_t *event;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    expect_ok(comm_queue_create(client, &queue), "comm_queue_create");
    expect_ok(comm_event_create(client, &event), "comm_event_create");
    expect(reduce_with(plain, step->receive, &options), COMM_UNSUPPORTED, "send buffer", "host memory");
    expect(reduce_with(step->send, plain, &options), COMM_UNSUPPORTED, "receive buffer", "host memory");
    options.request = &request;
    expect(reduce_with(step->send, step->receive, &options), COMM_UNSUPPORTED, "options.request", "a handle");
    options.request = NULL;
    options.queue = queue;
    expect(reduce_with(step->send, step->receive, &options), COMM_UNSUPPORTED, "options.queue", "a queue");
    options.queue = NULL;
    expect(comm_barrier(comm, &options), COMM_UNSUPPORTED, "it waits", "a barrier");
    expect(comm_send_recv(comm, step->send, 1, rank, step->receive, 1, rank, COMM_U32, 0, &options),
           COMM_UNSUPPORTED, "nothing to wait for", "comm_send_recv");
    expect(comm_event_record(event, stream), COMM_UNSUPPORTED, "being captured", "an event");
    options.persistent = 1;
    options.request = &request;
    expect_ok(reduce_with(step->send, step->receive, &options), "a persistent operation");
    expect(comm_start(request), COMM_UNSUPPORTED, "persistent", "comm_start");
    comm_request_free(request);
    comm_queue_destroy(queue);
    comm_event_destroy(event);
}

static void mode_refused(void)
{
    struct step step;
    struct captured captured;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    cuda_stream other;
    check(driver->stream_create(&other, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    step_make(&step, STEP_ALL_REDUCE, client, device);
    check(graphs.begin(stream, CUDA_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    refuse_all(&step);
    /* Either all streams of a rank in a group belong to one graph, or none is captured. */
    expect_ok(comm_group_begin(), "comm_group_begin");
    expect_ok(step_run(&step, comm, stream), "all_reduce");
    options.stream = other;
    expect(reduce_with(step.send, step.receive, &options), COMM_INVALID_ARGUMENT,
           "captures all streams of a rank", "a stream that is not captured");
    expect_ok(comm_group_end(), "comm_group_end");
    end_capture(&captured);
    replay(&step, 1, &captured, 1);
    release(&captured);
    /* The legacy stream cannot be used while a stream that waits for it is captured. */
    cuda_stream blocking;
    check(driver->stream_create(&blocking, 0, 0), "stream_create");
    check(graphs.begin(blocking, CUDA_CAPTURE_MODE_RELAXED), "cuStreamBeginCapture");
    options.stream = NULL;
    expect(reduce_with(step.send, step.receive, &options), COMM_UNSUPPORTED, "a stream is being captured",
           "the legacy stream");
    check(graphs.end(blocking, &captured.graph), "cuStreamEndCapture");
    check(graphs.destroy(captured.graph), "cuGraphDestroy");
    operations++;
}

static void mode_full(uint32_t most)
{
    struct step step;
    struct captured captured;
    step_make(&step, STEP_SCAN, client, device);
    check(graphs.begin(stream, CUDA_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
    for (uint32_t i = 0; i < most; i++) {
        operations++;
        expect_ok(step_run(&step, comm, stream), "scan");
    }
    expect(step_run(&step, comm, stream), COMM_LIMIT, "at most", "one operation more");
    end_capture(&captured);
    replay(&step, 1, &captured, 1);
    replay(&step, 1, &captured, 2);
    release(&captured);
}

static void mode_twice(void)
{
    struct step step;
    struct captured captured;
    cuda_graph_exec second;
    cuda_stream other;
    const struct timespec pause = {.tv_nsec = 20000000};
    check(driver->stream_create(&other, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    step_make(&step, STEP_ALL_REDUCE, client, device);
    capture(&step, 1, &captured);
    check(graphs.instantiate(&second, captured.graph, 0), "cuGraphInstantiateWithFlags");
    comm_result_t result = COMM_OK;
    for (int i = 0; i < 200 && result == COMM_OK; i++) {
        check(graphs.launch(captured.exec, stream), "cuGraphLaunch");
        (void)nanosleep(&(struct timespec){.tv_nsec = rank == 0 ? 0 : 5000000}, NULL);
        check(graphs.launch(second, other), "cuGraphLaunch");
        (void)nanosleep(&pause, NULL);
        result = comm_sync(comm, 0);
    }
    expect(result, COMM_INVALID_ARGUMENT, "while another replay of it ran", "two replays at once");
    check(driver->stream_synchronize(stream), "stream_synchronize");
    check(driver->stream_synchronize(other), "stream_synchronize");
    printf("%lu operations checked\n", operations);
    exit(EXIT_SUCCESS);
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "usage: graphs NAME RANK SIZE MODE NUMBER DEVICE\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    const char *mode = argv[4];
    uint32_t number = (uint32_t)strtoul(argv[5], NULL, 10);
    device = atoi(argv[6]);
    (void)open_gpu(device);
    steps_begin(rank, size, device);
    load_graphs();
    check(driver->stream_create(&stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, size, device, NULL, &comm), "comm_init");
    if (strcmp(mode, "replays") == 0) {
        mode_replays(number);
    } else if (strcmp(mode, "until") == 0) {
        mode_until();
    } else if (strcmp(mode, "pair") == 0) {
        mode_pair(number);
    } else if (strcmp(mode, "forks") == 0) {
        mode_forks(number);
    } else if (strcmp(mode, "many") == 0) {
        mode_many(number);
    } else if (strcmp(mode, "dies") == 0 || strcmp(mode, "waits") == 0) {
        mode_lost(mode[0] == 'd' ? number : UINT32_MAX);
    } else if (strcmp(mode, "refused") == 0) {
        mode_refused();
    } else if (strcmp(mode, "full") == 0) {
        mode_full(number);
    } else if (strcmp(mode, "twice") == 0) {
        mode_twice();
    } else {
        fail("the mode is known");
    }
    done();
    return EXIT_SUCCESS;
}
