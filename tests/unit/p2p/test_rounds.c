#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/p2p/p2p_internal.h"

/* Rounds of turns that take more than one run. */

enum {
    COMMS = P2P_RUN_LOOKS + 4, /* a run looks at four fewer */
    TRIES = 3
};

struct crowd {
    struct p2p *p2p;
    struct p2p_comm *comms[COMMS];
    struct p2p_message receives[COMMS];
    uint32_t done; /* messages */
};

static void crowd_done(void *context, struct p2p_message *message, const struct error *result,
                       uint64_t now_ns)
{
    (void)message;
    (void)result;
    (void)now_ns;
    ((struct crowd *)context)->done++;
}

/* Posts a message of no bytes from rank 0 to itself. */
static void crowd_post(struct crowd *crowd, uint32_t comm, bool sends, struct p2p_message *message)
{
    static unsigned char nothing[1];
    struct p2p_call call = {.sends = sends, .dtype = DTYPE_U8, .buffer = nothing};
    assert_int_equal(p2p_post(crowd->comms[comm], &call, message, NULL), STATUS_OK);
}

/* Does what a daemon's loop does: it runs only when it is woken. */
static void crowd_run(struct crowd *crowd)
{
    while (p2p_has_work(crowd->p2p)) {
        (void)p2p_run(crowd->p2p, TIME_S);
    }
}

static void crowd_start(struct crowd *crowd)
{
    static const uint32_t node_of_rank[1] = {0}, peers[1] = {0};
    static const char *const names[1] = {"a"};
    const struct p2p_comm_handler handler = {.context = crowd, .done = crowd_done};
    struct comm_map facts = {.ranks = {.size = 1, .node_count = 1},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .name = "crowd"};
    struct comm_map *map;
    assert_int_equal(p2p_new(NULL, &crowd->p2p, NULL), STATUS_OK);
    for (uint32_t i = 0; i < COMMS; i++) {
        facts.comm_id = i + 1;
        assert_int_equal(comm_map_new(&facts, &map, NULL), STATUS_OK);
        assert_int_equal(p2p_comm_new(crowd->p2p, map, NULL, &handler, &crowd->comms[i], NULL), STATUS_OK);
        comm_map_release(map);
        crowd_post(crowd, i, false, &crowd->receives[i]);
    }
    crowd_run(crowd);
    assert_int_equal(crowd->done, 0);
}

static void crowd_stop(struct crowd *crowd)
{
    const struct error cause = {.status = STATUS_ABORTED};
    for (uint32_t i = 0; i < COMMS; i++) {
        p2p_comm_abort(crowd->comms[i], &cause);
    }
    crowd_run(crowd);
    for (uint32_t i = 0; i < COMMS; i++) {
        p2p_comm_free(crowd->comms[i]);
    }
    p2p_free(crowd->p2p);
    free(crowd);
}

/* A message comes for a communicator between two runs, after its turn in the same round. The communicator
 * still gets a turn for it. */
static void test_news_within_a_round(void **state)
{
    (void)state;
    struct crowd *crowd = calloc(1, sizeof *crowd);
    assert_non_null(crowd);
    crowd_start(crowd);
    for (uint32_t i = 0; i < TRIES; i++) {
        struct p2p_message send;
        assert_true(p2p_run(crowd->p2p, TIME_S)); /* the last four have not had their turn */
        crowd_post(crowd, i, true, &send);
        crowd_run(crowd);
        assert_int_equal(crowd->done, 2 * (i + 1));
        crowd_post(crowd, i, false, &crowd->receives[i]);
        crowd_run(crowd);
    }
    crowd_stop(crowd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_news_within_a_round)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
