#include "daemon/mesh/mesh_internal.h"

#include <stdlib.h>

#include <utlist.h>

static void ping_remove(struct mesh *mesh, struct mesh_ping_entry *ping)
{
    DL_DELETE(mesh->pings, ping);
    mesh->ping_count--;
    if (ping->needs_link) {
        mesh_unneed(mesh, ping->peer->index, MESH_NEED_CALL);
    }
}

static enum status ping_send(struct mesh *mesh, struct mesh_ping_entry *ping, uint64_t now_ns)
{
    Commd__Mesh__Echo echo = COMMD__MESH__ECHO__INIT;
    echo.token = ping->token;
    Commd__Mesh__Message message = MESH_MESSAGE(ECHO, echo, &echo);
    ping->sent_ns = now_ns;
    return mesh_send(mesh, ping->peer->index, &message);
}

/* Whether there is no connection just because nobody needed one. A neighbour is dialled anyway. */
static bool may_be_dialled(const struct mesh_peer *peer)
{
    return !peer->removed && !peer->neighbour && !mesh_node_is_out_of_reach(peer->mesh, peer->index);
}

/* `done` may start and forget pings. */
static void ping_end(struct mesh *mesh, struct mesh_ping_entry *ping, enum status result, uint64_t now_ns)
{
    ping_remove(mesh, ping);
    mesh_ping_function *done = ping->done;
    void *context = ping->context;
    uint64_t round_trip_ns = result == STATUS_OK ? now_ns - ping->sent_ns : 0;
    free(ping);
    done(context, result, round_trip_ns, now_ns);
}

enum status mesh_ping(struct mesh *mesh, uint32_t node, uint64_t timeout_ns, mesh_ping_function *done,
                      void *context, uint64_t now_ns, struct error *error)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    bool is_up = mesh_node_is_up(mesh, node);
    if (!is_up && !may_be_dialled(peer)) {
        return error_set(error, STATUS_UNREACHABLE, "node %s is not up: %s", peer->name,
                         mesh_peer_contact(peer)->texts.last_error[0] != '\0'
                             ? mesh_peer_contact(peer)->texts.last_error
                             : mesh_node_state_text(peer->state));
    }
    if (mesh->ping_count >= MESH_PINGS_MAX) {
        return error_set(error, STATUS_LIMIT, "%d pings are under way already", MESH_PINGS_MAX);
    }
    struct mesh_ping_entry *ping = calloc(1, sizeof *ping);
    if (ping == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a ping of node %s", peer->name);
    }
    ping->peer = peer;
    ping->token = ++mesh->ping_token;
    ping->deadline_ns = time_after(now_ns, timeout_ns);
    ping->done = done;
    ping->context = context;
    enum status status = is_up ? ping_send(mesh, ping, now_ns) : STATUS_OK;
    if (status != STATUS_OK) {
        free(ping);
        return error_set(error, status, "node %s: the ping could not be sent: %s", peer->name,
                         status_text(status));
    }
    if (!is_up) {
        ping->needs_link = true;
        mesh_need(mesh, node, MESH_NEED_CALL);
    }
    DL_APPEND(mesh->pings, ping);
    mesh->ping_count++;
    mesh->ping_deadline_ns = time_min(mesh->ping_deadline_ns, ping->deadline_ns);
    return STATUS_OK;
}

void mesh_ping_forget(struct mesh *mesh, void *context)
{
    struct mesh_ping_entry *ping, *next;
    DL_FOREACH_SAFE(mesh->pings, ping, next)
    {
        if (ping->context == context) {
            ping_remove(mesh, ping);
            free(ping);
        }
    }
}

void mesh_ping_up(struct mesh_peer *peer, uint64_t now_ns)
{
    struct mesh_ping_entry *ping;
    DL_FOREACH(peer->mesh->pings, ping)
    {
        if (ping->peer == peer && ping->needs_link) {
            enum status status = ping_send(peer->mesh, ping, now_ns);
            (void)status; /* if this fails the node is lost, and the ping ends */
        }
    }
}

void mesh_ping_answered(struct mesh_peer *peer, uint64_t token, uint64_t now_ns)
{
    struct mesh_ping_entry *ping;
    DL_FOREACH(peer->mesh->pings, ping)
    {
        if (ping->token == token && ping->peer == peer) {
            ping_end(peer->mesh, ping, STATUS_OK, now_ns);
            return;
        }
    }
}

/* Ends the pings for which `is_over` is true. Starts again at the head of the list after each one, since done
 * may change the list. Only pings that existed at the start are looked at. */
static void ping_end_each(struct mesh *mesh,
                          bool (*is_over)(const struct mesh_ping_entry *ping, const void *what),
                          const void *what, enum status result, uint64_t now_ns)
{
    uint64_t last_token = mesh->ping_token;
    struct mesh_ping_entry *ping = mesh->pings;
    while (ping != NULL) {
        if (ping->token <= last_token && is_over(ping, what)) {
            ping_end(mesh, ping, result, now_ns);
            ping = mesh->pings;
        } else {
            ping = ping->next;
        }
    }
}

static bool ping_is_of(const struct mesh_ping_entry *ping, const void *peer)
{
    return ping->peer == peer;
}

static bool ping_is_late(const struct mesh_ping_entry *ping, const void *now_ns)
{
    return ping->deadline_ns <= *(const uint64_t *)now_ns;
}

void mesh_ping_lost(struct mesh_peer *peer, enum status status, uint64_t now_ns)
{
    ping_end_each(peer->mesh, ping_is_of, peer, status, now_ns);
}

void mesh_ping_tick(struct mesh *mesh, uint64_t now_ns)
{
    if (now_ns < mesh->ping_deadline_ns) {
        return;
    }
    ping_end_each(mesh, ping_is_late, &now_ns, STATUS_TIMED_OUT, now_ns);
    mesh->ping_deadline_ns = TIME_NEVER;
    struct mesh_ping_entry *ping;
    DL_FOREACH(mesh->pings, ping)
    {
        mesh->ping_deadline_ns = time_min(mesh->ping_deadline_ns, ping->deadline_ns);
    }
}

void mesh_ping_free(struct mesh *mesh)
{
    while (mesh->pings != NULL) {
        struct mesh_ping_entry *ping = mesh->pings;
        ping_remove(mesh, ping);
        free(ping);
    }
}
