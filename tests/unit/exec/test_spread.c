#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/budget.h"
#include "daemon/base/time.h"
#include "daemon/coll/map.h"
#include "daemon/exec/exec.h"
#include "daemon/exec/rails.h"

/* A communicator that ends on its home before a rail has read its mail. */

#define RAILS 2
#define LARGE 1000u /* ranks */

static struct exec *execs[RAILS];
static struct net *nets[RAILS]; /* null: a node alone */
static struct mailbox mailboxes[RAILS];
static struct rails *rails;

static void start(void)
{
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        assert_int_equal(exec_new(nets[rail], &execs[rail], NULL), STATUS_OK);
    }
    struct rails_options options = {
        .count = RAILS, .network_count = 1, .execs = execs, .mailboxes = mailboxes};
    assert_int_equal(rails_new(&options, &rails, NULL), STATUS_OK);
}

static void run(void)
{
    for (uint32_t turn = 0; turn < 100; turn++) {
        (void)mailbox_run(&mailboxes[0], TIME_S);
        (void)exec_run(execs[0], TIME_S);
        (void)rails_run_rail(rails, 1, TIME_S);
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

static struct exec_comm *comm_new(uint32_t size, struct budget_account *account)
{
    static const char *const names[] = {"a"};
    static const uint32_t zeros[LARGE];
    struct exec_comm *comm;
    const struct exec_comm_handler handler = {0};
    struct comm_map facts = {.comm_id = 1,
                             .ranks = {.size = size, .node_count = 1},
                             .node_of_rank = zeros,
                             .peers = zeros,
                             .node_names = names,
                             .slice_bytes = 4096,
                             .name = "test",
                             .network = coll_network_default,
                             .account = account};
    struct comm_map *map;
    assert_int_equal(comm_map_new(&facts, &map, NULL), STATUS_OK);
    assert_int_equal(exec_comm_new(execs[0], map, &handler, &comm, NULL), STATUS_OK);
    comm_map_release(map);
    return comm;
}

/* For communicators of one user. */
static void start_charged(struct budget **budget, struct budget_account **account)
{
    start();
    assert_int_equal(budget_new(NULL, budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(*budget, 1000, NULL, account, NULL), STATUS_OK);
}

static void test_the_account_outlives_what_is_on_its_way_to_a_rail(void **state)
{
    (void)state;
    struct budget *budget;
    struct budget_account *account;
    start_charged(&budget, &account);
    struct exec_comm *comm = comm_new(2, account);
    exec_comm_free(comm);
    budget_close(account); /* its last session is gone */
    assert_int_equal(accounts(budget), 1);
    run();
    assert_int_equal(accounts(budget), 0);
    budget_free(budget);
    stop();
}

static uint64_t charged(const struct budget_account *account)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[BUDGET_COMMUNICATOR_BYTES];
}

/* The map of ranks is charged once, however many rails there are. It stays charged until the last of them has
 * released it. */
static void test_the_map_of_ranks_is_charged_once(void **state)
{
    (void)state;
    struct budget *budget;
    struct budget_account *account;
    start_charged(&budget, &account);
    struct exec_comm *comm = comm_new(2, account);
    uint64_t small_bytes = charged(account);
    exec_comm_free(comm);
    assert_int_equal(charged(account), small_bytes);
    run();
    assert_int_equal(charged(account), 0);
    comm = comm_new(LARGE, account);
    uint64_t ranks = LARGE - 2;
    assert_int_equal(charged(account) - small_bytes,
                     ranks * sizeof(uint32_t) + coll_map_bytes(LARGE, 1) - coll_map_bytes(2, 1));
    exec_comm_free(comm);
    run();
    assert_int_equal(charged(account), 0);
    budget_close(account);
    budget_free(budget);
    stop();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_account_outlives_what_is_on_its_way_to_a_rail),
        cmocka_unit_test(test_the_map_of_ranks_is_charged_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
