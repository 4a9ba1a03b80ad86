/*
 * A program whose process has both ranks of a communicator, each on a GPU of its own or both on one. It mixes
 * streams, buffers and captures of its GPUs in every way that the library's calls allow: what could never end
 * is refused with its reason, and everything else has the right result.
 *
 *   mixes DEVICE DEVICE
 */
#include <commclient.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "tests/system/gpu_rank.h"

#define RANKS 2
#define COUNT 1021u
#define BYTES (COUNT * sizeof(int32_t))

static struct one {
    comm_client_t *client;
    comm_t *comm;
    cuda_context context;
    cuda_stream stream;
    int device;
    void *in, *out;
} ones[RANKS];

static struct {
    cuda_result (*begin)(cuda_stream stream, int mode);
    cuda_result (*end)(cuda_stream stream, cuda_graph *graph);
} captures;

static void expect_true(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "not so: %s (%s)\n", what, comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static void refused(comm_result_t result, comm_result_t wanted, const char *word, const char *what)
{
    if (result != wanted || strstr(comm_last_error(), word) == NULL) {
        fprintf(stderr, "%s: %s: %s; not %s with \"%s\"\n", what, comm_result_text(result), comm_last_error(),
                comm_result_text(wanted), word);
        exit(EXIT_FAILURE);
    }
}

static void *join(void *argument)
{
    struct one *one = argument;
    expect_ok(comm_init(one->client, "mixes", (uint32_t)(one - ones), size, one->device, NULL, &one->comm),
              "comm_init");
    return NULL;
}

static void begin(char **devices)
{
    comm_client_t *client;
    pthread_t threads[RANKS];
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    for (int i = 0; i < RANKS; i++) {
        struct one *one = &ones[i];
        one->client = client;
        one->device = atoi(devices[i]);
        (void)open_gpu(one->device);
        check(driver->context_get(&one->context), "context_get");
        check(driver->stream_create(&one->stream, CUDA_STREAM_NON_BLOCKING, 0), "stream_create");
        check((cuda_result)pthread_create(&threads[i], NULL, join, one), "a thread");
    }
    for (int i = 0; i < RANKS; i++) {
        check((cuda_result)pthread_join(threads[i], NULL), "a thread");
        expect_ok(comm_mem_alloc(client, 2 * BYTES, ones[i].device, &ones[i].in), "comm_mem_alloc");
        expect_ok(comm_mem_alloc(client, 2 * BYTES, ones[i].device, &ones[i].out), "comm_mem_alloc");
    }
}

static void look_up(const char *symbol, void *slot)
{
    const char *path = getenv("COMMD_CUDA_LIBRARY");
    void *library = dlopen(path != NULL ? path : "libcuda.so.1", RTLD_NOW);
    void *address = library != NULL ? dlsym(library, symbol) : NULL;
    expect_true(address != NULL, symbol);
    memcpy(slot, &address, sizeof address);
}

/* --- One all-reduce of both ranks --- */

static int32_t value(int of_rank, uint32_t index, int32_t salt)
{
    return (of_rank + 1) * 100003 + (int32_t)index * 7 + salt;
}

/* Puts the rank's data on the stream, which may be of any GPU. */
static void put(const struct one *one, cuda_stream stream, int32_t salt)
{
    static int32_t data[RANKS][COUNT], poison[COUNT];
    int of_rank = (int)(one - ones);
    for (uint32_t i = 0; i < COUNT; i++) {
        data[of_rank][i] = value(of_rank, i, salt);
        poison[i] = -1;
    }
    check(driver->copy_from_host((cuda_pointer)(uintptr_t)one->in, data[of_rank], BYTES, stream), "copy");
    check(driver->copy_from_host((cuda_pointer)(uintptr_t)one->out, poison, BYTES, stream), "copy");
}

static comm_result_t all_reduce(const struct one *one, void *in, void *out, cuda_stream stream)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = stream;
    return comm_all_reduce(one->comm, in, out, COUNT, COMM_I32, COMM_SUM, &options);
}

static void expect_sum(const struct one *one, cuda_stream stream, int32_t salt, const char *what)
{
    int32_t data[COUNT];
    check(driver->copy_to_host(data, (cuda_pointer)(uintptr_t)one->out, BYTES, stream), "copy_to_host");
    check(driver->stream_synchronize(stream), "stream_synchronize");
    for (uint32_t i = 0; i < COUNT; i++) {
        expect_true(data[i] == value(0, i, salt) + value(1, i, salt), what);
    }
}

/* Each rank with that stream, in one group or not. */
static void check_sum(cuda_stream of_first, cuda_stream of_second, bool grouped, int32_t salt,
                      const char *what)
{
    cuda_stream streams[RANKS] = {of_first, of_second};
    for (int i = 0; i < RANKS; i++) {
        put(&ones[i], streams[i], salt);
    }
    expect_ok(grouped ? comm_group_begin() : COMM_OK, "comm_group_begin");
    for (int i = 0; i < RANKS; i++) {
        expect_ok(all_reduce(&ones[i], ones[i].in, ones[i].out, streams[i]), what);
    }
    expect_ok(grouped ? comm_group_end() : COMM_OK, "comm_group_end");
    for (int i = 0; i < RANKS; i++) {
        expect_sum(&ones[i], streams[i], salt, what);
    }
}

/* --- Mixes --- */

/* The stream may be of any GPU, but not the same for both ranks outside of a group. */
static void mix_streams(void)
{
    comm_request_t *request;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    check_sum(ones[0].stream, ones[1].stream, false, 1, "streams of the ranks");
    check_sum(ones[1].stream, ones[0].stream, false, 2, "streams of the other GPU");
    check_sum(ones[0].stream, ones[0].stream, true, 3, "one stream in a group");
    put(&ones[0], ones[0].stream, 4);
    put(&ones[1], ones[1].stream, 4);
    check(driver->stream_synchronize(ones[1].stream), "stream_synchronize");
    expect_ok(all_reduce(&ones[0], ones[0].in, ones[0].out, ones[0].stream), "rank 0");
    refused(all_reduce(&ones[1], ones[1].in, ones[1].out, ones[0].stream), COMM_INVALID_ARGUMENT,
            "the stream waits for an operation of rank 0", "one stream for both ranks");
    refused(comm_broadcast(ones[1].comm, ones[1].out, COUNT, COMM_I32, 0,
                           &(comm_call_options_t){.struct_size = sizeof options, .stream = ones[0].stream}),
            COMM_INVALID_ARGUMENT, "the stream waits for an operation of rank 0", "another kind");
    options.stream = ones[0].stream;
    options.request = &request;
    options.persistent = 1;
    expect_ok(comm_all_reduce(ones[1].comm, ones[1].in, ones[1].out, COUNT, COMM_I32, COMM_SUM, &options),
              "a persistent operation");
    refused(comm_start(request), COMM_INVALID_ARGUMENT, "the stream waits for", "comm_start");
    comm_request_free(request);
    expect_ok(all_reduce(&ones[1], ones[1].in, ones[1].out, ones[1].stream), "rank 1");
    expect_sum(&ones[0], ones[0].stream, 4, "after the refusals");
    expect_sum(&ones[1], ones[1].stream, 4, "after the refusals");
    check_sum(ones[0].stream, ones[1].stream, false, 5, "the next one");
}

/* Of another GPU than the rank's. */
static void mix_buffers(void)
{
    struct one *one = &ones[0], *other = &ones[1];
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.stream = one->stream;
    comm_t *comm = one->comm;
    void *in = one->in, *out = one->out, *foreign = other->in;
    const char *word = "and the communicator's rank is on GPU";
    const comm_result_t wanted = COMM_UNSUPPORTED;
    refused(comm_all_reduce(comm, foreign, out, 4, COMM_I32, COMM_SUM, &options), wanted, word, "send");
    refused(comm_all_reduce(comm, in, foreign, 4, COMM_I32, COMM_SUM, &options), wanted, word, "receive");
    refused(comm_reduce(comm, foreign, out, 4, COMM_I32, COMM_SUM, 0, &options), wanted, word, "reduce");
    refused(comm_broadcast(comm, foreign, 4, COMM_I32, 0, &options), wanted, word, "broadcast");
    refused(comm_all_gather(comm, foreign, out, 4, COMM_I32, &options), wanted, word, "all_gather");
    refused(comm_reduce_scatter(comm, in, foreign, 4, COMM_I32, COMM_SUM, &options), wanted, word,
            "reduce_scatter");
    refused(comm_all_to_all(comm, in, foreign, 4, COMM_I32, &options), wanted, word, "all_to_all");
    refused(comm_gather(comm, foreign, out, 4, COMM_I32, 0, &options), wanted, word, "gather");
    refused(comm_scatter(comm, in, foreign, 4, COMM_I32, 0, &options), wanted, word, "scatter");
    refused(comm_scan(comm, in, foreign, 4, COMM_I32, COMM_SUM, &options), wanted, word, "scan");
    refused(comm_send(comm, foreign, 4, COMM_I32, 1, 0, &options), wanted, word, "send");
    refused(comm_recv(comm, foreign, 4, COMM_I32, 1, 0, &options), wanted, word, "recv");
    check(driver->stream_synchronize(one->stream), "a refused call leaves nothing in the stream");
    check_sum(one->stream, other->stream, false, 6, "after the refusals");
}

/* The streams of all ranks of a communicator in a group are captured, or none is. The capture stays valid. */
static void mix_captures(void)
{
    cuda_graph graph = NULL;
    check(driver->context_set(ones[1].context), "context_set");
    check(captures.begin(ones[1].stream, CUDA_CAPTURE_MODE_RELAXED), "begin");
    put(&ones[0], ones[0].stream, 7);
    expect_ok(comm_group_begin(), "comm_group_begin");
    expect_ok(all_reduce(&ones[0], ones[0].in, ones[0].out, ones[0].stream), "collected");
    refused(all_reduce(&ones[1], ones[1].in, ones[1].out, ones[1].stream), COMM_INVALID_ARGUMENT,
            "captured, or none is: that of rank 0 is not", "half a group");
    comm_event_t *event;
    expect_ok(comm_event_create(ones[0].client, &event), "comm_event_create");
    refused(comm_event_record(event, ones[1].stream), COMM_UNSUPPORTED, "is being captured", "record");
    comm_event_destroy(event);
    check(captures.end(ones[1].stream, &graph), "end");
    expect_true(graph != NULL, "the capture is valid");
    put(&ones[1], ones[1].stream, 7);
    expect_ok(all_reduce(&ones[1], ones[1].in, ones[1].out, ones[1].stream), "collected");
    expect_ok(comm_group_end(), "comm_group_end");
    expect_sum(&ones[0], ones[0].stream, 7, "after the capture");
    expect_sum(&ones[1], ones[1].stream, 7, "after the capture");
}

/* An event is recorded in a stream of one GPU, and a stream of another one waits for it. */
static void mix_events(void)
{
    comm_event_t *event;
    cuda_pointer there = (cuda_pointer)(uintptr_t)ones[0].in;
    static int32_t data[COUNT], back[COUNT];
    for (uint32_t i = 0; i < COUNT; i++) {
        data[i] = value(0, i, 8);
    }
    expect_ok(comm_event_create(ones[0].client, &event), "comm_event_create");
    check(driver->copy_from_host(there, data, BYTES, ones[0].stream), "copy_from_host");
    expect_ok(comm_event_record(event, ones[0].stream), "comm_event_record");
    expect_ok(comm_event_wait(event, ones[1].stream), "comm_event_wait");
    check(driver->copy_to_host(back, there, BYTES, ones[1].stream), "copy_to_host");
    check(driver->stream_synchronize(ones[1].stream), "stream_synchronize");
    expect_true(memcmp(data, back, BYTES) == 0, "the other GPU's stream waits for the event");
    comm_event_destroy(event);
}

int main(int argc, char **argv)
{
    void *none;
    if (argc != 1 + RANKS) {
        fprintf(stderr, "usage: mixes DEVICE DEVICE\n");
        return 2;
    }
    size = RANKS;
    look_up("cuStreamBeginCapture_v2", &captures.begin);
    look_up("cuStreamEndCapture", &captures.end);
    begin(&argv[1]);
    mix_streams();
    if (ones[0].device != ones[1].device) {
        mix_buffers();
    }
    mix_captures();
    mix_events();
    refused(comm_mem_alloc(ones[0].client, 4096, 99, &none), COMM_UNSUPPORTED, "device 99", "no such GPU");
    for (int i = 0; i < RANKS; i++) {
        expect_ok(comm_sync(ones[i].comm, 0), "comm_sync");
        comm_destroy(ones[i].comm);
    }
    comm_client_close(ones[0].client);
    printf("OK\n");
    return EXIT_SUCCESS;
}
