#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* A whole client with rings. The test plays the other side, which may also stop reading. */

static bool one_waits(const struct fake_counts *counts, uint64_t value)
{
    (void)value;
    return counts->waits;
}

static bool so_many_submits(const struct fake_counts *counts, uint64_t value)
{
    return counts->submits >= value;
}

static bool nobody_is_there(const struct fake_counts *counts, uint64_t value)
{
    (void)value;
    return counts->sessions == 0;
}

static struct pair start(const struct fake_script *script)
{
    struct fake_script with_rings = script != NULL ? *script : (struct fake_script){0};
    with_rings.rings = true;
    struct pair pair = pair_start(&with_rings);
    assert_non_null(pair.client->rings);
    return pair;
}

static void test_who_has_rings(void **state)
{
    (void)state;
    struct fake_script script = {.rings = true};
    static const char *const off[] = {"0", "off", "no", "false"};
    struct pair pair;
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(setenv("COMMD_RINGS", off[i], 1), 0);
        pair = pair_start(&script);
        assert_false(fake_daemon_counts(pair.daemon).wants_rings);
        assert_null(pair.client->rings);
        pair_stop(&pair);
    }
    assert_int_equal(setenv("COMMD_RINGS", "of", 1), 0);
    pair.daemon = fake_daemon_start(&script);
    assert_int_equal(pair_open(pair.daemon, 0, &pair.client), COMM_INVALID_ARGUMENT);
    assert_error_says("COMMD_RINGS=of: expected on or off");
    fake_daemon_stop(pair.daemon);
    assert_int_equal(unsetenv("COMMD_RINGS"), 0);
    pair = pair_start(NULL); /* a commd that has no rings */
    assert_true(fake_daemon_counts(pair.daemon).wants_rings);
    assert_null(pair.client->rings);
    pair_stop(&pair);
    pair = start(NULL);
    pair_stop(&pair);
}

/* Submits `count` all-reduces of 8 bytes each, without waiting, then waits for all, and checks them. */
struct submitter {
    comm_t *comm;
    void *memory;
    unsigned count;
    comm_result_t result;
};

static void *submit(void *context)
{
    struct submitter *submitter = context;
    size_t bytes = (size_t)submitter->count * 8;
    unsigned char *input = submitter->memory, *output = input + bytes;
    memset(output, 0, bytes);
    fill_bytes(input, bytes, submitter->count);
    submitter->result = COMM_OK;
    for (size_t i = 0; i < bytes && submitter->result == COMM_OK; i += 8) {
        submitter->result =
            comm_all_reduce(submitter->comm, input + i, output + i, 8, COMM_U8, COMM_SUM, NULL);
    }
    if (submitter->result == COMM_OK) {
        submitter->result = comm_sync(submitter->comm, 0);
    }
    if (submitter->result == COMM_OK) {
        assert_reduced(output, bytes, submitter->count);
    }
    return NULL;
}

/* Uses memory that is registered with commd: staging would put requests on the socket in between. */
static struct submitter submitter_make(const struct pair *pair, unsigned number, unsigned count)
{
    struct submitter submitter = {.count = count};
    char name[16];
    snprintf(name, sizeof name, "submits-%u", number);
    submitter.comm = pair_comm(pair, name, 0, 1);
    assert_int_equal(comm_mem_alloc(pair->client, (size_t)count * 16, COMM_DEVICE_HOST, &submitter.memory),
                     COMM_OK);
    return submitter;
}

/* commd stops reading. Submission waits for room and goes on when there is some. No completion is lost. */
static void test_full_and_going_on(void **state)
{
    (void)state;
    struct pair pair = start(NULL);
    struct submitter submitters[4];
    pthread_t threads[4];
    for (unsigned i = 0; i < 4; i++) { /* several: one alone may not have so many in flight */
        submitters[i] = submitter_make(&pair, i, 1000);
    }
    for (unsigned again = 0; again < 3; again++) {
        struct fake_script script = {.rings = true, .action = FAKE_STOP_READING, .action_at_op = 100};
        uint64_t before = fake_daemon_counts(pair.daemon).submits;
        fake_daemon_set(pair.daemon, &script);
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, submit, &submitters[i]), 0);
        }
        fake_daemon_wait(pair.daemon, one_waits, 0);
        assert_int_equal(fake_daemon_counts(pair.daemon).submits - before, 100);
        fake_daemon_go_on(pair.daemon);
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(submitters[i].result, COMM_OK);
        }
        assert_int_equal(fake_daemon_counts(pair.daemon).submits - before, 4000);
    }
    assert_int_equal(fake_daemon_counts(pair.daemon).refused, 0);
    pair_stop(&pair);
}

/* Each thread has its own communicator. It submits one operation after the other, or as many at once as may
 * be pending. */
static void test_many_threads(void **state)
{
    (void)state;
    enum { THREADS = 8 };
    static const uint32_t pending_maxima[] = {1, 3, 1024};
    for (size_t k = 0; k < 3; k++) {
        struct fake_script script = {.pending_ops_max = pending_maxima[k]};
        struct pair pair = start(&script);
        struct submitter submitters[THREADS];
        pthread_t threads[THREADS];
        for (unsigned i = 0; i < THREADS; i++) {
            submitters[i] = submitter_make(&pair, i, 500 + i);
            assert_int_equal(pthread_create(&threads[i], NULL, submit, &submitters[i]), 0);
        }
        for (unsigned i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(submitters[i].result, COMM_OK);
        }
        assert_int_equal(fake_daemon_counts(pair.daemon).refused, 0);
        pair_stop(&pair);
    }
}

/* The connection ends while threads wait, at the ring and for each other. */
static void test_ended_while_threads_wait(void **state)
{
    (void)state;
    enum { THREADS = 4 };
    for (int stops = 0; stops < 2; stops++) {
        struct pair pair = start(NULL);
        struct submitter submitters[THREADS];
        pthread_t threads[THREADS];
        struct fake_script script = {.rings = true, .op_delay_ms = 1u << 30};
        if (stops) { /* others wait for room */
            script.action = FAKE_STOP_READING;
            script.action_at_op = 2;
        }
        for (unsigned i = 0; i < THREADS; i++) {
            submitters[i] = submitter_make(&pair, i, stops ? 1000 : 1 + i);
        }
        fake_daemon_set(pair.daemon, &script);
        for (unsigned i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, submit, &submitters[i]), 0);
        }
        fake_daemon_wait(pair.daemon, stops ? one_waits : so_many_submits, 10);
        fake_daemon_stop(pair.daemon);
        for (unsigned i = 0; i < THREADS; i++) {
            assert_int_equal(pthread_join(threads[i], NULL), 0);
            assert_int_equal(submitters[i].result, COMM_DAEMON_LOST);
        }
        comm_client_close(pair.client);
    }
}

/* commd has ended before the client rings. The client gets an error and no SIGPIPE, whatever the program does
 * with that signal. */
static void test_ended_before_a_call(void **state)
{
    (void)state;
    for (int blocked = 0; blocked < 2; blocked++) {
        struct pair pair = start(NULL);
        comm_t *comm = pair_comm(&pair, "gone", 0, 1);
        sigset_t signals, before, after, pending;
        void *byte;
        assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &byte), COMM_OK);
        sigemptyset(&signals);
        sigaddset(&signals, SIGPIPE);
        assert_int_equal(pthread_sigmask(blocked ? SIG_BLOCK : SIG_UNBLOCK, &signals, NULL), 0);
        assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &before), 0);
        fake_daemon_stop(pair.daemon);
        atomic_store(&pair.client->rings->out.shared->consumer_sleeps, 1);
        comm_result_t result = comm_all_reduce(comm, byte, byte, 1, COMM_U8, COMM_SUM, NULL);
        assert_true(result == COMM_OK || result == COMM_DAEMON_LOST);
        /* The client rang. */
        assert_int_equal(atomic_load(&pair.client->rings->out.shared->consumer_sleeps), 0);
        assert_int_equal(comm_sync(comm, 0), COMM_DAEMON_LOST);
        assert_int_equal(pthread_sigmask(SIG_BLOCK, NULL, &after), 0);
        assert_int_equal(sigismember(&after, SIGPIPE), sigismember(&before, SIGPIPE));
        assert_int_equal(sigpending(&pending), 0);
        assert_int_equal(sigismember(&pending, SIGPIPE), 0);
        comm_client_close(pair.client);
        assert_int_equal(pthread_sigmask(SIG_UNBLOCK, &signals, NULL), 0);
    }
}

/* The client closes with operations in flight. Nobody hears of them any more, and everything is
 * given back. */
static void test_closed_with_operations_in_flight(void **state)
{
    (void)state;
    struct pair pair = start(NULL);
    comm_t *comm = pair_comm(&pair, "closed", 0, 1);
    struct fake_script script = {.rings = true, .op_delay_ms = 1u << 30};
    static unsigned char bytes[64];
    fake_daemon_set(pair.daemon, &script);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(comm_all_reduce(comm, bytes, bytes, sizeof bytes, COMM_U8, COMM_SUM, NULL), COMM_OK);
    }
    comm_client_close(pair.client);
    fake_daemon_wait(pair.daemon, nobody_is_there, 0);
    assert_int_equal(fake_daemon_counts(pair.daemon).memories, 0);
    fake_daemon_stop(pair.daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_who_has_rings),       cmocka_unit_test(test_full_and_going_on),
        cmocka_unit_test(test_many_threads),        cmocka_unit_test(test_ended_while_threads_wait),
        cmocka_unit_test(test_ended_before_a_call), cmocka_unit_test(test_closed_with_operations_in_flight),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
