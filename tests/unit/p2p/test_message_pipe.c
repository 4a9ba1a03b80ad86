#include "tests/unit/p2p/staging_nodes.h"

#include "daemon/gpu/queue.h"

/* The pipe alone. This test is its caller, and its GPUs are doubles. */

static struct gpu_queue *queue_of(uint32_t gpu)
{
    struct gpu_queue *queue = NULL;
    CHECK_RESULT(gpu_queue_new(nodes.gpus, gpu, NULL, &queue, NULL), STATUS_OK);
    return queue;
}

static void gpus_open(void)
{
    struct error error;
    CHECK_RESULT(gpu_devices_open(true, &nodes.gpus, &error), STATUS_OK);
    case_load();
}

/* The number of bytes that a turn stores or takes is as irregular as that of packets. */
static void run_pipe(struct message_pipe *pipe, const struct buffer *source, const struct buffer *sink,
                     size_t bytes)
{
    size_t stored = 0, taken = 0, size;
    while (!message_pipe_is_through(pipe)) {
        bool advanced = false;
        void *room;
        const void *chunk;
        CHECK_RESULT(message_pipe_step(pipe, ++nodes.now_ns, &advanced, NULL), STATUS_OK);
        while (source->gpu == ON_HOST && (room = message_pipe_room(pipe, &size)) != NULL) {
            size = size < 77777 ? size : 77777;
            memcpy(room, (const unsigned char *)source->at + stored, size);
            message_pipe_stored(pipe, size);
            stored += size;
        }
        while (sink->gpu == ON_HOST && (chunk = message_pipe_next(pipe, &size)) != NULL) {
            CHECK(size <= CHUNK && size > 0);
            memcpy((unsigned char *)sink->at + taken, chunk, size);
            message_pipe_take(pipe);
            message_pipe_drained(pipe);
            taken += size;
        }
    }
    CHECK(source->gpu != ON_HOST || stored == bytes);
    CHECK(sink->gpu != ON_HOST || taken == bytes);
    CHECK(!message_pipe_waits(pipe));
    CHECK(message_pipe_is_idle(pipe, nodes.now_ns));
}

static const size_t sizes[] = {1,         4096,     CHUNK - 1, CHUNK,    CHUNK + 1,
                               3 * CHUNK, RING - 1, RING + 1,  2 * RING, 4 * RING + 12345};

static void all_ends(int unused)
{
    (void)unused;
    gpus_open();
    struct gpu_queue *queues[2] = {queue_of(0), queue_of(1)};
    static const int ends[][2] = {{0, ON_HOST}, {ON_HOST, 1}, {0, 1}, {1, 1}, {ON_HOST, ON_HOST}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t e = 0; e < sizeof ends / sizeof ends[0]; e++) {
            for (int direct = 0; direct <= (ends[e][0] >= 0 && ends[e][1] >= 0 ? 1 : 0); direct++) {
                struct buffer source = buffer_new(ends[e][0], sizes[s]);
                struct buffer sink = buffer_new(ends[e][1], sizes[s]);
                buffer_fill(&source, s + e);
                struct message_pipe_end from = {source.gpu >= 0 ? queues[source.gpu] : NULL, source.at};
                struct message_pipe_end to = {sink.gpu >= 0 ? queues[sink.gpu] : NULL, sink.at};
                struct message_pipe *pipe = NULL;
                CHECK_RESULT(message_pipe_new(nodes.gpus, &from, &to, direct != 0, sizes[s], &pipe, NULL),
                             STATUS_OK);
                run_pipe(pipe, &source, &sink, sizes[s]);
                message_pipe_free(pipe);
                buffer_check(&sink, s + e, sizes[s]);
                buffer_free(&source);
                buffer_free(&sink);
            }
        }
    }
    CHECK(gpu_pinned_bytes(nodes.gpus) <= 2 * RING + 65536);
    gpu_queue_free(queues[0]);
    gpu_queue_free(queues[1]);
    gpu_devices_close(nodes.gpus);
}

static void test_all_ends_and_sizes(void **state)
{
    (void)state;
    case_run(all_ends);
    setenv("CUDA_DOUBLE_DELAY_US", "300", 1);
    case_run(all_ends);
    unsetenv("CUDA_DOUBLE_DELAY_US");
}

static void test_memory(void **state)
{
    (void)state;
    assert_int_equal(message_pipe_memory_bytes(1), 4096);
    assert_int_equal(message_pipe_memory_bytes(4097), 8192);
    assert_int_equal(message_pipe_memory_bytes(CHUNK), CHUNK);
    assert_int_equal(message_pipe_memory_bytes(CHUNK + 1), 2 * CHUNK);
    assert_int_equal(message_pipe_memory_bytes(RING), RING);
    assert_int_equal(message_pipe_memory_bytes(RING + 1), RING);
    assert_int_equal(message_pipe_memory_bytes(UINT64_MAX), RING);
}

/* While nobody takes, the source gets no further than the ring. No chunk is written before it was drained. */
static void holds_back(int unused)
{
    (void)unused;
    gpus_open();
    struct gpu_queue *queue = queue_of(0);
    struct buffer source = buffer_new(0, 2 * RING);
    buffer_fill(&source, 1);
    struct message_pipe_end from = {queue, source.at}, to = {NULL, NULL};
    struct message_pipe *pipe = NULL;
    const unsigned char *chunks[MESSAGE_PIPE_CHUNKS_MAX];
    bool advanced = false;
    size_t size;
    CHECK_RESULT(message_pipe_new(nodes.gpus, &from, &to, false, source.bytes, &pipe, NULL), STATUS_OK);
    for (uint32_t taken = 0; taken < MESSAGE_PIPE_CHUNKS_MAX;) {
        CHECK_RESULT(message_pipe_step(pipe, ++nodes.now_ns, &advanced, NULL), STATUS_OK);
        if ((chunks[taken] = message_pipe_next(pipe, &size)) != NULL) {
            message_pipe_take(pipe);
            taken++;
        }
    }
    for (int i = 0; i < 20; i++) {
        CHECK_RESULT(message_pipe_step(pipe, ++nodes.now_ns, &advanced, NULL), STATUS_OK);
        CHECK(message_pipe_next(pipe, &size) == NULL && !message_pipe_waits(pipe));
        case_sleep_ms(1);
    }
    for (uint64_t k = 0; k < MESSAGE_PIPE_CHUNKS_MAX; k++) {
        CHECK(chunks[k][0] == byte_of(1, k * CHUNK) &&
              chunks[k][CHUNK - 1] == byte_of(1, k * CHUNK + CHUNK - 1));
    }
    CHECK(!message_pipe_is_idle(pipe, nodes.now_ns)); /* the caller has chunks */
    for (uint64_t k = 0; k < MESSAGE_PIPE_CHUNKS_MAX; k++) {
        message_pipe_drained(pipe);
    }
    CHECK(message_pipe_is_idle(pipe, nodes.now_ns));
    CHECK_RESULT(message_pipe_step(pipe, ++nodes.now_ns, &advanced, NULL), STATUS_OK);
    CHECK(!message_pipe_waits(pipe) && !message_pipe_is_through(pipe)); /* given up: nothing is put */
    message_pipe_free(pipe);
    gpu_queue_free(queue);
    buffer_free(&source);
    gpu_devices_close(nodes.gpus);
}

static void test_a_taker_holds_the_source_back(void **state)
{
    (void)state;
    case_run(holds_back);
}

/* Each call that can fail does so, at some chunk. The pipe returns the error and becomes idle. */
static void failures(int unused)
{
    static const char *const rules[] = {"cuMemcpyAsync:1=1", "cuMemcpyAsync:11=1", "cuStreamWriteValue64:1=1",
                                        "cuStreamWriteValue64:11=1", "cuStreamWriteValue64:3+=1"};
    (void)unused;
    gpus_open();
    struct gpu_queue *queues[2] = {queue_of(0), queue_of(1)};
    struct buffer source = buffer_new(0, 2 * RING), sink = buffer_new(1, 2 * RING);
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        struct message_pipe_end from = {queues[0], source.at}, to = {queues[1], sink.at};
        struct message_pipe *pipe = NULL;
        struct error error;
        bool advanced = false;
        CHECK_RESULT(message_pipe_new(nodes.gpus, &from, &to, false, source.bytes, &pipe, NULL), STATUS_OK);
        beyond.inject(rules[i]);
        enum status status = STATUS_OK;
        while (status == STATUS_OK) {
            CHECK(!message_pipe_is_through(pipe));
            status = message_pipe_step(pipe, ++nodes.now_ns, &advanced, &error);
        }
        CHECK_RESULT(status, STATUS_DEVICE);
        CHECK(strstr(error.text, i < 2 ? "cuMemcpyAsync" : "cuStreamWriteValue64") != NULL);
        while (!message_pipe_is_idle(pipe, ++nodes.now_ns)) {
        }
        message_pipe_free(pipe);
        beyond.inject(NULL);
    }
    gpu_queue_free(queues[0]);
    gpu_queue_free(queues[1]);
    buffer_free(&source);
    buffer_free(&sink);
    gpu_devices_close(nodes.gpus);
}

static void test_calls_that_fail(void **state)
{
    (void)state;
    case_run(failures);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_ends_and_sizes),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_a_taker_holds_the_source_back),
        cmocka_unit_test(test_calls_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
