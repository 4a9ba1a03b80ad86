#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/mesh/mesh_internal.h"

/* A rail's end of its links: what its thread does for the mesh. */

struct rail_mail *rail_mail_new(struct mesh_endpoint *endpoint, struct mesh_peer *peer, enum rail_word word,
                                const char *address)
{
    size_t address_bytes = strlen(address) + 1;
    struct rail_mail *mail = calloc(1, sizeof *mail + address_bytes);
    if (mail == NULL) {
        log_error("rail %u: no memory", endpoint->rail);
        return NULL;
    }
    mail->mail.context = mail;
    mail->endpoint = endpoint;
    mail->peer = peer;
    mail->word = word;
    memcpy(mail->address, address, address_bytes);
    return mail;
}

/* --- Reports --- */

static void report(struct mesh_endpoint *endpoint, uint32_t peer, enum rail_word word,
                   const struct error *cause)
{
    struct rail_mail *mail = rail_mail_new(endpoint, sparse_at(&endpoint->peers, peer), word, "");
    if (mail == NULL) {
        return;
    }
    if (cause != NULL) {
        struct net_peer_statistics statistics;
        net_peer_statistics(endpoint->net, peer, &statistics);
        mail->cause = *cause;
        mail->closed_by_peer = statistics.closed_by_peer;
    }
    mail->mail.deliver = rail_reported;
    mailbox_put(endpoint->home, &mail->mail);
}

void rail_peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    report(context, peer, RAIL_IS_UP, NULL);
}

void rail_peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct mesh_endpoint *endpoint = context;
    const struct mesh_rail_handler *handler = &endpoint->mesh->rail_handler;
    (void)now_ns;
    handler->streams_lost(handler->context, peer, endpoint->rail);
    report(endpoint, peer, RAIL_IS_LOST, cause);
}

void rail_connect_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    report(context, peer, RAIL_HAS_FAILED, cause);
}

/* --- Orders --- */

static enum status add_peer(struct mesh_endpoint *endpoint, const struct rail_mail *mail, struct error *error)
{
    uint32_t index = mail->peer->index;
    void *before = sparse_at(&endpoint->peers, index);
    if (!sparse_set(&endpoint->peers, index, mail->peer)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    }
    enum status status = net_add_peer_at(endpoint->net, mail->peer->name, mail->address, index, error);
    if (status != STATUS_OK) {
        bool is_reset = sparse_set(&endpoint->peers, index, before);
        (void)is_reset; /* its page is there */
    }
    return status;
}

/* The order on a peer that the rail's net knows. */
static enum status obey(const struct rail_mail *mail, struct error *error)
{
    struct net *net = mail->endpoint->net;
    uint32_t peer = mail->peer->index;
    switch (mail->word) {
    case RAIL_MOVE:
        return net_move_peer(net, peer, mail->address, error);
    case RAIL_SPARE:
        net_set_spare(net, peer, mail->address);
        break;
    case RAIL_REMOVE:
        net_remove_peer(net, peer, &mail->cause);
        break;
    case RAIL_CONNECT:
        if (net_connect(net, peer, error) != STATUS_OK) {
            report(mail->endpoint, peer, RAIL_HAS_FAILED, error);
        }
        break;
    case RAIL_DISCONNECT:
        net_disconnect(net, peer, &mail->cause);
        break;
    case RAIL_KEEP_ALIVE:
    case RAIL_LET_IDLE:
        net_keep_alive(net, peer, mail->word == RAIL_KEEP_ALIVE);
        break;
    case RAIL_BULK:
    case RAIL_NO_BULK:
        net_bulk_allow(net, peer, mail->word == RAIL_BULK);
        break;
    case RAIL_ADD:
    case RAIL_IS_UP:
    case RAIL_IS_LOST:
    case RAIL_HAS_FAILED:
        break; /* the first is not for here; the others are reports */
    }
    return STATUS_OK;
}

void rail_ordered(void *context, uint64_t now_ns)
{
    struct rail_mail *mail = context;
    struct mesh_endpoint *endpoint = mail->endpoint;
    struct error error = {.status = STATUS_OK};
    enum status status = STATUS_OK;
    (void)now_ns;
    if (mail->word == RAIL_ADD) {
        status = add_peer(endpoint, mail, &error);
    } else if (sparse_at(&endpoint->peers, mail->peer->index) != NULL) {
        status = obey(mail, &error);
    }
    if (status != STATUS_OK) {
        log_error("rail %u: node %s at %s: %s", endpoint->rail, mail->peer->name, mail->address, error.text);
    }
    free(mail);
}

/* --- Counters --- */

/* Copies what people read of a link. Returns whether it had new traffic. */
static bool publish(struct mesh_rail_link *link, const struct mesh_rail_statistics *seen)
{
    bool is_new =
        link->sent_bytes != seen->net.sent_bytes || link->received_bytes != seen->net.received_bytes;
#define PUBLISH(number, member)                                                                              \
    atomic_store_explicit(&link->number, (uint64_t)seen->member, memory_order_relaxed);
    RAIL_NUMBERS(PUBLISH)
#undef PUBLISH
    return is_new;
}

/* If nothing is scheduled, schedules a publication MESH_PUBLISH_NS later, as the turn may have had traffic.
 */
void mesh_rail_run(struct mesh *mesh, uint32_t rail, uint64_t now_ns)
{
    struct mesh_endpoint *endpoint = &mesh->endpoints[rail];
    if (now_ns < endpoint->publish_ns) {
        bool waits = endpoint->publish_ns != TIME_NEVER;
        endpoint->publish_ns = waits ? endpoint->publish_ns : time_after(now_ns, MESH_PUBLISH_NS);
        return;
    }
    bool is_new = false;
    struct mesh_peer *peer;
    for (uint32_t at = 0; (peer = sparse_next(&endpoint->peers, &at)) != NULL;) {
        struct mesh_rail_statistics seen;
        net_peer_statistics(endpoint->net, peer->index, &seen.net);
        net_bulk_statistics(endpoint->net, peer->index, &seen.bulk);
        is_new |= publish(&peer->rails[endpoint->rail - 1], &seen);
    }
    endpoint->publish_ns = is_new ? time_after(now_ns, MESH_PUBLISH_NS) : TIME_NEVER;
}

uint64_t mesh_rail_deadline_ns(const struct mesh *mesh, uint32_t rail)
{
    return mesh->endpoints[rail].publish_ns;
}
