#include "daemon/mesh/rail_links.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/conf/rail_addresses.h"
#include "daemon/mesh/mesh_internal.h"

/* The links of all rails but rail 0, as the main thread knows them. */

#define RAIL_ADDRESS_MAX_BYTES 512

/* Null: the rails do not know the peer. */
static struct mesh_rail_link *link_at(const struct mesh *mesh, uint32_t node, uint32_t rail)
{
    struct mesh_rail_link *rails = mesh_peer_at(mesh, node)->rails;
    assert(rail > 0 && rail < mesh->rail_count);
    return rails != NULL ? &rails[rail - 1] : NULL;
}

/* How many links of the peer there are besides that of rail 0, up or not. */
static uint32_t link_count(const struct mesh_peer *peer)
{
    return peer->rails != NULL ? peer->mesh->rail_count - 1 : 0;
}

/* The last failure; "": there was none. */
static const char *why_missing(const struct mesh_rail_link *link)
{
    return link->why != NULL ? link->why : "";
}

/* Sends an order to a rail's thread. Returns false without memory, and once the rails are at their end. */
static bool order(struct mesh_peer *peer, uint32_t rail, enum rail_word word, const char *address,
                  const struct error *cause)
{
    struct mesh_endpoint *endpoint = &peer->mesh->endpoints[rail];
    struct rail_mail *mail = peer->mesh->rails_ended ? NULL : rail_mail_new(endpoint, peer, word, address);
    if (mail == NULL) {
        return false;
    }
    if (cause != NULL) {
        mail->cause = *cause;
    }
    mail->mail.deliver = rail_ordered;
    mailbox_put(endpoint->mailbox, &mail->mail);
    return true;
}

static void order_all(struct mesh_peer *peer, enum rail_word word, const struct error *cause)
{
    for (uint32_t rail = 1; rail <= link_count(peer); rail++) {
        (void)order(peer, rail, word, "", cause);
    }
}

/* --- Dialling --- */

/* A rail's link has no rule of its own for who may have one: see rail_links.h. */
static bool may_have_links(const struct mesh_peer *peer)
{
    return peer->state == MESH_NODE_UP && !peer->closing;
}

static bool is_dialled(const struct mesh_peer *peer, const struct mesh_rail_link *link)
{
    return peer->dials && may_have_links(peer) && link->needs > 0 && !link->up && !link->dialling;
}

uint64_t mesh_rails_dial_ns(const struct mesh_peer *peer)
{
    uint64_t dial_ns = TIME_NEVER;
    for (uint32_t rail = 1; rail <= link_count(peer); rail++) {
        const struct mesh_rail_link *link = &peer->rails[rail - 1];
        dial_ns = is_dialled(peer, link) ? time_min(dial_ns, link->dial.next_ns) : dial_ns;
    }
    return dial_ns;
}

static void link_failed(struct mesh_peer *peer, struct mesh_rail_link *link, const char *why, uint64_t now_ns)
{
    link->up = false;
    link->dialling = false;
    free(link->why);
    link->why = strdup(why); /* without memory, the reason is not known */
    mesh_peer_back_off(peer, &link->dial, now_ns);
}

void mesh_rails_tick(struct mesh_peer *peer, uint64_t now_ns)
{
    for (uint32_t rail = 1; rail <= link_count(peer); rail++) {
        struct mesh_rail_link *link = &peer->rails[rail - 1];
        if (!is_dialled(peer, link) || link->dial.next_ns > now_ns) {
            continue;
        }
        link->dialling = order(peer, rail, RAIL_CONNECT, "", NULL);
        if (!link->dialling) {
            link_failed(peer, link, "no memory", now_ns);
        }
    }
}

/* The net drops attempts that are under way without a report. */
static void dial_anew(struct mesh_peer *peer)
{
    for (uint32_t rail = 1; rail <= link_count(peer); rail++) {
        peer->rails[rail - 1].dialling = false;
        peer->rails[rail - 1].dial = (struct backoff){0};
    }
    mesh_peer_arm(peer);
}

void mesh_need_rails(struct mesh *mesh, uint32_t node, uint32_t rail_count)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    struct error why;
    if (rail_count > 1 && mesh_rails_open(peer, &why) != STATUS_OK) {
        log_error("rails to node %s: %s", peer->name, why.text); /* the communicator does without them */
        return;
    }
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (link_at(mesh, node, rail)->needs++ == 0) {
            (void)order(peer, rail, RAIL_KEEP_ALIVE, "", NULL);
        }
    }
    mesh_peer_arm(peer);
}

/* The transport closes an idle link that nobody keeps alive. */
void mesh_unneed_rails(struct mesh *mesh, uint32_t node, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        struct mesh_rail_link *link = link_at(mesh, node, rail);
        if (link != NULL && link->needs > 0 && --link->needs == 0) { /* there was memory for it */
            (void)order(mesh_peer_at(mesh, node), rail, RAIL_LET_IDLE, "", NULL);
        }
    }
    mesh_peer_arm(mesh_peer_at(mesh, node));
}

const char *mesh_rail_missing(const struct mesh *mesh, uint32_t node, uint32_t rail)
{
    const struct mesh_rail_link *link = link_at(mesh, node, rail);
    if (link == NULL) {
        return "";
    }
    return link->up ? NULL : why_missing(link);
}

/* --- Reports --- */

static void link_is_up(struct mesh_peer *peer, uint32_t rail)
{
    const struct mesh_rail_handler *handler = &peer->mesh->rail_handler;
    struct mesh_rail_link *link = &peer->rails[rail - 1];
    if (!may_have_links(peer)) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE,
                  "node %s accepts no connection from node %s on rail %u before rail 0 is up",
                  peer->mesh->node_name, peer->name, rail);
        (void)order(peer, rail, RAIL_DISCONNECT, "", &cause);
    }
    link->up = true;
    link->dialling = false;
    link->dial.failures = 0;
    handler->rail_up(handler->context);
}

static void link_is_lost(struct mesh_peer *peer, const struct rail_mail *mail, uint64_t now_ns)
{
    const struct mesh_rail_handler *handler = &peer->mesh->rail_handler;
    handler->rail_lost(handler->context, peer->index, mail->endpoint->rail, &mail->cause, now_ns);
    /* The node broke the protocol, not only the rail: see stream_reader_violates. If the peer closed the
     * link, it judged us, and acts itself. */
    if (mail->cause.status == STATUS_PROTOCOL && !mail->closed_by_peer) {
        mesh_peer_disconnect(peer, &mail->cause);
    }
}

void rail_reported(void *context, uint64_t now_ns)
{
    struct rail_mail *mail = context;
    struct mesh_peer *peer = mail->peer;
    uint32_t rail = mail->endpoint->rail;
    struct mesh_rail_link *link = &peer->rails[rail - 1];
    bool is_lost = mail->word == RAIL_IS_LOST;
    if (mail->word == RAIL_IS_UP) {
        link_is_up(peer, rail);
    } else {
        if (link->needs > 0) {
            log_warning("rail %u to node %s%s: %s", rail, peer->name, is_lost ? " is lost" : "",
                        mail->cause.text);
        }
        link_failed(peer, link, mail->cause.text, now_ns);
    }
    if (is_lost) {
        link_is_lost(peer, mail, now_ns);
    }
    mesh_peer_arm(peer);
    free(mail);
}

/* --- The node --- */

void mesh_rails_node_up(struct mesh_peer *peer)
{
    bool takes_bulk = (mesh_peer_contact(peer)->offers & MESH_OFFERS_BULK) != 0;
    net_bulk_allow(peer->mesh->net, peer->index, takes_bulk);
    order_all(peer, takes_bulk ? RAIL_BULK : RAIL_NO_BULK, NULL);
}

/* A rail itself might notice the loss much later. */
void mesh_rails_node_down(struct mesh_peer *peer, const struct error *why)
{
    struct error cause;
    error_set(&cause, STATUS_NODE_LOST, "node %s lost: %s", peer->name, why->text);
    for (uint32_t rail = 1; rail <= link_count(peer); rail++) {
        if (peer->rails[rail - 1].up) {
            (void)order(peer, rail, RAIL_DISCONNECT, "", &cause);
        }
    }
}

void mesh_rails_remove(struct mesh_peer *peer, const struct error *cause)
{
    order_all(peer, RAIL_REMOVE, cause);
    dial_anew(peer);
}

static const char *addresses_of(const struct mesh_peer *peer)
{
    return peer->rail_addresses != NULL ? peer->rail_addresses : "";
}

static const char *address_of(const struct mesh_peer *peer)
{
    return peer->resolved_address != NULL ? peer->resolved_address : peer->address;
}

static enum status port_missing(const struct mesh_peer *peer, uint32_t rail, struct error *error)
{
    return error_set(error, STATUS_INVALID_ARGUMENT, "node %s: rail %u of \"%s\" has no port", peer->name,
                     rail, address_of(peer));
}

/* Tells each rail that knows the peer its address for that rail, and the one that is used if that fails. */
static enum status tell_addresses(struct mesh_peer *peer, enum rail_word word, struct error *error)
{
    const char *rail_addresses = addresses_of(peer);
    const char *address = address_of(peer);
    char of_rail[RAIL_ADDRESS_MAX_BYTES], spare[RAIL_ADDRESS_MAX_BYTES];
    for (uint32_t rail = peer->mesh->rail_count - 1; rail > 0; rail--) { /* the largest port first */
        if (!conf_rail_address(address, rail_addresses, rail, of_rail, sizeof of_rail)) {
            return port_missing(peer, rail, error);
        }
        if (peer->rails == NULL) {
            continue;
        }
        bool has_spare = conf_rail_spare(address, rail_addresses, rail, spare, sizeof spare);
        if (!order(peer, rail, word, of_rail, NULL) ||
            !order(peer, rail, RAIL_SPARE, has_spare ? spare : "", NULL)) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", peer->name);
        }
    }
    if (peer->mesh->rail_count > 1) {
        bool has_spare = conf_rail_spare(address, rail_addresses, 0, spare, sizeof spare);
        net_set_spare(peer->mesh->net, peer->index, has_spare ? spare : "");
    }
    return STATUS_OK;
}

enum status mesh_rails_check(const struct mesh_peer *peer, struct error *error)
{
    uint32_t last = peer->mesh->rail_count - 1;
    char address[RAIL_ADDRESS_MAX_BYTES];
    return last == 0 || conf_rail_address(peer->address, NULL, last, address, sizeof address)
               ? STATUS_OK
               : port_missing(peer, last, error);
}

enum status mesh_rails_open(struct mesh_peer *peer, struct error *error)
{
    uint32_t count = peer->mesh->rail_count - 1;
    if (count == 0 || peer->rails != NULL) {
        return STATUS_OK;
    }
    peer->rails = calloc(count, sizeof *peer->rails);
    enum status status = peer->rails != NULL
                             ? tell_addresses(peer, RAIL_ADD, error)
                             : error_set(error, STATUS_NO_MEMORY, "no memory for node %s", peer->name);
    return status;
}

enum status mesh_rails_add(struct mesh_peer *peer, struct error *error)
{
    return tell_addresses(peer, RAIL_ADD, error);
}

enum status mesh_rails_move(struct mesh_peer *peer, struct error *error)
{
    enum status status = tell_addresses(peer, RAIL_MOVE, error);
    if (status == STATUS_OK) {
        dial_anew(peer);
    }
    return status;
}

enum status mesh_set_rail_addresses(struct mesh *mesh, uint32_t node, const char *rail_addresses,
                                    struct error *error)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    char *copy = rail_addresses[0] != '\0' ? strdup(rail_addresses) : NULL;
    if (copy == NULL && rail_addresses[0] != '\0') {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", peer->name);
    }
    free(peer->rail_addresses);
    peer->rail_addresses = copy;
    return mesh_rails_move(peer, error);
}

const char *mesh_rail_addresses(const struct mesh *mesh, uint32_t node)
{
    return addresses_of(mesh_peer_at(mesh, node));
}

/* --- All of them --- */

enum status mesh_set_rails(struct mesh *mesh, const struct mesh_rails_options *options, struct error *error)
{
    assert(mesh->peer_count == 0 && options->count > 1 && options->count <= MESH_RAILS_MAX);
    mesh->endpoints = calloc(options->count, sizeof *mesh->endpoints);
    if (mesh->endpoints == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for rails");
    }
    mesh->rail_count = options->count;
    mesh->rail_handler = options->handler;
    for (uint32_t rail = 1; rail < options->count; rail++) {
        struct mesh_endpoint *endpoint = &mesh->endpoints[rail];
        *endpoint = (struct mesh_endpoint){.mesh = mesh,
                                           .rail = rail,
                                           .net = options->nets[rail],
                                           .mailbox = &options->mailboxes[rail],
                                           .home = &options->mailboxes[0],
                                           .publish_ns = TIME_NEVER};
        struct net_peer_handler handler = {.context = endpoint,
                                           .peer_up = rail_peer_up,
                                           .peer_down = rail_peer_down,
                                           .connect_failed = rail_connect_failed};
        net_set_peer_handler(endpoint->net, &handler);
    }
    return STATUS_OK;
}

void mesh_end_rails(struct mesh *mesh)
{
    mesh->rails_ended = true;
}

uint32_t mesh_rail_count(const struct mesh *mesh)
{
    return mesh->rail_count;
}

void mesh_rails_free(struct mesh *mesh)
{
    for (uint32_t rail = 1; rail < mesh->rail_count; rail++) {
        sparse_free(&mesh->endpoints[rail].peers);
    }
    free(mesh->endpoints);
}

/* --- Statistics --- */

static void read_link(const struct mesh_rail_link *link, struct mesh_rail_statistics *out)
{
    *out = (struct mesh_rail_statistics){.net = {.up = link->up}};
#define READ(number, member) out->member = atomic_load_explicit(&link->number, memory_order_relaxed);
    RAIL_NUMBERS(READ)
#undef READ
}

void mesh_rail_statistics(const struct mesh *mesh, uint32_t node, uint32_t rail,
                          struct mesh_rail_statistics *out)
{
    const struct mesh_rail_link *link = rail > 0 ? link_at(mesh, node, rail) : NULL;
    if (rail > 0) {
        *out = (struct mesh_rail_statistics){0};
        if (link != NULL) {
            read_link(link, out);
        }
        return;
    }
    net_peer_statistics(mesh->net, node, &out->net);
    net_bulk_statistics(mesh->net, node, &out->bulk);
}

void mesh_rails_traffic(const struct mesh *mesh, uint32_t node, struct mesh_rails_traffic *out)
{
    *out = (struct mesh_rails_traffic){0};
    for (uint32_t rail = 1; rail <= link_count(mesh_peer_at(mesh, node)); rail++) {
        const struct mesh_rail_link *link = link_at(mesh, node, rail);
        struct mesh_rail_statistics seen;
        read_link(link, &seen);
        out->sent_bytes += seen.net.sent_bytes;
        out->received_bytes += seen.net.received_bytes;
        out->lost_packets += seen.net.lost_packets;
        out->resumed_count += seen.net.resumed_count;
        out->needed += link->needs > 0;
        out->connected += link->needs > 0 && link->up;
        if (link->needs > 0 && !link->up && out->missing[0] == '\0') {
            (void)snprintf(out->missing, sizeof out->missing, "rail %u is not connected%s%.440s", rail,
                           why_missing(link)[0] == '\0' ? "" : ": ", why_missing(link));
        }
    }
}
