#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/array.h"
#include "daemon/net/tls_internal.h"

/* Which frames a link sends next: first those that streams owe, then data, the streams in turn. */

bool tls_compose_reset(struct tls_peer *peer, uint64_t number)
{
    uint64_t *resets =
        array_reserve(peer->resets, &peer->reset_capacity, sizeof *resets, (size_t)peer->reset_count + 1);
    if (resets == NULL) {
        return false;
    }
    peer->resets = resets;
    resets[peer->reset_count++] = number;
    return true;
}

static size_t put(uint8_t *out, size_t used, const struct tls_frame *frame)
{
    tls_frame_encode(frame, out + used);
    return used + TLS_FRAME_HEADER_BYTES;
}

/* Writes what one stream owes. There is room for three frames. */
static size_t compose_due(struct tls_receiver *receiver, uint8_t *out)
{
    size_t used = 0;
    struct tls_frame frame = {.number = receiver->number};
    if (receiver->owes_receipt) {
        frame.type = TLS_FRAME_RECEIPT;
        frame.offset = stream_intake_received(&receiver->intake);
        frame.end = receiver->intake.ended;
        used = put(out, used, &frame);
    }
    if (receiver->owes_credit && !receiver->intake.stopped) {
        frame.type = TLS_FRAME_CREDIT;
        frame.offset = receiver->told_end = receiver->intake.granted_end;
        frame.end = false;
        used = put(out, used, &frame);
    }
    if (receiver->owes_stop) {
        frame.type = TLS_FRAME_STOP;
        frame.offset = 0;
        frame.end = false;
        used = put(out, used, &frame);
    }
    receiver->owes_receipt = receiver->owes_credit = receiver->owes_stop = false;
    tls_receiver_not_due(receiver);
    if (receiver->intake.ended) {
        tls_work_receiver(receiver);
    }
    return used;
}

size_t tls_compose_control(struct tls_peer *peer, uint8_t *out, size_t room)
{
    size_t used = 0;
    if (peer->way_due && room >= TLS_FRAME_HEADER_BYTES) {
        struct tls_frame frame = {.type = TLS_FRAME_WAY, .number = peer->told_way};
        peer->way_due = false;
        used = put(out, used, &frame);
    }
    peer->unreceipted_bytes = 0;
    while (peer->due != NULL && room - used >= 3 * (size_t)TLS_FRAME_HEADER_BYTES) {
        used += compose_due(peer->due, out + used);
    }
    while (peer->reset_count > 0 && room - used >= TLS_FRAME_HEADER_BYTES) {
        struct tls_frame frame = {.type = TLS_FRAME_RESET, .number = peer->resets[--peer->reset_count]};
        used = put(out, used, &frame);
    }
    return used;
}

size_t tls_compose(struct tls_peer *peer, uint8_t *out, size_t room)
{
    size_t used = tls_compose_control(peer, out, room);
    while (peer->ready != NULL && room - used > 2 * (size_t)TLS_FRAME_HEADER_BYTES) {
        struct tls_sender *sender = peer->ready;
        struct tls_frame frame;
        if (!tls_sender_frame(sender, room - used - TLS_FRAME_HEADER_BYTES, &frame)) {
            tls_sender_turn_over(sender, false);
            continue;
        }
        used = put(out, used, &frame);
        for (size_t left = frame.body_bytes; left > 0;) {
            size_t size;
            const uint8_t *piece = stream_queue_piece(&sender->queue, &size);
            size = size < left ? size : left;
            memcpy(out + used, piece, size);
            tls_sender_sent(sender, size);
            used += size;
            left -= size;
        }
        tls_sender_turn_over(sender, frame.end);
    }
    return used;
}
