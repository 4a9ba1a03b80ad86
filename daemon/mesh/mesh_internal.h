#ifndef DAEMON_MESH_MESH_INTERNAL_H
#define DAEMON_MESH_MESH_INTERNAL_H

#include <stdatomic.h>

#include "daemon/base/backoff.h"
#include "daemon/base/index_table.h"
#include "daemon/base/random.h"
#include "daemon/base/sparse.h"
#include "daemon/base/time.h"
#include "daemon/base/timer_heap.h"
#include "daemon/mesh/coordinate.h"
#include "daemon/mesh/expiry.h"
#include "daemon/mesh/members.h"
#include "daemon/mesh/mesh.h"
#include "daemon/mesh/rail_links.h"
#include "proto/frame.h"
#include "proto/types.h"

/* Shared by the parts of the mesh. Used only in daemon/mesh. */

/*
 * How many connections a node dials at once. So a node that needs hundreds dials them in turn: a handshake
 * costs both sides milliseconds of processor time, and heartbeats must not wait for hundreds of them.
 * Neighbours come first. An attempt that is not answered within MESH_DIAL_TURN_NS makes room for another
 * one, and nodes that have failed before are not counted: silent hosts hold nobody up.
 */
#define MESH_LATE_NS (10 * TIME_MS) /* a tick that is later than that counts as a stall */
#define MESH_DIALS_MAX 2
#define MESH_DIAL_TURN_NS (1 * TIME_S)
#define MESH_REFUSALS_NS (1 * TIME_S) /* refusals that are further apart say nothing of the time between */
#define MESH_GONE_DIALS 8             /* the longest wait is so many times as long */

#define MESH_VERSION_TEXT_MAX_BYTES 63
#define MESH_DIFFERS_MAX_BYTES 256

/* The state that decides whether a peer is alive: see heartbeat.c. */
struct mesh_heartbeat {
    uint64_t number;         /* of the last one sent, from 1 */
    uint64_t sent_ns;        /* the latest */
    uint64_t next_ns;        /* when the next is due */
    uint64_t unanswered_ns;  /* when the oldest unanswered one was sent; TIME_NEVER when there is none */
    uint64_t answered_ns;    /* when the last answer came, or the node came up */
    uint64_t unanswered;     /* how many were sent since then, with it */
    uint64_t stalled_ns;     /* mesh->stalled_ns when the oldest unanswered one was sent */
    uint64_t suspect_ns;     /* since when the peer is suspect; TIME_NEVER when it is not */
    uint64_t suspect_number; /* an answer to this or a later heartbeat ends the suspicion */
    uint64_t round_trip_ns;
    uint64_t shortest_ns; /* of the last ones; 0: none was measured */
};

/* What is known of the link to a peer: see link.c. */
struct mesh_link {
    uint64_t round_trip_ns; /* the shortest; TIME_NEVER before the first measurement */
    uint64_t bytes_per_s;   /* 0 before the first measurement */
    uint32_t train_bytes;   /* of the next probe */
    uint32_t probes;
    uint32_t skipped;
    uint64_t token; /* of the last echo of the train under way */
    uint64_t sent_ns;
};

/* What people are shown of a peer. */
struct mesh_texts {
    char version_text[MESH_VERSION_TEXT_MAX_BYTES + 1];
    char last_error[ERROR_TEXT_MAX_BYTES];
    char differs[MESH_DIFFERS_MAX_BYTES];
};

/* What people read of a rail's link: the number's name, and where statistics have it. */
#define RAIL_NUMBERS(NUMBER)                                                                                 \
    NUMBER(sent_bytes, net.sent_bytes)                                                                       \
    NUMBER(received_bytes, net.received_bytes)                                                               \
    NUMBER(sent_packets, net.sent_packets)                                                                   \
    NUMBER(received_packets, net.received_packets)                                                           \
    NUMBER(lost_packets, net.lost_packets)                                                                   \
    NUMBER(lost_bytes, net.lost_bytes)                                                                       \
    NUMBER(resumed_count, net.resumed_count)                                                                 \
    NUMBER(round_trip_ns, net.round_trip_ns)                                                                 \
    NUMBER(bulk_allowed, bulk.allowed)                                                                       \
    NUMBER(bulk_connected, bulk.connected)                                                                   \
    NUMBER(bulk_chosen, bulk.chosen)                                                                         \
    NUMBER(bulk_net_rate, bulk.ways[0].rate)                                                                 \
    NUMBER(bulk_tls_rate, bulk.ways[1].rate)                                                                 \
    NUMBER(bulk_net_bytes, bulk.ways[0].bytes)                                                               \
    NUMBER(bulk_tls_bytes, bulk.ways[1].bytes)                                                               \
    NUMBER(bulk_connected_count, bulk.connected_count)                                                       \
    NUMBER(bulk_lost_count, bulk.lost_count)

/* The link of a rail other than 0 to a peer. Its numbers include earlier connections. */
struct mesh_rail_link {
#define DECLARE(number, member) _Atomic uint64_t number;
    RAIL_NUMBERS(DECLARE) /* set by the rail's thread, the rest by the main thread */
#undef DECLARE
    uint32_t needs; /* mesh_need_rails without mesh_unneed_rails */
    bool up;
    bool dialling;
    struct backoff dial;
    char *why; /* the last failure; null: there was none */
};

/* A rail's end of its links. */
struct mesh_endpoint {
    struct mesh *mesh;
    uint32_t rail;
    struct net *net;
    struct mailbox *mailbox, *home; /* of the rail's thread, and of the main thread */
    /* Used by the rail's thread alone: */
    struct sparse
        peers; /* of struct mesh_peer *, by the net's index; null: the rail's net does not know it */
    uint64_t publish_ns; /* TIME_NEVER: no new traffic since the last time */
};

/* Orders from the main thread to a rail's, and reports from the rail's thread to the main one. */
enum rail_word {
    RAIL_ADD, /* a new peer */
    RAIL_MOVE,
    RAIL_SPARE, /* see net_set_spare */
    RAIL_REMOVE,
    RAIL_CONNECT,
    RAIL_DISCONNECT,
    RAIL_KEEP_ALIVE,
    RAIL_LET_IDLE, /* the transport closes an idle connection */
    RAIL_BULK,     /* the peer takes bulk links */
    RAIL_NO_BULK,
    RAIL_IS_UP,
    RAIL_IS_LOST,
    RAIL_HAS_FAILED
};

struct rail_mail {
    struct mail mail;
    struct mesh_endpoint *endpoint;
    struct mesh_peer *peer;
    enum rail_word word;
    bool closed_by_peer; /* of RAIL_IS_LOST */
    struct error cause;
    char address[]; /* of RAIL_ADD, RAIL_MOVE and RAIL_SPARE */
};

/* What is known of a peer from its first connection on: most peers of a large cluster never have one. */
struct mesh_contact {
    struct net_stream *outgoing, *incoming;
    struct frame_decoder decoder;
    struct mesh_heartbeat heartbeat;
    struct mesh_link link;
    uint64_t greeting_deadline_ns;
    uint64_t held_off_until_ns;
    uint64_t hold_off_ns; /* the length of the last hold-off; 0: none */
    uint64_t instance;
    uint64_t incarnation; /* of the last Hello; 0 before */
    unsigned offers;      /* MESH_OFFERS_* */
    bool drains;          /* as its last heartbeat answer said */
    struct mesh_texts texts;
};

struct mesh_peer {
    struct mesh *mesh;
    uint32_t index; /* the net's */
    enum mesh_node_state state;
    char *address;
    char *resolved_address; /* null: the address has no name, or it is not resolved */
    uint64_t since_ns;
    bool closing;                  /* we are disconnecting it: peer_down will follow */
    bool dials;                    /* we dial first: our name is the lower one */
    bool neighbour;                /* members_is_neighbour, after the last change of the configuration */
    bool peer_needs;               /* it needs the connection: LinkNeed */
    bool told_needed;              /* what it was told of us */
    bool removed;                  /* MESH_NODE_REMOVED follows once the connection is over */
    bool process_ended;            /* see mesh_node_process_ended */
    bool unresolved;               /* it cannot be dialled */
    uint32_t needs;                /* mesh_need without mesh_unneed */
    uint32_t calls;                /* of these, those for which we dial whatever our name is */
    bool has_turn;                 /* it is being dialled, and counts */
    bool waits_to_dial;            /* in mesh->dial_queue */
    uint32_t refused_ms;           /* from refused_ns until it last did */
    struct mesh_peer *prev, *next; /* there */
    uint64_t answered_ns;          /* when it last answered mesh_ask; 0: never */
    uint64_t refused_ns;           /* since when its host refuses, without a connection; 0: it does not */
    uint64_t call_ns;              /* when we dial although our name is the higher one; 0: not decided yet */
    uint64_t let_go_ns;            /* when a connection that nobody needs ends; 0: not decided yet */
    struct backoff dial;           /* failures since it was last up */
    struct coordinate coordinate;
    uint64_t coordinate_s;        /* as of which time; 0: not known */
    struct mesh_rail_link *rails; /* of rails 1 and higher; null: they do not know the peer */
    char *rail_addresses;         /* null: none */
    struct mesh_contact *contact; /* null: see above; a peer that greets or is up has one */
    struct timer_node timer;
    char name[];
};

struct mesh_ping_entry {
    struct mesh_ping_entry *prev, *next;
    struct mesh_peer *peer;
    uint64_t token;
    uint64_t sent_ns; /* 0: it waits for the connection */
    uint64_t deadline_ns;
    bool needs_link; /* it called mesh_need, and is sent once the node is up */
    mesh_ping_function *done;
    void *context;
};

struct mesh {
    struct net *net;
    struct mesh_options options; /* its texts are the next three members */
    char node_name[NODE_NAME_MAX_BYTES + 1];
    char cluster_name[MESH_CLUSTER_NAME_MAX_BYTES + 1];
    char version_text[MESH_VERSION_TEXT_MAX_BYTES + 1];
    char *algorithms;
    struct mesh_handler handlers[MESH_ROOMS];
    struct mesh_peer **peers; /* by the net's index */
    uint32_t peer_count;
    uint32_t removed_count; /* removed ones of these */
    uint32_t peer_capacity;
    struct index_table by_name;
    struct timer_heap timers;
    struct random random;
    struct mesh_ping_entry *pings;
    uint32_t ping_count;
    uint64_t ping_token;
    struct mesh_peer *link_probed; /* the peer whose answer we wait for, or null */
    uint32_t link_next;
    struct coordinate coordinate; /* this node's */
    uint64_t link_deadline_ns;
    struct expiry expiry;
    uint64_t ping_deadline_ns; /* no ping is due earlier; TIME_NEVER without any ping */
    uint64_t wake_ns;          /* when the next tick was due, after the last one */
    uint64_t stalled_ns;       /* how long ticks have come late, in all: this node did not run, or was busy */
    struct mesh_peer *dial_queue; /* due, but MESH_DIALS_MAX attempts are under way */
    uint32_t dials;               /* peers that have a turn */
    struct members *members;
    uint32_t rail_count;
    struct mesh_endpoint *endpoints; /* rail_count; the first is unused. Null: no further rails */
    struct mesh_rail_handler rail_handler;
    bool rails_ended;
    bool drains;        /* mesh_set_draining */
    bool nodes_changed; /* the next tick finds out who the neighbours are */
};

/* peer.c */
struct mesh_peer *mesh_peer_at(const struct mesh *mesh, uint32_t node);
void mesh_peer_up(void *context, uint32_t node, uint64_t now_ns);
void mesh_peer_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
void mesh_peer_connect_failed(void *context, uint32_t node, const struct error *cause, uint64_t now_ns);
void mesh_peer_suspect(void *context, uint32_t node, uint64_t now_ns);
void mesh_peer_refuses(void *context, uint32_t node, uint64_t now_ns);
/* When the peer's host last refused, to a millisecond. */
static inline uint64_t mesh_peer_refused_last_ns(const struct mesh_peer *peer)
{
    return peer->refused_ns + peer->refused_ms * TIME_MS;
}
void mesh_peer_tick(struct mesh_peer *peer, uint64_t now_ns);
/* What is known of the peer, to read; without a contact, nothing is. */
const struct mesh_contact *mesh_peer_contact(const struct mesh_peer *peer);
/* Returns the peer's contact, made if there is none. Null without memory. */
struct mesh_contact *mesh_peer_contact_make(struct mesh_peer *peer);
/* The net has been told an address. */
void mesh_peer_address_set(struct mesh_peer *peer, char *resolved_address);
/* Sets the peer's timer after its state changed. */
void mesh_peer_arm(struct mesh_peer *peer);
/* The next attempt of one of the peer's links waits: it has failed, or the link was lost. */
void mesh_peer_back_off(struct mesh_peer *peer, struct backoff *dial, uint64_t now_ns);
/* The peer is known to run: what failed before does not count any more. */
void mesh_peer_dial_soon(struct mesh_peer *peer, uint64_t now_ns);
/* Drops the connection; peer_down follows and logs it. Does nothing if that is under way. */
void mesh_peer_disconnect(struct mesh_peer *peer, const struct error *cause);
void mesh_peer_end_hold_off(struct mesh_peer *peer, uint64_t now_ns);
/* The peer is up: its Hello was accepted. */
void mesh_peer_greeted(struct mesh_peer *peer, uint64_t now_ns);
/* As mesh_send, in any state that has a stream. */
enum status mesh_peer_send(struct mesh_peer *peer, const Commd__Mesh__Message *message) COMM_MUST_USE;
enum status mesh_peer_send_packed(struct mesh_peer *peer, const uint8_t *bytes, size_t size) COMM_MUST_USE;

/* message.c */
size_t mesh_stream_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns);
void mesh_stream_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns);
void mesh_send_hello(struct mesh_peer *peer);

/* heartbeat.c */
void mesh_heartbeat_start(struct mesh_peer *peer, uint64_t now_ns);
uint64_t mesh_heartbeat_deadline_ns(const struct mesh_peer *peer);
void mesh_heartbeat_tick(struct mesh_peer *peer, uint64_t now_ns);
void mesh_heartbeat_suspect(struct mesh_peer *peer, uint64_t now_ns);
/* The peer's heartbeat has been answered. If this node's own is due soon, it travels with the answer. */
void mesh_heartbeat_join(struct mesh_peer *peer, uint64_t now_ns);
void mesh_heartbeat_answered(struct mesh_peer *peer, const Commd__Mesh__HeartbeatAnswer *answer,
                             uint64_t now_ns);

/* need.c */
bool mesh_peer_is_needed(const struct mesh_peer *peer);
/* Whether neither side needs the connection. */
bool mesh_peer_is_idle(const struct mesh_peer *peer);
/* The peer has greeted, or its connection is over: what was told is void. */
void mesh_need_reset(struct mesh_peer *peer);
/* When the need for the peer's connection must be looked at; for a peer that is down, and for one that is up.
 */
uint64_t mesh_need_dial_ns(const struct mesh_peer *peer);
uint64_t mesh_need_deadline_ns(const struct mesh_peer *peer);
/* For a peer that is down: whether to dial it now. */
bool mesh_need_dials(struct mesh_peer *peer, uint64_t now_ns);
/* For a peer that is up: tells it of our need, and ends a connection that nobody needs. */
void mesh_need_tick(struct mesh_peer *peer, uint64_t now_ns);
void mesh_need_received(struct mesh_peer *peer, const Commd__Mesh__LinkNeed *said);
/* Finds out who the neighbours are. */
void mesh_need_neighbours(struct mesh *mesh);

/* link.c */
void mesh_link_start(struct mesh_link *link);
static inline uint64_t mesh_link_deadline_ns(const struct mesh *mesh)
{
    return mesh->options.probe_interval_ns == 0 ? TIME_NEVER : mesh->link_deadline_ns;
}
void mesh_link_tick(struct mesh *mesh, uint64_t now_ns);
void mesh_link_lost(struct mesh_peer *peer);
/* Returns whether the answer belongs to a probe. */
bool mesh_link_answered(struct mesh_peer *peer, uint64_t token, uint64_t now_ns);

/* estimate.c */
#define MESH_COORDINATES_MAX 2
struct mesh_coordinate_wire {
    Commd__Mesh__Coordinate body;
    int32_t at[COORDINATE_AXES];
};
struct mesh_coordinates {
    struct mesh_coordinate_wire wire[MESH_COORDINATES_MAX];
    Commd__Mesh__Coordinate *list[MESH_COORDINATES_MAX];
    size_t count;
};
/* What the answer to a heartbeat says of coordinates. */
void mesh_estimate_fill(struct mesh_peer *receiver, struct mesh_coordinates *out, uint64_t now_ns);
/* An answer has come, and the round trip of its heartbeat is known. */
void mesh_estimate_answered(struct mesh_peer *peer, const Commd__Mesh__HeartbeatAnswer *answer,
                            uint64_t now_ns);

/* rail_links.c: on the main thread. */
/* Whether each rail has a port at the peer's address. INVALID_ARGUMENT. */
enum status mesh_rails_check(const struct mesh_peer *peer, struct error *error) COMM_MUST_USE;
/* The net knows the peer, for the first time or again. INVALID_ARGUMENT, NO_MEMORY. */
enum status mesh_rails_add(struct mesh_peer *peer, struct error *error) COMM_MUST_USE;
/* The first connection to the peer is up, or a communicator needs its links: the rails get to know it. Most
 * peers of a large cluster never have one. Does nothing if they know it. INVALID_ARGUMENT, NO_MEMORY. */
enum status mesh_rails_open(struct mesh_peer *peer, struct error *error) COMM_MUST_USE;
/* It has another address. INVALID_ARGUMENT, NO_MEMORY. */
enum status mesh_rails_move(struct mesh_peer *peer, struct error *error) COMM_MUST_USE;
void mesh_rails_remove(struct mesh_peer *peer, const struct error *cause);
void mesh_rails_node_up(struct mesh_peer *peer);
void mesh_rails_node_down(struct mesh_peer *peer, const struct error *why);
/* When a link of the peer is dialled next; TIME_NEVER: none is. */
uint64_t mesh_rails_dial_ns(const struct mesh_peer *peer);
void mesh_rails_tick(struct mesh_peer *peer, uint64_t now_ns);
void mesh_rails_free(struct mesh *mesh);
void rail_reported(void *context, uint64_t now_ns);

/* rail_endpoint.c: on the rail's thread, but for the first. */
/* Without a cause, to be delivered by rail_ordered or rail_reported. Null without memory. */
struct rail_mail *rail_mail_new(struct mesh_endpoint *endpoint, struct mesh_peer *peer, enum rail_word word,
                                const char *address);
void rail_ordered(void *context, uint64_t now_ns);
void rail_peer_up(void *context, uint32_t peer, uint64_t now_ns);
void rail_peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);
void rail_connect_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns);

/* ping.c */
/* The peer is up: sends what waited for that. */
void mesh_ping_up(struct mesh_peer *peer, uint64_t now_ns);
void mesh_ping_answered(struct mesh_peer *peer, uint64_t token, uint64_t now_ns);
/* Ends every ping of the peer. */
void mesh_ping_lost(struct mesh_peer *peer, enum status status, uint64_t now_ns);
void mesh_ping_tick(struct mesh *mesh, uint64_t now_ns);
void mesh_ping_free(struct mesh *mesh);

#endif
