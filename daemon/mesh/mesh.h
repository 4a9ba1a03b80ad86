#ifndef DAEMON_MESH_MESH_H
#define DAEMON_MESH_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/time.h"
#include "daemon/net/net.h"
#include "proto/mesh.pb-c.h"

/*
 * The other nodes: who they are, whether they answer, and the messages that communicators exchange with them.
 * One control stream each way and peer, framed protobuf (proto/mesh.proto, proto/frame.h). A node is up once
 * both said Hello (same cluster, same protocol version, the certificate's name); it is down when its
 * connection is lost or when no heartbeat was answered in time: heartbeats travel end to end, from mesh to
 * mesh. The node with the lower name (strcmp) dials; lost connections are dialled again with exponential
 * back-off and jitter.
 *
 * Single-threaded. Time is an argument.
 */
struct mesh;

/*
 * A node that breaks the protocol (its connection ended with PROTOCOL, whichever layer found it) is held off:
 * for so long it is not dialled, and what it dials is refused. The time doubles with each violation, and
 * begins anew after a while without one, or when the operator says so (mesh_end_hold_offs).
 */
#define MESH_HOLD_OFF_MIN_NS (1 * TIME_S)
#define MESH_HOLD_OFF_MAX_NS (60 * TIME_S)
#define MESH_HOLD_OFF_FORGIVEN_NS (600 * TIME_S) /* after the end of the last one */

struct mesh_options {
    const char *node_name;
    const char *cluster_name;       /* both sides must agree; "" is a name, too */
    const char *version_text;       /* of this commd, for people */
    uint64_t instance;              /* random, never 0: a restarted daemon has another */
    uint64_t heartbeat_interval_ns; /* default 500 ms */
    uint64_t heartbeat_timeout_ns; /* default 2,500 ms: survives a 2 s blackhole, notices a silent host within
                                      3 s */
    uint64_t suspect_timeout_ns; /* default 600 ms: instead, once the peer's host said that nobody listens */
    uint64_t reconnect_min_ns;   /* default 100 ms */
    uint64_t reconnect_max_ns;   /* default 5 s */
    uint64_t probe_interval_ns;  /* between measurements of links; default 0: none */
    uint64_t seed;               /* for jitter */
};
void mesh_options_default(struct mesh_options *options);

/* What the layer above (comms) is told. Nodes are net's peer indices. */
struct mesh_handler {
    void *context;
    void (*node_up)(void *context, uint32_t node, uint64_t now_ns);
    void (*node_down)(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
    /* Any message but Hello, heartbeats and echoes, which mesh answers itself. The message is mesh's, and
     * valid during the call. */
    void (*message)(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns);
};

/* Registers itself with net as peer handler and for NET_STREAM_CONTROL. net outlives the mesh; null for a
 * node that is alone. Names are copied. */
enum status mesh_new(struct net *net, const struct mesh_options *options, struct mesh **out,
                     struct error *error) COMM_MUST_USE;
void mesh_free(struct mesh *mesh);
void mesh_set_handler(struct mesh *mesh, const struct mesh_handler *handler);

/* Adds a node of the configuration (net_add_peer), or one that was removed again, with its old index. LIMIT,
 * ALREADY_EXISTS, INVALID_ARGUMENT (also for our own name). */
enum status mesh_add_node(struct mesh *mesh, const char *name, const char *address, uint32_t *node,
                          struct error *error) COMM_MUST_USE;

/*
 * The configuration does not name the node any more: its connection ends for that cause, which it is told,
 * node_down follows if it was up, and none is made or accepted until mesh_add_node. Its index stays valid.
 */
void mesh_remove_node(struct mesh *mesh, uint32_t node, const struct error *cause, uint64_t now_ns);

/*
 * Another address. A node that is not connected, and that we dial, is dialled there at once; the connection
 * there is stays. INVALID_ARGUMENT (the old address stays), NO_MEMORY.
 */
enum status mesh_move_node(struct mesh *mesh, uint32_t node, const char *address, uint64_t now_ns,
                           struct error *error) COMM_MUST_USE;

/* Dials, probes, notices silence. mesh_next_deadline_ns says when it wants to be called again at the latest.
 */
uint64_t mesh_next_deadline_ns(const struct mesh *mesh);
void mesh_tick(struct mesh *mesh, uint64_t now_ns);

/* A message of a kind, with its body: MESH_MESSAGE(LEAVE, leave, &body). */
#define MESH_MESSAGE(KIND, member, body_at)                                                                  \
    {                                                                                                        \
        .base = PROTOBUF_C_MESSAGE_INIT(&commd__mesh__message__descriptor),                                  \
        .body_case = COMMD__MESH__MESSAGE__BODY_##KIND, .member = (body_at)                                  \
    }

/*
 * Sends a message on the control stream. UNREACHABLE when the node is not up. A peer that does not read (the
 * stream's queue is full) is disconnected, and LIMIT returned.
 */
enum status mesh_send(struct mesh *mesh, uint32_t node, const Commd__Mesh__Message *message) COMM_MUST_USE;
/*
 * Whether some node's control stream has MESH_CROWDED messages that it has not acknowledged. What clients
 * cause in any number waits then: the rest is kept for heartbeats and for what is under way.
 */
#define MESH_CROWDED (NET_STREAM_QUEUE_MAX / 4)
bool mesh_is_crowded(const struct mesh *mesh);
/*
 * The node said what no correct node says, whatever its users call: its connection is dropped with PROTOCOL
 * and this text, node_down follows, and it is held off. Does nothing when the connection is gone already.
 */
void mesh_violation(struct mesh *mesh, uint32_t node, const char *what);
/* Nodes that are held off may connect again, and have done nothing. */
void mesh_end_hold_offs(struct mesh *mesh, uint64_t now_ns);
/* To every node that is up. */
void mesh_broadcast(struct mesh *mesh, const Commd__Mesh__Message *message);

/* For people (commctl ping): sends an echo; done is called exactly once, also on time-out or loss, never from
 * within. */
typedef void mesh_ping_function(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns);
#define MESH_PINGS_MAX 1024
enum status mesh_ping(struct mesh *mesh, uint32_t node, uint64_t timeout_ns, mesh_ping_function *done,
                      void *context, uint64_t now_ns, struct error *error) COMM_MUST_USE;
/* Pings of a context that goes away are forgotten: done is not called. */
void mesh_ping_forget(struct mesh *mesh, void *context);

/*
 * What this node's links can do, by measurement: the median over its peers of half the shortest round trip,
 * and of the bandwidth each way; 0 for what is not known. For choosing algorithms.
 */
void mesh_link_estimate(const struct mesh *mesh, uint64_t *latency_ns, uint64_t *bytes_per_s);
/* The same of one peer. */
void mesh_link_to(const struct mesh *mesh, uint32_t node, uint64_t *latency_ns, uint64_t *bytes_per_s);

/*
 * Warns of certificates that end soon, this node's and others': see expiry.h. now_s is the wall clock's, in
 * seconds since 1970. Call it about hourly.
 */
void mesh_check_certificates(struct mesh *mesh, uint64_t now_s);

enum mesh_node_state {
    MESH_NODE_DOWN,       /* no connection; the next attempt is scheduled (or the peer dials) */
    MESH_NODE_CONNECTING, /* the network tries */
    MESH_NODE_GREETING,   /* connected; Hello not yet exchanged */
    MESH_NODE_UP,
    MESH_NODE_REMOVED /* the configuration does not name it any more */
};
const char *mesh_node_state_text(enum mesh_node_state state);

struct mesh_node_info {
    const char *name;
    const char *address;
    enum mesh_node_state state;
    uint64_t since_ns;                /* of the state */
    uint64_t instance;                /* 0 before the first Hello */
    const char *version_text;         /* the peer's; "" before the first Hello */
    uint64_t heartbeat_round_trip_ns; /* last; 0 when none */
    const char *last_error;           /* why it was last lost or not reached; "" when never */
    struct net_peer_statistics net;
};
/* Without ourselves; removed ones among them: nodes have the indices below it. */
uint32_t mesh_node_count(const struct mesh *mesh);
/* Without ourselves and removed ones. */
uint32_t mesh_configured_count(const struct mesh *mesh);
bool mesh_node_is_removed(const struct mesh *mesh, uint32_t node);
void mesh_node_info(const struct mesh *mesh, uint32_t node,
                    struct mesh_node_info *out); /* texts are mesh's, valid until it runs again */
const char *mesh_node_name(const struct mesh *mesh, uint32_t node);
bool mesh_node_is_up(const struct mesh *mesh, uint32_t node);
/* Whether a node of that name is known, and not removed; *node gets its index. */
bool mesh_find_node(const struct mesh *mesh, const char *name, uint32_t *node);
const char *mesh_own_name(const struct mesh *mesh);
uint64_t mesh_own_instance(const struct mesh *mesh);

#endif
