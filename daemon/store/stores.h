#ifndef DAEMON_STORE_STORES_H
#define DAEMON_STORE_STORES_H

#include <sys/types.h>

#include "daemon/base/budget.h"
#include "daemon/mesh/mesh.h"
#include "daemon/store/store.h"

/*
 * The stores that a job's processes share. A store belongs to a user and has a name, as communicators do. It
 * exists on one node, its keeper; processes of all nodes reach it through their own commd.
 *
 * The keeper. Every node computes the same one, from the names of the configured nodes on which the user may
 * be (`users`), the uid and the store's name: rendezvous hashing. It does not matter which of these nodes
 * are up: so there are never two stores of one name, as long as the nodes' configurations agree. If the
 * keeper is not connected, requests wait for it, and fail with UNREACHABLE at their deadline. A name that
 * ends in "@" and a node's name is kept on that node.
 *
 * The end. A store ends STORES_LINGER_NS after the last process has closed it. If the keeper is lost, or its
 * commd ends, the store is lost: all requests fail with NODE_LOST, now and later. Processes that open it
 * again make a new, empty one.
 *
 * Single-threaded. Time is an argument.
 */
struct stores;
struct stores_handle; /* a store that one process has opened */

#define STORES_LINGER_NS (60 * TIME_S)
#define STORES_TIMEOUT_MAX_NS (UINT32_MAX * TIME_MS) /* the longest that the library asks for */
/* Unanswered requests to one keeper, except those that wait there; further ones wait here. */
#define STORES_WINDOW 16u
#define STORES_QUEUED_MAX 32u /* messages that a node has not acknowledged; then further ones wait here */
#define STORES_ANSWERS_PER_RUN 64u    /* answers to those that waited; then the loop looks at other work */
#define STORES_MARGIN_NS (5 * TIME_S) /* that a keeper has beyond a request's time to answer */
#define STORES_KEPT_MAX 16384u        /* stores on this node; each is also charged to its user */

struct stores_options {
    struct mesh *mesh;
    uint64_t seed_secure;    /* random at each start */
    uint64_t linger_ns;      /* 0: STORES_LINGER_NS */
    uint64_t (*clock)(void); /* charges processor time to users; null: nothing is charged */
};
/* Registers itself with the mesh, after comms. NO_MEMORY. */
enum status stores_new(const struct stores_options *options, struct stores **out,
                       struct error *error) COMM_MUST_USE;
/* All handles must be closed. Null is accepted. */
void stores_free(struct stores *stores);
/* Before the first request: what stores kept here are charged to. The budget outlives the stores' use. */
void stores_set_budget(struct stores *stores, struct budget *budget);

/* Sends answers and requests that had to wait. Returns whether it did anything. */
bool stores_run(struct stores *stores, uint64_t now_ns);
uint64_t stores_next_deadline_ns(const struct stores *stores);
void stores_tick(struct stores *stores, uint64_t now_ns);

/* One request. Sizes have been checked: stores_ask_check. */
struct stores_ask {
    uint64_t request; /* chosen by the owner, returned with the answer */
    enum store_kind kind;
    const struct store_bytes *keys;
    size_t key_count;
    struct store_bytes value;
    struct store_bytes expected;
    int64_t delta;
    uint64_t timeout_ns; /* of the answer; GET, WAIT: 0 does not wait */
};
/* Whether the number is a kind that handles accept, and keys and values have sizes that it allows. *what
 * says what is wrong: "a key of 300 bytes; at most 255 are allowed". INVALID_ARGUMENT, LIMIT. */
enum status stores_ask_check(const struct stores_ask *ask, struct error *error) COMM_MUST_USE;

struct stores_answer {
    const struct error *result; /* its status is OK, or why the request failed */
    struct store_bytes value;   /* valid during the call */
    int64_t number;
};

struct stores_handler {
    void *context;
    /* Called once for each request, OPEN included; also from within stores_open and stores_request. */
    void (*answered)(void *context, uint64_t request, enum store_kind kind,
                     const struct stores_answer *answer);
    /* Whether one more answer of this size can be taken now; those that wait are answered later. */
    bool (*has_room)(void *context, size_t size);
};

struct stores_client {
    uid_t uid;
    struct budget_account *account; /* charged for requests on their way to another node; null: not */
};

/*
 * Opens a store. `request` is answered once the store is open, or with the reason why not: UNREACHABLE,
 * LIMIT, PERMISSION, UNSUPPORTED (the keeper's commd is older), NODE_LOST, SHUTTING_DOWN, NO_MEMORY. After a
 * failure, requests fail for the same reason, and the owner must close the handle; it may do so in the
 * answer's call. Immediate errors, after which there is no handle: INVALID_ARGUMENT (the name), LIMIT,
 * PERMISSION (the user may not be on this node), NO_MEMORY. *out is set before the answer's call.
 */
enum status stores_open(struct stores *stores, const struct stores_client *client, const char *name,
                        uint64_t request, uint64_t timeout_ns, const struct stores_handler *handler,
                        uint64_t now_ns, struct stores_handle **out, struct error *error) COMM_MUST_USE;
/* Makes a request. Immediate errors: IN_PROGRESS (not open yet), the reason why the store is lost,
 * INVALID_ARGUMENT, LIMIT, NO_MEMORY. */
enum status stores_request(struct stores_handle *handle, const struct stores_ask *ask, uint64_t now_ns,
                           struct error *error) COMM_MUST_USE;
/* There are no more answers. */
void stores_close(struct stores_handle *handle, uint64_t now_ns);

/* Call it when answers of mesh_user_may have changed. Stores of users who may no longer be on this node end,
 * and so do the handles of other nodes that the user may no longer use. */
void stores_recheck_users(struct stores *stores, uint64_t now_ns);
/* From now on this node makes no new stores, for that reason: SHUTTING_DOWN. Null: it makes them again. */
void stores_drain(struct stores *stores, const char *why);
#define STORES_DRAIN_TEXT_MAX_BYTES 320

/* The name of the node that keeps the store: see above. Valid until the mesh runs. */
const char *stores_keeper_name(const struct stores *stores, uid_t uid, const char *name);

#endif
