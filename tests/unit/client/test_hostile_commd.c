#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* A whole client on rings, to which commd writes anything. */

static bool so_many_abuses(const struct fake_counts *counts, uint64_t value)
{
    return counts->abuses >= value;
}

static void test_hostile_commd(void **state)
{
    (void)state;
    for (unsigned abuse = 0; abuse < FAKE_ABUSE_COUNT; abuse++) {
        for (uint64_t at_op = 1; at_op <= 300; at_op += 299) {
            struct pair pair = pair_start(&(struct fake_script){.rings = true});
            comm_t *comm = pair_comm(&pair, "hostile", 0, 1);
            struct fake_script script = {.rings = true,
                                         .action = FAKE_ABUSE_RINGS,
                                         .action_at_op = at_op,
                                         .abuse = (enum fake_abuse)abuse};
            comm_result_t result = COMM_OK;
            void *byte;
            assert_int_equal(comm_mem_alloc(pair.client, 1, COMM_DEVICE_HOST, &byte), COMM_OK);
            fake_daemon_set(pair.daemon, &script);
            for (uint64_t i = 0; i < 400 && result == COMM_OK; i++) {
                /* The client looks at the head only when it puts something. So the operation that spoils it
                 * gets no answer. */
                bool last = abuse == FAKE_ABUSE_HEAD && i + 1 == at_op;
                result = comm_all_reduce(comm, byte, byte, 1, COMM_U8, COMM_SUM, NULL);
                if (last) {
                    fake_daemon_wait(pair.daemon, so_many_abuses, 1);
                }
                if (result == COMM_OK && !last) {
                    result = comm_sync(comm, 0);
                }
            }
            if (result != COMM_PROTOCOL) {
                fail_msg("abuse %u at %u: %s", abuse, (unsigned)at_op, comm_result_text(result));
            }
            assert_error_says("commd's ring holds invalid data");
            assert_int_equal(comm_sync(comm, 0), COMM_PROTOCOL); /* and stays so */
            pair_stop(&pair);
        }
    }
}

/* A packet that is no event, or an event of something that does not exist, is treated on rings as on the
 * socket. */
static void test_wrong_events(void **state)
{
    (void)state;
    static const struct {
        enum fake_action action;
        const char *text;
    } wrongs[] = {
        {FAKE_GARBAGE, "that are no event"},
        {FAKE_EMPTY_EVENT, "an event of an unknown kind"},
        {FAKE_OTHER_RECORD, "a completion with a wrong version"},
        {FAKE_OTHER_TICKET, "which is not in flight"},
        {FAKE_OTHER_HANDLE, "which never existed"},
        {FAKE_OTHER_REQUEST, "which was not made"},
        {FAKE_OVERSIZE, "at most"},
    };
    for (size_t i = 0; i < sizeof wrongs / sizeof wrongs[0]; i++) {
        struct pair pair = pair_start(&(struct fake_script){.rings = true});
        comm_t *comm = pair_comm(&pair, "wrong", 0, 1);
        struct fake_script script = {.rings = true, .action = wrongs[i].action, .action_at_op = 1};
        unsigned char byte = 1;
        fake_daemon_set(pair.daemon, &script);
        assert_int_equal(comm_all_reduce(comm, &byte, &byte, 1, COMM_U8, COMM_SUM, NULL), COMM_OK);
        assert_int_equal(comm_sync(comm, 0), COMM_PROTOCOL);
        assert_non_null(strstr(comm_last_error(), wrongs[i].text));
        pair_stop(&pair);
    }
}

/* It completes an operation that the client has not sent yet. */
static void test_completion_of_a_held_operation(void **state)
{
    (void)state;
    const struct fake_script script = {.rings = true,
                                       .pending_ops_max = 1,
                                       .op_delay_ms = 50,
                                       .action = FAKE_OTHER_TICKET, /* 77 after the second one's */
                                       .action_at_op = 2};
    struct pair pair = pair_start(&script);
    comm_t *comm = pair_comm(&pair, "held", 0, 1);
    unsigned char bytes[100] = {0};
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(comm_all_reduce(comm, &bytes[i], &bytes[i], 1, COMM_U8, COMM_SUM, NULL), COMM_OK);
    }
    assert_int_equal(comm_sync(comm, 0), COMM_PROTOCOL);
    assert_error_says("which is not in flight");
    pair_stop(&pair);
}

/* commd uses the rings from its answer on. So a client that cannot use them has no connection. */
static void test_rings_that_are_not_sealed(void **state)
{
    (void)state;
    const struct fake_script script = {.rings = true, .rings_not_sealed = true};
    struct fake_daemon *daemon = fake_daemon_start(&script);
    comm_client_t *client = NULL;
    assert_int_equal(pair_open(daemon, 0, &client), COMM_PROTOCOL);
    assert_error_says("memory that is not sealed");
    assert_null(client);
    fake_daemon_stop(daemon);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hostile_commd),
        cmocka_unit_test(test_wrong_events),
        cmocka_unit_test(test_completion_of_a_held_operation),
        cmocka_unit_test(test_rings_that_are_not_sealed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
