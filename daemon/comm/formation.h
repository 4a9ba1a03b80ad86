#ifndef DAEMON_COMM_FORMATION_H
#define DAEMON_COMM_FORMATION_H

#include "daemon/comm/comms_internal.h"

/* How a communicator forms: what nodes announce to each other, and the id that they promise. Single-threaded.
 */

/* Our announcement of a communicator, which owns what it points to. */
struct comms_announcement {
    Commd__Mesh__Message message;
    Commd__Mesh__Announce body;
    Commd__Mesh__CommTerms terms;
    uint32_t ranks[COMMS_LOCAL_RANKS_MAX];
};

/* formation.c: claims, announcements. formation_end.c: ranks that leave, deadlines. */
void comms_formation_work(struct communicator *comm, uint64_t now_ns);
void comms_formation_deadline(struct communicator *comm, uint64_t now_ns);
void comms_formation_fill(const struct communicator *comm, struct comms_announcement *out);
void comms_formation_announce_to(struct communicator *comm, uint32_t node);
/* Answers an announcement of that node. */
void comms_formation_answer(struct communicator *comm, const Commd__Mesh__Announce *announced, uint32_t node);
/* failed: it cannot form any more, so it ends on all nodes. detail: null if there is none. */
void comms_formation_withdraw(struct communicator *comm, const struct error *cause,
                              const struct comms_detail *detail, bool failed);
/*
 * The connection to a node is lost. If ranks of that node had come, the communicator ends on all nodes: its
 * daemon has ended, or was silent for the patience. idle: it only ended because no node needed it.
 */
void comms_formation_node_down(struct communicator *comm, uint32_t node, const struct error *lost, bool idle,
                               uint64_t now_ns);
/* Removes a local rank from a forming communicator, because it leaves or was refused. */
void comms_formation_drop_member(struct comms_member *member, const struct error *cause, uint64_t now_ns);
/* Refusals that waited for the communicator to form take effect now. */
void comms_formation_hold_refusals(struct communicator *comm, uint64_t now_ns);
/* Forgets a node's ranks. why: for texts; may be null. */
void comms_formation_drop_claim(struct communicator *comm, struct comms_claim *claim, const char *why);
/* What a node has announced; null if it has announced nothing, and for MESH_NODE_OWN. */
struct comms_claim *comms_formation_claim(const struct communicator *comm, uint32_t node);
/* LIMIT, NO_MEMORY. */
enum status comms_formation_claim_make(struct communicator *comm, uint32_t node, struct comms_claim **out,
                                       struct error *error) COMM_MUST_USE;
/* Stores what a node has announced. by_roster: as another node says. Returns false without memory: the node
 * is then treated as if it had announced nothing. */
bool comms_formation_claim_store(struct communicator *comm, struct comms_claim *claim,
                                 const Commd__Mesh__Announce *announce, bool by_roster);
/* The communicator needs the connection to that node, until the claim is freed. */
void comms_formation_need(struct communicator *comm, struct comms_claim *claim);
/* A node that claims the rank, or null. */
const struct comms_claim *comms_formation_claimant(const struct communicator *comm, uint32_t rank);
void comms_formation_free(struct communicator *comm);
/* A bit per rank, set if the rank is known; *known gets their number. The caller frees the bits. Null without
 * memory. */
uint8_t *comms_formation_known(const struct communicator *comm, uint32_t *known);
/* promise.c: the id that a node promises to all nodes of a communicator. */
/* Call it once every rank is known exactly once: orders the nodes and makes the id. Without memory it keeps
 * nothing. */
enum status comms_promise_make(struct communicator *comm, struct error *error) COMM_MUST_USE;
/* Whether all nodes have promised the same id as this node. */
bool comms_promise_is_mutual(const struct communicator *comm);
/* Does nothing if there is no promise. */
void comms_promise_take_back(struct communicator *comm);
/* Forgets the promise without a word: no node counts on it. */
void comms_promise_void(struct communicator *comm);
void comms_promise_free(struct communicator *comm);
/* Converts terms to and from wire format. The result of comms_terms_to_wire points into the communicator, and
 * is valid as long as that. */
void comms_terms_to_wire(const struct communicator *comm, Commd__Mesh__CommTerms *out);
bool comms_announce_is_sound(const Commd__Mesh__Announce *announce);
bool comms_terms_are_sound(const Commd__Mesh__CommTerms *terms);
void comms_terms_from_wire(const Commd__Mesh__CommTerms *from, struct communicator_terms *out);
/* Names a term that differs: "asks for size 4", "has size 3". Returns false if all are equal. */
bool comms_terms_differ(const struct communicator_terms *asked, const struct communicator_terms *held,
                        char *asks, char *has, size_t size);

#endif
