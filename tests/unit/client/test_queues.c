#include <pthread.h>
#include <signal.h>

#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* WAITS = True */

/* Completion queues on a commd that the test plays, with rings and without them. */

enum { BYTES = 1000, LARGE_BYTES = 3 * QUEUE_COPY_NOW_MAX_BYTES };

static struct pair start(bool rings)
{
    return pair_start(&(struct fake_script){.rings = rings});
}

static comm_queue_t *queue_of(const struct pair *pair)
{
    comm_queue_t *queue = NULL;
    assert_int_equal(comm_queue_create(pair->client, &queue), COMM_OK);
    return queue;
}

static comm_result_t reduce(comm_t *comm, comm_queue_t *queue, const void *from, void *to, size_t size,
                            uintptr_t cookie)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.queue = queue;
    options.cookie = (void *)cookie;
    return comm_all_reduce(comm, from, to, size, COMM_U8, COMM_SUM, &options);
}

static comm_completion_t take(comm_queue_t *queue)
{
    comm_completion_t completion;
    size_t count = 0;
    if (comm_queue_next(queue, &completion, 1, &count, 20000) != COMM_OK) {
        fail_msg("comm_queue_next: %s", comm_last_error());
    }
    assert_int_equal(count, 1);
    return completion;
}

static void assert_empty(comm_queue_t *queue)
{
    comm_completion_t completion;
    size_t count = 5;
    assert_int_equal(comm_queue_next(queue, &completion, 1, &count, 0), COMM_TIMED_OUT);
    assert_int_equal(count, 0);
}

static void test_small_and_large_outputs(void **state)
{
    (void)state;
    static unsigned char input[LARGE_BYTES], output[LARGE_BYTES];
    for (int rings = 0; rings < 2; rings++) {
        struct pair pair = start(rings != 0);
        comm_t *comm = pair_comm(&pair, "outputs", 0, 1);
        comm_queue_t *queue = queue_of(&pair);
        for (unsigned turn = 0; turn < 6; turn++) {
            size_t size = turn % 2 == 0 ? BYTES : LARGE_BYTES;
            fill_bytes(input, size, turn);
            memset(output, 0xee, sizeof output);
            assert_int_equal(reduce(comm, queue, input, output, size, turn + 1), COMM_OK);
            comm_completion_t completion = take(queue);
            assert_int_equal(completion.result, COMM_OK);
            assert_null(completion.failure);
            assert_ptr_equal(completion.cookie, (void *)(uintptr_t)(turn + 1));
            assert_reduced(output, size, turn);
            assert_empty(queue);
        }
        comm_destroy(comm);
        comm_queue_destroy(queue);
        pair_stop(&pair);
    }
}

static void test_a_failed_operation(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    struct pair pair = pair_start(&(struct fake_script){
        .action = FAKE_FAIL, .action_at_op = 1, .op_status = STATUS_LIMIT, .op_text = "too much of it"});
    comm_t *comm = pair_comm(&pair, "failed", 0, 1);
    comm_queue_t *queue = queue_of(&pair);
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 1), COMM_OK);
    comm_completion_t completion = take(queue);
    assert_int_equal(completion.result, COMM_LIMIT);
    assert_int_equal(completion.failure->result, COMM_LIMIT);
    assert_string_equal(completion.failure->operation, "all_reduce");
    assert_string_equal(completion.failure->text, "too much of it");
    assert_error_says("too much of it");
    assert_int_equal(comm_sync(comm, 0), COMM_OK); /* it was told already */
    comm_destroy(comm);
    pair_stop(&pair); /* frees the queue, too */
}

/* A call gives a completion, or fails. */
static void test_calls_that_fail(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    struct pair pair = start(true), other = start(true);
    comm_t *comm = pair_comm(&pair, "fails", 0, 1);
    comm_queue_t *queue = queue_of(&pair), *stranger = queue_of(&other);
    assert_int_equal(reduce(comm, queue, NULL, bytes, BYTES, 1), COMM_INVALID_ARGUMENT);
    assert_int_equal(reduce(comm, stranger, bytes, bytes, BYTES, 1), COMM_INVALID_ARGUMENT);
    assert_error_says("belongs to another client");
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.queue = queue;
    options.request = &request;
    assert_int_equal(comm_all_reduce(comm, bytes, bytes, BYTES, COMM_U8, COMM_SUM, &options),
                     COMM_INVALID_ARGUMENT);
    assert_empty(queue);
    assert_int_equal(comm_abort(comm, "why not"), COMM_UNSUPPORTED); /* an older commd */
    comm_destroy(comm);
    pair_stop(&pair);
    pair_stop(&other);
}

/* The calls of the group returned COMM_OK, so each has a completion, though the group could not be submitted.
 */
static void test_a_group_that_fails(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    struct pair pair = start(true);
    comm_t *comm = pair_comm(&pair, "group", 0, 1);
    comm_queue_t *queue = queue_of(&pair), *gone = queue_of(&pair);
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 1), COMM_OK);
    assert_int_equal(reduce(comm, gone, bytes, bytes, BYTES, 2), COMM_OK);
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 3), COMM_OK);
    comm_queue_destroy(gone);
    assert_int_equal(comm_group_end(), COMM_INVALID_ARGUMENT);
    comm_completion_t completions[4];
    size_t count = 0, more = 0;
    assert_int_equal(comm_queue_next(queue, completions, 4, &count, 20000), COMM_OK);
    if (count == 1) {
        assert_int_equal(comm_queue_next(queue, completions + 1, 3, &more, 20000), COMM_OK);
    }
    assert_int_equal(count + more, 2);
    for (unsigned i = 0; i < 2; i++) {
        bool first = completions[i].cookie == (void *)(uintptr_t)1;
        assert_int_equal(completions[i].result, first ? COMM_OK : COMM_INVALID_ARGUMENT);
    }
    assert_empty(queue);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* An operation that commd does not end: the communicator fails, and its operations end. */
static void test_a_commd_that_forgets_an_operation(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    struct pair pair = pair_start(&(struct fake_script){.action = FAKE_NO_WORD, .action_at_op = 1});
    comm_t *comm = pair_comm(&pair, "forgotten", 0, 1);
    comm_queue_t *queue = queue_of(&pair);
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.queue = queue;
    options.timeout_ms = 100;
    assert_int_equal(comm_all_reduce(comm, bytes, bytes, BYTES, COMM_U8, COMM_SUM, &options), COMM_OK);
    comm_completion_t completion = take(queue);
    assert_int_equal(completion.result, COMM_TIMED_OUT);
    assert_error_says("commd does not answer");
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 2), COMM_TIMED_OUT);
    assert_empty(queue);
    comm_destroy(comm);
    pair_stop(&pair);
}

static void test_the_end_of_commd(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    for (int rings = 0; rings < 2; rings++) {
        struct pair pair =
            pair_start(&(struct fake_script){.rings = rings != 0, .action = FAKE_CLOSE, .action_at_op = 1});
        comm_t *comm = pair_comm(&pair, "end", 0, 1);
        comm_queue_t *queue = queue_of(&pair), *none = NULL;
        assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 1), COMM_OK);
        assert_int_equal(take(queue).result, COMM_DAEMON_LOST);
        comm_completion_t completion;
        size_t count;
        assert_int_equal(comm_queue_next(queue, &completion, 1, &count, COMM_NO_TIMEOUT), COMM_DAEMON_LOST);
        assert_int_equal(comm_queue_create(pair.client, &none), COMM_DAEMON_LOST);
        assert_null(none);
        comm_destroy(comm);
        pair_stop(&pair);
    }
}

static comm_queue_t *woken_queue;

static void on_signal(int number)
{
    (void)number;
    comm_queue_wake(woken_queue);
}

static void test_a_wake_from_a_signal_handler(void **state)
{
    (void)state;
    struct pair pair = start(true);
    struct sigaction action = {.sa_handler = on_signal};
    comm_completion_t completion;
    size_t count = 9;
    woken_queue = queue_of(&pair);
    assert_int_equal(sigaction(SIGUSR1, &action, NULL), 0);
    assert_int_equal(raise(SIGUSR1), 0);
    assert_int_equal(comm_queue_next(woken_queue, &completion, 1, &count, COMM_NO_TIMEOUT), COMM_OK);
    assert_int_equal(count, 0);
    assert_empty(woken_queue);
    comm_queue_destroy(woken_queue);
    pair_stop(&pair);
}

/* A thread's failure stays valid until the same thread calls again, whatever another thread does. */
static void *take_in_thread(void *argument)
{
    comm_queue_t *queue = argument;
    return (void *)(uintptr_t)take(queue).result;
}

static void test_failures_of_two_threads(void **state)
{
    (void)state;
    unsigned char bytes[BYTES] = {0};
    struct fake_script script = {
        .action = FAKE_FAIL, .action_at_op = 1, .op_status = STATUS_LIMIT, .op_text = "the first"};
    struct pair pair = pair_start(&script);
    comm_t *comm = pair_comm(&pair, "threads", 0, 1);
    comm_queue_t *queue = queue_of(&pair);
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 1), COMM_OK);
    comm_completion_t mine = take(queue);
    script.op_text = "the second";
    fake_daemon_set(pair.daemon, &script);
    assert_int_equal(reduce(comm, queue, bytes, bytes, BYTES, 2), COMM_OK);
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, take_in_thread, queue), 0);
    assert_int_equal(pthread_join(thread, &result), 0);
    assert_int_equal((uintptr_t)result, COMM_LIMIT);
    assert_string_equal(mine.failure->text, "the first");
    comm_destroy(comm);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_and_large_outputs),
        cmocka_unit_test(test_a_failed_operation),
        cmocka_unit_test(test_calls_that_fail),
        cmocka_unit_test(test_a_group_that_fails),
        cmocka_unit_test(test_a_commd_that_forgets_an_operation),
        cmocka_unit_test(test_the_end_of_commd),
        cmocka_unit_test(test_a_wake_from_a_signal_handler),
        cmocka_unit_test(test_failures_of_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
