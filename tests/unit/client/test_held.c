#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/lib/cells_internal.h"
#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* WAITS = True */

/* Operations for which the window has no place. No call waits for a place. Any thread that is in the library
 * sends them later, in order. */

#define SLOW_MS 100u        /* an operation of a commd that is slow */
#define NEVER_MS (1u << 30) /* an operation that never ends */

static struct pair start(uint32_t pending_ops_max, uint32_t op_delay_ms)
{
    struct fake_script script = {
        .rings = true, .pending_ops_max = pending_ops_max, .op_delay_ms = op_delay_ms};
    return pair_start(&script);
}

static comm_request_t *post(comm_t *comm, unsigned char *buffer, size_t bytes)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    assert_int_equal(comm_all_reduce(comm, buffer, buffer, bytes, COMM_U8, COMM_SUM, &options), COMM_OK);
    assert_non_null(request);
    return request;
}

static bool so_many_submits(const struct fake_counts *counts, uint64_t value)
{
    return counts->submits >= value;
}

static void pause_ms(unsigned ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&pause, NULL);
}

/* Collectives wait for places. A message does not wait behind them: commd gets it at once. */
static void test_a_message_overtakes(void **state)
{
    (void)state;
    enum { OPS = 20, BYTES = 300 };
    static unsigned char buffers[OPS][BYTES], message[8];
    comm_request_t *requests[OPS];
    struct pair pair = start(2, NEVER_MS);
    comm_t *comm = pair_comm(&pair, "overtaken", 0, 1);
    struct fake_script quick = {.rings = true};
    for (unsigned i = 0; i < OPS; i++) {
        fill_bytes(buffers[i], BYTES, i);
        requests[i] = post(comm, buffers[i], BYTES);
    }
    pause_ms(20);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 2);
    fake_daemon_set(pair.daemon, &quick);
    assert_int_equal(comm_send(comm, message, sizeof message, COMM_U8, 0, 1, NULL), COMM_OK);
    fake_daemon_wait(pair.daemon, so_many_submits, 3);
    pause_ms(20);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 3);
    for (unsigned i = 2; i < OPS; i++) {
        int done;
        assert_int_equal(comm_test(&requests[i], &done, NULL), COMM_OK);
        assert_false(done);
    }
    for (unsigned i = 0; i < OPS; i++) {
        comm_request_free(requests[i]);
    }
    comm_destroy(comm);
    pair_stop(&pair);
}

/* Each of them can be waited for, in any order, and has the right result. */
static void test_in_order(void **state)
{
    (void)state;
    enum { OPS = 200 };
    static unsigned char buffers[OPS][OPS + 1];
    comm_request_t *requests[OPS];
    struct pair pair = start(3, 1);
    comm_t *comm = pair_comm(&pair, "ordered", 0, 1);
    for (unsigned i = 0; i < OPS; i++) {
        fill_bytes(buffers[i], i + 1, i);
        requests[i] = post(comm, buffers[i], i + 1);
    }
    for (unsigned i = OPS; i-- > 0;) {
        assert_int_equal(comm_wait(&requests[i], NULL), COMM_OK);
        assert_reduced(buffers[i], i + 1, i);
    }
    assert_in_range(fake_daemon_counts(pair.daemon).pending_max, 1, 3);
    assert_int_equal(fake_daemon_counts(pair.daemon).refused, 0);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* The program makes no call: the feeder sends held operations to commd. */
static void test_the_feeder(void **state)
{
    (void)state;
    enum { OPS = 30 };
    static unsigned char bytes[OPS][10];
    /* The feeder lingers between the rounds; then it ends in between. */
    for (unsigned again = 0; again < 2; again++) {
        struct pair pair = start(1, 1);
        comm_t *comm = pair_comm(&pair, "fed", 0, 1);
        for (unsigned round = 1; round <= 2; round++) {
            for (unsigned i = 0; i < OPS; i++) {
                comm_request_free(post(comm, bytes[i], sizeof bytes[i]));
            }
            fake_daemon_wait(pair.daemon, so_many_submits, OPS * round);
            pause_ms(again == 1 ? HELD_LINGER_NS / 1000000u + 200 : 0);
        }
        assert_int_equal(comm_sync(comm, 0), COMM_OK);
        assert_int_equal(fake_daemon_counts(pair.daemon).pending_max, 1);
        comm_destroy(comm);
        pair_stop(&pair);
    }
}

/* commd has no place for the memory through which a held operation is copied. The feeder tries again. */
static void test_no_memory_for_a_while(void **state)
{
    (void)state;
    static unsigned char small[100], large[300000];
    struct pair pair = start(1, SLOW_MS);
    comm_t *comm = pair_comm(&pair, "staged", 0, 1);
    struct fake_script full = {.rings = true, .memories_max = 1};
    struct fake_script free_again = {.rings = true};
    fill_bytes(large, sizeof large, 7);
    comm_request_t *first = post(comm, small, sizeof small);
    comm_request_t *second = post(comm, large, sizeof large);
    fake_daemon_set(pair.daemon, &full);
    assert_int_equal(comm_wait(&first, NULL), COMM_OK);
    pause_ms(3 * HELD_RETRY_NS / 1000000u);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, 1);
    fake_daemon_set(pair.daemon, &free_again);
    assert_int_equal(comm_wait(&second, NULL), COMM_OK);
    assert_reduced(large, sizeof large, 7);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* commd has no place within the operation's time either. The communicator fails, and says why. */
static void test_no_memory_at_all(void **state)
{
    (void)state;
    static unsigned char small[100], large[300000];
    struct pair pair = start(1, 1);
    struct fake_script full = {.rings = true, .memories_max = 1, .op_delay_ms = SLOW_MS};
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    comm_t *comm;
    options.op_timeout_ms = 300;
    assert_int_equal(comm_init(pair.client, "starved", 0, 1, COMM_DEVICE_HOST, &options, &comm), COMM_OK);
    fake_daemon_set(pair.daemon, &full);
    comm_request_t *first = post(comm, small, sizeof small);
    comm_request_t *second = post(comm, large, sizeof large);
    comm_request_t *third = post(comm, small, sizeof small);
    assert_int_equal(comm_wait(&first, NULL), COMM_OK);
    assert_int_equal(comm_wait(&second, NULL), COMM_LIMIT);
    assert_error_says("comm_all_reduce on \"starved\": its buffers could not be staged for 300 ms");
    assert_error_says("too many memories");
    assert_int_equal(comm_wait(&third, NULL), COMM_LIMIT);
    assert_int_equal(comm_sync(comm, 0), COMM_LIMIT);
    comm_destroy(comm);
    pair_stop(&pair);
}

/* commd ends, or the program leaves: whoever waits is told. */
static void test_the_end(void **state)
{
    (void)state;
    enum { OPS = 50 };
    static unsigned char bytes[OPS][1000];
    for (int leaves = 0; leaves < 2; leaves++) {
        comm_request_t *requests[OPS];
        struct pair pair = start(4, NEVER_MS);
        comm_t *comm = pair_comm(&pair, "ended", 0, 1);
        comm_event_t *event;
        assert_int_equal(comm_event_create(pair.client, &event), COMM_OK);
        for (unsigned i = 0; i < OPS; i++) {
            requests[i] = post(comm, bytes[i], sizeof bytes[i]);
        }
        assert_int_equal(comm_event_record_comm(event, comm), COMM_OK);
        if (leaves != 0) {
            for (unsigned i = 0; i < OPS; i++) {
                comm_request_free(requests[i]);
            }
            comm_destroy(comm);
            assert_int_equal(comm_event_wait(event, NULL), COMM_OK);
        } else {
            fake_daemon_stop(pair.daemon);
            for (unsigned i = OPS; i-- > 0;) {
                assert_int_equal(comm_wait(&requests[i], NULL), COMM_DAEMON_LOST);
            }
            assert_int_equal(comm_sync(comm, 0), COMM_DAEMON_LOST);
        }
        comm_event_destroy(event);
        comm_client_close(pair.client);
        if (leaves != 0) {
            fake_daemon_stop(pair.daemon);
        }
    }
}

/* The most operations are held: the next one alone is refused. The others go on, and later there is room. */
static void test_the_most(void **state)
{
    (void)state;
    enum { MOST = 10 };
    static unsigned char bytes[2 + MOST][16];
    struct pair pair = start(1, SLOW_MS);
    comm_t *comm = pair_comm(&pair, "most", 0, 1);
    pair.client->feeder.max = MOST;
    pair.client->feeder.many = MOST / 2;
    for (unsigned i = 0; i < MOST + 1; i++) {
        comm_request_free(post(comm, bytes[i], sizeof bytes[i]));
    }
    assert_int_equal(comm_barrier(comm, NULL), COMM_LIMIT);
    assert_error_says("\"most\": 10 submitted operations wait until commd has a place for them");
    fake_daemon_wait(pair.daemon, so_many_submits, 4);
    assert_int_equal(comm_barrier(comm, NULL), COMM_OK);
    assert_int_equal(fake_daemon_counts(pair.daemon).submits, MOST + 2);
    comm_destroy(comm);
    pair_stop(&pair);
}

static void *take_the_lock(void *argument)
{
    struct comm_client *client = argument;
    pthread_mutex_lock(&client->lock);
    client->feeder.max = 1;
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* After commd has ended, a thread that waits for an operation which the feeder stages leaves the lock to the
 * feeder. */
static void test_the_lock_after_the_end(void **state)
{
    (void)state;
    enum { LOOKS = 100 };
    struct pair pair = start(1, SLOW_MS);
    struct comm_client *client = pair.client;
    pthread_t feeder;
    pthread_mutex_lock(&client->lock);
    client->feeder.max = 0;
    assert_int_equal(pthread_create(&feeder, NULL, take_the_lock, client), 0);
    client_lose(client, COMM_DAEMON_LOST, "the end");
    for (unsigned i = 0; i < LOOKS && client->feeder.max == 0; i++) {
        client_progress(client, UINT64_MAX);
    }
    assert_int_equal(client->feeder.max, 1);
    pthread_mutex_unlock(&client->lock);
    pthread_join(feeder, NULL);
    pair_stop(&pair);
}

static void *publish(void *argument)
{
    struct comm_client *client = argument;
    pthread_mutex_lock(&client->lock);
    client->feeder.at = NULL;
    pthread_cond_broadcast(&client->changed);
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

/* Another thread publishes the held operation in cells. commd says nothing of that, so who waited at commd's
 * ring learnt it after 400 ms, and took part no sooner. */
static void test_a_waiter_sees_what_is_published(void **state)
{
    (void)state;
    struct pair pair = start(1, NEVER_MS);
    struct comm_client *client = pair.client;
    comm_t *comm = pair_comm(&pair, "published", 0, 1);
    struct client_cells cells = {.rank_count = 2};
    pthread_t feeder;
    pthread_mutex_lock(&client->lock);
    assert_false(held_await_cells(comm, UINT64_MAX)); /* no cells */
    comm->cells = &cells;
    assert_false(held_await_cells(comm, UINT64_MAX)); /* nothing is held */
    client->feeder.at = comm;
    assert_int_equal(pthread_create(&feeder, NULL, publish, client), 0);
    for (unsigned looks = 0; client->feeder.at != NULL && looks < 10000; looks++) {
        assert_true(held_await_cells(comm, UINT64_MAX));
    }
    assert_null(client->feeder.at);
    client->feeder.at = comm;
    comm->collectives_in_flight = 1; /* commd will say when it has ended */
    assert_false(held_await_cells(comm, UINT64_MAX));
    comm->collectives_in_flight = 0;
    cells.count = 1; /* cells_wait waits for it */
    assert_false(held_await_cells(comm, UINT64_MAX));
    client->feeder.at = NULL;
    comm->cells = NULL;
    pthread_mutex_unlock(&client->lock);
    pthread_join(feeder, NULL);
    comm_destroy(comm);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_waiter_sees_what_is_published),
        cmocka_unit_test(test_the_lock_after_the_end),
        cmocka_unit_test(test_a_message_overtakes),
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_the_feeder),
        cmocka_unit_test(test_no_memory_for_a_while),
        cmocka_unit_test(test_no_memory_at_all),
        cmocka_unit_test(test_the_end),
        cmocka_unit_test(test_the_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
