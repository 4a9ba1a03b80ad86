#ifndef DAEMON_NET_QUIC_INBOX_H
#define DAEMON_NET_QUIC_INBOX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/turns.h"
#include "daemon/net/quic_socket.h"

/*
 * Shares the time for incoming datagrams among peers. All peers send to one socket, whose queue is first in,
 * first out. A datagram may hold hundreds of tiny frames, and then takes a hundred times as long as others of
 * its size.
 *
 * Datagrams are usually handled as they are read, in place. Once those of an event have taken longer than
 * their bytes justify, the inbox reads the socket empty and keeps copies, in one line for each peer. The
 * lines are served by deficit round robin over time (daemon/base/turns.h). So a peer whose datagrams take
 * long delays its own. Datagrams from addresses of no peer share one line.
 *
 * All zero at first. Without a clock, every datagram is handled in place. One thread.
 */
#define QUIC_INBOX_EVENT_NS 100000u            /* that the datagrams of an event may take ... */
#define QUIC_INBOX_NS_PER_BYTE 3u              /* ... and this much more for each of their bytes */
#define QUIC_INBOX_SERVE_NS 200000u            /* of datagrams that wait, in one event */
#define QUIC_INBOX_DATAGRAMS_PER_LOOK 4u       /* at the clock */
#define QUIC_INBOX_LINE_MAX_BYTES (4u << 20)   /* kept of one peer; its further datagrams are dropped */
#define QUIC_INBOX_TOTAL_MAX_BYTES (32u << 20) /* kept in all; further datagrams are dropped */

struct quic_kept;
struct quic_inbox;

/* The datagrams of one peer that wait. Embedded in its owner; zero at first. */
struct quic_line {
    struct quic_inbox *inbox; /* null: none has waited yet */
    struct turn turn;
    struct turn_line time;
    struct quic_kept *first, *last;
    size_t bytes;
};

struct quic_inbox {
    struct turns turns;
    quic_datagram_function *handle;
    void *context;
    size_t bytes;     /* of all lines */
    uint64_t dropped; /* datagrams */

    /* Of this event: */
    uint64_t looked_ns; /* the first look at the clock; 0: none yet */
    size_t handled_bytes;
    uint32_t handled; /* datagrams */
};

void quic_inbox_init(struct quic_inbox *inbox, quic_datagram_function *handle, void *context);

/* An event begins: the socket is about to be read. clock: in ns; null: there is none. */
void quic_inbox_begin(struct quic_inbox *inbox, uint64_t (*clock)(void));
/* Handles the datagram in place. Returns false, with nothing done, if it must wait. */
bool quic_inbox_handle(struct quic_inbox *inbox, const struct quic_datagram *datagram);
/* Keeps a copy of a datagram that must wait. Drops it beyond the limits above, or when out of memory. */
void quic_inbox_keep(struct quic_inbox *inbox, struct quic_line *line, const struct quic_datagram *datagram);
/* Handles datagrams that wait, for about QUIC_INBOX_SERVE_NS. */
void quic_inbox_serve(struct quic_inbox *inbox);
/* Whether datagrams wait. */
bool quic_inbox_waits(const struct quic_inbox *inbox);

/* Drops what waits in the line. */
void quic_inbox_clear(struct quic_line *line);

#endif
