#ifndef DAEMON_COMM_WITNESS_H
#define DAEMON_COMM_WITNESS_H

#include "daemon/comm/comms_internal.h"
#include "daemon/mesh/mesh.h"

/*
 * Witnesses: how many nodes ask one node whether its part of a forming communicator has ended (doubt.h).
 * Each group of guests (meeting.h) has a witness for each named node. The group's nodes ask the witness, and
 * the witness asks the named node. So the named node gets one connection for each group, about sqrt(n) in
 * all, and each witness gets about as many.
 *
 * A witness keeps no answers. An asker that comes while the witness waits for an answer is served by the
 * next one, which the witness asks for over the same connection: the node's part may have ended meanwhile.
 * The witness does not check what the node says: it hands that on.
 *
 * A node that lies may ask for anything. A question for which the witness dials counts against the node that
 * began it, until the connection may have ended again. So no node makes a witness dial more than
 * COMMS_QUESTIONS_NODE_MAX others at the same time, and none takes the room of others. Who gets no room is
 * told at once that nothing is known.
 *
 * Private to daemon/comm. One thread.
 */

/* In all; then the oldest one that nobody waits for is forgotten, or a further one gets no room. */
#define COMMS_QUESTIONS_MAX 256u
#define COMMS_QUESTIONS_NODE_MAX 16u /* begun by one node, or asked by it and not answered; then no room */
#define COMMS_ASKERS_MAX 1024u       /* of one question; then further ones get no room */
/* How long a question counts after its last answer: as long as its connection may stay. */
#define COMMS_QUESTION_COUNTS_NS MESH_IDLE_NS
/* How much longer than the witness an asker waits: for its connection to the witness. */
#define COMMS_WITNESS_MORE_NS (500 * TIME_MS)

struct comms_witness;

/* Whom not to choose: nodes that may be the ones that lie. */
struct comms_witness_wish {
    const struct communicator *comm;
    uint32_t about;  /* the named node, of the mesh's index */
    uint32_t teller; /* who named it, the mesh's index or MESH_NODE_OWN */
    uint32_t except; /* a witness that was asked before, or `about` */
};
/* The group's witness. Never one that may have told the lie: the teller, the communicator's first places, its
 * relays to which this node has turned, and relays of the named node. *out gets the mesh's index, or
 * MESH_NODE_OWN. Returns false if there is none. */
bool comms_witness_choose(const struct comms_witness_wish *wish, uint32_t *out);

/* Asks that node, a witness or the named one. It is up. */
void comms_witness_ask(const struct communicator *comm, uint32_t node, uint32_t about, bool says_lost);
/* A node asks this one. */
void comms_witness_asked(struct comms *comms, uint32_t node, const Commd__Mesh__EndAsk *ask, uint64_t now_ns);
/* An answer. It counts for this node's questions if it comes from the named node, and for its own
 * communicators if they have asked the sender (doubt.h). */
void comms_witness_answered(struct comms *comms, uint32_t node, const Commd__Mesh__EndAnswer *answer,
                            uint64_t now_ns);
void comms_witness_node_up(struct comms *comms, uint32_t node);
void comms_witness_tick(struct comms *comms, uint64_t now_ns);
uint64_t comms_witness_deadline_ns(const struct comms *comms);
void comms_witness_free(struct comms *comms);

#endif
