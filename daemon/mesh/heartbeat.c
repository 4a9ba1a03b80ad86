#include "daemon/mesh/mesh_internal.h"

/*
 * Heartbeats travel from mesh to mesh. So an answer proves that the other daemon's loop runs and that both
 * directions of the path work. Acknowledgements of the transport prove less. Only answers count: if one
 * direction is cut, both sides reach the same verdict.
 *
 * A peer is given up when a heartbeat stays unanswered for the timeout less an eighth of an interval. So a
 * silent host is noticed at most seven eighths of an interval after the timeout, counted from its last
 * answer. A pause of the path, or of the peer's daemon, that is a fifth of an interval shorter than the
 * timeout is survived, whenever it begins. When a heartbeat has been unanswered for an interval, the next
 * ones follow at a quarter of the interval. So the end of such a pause is noticed early.
 *
 * Time in which this node did not run, or was too busy to look, does not count: the answers may wait here.
 * But between any two heartbeats this node has looked. So once HEARTBEAT_LOOKS of them are unanswered, all
 * time counts: a node that is always busy still notices that another one is dead.
 */
#define HEARTBEAT_UNANSWERED_DIVISOR 4
#define HEARTBEAT_PATIENCE_DIVISOR 8
#define HEARTBEAT_LOOKS 16

/*
 * In a cluster that is not complete, heartbeats to a neighbour that no communicator needs are half as
 * frequent: there, all that waits for the verdict is who is a member.
 */
static uint64_t heartbeat_interval_ns(const struct mesh_peer *peer)
{
    uint64_t interval_ns = peer->mesh->options.heartbeat_interval_ns;
    return peer->needs == 0 && !mesh_is_complete(peer->mesh) ? 2 * interval_ns : interval_ns;
}

static uint64_t heartbeat_patience_ns(const struct mesh_options *options)
{
    return options->heartbeat_timeout_ns > options->heartbeat_interval_ns
               ? options->heartbeat_timeout_ns - options->heartbeat_interval_ns / HEARTBEAT_PATIENCE_DIVISOR
               : options->heartbeat_timeout_ns;
}

static uint64_t heartbeat_give_up_ns(const struct mesh_peer *peer)
{
    const struct mesh_options *options = &peer->mesh->options;
    uint64_t stalled_ns = peer->contact->heartbeat.unanswered < HEARTBEAT_LOOKS
                              ? peer->mesh->stalled_ns - peer->contact->heartbeat.stalled_ns
                              : 0;
    uint64_t silent_ns =
        time_after(peer->contact->heartbeat.unanswered_ns, heartbeat_patience_ns(options) + stalled_ns);
    return time_min(silent_ns, time_after(peer->contact->heartbeat.suspect_ns, options->suspect_timeout_ns));
}

static void heartbeat_send(struct mesh_peer *peer, uint64_t now_ns)
{
    struct mesh_heartbeat *heartbeat = &peer->contact->heartbeat;
    heartbeat->number++;
    heartbeat->sent_ns = now_ns;
    if (now_ns < heartbeat->unanswered_ns) {
        heartbeat->unanswered_ns = now_ns;
        heartbeat->unanswered = 0;
        heartbeat->stalled_ns = peer->mesh->stalled_ns;
    }
    heartbeat->unanswered++;
    uint64_t wait_ns = heartbeat_interval_ns(peer);
    if (now_ns - heartbeat->unanswered_ns >= wait_ns) {
        wait_ns = wait_ns / HEARTBEAT_UNANSWERED_DIVISOR + 1;
    }
    heartbeat->next_ns = time_after(now_ns, wait_ns);
    Commd__Mesh__Heartbeat body = COMMD__MESH__HEARTBEAT__INIT;
    body.number = heartbeat->number;
    body.sent_ns = now_ns;
    Commd__Mesh__Message message = MESH_MESSAGE(HEARTBEAT, heartbeat, &body);
    enum status status = mesh_peer_send(peer, &message);
    (void)status; /* a heartbeat that cannot be sent counts as unanswered */
}

/* The first heartbeat is sent at a random part of an interval, so that the heartbeats to many peers are
 * spread. */
void mesh_heartbeat_start(struct mesh_peer *peer, uint64_t now_ns)
{
    uint64_t interval_ns = peer->mesh->options.heartbeat_interval_ns;
    peer->contact->drains = false;
    peer->contact->heartbeat = (struct mesh_heartbeat){
        .next_ns = time_after(now_ns, random_below(&peer->mesh->random, interval_ns > 0 ? interval_ns : 1)),
        .unanswered_ns = TIME_NEVER,
        .answered_ns = now_ns,
        .suspect_ns = TIME_NEVER,
    };
}

uint64_t mesh_heartbeat_deadline_ns(const struct mesh_peer *peer)
{
    return time_min(peer->contact->heartbeat.next_ns, heartbeat_give_up_ns(peer));
}

void mesh_heartbeat_tick(struct mesh_peer *peer, uint64_t now_ns)
{
    const struct mesh_heartbeat *heartbeat = &peer->contact->heartbeat;
    if (now_ns >= heartbeat_give_up_ns(peer)) {
        struct error cause;
        bool suspect = heartbeat->suspect_ns != TIME_NEVER;
        error_set(&cause, STATUS_NODE_LOST, "node %s: no heartbeat answered for %llu ms%s", peer->name,
                  (unsigned long long)((now_ns - heartbeat->answered_ns) / TIME_MS),
                  suspect ? "; its host says that no commd listens" : "");
        peer->process_ended = suspect;
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    if (now_ns >= heartbeat->next_ns) {
        heartbeat_send(peer, now_ns);
    }
}

void mesh_heartbeat_suspect(struct mesh_peer *peer, uint64_t now_ns)
{
    if (peer->contact->heartbeat.suspect_ns == TIME_NEVER) {
        peer->contact->heartbeat.suspect_ns = now_ns;
        peer->contact->heartbeat.suspect_number = peer->contact->heartbeat.number + 1;
        heartbeat_send(peer, now_ns);
    }
}

/* Two nodes whose heartbeats meet in this way send three datagrams for each interval, and not twice three. */
void mesh_heartbeat_join(struct mesh_peer *peer, uint64_t now_ns)
{
    const struct mesh_heartbeat *heartbeat = &peer->contact->heartbeat;
    bool soon = heartbeat->next_ns < time_after(now_ns, heartbeat_interval_ns(peer) / 2);
    if (soon && heartbeat->unanswered_ns == TIME_NEVER) {
        heartbeat_send(peer, now_ns);
    }
}

void mesh_heartbeat_answered(struct mesh_peer *peer, const Commd__Mesh__HeartbeatAnswer *answer,
                             uint64_t now_ns)
{
    struct mesh_heartbeat *heartbeat = &peer->contact->heartbeat;
    if (answer->number == 0 || answer->number > heartbeat->number) {
        struct error cause;
        error_set(&cause, STATUS_PROTOCOL, "node %s answers a heartbeat that was not sent", peer->name);
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    heartbeat->answered_ns = now_ns;
    peer->contact->drains = answer->draining;
    if (answer->number == heartbeat->number) {
        heartbeat->round_trip_ns = now_ns - heartbeat->sent_ns;
        heartbeat->unanswered_ns = TIME_NEVER;
    } else {
        heartbeat->unanswered_ns = now_ns;
        heartbeat->unanswered = 1;
        heartbeat->stalled_ns = peer->mesh->stalled_ns;
    }
    mesh_estimate_answered(peer, answer, now_ns);
    uint64_t interval_ns = heartbeat_interval_ns(peer);
    heartbeat->next_ns =
        time_min(time_after(heartbeat->sent_ns, interval_ns), time_after(now_ns, interval_ns));
    if (answer->number >= heartbeat->suspect_number) {
        heartbeat->suspect_ns = TIME_NEVER;
    }
}
