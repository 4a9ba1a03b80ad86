#ifndef TESTS_UNIT_P2P_P2P_NODE_H
#define TESTS_UNIT_P2P_P2P_NODE_H

#include "daemon/p2p/p2p_internal.h"

/* A node with messages, on a network in memory. */
struct node {
    char name[12];
    struct net *net;
    struct p2p *p2p;
    struct p2p_comm *comm;
    uint32_t ups, failures;
    struct error failure;
};

static inline void node_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)peer;
    (void)now_ns;
    ((struct node *)context)->ups++;
}

static inline void node_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)cause;
    (void)now_ns;
}

static inline void node_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    struct node *node = context;
    (void)now_ns;
    node->failures++;
    node->failure = *cause;
}

/* Does what a daemon's loop does: a node that was not woken does not run. */
static inline void node_turn(struct node *node, uint64_t now_ns)
{
    if (now_ns >= p2p_next_deadline_ns(node->p2p)) {
        p2p_tick(node->p2p, now_ns);
    }
    if (p2p_has_work(node->p2p)) {
        (void)p2p_run(node->p2p, now_ns);
    }
}

#endif
