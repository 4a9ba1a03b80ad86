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

struct setup {
    struct loop *loop;
    struct test_pki *pki;
    struct quic_node *node;
    struct mesh *mesh;
};

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
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
    setup.node = quic_node_new(setup.loop, setup.pki, "own", NULL);
    assert_int_equal(mesh_new(setup.node->net, &options, &setup.mesh, &error), STATUS_OK);
    *state = &setup;
    return 0;
}

static int tear_down(void **state)
{
    struct setup *setup = *state;
    quic_node_free(setup->node);
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

static void test_a_known_node_costs_little(void **state)
{
    struct setup *setup = *state;
    size_t before = heap_bytes();
    if (before == 0) {
        skip(); /* a sanitizer's allocator, which does not count so */
    }
    add_nodes(setup, 0, FIRST_NODES);
    mesh_tick(setup->mesh, loop_now_ns());
    before = heap_bytes();
    add_nodes(setup, FIRST_NODES, FIRST_NODES + MORE_NODES);
    mesh_tick(setup->mesh, loop_now_ns());
    size_t each = (heap_bytes() - before) / MORE_NODES;
    print_message("a known node without a link: %zu bytes\n", each);
    assert_in_range(each, 1, KNOWN_NODE_MAX_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_known_node_costs_little, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
