#ifndef DAEMON_EXEC_RAILS_INTERNAL_H
#define DAEMON_EXEC_RAILS_INTERNAL_H

#include "daemon/exec/exec_internal.h"
#include "daemon/exec/rails.h"

/* What rails.c and spread.c share. Only the main thread uses it, except where a comment says otherwise. */

struct rails {
    uint32_t count;
    uint32_t network_count;
    struct exec *execs[EXEC_RAILS_MAX];
    struct mailbox *mailboxes;
};

/* What an operation waits for, as far as one exec knows. It is one word, so that the main thread reads a
 * rail's value whole. */
enum exec_waiting {
    EXEC_WAITING_NOT,
    EXEC_WAITING_DATA,         /* a receive */
    EXEC_WAITING_SENT,         /* acknowledgements from that node */
    EXEC_WAITING_SENT_SEVERAL, /* from several nodes */
    EXEC_WAITING_WORD,         /* the agreement; on rail 0 only */
    EXEC_WAITING_MEMORY        /* pinned memory */
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
    struct comm_map *map;
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
/* Finds a rail that the operation is spread over and that has no connection to some node of the communicator.
 * Returns the rail, and the node in *node; 0 if there is none. */
uint32_t spread_missing_rail(const struct exec_comm *comm, const struct exec_op *op, uint32_t *node);
static inline struct mailbox *rails_mailbox(const struct rails *rails, uint32_t rail)
{
    return &rails->mailboxes[rail];
}

#endif
