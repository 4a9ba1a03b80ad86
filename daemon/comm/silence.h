#ifndef DAEMON_COMM_SILENCE_H
#define DAEMON_COMM_SILENCE_H

#include "daemon/comm/comms_internal.h"

/*
 * Which nodes of a communicator of many ranks do not answer. Most pairs of its nodes have no connection. If
 * many nodes fall silent at once, the node that leads the agreement has connections to few of them. So it
 * does not wait until they are lost: once a connection that it needs is doubtful, it asks the others by
 * single datagrams (mesh_ask). When the patience ends, it knows who has not answered. If a daemon was killed,
 * its host refuses the datagrams. Then the agreement goes on without it as soon as with a connection to it.
 *
 * A connection is doubtful if the node has been silent for a quarter of the patience, or if its host says
 * that no commd listens. Only a node that may lead asks: one that has a doubtful connection, while no lower
 * node is there. A node with a doubtful connection, and a lower node that is there, gives that one a hint
 * (Silence). Who gets a hint does as if a connection of its own were doubtful. So the hint goes on to lower
 * and lower nodes, until it comes to the one that leads: each lost node's parent in the tree is there, or is
 * lost itself.
 *
 * An answer may be forged: then the node that seems to be there is waited for as without this. A hint may be
 * a lie: it makes a node ask, but only silence or a refusal makes a node lost. And the hints of one node
 * count for a limited time only. An older node ignores hints: it learns of the loss when others report it.
 * One thread.
 */

/* Between two questions to the same node. */
#define COMMS_SILENCE_ASK_NS (250 * TIME_MS)
/* So many questions in a row without an answer: the node is silent. If a lost node is proven to have ended,
 * others may have ended, too: then there is more time, in which their hosts may say so. */
#define COMMS_SILENCE_ASKS 5u
#define COMMS_SILENCE_ASKS_PROOF 20u
/* A lower node may lead, as long as fewer questions to it are unanswered. */
#define COMMS_SILENCE_LOWER_ASKS 2u
/* The most nodes that one communicator asks each time; others are waited for. */
#define COMMS_SILENCE_NODES_MAX 1024u

/* So long a hint counts. Nodes repeat it each time that they would ask. */
#define COMMS_SILENCE_HINT_NS (2 * COMMS_SILENCE_ASK_NS)
/* The hints of one node count for one patience. Hints so many patiences after the first one count again. */
#define COMMS_SILENCE_HINT_PATIENCES 8u

/* Asks, if it is time. Returns when to call it again. The communicator has few connections (sparse). */
uint64_t comms_silence_step(struct communicator *comm, uint64_t now_ns);
/* The communicator's node of that index gives a hint. Returns false if it may not give one to this node. */
bool comms_silence_hinted(struct communicator *comm, uint32_t index, uint64_t now_ns);
/* As mesh_handler.node_suspect, of a struct comms. */
void comms_silence_suspect(void *context, uint32_t node, uint64_t now_ns);
/* Whether the node, which is not down, has been silent, or has refused, for so long that an agreement goes on
 * without it. */
bool comms_silence_is_long(const struct communicator *comm, uint32_t index, uint64_t now_ns);

#endif
