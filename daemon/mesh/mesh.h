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
 * Each pair of nodes has one control stream in each direction, with framed protobuf (proto/mesh.proto,
 * proto/frame.h). A node is up once both sides have said Hello (same cluster, same protocol version, the
 * certificate's name). It is down when its connection is lost or when no heartbeat was answered in time.
 * Heartbeats travel end to end, from mesh to mesh. The node with the lower name (strcmp) dials. Lost
 * connections that are needed are dialled again with exponential back-off and jitter. A connection that is
 * lost within the patience is replaced by the net without a word to the mesh: see net.h.
 *
 * Single-threaded. Time is an argument.
 */
struct mesh;

/*
 * A node that breaks the protocol is held off: its connection ended with PROTOCOL, whichever layer found the
 * fault. During that time we do not dial it, and refuse its connections. The time doubles with each
 * violation. It starts again from the minimum after MESH_HOLD_OFF_FORGIVEN_NS without a violation, or when
 * the operator asks for it (mesh_end_hold_offs).
 */
#define MESH_HOLD_OFF_MIN_NS (1 * TIME_S)
#define MESH_HOLD_OFF_MAX_NS (60 * TIME_S)
#define MESH_HOLD_OFF_FORGIVEN_NS (600 * TIME_S) /* after the end of the last hold-off */

#define MESH_CLUSTER_NAME_MAX_BYTES 255
#define MESH_NODE_OWN UINT32_MAX /* this node; other nodes have the indices of net's peers */

struct mesh_options {
    const char *node_name;
    const char *cluster_name; /* both sides must agree; "" is a name, too */
    const char *version_text; /* of this commd, shown to people */
    uint64_t instance;        /* random, never 0; a restarted daemon has another one */
    uint64_t incarnation;     /* greater than at earlier starts: microseconds since 1970. Default 0: those
                                 of now_ns */
    uint64_t now_ns;          /* the time; default 0 */
    uint64_t heartbeat_interval_ns; /* default 500 ms */
    uint64_t
        heartbeat_timeout_ns;    /* the patience, default 4 s: a pause of the path, or of the other
                                    daemon, of 3.9 s ends nothing, and a silent host is noticed within 4.44 s */
    uint64_t suspect_timeout_ns; /* default 450 ms: used once the peer's host said that nobody listens */
    uint64_t reconnect_min_ns;   /* default 100 ms */
    uint64_t reconnect_max_ns;   /* default 5 s */
    uint64_t probe_interval_ns;  /* between measurements of links; default 0: none */
    uint64_t seed;               /* for jitter */
    /* Settings that nodes tell each other: see mesh_node_info.differs. */
    uint64_t slice_bytes;   /* 0, the default: not told */
    bool takes_bulk;        /* this node takes bulk links: it offers MESH_OFFERS_BULK. Default: false */
    const char *algorithms; /* default: "" */
    /* Returns whether a user may be on a node of that name. Null, the default: every user may, everywhere. */
    bool (*user_may)(void *context, uint32_t uid, const char *node);
    void *user_may_context;
    bool hides_relays; /* as an older commd, it does not offer _RELAYS, _ENDS and _WITNESS. For tests */
};
void mesh_options_default(struct mesh_options *options);

/* Calls to the layer above (comms). Nodes are net's peer indices. */
struct mesh_handler {
    void *context;
    void (*node_up)(void *context, uint32_t node, uint64_t now_ns);
    /* UNREACHABLE: the connection ended because neither side needed it. */
    void (*node_down)(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
    /* Gets any message except Hello, heartbeats and echoes, which mesh answers itself. The message belongs to
     * mesh and is valid during the call. */
    void (*message)(void *context, uint32_t node, const Commd__Mesh__Message *message, uint64_t now_ns);
    /* The node, which is up, becomes suspect: mesh_node_is_suspect. May be null. */
    void (*node_suspect)(void *context, uint32_t node, uint64_t now_ns);
};

/* Makes a mesh, which registers with net as peer handler and for NET_STREAM_CONTROL. net outlives the mesh;
 * it is null for a node that is alone. Names are copied. */
enum status mesh_new(struct net *net, const struct mesh_options *options, struct mesh **out,
                     struct error *error) COMM_MUST_USE;
void mesh_free(struct mesh *mesh);
/* The rooms that mesh serves. Each gets the messages that are its own. They are told of nodes in this order.
 */
enum mesh_room {
    MESH_ROOM_COMM,   /* all messages that are not another room's */
    MESH_ROOM_STORE,  /* StoreAsk, StoreAnswer */
    MESH_ROOM_GATHER, /* Gather, Gathered */
    MESH_ROOMS
};
void mesh_set_handler(struct mesh *mesh, enum mesh_room room, const struct mesh_handler *handler);

/* Adds a node of the configuration (net_add_peer). A node that was removed gets its old index back. LIMIT,
 * ALREADY_EXISTS, INVALID_ARGUMENT (also for our own name). */
enum status mesh_add_node(struct mesh *mesh, const char *name, const char *address, uint32_t *node,
                          struct error *error) COMM_MUST_USE;

/*
 * Call it when the configuration no longer names the node. Its connection ends with that cause, which the
 * node is told. node_down follows if it was up. No connection is made or accepted until mesh_add_node. Its
 * index stays valid.
 */
void mesh_remove_node(struct mesh *mesh, uint32_t node, const struct error *cause, uint64_t now_ns);

/*
 * Changes the address of a node. If the node is not connected and we are the dialling side, we dial the new
 * address at once. A present connection stays. INVALID_ARGUMENT (the old address stays), NO_MEMORY.
 */
enum status mesh_move_node(struct mesh *mesh, uint32_t node, const char *address, uint64_t now_ns,
                           struct error *error) COMM_MUST_USE;

/*
 * For a node whose address has a name. mesh_resolve_node says which IP address the name has now: as
 * mesh_move_node, but the node keeps its address for people. mesh_unresolved says why the name has none. The
 * node then keeps the IP address that it had.
 */
enum status mesh_resolve_node(struct mesh *mesh, uint32_t node, const char *address, uint64_t now_ns,
                              struct error *error) COMM_MUST_USE;
void mesh_unresolved(struct mesh *mesh, uint32_t node, const struct error *why);
/*
 * Whether the node's name should be resolved now: no address is known, or the node is not up although a
 * connection is needed. In a large cluster most nodes are not connected. To ask for all their names again and
 * again would load the name servers.
 */
bool mesh_wants_address(const struct mesh *mesh, uint32_t node);

/*
 * Connections. A node keeps one to each of its neighbours (members.h): at most 8, whatever the cluster's
 * size. In a cluster of at most MEMBER_RINGS_SMALL nodes every node is every other node's neighbour; then
 * mesh_is_complete is true. Any other connection is dialled while somebody needs it: mesh_need counts, and
 * each call needs one mesh_unneed. A connection that neither node needs ends after MESH_IDLE_NS, and
 * node_down follows.
 *
 * MESH_NEED_BOTH: the other node will need it as well, so the node with the lower name dials; the other one
 * dials after MESH_CALL_NS. MESH_NEED_CALL: the other node may not know, so this node dials at once.
 */
enum mesh_need { MESH_NEED_BOTH, MESH_NEED_CALL };
#define MESH_CALL_NS (1 * TIME_S)
#define MESH_IDLE_NS (10 * TIME_S)
void mesh_need(struct mesh *mesh, uint32_t node, enum mesh_need how);
void mesh_unneed(struct mesh *mesh, uint32_t node, enum mesh_need how);
bool mesh_is_complete(const struct mesh *mesh);

/*
 * What is known of a node's commd. It is alive if it is up, or if other nodes say that it runs and no
 * connection is needed here. It is out of reach if it is not up, and other nodes have lost it or its address
 * has a name that is not resolved.
 */
bool mesh_node_is_alive(const struct mesh *mesh, uint32_t node);
bool mesh_node_is_out_of_reach(const struct mesh *mesh, uint32_t node);
/* Whether the node's commd runs, as this node or others say, with or without a connection to it from here. */
bool mesh_node_is_member(const struct mesh *mesh, uint32_t node);
/* How long the node has answered no heartbeat; 0 if it is not up. In order: about one interval at most. */
uint64_t mesh_node_silent_ns(const struct mesh *mesh, uint32_t node, uint64_t now_ns);
/*
 * Asks whether some process listens at the node's address, by one datagram: see net_probe. The answer proves
 * nothing. mesh_node_answered_ns says when the last one came; 0: none has. Returns false if the node cannot
 * be asked.
 */
bool mesh_ask(const struct mesh *mesh, uint32_t node);
/*
 * Of a node that is up: whether its host says that no commd listens, and no heartbeat has been answered
 * since. It is given up after suspect_timeout_ns.
 */
bool mesh_node_is_suspect(const struct mesh *mesh, uint32_t node);
/*
 * Of a node that is not up: whether its host has said so more than once, for suspect_timeout_ns and lately,
 * as this node has dialled it or called mesh_ask. The node has answered nothing meanwhile. So its process has
 * ended.
 */
bool mesh_node_refuses(const struct mesh *mesh, uint32_t node, uint64_t now_ns);
uint64_t mesh_node_answered_ns(const struct mesh *mesh, uint32_t node);
/*
 * Of a node that is not up: whether the process of its last connection is known to have ended. Its host says
 * that nobody listens, it said goodbye, or another process has taken its place. Of a node without a
 * connection, its host says so of the last attempt since mesh_need. Silence proves nothing, and neither do
 * texts: a peer's reason to close a connection may say anything.
 */
bool mesh_node_process_ended(const struct mesh *mesh, uint32_t node);

/*
 * mesh_tick dials, probes, and notices silence. mesh_next_deadline_ns says by when it must be called again.
 */
uint64_t mesh_next_deadline_ns(const struct mesh *mesh);
void mesh_tick(struct mesh *mesh, uint64_t now_ns);

/* This node takes no new communicators, or does so again. All nodes with a connection to it know that after
 * an interval of heartbeats. */
void mesh_set_draining(struct mesh *mesh, bool draining);

/* commd is shutting down: tells its neighbours, and so all nodes, that it leaves. Call it before net_free. */
void mesh_leave(struct mesh *mesh, uint64_t now_ns);

/* Initialises a message of a kind with its body: MESH_MESSAGE(LEAVE, leave, &body). */
#define MESH_MESSAGE(KIND, member, body_at)                                                                  \
    {                                                                                                        \
        .base = PROTOBUF_C_MESSAGE_INIT(&commd__mesh__message__descriptor),                                  \
        .body_case = COMMD__MESH__MESSAGE__BODY_##KIND, .member = (body_at)                                  \
    }

/*
 * Sends a message on the control stream. UNREACHABLE when the node is not up. If the stream's queue is full
 * because the peer does not read, the peer is disconnected, and LIMIT is returned.
 */
enum status mesh_send(struct mesh *mesh, uint32_t node, const Commd__Mesh__Message *message) COMM_MUST_USE;
/* As mesh_send, for a message of 1 to FRAME_MAX_BYTES bytes that is packed already. */
enum status mesh_send_packed(struct mesh *mesh, uint32_t node, const uint8_t *bytes,
                             size_t size) COMM_MUST_USE;
/* As mesh_send. If it fails, the node is lost: node_down has come, or will. */
void mesh_tell(struct mesh *mesh, uint32_t node, const Commd__Mesh__Message *message);
/* How many messages to the node are not acknowledged. 0 if it is not connected. */
uint32_t mesh_node_queued(const struct mesh *mesh, uint32_t node);
/*
 * Whether some node's control stream holds at least MESH_CROWDED messages that the node has not acknowledged.
 * Then messages that clients can cause in any number must wait. The rest of the queue is kept for heartbeats
 * and for what is under way.
 */
#define MESH_CROWDED (NET_STREAM_QUEUE_MAX / 4)
bool mesh_is_crowded(const struct mesh *mesh);
/*
 * The node sent what no correct node sends, whatever its users call. Its connection is dropped with PROTOCOL
 * and this text, node_down follows, and the node is held off. Does nothing if the connection is gone already.
 */
void mesh_violation(struct mesh *mesh, uint32_t node, const char *what);
/* Ends all hold-offs and forgets past violations: the nodes may connect again. */
void mesh_end_hold_offs(struct mesh *mesh, uint64_t now_ns);
/* Tells every node that is up and on which the user may be. */
void mesh_broadcast(struct mesh *mesh, uint32_t uid, const Commd__Mesh__Message *message);

/* For people (commctl ping): sends an echo. Dials first if the node is alive, and no connection to it is
 * needed otherwise; that time does not count as round trip. done is called exactly once, also on time-out or
 * loss, never from within this call. */
typedef void mesh_ping_function(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns);
#define MESH_PINGS_MAX 1024
enum status mesh_ping(struct mesh *mesh, uint32_t node, uint64_t timeout_ns, mesh_ping_function *done,
                      void *context, uint64_t now_ns, struct error *error) COMM_MUST_USE;
/* Forgets the pings of a context that goes away: done is not called. */
void mesh_ping_forget(struct mesh *mesh, void *context);

/*
 * Reports the speed of this node's links, for choosing algorithms: the median over its peers of half the
 * shortest round trip, and of the bandwidth each way, as measured. Where there is no link, estimated round
 * trips count, if they are good. 0: not known.
 */
void mesh_link_estimate(const struct mesh *mesh, uint64_t *latency_ns, uint64_t *bytes_per_s);
/* The same for one peer. Without a measured link to it, its latency is estimated, if that is known. */
void mesh_link_to(const struct mesh *mesh, uint32_t node, uint64_t *latency_ns, uint64_t *bytes_per_s);
/* The estimated round trip to a node to which there is no link (estimate.c). 0: there is a link, or it is not
 * known. */
uint64_t mesh_estimated_round_trip_ns(const struct mesh *mesh, uint32_t node);

/*
 * Warns of certificates that expire soon, this node's and others': see expiry.h. now_s is the wall clock's
 * time, in seconds since 1970. Call it about hourly.
 */
void mesh_check_certificates(struct mesh *mesh, uint64_t now_s);

enum mesh_node_state {
    MESH_NODE_DOWN,       /* no connection; the next attempt is scheduled (or the peer dials) */
    MESH_NODE_UNRESOLVED, /* likewise, and the name in its address is not resolved: only mesh_node_info says
                             so */
    MESH_NODE_CONNECTING, /* the network tries to connect */
    MESH_NODE_GREETING,   /* connected; Hello not yet exchanged */
    MESH_NODE_UP,
    /* Only mesh_node_info says these two, of nodes to which no connection is needed here. */
    MESH_NODE_ALIVE,   /* its commd runs, as other nodes say */
    MESH_NODE_UNKNOWN, /* no node has heard of its commd yet */
    MESH_NODE_REMOVED  /* the configuration no longer names it */
};
const char *mesh_node_state_text(enum mesh_node_state state);

struct mesh_node_info {
    const char *name;
    const char *address;
    const char *resolved_address; /* what mesh_resolve_node said; "" if it was not called */
    enum mesh_node_state state;
    uint64_t since_ns;                /* when the state began */
    uint64_t instance;                /* 0 before the first Hello */
    const char *version_text;         /* the peer's; "" before the first Hello */
    uint64_t heartbeat_round_trip_ns; /* of the last answer; 0 when none */
    uint64_t estimated_round_trip_ns; /* as mesh_estimated_round_trip_ns */
    const char *differs;              /* which settings differ from ours, and how; "" if none does */
    bool draining;                    /* it is up, and has said so lately; see mesh_set_draining */
    const char *last_error;           /* why it was last lost or not reached; "" when never */
    struct net_peer_statistics net;
};
/* Nodes without ourselves, removed ones included. Node indices are below this number. */
uint32_t mesh_node_count(const struct mesh *mesh);
/* Nodes without ourselves and without removed ones. */
uint32_t mesh_configured_count(const struct mesh *mesh);
bool mesh_node_is_removed(const struct mesh *mesh, uint32_t node);
void mesh_node_info(const struct mesh *mesh, uint32_t node,
                    struct mesh_node_info *out); /* texts belong to mesh, valid until it runs again */
/* node: an index, or MESH_NODE_OWN. */
const char *mesh_node_name(const struct mesh *mesh, uint32_t node);
/* Whether the user may be on that node: an index, or MESH_NODE_OWN. */
bool mesh_user_may(const struct mesh *mesh, uint32_t uid, uint32_t node);
bool mesh_node_is_up(const struct mesh *mesh, uint32_t node);
/* Features that a node may offer, one bit each. Their names on the wire are in proto/version.h. */
#define MESH_OFFERS_STORE 1u
#define MESH_OFFERS_GATHER 2u
#define MESH_OFFERS_BULK 4u
#define MESH_OFFERS_RELAYS 8u
#define MESH_OFFERS_ENDS 16u
#define MESH_OFFERS_WITNESS 32u
/* Whether the node offered this feature when it last said Hello. */
bool mesh_node_offers(const struct mesh *mesh, uint32_t node, unsigned feature);
/* Whether a node of that name is known and not removed; *node gets its index. */
bool mesh_find_node(const struct mesh *mesh, const char *name, uint32_t *node);
const char *mesh_own_name(const struct mesh *mesh);
/* How long a node may be silent (mesh_options.heartbeat_timeout_ns). */
uint64_t mesh_patience_ns(const struct mesh *mesh);
uint64_t mesh_own_instance(const struct mesh *mesh);

#endif
