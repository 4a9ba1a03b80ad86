#include "daemon/mesh/mesh_internal.h"

#include <stdlib.h>

/*
 * Measures links in the background: one probe at a time, one peer after the other. A probe is a train of
 * padded echoes on the control stream. The time until the last echo is answered, less the shortest round
 * trip, is the time that the bytes took. The train grows until it takes a noticeable time, so that it never
 * blocks a slow link for more than a few milliseconds.
 */
#define LINK_PADDING_BYTES 60000u
#define LINK_TRAIN_FIRST_BYTES 4000u
#define LINK_TRAIN_MAX_BYTES (1u << 20)
#define LINK_LONG_NS (2 * TIME_MS) /* a longer train measures well; the next one is small again */
#define LINK_PROBE_TIMEOUT_NS (2 * TIME_S)
#define LINK_SETTLED 8 /* probes of a peer after which it is probed less often */
#define LINK_SETTLED_FACTOR 12u
#define LINK_SETTLED_DOUBLINGS                                                                               \
    6u                        /* and each further one after up to twice as long: what is idle stays quiet */
#define LINK_GUESSES_MAX 256u /* peers without a link whose estimated round trips count */
#define LINK_GUESS_ERROR_PERMILLE 250u /* if these are about as good as that: not while nodes are busy */

void mesh_link_start(struct mesh_link *link)
{
    *link = (struct mesh_link){.round_trip_ns = TIME_NEVER, .train_bytes = LINK_TRAIN_FIRST_BYTES};
}

static bool link_send_train(struct mesh_peer *peer, uint64_t now_ns)
{
    static uint8_t padding[LINK_PADDING_BYTES];
    struct mesh_link *link = &peer->contact->link;
    struct mesh *mesh = peer->mesh;
    uint32_t left = link->train_bytes;
    link->sent_ns = now_ns;
    while (left > 0) {
        uint32_t part = left < sizeof padding ? left : (uint32_t)sizeof padding;
        Commd__Mesh__Echo echo = COMMD__MESH__ECHO__INIT;
        echo.token = ++mesh->ping_token;
        echo.padding.data = padding;
        echo.padding.len = part;
        Commd__Mesh__Message message = MESH_MESSAGE(ECHO, echo, &echo);
        if (mesh_send(mesh, peer->index, &message) != STATUS_OK) {
            return false;
        }
        link->token = echo.token;
        left -= part;
    }
    return true;
}

/* Whether the peer is not due for a probe in this round. */
static bool link_rests(struct mesh_link *link)
{
    if (link->probes < LINK_SETTLED) {
        return false;
    }
    uint32_t doublings = (link->probes - LINK_SETTLED) / 2;
    doublings = doublings < LINK_SETTLED_DOUBLINGS ? doublings : LINK_SETTLED_DOUBLINGS;
    return ++link->skipped < LINK_SETTLED_FACTOR << doublings;
}

/* Returns the next peer that is up and due for a probe, in a circle; null when there is none. */
static struct mesh_peer *link_next_peer(struct mesh *mesh)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer *peer = mesh->peers[(mesh->link_next + i) % mesh->peer_count];
        if (peer->state == MESH_NODE_UP && !peer->closing && !link_rests(&peer->contact->link)) {
            peer->contact->link.skipped = 0;
            mesh->link_next = (peer->index + 1) % mesh->peer_count;
            return peer;
        }
    }
    return NULL;
}

void mesh_link_tick(struct mesh *mesh, uint64_t now_ns)
{
    if (mesh->options.probe_interval_ns == 0 || now_ns < mesh->link_deadline_ns) {
        return;
    }
    mesh->link_deadline_ns = time_after(now_ns, mesh->options.probe_interval_ns);
    if (mesh->link_probed != NULL &&
        now_ns - mesh->link_probed->contact->link.sent_ns < LINK_PROBE_TIMEOUT_NS) {
        return;
    }
    struct mesh_peer *peer = link_next_peer(mesh);
    mesh->link_probed = peer != NULL && link_send_train(peer, now_ns) ? peer : NULL;
}

void mesh_link_lost(struct mesh_peer *peer)
{
    if (peer->mesh->link_probed == peer) {
        peer->mesh->link_probed = NULL;
    }
}

bool mesh_link_answered(struct mesh_peer *peer, uint64_t token, uint64_t now_ns)
{
    struct mesh_link *link = &peer->contact->link;
    if (peer->mesh->link_probed != peer || token != link->token) {
        return false;
    }
    peer->mesh->link_probed = NULL;
    uint64_t took_ns = now_ns - link->sent_ns;
    link->probes++;
    if (took_ns < link->round_trip_ns) {
        link->round_trip_ns = took_ns;
    }
    if (took_ns > link->round_trip_ns) {
        uint64_t bytes_ns = took_ns - link->round_trip_ns;
        uint64_t rate = (uint64_t)link->train_bytes * TIME_S / bytes_ns;
        /* Other traffic can make the link seem slower, but nothing makes it seem faster. So this keeps the
         * highest recent rate. */
        link->bytes_per_s = rate > link->bytes_per_s ? rate : link->bytes_per_s - link->bytes_per_s / 16;
    }
    bool large = took_ns - link->round_trip_ns > LINK_LONG_NS || link->train_bytes * 4 > LINK_TRAIN_MAX_BYTES;
    link->train_bytes = large ? LINK_TRAIN_FIRST_BYTES : link->train_bytes * 4;
    return true;
}

static int compare_numbers(const void *left, const void *right)
{
    uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
    return (a > b) - (a < b);
}

/* Returns the median of the known numbers; 0 when none is known. */
static uint64_t median(uint64_t *numbers, uint32_t count)
{
    if (count == 0) {
        return 0;
    }
    qsort(numbers, count, sizeof *numbers, compare_numbers);
    return numbers[count / 2];
}

void mesh_link_to(const struct mesh *mesh, uint32_t node, uint64_t *latency_ns, uint64_t *bytes_per_s)
{
    const struct mesh_link *link = &mesh_peer_contact(mesh_peer_at(mesh, node))->link;
    bool is_measured = link->probes > 0 && link->round_trip_ns != TIME_NEVER;
    *latency_ns = (is_measured ? link->round_trip_ns : mesh_estimated_round_trip_ns(mesh, node)) / 2;
    *bytes_per_s = link->bytes_per_s;
}

/* Returns the estimated round trip to a peer without a link; 0: it is not known well enough. */
static uint64_t sound_guess_ns(const struct mesh *mesh, uint32_t node)
{
    bool sure = mesh->coordinate.error_permille <= LINK_GUESS_ERROR_PERMILLE &&
                mesh->peers[node]->coordinate.error_permille <= LINK_GUESS_ERROR_PERMILLE;
    return sure ? mesh_estimated_round_trip_ns(mesh, node) : 0;
}

void mesh_link_estimate(const struct mesh *mesh, uint64_t *latency_ns, uint64_t *bytes_per_s)
{
    uint64_t *latencies = calloc(mesh->peer_count + 1, sizeof *latencies);
    uint64_t *rates = calloc(mesh->peer_count + 1, sizeof *rates);
    uint32_t latency_count = 0, rate_count = 0;
    uint32_t stride = mesh->peer_count / LINK_GUESSES_MAX + 1;
    for (uint32_t i = 0; i < mesh->peer_count && latencies != NULL && rates != NULL; i++) {
        const struct mesh_link *link = &mesh_peer_contact(mesh->peers[i])->link;
        uint64_t guess_ns = i % stride == 0 ? sound_guess_ns(mesh, i) : 0;
        if (link->probes > 0 && link->round_trip_ns != 0) {
            latencies[latency_count++] = link->round_trip_ns / 2;
        } else if (guess_ns != 0) {
            latencies[latency_count++] = guess_ns / 2;
        }
        if (link->bytes_per_s != 0) {
            rates[rate_count++] = link->bytes_per_s;
        }
    }
    *latency_ns = median(latencies, latency_count);
    *bytes_per_s = median(rates, rate_count);
    free(latencies);
    free(rates);
}
