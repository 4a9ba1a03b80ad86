#ifndef DAEMON_COMM_SILENCE_H
#define DAEMON_COMM_SILENCE_H

#include "daemon/comm/comms_internal.h"

/*
 * Which nodes of a communicator of many ranks do not answer. Most pairs of its nodes have no connection. If
 * many nodes fall silent at once, the node that leads the agreement has connections to few of them. So it
 * does not wait until they are lost: once a node that it needs has been silent for a quarter of the patience,
 * it asks the others by single datagrams (mesh_ask). When the patience ends, it knows who has not answered.
 *
 * Only a node that may lead asks: one that has a silent connection, while all lower nodes are silent, too.
 * An answer may be forged: then the node that seems to be there is waited for as without this. One thread.
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

/* Asks, if it is time. Returns when to call it again. The communicator has few connections (sparse). */
uint64_t comms_silence_step(struct communicator *comm, uint64_t now_ns);
/* Whether the node, which is not down, has been silent for so long that an agreement goes on without it. */
bool comms_silence_is_long(const struct communicator *comm, uint32_t index, uint64_t now_ns);

#endif
