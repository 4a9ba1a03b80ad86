#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coll/comm_map.h"
#include "daemon/coll/overrides.h"

/* The map of a communicator that exec and p2p share: what it copies, and what it charges. */

#define RANKS 5
#define NODES 2

static uint64_t used(const struct budget_account *account)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[BUDGET_COMMUNICATOR_BYTES];
}

/* The caller's data may change and go; the map's stay. */
static void test_copies_all(void **state)
{
    (void)state;
    uint32_t node_of_rank[RANKS] = {0, 1, 1, 0, 1}, peers[NODES] = {7, 9};
    char name[] = "mine", first[] = "a", second[] = "bb";
    const char *names[NODES] = {first, second};
    struct coll_overrides overrides;
    struct error error;
    assert_int_equal(coll_overrides_parse("all_reduce=ring", &overrides, &error), STATUS_OK);
    const struct coll_overrides same = overrides;
    const struct comm_map facts = {.comm_id = 42,
                                   .owner_uid = 1000,
                                   .name = name,
                                   .ranks = {.size = RANKS, .node_count = NODES, .node_index = 1},
                                   .node_of_rank = node_of_rank,
                                   .peers = peers,
                                   .node_names = names,
                                   .slice_bytes = 4096,
                                   .rail_count = 3,
                                   .network = coll_network_default,
                                   .overrides = &overrides};
    struct comm_map *map;
    assert_int_equal(comm_map_new(&facts, &map, &error), STATUS_OK);
    memset(node_of_rank, 0xff, sizeof node_of_rank);
    memset(peers, 0xff, sizeof peers);
    memset(&overrides, 0xff, sizeof overrides);
    name[0] = first[0] = second[0] = '?';
    names[0] = names[1] = NULL;
    assert_int_equal(map->comm_id, 42);
    assert_int_equal(map->owner_uid, 1000);
    assert_string_equal(map->name, "mine");
    assert_string_equal(map->node_names[0], "a");
    assert_string_equal(map->node_names[1], "bb");
    assert_int_equal(map->peers[0], 7);
    assert_int_equal(map->peers[1], 9);
    assert_int_equal(map->node_of_rank[3], 0);
    assert_int_equal(map->node_of_rank[4], 1);
    assert_int_equal(map->slice_bytes, 4096);
    assert_int_equal(map->rail_count, 3);
    assert_memory_equal(map->overrides, &same, sizeof same);
    assert_int_equal(map->ranks.local_count, 3);
    assert_int_equal(coll_map_local_rank(&map->ranks, 2), 4);
    assert_int_equal(map->ranks.local_of_rank[0], UINT32_MAX);
    comm_map_release(map);
    comm_map_release(NULL);
}

/* The charge goes back with the last reference, whoever has made which part of it. */
static void test_charges_until_the_last_reference(void **state)
{
    (void)state;
    static const uint32_t zeros[RANKS];
    static const char *const names[1] = {"a"};
    struct budget *budget;
    struct budget_account *account;
    struct comm_map *map = NULL;
    struct error error;
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, NULL, &account, NULL), STATUS_OK);
    const struct comm_map facts = {.name = "charged",
                                   .ranks = {.size = RANKS, .node_count = 1},
                                   .node_of_rank = zeros,
                                   .peers = zeros,
                                   .node_names = names,
                                   .account = account};
    assert_int_equal(comm_map_new(&facts, &map, &error), STATUS_OK);
    uint64_t own = used(account);
    assert_in_range(own, sizeof *map, 2 * sizeof *map);
    struct comm_map *again = comm_map_ref(map);
    assert_int_equal(comm_map_charge(again, 1000, &error), STATUS_OK);
    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, own + 1500);
    assert_int_equal(comm_map_charge(map, 1000, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "communicator \"charged\""));
    comm_map_release(map);
    assert_int_equal(used(account), own + 1000);
    comm_map_release(again);
    assert_int_equal(used(account), 0);
    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, own - 1);
    assert_int_equal(comm_map_new(&facts, &map, &error), STATUS_LIMIT);
    assert_int_equal(used(account), 0);
    budget_close(account);
    budget_free(budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_all),
        cmocka_unit_test(test_charges_until_the_last_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
