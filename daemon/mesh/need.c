#include "daemon/mesh/mesh_internal.h"

/*
 * Which connections this node needs. Each side tells the other one whether it does. Once neither does, the
 * node with the lower name ends the connection after MESH_IDLE_NS; the other node does so half of that later,
 * should the first one not.
 */

bool mesh_peer_is_needed(const struct mesh_peer *peer)
{
    return !peer->removed && (peer->neighbour || peer->needs > 0);
}

bool mesh_peer_is_idle(const struct mesh_peer *peer)
{
    return !mesh_peer_is_needed(peer) && !peer->peer_needs;
}

void mesh_need_reset(struct mesh_peer *peer)
{
    peer->peer_needs = true;
    peer->told_needed = true;
    peer->call_ns = 0;
    peer->let_go_ns = 0;
}

/* --- Dialling --- */

/* Whether we dial as soon as the back-off allows. The lower name does, or who cannot expect that the other
 * one knows. */
static bool dials_first(const struct mesh_peer *peer)
{
    return peer->dials || peer->calls > 0;
}

/* A neighbour that is gone waits for longer than one that somebody here needs: see mesh_peer_back_off. */
static uint64_t next_dial_ns(const struct mesh_peer *peer)
{
    uint64_t soon_ns = time_after(peer->since_ns, peer->mesh->options.reconnect_max_ns);
    uint64_t held_off_ns = mesh_peer_contact(peer)->held_off_until_ns;
    if (peer->needs == 0 || soon_ns >= peer->dial.next_ns) {
        return peer->dial.next_ns;
    }
    return soon_ns > held_off_ns ? soon_ns : held_off_ns;
}

uint64_t mesh_need_dial_ns(const struct mesh_peer *peer)
{
    if (peer->unresolved || !mesh_peer_is_needed(peer)) {
        return TIME_NEVER;
    }
    uint64_t next_ns = next_dial_ns(peer);
    if (dials_first(peer)) {
        return next_ns;
    }
    if (mesh_is_complete(peer->mesh)) {
        return TIME_NEVER; /* the other node knows that we are neighbours */
    }
    return peer->call_ns > next_ns ? peer->call_ns : next_ns;
}

bool mesh_need_dials(struct mesh_peer *peer, uint64_t now_ns)
{
    if (dials_first(peer) || peer->call_ns != 0) {
        return true;
    }
    peer->call_ns = time_after(now_ns, MESH_CALL_NS);
    return false;
}

/* --- Ending --- */

uint64_t mesh_need_deadline_ns(const struct mesh_peer *peer)
{
    if (peer->told_needed != mesh_peer_is_needed(peer)) {
        return 0;
    }
    return mesh_peer_is_idle(peer) ? peer->let_go_ns : TIME_NEVER;
}

static void tell(struct mesh_peer *peer)
{
    Commd__Mesh__LinkNeed body = COMMD__MESH__LINK_NEED__INIT;
    peer->told_needed = mesh_peer_is_needed(peer);
    body.needed = peer->told_needed;
    Commd__Mesh__Message message = MESH_MESSAGE(LINK_NEED, link_need, &body);
    enum status status = mesh_peer_send(peer, &message);
    (void)status; /* if this fails the connection is lost */
}

void mesh_need_tick(struct mesh_peer *peer, uint64_t now_ns)
{
    struct error cause;
    if (peer->told_needed != mesh_peer_is_needed(peer)) {
        tell(peer);
    }
    if (!mesh_peer_is_idle(peer)) {
        peer->let_go_ns = 0;
    } else if (peer->let_go_ns == 0) {
        peer->let_go_ns = time_after(now_ns, peer->dials ? MESH_IDLE_NS : MESH_IDLE_NS + MESH_IDLE_NS / 2);
    } else if (now_ns >= peer->let_go_ns) {
        error_set(&cause, STATUS_UNREACHABLE, "nodes %s and %s need no connection",
                  peer->mesh->options.node_name, peer->name);
        mesh_peer_disconnect(peer, &cause);
    }
}

void mesh_need_received(struct mesh_peer *peer, const Commd__Mesh__LinkNeed *said)
{
    peer->peer_needs = said->needed;
    peer->let_go_ns = 0;
    mesh_peer_arm(peer);
}

/* --- Needs --- */

void mesh_need(struct mesh *mesh, uint32_t node, enum mesh_need how)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    peer->needs++;
    peer->calls += how == MESH_NEED_CALL;
    peer->let_go_ns = 0;
    peer->process_ended = false;
    mesh_peer_arm(peer);
}

void mesh_unneed(struct mesh *mesh, uint32_t node, enum mesh_need how)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    peer->needs--;
    peer->calls -= how == MESH_NEED_CALL;
    peer->call_ns = peer->needs == 0 ? 0 : peer->call_ns;
    mesh_peer_arm(peer);
}

bool mesh_wants_address(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return !peer->removed && peer->state != MESH_NODE_UP && (peer->unresolved || mesh_peer_is_needed(peer));
}

bool mesh_is_complete(const struct mesh *mesh)
{
    return mesh_configured_count(mesh) + 1 <= MEMBER_RINGS_SMALL;
}

void mesh_need_neighbours(struct mesh *mesh)
{
    mesh->nodes_changed = false;
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        struct mesh_peer *peer = mesh->peers[i];
        peer->neighbour = !peer->removed && members_is_neighbour(mesh->members, i);
        mesh_peer_arm(peer);
    }
}

/* --- Who runs --- */

bool mesh_node_is_alive(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return mesh_node_is_up(mesh, node) ||
           (!peer->removed && !mesh_peer_is_needed(peer) && members_state(mesh->members, node) == MEMBER_UP);
}

bool mesh_node_is_member(const struct mesh *mesh, uint32_t node)
{
    return !mesh_peer_at(mesh, node)->removed &&
           (mesh_node_is_up(mesh, node) || members_state(mesh->members, node) == MEMBER_UP);
}

bool mesh_node_is_out_of_reach(const struct mesh *mesh, uint32_t node)
{
    return !mesh_node_is_up(mesh, node) &&
           (mesh_peer_at(mesh, node)->unresolved || members_state(mesh->members, node) == MEMBER_DOWN);
}

uint64_t mesh_node_silent_ns(const struct mesh *mesh, uint32_t node, uint64_t now_ns)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return mesh_node_is_up(mesh, node) ? now_ns - peer->contact->heartbeat.answered_ns : 0;
}

bool mesh_ask(const struct mesh *mesh, uint32_t node)
{
    return !mesh_peer_at(mesh, node)->removed && net_probe(mesh->net, node);
}

bool mesh_node_is_suspect(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return mesh_node_is_up(mesh, node) && peer->contact->heartbeat.suspect_ns != TIME_NEVER;
}

bool mesh_node_refuses(const struct mesh *mesh, uint32_t node, uint64_t now_ns)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return !mesh_node_is_up(mesh, node) && peer->refused_ns != 0 && peer->refused_ms != 0 &&
           now_ns - mesh_peer_refused_last_ns(peer) <= MESH_REFUSALS_NS &&
           now_ns - peer->refused_ns >= mesh->options.suspect_timeout_ns;
}

uint64_t mesh_node_answered_ns(const struct mesh *mesh, uint32_t node)
{
    return mesh_peer_at(mesh, node)->answered_ns;
}
