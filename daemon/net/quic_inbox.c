#include "daemon/net/quic_inbox.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

struct quic_kept {
    struct quic_kept *next;
    struct quic_address local;
    struct quic_address remote;
    size_t size;
    uint8_t ecn;
    uint8_t bytes[];
};

void quic_inbox_init(struct quic_inbox *inbox, quic_datagram_function *handle, void *context)
{
    *inbox = (struct quic_inbox){.turns = {.pieces_per_look = 1, .serve_ns = QUIC_INBOX_SERVE_NS},
                                 .handle = handle,
                                 .context = context};
}

bool quic_inbox_waits(const struct quic_inbox *inbox)
{
    return inbox->bytes > 0;
}

void quic_inbox_begin(struct quic_inbox *inbox, uint64_t (*clock)(void))
{
    inbox->turns.clock = clock;
    inbox->looked_ns = 0;
    inbox->handled_bytes = 0;
    inbox->handled = 0;
}

/* --- Waiting --- */

static struct quic_kept *quic_line_pop(struct quic_line *line)
{
    struct quic_kept *kept = line->first;
    line->first = kept->next;
    line->bytes -= sizeof *kept + kept->size;
    line->inbox->bytes -= sizeof *kept + kept->size;
    return kept;
}

static enum turn_result quic_line_turn(void *context, uint64_t now_ns)
{
    (void)now_ns;
    struct quic_line *line = context;
    struct quic_inbox *inbox = line->inbox;
    struct quic_kept *kept = quic_line_pop(line);
    struct quic_datagram datagram = {.bytes = kept->bytes,
                                     .size = kept->size,
                                     .local = &kept->local,
                                     .remote = &kept->remote,
                                     .ecn = kept->ecn};
    inbox->handle(inbox->context, &datagram);
    free(kept);
    return line->first != NULL ? TURN_MORE : TURN_DONE;
}

void quic_inbox_keep(struct quic_inbox *inbox, struct quic_line *line, const struct quic_datagram *datagram)
{
    size_t bytes = sizeof(struct quic_kept) + datagram->size;
    bool fits = line->bytes + bytes <= QUIC_INBOX_LINE_MAX_BYTES &&
                inbox->bytes + bytes <= QUIC_INBOX_TOTAL_MAX_BYTES;
    struct quic_kept *kept = fits ? malloc(bytes) : NULL;
    if (kept == NULL) {
        inbox->dropped++; /* as if the socket had been full: its sender sends it again */
        return;
    }
    kept->next = NULL;
    kept->local = *datagram->local;
    kept->remote = *datagram->remote;
    kept->size = datagram->size;
    kept->ecn = datagram->ecn;
    memcpy(kept->bytes, datagram->bytes, datagram->size);
    line->inbox = inbox;
    line->turn.line = &line->time;
    line->turn.function = quic_line_turn;
    line->turn.context = line;
    if (line->first == NULL) {
        line->first = kept;
    } else {
        line->last->next = kept;
    }
    line->last = kept;
    line->bytes += bytes;
    inbox->bytes += bytes;
    turn_queue(&inbox->turns, &line->turn);
}

void quic_inbox_clear(struct quic_line *line)
{
    while (line->first != NULL) {
        free(quic_line_pop(line));
    }
    if (line->inbox != NULL) {
        turn_cancel(&line->inbox->turns, &line->turn);
    }
}

void quic_inbox_serve(struct quic_inbox *inbox)
{
    if (inbox->bytes > 0) {
        (void)turns_serve(&inbox->turns, inbox->turns.clock());
    }
}

/* --- In place --- */

/* Whether the datagrams of this event have taken longer than they may. */
static bool quic_inbox_is_late(struct quic_inbox *inbox)
{
    if (inbox->turns.clock == NULL || inbox->handled % QUIC_INBOX_DATAGRAMS_PER_LOOK != 0 ||
        inbox->handled == 0) {
        return false;
    }
    uint64_t now_ns = inbox->turns.clock();
    if (inbox->looked_ns == 0) {
        inbox->looked_ns = now_ns;
        inbox->handled_bytes = 0;
    }
    return now_ns - inbox->looked_ns > QUIC_INBOX_EVENT_NS + QUIC_INBOX_NS_PER_BYTE * inbox->handled_bytes;
}

bool quic_inbox_handle(struct quic_inbox *inbox, const struct quic_datagram *datagram)
{
    if (inbox->bytes > 0 || quic_inbox_is_late(inbox)) {
        return false;
    }
    inbox->handled++;
    inbox->handled_bytes += datagram->size;
    inbox->handle(inbox->context, datagram);
    return true;
}
