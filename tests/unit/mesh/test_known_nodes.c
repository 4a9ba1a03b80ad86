#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/mesh/mesh.h"
#include "daemon/mesh/rail_links.h"
#include "tests/lib/quic_node.h"

/* What a node costs that this one only knows: it is in the configuration, and there is no link to it. */

#define FIRST_NODES 16u /* of them, this node dials its neighbours */
#define MORE_NODES 4000u
#define KNOWN_NODE_MAX_BYTES 512u
#define RAILS 16u /* MESH_RAILS_MAX */

#define NOBODY UINT32_MAX
static uint32_t linked_node = NOBODY;

struct setup {
    struct loop *loop;
    struct test_pki *pki;
    struct quic_node *nodes[RAILS]; /* of each rail */
    struct mailbox mailboxes[RAILS];
    struct mesh *mesh;
};

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static void on_rail_up(void *context)
{
    (void)context;
    fail();
}

static void on_rail_lost(void *context, uint32_t node, uint32_t rail, const struct error *cause,
                         uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    fail_msg("node %u, rail %u: %s", node, rail, cause->text);
}

static void on_streams_lost(void *context, uint32_t node, uint32_t rail)
{
    (void)context;
    fail_msg("node %u, rail %u", node, rail);
}

static void set_up_rails(struct setup *setup)
{
    struct error error;
    struct net *nets[RAILS];
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        if (rail > 0) {
            setup->nodes[rail] = quic_node_new(setup->loop, setup->pki, "own", NULL);
        }
        nets[rail] = setup->nodes[rail]->net;
    }
    struct mesh_rails_options options = {.count = RAILS,
                                         .nets = nets,
                                         .mailboxes = setup->mailboxes,
                                         .handler = {NULL, on_rail_up, on_rail_lost, on_streams_lost}};
    assert_int_equal(mesh_set_rails(setup->mesh, &options, &error), STATUS_OK);
}

static int set_up(void **state)
{
    static struct setup setup;
    struct error error;
    struct mesh_options options;
    mesh_options_default(&options);
    options.node_name = "own";
    options.instance = 1;
    options.now_ns = loop_now_ns();
    setup = (struct setup){.pki = test_pki_new()};
    test_pki_issue(setup.pki, "own", &(struct test_certificate){.name = "own"});
    assert_int_equal(loop_new(&setup.loop, &error), STATUS_OK);
    setup.nodes[0] = quic_node_new(setup.loop, setup.pki, "own", NULL);
    assert_int_equal(mesh_new(setup.nodes[0]->net, &options, &setup.mesh, &error), STATUS_OK);
    *state = &setup;
    return 0;
}

static int tear_down(void **state)
{
    struct setup *setup = *state;
    mesh_end_rails(setup->mesh);
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        (void)mailbox_run(&setup->mailboxes[rail], loop_now_ns());
        if (setup->nodes[rail] != NULL) {
            quic_node_free(setup->nodes[rail]);
        }
    }
    mesh_free(setup->mesh);
    loop_free(setup->loop);
    test_pki_free(setup->pki);
    return 0;
}

static void add_nodes(struct setup *setup, uint32_t from, uint32_t to)
{
    char name[16], address[32];
    struct error error;
    for (uint32_t i = from; i < to; i++) {
        uint32_t node;
        (void)snprintf(name, sizeof name, "node%04u", i);
        (void)snprintf(address, sizeof address, "127.%u.%u.%u:7400", 1 + i / 65536, i / 256 % 256, i % 256);
        assert_int_equal(mesh_add_node(setup->mesh, name, address, &node, &error), STATUS_OK);
        assert_int_equal(mesh_set_rail_addresses(setup->mesh, node, "", &error), STATUS_OK);
        assert_int_equal(node, i);
    }
}

static void run_rails(struct setup *setup)
{
    for (uint32_t rail = 0; rail < RAILS; rail++) {
        (void)mailbox_run(&setup->mailboxes[rail], loop_now_ns());
    }
}

static void known_nodes(struct setup *setup)
{
    size_t before = heap_bytes();
    if (before == 0) {
        print_message("SKIP: this allocator, a sanitizer's, does not count its bytes\n");
        skip();
    }
    add_nodes(setup, 0, FIRST_NODES);
    mesh_tick(setup->mesh, loop_now_ns());
    before = heap_bytes();
    add_nodes(setup, FIRST_NODES, FIRST_NODES + MORE_NODES);
    mesh_tick(setup->mesh, loop_now_ns());
    if (linked_node != NOBODY) {
        mesh_need_rails(setup->mesh, linked_node, RAILS);
    }
    run_rails(setup);
    size_t each = (heap_bytes() - before) / MORE_NODES;
    print_message("a known node without a link, %u rails: %zu bytes\n", mesh_rail_count(setup->mesh), each);
    if (linked_node != NOBODY) {
        mesh_unneed_rails(setup->mesh, linked_node, RAILS);
    }
    assert_in_range(each, 1, KNOWN_NODE_MAX_BYTES);
}

static void test_a_known_node_costs_little(void **state)
{
    known_nodes(*state);
}

static void test_a_known_node_costs_little_with_rails(void **state)
{
    struct setup *setup = *state;
    set_up_rails(setup);
    known_nodes(setup);
}

/* Also if the last one is linked: then every rail has to find a peer of a high index. */
static void test_a_known_node_costs_little_beside_a_linked_one(void **state)
{
    struct setup *setup = *state;
    set_up_rails(setup);
    linked_node = FIRST_NODES + MORE_NODES - 1;
    known_nodes(setup);
    linked_node = NOBODY;
}

/* A rail gets to know one of the last nodes alone. */
static void test_a_rail_knows_a_node_that_is_needed(void **state)
{
    struct setup *setup = *state;
    struct mesh_rails_traffic traffic;
    struct error error;
    uint32_t node = 100;
    set_up_rails(setup);
    add_nodes(setup, 0, node + 1);
    mesh_need_rails(setup->mesh, node, RAILS);
    run_rails(setup);
    mesh_rails_traffic(setup->mesh, node, &traffic);
    assert_int_equal(traffic.needed, RAILS - 1);
    for (uint32_t rail = 1; rail < RAILS; rail++) {
        struct net *net = setup->nodes[rail]->net;
        assert_int_equal(net_add_peer_at(net, "node0100", "127.0.0.1:1", node, &error),
                         STATUS_ALREADY_EXISTS);
        assert_int_equal(net_add_peer_at(net, "other", "127.0.0.1:1", node, &error), STATUS_ALREADY_EXISTS);
        assert_int_equal(net_add_peer_at(net, "node0007", "127.0.0.1:1", 7, &error), STATUS_OK);
        assert_int_equal(net_add_peer_at(net, "last", "127.0.0.1:1", NET_PEERS_MAX, &error), STATUS_LIMIT);
    }
    mesh_rails_traffic(setup->mesh, 3, &traffic);
    assert_int_equal(traffic.needed, 0);
    mesh_unneed_rails(setup->mesh, node, RAILS);
    mesh_rails_traffic(setup->mesh, node, &traffic);
    assert_int_equal(traffic.needed, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_known_node_costs_little, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_known_node_costs_little_with_rails, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_a_known_node_costs_little_beside_a_linked_one, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_a_rail_knows_a_node_that_is_needed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
