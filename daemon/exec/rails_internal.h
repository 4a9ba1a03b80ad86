#ifndef DAEMON_EXEC_RAILS_INTERNAL_H
#define DAEMON_EXEC_RAILS_INTERNAL_H

#include "daemon/base/backoff.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/rails.h"

/* What rails.c and spread.c share. Only the main thread uses it, except where a comment says otherwise. */

/* Of the bulk link beside that connection: see net_bulk_statistics. Set by the rail periodically. */
struct rails_bulk {
    _Atomic bool allowed, connected, chosen;
    _Atomic uint64_t rates[2], bytes[2], connected_count, lost_count;
};

/* The state of one rail's connection to one node; the counters include earlier connections. */
struct rails_link {
    /* Set by the rail periodically: */
    _Atomic uint64_t sent_bytes, received_bytes, sent_packets, received_packets, lost_packets, lost_bytes;
    _Atomic uint64_t resumed_count, round_trip_ns;
    struct rails_bulk bulk;
    uint32_t wanted; /* by this many communicators */
    bool up;
    bool dialling;
    struct backoff dial;
    struct error why; /* the last failure */
};

/* Never moves, and lives as long as the rails. */
struct rails_peer {
    bool dials;               /* this node does; else the peer */
    bool is_down;             /* for the mesh: rails then refuse connections */
    struct rails_link *links; /* by rail; the first is unused. Null: this node has one rail */
    char *rail_addresses;     /* null: none */
    char name[];
};

struct rails {
    uint32_t count;
    uint32_t network_count;
    struct exec *execs[EXEC_RAILS_MAX];
    struct net *nets[EXEC_RAILS_MAX];
    struct mailbox *mailboxes;
    char node_name[NODE_NAME_MAX_BYTES + 1];
    uint64_t reconnect_min_ns, reconnect_max_ns;
    struct random random;
    struct rails_peer **peers; /* by the net's index */
    uint32_t peer_count;
    uint32_t peer_capacity;
    uint64_t now_ns;  /* of the last tick */
    uint64_t dial_ns; /* when the next link is dialled; TIME_NEVER: none is due */
    struct rails_endpoint {
        struct rails *rails;
        uint32_t rail;
        /* Used by the rail's thread alone: */
        uint32_t peer_count;       /* peers that the rail's network knows */
        struct rails_link **links; /* to these peers */
        uint32_t link_capacity;
        uint64_t publish_ns; /* TIME_NEVER: no new traffic since the last time */
    } endpoints[EXEC_RAILS_MAX];
};

/* What an operation waits for, as far as one exec knows. It is one word, so that the main thread reads a
 * rail's value whole. */
enum exec_waiting {
    EXEC_WAITING_NOT,
    EXEC_WAITING_DATA,         /* a receive */
    EXEC_WAITING_SENT,         /* acknowledgements from that node */
    EXEC_WAITING_SENT_SEVERAL, /* from several nodes */
    EXEC_WAITING_WORD          /* the agreement; on rail 0 only */
};
struct exec_wait {
    uint32_t waiting : 3, round : 15, node : 14;
    uint32_t slice;
};
_Static_assert(COLL_NODES_MAX <= 1 << 14, "nodes fit");

/* A rail's part of one operation. */
struct spread_part {
    struct mail mail, disagreed;
    struct exec_spread *spread;
    uint32_t rail;
    bool over; /* the main thread knows */
    _Atomic(struct exec_wait) wait;
    struct error result;
    uint32_t disputed_node;
    char disputed_how[128];
};

struct exec_spread {
    struct exec_op *op; /* the main exec's; null once it is over there */
    struct exec_shared *shared;
    uint64_t op_slices;
    struct exec_claims claims;
    struct mail all_done; /* sent if a rail's thread finished the last slice */
    uint32_t parts_left;
    struct error result;
    uint32_t part_count;
    struct spread_part parts[];
};

/* A rail's share of a communicator. Each of its mails is sent at most once at a time. */
struct shared_rail {
    struct exec_shared *shared;
    uint32_t rail;
    struct exec_comm *comm; /* used by that rail's thread alone, as is `left` */
    bool left;              /* the main thread has freed the communicator */
    struct mail create, use, abort, leave, failed;
    struct error failure;
};

struct exec_shared {
    struct rails *rails;
    struct exec_map *map;
    struct exec_comm *home; /* the main exec's; null once it is freed */
    /* One of the main thread, one of each rail that has not left, one of each failure mail to the main
     * thread. */
    atomic_uint references;
    uint32_t rail_count; /* that slices are spread over, rail 0 included */
    bool wants_rails;    /* it needs the rails' connections to all nodes */
    uint32_t used_rails; /* set once all nodes have agreed */
    bool aborted;        /* with this cause: */
    struct error abort_cause;
    struct shared_rail of_rail[EXEC_RAILS_MAX];
};

/* wait.c: called on the rail's thread after its turn. Publishes to the main thread what its operations wait
 * for. */
void rails_publish_waits(const struct exec *exec);
/* rails_traffic.c: called on the rail's thread after its turn. Publishes the counters of its connections. */
void rails_publish_traffic(struct rails_endpoint *endpoint, uint64_t now_ns);

/*
 * A communicator needs connections of the first rail_count rails to that node; rails_unwant undoes it.
 */
void rails_want(struct rails *rails, uint32_t peer, uint32_t rail_count);
void rails_unwant(struct rails *rails, uint32_t peer, uint32_t rail_count);
bool rails_has_link(const struct rails *rails, uint32_t peer, uint32_t rail);
/* Finds a rail that the operation is spread over and that has no connection to some node of the communicator.
 * Returns the rail, and the node in *node; 0 if there is none. */
uint32_t spread_missing_rail(const struct exec_comm *comm, const struct exec_op *op, uint32_t *node);
static inline struct mailbox *rails_mailbox(const struct rails *rails, uint32_t rail)
{
    return &rails->mailboxes[rail];
}

#endif
