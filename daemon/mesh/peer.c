#include "daemon/mesh/mesh_internal.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"

struct mesh_peer *mesh_peer_at(const struct mesh *mesh, uint32_t node)
{
    assert(node < mesh->peer_count);
    return mesh->peers[node];
}

const struct mesh_contact *mesh_peer_contact(const struct mesh_peer *peer)
{
    static const struct mesh_contact none = {.link = {.round_trip_ns = TIME_NEVER}};
    return peer->contact != NULL ? peer->contact : &none;
}

struct mesh_contact *mesh_peer_contact_make(struct mesh_peer *peer)
{
    if (peer->contact == NULL) {
        peer->contact = calloc(1, sizeof *peer->contact);
        if (peer->contact != NULL) {
            mesh_link_start(&peer->contact->link);
        }
    }
    return peer->contact;
}

/* It dials now, or needs not. Then it is the next one's turn. */
static void peer_leave_queue(struct mesh_peer *peer)
{
    struct mesh *mesh = peer->mesh;
    if (peer->waits_to_dial) {
        peer->waits_to_dial = false;
        DL_DELETE(mesh->dial_queue, peer);
    }
    if (mesh->dial_queue != NULL && mesh->dials < MESH_DIALS_MAX) {
        mesh_peer_arm(mesh->dial_queue);
    }
}

/* It is not dialled any more, or did not answer yet: others may dial. */
static void peer_end_turn(struct mesh_peer *peer)
{
    peer->mesh->dials -= peer->has_turn;
    peer->has_turn = false;
    peer_leave_queue(peer);
}

static void peer_set_state(struct mesh_peer *peer, enum mesh_node_state state, uint64_t now_ns)
{
    peer_end_turn(peer);
    peer->has_turn = state == MESH_NODE_CONNECTING && peer->dial.failures == 0;
    peer->mesh->dials += peer->has_turn;
    peer->state = state;
    peer->since_ns = now_ns;
}

/* Whether others dial before it. */
static bool peer_waits(const struct mesh_peer *peer)
{
    const struct mesh *mesh = peer->mesh;
    return peer->waits_to_dial && (mesh->dials >= MESH_DIALS_MAX || mesh->dial_queue != peer);
}

static uint64_t peer_deadline_ns(const struct mesh_peer *peer)
{
    if (peer->closing) {
        return TIME_NEVER;
    }
    switch (peer->state) {
    case MESH_NODE_DOWN:
        return peer_waits(peer) ? TIME_NEVER : mesh_need_dial_ns(peer);
    case MESH_NODE_CONNECTING: /* the net reports the outcome */
        return peer->has_turn ? time_after(peer->since_ns, MESH_DIAL_TURN_NS) : TIME_NEVER;
    case MESH_NODE_UNRESOLVED: /* no peer is in these states: see mesh_node_info */
    case MESH_NODE_ALIVE:
    case MESH_NODE_UNKNOWN:
        return TIME_NEVER;
    case MESH_NODE_GREETING:
        return peer->contact->greeting_deadline_ns;
    case MESH_NODE_UP:
        return time_min(time_min(mesh_heartbeat_deadline_ns(peer), mesh_need_deadline_ns(peer)),
                        mesh_rails_dial_ns(peer));
    case MESH_NODE_REMOVED:
        return TIME_NEVER;
    }
    return TIME_NEVER;
}

void mesh_peer_arm(struct mesh_peer *peer)
{
    if (peer->waits_to_dial && (peer->state != MESH_NODE_DOWN || mesh_need_dial_ns(peer) == TIME_NEVER)) {
        peer_leave_queue(peer);
    }
    uint64_t deadline_ns = peer_deadline_ns(peer);
    if (deadline_ns == TIME_NEVER) {
        timer_heap_remove(&peer->mesh->timers, &peer->timer);
    } else {
        timer_heap_set(&peer->mesh->timers, &peer->timer, deadline_ns);
    }
}

/* In a large cluster, a neighbour that is gone is dialled seldom: an attempt costs a millisecond, and when it
 * is back, it dials us. */
void mesh_peer_back_off(struct mesh_peer *peer, struct backoff *dial, uint64_t now_ns)
{
    struct mesh *mesh = peer->mesh;
    const struct mesh_options *options = &mesh->options;
    bool is_gone = dial == &peer->dial && peer->needs == 0 && !mesh_is_complete(mesh) &&
                   members_state(mesh->members, peer->index) != MEMBER_UP;
    uint64_t max_ns = options->reconnect_max_ns * (is_gone ? MESH_GONE_DIALS : 1);
    backoff_failed(dial, options->reconnect_min_ns, max_ns, &mesh->random, now_ns);
}

/* The peer broke the protocol: until the hold-off ends, we do not dial it and refuse its connections. */
static void peer_hold_off(struct mesh_peer *peer, uint64_t now_ns)
{
    struct mesh_contact *contact = mesh_peer_contact_make(peer);
    if (contact == NULL) {
        return; /* the back-off alone holds it off */
    }
    bool forgiven = now_ns >= time_after(contact->held_off_until_ns, MESH_HOLD_OFF_FORGIVEN_NS);
    contact->hold_off_ns = forgiven || contact->hold_off_ns == 0
                               ? MESH_HOLD_OFF_MIN_NS
                               : time_min(2 * contact->hold_off_ns, MESH_HOLD_OFF_MAX_NS);
    contact->held_off_until_ns = time_after(now_ns, contact->hold_off_ns);
}

static bool peer_is_held_off(const struct mesh_peer *peer, uint64_t now_ns)
{
    return now_ns < mesh_peer_contact(peer)->held_off_until_ns;
}

void mesh_peer_end_hold_off(struct mesh_peer *peer, uint64_t now_ns)
{
    bool held = peer_is_held_off(peer, now_ns);
    if (peer->contact != NULL) {
        peer->contact->held_off_until_ns = 0;
        peer->contact->hold_off_ns = 0;
    }
    if (held && peer->state == MESH_NODE_DOWN) {
        peer->dial.next_ns = now_ns;
        mesh_peer_arm(peer);
    }
}

void mesh_peer_dial_soon(struct mesh_peer *peer, uint64_t now_ns)
{
    if (peer->state == MESH_NODE_DOWN && !peer_is_held_off(peer, now_ns) && peer->dial.next_ns > now_ns) {
        peer->dial = (struct backoff){.next_ns = now_ns};
        mesh_peer_arm(peer);
    }
}

/* Logs a cause once, even if it repeats. */
static void peer_note_error(struct mesh_peer *peer, enum log_level level, const char *what,
                            const struct error *cause)
{
    struct mesh_contact *contact = mesh_peer_contact_make(peer);
    level = strcmp(mesh_peer_contact(peer)->texts.last_error, cause->text) == 0 ? LOG_LEVEL_DEBUG : level;
    log_line(level, "node %s %s: %s", peer->name, what, cause->text);
    if (contact != NULL) {
        (void)snprintf(contact->texts.last_error, sizeof contact->texts.last_error, "%s", cause->text);
    }
}

void mesh_peer_disconnect(struct mesh_peer *peer, const struct error *cause)
{
    if (!peer->closing && (peer->state == MESH_NODE_GREETING || peer->state == MESH_NODE_UP)) {
        peer->closing = true;
        mesh_peer_arm(peer);
        net_disconnect(peer->mesh->net, peer->index, cause);
    }
}

enum status mesh_peer_send_packed(struct mesh_peer *peer, const uint8_t *bytes, size_t size)
{
    uint8_t header[FRAME_HEADER_BYTES];
    if (mesh_peer_contact(peer)->outgoing == NULL || peer->closing) {
        return STATUS_UNREACHABLE;
    }
    frame_put_header(header, size);
    enum status status =
        net_stream_send(peer->contact->outgoing, header, sizeof header, bytes, size, NULL, NULL);
    if (status == STATUS_LIMIT || status == STATUS_NO_MEMORY) {
        struct error cause;
        error_set(&cause, STATUS_LIMIT, "node %s does not read its control stream", peer->name);
        log_warning("%s", cause.text);
        mesh_peer_disconnect(peer, &cause);
    }
    return status;
}

enum status mesh_peer_send(struct mesh_peer *peer, const Commd__Mesh__Message *message)
{
    uint8_t packed[FRAME_MAX_BYTES];
    if (mesh_peer_contact(peer)->outgoing == NULL || peer->closing) {
        return STATUS_UNREACHABLE;
    }
    size_t size = commd__mesh__message__get_packed_size(message);
    if (size == 0 || size > sizeof packed) {
        return STATUS_LIMIT;
    }
    commd__mesh__message__pack(message, packed);
    return mesh_peer_send_packed(peer, packed, size);
}

void mesh_peer_up(void *context, uint32_t node, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    struct mesh *mesh = peer->mesh;
    struct error cause;
    struct mesh_contact *contact = mesh_peer_contact_make(peer);
    peer->closing = false;
    peer->process_ended = false;
    peer->refused_ns = 0;
    peer_set_state(peer, MESH_NODE_GREETING, now_ns);
    if (contact == NULL) {
        error_set(&cause, STATUS_NO_MEMORY, "no memory for the link to node %s", peer->name);
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    if (mesh_rails_open(peer, &cause) != STATUS_OK) { /* before the Hello: then it may dial the rails */
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    if (peer_is_held_off(peer, now_ns)) {
        error_set(&cause, STATUS_UNREACHABLE, "node %s accepts no connection from node %s for %llu ms: %s",
                  mesh->options.node_name, peer->name,
                  (unsigned long long)((contact->held_off_until_ns - now_ns) / TIME_MS),
                  contact->texts.last_error);
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    contact->greeting_deadline_ns = time_after(now_ns, 2 * mesh->options.heartbeat_timeout_ns);
    mesh_peer_arm(peer);
    if (net_stream_open(mesh->net, node, NET_STREAM_CONTROL, &contact->outgoing, &cause) != STATUS_OK) {
        contact->outgoing = NULL;
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    mesh_send_hello(peer);
}

void mesh_peer_greeted(struct mesh_peer *peer, uint64_t now_ns)
{
    peer_set_state(peer, MESH_NODE_UP, now_ns);
    peer->dial.failures = 0;
    mesh_need_reset(peer);
    mesh_heartbeat_start(peer, now_ns);
    mesh_peer_arm(peer);
    log_info("node %s is up: commd %s, instance %016llx", peer->name, peer->contact->texts.version_text,
             (unsigned long long)peer->contact->instance);
    struct history_about about = {
        .kind = HISTORY_NODE_UP, .audience = HISTORY_FOR_ALL, .subject = peer->name};
    history_add(&about, "commd %s", peer->contact->texts.version_text);
    members_linked(peer->mesh->members, peer->index, peer->contact->incarnation, now_ns);
    mesh_rails_node_up(peer);
    mesh_ping_up(peer, now_ns);
    for (unsigned room = 0; room < MESH_ROOMS; room++) {
        const struct mesh_handler *handler = &peer->mesh->handlers[room];
        if (handler->node_up != NULL) {
            handler->node_up(handler->context, peer->index, now_ns);
        }
    }
}

static void peer_note_down(struct mesh_peer *peer, bool was_up, bool ours, const struct error *cause)
{
    if (was_up) {
        peer->contact->texts.last_error[0] = '\0';
    }
    if (cause->status == STATUS_PROTOCOL) {
        char what[160];
        struct net_peer_statistics statistics;
        net_peer_statistics(peer->mesh->net, peer->index, &statistics);
        (void)snprintf(what, sizeof what,
                       statistics.closed_by_peer ? "says that this node broke the protocol, and may refuse "
                                                   "it for a while; next attempt in %llu s"
                                                 : "is disconnected, and held off for %llu s",
                       (unsigned long long)(mesh_peer_contact(peer)->hold_off_ns / TIME_S));
        peer_note_error(peer, LOG_LEVEL_WARNING, what, cause);
    } else if (was_up) {
        peer_note_error(peer, LOG_LEVEL_INFO, "is down", cause);
    } else if (ours) {
        peer_note_error(peer, LOG_LEVEL_WARNING, "is disconnected", cause);
    } else {
        peer_note_error(peer, LOG_LEVEL_INFO, "refused the connection", cause);
    }
}

/* The connection is over. When to dial again, if at all. */
static void peer_dial_after(struct mesh_peer *peer, bool is_failure, bool is_violation, uint64_t now_ns)
{
    if (is_failure || is_violation) {
        mesh_peer_back_off(peer, &peer->dial, now_ns);
    } else {
        peer->dial = (struct backoff){.next_ns = now_ns}; /* it waits its turn to dial again */
    }
    if (is_violation) {
        peer_hold_off(peer, now_ns);
    }
    uint64_t held_off_until_ns = mesh_peer_contact(peer)->held_off_until_ns;
    if (peer->dial.next_ns < held_off_until_ns) {
        peer->dial.next_ns = held_off_until_ns;
    }
    mesh_peer_arm(peer);
}

/* The node was up. needless: the connection ended because nobody needed it. */
static void peer_tell_down(struct mesh_peer *peer, const struct error *cause, bool needless, uint64_t now_ns)
{
    struct error copy = *cause;
    struct net_peer_statistics statistics;
    net_peer_statistics(peer->mesh->net, peer->index, &statistics);
    peer->process_ended = peer->process_ended || statistics.process_ended;
    copy.status = needless                            ? STATUS_UNREACHABLE
                  : copy.status == STATUS_UNREACHABLE ? STATUS_NODE_LOST
                                                      : copy.status;
    if (!needless) {
        struct history_about about = {
            .kind = HISTORY_NODE_DOWN, .audience = HISTORY_FOR_ALL, .subject = peer->name};
        history_add(&about, "%s", cause->text);
    }
    if (!peer->removed) {
        members_unlinked(peer->mesh->members, peer->index, now_ns);
    }
    mesh_ping_lost(peer, STATUS_NODE_LOST, now_ns);
    mesh_link_lost(peer);
    mesh_rails_node_down(peer, &copy);
    for (unsigned room = 0; room < MESH_ROOMS; room++) {
        const struct mesh_handler *handler = &peer->mesh->handlers[room];
        if (handler->node_down != NULL) {
            handler->node_down(handler->context, peer->index, &copy, now_ns);
        }
    }
}

static void contact_end_streams(struct mesh_contact *contact)
{
    if (contact->outgoing != NULL) {
        net_stream_reset(contact->outgoing);
    }
    contact->outgoing = contact->incoming = NULL;
    frame_decoder_free(&contact->decoder);
}

void mesh_peer_down(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    bool was_up = peer->state == MESH_NODE_UP;
    bool ours = peer->closing;
    bool is_violation = cause->status == STATUS_PROTOCOL;
    bool idle = was_up && mesh_peer_is_idle(peer);
    /* The other side may not have heard yet that we need the connection: then it heard nothing later either.
     */
    bool let_go = was_up && cause->status == STATUS_UNREACHABLE && !peer->peer_needs;
    bool was_held_off = peer_is_held_off(peer, now_ns);
    mesh_need_reset(peer);
    peer->closing = false;
    if (peer->contact != NULL) {
        contact_end_streams(peer->contact);
    }
    peer_set_state(peer, peer->removed ? MESH_NODE_REMOVED : MESH_NODE_DOWN, now_ns);
    peer_dial_after(peer, !idle, is_violation, now_ns);
    if ((idle && !is_violation) || let_go) {
        log_debug("node %s: the connection, which nobody needed, is over: %s", peer->name, cause->text);
    } else if (!was_held_off) { /* otherwise last_error keeps the violation */
        peer_note_down(peer, was_up, ours, cause);
    }
    if (was_up) {
        peer_tell_down(peer, cause, idle || let_go, now_ns);
    }
}

void mesh_peer_connect_failed(void *context, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    struct net_peer_statistics statistics;
    net_peer_statistics(peer->mesh->net, node, &statistics);
    peer->process_ended = statistics.process_ended;
    if (statistics.process_ended) {
        mesh_peer_refuses(context, node, now_ns);
    }
    peer_set_state(peer, MESH_NODE_DOWN, now_ns);
    mesh_peer_back_off(peer, &peer->dial, now_ns);
    mesh_peer_arm(peer);
    peer_note_error(peer, LOG_LEVEL_INFO, "cannot be reached", cause);
}

void mesh_remove_node(struct mesh *mesh, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    if (peer->removed) {
        return;
    }
    peer->removed = true;
    mesh->removed_count++;
    mesh->nodes_changed = true;
    members_remove(mesh->members, node);
    switch (peer->state) {
    case MESH_NODE_DOWN:
    case MESH_NODE_UNRESOLVED:
    case MESH_NODE_ALIVE:
    case MESH_NODE_UNKNOWN:
    case MESH_NODE_CONNECTING: /* the net cancels the attempt without a call */
    case MESH_NODE_REMOVED:
        peer_set_state(peer, MESH_NODE_REMOVED, now_ns);
        break;
    case MESH_NODE_GREETING:
    case MESH_NODE_UP:
        peer->closing = true;
        break;
    }
    mesh_peer_arm(peer);
    log_info("node %s is removed: %s", peer->name, cause->text);
    struct history_about about = {
        .kind = HISTORY_NODE_REMOVED, .audience = HISTORY_FOR_ALL, .subject = peer->name};
    history_add(&about, "%s", cause->text);
    mesh_rails_remove(peer, cause);
    net_remove_peer(mesh->net, node, cause);
}

void mesh_peer_address_set(struct mesh_peer *peer, char *resolved_address)
{
    struct net_peer_statistics statistics;
    net_peer_statistics(peer->mesh->net, peer->index, &statistics);
    free(peer->resolved_address);
    peer->resolved_address = resolved_address;
    peer->unresolved = statistics.unresolved;
}

/* The net knows another address now, and has cancelled an attempt that was under way. */
static void peer_dial_anew(struct mesh_peer *peer, uint64_t now_ns)
{
    peer->dial = (struct backoff){.next_ns = now_ns};
    if (peer->state == MESH_NODE_CONNECTING) {
        peer_set_state(peer, MESH_NODE_DOWN, now_ns);
    }
    mesh_peer_arm(peer);
}

/* From now on, the network dials that address. *copy gets a copy of it, which the caller releases. */
static enum status peer_dial_there(struct mesh_peer *peer, const char *address, char **copy,
                                   struct error *error)
{
    *copy = strdup(address);
    if (*copy == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the address of node %s", peer->name);
    }
    enum status status = net_move_peer(peer->mesh->net, peer->index, address, error);
    if (status != STATUS_OK) {
        free(*copy);
    }
    return status;
}

enum status mesh_move_node(struct mesh *mesh, uint32_t node, const char *address, uint64_t now_ns,
                           struct error *error)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    char *copy;
    enum status status = peer_dial_there(peer, address, &copy, error);
    if (status != STATUS_OK) {
        return status;
    }
    log_info("node %s moves from %s to %s", peer->name, peer->address, address);
    free(peer->address);
    peer->address = copy;
    mesh_peer_address_set(peer, NULL);
    peer_dial_anew(peer, now_ns);
    return mesh_rails_move(peer, error);
}

enum status mesh_resolve_node(struct mesh *mesh, uint32_t node, const char *address, uint64_t now_ns,
                              struct error *error)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    if (peer->resolved_address != NULL && strcmp(peer->resolved_address, address) == 0) {
        return STATUS_OK;
    }
    char *copy;
    enum status status = peer_dial_there(peer, address, &copy, error);
    if (status != STATUS_OK) {
        return status;
    }
    log_info("node %s: %s is %s%s", peer->name, peer->address, address,
             peer->resolved_address != NULL ? " now" : "");
    mesh_peer_address_set(peer, copy);
    peer_dial_anew(peer, now_ns);
    return mesh_rails_move(peer, error);
}

void mesh_unresolved(struct mesh *mesh, uint32_t node, const struct error *why)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    if (peer->unresolved && !peer->removed) {
        peer_note_error(peer, LOG_LEVEL_WARNING, "is unresolved, and asked for again", why);
    }
}

void mesh_peer_suspect(void *context, uint32_t node, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    if (!mesh_node_is_up(context, node) || mesh_node_is_suspect(context, node)) {
        return;
    }
    mesh_heartbeat_suspect(peer, now_ns);
    mesh_peer_arm(peer);
    for (unsigned room = 0; room < MESH_ROOMS; room++) {
        const struct mesh_handler *handler = &peer->mesh->handlers[room];
        if (handler->node_suspect != NULL) {
            handler->node_suspect(handler->context, node, now_ns);
        }
    }
}

void mesh_peer_refuses(void *context, uint32_t node, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    if (peer->refused_ns == 0 || now_ns - mesh_peer_refused_last_ns(peer) > MESH_REFUSALS_NS) {
        peer->refused_ns = now_ns;
    }
    uint64_t refused_ms = (now_ns - peer->refused_ns) / TIME_MS;
    peer->refused_ms = refused_ms < UINT32_MAX ? (uint32_t)refused_ms : UINT32_MAX;
}

static void peer_dial(struct mesh_peer *peer, uint64_t now_ns)
{
    struct mesh *mesh = peer->mesh;
    struct error error;
    bool is_next = mesh->dial_queue == NULL || mesh->dial_queue == peer;
    if (peer->dial.failures == 0 && (mesh->dials >= MESH_DIALS_MAX || !is_next)) {
        if (!peer->waits_to_dial && peer->neighbour) {
            DL_PREPEND(mesh->dial_queue, peer);
        } else if (!peer->waits_to_dial) {
            DL_APPEND(mesh->dial_queue, peer);
        }
        peer->waits_to_dial = true;
        return;
    }
    peer_set_state(peer, MESH_NODE_CONNECTING, now_ns);
    peer->process_ended = false;
    if (net_connect(mesh->net, peer->index, &error) != STATUS_OK) {
        mesh_peer_connect_failed(mesh, peer->index, &error, now_ns);
        peer->process_ended = false; /* there was no attempt: the net speaks of an earlier one */
    }
}

void mesh_peer_tick(struct mesh_peer *peer, uint64_t now_ns)
{
    struct error cause;
    switch (peer->state) {
    case MESH_NODE_DOWN:
        if (mesh_need_dials(peer, now_ns)) {
            peer_dial(peer, now_ns);
        }
        break;
    case MESH_NODE_UNRESOLVED:
    case MESH_NODE_ALIVE:
    case MESH_NODE_UNKNOWN:
        break;
    case MESH_NODE_CONNECTING:
        peer_end_turn(peer);
        break;
    case MESH_NODE_GREETING:
        error_set(&cause, STATUS_TIMED_OUT, "node %s did not greet within %llu ms", peer->name,
                  (unsigned long long)((now_ns - peer->since_ns) / TIME_MS));
        mesh_peer_disconnect(peer, &cause);
        break;
    case MESH_NODE_UP:
        mesh_need_tick(peer, now_ns);
        mesh_rails_tick(peer, now_ns);
        mesh_heartbeat_tick(peer, now_ns);
        break;
    case MESH_NODE_REMOVED:
        break;
    }
    mesh_peer_arm(peer);
}
