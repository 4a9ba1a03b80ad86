#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/mesh/rail_links.h"
#include "tests/network/mesh_node.h"
#include "tests/network/network.h"

/* Links of further rails, between nodes "a" and "b". Each node knows the other one as its node 0. */

#define RAILS 3

struct end {
    char name[2];
    struct net *nets[RAILS];
    struct mesh *mesh;
    struct mailbox mailboxes[RAILS];
    unsigned ups, losses, streams_losses;
    struct error cause; /* of the last loss */
};

static struct network *networks[RAILS];
static struct end ends[2];
static uint64_t now_ns;

static const struct network_conditions calm = {.delay_ns = 50 * TIME_US};

static void on_rail_up(void *context)
{
    ((struct end *)context)->ups++;
}

static void on_rail_lost(void *context, uint32_t node, uint32_t rail, const struct error *cause,
                         uint64_t at_ns)
{
    struct end *end = context;
    (void)at_ns;
    assert_int_equal(node, 0);
    assert_in_range(rail, 1, RAILS - 1);
    assert_true(end->streams_losses > end->losses); /* the rail's thread was told before */
    end->losses++;
    end->cause = *cause;
}

static void on_streams_lost(void *context, uint32_t node, uint32_t rail)
{
    struct end *end = context;
    assert_int_equal(node, 0);
    assert_in_range(rail, 1, RAILS - 1);
    end->streams_losses++;
}

static void run(uint64_t span_ns)
{
    for (uint64_t until_ns = now_ns + span_ns; now_ns < until_ns;) {
        now_ns += 100 * TIME_US;
        for (uint32_t rail = 0; rail < RAILS; rail++) {
            network_advance(networks[rail], now_ns);
        }
        for (unsigned i = 0; i < 2; i++) {
            mesh_tick(ends[i].mesh, now_ns);
            for (uint32_t rail = 0; rail < RAILS; rail++) {
                (void)mailbox_run(&ends[i].mailboxes[rail], now_ns);
            }
            for (uint32_t rail = 1; rail < RAILS; rail++) {
                mesh_rail_run(ends[i].mesh, rail, now_ns);
            }
        }
    }
}

static int start(void **state)
{
    struct error error;
    (void)state;
    now_ns = 0;
    memset(ends, 0, sizeof ends);
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        networks[rail] = network_new_pipes(rail + 1, &calm);
    }
    for (unsigned i = 0; i < 2; i++) {
        struct end *end = &ends[i];
        mesh_node_new(networks[0], i, i + 1, now_ns, NULL, end->name, &end->nets[0], &end->mesh);
        for (uint32_t rail = 1; rail < RAILS; rail++) {
            end->nets[rail] = network_add(networks[rail], end->name);
        }
        struct mesh_rails_options options = {.count = RAILS,
                                             .nets = end->nets,
                                             .mailboxes = end->mailboxes,
                                             .handler = {end, on_rail_up, on_rail_lost, on_streams_lost}};
        assert_int_equal(mesh_set_rails(end->mesh, &options, &error), STATUS_OK);
        assert_int_equal(mesh_rail_count(end->mesh), RAILS);
        mesh_node_add_others(end->mesh, i, 2);
    }
    return 0;
}

static int stop(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++) {
        mesh_end_rails(ends[i].mesh);
        for (uint32_t rail = 0; rail < RAILS; rail++) {
            (void)mailbox_run(&ends[i].mailboxes[rail], now_ns);
        }
        mesh_free(ends[i].mesh);
        for (uint32_t rail = 0; rail < RAILS; rail++) {
            net_free(ends[i].nets[rail]);
        }
    }
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        network_free(networks[rail]);
    }
    return 0;
}

static uint32_t rails_up(unsigned end)
{
    struct mesh_rails_traffic traffic;
    mesh_rails_traffic(ends[end].mesh, 0, &traffic);
    return traffic.connected;
}

/* The node with the lower name dials, once it needs the link. The other one has the link, too. */
static void test_the_lower_name_dials_what_it_needs(void **state)
{
    (void)state;
    struct mesh_rails_traffic traffic;
    run(TIME_S);
    assert_true(mesh_node_is_up(ends[0].mesh, 0));
    assert_int_equal(ends[0].ups + ends[1].ups, 0);
    mesh_need_rails(ends[1].mesh, 0, RAILS);
    run(TIME_S);
    assert_int_equal(ends[0].ups + ends[1].ups, 0);
    mesh_rails_traffic(ends[1].mesh, 0, &traffic);
    assert_int_equal(traffic.needed, RAILS - 1);
    assert_int_equal(traffic.connected, 0);
    assert_string_equal(traffic.missing, "rail 1 is not connected");
    assert_string_equal(mesh_rail_missing(ends[1].mesh, 0, 1), "");
    mesh_need_rails(ends[0].mesh, 0, 2); /* rail 1 alone */
    run(TIME_S);
    assert_int_equal(ends[0].ups, 1);
    assert_int_equal(ends[1].ups, 1);
    assert_null(mesh_rail_missing(ends[0].mesh, 0, 1));
    assert_non_null(mesh_rail_missing(ends[0].mesh, 0, 2));
    mesh_unneed_rails(ends[0].mesh, 0, 2);
    mesh_unneed_rails(ends[1].mesh, 0, RAILS);
    mesh_rails_traffic(ends[1].mesh, 0, &traffic);
    assert_int_equal(traffic.needed, 0);
    assert_string_equal(traffic.missing, "");
}

static void need_all(void)
{
    run(TIME_S);
    for (unsigned i = 0; i < 2; i++) {
        mesh_need_rails(ends[i].mesh, 0, RAILS);
    }
    run(TIME_S);
    assert_int_equal(rails_up(0), RAILS - 1);
    assert_int_equal(rails_up(1), RAILS - 1);
}

/* A lost link is dialled again. Its numbers go on, and those of other links do not change. */
static void test_a_lost_link_is_dialled_again(void **state)
{
    (void)state;
    struct error cause;
    struct mesh_rail_statistics before, after;
    need_all();
    mesh_rail_statistics(ends[0].mesh, 0, 2, &before);
    assert_true(before.net.up);
    error_set(&cause, STATUS_NODE_LOST, "cut by the test");
    net_disconnect(ends[0].nets[2], 0, &cause);
    run(10 * TIME_MS);
    for (unsigned i = 0; i < 2; i++) {
        assert_int_equal(ends[i].losses, 1);
        assert_non_null(strstr(ends[i].cause.text, "cut by the test"));
        assert_int_equal(rails_up(i), RAILS - 2);
    }
    assert_non_null(strstr(mesh_rail_missing(ends[0].mesh, 0, 2), "cut by the test"));
    run(TIME_S);
    assert_int_equal(rails_up(0), RAILS - 1);
    assert_int_equal(rails_up(1), RAILS - 1);
    mesh_rail_statistics(ends[0].mesh, 0, 2, &after);
    assert_true(after.net.up);
    assert_true(after.net.sent_packets >= before.net.sent_packets);
    assert_true(mesh_node_is_up(ends[0].mesh, 0));
}

/* An attempt that fails is made again, later and later. */
static void test_attempts_back_off(void **state)
{
    (void)state;
    network_cut(networks[1], "a", "b", true);
    run(TIME_S);
    mesh_need_rails(ends[0].mesh, 0, 2);
    mesh_need_rails(ends[1].mesh, 0, 2);
    run(20 * TIME_S);
    assert_int_equal(rails_up(0), 0);
    assert_true(strlen(mesh_rail_missing(ends[0].mesh, 0, 1)) > 0);
    assert_int_equal(ends[0].losses, 0);
    network_cut(networks[1], "a", "b", false);
    run(11 * TIME_S); /* an attempt may have begun before */
    assert_int_equal(rails_up(0), 1);
}

/* A node that is lost is lost on all rails. No rail gets a link to it before it is up again, whoever dials.
 */
static void test_a_lost_node_has_no_links(void **state)
{
    (void)state;
    struct error error;
    need_all();
    mesh_violation(ends[0].mesh, 0, "what no node sends");
    run(100 * TIME_MS);
    assert_false(mesh_node_is_up(ends[0].mesh, 0));
    assert_int_equal(ends[0].losses, RAILS - 1);
    assert_non_null(strstr(ends[0].cause.text, "node b lost: "));
    assert_int_equal(rails_up(0), 0);
    assert_int_equal(net_connect(ends[1].nets[1], 0, &error), STATUS_OK);
    run(100 * TIME_MS);
    assert_int_equal(rails_up(0), 0);
    run(3 * TIME_S); /* the hold-off ends */
    assert_true(mesh_node_is_up(ends[0].mesh, 0));
    assert_int_equal(rails_up(0), RAILS - 1);
}

/* If a node breaks the protocol on one rail, it has broken it on all. */
static void test_a_violation_on_a_rail_is_one_of_the_node(void **state)
{
    (void)state;
    struct error cause;
    need_all();
    error_set(&cause, STATUS_PROTOCOL, "it sent what no node should");
    net_disconnect(ends[1].nets[1], 0, &cause);
    run(100 * TIME_MS);
    assert_false(mesh_node_is_up(ends[1].mesh, 0));
    assert_false(mesh_node_is_up(ends[0].mesh, 0));
    assert_int_equal(rails_up(1), 0);
}

static void test_removed_and_added_again(void **state)
{
    (void)state;
    struct error cause;
    uint32_t node;
    need_all();
    error_set(&cause, STATUS_PERMISSION, "the configuration does not name it");
    mesh_remove_node(ends[0].mesh, 0, &cause, now_ns);
    run(10 * TIME_S);
    assert_int_equal(rails_up(0), 0);
    assert_int_equal(mesh_add_node(ends[0].mesh, "b", "127.0.0.1:1", &node, &cause), STATUS_OK);
    assert_int_equal(node, 0);
    run(7 * TIME_S);
    assert_int_equal(rails_up(0), RAILS - 1);
}

static void test_addresses(void **state)
{
    (void)state;
    struct error error;
    uint32_t node;
    assert_string_equal(mesh_rail_addresses(ends[0].mesh, 0), "");
    assert_int_equal(mesh_set_rail_addresses(ends[0].mesh, 0, "10.0.0.2, 10.1.0.2", &error), STATUS_OK);
    assert_string_equal(mesh_rail_addresses(ends[0].mesh, 0), "10.0.0.2, 10.1.0.2");
    /* Rail 2 would have port 65536. The node is not added at all. */
    assert_int_equal(mesh_add_node(ends[0].mesh, "c", "127.0.0.1:65534", &node, &error),
                     STATUS_INVALID_ARGUMENT);
    assert_string_equal(error.text, "node c: rail 2 of \"127.0.0.1:65534\" has no port");
    assert_int_equal(mesh_node_count(ends[0].mesh), 1);
    assert_int_equal(mesh_add_node(ends[0].mesh, "c", "127.0.0.1:65533", &node, &error), STATUS_OK);
    assert_int_equal(mesh_move_node(ends[0].mesh, node, "127.0.0.1:65534", now_ns, &error),
                     STATUS_INVALID_ARGUMENT);
}

int main(void)
{
#define RAIL_TEST(name) cmocka_unit_test_setup_teardown(name, start, stop)
    const struct CMUnitTest tests[] = {
        RAIL_TEST(test_the_lower_name_dials_what_it_needs),
        RAIL_TEST(test_a_lost_link_is_dialled_again),
        RAIL_TEST(test_attempts_back_off),
        RAIL_TEST(test_a_lost_node_has_no_links),
        RAIL_TEST(test_a_violation_on_a_rail_is_one_of_the_node),
        RAIL_TEST(test_removed_and_added_again),
        RAIL_TEST(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
