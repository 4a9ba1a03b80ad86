#include "daemon/mesh/mesh_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/base/log.h"

void mesh_options_default(struct mesh_options *options)
{
    *options = (struct mesh_options){
        .cluster_name = "",
        .version_text = "",
        .algorithms = "",
        .heartbeat_interval_ns = 500 * TIME_MS,
        .heartbeat_timeout_ns = 4000 * TIME_MS,
        .suspect_timeout_ns = 450 * TIME_MS,
        .reconnect_min_ns = 100 * TIME_MS,
        .reconnect_max_ns = 5 * TIME_S,
    };
}

static enum status options_check(const struct mesh_options *options, struct error *error)
{
    if (options->node_name == NULL || options->node_name[0] == '\0' ||
        strlen(options->node_name) > NODE_NAME_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a node's name has 1 to %d bytes",
                         NODE_NAME_MAX_BYTES);
    }
    if (options->cluster_name == NULL || strlen(options->cluster_name) > MESH_CLUSTER_NAME_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a cluster's name has at most %d bytes",
                         MESH_CLUSTER_NAME_MAX_BYTES);
    }
    if (options->instance == 0 || options->heartbeat_interval_ns == 0 || options->heartbeat_timeout_ns == 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "a node's instance, heartbeat interval and heartbeat timeout are not 0");
    }
    return STATUS_OK;
}

/* --- Members --- */

static void members_send(void *context, uint32_t node, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct mesh *mesh = context;
    Commd__Mesh__Members body = COMMD__MESH__MEMBERS__INIT;
    body.records.data = (uint8_t *)(uintptr_t)bytes;
    body.records.len = size;
    Commd__Mesh__Message message = MESH_MESSAGE(MEMBERS, members, &body);
    (void)now_ns;
    mesh_tell(mesh, node, &message);
}

/* Of nodes that are up here, mesh_peer_down and mesh_peer_greeted report what happens. */
static void members_changed(void *context, uint32_t node, enum member_state state, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    if (peer->state == MESH_NODE_UP || peer->removed) {
        return;
    }
    if (state == MEMBER_DOWN) {
        log_info("node %s is down: its neighbours have lost it", peer->name);
    } else if (state == MEMBER_UP) {
        log_debug("node %s is up: it has told its neighbours so", peer->name);
        mesh_peer_dial_soon(peer, now_ns);
    }
}

static void members_neighbour(void *context, uint32_t node, bool is_neighbour, uint64_t now_ns)
{
    struct mesh_peer *peer = mesh_peer_at(context, node);
    (void)now_ns;
    peer->neighbour = is_neighbour && !peer->removed;
    mesh_peer_arm(peer);
}

static bool members_probe(void *context, uint32_t node, uint64_t now_ns)
{
    const struct mesh *mesh = context;
    (void)now_ns;
    return net_probe(mesh->net, node);
}

static void peer_answers(void *context, uint32_t node, uint64_t now_ns)
{
    struct mesh *mesh = context;
    mesh_peer_at(mesh, node)->answered_ns = now_ns;
    mesh_peer_at(mesh, node)->refused_ns = 0;
    members_answered(mesh->members, node, now_ns);
}

static enum status make_members(struct mesh *mesh, struct error *error)
{
    const struct mesh_options *options = &mesh->options;
    struct members_options members;
    members_options_default(&members);
    members.own_name = mesh->node_name;
    members.own_incarnation =
        options->incarnation != 0 ? options->incarnation : options->now_ns / TIME_US + 1;
    members.seed = options->seed;
    members.patience_ns = options->heartbeat_timeout_ns;
    members.handler =
        (struct members_handler){mesh, members_send, members_changed, members_neighbour, members_probe};
    return members_new(&members, options->now_ns, &mesh->members, error);
}

enum status mesh_new(struct net *net, const struct mesh_options *options, struct mesh **out,
                     struct error *error)
{
    enum status status = options_check(options, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct mesh *mesh = calloc(1, sizeof *mesh);
    char *algorithms = strdup(options->algorithms != NULL ? options->algorithms : "");
    if (mesh == NULL || algorithms == NULL) {
        free(mesh);
        free(algorithms);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the mesh");
    }
    mesh->net = net;
    mesh->options = *options;
    (void)snprintf(mesh->node_name, sizeof mesh->node_name, "%s", options->node_name);
    (void)snprintf(mesh->cluster_name, sizeof mesh->cluster_name, "%s", options->cluster_name);
    (void)snprintf(mesh->version_text, sizeof mesh->version_text, "%s",
                   options->version_text != NULL ? options->version_text : "");
    mesh->options.node_name = mesh->node_name;
    mesh->options.cluster_name = mesh->cluster_name;
    mesh->options.version_text = mesh->version_text;
    mesh->algorithms = algorithms;
    mesh->options.algorithms = algorithms;
    mesh->rail_count = 1;
    mesh->ping_deadline_ns = TIME_NEVER;
    mesh->wake_ns = TIME_NEVER;
    random_seed(&mesh->random, options->seed);
    mesh->coordinate = coordinate_first();
    status = make_members(mesh, error);
    if (status != STATUS_OK) {
        free(algorithms);
        free(mesh);
        return status;
    }
    struct net_peer_handler peer_handler = {
        mesh,         mesh_peer_up,     mesh_peer_down, mesh_peer_connect_failed, mesh_peer_suspect,
        peer_answers, mesh_peer_refuses};
    struct net_stream_handler stream_handler = {mesh, mesh_stream_receive, mesh_stream_closed, NULL};
    net_set_peer_handler(net, &peer_handler);
    net_set_stream_handler(net, NET_STREAM_CONTROL, &stream_handler);
    *out = mesh;
    return STATUS_OK;
}

static void peer_free(struct mesh_peer *peer)
{
    if (peer != NULL) {
        if (peer->contact != NULL) {
            frame_decoder_free(&peer->contact->decoder);
        }
        free(peer->contact);
        free(peer->address);
        free(peer->resolved_address);
        free(peer->rail_addresses);
        for (uint32_t rail = 1; peer->rails != NULL && rail < peer->mesh->rail_count; rail++) {
            free(peer->rails[rail - 1].why);
        }
        free(peer->rails);
        free(peer);
    }
}

void mesh_free(struct mesh *mesh)
{
    if (mesh == NULL) {
        return;
    }
    mesh_ping_free(mesh);
    index_table_free(&mesh->by_name);
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        peer_free(mesh->peers[i]);
    }
    free(mesh->peers);
    mesh_rails_free(mesh);
    members_free(mesh->members);
    free(mesh->algorithms);
    timer_heap_free(&mesh->timers);
    free(mesh);
}

void mesh_set_handler(struct mesh *mesh, enum mesh_room room, const struct mesh_handler *handler)
{
    mesh->handlers[room] = *handler;
}

/* --- Nodes --- */

static uint64_t name_hash(const char *name)
{
    return hash_bytes(0, name, strlen(name));
}

static uint64_t hash_of_name(const void *context, uint32_t node)
{
    return name_hash(mesh_peer_at(context, node)->name);
}

static bool has_name(const void *context, uint32_t node, const void *key)
{
    return strcmp(mesh_peer_at(context, node)->name, key) == 0;
}

static struct index_table_entries names_of(const struct mesh *mesh)
{
    return (struct index_table_entries){hash_of_name, has_name, mesh};
}

/* Returns null if no node has that name; one that was removed keeps it. */
static struct mesh_peer *peer_named(const struct mesh *mesh, const char *name)
{
    const struct index_table_entries names = names_of(mesh);
    uint32_t node = index_table_find(&mesh->by_name, &names, name_hash(name), name);
    return node != INDEX_TABLE_NONE ? mesh->peers[node] : NULL;
}

static bool peers_reserve(struct mesh *mesh)
{
    const struct index_table_entries names = names_of(mesh);
    if (!timer_heap_reserve(&mesh->timers, (size_t)mesh->peer_count + 1) ||
        !index_table_reserve(&mesh->by_name, &names)) {
        return false;
    }
    if (mesh->peer_count < mesh->peer_capacity) {
        return true;
    }
    uint32_t capacity = mesh->peer_capacity == 0 ? 16 : mesh->peer_capacity * 2;
    struct mesh_peer **peers = realloc(mesh->peers, capacity * sizeof *peers);
    if (peers == NULL) {
        return false;
    }
    mesh->peers = peers;
    mesh->peer_capacity = capacity;
    return true;
}

/* The next tick finds out whose neighbour it is. */
static enum status member_add(struct mesh *mesh, struct mesh_peer *peer, struct error *error)
{
    mesh->nodes_changed = true;
    peer->neighbour = mesh_is_complete(mesh); /* until the next tick */
    enum status status = mesh_rails_add(peer, error);
    if (status == STATUS_OK) {
        status = members_add(mesh->members, peer->index, peer->name, error);
    }
    if (status != STATUS_OK) {
        peer->removed = true;
        peer->state = MESH_NODE_REMOVED;
        mesh->removed_count++;
        mesh_rails_remove(peer, error);
        net_remove_peer(mesh->net, peer->index, error);
    }
    mesh_peer_arm(peer);
    return status;
}

static enum status node_add_again(struct mesh *mesh, struct mesh_peer *peer, const char *address,
                                  struct error *error)
{
    uint32_t index;
    char *copy = strdup(address != NULL ? address : "");
    if (copy == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", peer->name);
    }
    enum status status = net_add_peer(mesh->net, peer->name, address, &index, error);
    if (status != STATUS_OK) {
        free(copy);
        return status;
    }
    free(peer->address);
    peer->address = copy;
    mesh_peer_address_set(peer, NULL);
    peer->removed = false;
    mesh->removed_count--;
    if (peer->state == MESH_NODE_REMOVED) { /* otherwise its old connection is still ending */
        peer->state = MESH_NODE_DOWN;
    }
    peer->dial = (struct backoff){0};
    return member_add(mesh, peer, error);
}

/* Makes a node that the net does not know yet. */
static enum status peer_new(struct mesh *mesh, const char *name, const char *address, struct mesh_peer **out,
                            struct error *error)
{
    size_t name_bytes = strlen(name) + 1;
    struct mesh_peer *peer = calloc(1, sizeof *peer + name_bytes);
    if (peer == NULL || !peers_reserve(mesh)) {
        free(peer);
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    peer->mesh = mesh;
    memcpy(peer->name, name, name_bytes);
    peer->address = strdup(address != NULL ? address : "");
    peer->dials = strcmp(mesh->node_name, name) < 0;
    peer->timer.index = TIMER_NODE_DISARMED;
    enum status status = peer->address != NULL
                             ? mesh_rails_check(peer, error)
                             : error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    if (status != STATUS_OK) {
        peer_free(peer);
        return status;
    }
    *out = peer;
    return STATUS_OK;
}

enum status mesh_add_node(struct mesh *mesh, const char *name, const char *address, uint32_t *node,
                          struct error *error)
{
    if (name == NULL || name[0] == '\0' || strlen(name) > NODE_NAME_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a node's name has 1 to %d bytes",
                         NODE_NAME_MAX_BYTES);
    }
    if (strcmp(name, mesh->node_name) == 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "node %s is this node itself", name);
    }
    struct mesh_peer *known = peer_named(mesh, name);
    if (known != NULL) {
        *node = known->index;
        return known->removed ? node_add_again(mesh, known, address, error)
                              : error_set(error, STATUS_ALREADY_EXISTS, "node %s is known already", name);
    }
    if (mesh->peer_count >= NET_PEERS_MAX) {
        return error_set(error, STATUS_LIMIT, "node %s: more than %d nodes", name, NET_PEERS_MAX);
    }
    struct mesh_peer *peer = NULL;
    enum status status = peer_new(mesh, name, address, &peer, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = net_add_peer(mesh->net, name, address, &peer->index, error);
    if (status == STATUS_OK && peer->index != mesh->peer_count) {
        status = error_set(error, STATUS_INTERNAL, "node %s got index %u of the network, not %u", name,
                           peer->index, mesh->peer_count);
    }
    if (status != STATUS_OK) {
        peer_free(peer);
        return status;
    }
    const struct index_table_entries names = names_of(mesh);
    mesh->peers[mesh->peer_count++] = peer;
    index_table_add(&mesh->by_name, &names, peer->index);
    mesh_peer_address_set(peer, NULL);
    mesh_need_reset(peer);
    *node = peer->index;
    return member_add(mesh, peer, error);
}

const char *mesh_node_state_text(enum mesh_node_state state)
{
    switch (state) {
    case MESH_NODE_DOWN:
        return "down";
    case MESH_NODE_UNRESOLVED:
        return "unresolved";
    case MESH_NODE_CONNECTING:
        return "connecting";
    case MESH_NODE_GREETING:
        return "greeting";
    case MESH_NODE_UP:
        return "up";
    case MESH_NODE_ALIVE:
        return "alive";
    case MESH_NODE_UNKNOWN:
        return "unknown";
    case MESH_NODE_REMOVED:
        return "removed";
    }
    return "unknown";
}

uint32_t mesh_node_count(const struct mesh *mesh)
{
    return mesh->peer_count;
}

uint32_t mesh_configured_count(const struct mesh *mesh)
{
    return mesh->peer_count - mesh->removed_count;
}

bool mesh_node_is_removed(const struct mesh *mesh, uint32_t node)
{
    return mesh_peer_at(mesh, node)->removed;
}

static enum mesh_node_state state_for_people(const struct mesh_peer *peer)
{
    if (peer->state != MESH_NODE_DOWN) {
        return peer->state;
    }
    if (!mesh_peer_is_needed(peer)) {
        switch (members_state(peer->mesh->members, peer->index)) {
        case MEMBER_UNKNOWN:
            return peer->unresolved ? MESH_NODE_UNRESOLVED : MESH_NODE_UNKNOWN;
        case MEMBER_UP:
            return MESH_NODE_ALIVE;
        case MEMBER_DOWN:
            return MESH_NODE_DOWN;
        }
    }
    return peer->unresolved ? MESH_NODE_UNRESOLVED : MESH_NODE_DOWN;
}

void mesh_node_info(const struct mesh *mesh, uint32_t node, struct mesh_node_info *out)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    const struct mesh_contact *contact = mesh_peer_contact(peer);
    *out = (struct mesh_node_info){
        .name = peer->name,
        .address = peer->address,
        .resolved_address = peer->resolved_address != NULL ? peer->resolved_address : "",
        .state = state_for_people(peer),
        .since_ns = peer->since_ns,
        .instance = contact->instance,
        .version_text = contact->texts.version_text,
        .heartbeat_round_trip_ns = contact->heartbeat.round_trip_ns,
        .estimated_round_trip_ns = mesh_estimated_round_trip_ns(mesh, node),
        .differs = contact->texts.differs,
        .draining = peer->state == MESH_NODE_UP && contact->drains,
        .last_error = contact->texts.last_error,
    };
    net_peer_statistics(mesh->net, node, &out->net);
}

void mesh_set_draining(struct mesh *mesh, bool draining)
{
    mesh->drains = draining;
}

const char *mesh_node_name(const struct mesh *mesh, uint32_t node)
{
    return node == MESH_NODE_OWN ? mesh->node_name : mesh_peer_at(mesh, node)->name;
}

bool mesh_user_may(const struct mesh *mesh, uint32_t uid, uint32_t node)
{
    const struct mesh_options *options = &mesh->options;
    return options->user_may == NULL ||
           options->user_may(options->user_may_context, uid, mesh_node_name(mesh, node));
}

bool mesh_node_is_up(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return peer->state == MESH_NODE_UP && !peer->closing;
}

bool mesh_node_process_ended(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return peer->state != MESH_NODE_UP && peer->process_ended;
}

bool mesh_find_node(const struct mesh *mesh, const char *name, uint32_t *node)
{
    const struct mesh_peer *peer = peer_named(mesh, name);
    if (peer == NULL || peer->removed) {
        return false;
    }
    *node = peer->index;
    return true;
}

uint64_t mesh_patience_ns(const struct mesh *mesh)
{
    return mesh->options.heartbeat_timeout_ns;
}

const char *mesh_own_name(const struct mesh *mesh)
{
    return mesh->node_name;
}

uint64_t mesh_own_instance(const struct mesh *mesh)
{
    return mesh->options.instance;
}

void mesh_check_certificates(struct mesh *mesh, uint64_t now_s)
{
    struct net_statistics statistics;
    struct expiry_certificate *others =
        calloc((size_t)mesh->peer_count + 1, sizeof *others); /* if out of memory: again in an hour */
    net_statistics(mesh->net, &statistics);
    struct expiry_certificate own = {mesh->node_name, statistics.certificate_ends_s};
    for (uint32_t i = 0; others != NULL && i < mesh->peer_count; i++) {
        struct net_peer_statistics peer = {0};
        net_peer_statistics(mesh->net, i, &peer);
        others[i].name = mesh->peers[i]->name;
        others[i].ends_s = mesh->peers[i]->removed ? 0 : peer.certificate_ends_s;
    }
    expiry_check(&mesh->expiry, &own, others, others == NULL ? 0 : mesh->peer_count, now_s);
    free(others);
}

/* --- Time and messages --- */

uint64_t mesh_next_deadline_ns(const struct mesh *mesh)
{
    const struct timer_node *first = timer_heap_first(&mesh->timers);
    if (mesh->nodes_changed) {
        return 0;
    }
    uint64_t members_ns = mesh->peer_count > 0 ? members_next_deadline_ns(mesh->members) : TIME_NEVER;
    return time_min(time_min(members_ns, first != NULL ? first->deadline_ns : TIME_NEVER),
                    time_min(mesh->ping_deadline_ns, mesh_link_deadline_ns(mesh)));
}

void mesh_tick(struct mesh *mesh, uint64_t now_ns)
{
    struct timer_node *first;
    if (mesh->nodes_changed) {
        mesh_need_neighbours(mesh);
    }
    if (now_ns > time_after(mesh->wake_ns, MESH_LATE_NS)) {
        mesh->stalled_ns += now_ns - mesh->wake_ns;
    }
    /* Every tick of a peer sets its timer to a later time, or removes it. If a bug breaks that, the bound on
     * turns keeps the daemon from hanging. */
    for (uint32_t turn = 0; turn <= mesh->peer_count; turn++) {
        first = timer_heap_first(&mesh->timers);
        if (first == NULL || first->deadline_ns > now_ns) {
            break;
        }
        mesh_peer_tick((struct mesh_peer *)((char *)first - offsetof(struct mesh_peer, timer)), now_ns);
    }
    members_tick(mesh->members, now_ns);
    mesh_ping_tick(mesh, now_ns);
    mesh_link_tick(mesh, now_ns);
    mesh->wake_ns = mesh_next_deadline_ns(mesh);
    mesh->wake_ns = mesh->wake_ns > now_ns ? mesh->wake_ns : now_ns;
}

void mesh_leave(struct mesh *mesh, uint64_t now_ns)
{
    members_leave(mesh->members, now_ns);
}

void mesh_violation(struct mesh *mesh, uint32_t node, const char *what)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    struct error cause;
    error_set(&cause, STATUS_PROTOCOL, "node %s sent %s", peer->name, what);
    mesh_peer_disconnect(peer, &cause);
}

void mesh_end_hold_offs(struct mesh *mesh, uint64_t now_ns)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        mesh_peer_end_hold_off(mesh->peers[i], now_ns);
    }
}

uint32_t mesh_node_queued(const struct mesh *mesh, uint32_t node)
{
    const struct mesh_peer *peer = mesh_peer_at(mesh, node);
    const struct net_stream *outgoing = mesh_peer_contact(peer)->outgoing;
    return outgoing != NULL && !peer->closing ? net_stream_queued(outgoing) : 0;
}

bool mesh_node_offers(const struct mesh *mesh, uint32_t node, unsigned feature)
{
    return (mesh_peer_contact(mesh_peer_at(mesh, node))->offers & feature) != 0;
}

bool mesh_is_crowded(const struct mesh *mesh)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        if (mesh_node_queued(mesh, i) >= MESH_CROWDED) {
            return true;
        }
    }
    return false;
}
