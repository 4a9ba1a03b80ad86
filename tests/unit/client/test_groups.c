#include <sched.h>

#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* Groups, and other calls while a group is open: calls on handles, and calls that end communicators and
 * clients. */

enum { BYTES = 1000 };

static unsigned char *part(void *memory, unsigned index)
{
    return (unsigned char *)memory + (size_t)index * BYTES;
}

static void *alloc_parts(const struct pair *pair, unsigned count)
{
    void *memory = NULL;
    assert_int_equal(comm_mem_alloc(pair->client, (size_t)count * BYTES, COMM_DEVICE_HOST, &memory), COMM_OK);
    fill_bytes(memory, BYTES, 1);
    return memory;
}

static comm_request_t *reduce(comm_t *comm, void *memory, unsigned from, unsigned to, bool handle,
                              bool is_persistent)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = handle ? &request : NULL;
    options.persistent = is_persistent;
    if (comm_all_reduce(comm, part(memory, from), part(memory, to), BYTES, COMM_U8, COMM_SUM, &options) !=
        COMM_OK) {
        fail_msg("comm_all_reduce: %s", comm_last_error());
    }
    return request;
}

/* Checks what `rounds` operations in a row make of the first part. */
static void assert_parts(void *memory, unsigned rounds)
{
    for (unsigned round = 0; round < rounds; round++) {
        for (unsigned i = 0; i < BYTES; i++) {
            assert_int_equal(part(memory, round + 1)[i], fake_daemon_byte(part(memory, round)[i]));
        }
    }
}

static void test_a_persistent_operation_keeps_its_place(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "places", 0, 1);
    void *memory = alloc_parts(&pair, 4);
    comm_request_t *request = reduce(comm, memory, 1, 2, true, true);
    for (unsigned turn = 0; turn < 3; turn++) {
        memset(part(memory, 1), 0, 3 * BYTES);
        uint64_t submits = fake_daemon_counts(pair.daemon).submits;
        assert_int_equal(comm_group_begin(), COMM_OK);
        (void)reduce(comm, memory, 0, 1, false, false);
        assert_int_equal(comm_start(request), COMM_OK);
        assert_int_equal(comm_start(request), COMM_IN_PROGRESS);
        (void)reduce(comm, memory, 2, 3, false, false);
        assert_int_equal(fake_daemon_counts(pair.daemon).submits, submits);
        assert_int_equal(comm_group_end(), COMM_OK);
        assert_int_equal(comm_start(request), COMM_IN_PROGRESS);
        assert_int_equal(comm_wait(&request, NULL), COMM_OK);
        assert_non_null(request);
        assert_int_equal(comm_sync(comm, 0), COMM_OK);
        assert_parts(memory, 3);
    }
    comm_request_free(request);
    comm_destroy(comm);
    pair_stop(&pair);
}

static void *leave_elsewhere(void *comm)
{
    comm_destroy(comm);
    return NULL;
}

static void *close_elsewhere(void *client)
{
    comm_client_close(client);
    return NULL;
}

static void run_elsewhere(void *(*run)(void *context), void *context)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, run, context), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* The operations of the communicator that is left are not submitted; those of others are. */
static void leave_in_a_group(void (*leave)(comm_t *comm), comm_result_t result)
{
    struct pair pair = pair_start(NULL);
    comm_t *left = pair_comm(&pair, "left", 0, 1);
    comm_t *other = pair_comm(&pair, "other", 0, 1);
    void *memory = alloc_parts(&pair, 3);
    assert_int_equal(comm_group_begin(), COMM_OK);
    (void)reduce(left, memory, 0, 1, false, false);
    (void)reduce(other, memory, 0, 1, false, false);
    comm_request_free(reduce(left, memory, 0, 1, true, false));
    (void)reduce(other, memory, 1, 2, false, false);
    leave(left);
    assert_int_equal(comm_group_end(), result);
    assert_int_equal(comm_sync(other, 0), COMM_OK);
    assert_parts(memory, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 2);
    assert_int_equal(fake_daemon_counts(pair.daemon).comms, 1);
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_group_end(), COMM_OK);
    comm_destroy(other);
    pair_stop(&pair);
}

static void test_a_communicator_left_in_a_group(void **state)
{
    (void)state;
    leave_in_a_group(comm_destroy, COMM_OK);
}

static void leave_by_another_thread(comm_t *comm)
{
    run_elsewhere(leave_elsewhere, comm);
}

/* The group's thread does not know that: it is told at the end of the group. */
static void test_a_communicator_that_another_thread_leaves(void **state)
{
    (void)state;
    leave_in_a_group(leave_by_another_thread, COMM_ABORTED);
    assert_error_says("comm_all_reduce on \"left\": this rank left the communicator before the group ended");
}

static void test_a_client_that_another_thread_closes(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "closed", 0, 1);
    unsigned char bytes[BYTES] = {0};
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_all_reduce(comm, bytes, bytes, BYTES, COMM_U8, COMM_SUM, NULL), COMM_OK);
    run_elsewhere(close_elsewhere, pair.client);
    assert_int_equal(comm_group_end(), COMM_ABORTED);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 0);
    fake_daemon_stop(pair.daemon);
}

static void *collect_and_end(void *comm)
{
    static unsigned char bytes[BYTES];
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_all_reduce(comm, bytes, bytes, BYTES, COMM_U8, COMM_SUM, NULL), COMM_OK);
    return NULL;
}

/* Nobody submits what it has collected. */
static void test_a_thread_that_ends_in_a_group(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "gone", 0, 1);
    run_elsewhere(collect_and_end, comm);
    comm_destroy(comm);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 0);
    pair_stop(&pair);
}

static void test_a_client_closed_in_a_group(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    struct pair other = pair_start(NULL);
    comm_t *closed = pair_comm(&pair, "closed", 0, 1);
    comm_t *comm = pair_comm(&other, "other", 0, 1);
    void *memory = alloc_parts(&other, 2);
    unsigned char bytes[BYTES] = {0};
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_all_reduce(closed, bytes, bytes, BYTES, COMM_U8, COMM_SUM, NULL), COMM_OK);
    (void)reduce(comm, memory, 0, 1, false, false);
    comm_client_close(pair.client);
    assert_int_equal(comm_group_end(), COMM_OK);
    assert_int_equal(comm_sync(comm, 0), COMM_OK);
    assert_parts(memory, 1);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 0);
    fake_daemon_stop(pair.daemon);
    comm_destroy(comm);
    pair_stop(&other);
}

/* The operation goes on, although nobody has its handle. */
static void test_a_handle_freed_in_a_group(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "freed", 0, 1);
    void *memory = alloc_parts(&pair, 3);
    comm_request_t *persistent = reduce(comm, memory, 1, 2, true, true);
    assert_int_equal(comm_group_begin(), COMM_OK);
    comm_request_free(reduce(comm, memory, 0, 1, true, false));
    assert_int_equal(comm_start(persistent), COMM_OK);
    comm_request_free(persistent);
    assert_int_equal(comm_group_end(), COMM_OK);
    assert_int_equal(comm_sync(comm, 0), COMM_OK);
    assert_parts(memory, 2);
    comm_destroy(comm);
    pair_stop(&pair);
}

struct waiter {
    comm_request_t *request;
    comm_result_t waited, tested, any;
    char text[ERROR_TEXT_BYTES];
};

static void *wait_elsewhere(void *context)
{
    struct waiter *waiter = context;
    size_t index;
    int done;
    waiter->waited = comm_wait(&waiter->request, NULL);
    strcpy(waiter->text, comm_last_error());
    waiter->tested = comm_test(&waiter->request, &done, NULL);
    waiter->any = comm_wait_any(&waiter->request, 1, &index, NULL);
    return NULL;
}

/* Nobody has submitted a collected operation yet. So another thread must not wait for it. */
static void test_a_collected_handle_is_not_waited_for(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "threads", 0, 1);
    void *memory = alloc_parts(&pair, 2);
    assert_int_equal(comm_group_begin(), COMM_OK);
    struct waiter waiter = {.request = reduce(comm, memory, 0, 1, true, false)};
    assert_int_equal(comm_wait(&waiter.request, NULL), COMM_INVALID_ARGUMENT);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, wait_elsewhere, &waiter), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(waiter.waited, COMM_INVALID_ARGUMENT);
    assert_int_equal(waiter.tested, COMM_INVALID_ARGUMENT);
    assert_int_equal(waiter.any, COMM_INVALID_ARGUMENT);
    assert_non_null(strstr(waiter.text, "the operation is in a group that has not ended"));
    assert_non_null(waiter.request);
    assert_int_equal(comm_group_end(), COMM_OK);
    assert_int_equal(comm_wait(&waiter.request, NULL), COMM_OK);
    assert_null(waiter.request);
    assert_parts(memory, 1);
    comm_destroy(comm);
    pair_stop(&pair);
}

struct other_thread {
    comm_t *comm;
    unsigned char bytes[BYTES];
    _Atomic bool has_waited;
};

static void *end_all_operations(void *context)
{
    struct other_thread *other = context;
    comm_result_t result =
        comm_all_reduce(other->comm, other->bytes, other->bytes, BYTES, COMM_U8, COMM_SUM, NULL);
    result = result == COMM_OK ? comm_sync(other->comm, 0) : result;
    atomic_store_explicit(&other->has_waited, result == COMM_OK, memory_order_relaxed);
    return NULL;
}

/* A thread that waits on one communicator also ends the operations of others. Nothing orders this thread's
 * call after that, so ThreadSanitizer sees if it looks at the handle without the client's lock. */
static void test_another_thread_ends_the_operation(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "own", 0, 1);
    struct other_thread other = {.comm = pair_comm(&pair, "other", 0, 1)};
    void *memory = alloc_parts(&pair, 2);
    comm_request_t *request = reduce(comm, memory, 0, 1, true, false);
    pthread_t thread;
    size_t index = 1;
    assert_int_equal(pthread_create(&thread, NULL, end_all_operations, &other), 0);
    while (!atomic_load_explicit(&other.has_waited, memory_order_relaxed)) {
        sched_yield();
    }
    assert_int_equal(comm_wait_any(&request, 1, &index, NULL), COMM_OK);
    assert_int_equal(index, 0);
    assert_null(request);
    assert_parts(memory, 1);
    assert_int_equal(pthread_join(thread, NULL), 0);
    comm_destroy(other.comm);
    comm_destroy(comm);
    pair_stop(&pair);
}

static void test_what_waits_is_refused(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    comm_t *comm = pair_comm(&pair, "waits", 0, 1);
    comm_t *split = NULL;
    comm_request_t *none[1] = {NULL};
    comm_event_t *event = NULL;
    unsigned char bytes[BYTES] = {0};
    size_t index;
    int done;
    assert_int_equal(comm_event_create(pair.client, &event), COMM_OK);
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_split(comm, 0, 0, &split), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_sync(comm, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_sync_stream(comm, 0), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_barrier(comm, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_wait(none, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_wait_all(none, 1, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_wait_any(none, 1, &index, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_test(none, &done, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_event_record_comm(event, comm), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_send_recv(comm, bytes, 1, 0, bytes, 1, 0, COMM_U8, 0, NULL), COMM_INVALID_ARGUMENT);
    assert_int_equal(comm_group_end(), COMM_OK);
    assert_int_equal(comm_group_end(), COMM_INVALID_ARGUMENT);
    comm_event_destroy(event);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* If a start fails, there is nothing to wait for. */
static void test_a_start_that_fails(void **state)
{
    (void)state;
    struct fake_script script = {.action = FAKE_CLOSE, .action_at_op = 1};
    struct pair pair = pair_start(&script);
    comm_t *comm = pair_comm(&pair, "fails", 0, 1);
    void *memory = alloc_parts(&pair, 2);
    comm_request_t *request = reduce(comm, memory, 0, 1, true, true);
    (void)reduce(comm, memory, 0, 1, false, false);
    assert_int_equal(comm_sync(comm, 0), COMM_DAEMON_LOST);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(comm_start(request), COMM_DAEMON_LOST);
    }
    assert_int_equal(comm_group_begin(), COMM_OK);
    assert_int_equal(comm_start(request), COMM_OK);
    assert_int_equal(comm_group_end(), COMM_DAEMON_LOST);
    assert_int_equal(comm_wait(&request, NULL), COMM_DAEMON_LOST);
    comm_request_free(request);
    comm_destroy(comm);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_persistent_operation_keeps_its_place),
        cmocka_unit_test(test_a_communicator_left_in_a_group),
        cmocka_unit_test(test_a_communicator_that_another_thread_leaves),
        cmocka_unit_test(test_a_client_that_another_thread_closes),
        cmocka_unit_test(test_a_thread_that_ends_in_a_group),
        cmocka_unit_test(test_a_client_closed_in_a_group),
        cmocka_unit_test(test_a_handle_freed_in_a_group),
        cmocka_unit_test(test_another_thread_ends_the_operation),
        cmocka_unit_test(test_a_collected_handle_is_not_waited_for),
        cmocka_unit_test(test_what_waits_is_refused),
        cmocka_unit_test(test_a_start_that_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
