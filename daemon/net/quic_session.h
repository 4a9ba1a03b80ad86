#ifndef DAEMON_NET_QUIC_SESSION_H
#define DAEMON_NET_QUIC_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/time.h"
#include "daemon/net/quic_address.h"
#include "daemon/net/quic_numbers.h"

/* What outlives a connection, and how its end is noticed. Used only in daemon/net/quic*. */

/*
 * A connection on which nothing came for QUIC_SILENT_NS, although something was sent that the peer must
 * answer, is given up: another one is dialled, and the streams go on there. The same holds if no byte of a
 * stream was acknowledged for QUIC_STUCK_NS, although packets came. The session ends, and with it the
 * streams, when the patience has passed without a connection.
 */
/* When the options say 0. */
#define QUIC_PATIENCE_NS (4 * TIME_S)

/* The longer of a time and a number of smoothed round trips, which has a limit. */
#define QUIC_SILENT_NS (600 * TIME_MS)
#define QUIC_SILENT_ROUND_TRIPS 8u
#define QUIC_SILENT_MAX_NS (2 * TIME_S)

/* The same if the peer sends from another address, so it cannot answer at the one that we know. */
#define QUIC_MOVED_NS (150 * TIME_MS)
#define QUIC_MOVED_ROUND_TRIPS 3u

/* The streams are looked at once in QUIC_STUCK_LOOK_NS. */
#define QUIC_STUCK_NS (1500 * TIME_MS)
#define QUIC_STUCK_LOOK_NS (100 * TIME_MS)

/* If our own loop was late by this, nothing before counts as silence. */
#define QUIC_LATE_NS (250 * TIME_MS)

/*
 * An attempt to dial again is looked at after this time, and each time after half as long again. While it
 * gets answers, no other one begins: nodes that work on attempts which are over never get to the one that is
 * not. Without an answer it goes on for QUIC_ATTEMPT_LAST_NS, and asks again at least every
 * QUIC_ATTEMPT_ASK_NS; but if the peer may have another address, that is tried next.
 */
#define QUIC_ATTEMPT_MIN_NS (500 * TIME_MS)
#define QUIC_ATTEMPT_MAX_NS (1 * TIME_S)
#define QUIC_ATTEMPT_LAST_NS (2 * TIME_S)
#define QUIC_ATTEMPT_ASK_NS (400 * TIME_MS)
/* An attempt that has had answers, but none for this time, gets none. And it is as good as over if it is not
 * in use so long after the first one. */
#define QUIC_ATTEMPT_SILENT_NS (1 * TIME_S)
#define QUIC_ATTEMPT_ENDS_NS (2 * TIME_S)

/* An attempt that failed is followed by another after this time. */
#define QUIC_ATTEMPT_AGAIN_NS (100 * TIME_MS)

/*
 * The side with the higher name dials, too, after this time. It waits on while a handshake from the peer's
 * address is as young as QUIC_GIVE_WAY_NS: two handshakes would take each side twice the time. Anybody can
 * pretend to send from there, so it does not look at that for ever.
 */
#define QUIC_OTHER_SIDE_NS (250 * TIME_MS)
#define QUIC_GIVE_WAY_NS (500 * TIME_MS)
#define QUIC_GIVE_WAY_MAX 5u /* waits of QUIC_ATTEMPT_AGAIN_NS */

#define QUIC_KEEP_ALIVE_NS (500 * TIME_MS)

/* Bytes of streams that may come before the peer's greeting. So much may be under way while a lost one is
 * sent again. */
#define QUIC_EARLY_MAX_BYTES (4u << 20)

/*
 * The beginning of every stream: its kind and number. A stream that goes on after its connection was lost has
 * QUIC_KIND_RESUMED added to its kind, and the offset from which it goes on.
 */
#define QUIC_KIND_GREETING 0x40u /* of the stream that has the greeting; it has no number */
#define QUIC_KIND_RESUMED 0x80u
#define QUIC_BEGINNING_BYTES 9u
#define QUIC_RESUMPTION_BYTES 17u
/* Added to the number of a resumed stream: the code with which it is reset. Its beginning may be lost. */
#define QUIC_RESET_NUMBERED (1ull << 32)
#define QUIC_NO_NUMBER UINT64_MAX /* of our greeting's sender */

struct quic_connection;
struct quic_receiver;
struct quic_peer;

/* What outlives a connection, beside its streams. It belongs to the connection that is in use, or suspended.
 */
struct quic_session {
    uint64_t own_id;      /* chosen by us */
    uint64_t peer_id;     /* chosen by the peer */
    uint64_t next_number; /* of the next outgoing stream */
    struct quic_numbers seen;
    uint32_t sender_count;
    /* While it is suspended: */
    uint64_t suspended_ns;
    uint64_t heard_ns; /* when the peer was last known to answer */
    uint64_t give_up_ns;
    uint64_t attempt_ns; /* when the next attempt is due */
    uint64_t attempt_length_ns;
    uint64_t asked_ns;   /* when a handshake from the peer's address last began; 0: none has */
    unsigned waits_left; /* see QUIC_GIVE_WAY_MAX */
    unsigned attempts; /* in turn at the address where the peer was last, its spare one, and the first one */
};

/* A receiver that waits until its sender resumes it. */
struct quic_unresumed {
    uint64_t number;
    struct quic_receiver *receiver; /* null: it was resumed, or is over */
};

/* Sends our greeting on a connection that is authenticated. */
void quic_session_greet(struct quic_connection *connection);
/* The peer's greeting has come: the connection takes over the streams of the suspended one. Returns false,
 * with the failure noted, if the peer lies or memory is short. */
bool quic_session_resume(struct quic_connection *connection, struct quic_connection *suspended);
/*
 * Whether the process that greets is the one of the suspended session. A process of a
 * release before this rule looks like another one.
 */
bool quic_session_same_process(const struct quic_connection *connection,
                               const struct quic_connection *suspended);
/* Whether both sides remember the same session. */
bool quic_session_matches(const struct quic_connection *connection, const struct quic_connection *suspended);
/* The connection in use is lost. Its streams wait. */
void quic_session_suspend(struct quic_connection *connection, uint64_t now_ns);
/* Where to dial the peer of a suspended connection now. */
const struct quic_address *quic_session_address(const struct quic_connection *suspended);
/* The suspended connection's peer could not be dialled: it is tried again soon. */
void quic_session_attempt_failed(struct quic_connection *suspended, uint64_t now_ns);
/* A handshake begins that comes from the peer's address. Accepts null. */
void quic_session_asked(const struct quic_peer *peer, uint64_t now_ns);
/* Dials again, or ends the session, when it is time. */
void quic_session_tick(struct quic_connection *connection, uint64_t now_ns);
/* Returns the receiver of that number that waits to be resumed, and forgets it. Null: there is none. */
struct quic_receiver *quic_session_take_unresumed(struct quic_connection *connection, uint64_t number);
/* Frees what the session has, its streams excepted. */
void quic_session_clear(struct quic_connection *connection);

/* --- quic_home.c --- */

/* Called on the connection's timer. A connection at the peer's spare address may be due to go back to the
 * first one: then that is dialled, not within this call. */
void quic_home_watch(struct quic_connection *connection, uint64_t now_ns);
/* When quic_home_watch has to be called next; TIME_NEVER: the connection is where it belongs. */
uint64_t quic_home_deadline_ns(const struct quic_connection *connection);

/* --- quic_watch.c --- */

/*
 * A packet of a connection has come. Returns whether it came from where the peer is. We have dialled a peer
 * that then moves to another address: we still send to the old one, and QUIC discards what comes from the new
 * one (RFC 9000, 9). So the connection is given up soon, and the next attempt goes to the new address.
 * Anybody who sees packets can pretend that; this costs a new connection if the peer does not answer
 * meanwhile.
 */
bool quic_watch_origin(struct quic_connection *connection, const struct quic_address *remote);
/* Whether the peer answers on that connection, which is not in use yet. Accepts null. */
bool quic_watch_has_answers(const struct quic_connection *attempt, uint64_t now_ns);
/* Whether the connection is silent because its peer has moved to `elsewhere`. */
bool quic_watch_has_moved(const struct quic_connection *connection);

/* Notes that the connection is lost if the peer is silent, or acknowledges nothing. */
void quic_watch(struct quic_connection *connection, uint64_t now_ns);
/* When quic_watch has to be called next. */
uint64_t quic_watch_deadline_ns(const struct quic_connection *connection);

#endif
