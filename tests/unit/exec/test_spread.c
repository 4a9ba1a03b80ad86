#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/rails.h"

/* A communicator that ends on its home before a rail has read its mail. */

#define RAILS 2

static struct exec *execs[RAILS];
static struct net *nets[RAILS]; /* null: a node alone */
static struct mailbox mailboxes[RAILS];
static struct rails *rails;

static void no_wake(void *context)
{
    (void)context;
}

static void start(void)
{
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        assert_int_equal(exec_new(nets[rail], no_wake, NULL, &execs[rail], NULL), STATUS_OK);
    }
    struct rails_options options = {.count = RAILS,
                                    .network_count = 1,
                                    .execs = execs,
                                    .nets = nets,
                                    .mailboxes = mailboxes,
                                    .node_name = "a",
                                    .reconnect_min_ns = TIME_S,
                                    .reconnect_max_ns = TIME_S};
    assert_int_equal(rails_new(&options, &rails, NULL), STATUS_OK);
}

static void run(void)
{
    for (uint32_t turn = 0; turn < 100; turn++) {
        (void)mailbox_run(&mailboxes[0], TIME_S);
        (void)exec_run(execs[0], TIME_S);
        (void)rails_run_rail(execs[1], &mailboxes[1], TIME_S);
    }
}

static void stop(void)
{
    rails_free(rails, TIME_S);
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        exec_free(execs[rail]);
    }
}

static bool count_account(void *context, uint64_t number, const struct budget_info *info)
{
    (void)number;
    (void)info;
    ++*(uint32_t *)context;
    return true;
}

static uint32_t accounts(struct budget *budget)
{
    uint32_t count = 0;
    budget_visit_accounts(budget, 0, count_account, &count);
    return count;
}

static void test_the_account_outlives_what_is_on_its_way_to_a_rail(void **state)
{
    (void)state;
    static const char *const names[] = {"a"};
    static const uint32_t zeros[2];
    struct budget *budget;
    struct budget_account *account;
    struct exec_comm *comm;
    start();
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, NULL, &account, NULL), STATUS_OK);
    struct exec_comm_options options = {.comm_id = 1,
                                        .generation = 1,
                                        .size = 2,
                                        .node_of_rank = zeros,
                                        .node_count = 1,
                                        .peers = zeros,
                                        .node_names = names,
                                        .slice_bytes = 4096,
                                        .name = "test",
                                        .network = coll_network_default,
                                        .account = account};
    assert_int_equal(exec_comm_new(execs[0], &options, &comm, NULL), STATUS_OK);
    exec_comm_free(comm);
    budget_close(account); /* its last session is gone */
    assert_int_equal(accounts(budget), 1);
    run();
    assert_int_equal(accounts(budget), 0);
    budget_free(budget);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_account_outlives_what_is_on_its_way_to_a_rail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
