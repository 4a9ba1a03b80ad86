#ifndef DAEMON_STORE_STORES_INTERNAL_H
#define DAEMON_STORE_STORES_INTERNAL_H

#include "daemon/base/log.h"
#include "daemon/base/owned_name.h"
#include "daemon/base/printable.h"
#include "daemon/base/table.h"
#include "daemon/store/stores.h"
#include "proto/types.h"

/*
 * Shared by the files of stores. Two halves: handle.c and sent.c are the side of the processes of this node,
 * whichever node keeps their stores; kept.c and kept_ask.c are the side of the stores that this node keeps,
 * whichever nodes their processes are on. If both are one node, they call each other; otherwise
 * store_messages.c's messages do.
 */

/* --- Kept here --- */

/* A store that this node keeps. */
struct stores_kept {
    struct stores *stores;
    struct owned_name key;
    struct store *store;
    struct budget_account *account;
    uint32_t opener_count;
    uint32_t wait_count;
    uint64_t ends_ns; /* TIME_NEVER while somebody has it open */
    struct timer_node timer;
    UT_hash_handle hh;
};

/* A process that has opened a kept store. */
struct stores_opener {
    struct {
        uint32_t node; /* MESH_NODE_OWN: a process of this node */
        uint32_t zero;
        uint64_t number; /* the node's */
    } key;
    struct stores_kept *kept;
    struct stores_handle *handle;      /* of a process of this node; otherwise null */
    struct stores_wait *waits;         /* its requests that wait for keys, or for their answer */
    struct stores_wait *woken;         /* those whose answer is ready */
    bool blocked;                      /* there was no room for its answer */
    struct stores_opener *prev, *next; /* in stores->answering or stores->blocked, while any is woken */
    UT_hash_handle hh;
};

/* A request that waits in a kept store. */
struct stores_wait {
    struct store_waiter waiter; /* the first member */
    struct stores_opener *opener;
    struct stores_wait *prev, *next; /* in opener->waits or opener->woken */
    uint64_t request;
    enum store_kind kind;
    enum status result; /* once it is woken */
    bool is_woken;
    uint64_t deadline_ns;
    uint64_t timeout_ns;
    size_t charged_bytes;
    size_t key_bytes; /* GET: its key; otherwise 0 */
    uint8_t key[];
};

/* --- Opened here --- */

/* The way to another node that keeps stores. */
struct stores_link {
    uint32_t node;
    uint32_t in_flight;            /* sent requests that the keeper answers at once */
    struct stores_handle *senders; /* handles with requests that are not sent */
    UT_hash_handle hh;
};

/* A request on its way to another node. */
struct stores_sent {
    struct stores_handle *handle;
    struct stores_sent *prev, *next; /* in handle->unsent, until it is sent */
    uint64_t number;                 /* on the wire */
    uint64_t request;                /* the owner's */
    enum store_kind kind;
    bool is_sent;
    uint64_t timeout_ns;
    struct timer_node timer;
    size_t charged_bytes;
    UT_hash_handle hh;
    size_t size;
    uint8_t packed[]; /* the message, until it is sent */
};

struct stores_handle {
    struct stores *stores;
    uint64_t number;
    struct owned_name key;
    struct stores_handler handler;
    struct budget_account *account; /* null: nothing is charged */
    struct stores_opener *opener;   /* kept here; null: elsewhere, or not open */
    struct stores_link *link;       /* kept elsewhere; null: here */
    bool open;
    bool was_sent;     /* the keeper may know of it */
    struct error lost; /* why it fails; OK: it does not */
    uint64_t last_number;
    struct stores_sent *sent; /* by number: unanswered, sent or not */
    struct stores_sent *unsent;
    struct stores_handle *prev, *next; /* in link->senders, while something is unsent */
    UT_hash_handle hh;
};

struct stores {
    struct mesh *mesh;
    struct budget *budget;
    uint64_t seed;
    uint64_t linger_ns;
    uint64_t (*clock)(void);
    struct stores_kept *kept;
    struct stores_opener *openers;
    struct stores_opener *answering; /* openers with answers that are ready; the first is served next */
    struct stores_opener *blocked;   /* the same, but there was no room; the first is tried next */
    uint64_t unblock_ns;             /* when the blocked ones are tried again */
    struct stores_handle *handles;   /* by number */
    struct stores_link *links;       /* by node */
    uint64_t last_handle;
    struct timer_heap kept_timers; /* one for each kept store */
    struct timer_heap sent_timers; /* one for each request to another node */
    size_t sent_count;
    uint64_t run_ns; /* when answers or requests that found no room are tried again; TIME_NEVER: none wait */
    struct log_limit node_limit;
    char draining[STORES_DRAIN_TEXT_MAX_BYTES]; /* "": not draining */
};

/* How soon what found no room is tried again, and how many openers each time. */
#define STORES_RETRY_NS (1 * TIME_MS)
#define STORES_RETRIES_PER_RUN 256u

/* Whether a request is answered at once by its keeper. */
static inline bool stores_kind_is_quick(enum store_kind kind)
{
    return kind != STORE_KIND_GET && kind != STORE_KIND_WAIT;
}

/* keeper.c */
/* The node that keeps the store, or MESH_NODE_OWN. */
uint32_t stores_keeper(const struct stores *stores, uint32_t uid, const char *name);

/* kept.c, kept_ask.c */
void stores_kept_arm(struct stores_kept *kept);
/* Takes an opener with ready answers out of the list that it is in. */
void stores_opener_unlist(struct stores_opener *opener);
/* What a store calls when a wait ends. */
void stores_kept_woken(void *context, struct store_waiter *waiter, enum status result, uint64_t now_ns);
void stores_wait_free(struct stores_wait *wait);
/* A process opens a store here. Makes the store if it is the first. LIMIT, NO_MEMORY, SHUTTING_DOWN. */
enum status stores_kept_open(struct stores *stores, uint32_t node, uint64_t number,
                             const struct owned_name *key, struct stores_handle *handle, uint64_t now_ns,
                             struct stores_opener **out, struct error *error) COMM_MUST_USE;
struct stores_opener *stores_opener_find(const struct stores *stores, uint32_t node, uint64_t number);
/* Its waits end without an answer. */
void stores_opener_close(struct stores_opener *opener, uint64_t now_ns);
/* As stores_opener_close, but its waits are answered with the cause. */
void stores_opener_end(struct stores_opener *opener, const struct error *cause, uint64_t now_ns);
void stores_kept_node_down(struct stores *stores, uint32_t node, uint64_t now_ns);
/* Does the request; answers it, or lets it wait. */
void stores_kept_ask(struct stores_opener *opener, const struct stores_ask *ask, uint64_t now_ns);
/* Sends answers of those that waited. Returns how many. */
uint32_t stores_kept_run(struct stores *stores, uint64_t now_ns);
void stores_kept_tick(struct stores *stores, uint64_t now_ns);
void stores_kept_free(struct stores_kept *kept);
void stores_kept_recheck(struct stores *stores, uint64_t now_ns);

/* All its requests fail with this cause, now and later. If it was not open, its owner may close it meanwhile.
 */
void stores_handle_fail(struct stores_handle *handle, const struct error *cause, uint64_t now_ns);
void stores_handle_node_down(struct stores *stores, uint32_t node, const struct error *cause,
                             uint64_t now_ns);
void stores_handle_recheck(struct stores *stores, uint64_t now_ns);

/* sent.c */
/* Queues a request to the handle's keeper. LIMIT, NO_MEMORY. */
enum status stores_sent_queue(struct stores_handle *handle, const struct stores_ask *ask, uint64_t now_ns,
                              struct error *error) COMM_MUST_USE;
/* Answers all requests with the cause. */
void stores_sent_fail(struct stores_handle *handle, const struct error *cause);
/* The keeper has not heard of the handle, which is not open: sends OPEN, the only request, again. */
void stores_sent_again(struct stores_handle *handle);
/* Forgets all requests, and tells the keeper that the handle is closed. */
void stores_sent_close(struct stores_handle *handle);
/* Sends requests that waited. Returns how many. */
uint32_t stores_sent_run(struct stores *stores, uint64_t now_ns);
/* Whether requests wait for room in a control stream. */
bool stores_sent_waits(const struct stores *stores);
void stores_sent_tick(struct stores *stores, uint64_t now_ns);
void stores_sent_answered(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAnswer *message,
                          uint64_t now_ns);

void stores_control_received(void *context, uint32_t node, const Commd__Mesh__Message *message,
                             uint64_t now_ns);
/* The opener's answer: by a call, or a message to its node. */
void stores_answer(struct stores_opener *opener, uint64_t request, enum store_kind kind,
                   const struct stores_answer *answer);
/* Whether an answer of that size can be sent now. */
bool stores_has_room(const struct stores_opener *opener, size_t size);

#endif
