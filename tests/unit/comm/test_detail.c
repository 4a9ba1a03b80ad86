#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/comm/comms_internal.h"

/* The details of failures. Their size is limited, whatever another node sends. */

enum { SIZE = 100 };

static uint32_t node_of_rank[SIZE];
static const char *node_names[] = {"alpha", "beta"};
static struct communicator_node nodes[2];

static void comm_make(struct communicator *comm)
{
    memset(comm, 0, sizeof *comm);
    comm->terms.size = SIZE;
    comm->node_of_rank = node_of_rank;
    comm->node_names = node_names;
    comm->nodes = nodes;
    comm->node_count = 2;
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        node_of_rank[rank] = rank >= 10;
    }
}

static void test_more_ranks_than_are_listed(void **state)
{
    (void)state;
    static struct communicator comm;
    struct comms_detail detail = {0};
    comm_make(&comm);
    comms_detail_add(&detail, &comm, SIZE, 5); /* no rank */
    assert_int_equal(detail.rank_count, 0);
    comms_detail_add_node(&detail, &comm, 1);
    assert_int_equal(detail.rank_count, SIZE - 10);
    assert_int_equal(comms_detail_listed(&detail), CLIENT_FAILURE_RANKS_MAX);
    assert_int_equal(detail.ranks[0], 10);
    assert_int_equal(detail.ranks[CLIENT_FAILURE_RANKS_MAX - 1], 10 + CLIENT_FAILURE_RANKS_MAX - 1);
    assert_string_equal(detail.node, "beta");
}

static void test_there_and_back(void **state)
{
    (void)state;
    static struct communicator comm;
    struct comms_detail detail = {.kind = OP_KIND_BARRIER + 1, .seq = 77}, back;
    Commd__Mesh__Failure message;
    comm_make(&comm);
    comms_detail_add(&detail, &comm, 3, 4711);
    comms_detail_add(&detail, &comm, 42, 0);
    comms_detail_to_wire(&detail, &message);
    assert_ptr_equal(comms_detail_from_wire(&message, &comm, &back), &back);
    assert_memory_equal(&back, &detail, sizeof back);
    assert_string_equal(back.node, "alpha");
    assert_null(comms_detail_from_wire(NULL, &comm, &back));
}

static void test_a_hostile_node(void **state)
{
    (void)state;
    static struct communicator comm;
    struct comms_detail detail;
    uint32_t ranks[300];
    int32_t pids[2] = {-1, INT32_MIN};
    char node[1000];
    comm_make(&comm);
    for (uint32_t i = 0; i < 300; i++) {
        ranks[i] = i * 2;
    }
    memset(node, '\n', sizeof node - 1);
    node[sizeof node - 1] = '\0';
    Commd__Mesh__Failure message = COMMD__MESH__FAILURE__INIT;
    message.kind = UINT32_MAX;
    message.rank_count = UINT32_MAX;
    message.n_ranks = 300;
    message.ranks = ranks;
    message.n_pids = 2;
    message.pids = pids;
    message.node = node;
    assert_non_null(comms_detail_from_wire(&message, &comm, &detail));
    assert_int_equal(detail.kind, 0);
    assert_int_equal(detail.rank_count, 50); /* those below 100 */
    assert_int_equal(detail.ranks[49], 98);
    assert_int_equal(detail.pids[1], INT32_MIN);
    assert_int_equal(strlen(detail.node), NODE_NAME_MAX_BYTES);
    assert_null(strchr(detail.node, '\n'));
    for (uint32_t i = 0; i < 300; i++) {
        ranks[i] = i % SIZE;
    }
    assert_non_null(comms_detail_from_wire(&message, &comm, &detail));
    assert_int_equal(detail.rank_count, CLIENT_FAILURE_RANKS_MAX); /* the number that it states is none */
    message.rank_count = SIZE;
    assert_int_equal(comms_detail_from_wire(&message, &comm, &detail)->rank_count, SIZE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_more_ranks_than_are_listed),
        cmocka_unit_test(test_there_and_back),
        cmocka_unit_test(test_a_hostile_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
