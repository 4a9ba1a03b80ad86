#ifndef DAEMON_COMM_LOSS_H
#define DAEMON_COMM_LOSS_H

#include "daemon/comm/agreement.h"
#include "daemon/comm/comms_internal.h"

/*
 * How a formed communicator ends: its surviving nodes agree on the cause, on the lost ranks, and on the last
 * operation that ended on all of them, before any client is told. From comms_loss_takes on the communicator
 * is frozen: no operation begins or ends. The decision ends it (communicator_end). Then the survivors may
 * form the next generation from the decision alone (next.c). A communicator of one node decides at once.
 *
 * Private to daemon/comm.
 */

/* When another node wants to agree because a rank is lost: how long operations that run here may still end.
 */
#define COMMS_LOSS_DRAIN_NS (50 * TIME_MS)
/* Decisions that are kept for late questions after their communicators are gone; then the oldest is dropped,
 * and what this node says of a communicator that it does not know proves nothing any more. */
#define COMMS_PAST_MAX 64

struct comms_loss_node {
    bool down; /* lost once: it counts as lost, even if it comes back */
    bool dead; /* proven: see agreement_may_go_on */
    bool ready;
    uint64_t
        next_id; /* of the next generation that it is ready for, before this node has made that; else 0 */
};

struct comms_loss {
    bool agrees; /* several nodes, and all of them know how */
    bool is_next;
    bool frozen;
    bool gave_up;
    bool next_over; /* the next generation has been there, and is gone */
    uint64_t freeze_ns;
    struct error *reason; /* of another node: to freeze soon; else null */
    uint32_t reason_weight;
    uint64_t keep_seq; /* operations up to this one may end before */
    uint8_t *gone;     /* local ranks that have left, or are lost: a bit each */
    struct comms_loss_node *nodes;
    struct agreement *agreement;           /* null before the first need */
    struct agreement_value own;            /* of a communicator of one node */
    const struct agreement_value *verdict; /* null before the decision */
    uint64_t previous_id;
    struct communicator *previous, *next; /* generations; null if they are not there (any more) */
};

/* communicator.c: the last step of communicator_fail, also once the nodes have agreed. */
void communicator_end(struct communicator *comm, const struct error *cause, const struct comms_detail *detail,
                      enum comms_tell tell, uint64_t now_ns);
/* formation.c: all nodes know each other, so the communicator begins. */
void comms_formation_formed(struct communicator *comm, uint64_t now_ns);

/* Returns false without memory. The communicator's nodes and size are known. */
bool comms_loss_new(struct communicator *comm);
void comms_loss_free(struct communicator *comm);
/* The communicator is freed: tells nodes that might wait for this one. */
void comms_loss_leave(struct communicator *comm);
void comms_past_free(struct comms *comms);
/* Call it when all nodes have promised. */
void comms_loss_set_agrees(struct communicator *comm);
/* Whether the nodes agree about its end, so that no Abort is sent. */
bool comms_loss_is_agreed(const struct communicator *comm);
/*
 * The communicator fails with this cause. Returns whether its nodes agree first: then communicator_end
 * follows. Otherwise the caller ends it.
 */
bool comms_loss_takes(struct communicator *comm, const struct error *cause, const struct comms_detail *detail,
                      uint64_t now_ns);
static inline bool comms_loss_is_frozen(const struct communicator *comm)
{
    return comm->loss != NULL && comm->loss->frozen;
}
static inline bool comms_is_next(const struct communicator *comm)
{
    return comm->loss != NULL && comm->loss->is_next;
}
uint64_t comms_loss_deadline_ns(const struct communicator *comm);
void comms_loss_tick(struct communicator *comm, uint64_t now_ns);
/* Freezes it if that only waited for operations that ran. */
void comms_loss_step(struct communicator *comm, uint64_t now_ns);
/* A local rank leaves, or is lost. */
void comms_loss_rank_gone(struct communicator *comm, uint32_t rank, uint64_t now_ns);
/* The same for all local ranks: commd stops. */
void comms_loss_all_gone(struct communicator *comm);
bool comms_loss_rank_is_gone(const struct communicator *comm, uint32_t rank);
/* Call it for every communicator, before anything else. */
void comms_loss_node_down(struct communicator *comm, uint32_t node, uint64_t now_ns);
/* There is no connection to the node of that index in the communicator: it counts as lost. */
void comms_loss_unreached(struct communicator *comm, uint32_t index, uint64_t now_ns);
void comms_loss_received(struct comms *comms, uint32_t node, const Commd__Mesh__Agree *said, uint64_t now_ns);
/* Whether the verdict has lost this rank. */
static inline bool comms_loss_has_lost(const struct communicator *comm, uint32_t rank)
{
    return agreement_bit(comm->loss->verdict->lost, rank);
}

/* loss_wire.c */
/* Sends to the node with that index of the mesh. */
struct comms_loss_address {
    struct comms *comms;
    uint32_t node;
    uint64_t comm_id, previous_id;
    uint32_t rank_count, node_count;
    bool dials; /* there may be no connection yet */
};
void comms_loss_send(const struct comms_loss_address *to, const struct agreement_message *message);
/* The value's bitmaps are those of the message. Returns false if the message makes no sense. */
bool comms_loss_from_wire(const Commd__Mesh__Agree *said, const struct communicator *comm,
                          struct agreement_message *message, struct agreement_value *value);

/*
 * next.c: the next generation. It is made of the verdict, by each surviving node alone: same terms, survivors
 * in the same order with contiguous ranks, generation + 1, an id that hashes the verdict. So a generation
 * cannot be formed twice. A node makes it when the first local rank asks, or another node needs it. A node
 * tells the others when all its surviving ranks have asked (NextReady); then it is formed. A rank or node
 * that is lost meanwhile ends that generation by the same agreement, and the ranks that wait pass on to the
 * one after it.
 */
/* comms.c: a member that is charged to its user, and of no communicator yet. LIMIT, NO_MEMORY. */
enum status communicator_member_new(const struct comms_client *client, const struct comms_terms *terms,
                                    const struct comms_member_handler *handler, uint64_t now_ns,
                                    struct comms_member **out, struct error *error) COMM_MUST_USE;
void communicator_add_member(struct communicator *comm, struct comms_member *member);
/* Makes it, or returns it. Null: there is none, or no memory. The communicator has a verdict. */
struct communicator *comms_next_of(struct communicator *comm, uint64_t now_ns);
/* Moves waiting ranks on, says ready, forms. */
void comms_next_step(struct communicator *comm, uint64_t now_ns);
/* For a rank of a generation that failed before it was formed: why it may not go on, because of that verdict.
 * OK: the verdict lets it go on, or there is none. */
enum status comms_next_refusal(const struct comms_member *member, struct error *error);
void comms_next_deadline(struct communicator *comm, uint64_t now_ns);
/* Whether it must stay although no rank has joined: those of the generation before may. */
bool comms_next_is_needed(const struct communicator *comm);
/* A rank of a failed communicator has left: it takes no part in later generations. */
void comms_next_rank_gone(struct communicator *comm, uint32_t rank, uint64_t now_ns);
void comms_next_received(struct comms *comms, uint32_t node, const Commd__Mesh__NextReady *said,
                         uint64_t now_ns);

#endif
