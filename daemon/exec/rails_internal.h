#ifndef DAEMON_EXEC_RAILS_INTERNAL_H
#define DAEMON_EXEC_RAILS_INTERNAL_H

#include "daemon/base/backoff.h"
#include "daemon/exec/exec_internal.h"
#include "daemon/exec/rails.h"

/* What rails.c and spread.c share. All of it is the home thread's but where it says otherwise. */

/* The connection of one rail to one node, and those before it. */
struct rails_link {
    _Atomic uint64_t sent_bytes, received_bytes, lost_packets; /* the rail says, from time to time */
    uint32_t wanted;                                           /* by so many communicators */
    bool up;
    bool dialling;
    struct backoff dial;
    struct error why; /* the last failure */
};

/* Where it is as long as the rails are. */
struct rails_peer {
    bool dials;                              /* we do */
    bool is_down;                            /* for the mesh: rails follow it */
    struct rails_link links[EXEC_RAILS_MAX]; /* the first is unused */
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
    uint64_t dial_ns; /* no link is to be dialled before; TIME_NEVER: none is */
    struct rails_endpoint {
        struct rails *rails;
        uint32_t rail;
        /* The rail's thread's: */
        uint32_t peer_count;       /* that its network knows */
        struct rails_link **links; /* to these */
        uint32_t link_capacity;
        uint64_t publish_ns; /* TIME_NEVER: nothing new was carried since it last was */
    } endpoints[EXEC_RAILS_MAX];
};

/* What an operation waits for, as far as one exec knows. One word, so that the home never reads half of a
 * rail's. */
enum exec_waiting {
    EXEC_WAITING_NOT,
    EXEC_WAITING_DATA,         /* a receive */
    EXEC_WAITING_SENT,         /* acknowledgements of that node */
    EXEC_WAITING_SENT_SEVERAL, /* of several */
    EXEC_WAITING_WORD          /* the agreement; the home's alone */
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
    bool over; /* the home knows */
    _Atomic(struct exec_wait) wait;
    struct error result;
    uint32_t disputed_node;
    char disputed_how[128];
};

struct exec_spread {
    struct exec_op *op; /* the home's; null once it is over here */
    struct exec_shared *shared;
    uint64_t op_slices;
    struct exec_claims claims;
    struct mail all_done; /* the last claim was another thread's */
    uint32_t parts_left;
    struct error result;
    uint32_t part_count;
    struct spread_part parts[];
};

/* A rail's share of a communicator. Mails of it are one at a time each. */
struct shared_rail {
    struct exec_shared *shared;
    uint32_t rail;
    struct exec_comm *comm; /* that rail's thread's, as left */
    bool left;              /* nobody asks for it any more */
    struct mail create, use, abort, leave, failed;
    struct error failure;
};

struct exec_shared {
    struct rails *rails;
    struct exec_map *map;
    struct exec_comm *home; /* null once it left */
    atomic_uint references; /* the home's, those of rails that have not left, of mails to the home */
    uint32_t rail_count;    /* that slices are spread over, the home among them */
    uint32_t used_rails;    /* once all nodes have agreed */
    bool aborted;           /* for that cause: */
    struct error abort_cause;
    struct shared_rail of_rail[EXEC_RAILS_MAX];
};

/* wait.c, on the rail's thread, after its turn: lets the home see what its operations wait for. */
void rails_publish_waits(const struct exec *exec);
/* rails_traffic.c, likewise. */
void rails_publish_traffic(struct rails_endpoint *endpoint, uint64_t now_ns);

/* A communicator needs connections of the first rail_count rails to that node; or does not any more. */
void rails_want(struct rails *rails, uint32_t peer, uint32_t rail_count);
void rails_unwant(struct rails *rails, uint32_t peer, uint32_t rail_count);
bool rails_has_link(const struct rails *rails, uint32_t peer, uint32_t rail);
/* A rail that the operation is spread over, without a connection to a node of the communicator, the node; or
 * 0. */
uint32_t spread_missing_rail(const struct exec_comm *comm, const struct exec_op *op, uint32_t *node);
static inline struct mailbox *rails_mailbox(const struct rails *rails, uint32_t rail)
{
    return &rails->mailboxes[rail];
}

#endif
