#include <malloc.h>

#include "tests/unit/net/quic_nodes.h"

/* What a link holds while it is idle. `commctl plan` counts with the first number. */

/* What an endpoint makes for its first link is not counted: node 0 is linked to all others before. */
enum { NODES = 6, LINKS = (NODES - 1) * (NODES - 2) / 2 };
#define LINK_MAX_BYTES (128u << 10)
/* After data: ngtcp2 keeps what it has allocated for packets in flight, until the connection ends. Measured:
 * 155 KB after 4 MiB, of which 57 KB are such. */
#define LINK_USED_MAX_BYTES (192u << 10)
#define DATA_BYTES (4u << 20)
/* MTU 9000. ngtcp2 keeps room for the largest datagram that came: 64 KiB if they are as large as on loopback,
 * where a fresh link holds 131 KiB. */
#define DATAGRAM_BYTES 8952u

static struct quic_node *nodes[NODES];

static size_t heap_bytes(void)
{
    struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

/* The index of a node at another one. */
static uint32_t index_of(unsigned at, unsigned node)
{
    return node < at ? node : node - 1;
}

static int set_up(void **state)
{
    char names[NODES][8];
    (void)setup_files(state);
    (void)setup_loop(state);
    for (unsigned i = 0; i < NODES; i++) {
        (void)snprintf(names[i], sizeof names[i], "n%u", i);
        test_pki_issue(pki, names[i], &(struct test_certificate){.name = names[i]});
        struct quic_options options;
        quic_node_options(pki, names[i], &options);
        options.datagram_max_bytes = DATAGRAM_BYTES;
        nodes[i] = quic_node_new(loop, pki, names[i], &options);
    }
    for (unsigned i = 0; i < NODES * NODES; i++) {
        unsigned at = i / NODES, node = i % NODES;
        if (at != node) {
            assert_int_equal(quic_node_add_peer(nodes[at], names[node], nodes[node]->port),
                             index_of(at, node));
        }
    }
    return 0;
}

static int tear_down(void **state)
{
    for (unsigned i = 0; i < NODES; i++) {
        quic_node_free(nodes[i]);
    }
    loop_free(loop);
    return teardown_files(state);
}

/* Nodes from `context` on are linked to all. */
static bool are_linked(const void *context)
{
    const unsigned *first = context;
    for (unsigned i = 0; i < NODES * NODES; i++) {
        unsigned at = i / NODES, node = i % NODES;
        if (at != node && (at == 0 || node == 0 || *first == 1) && !nodes[at]->up[index_of(at, node)]) {
            return false;
        }
    }
    return true;
}

static void link_nodes(unsigned first)
{
    for (unsigned node = first + 1; node < NODES; node++) {
        for (unsigned at = first; at < (first == 0 ? 1 : node); at++) {
            quic_node_connect(nodes[at], index_of(at, node));
        }
    }
    assert_true(quic_run_until(loop, are_linked, &first, 10000));
    quic_run_for(loop, 500);
}

static void send_on_all(unsigned first)
{
    for (unsigned i = 0; i < NODES * NODES; i++) {
        unsigned at = i / NODES, node = i % NODES;
        if (at != node && (at == 0 || node == 0) == (first == 0)) {
            struct quic_source *source =
                quic_source_new(nodes[at], index_of(at, node), i, DATA_BYTES, 100000, true);
            assert_true(quic_run_until(loop, source_done, source, 10000));
            quic_source_free(source);
        }
    }
    quic_run_for(loop, 500);
}

/* Each link has two ends here. */
static void check_links(size_t before, const char *what, size_t most)
{
    size_t each = (heap_bytes() - before) / (2 * LINKS);
    print_message("# an end of a link, %s: %zu bytes\n", what, each);
    assert_in_range(each, 1024, most);
}

static void test_an_idle_link_is_small(void **state)
{
    (void)state;
    if (heap_bytes() == 0) {
        print_message("SKIP: this allocator, a sanitizer's, does not count its bytes\n");
        skip();
    }
    link_nodes(0);
    send_on_all(0);
    size_t before = heap_bytes();
    link_nodes(1);
    check_links(before, "fresh", LINK_MAX_BYTES);
    send_on_all(1);
    check_links(before, "after data", LINK_USED_MAX_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_an_idle_link_is_small, set_up, tear_down),
    };
    log_set_level(LOG_LEVEL_ERROR);
    return cmocka_run_group_tests_name("link_memory", tests, NULL, NULL);
}
