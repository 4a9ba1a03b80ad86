#include "daemon/mesh/mesh_internal.h"

/*
 * Estimates of round trips to nodes without a link, by network coordinates (coordinate.h). A node measures
 * the round trip of its heartbeats, which go over the links that it has anyway. Each answer brings the
 * neighbour's coordinate, and that of some other node that the neighbour has heard of. So coordinates
 * reach all nodes in time, and the traffic of a link is the same in a cluster of any size.
 *
 * A node that lies about coordinates makes estimates wrong, no more.
 */
#define LOOKS_MAX 64              /* at peers, for one whose coordinate is known */
#define AHEAD_S 86400u            /* another node's clock may be ahead of ours by a day */
#define SHORTEST_FADES_DIVISOR 16 /* an old shortest round trip is forgotten by and by */

/* The wall clock's time, as far as it was right at our start. */
static uint64_t wall_s(const struct mesh *mesh, uint64_t now_ns)
{
    return members_own_incarnation(mesh->members) / 1000000 + (now_ns - mesh->options.now_ns) / TIME_S;
}

/* --- Sending --- */

static void to_wire(const struct coordinate *coordinate, uint64_t node_id, uint64_t as_of_s,
                    struct mesh_coordinate_wire *out)
{
    out->body = (Commd__Mesh__Coordinate)COMMD__MESH__COORDINATE__INIT;
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        out->at[i] = coordinate->at[i];
    }
    out->body.n_at = COORDINATE_AXES;
    out->body.at = out->at;
    out->body.height = coordinate->height;
    out->body.error_permille = coordinate->error_permille;
    out->body.as_of_s = as_of_s;
    out->body.node_id = node_id;
}

/* Any peer whose coordinate is known, but not the receiver; null: none was found. */
static const struct mesh_peer *any_known(struct mesh *mesh, const struct mesh_peer *receiver)
{
    uint32_t first = (uint32_t)random_below(&mesh->random, mesh->peer_count);
    for (uint32_t i = 0; i < LOOKS_MAX && i < mesh->peer_count; i++) {
        const struct mesh_peer *peer = mesh->peers[(first + i) % mesh->peer_count];
        if (peer != receiver && !peer->removed && peer->coordinate_s != 0) {
            return peer;
        }
    }
    return NULL;
}

void mesh_estimate_fill(struct mesh_peer *receiver, struct mesh_coordinates *out, uint64_t now_ns)
{
    struct mesh *mesh = receiver->mesh;
    const struct mesh_peer *other = any_known(mesh, receiver);
    to_wire(&mesh->coordinate, 0, wall_s(mesh, now_ns), &out->wire[0]);
    out->list[0] = &out->wire[0].body;
    out->count = 1;
    if (other != NULL) {
        to_wire(&other->coordinate, members_id(mesh->members, other->index), other->coordinate_s,
                &out->wire[1]);
        out->list[1] = &out->wire[1].body;
        out->count = 2;
    }
}

/* --- Receiving --- */

/* Returns false for numbers that no node has. */
static bool from_wire(const Commd__Mesh__Coordinate *wire, struct coordinate *out)
{
    if (wire->n_at != COORDINATE_AXES) {
        return false;
    }
    for (unsigned i = 0; i < COORDINATE_AXES; i++) {
        out->at[i] = wire->at[i];
    }
    out->height = wire->height;
    out->error_permille = wire->error_permille;
    return coordinate_is_sound(out);
}

/* What a neighbour says of another node. Our own links know better. */
static void take_other(struct mesh *mesh, const Commd__Mesh__Coordinate *wire,
                       const struct coordinate *coordinate, uint64_t now_ns)
{
    uint32_t node;
    if (!members_find(mesh->members, wire->node_id, &node) ||
        wire->as_of_s > wall_s(mesh, now_ns) + AHEAD_S) {
        return;
    }
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    if (peer->state != MESH_NODE_UP && wire->as_of_s > peer->coordinate_s) {
        peer->coordinate = *coordinate;
        peer->coordinate_s = wire->as_of_s;
    }
}

void mesh_estimate_answered(struct mesh_peer *peer, const Commd__Mesh__HeartbeatAnswer *answer,
                            uint64_t now_ns)
{
    struct mesh *mesh = peer->mesh;
    struct mesh_heartbeat *heartbeat = &peer->contact->heartbeat;
    struct coordinate coordinate;
    bool measured = answer->number == heartbeat->number;
    if (measured) {
        uint64_t kept_ns = heartbeat->shortest_ns + heartbeat->shortest_ns / SHORTEST_FADES_DIVISOR;
        bool is_shorter = heartbeat->shortest_ns == 0 || heartbeat->round_trip_ns < kept_ns;
        heartbeat->shortest_ns = is_shorter ? heartbeat->round_trip_ns : kept_ns;
    }
    for (size_t i = 0; i < answer->n_coordinates && i < MESH_COORDINATES_MAX; i++) {
        const Commd__Mesh__Coordinate *wire = answer->coordinates[i];
        if (!from_wire(wire, &coordinate)) {
            continue;
        }
        if (wire->node_id != 0) {
            take_other(mesh, wire, &coordinate, now_ns);
            continue;
        }
        peer->coordinate = coordinate;
        peer->coordinate_s = time_min(wire->as_of_s, wall_s(mesh, now_ns) + AHEAD_S);
        if (measured) {
            coordinate_move(&mesh->coordinate, &coordinate, heartbeat->shortest_ns, &mesh->random);
        }
    }
}

/* --- Questions --- */

uint64_t mesh_estimated_round_trip_ns(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    bool is_known = peer->coordinate_s != 0 && mesh->coordinate.error_permille < COORDINATE_ERROR_MAX;
    return is_known && peer->state != MESH_NODE_UP
               ? coordinate_round_trip_ns(&mesh->coordinate, &peer->coordinate)
               : 0;
}
