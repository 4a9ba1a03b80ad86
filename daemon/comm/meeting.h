#ifndef DAEMON_COMM_MEETING_H
#define DAEMON_COMM_MEETING_H

#include "daemon/comm/comms_internal.h"

/*
 * How nodes with ranks of one communicator find each other in a cluster where not every node is connected to
 * every other (mesh_is_complete).
 *
 * The owner's uid and the name choose some nodes of the cluster, the places (base/weight.h). Each node with
 * ranks, a guest, connects to the first MEETING_FIRST places and says Meet. A place tells each guest the
 * names of the other ones (Met). Guests then connect to each other and announce their ranks as in a complete
 * cluster (formation.c). So a place decides nothing: what it says costs at most connections.
 *
 * Two nodes find each other if one place is reached by both. Places that are out of reach come last.
 * While a communicator is forming, a guest turns to one more place each MEETING_NEXT_NS, up to
 * MEETING_PLACES_MAX, so nodes that see the cluster differently meet, too.
 *
 * A guest keeps its connection to a place while it is forming. The place remembers the guest longer: a rank
 * that comes too late still finds the nodes that refuse it. It forgets a guest when that says that it is
 * over, when the connection is lost (not when it ends because nobody needs it), when there is another one,
 * over which the guest says Meet again, and when the node has MEETING_GUESTS_MAX later entries. To say that
 * it is over, a guest connects to the place again (a farewell). An entry that is out of date costs a
 * connection until the communicator has formed.
 */
#define MEETING_FIRST 3
#define MEETING_FIRST_REPORTS 1 /* of a communicator that may form by a tree: see roster.h */
#define MEETING_NEXT_REPORTS_NS                                                                              \
    (3 * TIME_S)                        /* of such a one, while a place is connected; each pause is longer */
#define MEETING_PARTIAL_NS (1 * TIME_S) /* how often guests are told which ranks have been reported */
#define MEETING_PLACES_MAX 16
#define MEETING_NEXT_NS (1 * TIME_S)
/* A place waits that long before it tells guests of new ones, so that many who come at once cost few
 * messages. */
#define MEETING_TELL_NS (10 * TIME_MS)
#define MEETING_PAUSE_NS                                                                                     \
    (50 * TIME_MS)              /* and tells at most that often: nobody can make it talk all the time */
#define MEETING_GUESTS_MAX 4096 /* entries of one node at a place; then its oldest is forgotten */
#define MEETING_NAMES_MAX 256   /* in one Met; more follow in further ones */
#define MEETING_FAREWELL_NS (10 * TIME_S) /* then the place is not told */
#define MEETING_FAREWELLS_MAX 4096

/*
 * Relays. Communicators of MEETING_RELAYED_RANKS_LEAST ranks or more (meeting_choice.h) form with about
 * 2 * sqrt(n) new connections at the busiest of n nodes, instead of n. The names of nodes sort the guests
 * into about sqrt(n) groups. For each group the name and the owner choose relays, as they choose places. A
 * guest reports to its relay, and the relay hands all reports of its group on to a place (meeting_relay.h).
 * What the place says to guests takes the same way back. A relay whose place is lost turns to the next one,
 * as a guest would. A guest whose relay is lost turns to the next one at once, after MEETING_RELAYS_MAX of
 * them to places. If a relay brings about nothing, the place behind it may be at fault: the second relay
 * turns to two places at once, the third one to three. A guest also turns to them if a relay, or the relay's
 * place, does not know relays, or has too much to keep. A place takes the reports of a group only from the
 * first of its relays, so a node that lies can harm only formations for which it was chosen.
 */
#define MEETING_RELAYS_MAX 3 /* to which a guest turns */

/* --- The guest --- */

struct comms_relay;

struct comms_place {
    uint32_t node; /* the mesh's index, or MESH_NODE_OWN */
    bool is_relay;
    bool needed;      /* the guest needs the connection */
    uint32_t rosters; /* complete ones that counted */
};

/* This node, as a guest with one name. */
struct comms_guest {
    struct comms *comms;
    struct owned_name key;
    struct comms_place places[MEETING_PLACES_MAX]; /* to which it has turned */
    uint32_t place_count;
    uint64_t next_ns;          /* when to turn to one more; TIME_NEVER: never */
    uint64_t turn_ns;          /* when to do so although a place is connected */
    bool reports;              /* its communicator may form by a tree: roster.h */
    bool rests;                /* comms_guest_rest was called */
    uint32_t groups;           /* of guests, each with its relays; 0: it turns to places, not to relays */
    struct comms_relay *relay; /* it hands on others' reports; null: it has its own */
};

struct comms_guest_kind {
    uint32_t reported_size;    /* the size of a communicator that may form by a tree (roster.h); else 0 */
    struct comms_relay *relay; /* or a relay's */
};

/* Turns to the first places. Null without memory. The other functions accept null. */
struct comms_guest *comms_guest_new(struct comms *comms, const struct owned_name *key,
                                    const struct comms_guest_kind *kind, uint64_t now_ns);
/* Tells the places that it is over. */
void comms_guest_free(struct comms_guest *guest);
/* Call it when the deadline has passed. */
void comms_guest_step(struct comms_guest *guest, uint64_t now_ns);
/* A place, or a relay, has said what is not true: turns to a further one soon. A guest that has turned to
 * MEETING_RELAYS_MAX relays does not: they turn to further places themselves. */
void comms_guest_turn(struct comms_guest *guest, uint64_t now_ns);
/* Turns to further places at once, until it has turned to that many. */
void comms_guest_turn_to(struct comms_guest *guest, uint32_t count, uint64_t now_ns);
uint64_t comms_guest_deadline_ns(const struct comms_guest *guest);
/* The connections to places are not needed any more. */
void comms_guest_rest(struct comms_guest *guest);
void comms_guest_node_up(struct comms_guest *guest, uint32_t node);
/* That node is lost. If it was the last connected place, the guest turns to the next one soon. */
void comms_guest_node_down(struct comms_guest *guest, uint32_t node, uint64_t now_ns);

/* The farewells of guests that are gone. Call node_up before comms_guest_node_up. */
void comms_farewells_node_up(struct comms *comms, uint32_t node);
void comms_farewells_tick(struct comms *comms, uint64_t now_ns);
uint64_t comms_farewells_deadline_ns(const struct comms *comms);

/* Tells the places of the communicator's ranks again: they, or its nonce, have changed. */
void comms_guest_report(const struct communicator *comm, uint64_t now_ns);
/* Tells the places that it is over, and why. */
void comms_guest_withdraw(const struct communicator *comm, const Commd__Mesh__Withdraw *end);
/* For people: through which relays it has reported; nothing if it has turned to places. */
void comms_guest_describe(const struct comms_guest *guest, struct comms_text *text);
/* Whether it has turned to that node. A null guest has turned to none. */
bool comms_guest_knows(const struct comms_guest *guest, uint32_t node);
/* A place or relay has sent a complete roster. Returns whether it counts: so many do, and none once a later
 * place has sent one, as long as that is connected. Counts it. */
bool comms_guest_takes_roster(struct comms_guest *guest, uint32_t node);
/* Whether a complete roster of a later place has counted, and that place is connected. */
bool comms_guest_has_later_roster(const struct comms_guest *guest, uint32_t node);
/* Call it when the communicator's ranks were announced. Makes it a guest, unless the cluster is complete. */
void comms_guest_announce(struct communicator *comm, uint64_t now_ns);
/* That node has ranks of the communicator, or may have: announces ours to it. */
void comms_guest_meets(struct communicator *comm, uint32_t node, uint64_t now_ns);
void comms_guest_received(struct comms *comms, uint32_t node, const Commd__Mesh__Met *met, uint64_t now_ns);

/* --- The place --- */

/* A node says Meet itself. MESH_NODE_OWN: a communicator of this node. */
void comms_meeting_join(struct comms *comms, uint32_t node, const struct owned_name *key,
                        const Commd__Mesh__Announce *report, uint64_t now_ns);
/* The node's part has failed, and with it the communicator: tells the other guests that have reported.
 * visitor: who says so. Nothing happens if another node has reported for that node last. */
void comms_meeting_end(struct comms *comms, uint32_t visitor, uint32_t node, const struct owned_name *key,
                       const Commd__Mesh__Withdraw *end);
/* Likewise: the node has no part any more. */
void comms_meeting_leave(struct comms *comms, uint32_t visitor, uint32_t node, const struct owned_name *key);
/* A relay says what others have said to it. */
void comms_meeting_received_many(struct comms *comms, uint32_t relay, const Commd__Mesh__MeetMany *many,
                                 uint64_t now_ns);
void comms_meeting_received(struct comms *comms, uint32_t node, const Commd__Mesh__Meet *meet,
                            uint64_t now_ns);
/* The connection is lost, or a new one begins: forgets the node. cause: it is lost, so what it has reported
 * here cannot form any more; null: nothing is known. */
void comms_meeting_node_lost(struct comms *comms, uint32_t node, const struct error *cause);
void comms_meeting_tick(struct comms *comms, uint64_t now_ns);
uint64_t comms_meeting_deadline_ns(const struct comms *comms);
void comms_meeting_free(struct comms *comms);

#endif
