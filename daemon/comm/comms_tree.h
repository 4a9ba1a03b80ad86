#ifndef DAEMON_COMM_COMMS_TREE_H
#define DAEMON_COMM_COMMS_TREE_H

#include "daemon/comm/comms_internal.h"

/*
 * Communicators of many nodes have no connection for each pair of nodes. Their nodes form a tree, in the
 * communicator's order: the parent of node i is (i - 1) / COMMS_TREE_WIDTH. Each node has a connection to its
 * parent and to its children, from the promise on. All messages about the communicator pass along the tree
 * (Relay), so of each pair they arrive in order. Other connections are dialled when an operation or a message
 * first needs them, and stay until the communicator is gone. Agreements (loss.h) go directly from node to
 * node: the tree may be what broke.
 *
 * A node learns that another one is lost if it has a connection to it. Each node is somebody's parent or
 * child, so every loss is noticed, and the agreement tells all.
 *
 * Private to daemon/comm.
 */
#define COMMS_TREE_WIDTH 8u
/* Communicators of so many ranks may form by a tree (roster.h). Smaller ones connect each pair of nodes. */
#define COMMS_TREE_RANKS_LEAST 32u
/* How often it is checked whether needed connections are there. */
#define COMMS_LINKS_LOOK_NS (50 * TIME_MS)
/* A node that others have lost, or whose host says that no commd listens, is given up after this time without
 * a connection; one that runs, as others say, after COMMS_LINKS_PATIENCES times the patience, as many nodes
 * may dial it at once; others at its end. What others say may be about its last process. */
#define COMMS_LINKS_PATIENCES 3u
#define COMMS_LINKS_LEAST_NS (1 * TIME_S)

/* --- Connections --- */

/* The communicator needs the connection to the node with that index, until its nodes are forgotten. If there
 * is none in time, the communicator fails. */
void comms_link_need(struct communicator *comm, uint32_t index, enum mesh_need how, uint64_t now_ns);
/* exec_comm_handler.need and p2p_comm_handler.need. */
bool comms_links_wanted(void *context, uint32_t index, bool mutual, uint64_t now_ns);
/* Whether the communicator needs the connection to that node, of the mesh's index. */
bool comms_link_is_needed(const struct communicator *comm, uint32_t node);
void comms_links_release(struct communicator *comm);
/* Call it when comm->link_ns has passed. */
void comms_links_step(struct communicator *comm, uint64_t now_ns);

/* --- The tree --- */

/* The parent of a node that is not the root. */
uint32_t comms_tree_parent(uint32_t index);
/* The promise is made, or it is a next generation: connects to parent and children. */
void comms_tree_begin(struct communicator *comm, uint64_t now_ns);
/* Whether such messages travel along the tree. */
bool comms_tree_carries(const Commd__Mesh__Message *message);
/* Sends a message to one node, or to all others. */
void comms_tree_send(struct communicator *comm, uint32_t index, const Commd__Mesh__Message *message);
void comms_tree_broadcast(struct communicator *comm, const Commd__Mesh__Message *message);
/* Sends a packed message, as it is, to the children. */
void comms_tree_to_children(struct communicator *comm, const uint8_t *bytes, size_t size_bytes);
void comms_tree_received(struct comms *comms, uint32_t node, const Commd__Mesh__Relay *relay,
                         uint64_t now_ns);
/*
 * This node's part is ready: tells the parent once all below are, too; of the root, and of a node whose
 * parent says so, the children. Returns whether all nodes are ready.
 */
bool comms_tree_is_ready(struct communicator *comm);
/* NextReady without a previous generation. */
void comms_tree_ready_received(struct comms *comms, uint32_t node, const Commd__Mesh__NextReady *said);
/* Names the children that are not ready: "node b, node c". */
void comms_tree_unready(const struct communicator *comm, struct comms_text *text);
/* No rank is here any more, but other nodes' messages pass through this node. */
bool comms_tree_is_needed(const struct communicator *comm);
/* Whether other nodes' messages pass through that node. */
bool comms_tree_passes(const struct communicator *comm, uint32_t index);

/* --- post.c: messages for nodes that may not be connected --- */

/*
 * Sends a message, at once or as soon as the node is connected, which it asks for. It is dropped after the
 * patience, or beyond COMMS_POSTS_MAX_BYTES: the node, or the communicator, then ends by a deadline. To
 * MESH_NODE_OWN: it arrives with the next tick.
 */
#define COMMS_POSTS_MAX_BYTES ((size_t)64 << 20)
void comms_post(struct comms *comms, uint32_t node, const Commd__Mesh__Message *message);
void comms_post_packed(struct comms *comms, uint32_t node, const uint8_t *bytes, size_t size_bytes);
void comms_posts_node_up(struct comms *comms, uint32_t node);
uint64_t comms_posts_deadline_ns(const struct comms *comms);
void comms_posts_tick(struct comms *comms, uint64_t now_ns);
void comms_posts_free(struct comms *comms);

#endif
