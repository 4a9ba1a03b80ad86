#include "tests/network/mem_internal.h"

#include <assert.h>
#include <stdlib.h>

#include <utlist.h>

struct mem_flight *mem_flight_ref(struct mem_flight *flight)
{
    flight->references++;
    return flight;
}

void mem_flight_unref(struct mem_flight *flight)
{
    if (flight != NULL && --flight->references == 0) {
        assert(flight->end == NULL);
        mem_channel_unref(flight->channel);
        free(flight);
    }
}

struct mem_flight *mem_flight_new(enum mem_packet_kind kind, struct mem_channel *channel)
{
    struct mem_flight *flight = calloc(1, sizeof *flight);
    if (flight == NULL) {
        return NULL;
    }
    flight->references = 1;
    flight->kind = kind;
    flight->channel = channel == NULL ? NULL : mem_channel_ref(channel);
    return flight;
}

/* How long to wait for an acknowledgement, first: both ways count. */
static uint64_t mem_end_patience_ns(const struct mem_end *end)
{
    struct mem_link *there = mem_link_between(end->host, end->remote);
    struct mem_link *back = mem_link_between(end->remote, end->host);
    uint64_t wait_ns = MEM_RETRANSMISSION_MIN_NS;
    if (there != NULL && back != NULL) {
        uint64_t there_ns = mem_link_retransmission_ns(there);
        uint64_t back_ns = mem_link_retransmission_ns(back);
        wait_ns = there_ns > back_ns ? there_ns : back_ns;
    }
    return wait_ns > 2 * end->round_trip_ns ? wait_ns : 2 * end->round_trip_ns;
}

static void mem_end_arm(struct mem_end *end)
{
    struct mem_events *events = &end->host->network->events;
    if (end->flights == NULL) {
        mem_event_cancel(events, &end->timer);
        return;
    }
    uint64_t at_ns = end->flights->due_ns > end->probe_ns ? end->flights->due_ns : end->probe_ns;
    mem_event_schedule(events, &end->timer, time_min(at_ns, time_after(end->heard_ns, MEM_IDLE_TIMEOUT_NS)));
}

/* Reads what the flight carries as it is now. */
static struct mem_packet *mem_flight_pack(const struct mem_flight *flight)
{
    const struct mem_end *end = flight->end;
    struct mem_packet *packet = mem_packet_new(end->host, end->remote, flight->kind, flight->size);
    if (packet == NULL) {
        return NULL;
    }
    packet->channel = flight->channel == NULL ? NULL : mem_channel_ref(flight->channel);
    packet->offset = flight->offset;
    packet->fin = flight->fin;
    if (flight->kind == MEM_PACKET_SEGMENT) {
        mem_sender_read(flight->channel->sender, flight->offset, packet->bytes, flight->size);
    } else if (flight->kind == MEM_PACKET_WINDOW && flight->channel->receiver != NULL) {
        packet->offset = flight->channel->receiver->announced_limit;
    }
    return packet;
}

/* Sends it, for the first time or again, and puts it behind the others. */
static void mem_flight_transmit(struct mem_flight *flight)
{
    struct mem_end *end = flight->end;
    struct mem_network_counters *counters = &end->host->network->counters;
    flight->sent_ns = end->host->network->now_ns;
    struct mem_packet *packet = mem_flight_pack(flight);
    if (packet != NULL) {
        mem_packet_between(packet, end, end->other);
        packet->flight = mem_flight_ref(flight);
        flight->sent_ns = mem_packet_send(packet);
    }
    if (flight->transmissions++ == 0) {
        counters->stream_bytes += flight->size;
    } else {
        counters->retransmitted_bytes += flight->size;
        mem_end_peer(end)->lost_packets++;
        DL_DELETE(end->flights, flight);
    }
    flight->due_ns = flight->sent_ns + mem_end_patience_ns(end);
    DL_APPEND(end->flights, flight);
}

void mem_flight_launch(struct mem_end *end, struct mem_flight *flight)
{
    bool first = end->flights == NULL;
    flight->end = end;
    mem_flight_transmit(flight);
    if (first) {
        end->heard_ns = end->host->network->now_ns; /* silence counts from here */
        mem_end_arm(end);
    }
}

void mem_flight_signal(struct mem_end *end, enum mem_packet_kind kind, struct mem_channel *channel,
                       uint64_t offset)
{
    struct mem_flight *flight = mem_flight_new(kind, channel);
    if (flight == NULL) {
        struct error cause;
        error_set(&cause, STATUS_NO_MEMORY, "no memory for the connection to node %s", end->remote->name);
        mem_end_fail(end, &cause);
        return;
    }
    flight->offset = offset;
    mem_flight_launch(end, flight);
}

void mem_flight_give_up(struct mem_flight *flight)
{
    struct mem_end *end = flight->end;
    if (end == NULL) {
        return;
    }
    DL_DELETE(end->flights, flight);
    flight->end = NULL;
    if (end->flights == NULL && end->state == MEM_END_UP) {
        end->backoff = 0;
        end->probe_ns = 0;
        mem_end_arm(end);
    }
    mem_flight_unref(flight);
}

void mem_flight_give_up_all(struct mem_end *end)
{
    while (end->flights != NULL) {
        mem_flight_give_up(end->flights);
    }
}

void mem_flight_acknowledged(struct mem_end *end, struct mem_flight *flight, uint64_t now_ns)
{
    if (flight->end != end) {
        return; /* acknowledged before, or given up */
    }
    if (flight->transmissions == 1 && now_ns > flight->sent_ns) { /* Karn: a flight sent twice says nothing */
        uint64_t sample_ns = now_ns - flight->sent_ns;
        end->round_trip_ns = end->round_trip_ns == 0 ? sample_ns : (7 * end->round_trip_ns + sample_ns) / 8;
    }
    flight->acknowledged = true;
    mem_flight_ref(flight);
    bool backed_off = end->backoff > 0;
    end->backoff = 0;
    end->probe_ns = 0;
    mem_flight_give_up(flight);
    if (backed_off) {
        mem_end_arm(end);
    }
    if (flight->kind == MEM_PACKET_CONFIRM) {
        end->settled = true;
    } else if (flight->kind == MEM_PACKET_SEGMENT && flight->channel->sender != NULL) {
        mem_sender_acknowledged(flight->channel->sender, now_ns);
    }
    mem_flight_unref(flight);
}

void mem_flight_timer(struct mem_end *end, uint64_t now_ns)
{
    if (end->flights == NULL) {
        return;
    }
    if (now_ns >= time_after(end->heard_ns, MEM_IDLE_TIMEOUT_NS)) {
        struct error cause;
        error_set(&cause, STATUS_NODE_LOST, "nothing heard from node %s for %llu s", end->remote->name,
                  (unsigned long long)(MEM_IDLE_TIMEOUT_NS / TIME_S));
        mem_end_take_down(end, &cause, now_ns);
        return;
    }
    if (end->flights->due_ns <= now_ns && end->probe_ns <= now_ns) {
        uint32_t budget = end->backoff == 0 ? UINT32_MAX : MEM_PROBES_MAX;
        while (budget-- > 0 && end->flights->due_ns <= now_ns) {
            mem_flight_transmit(end->flights);
        }
        uint64_t patience_ns = mem_end_patience_ns(end);
        uint64_t most_ns = patience_ns > MEM_RETRANSMISSION_MAX_NS ? patience_ns : MEM_RETRANSMISSION_MAX_NS;
        end->backoff += end->backoff < 16 ? 1 : 0;
        end->probe_ns = time_after(now_ns, time_min(patience_ns << end->backoff, most_ns));
    }
    mem_end_arm(end);
}
