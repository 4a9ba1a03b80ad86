#ifndef DAEMON_EXEC_RAILS_INTERNAL_H
#define DAEMON_EXEC_RAILS_INTERNAL_H

#include "daemon/exec/exec_internal.h"
#include "daemon/exec/rails.h"

/* What rails.c and spread.c share. All of it is the home thread's but where it says otherwise. */

/* The connection of one rail to one node. */
struct rails_link {
    uint32_t wanted; /* by so many communicators */
    bool up;
    bool dialling;
    uint64_t retry_ns; /* when to dial again */
    uint64_t wait_ns;  /* before the next one after that */
    struct error why;  /* the last failure */
};

struct rails_peer {
    char *name;
    bool dials;                              /* we do */
    struct rails_link links[EXEC_RAILS_MAX]; /* the first is unused */
};

struct rails {
    uint32_t count;
    uint32_t network_count;
    struct exec *execs[EXEC_RAILS_MAX];
    struct net *nets[EXEC_RAILS_MAX];
    struct mailbox *mailboxes;
    const char *node_name;
    uint64_t reconnect_min_ns, reconnect_max_ns;
    struct rails_peer *peers; /* by the net's index */
    uint32_t peer_count;
    uint32_t peer_capacity;
    uint64_t now_ns;                    /* of the last tick */
    struct traffic_question *questions; /* rails_traffic.c */
    struct rails_endpoint {
        struct rails *rails;
        uint32_t rail;
        uint32_t peer_count; /* that its network knows; the rail's thread's */
    } endpoints[EXEC_RAILS_MAX];
};

/* A communicator needs connections of the first rail_count rails to that node; or does not any more. */
void rails_want(struct rails *rails, uint32_t peer, uint32_t rail_count);
void rails_unwant(struct rails *rails, uint32_t peer, uint32_t rail_count);
/* Of the first rail_count rails to that node, one without a connection; 0 when all have one. */
uint32_t rails_missing_link(const struct rails *rails, uint32_t peer, uint32_t rail_count);
static inline struct mailbox *rails_mailbox(const struct rails *rails, uint32_t rail)
{
    return &rails->mailboxes[rail];
}

#endif
