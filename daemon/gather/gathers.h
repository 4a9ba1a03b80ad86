#ifndef DAEMON_GATHER_GATHERS_H
#define DAEMON_GATHER_GATHERS_H

#include <sys/types.h>

#include "daemon/base/budget.h"
#include "daemon/mesh/mesh.h"
#include "proto/types.h"

/*
 * How the processes of an elastic job get ranks (comm_join, comm_grow). A job's name belongs to a user, as a
 * communicator's does. A process that joins waits until it gets a seat: a rank of a new generation. Then it
 * takes part in the communicator of that generation, which comms forms as any other.
 *
 * The place. One node decides for a name. Every node computes it from the nodes that run, as far as it knows,
 * and on which the user may be, the uid and the name (base/weight.h). A node tells the place all that its
 * processes want, each time that something changes (Gather), and the place answers with seats (Gathered). So
 * a place holds nothing that the nodes do not know. If it is lost, they turn to the next one.
 *
 * A first generation, or one after all ranks of the generation before have left, is formed of those that
 * wait, as soon as there are enough: `least`, and then for last_call_ns nobody else comes, or there are
 * `most`. While a generation runs, those that wait stay until one of its ranks asks to grow.
 *
 * One generation at a time. A place forms a first generation only if it sees most of the cluster's nodes, of
 * exactly half the half with the lowest name (unless all processes say that a minority may go on). If it may
 * not have heard of everybody, it first waits GATHERS_GRACE_NS: after its start, unless all
 * nodes are connected; if a node with ranks is lost
 * or turns to another place; if a node has turned to it from another place; and if another node would be the
 * place but does not run. Two generations can still run if nodes see the cluster differently for longer; they
 * are different communicators, because a random number is part of the communicator's name.
 *
 * A rank that is lost before its communicator has formed makes the generation void: the place tells all its
 * nodes, so that no process waits for that rank. A place that takes over does the same after
 * GATHERS_GRACE_NS if it has not heard of all ranks that were given: some were lost with the place before.
 *
 * Single-threaded. Time is an argument.
 */
struct gathers;
struct gathers_entry; /* a process that has joined */

#define GATHERS_GRACE_NS (5 * TIME_S)
#define GATHERS_LAST_CALL_MAX_NS (UINT32_MAX * TIME_MS)
#define GATHERS_TIMEOUT_MAX_NS (UINT32_MAX * TIME_MS)
#define GATHERS_TURN_NS (3 * TIME_S)   /* for a connection to a place; then a node turns to the next one */
#define GATHERS_AVOID_NS (30 * TIME_S) /* and avoids that place so long */
#define GATHERS_CHECK_NS (2 * TIME_S)  /* how often a node asks itself who the place is */
#define GATHERS_ENTRIES_MAX 256u       /* processes of one node and name */
#define GATHERS_NAMES_MAX 1024u        /* names of one node; also at a place, for each node */
#define GATHERS_NAME_MAX_BYTES 80      /* a job's name: those of communicators are longer by the generation */
#define GATHERS_QUEUED_MAX 64u /* messages that a node has not acknowledged; then further ones wait here */

struct gathers_options {
    struct mesh *mesh;
    uint64_t seed_secure; /* random at each start */
    uint64_t now_ns;
    /* The communicator of a generation that has not formed yet never will. May be null. */
    void (*voided)(void *context, uint32_t uid, const char *comm_name, const struct error *cause,
                   uint64_t now_ns);
    void *context;
};
/* Registers itself with the mesh. NO_MEMORY. */
enum status gathers_new(const struct gathers_options *options, struct gathers **out,
                        struct error *error) COMM_MUST_USE;
/* All entries must have left. Null is accepted. */
void gathers_free(struct gathers *gathers);

/* Before the first join: what names for which this node is the place are charged to. */
void gathers_set_budget(struct gathers *gathers, struct budget *budget);

/* Tells places what has changed, and decides as a place. Returns whether it did anything. */
bool gathers_run(struct gathers *gathers, uint64_t now_ns);
uint64_t gathers_next_deadline_ns(const struct gathers *gathers);
void gathers_tick(struct gathers *gathers, uint64_t now_ns);

struct gathers_seat {
    char comm_name[COMM_NAME_MAX_BYTES + 1]; /* "", as the answer to grow: nobody waits */
    uint64_t generation;                     /* from 1 */
    uint32_t rank;
    uint32_t size;
};

struct gathers_handler {
    void *context;
    /* The answer to join: called once for each call that began well. TIMED_OUT, SHUTTING_DOWN, PERMISSION
     * (the user may not be here any more). Never from within the call. */
    void (*seated)(void *context, const struct error *result, const struct gathers_seat *seat,
                   uint64_t now_ns);
    /* The answer to grow, likewise. */
    void (*grown)(void *context, const struct error *result, const struct gathers_seat *seat,
                  uint64_t now_ns);
    /* Another number of processes waits. Only while the entry has a seat. */
    void (*waiting)(void *context, uint32_t waiting);
};

struct gathers_wish {
    uint32_t least, most; /* 1 to COMM_SIZE_MAX */
    uint64_t last_call_ns;
    uint64_t timeout_ns;
    bool minority_continues;
};

/*
 * A process joins. *out belongs to the caller until gathers_leave, also after a failure. INVALID_ARGUMENT
 * (the name, least or most), PERMISSION (the user may not be on this node), LIMIT, NO_MEMORY.
 */
enum status gathers_join(struct gathers *gathers, uid_t uid, struct budget_account *account, const char *name,
                         const struct gathers_wish *wish, const struct gathers_handler *handler,
                         uint64_t now_ns, struct gathers_entry **out, struct error *error) COMM_MUST_USE;
/* The process gives up its seat, if it has one, and waits for another. IN_PROGRESS: it waits already. */
enum status gathers_join_again(struct gathers_entry *entry, const struct gathers_wish *wish, uint64_t now_ns,
                               struct error *error) COMM_MUST_USE;
/*
 * Gives ranks from `from` on, below `to`, to processes that wait; at once, as many as there are. NOT_FOUND
 * (it has no seat), IN_PROGRESS (it grows already), INVALID_ARGUMENT.
 */
enum status gathers_grow(struct gathers_entry *entry, uint32_t from, uint32_t to, uint64_t timeout_ns,
                         uint64_t now_ns, struct error *error) COMM_MUST_USE;
/* The communicator of that generation has formed: the process is a rank of it now. */
void gathers_settle(struct gathers_entry *entry, uint64_t generation);
/* There are no more answers. */
void gathers_leave(struct gathers_entry *entry);

/* Whether a communicator of that name may form: RANK_LOST if its generation is void. */
enum status gathers_check(const struct gathers *gathers, uint32_t uid, const char *comm_name,
                          struct error *error) COMM_MUST_USE;
/* From now on no process of this node gets a rank, for that reason: SHUTTING_DOWN. Those that wait are told.
 * Null: they may join again. */
void gathers_drain(struct gathers *gathers, const char *why, uint64_t now_ns);
#define GATHERS_DRAIN_TEXT_MAX_BYTES 320
/* Call it when answers of mesh_user_may have changed. */
void gathers_recheck_users(struct gathers *gathers, uint64_t now_ns);

/* For people: the names with processes on this node. Texts are valid until gathers runs. */
struct gathers_view {
    const char *name;
    uint32_t owner_uid;
    uint32_t here_waiting; /* of this node */
    uint32_t waiting;      /* on all nodes, as the place said last */
    uint64_t generation;
    const char *place; /* a node */
    const char *text;  /* why no generation forms yet; "" */
};
/* Returns false to stop. */
typedef bool gathers_view_function(void *context, const struct gathers_view *view);
void gathers_list(const struct gathers *gathers, gathers_view_function *each, void *context);

#endif
