#include "daemon/exec/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/array.h"
#include "daemon/base/hash.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/conf/rail_addresses.h"
#include "daemon/exec/rails_internal.h"
#include "daemon/net/bulk.h"

/* The rails' connections, and the work of a rail's thread. */

/* --- Orders to a rail's network, and its reports --- */

enum link_word {
    ORDER_ADD, /* a new peer */
    ORDER_MOVE,
    ORDER_SPARE, /* see net_set_spare */
    ORDER_REMOVE,
    ORDER_CONNECT,
    ORDER_DISCONNECT,
    ORDER_KEEP_ALIVE,
    ORDER_LET_IDLE, /* the transport closes an idle connection */
    ORDER_BULK,     /* the peer takes bulk links */
    ORDER_NO_BULK,
    NEWS_UP,
    NEWS_DOWN,
    NEWS_FAILED
};

struct link_mail {
    struct mail mail;
    struct rails_endpoint *endpoint;
    struct rails_peer *at; /* null in news */
    uint32_t peer;
    enum link_word word;
    bool closed_by_peer; /* of NEWS_DOWN */
    struct error cause;
    char address[]; /* of ORDER_ADD, ORDER_MOVE and ORDER_SPARE */
};

static void on_order(void *context, uint64_t now_ns);
static void on_news(void *context, uint64_t now_ns);
static void dial(struct rails *rails, uint32_t peer, uint64_t now_ns);

/* Sends an order from the main thread to the rail's, or news from the rail's thread to the main one. Returns
 * false without memory. */
static bool link_send(struct rails_endpoint *endpoint, uint32_t peer, enum link_word word,
                      const char *address, const struct error *cause)
{
    struct rails *rails = endpoint->rails;
    bool is_news = word >= NEWS_UP;
    size_t address_bytes = address != NULL ? strlen(address) + 1 : 0;
    struct link_mail *mail = calloc(1, sizeof *mail + address_bytes);
    if (mail == NULL) {
        log_error("rail %u: no memory", endpoint->rail);
        return false;
    }
    mail->mail = (struct mail){.deliver = is_news ? on_news : on_order, .context = mail};
    mail->endpoint = endpoint;
    mail->peer = peer;
    mail->word = word;
    mail->at = is_news ? NULL : rails->peers[peer];
    if (address != NULL) {
        memcpy(mail->address, address, address_bytes);
    }
    if (cause != NULL) {
        mail->cause = *cause;
    }
    if (word == NEWS_DOWN) {
        struct net_peer_statistics statistics;
        net_peer_statistics(rails->nets[endpoint->rail], peer, &statistics);
        mail->closed_by_peer = statistics.closed_by_peer;
    }
    mailbox_put(rails_mailbox(rails, is_news ? 0 : endpoint->rail), &mail->mail);
    return true;
}

static void order(struct rails *rails, uint32_t rail, uint32_t peer, enum link_word word,
                  const struct error *cause)
{
    (void)link_send(&rails->endpoints[rail], peer, word, NULL, cause);
}

/* --- Links, as the main thread knows them --- */

static void link_is_down(struct rails *rails, struct rails_link *link, const struct error *why,
                         uint64_t now_ns)
{
    link->up = false;
    link->dialling = false;
    link->why = *why;
    backoff_failed(&link->dial, rails->reconnect_min_ns, rails->reconnect_max_ns, &rails->random, now_ns);
}

/* Which node of the communicator is that peer; node_count if none is. */
static uint32_t node_of_peer(const struct exec_comm *comm, uint32_t peer)
{
    uint32_t node = 0;
    while (node < comm->options.node_count &&
           (node == comm->options.node_index || comm->peers[node] != peer)) {
        node++;
    }
    return node;
}

/*
 * Communicators that have slices on the lost connection cannot continue, as its data in flight is lost. The
 * others lose nothing here. If the other node lost something of theirs, it fails the communicator itself.
 */
static void fail_communicators(struct rails *rails, uint32_t rail, uint32_t peer, const struct error *cause,
                               uint64_t now_ns)
{
    struct exec_comm *comm, *next;
    HASH_ITER (hh, rails->execs[0]->comms, comm, next) {
        const struct exec_op *op = comm->first_op;
        uint32_t node = node_of_peer(comm, peer);
        if (node == comm->options.node_count || op == NULL || !spread_needs(op, rail)) {
            continue;
        }
        struct error error;
        error_set(&error, STATUS_NODE_LOST, "op %llu %s on \"%s\": node %s: rail %u to node %s is lost: %s",
                  (unsigned long long)op->call.seq, op_kind_text(op->call.terms.kind), comm->options.name,
                  rails->node_name, rail, comm->options.node_names[node], cause->text);
        exec_comm_fail(comm, &error, now_ns);
    }
}

static void link_is_up(struct rails *rails, uint32_t rail, uint32_t peer)
{
    const struct rails_peer *at = rails->peers[peer];
    struct rails_link *link = &rails->peers[peer]->links[rail];
    if (at->is_down) {
        struct error cause;
        error_set(&cause, STATUS_UNREACHABLE,
                  "node %s accepts no connection from node %s on rail %u before rail 0 is up",
                  rails->node_name, at->name, rail);
        order(rails, rail, peer, ORDER_DISCONNECT, &cause);
    }
    link->up = true;
    link->dialling = false;
    link->dial.failures = 0;
    exec_wake(rails->execs[0]);
}

static void link_is_lost(struct rails *rails, const struct link_mail *mail, uint64_t now_ns)
{
    fail_communicators(rails, mail->endpoint->rail, mail->peer, &mail->cause, now_ns);
    /* The node broke the protocol, not only the rail: see stream_reader_violates. If the peer closed the
     * connection, it judged us, and acts itself. */
    if (mail->cause.status == STATUS_PROTOCOL && !mail->closed_by_peer) {
        net_disconnect(rails->execs[0]->net, mail->peer, &mail->cause);
    }
}

static void on_news(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct rails *rails = mail->endpoint->rails;
    uint32_t rail = mail->endpoint->rail;
    struct rails_peer *peer = rails->peers[mail->peer];
    if (mail->word == NEWS_UP) {
        link_is_up(rails, rail, mail->peer);
    } else {
        bool is_lost = mail->word == NEWS_DOWN;
        if (peer->links[rail].wanted > 0) {
            log_warning("rail %u to node %s%s: %s", rail, peer->name, is_lost ? " is lost" : "",
                        mail->cause.text);
        }
        link_is_down(rails, &peer->links[rail], &mail->cause, now_ns);
        dial(rails, mail->peer, now_ns);
        if (is_lost) {
            link_is_lost(rails, mail, now_ns);
        }
    }
    free(mail);
}

/* --- On the rail's thread --- */

static void peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    (void)link_send(context, peer, NEWS_UP, NULL, NULL);
}

/* Communicators without an operation continue over the next connection, with new streams. */
static void drop_streams(struct exec *exec, uint32_t peer)
{
    struct exec_comm *comm, *next;
    HASH_ITER (hh, exec->comms, comm, next) {
        uint32_t node = node_of_peer(comm, peer);
        for (uint32_t i = 0; i <= EXEC_AGREEMENT_LANE && node < comm->options.node_count; i++) {
            for (uint32_t bulk = 0; bulk < 2 && comm->first_op == NULL; bulk++) {
                struct net_stream **stream = &comm->lanes[i].streams[node + bulk * comm->options.node_count];
                if (*stream != NULL) {
                    net_stream_reset(*stream);
                }
                *stream = NULL;
            }
        }
    }
}

static void peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct rails_endpoint *endpoint = context;
    (void)now_ns;
    drop_streams(endpoint->rails->execs[endpoint->rail], peer);
    (void)link_send(context, peer, NEWS_DOWN, NULL, cause);
}

static void connect_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    (void)link_send(context, peer, NEWS_FAILED, NULL, cause);
}

static enum status add_peer(struct rails_endpoint *endpoint, const struct link_mail *mail,
                            struct error *error)
{
    uint32_t index;
    struct rails_link **links =
        array_reserve(endpoint->links, &endpoint->link_capacity, sizeof *links, mail->peer + 1);
    if (links == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    }
    endpoint->links = links;
    links[mail->peer] = &mail->at->links[endpoint->rail];
    enum status status =
        net_add_peer(endpoint->rails->nets[endpoint->rail], mail->at->name, mail->address, &index, error);
    if (status == STATUS_OK && index != mail->peer) {
        return error_set(error, STATUS_INTERNAL, "the network calls it peer %u, not %u", index, mail->peer);
    }
    if (status == STATUS_OK && index >= endpoint->peer_count) { /* not a removed peer that is added again */
        endpoint->peer_count = index + 1;
    }
    return status;
}

static void on_order(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct rails_endpoint *endpoint = mail->endpoint;
    struct net *net = endpoint->rails->nets[endpoint->rail];
    bool known = mail->word == ORDER_ADD || mail->peer < endpoint->peer_count;
    struct error error = {.status = STATUS_OK};
    enum status status = STATUS_OK;
    (void)now_ns;
    switch (known ? mail->word : NEWS_UP) {
    case ORDER_ADD:
        status = add_peer(endpoint, mail, &error);
        break;
    case ORDER_MOVE:
        status = net_move_peer(net, mail->peer, mail->address, &error);
        break;
    case ORDER_SPARE:
        net_set_spare(net, mail->peer, mail->address);
        break;
    case ORDER_REMOVE:
        net_remove_peer(net, mail->peer, &mail->cause);
        break;
    case ORDER_CONNECT:
        if (net_connect(net, mail->peer, &error) != STATUS_OK) {
            (void)link_send(endpoint, mail->peer, NEWS_FAILED, NULL, &error);
        }
        break;
    case ORDER_DISCONNECT:
        net_disconnect(net, mail->peer, &mail->cause);
        break;
    case ORDER_KEEP_ALIVE:
    case ORDER_LET_IDLE:
        net_keep_alive(net, mail->peer, mail->word == ORDER_KEEP_ALIVE);
        break;
    case ORDER_BULK:
    case ORDER_NO_BULK:
        net_bulk_allow(net, mail->peer, mail->word == ORDER_BULK);
        break;
    case NEWS_UP:
    case NEWS_DOWN:
    case NEWS_FAILED:
        break; /* only sent to the main thread */
    }
    if (status != STATUS_OK) {
        log_error("rail %u: peer %u at %s: %s", endpoint->rail, mail->peer, mail->address, error.text);
    }
    free(mail);
}

/* --- Connections that communicators need --- */

static void dial(struct rails *rails, uint32_t peer, uint64_t now_ns)
{
    struct rails_peer *at = rails->peers[peer];
    for (uint32_t rail = 1; rail < rails->network_count && at->dials && !at->is_down; rail++) {
        struct rails_link *link = &at->links[rail];
        if (link->wanted == 0 || link->up || link->dialling) {
            continue;
        }
        link->dialling = link->dial.next_ns <= now_ns;
        if (link->dialling) {
            order(rails, rail, peer, ORDER_CONNECT, NULL);
        } else {
            rails->dial_ns = time_min(rails->dial_ns, link->dial.next_ns);
        }
    }
}

void rails_want(struct rails *rails, uint32_t peer, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (rails->peers[peer]->links[rail].wanted++ == 0) {
            order(rails, rail, peer, ORDER_KEEP_ALIVE, NULL);
        }
    }
    dial(rails, peer, rails->now_ns);
}

void rails_unwant(struct rails *rails, uint32_t peer, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (--rails->peers[peer]->links[rail].wanted == 0) {
            order(rails, rail, peer, ORDER_LET_IDLE, NULL);
        }
    }
}

bool rails_has_link(const struct rails *rails, uint32_t peer, uint32_t rail)
{
    return rails->peers[peer]->links[rail].up;
}

uint64_t rails_next_deadline_ns(const struct rails *rails)
{
    return rails->dial_ns;
}

void rails_tick(struct rails *rails, uint64_t now_ns)
{
    rails->now_ns = now_ns;
    if (now_ns < rails->dial_ns) {
        return;
    }
    rails->dial_ns = TIME_NEVER;
    for (uint32_t peer = 0; peer < rails->peer_count; peer++) {
        dial(rails, peer, now_ns);
    }
}

/* --- Peers --- */

/* Keeps what the caller says of a node's rails. */
static enum status keep_addresses(struct rails_peer *peer, const char *rail_addresses, struct error *error)
{
    char *copy = strdup(rail_addresses);
    if (copy == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", peer->name);
    }
    free(peer->rail_addresses);
    peer->rail_addresses = copy;
    return STATUS_OK;
}

const char *rails_peer_addresses(const struct rails *rails, uint32_t peer)
{
    const struct rails_peer *at = peer < rails->peer_count ? rails->peers[peer] : NULL;
    return at != NULL && at->rail_addresses != NULL ? at->rail_addresses : "";
}

/* Tells each rail the peer's address for that rail, and the one that is used if that fails. */
static enum status peer_address(struct rails *rails, uint32_t peer, const char *address, enum link_word word,
                                struct error *error)
{
    const struct rails_peer *at = rails->peers[peer];
    char of_rail[512], spare[512];
    for (uint32_t rail = rails->network_count - 1; rail > 0; rail--) { /* the largest port first */
        if (!conf_rail_address(address, at->rail_addresses, rail, of_rail, sizeof of_rail)) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "node %s: rail %u of \"%s\" has no port",
                             at->name, rail, address);
        }
        bool has_spare = conf_rail_spare(address, at->rail_addresses, rail, spare, sizeof spare);
        if (!link_send(&rails->endpoints[rail], peer, word, of_rail, NULL) ||
            !link_send(&rails->endpoints[rail], peer, ORDER_SPARE, has_spare ? spare : "", NULL)) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", at->name);
        }
    }
    bool has_spare = conf_rail_spare(address, at->rail_addresses, 0, spare, sizeof spare);
    net_set_spare(rails->execs[0]->net, peer, has_spare ? spare : "");
    return STATUS_OK;
}

/* Null without memory. */
static struct rails_peer *peer_new(const struct rails *rails, const char *name)
{
    struct rails_peer *peer = calloc(1, sizeof *peer + strlen(name) + 1);
    if (peer == NULL) {
        return NULL;
    }
    memcpy(peer->name, name, strlen(name) + 1);
    if (rails->network_count > 1) {
        peer->links = calloc(rails->network_count, sizeof *peer->links);
        if (peer->links == NULL) {
            free(peer);
            return NULL;
        }
    }
    return peer;
}

static void peer_free(struct rails_peer *peer)
{
    if (peer != NULL) {
        free(peer->links);
        free(peer->rail_addresses);
        free(peer);
    }
}

/* The peer's entry, which is made if it is missing; null without memory. */
static struct rails_peer *peer_place(struct rails *rails, uint32_t peer, const char *name)
{
    struct rails_peer **peers =
        array_reserve(rails->peers, &rails->peer_capacity, sizeof(struct rails_peer *), peer + 1);
    rails->peers = peers != NULL ? peers : rails->peers;
    if (peers != NULL && peers[peer] == NULL) {
        peers[peer] = peer_new(rails, name);
    }
    return peers != NULL ? peers[peer] : NULL;
}

enum status rails_add_peer(struct rails *rails, uint32_t peer, const char *name, const char *address,
                           const char *rail_addresses, struct error *error)
{
    struct rails_peer *at = peer <= rails->peer_count ? peer_place(rails, peer, name) : NULL;
    if (at == NULL) { /* or an earlier peer got no memory */
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    rails->peer_count = rails->peer_count > peer ? rails->peer_count : peer + 1;
    at->dials = strcmp(rails->node_name, name) < 0;
    rails->dial_ns = 0; /* communicators may still need the connection from before the removal */
    enum status status = keep_addresses(at, rail_addresses, error);
    return status == STATUS_OK ? peer_address(rails, peer, address, ORDER_ADD, error) : status;
}

/* The network drops attempts that are under way without a report. */
static void forget_attempts(struct rails *rails, uint32_t peer)
{
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        struct rails_link *link = &rails->peers[peer]->links[rail];
        link->dialling = false;
        link->dial = (struct backoff){0};
    }
    rails->dial_ns = 0;
}

void rails_remove_peer(struct rails *rails, uint32_t peer, const struct error *cause)
{
    rails->peers[peer]->dials = false;
    forget_attempts(rails, peer);
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        order(rails, rail, peer, ORDER_REMOVE, cause);
    }
}

void exec_node_down(struct exec *exec, uint32_t peer, const struct error *cause)
{
    struct rails *rails = exec->rails;
    if (rails == NULL || peer >= rails->peer_count) {
        return;
    }
    rails->peers[peer]->is_down = true;
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        if (rails->peers[peer]->links[rail].up) {
            order(rails, rail, peer, ORDER_DISCONNECT, cause);
        }
    }
}

void exec_node_up(struct exec *exec, uint32_t peer, uint64_t now_ns)
{
    struct rails *rails = exec->rails;
    if (rails != NULL && peer < rails->peer_count) {
        rails->peers[peer]->is_down = false;
        dial(rails, peer, now_ns);
    }
    exec_wake(exec); /* lanes may wait for this connection */
}

void exec_node_takes_bulk(struct exec *exec, uint32_t peer, bool takes)
{
    struct rails *rails = exec->rails;
    net_bulk_allow(exec->net, peer, takes);
    for (uint32_t rail = 1; rails != NULL && peer < rails->peer_count && rail < rails->network_count;
         rail++) {
        order(rails, rail, peer, takes ? ORDER_BULK : ORDER_NO_BULK, NULL);
    }
}

enum status rails_move_peer(struct rails *rails, uint32_t peer, const char *address,
                            const char *rail_addresses, struct error *error)
{
    enum status status = STATUS_OK;
    if (rail_addresses != NULL) {
        status = keep_addresses(rails->peers[peer], rail_addresses, error);
    }
    if (status == STATUS_OK) {
        status = peer_address(rails, peer, address, ORDER_MOVE, error);
    }
    if (status == STATUS_OK) {
        forget_attempts(rails, peer);
    }
    return status;
}

/* --- All rails --- */

enum status rails_new(const struct rails_options *options, struct rails **out, struct error *error)
{
    struct rails *rails = calloc(1, sizeof *rails);
    if (rails == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for rails");
    }
    rails->count = options->count;
    rails->network_count = options->network_count;
    rails->mailboxes = options->mailboxes;
    (void)snprintf(rails->node_name, sizeof rails->node_name, "%s", options->node_name);
    rails->reconnect_min_ns = options->reconnect_min_ns;
    rails->reconnect_max_ns = options->reconnect_max_ns;
    random_seed(&rails->random, hash_bytes(0, options->node_name, strlen(options->node_name)));
    for (uint32_t rail = 0; rail < rails->count; rail++) {
        rails->execs[rail] = options->execs[rail];
        rails->endpoints[rail] =
            (struct rails_endpoint){.rails = rails, .rail = rail, .publish_ns = TIME_NEVER};
        if (rail > 0 && rail < rails->network_count) {
            struct net_peer_handler handler = {.context = &rails->endpoints[rail],
                                               .peer_up = peer_up,
                                               .peer_down = peer_down,
                                               .connect_failed = connect_failed};
            rails->nets[rail] = options->nets[rail];
            net_set_peer_handler(rails->nets[rail], &handler);
        }
    }
    rails->dial_ns = TIME_NEVER;
    rails->execs[0]->rails = rails;
    *out = rails;
    return STATUS_OK;
}

bool rails_rail_is_busy(const struct rails *rails, uint32_t rail)
{
    return rails->execs[rail]->comms != NULL;
}

uint64_t rails_rail_deadline_ns(const struct rails *rails, uint32_t rail)
{
    return time_min(exec_next_deadline_ns(rails->execs[rail]), rails->endpoints[rail].publish_ns);
}

bool rails_run_rail(struct rails *rails, uint32_t rail, uint64_t now_ns)
{
    bool any = mailbox_run(rails_mailbox(rails, rail), now_ns);
    bool more = exec_run(rails->execs[rail], now_ns);
    rails_publish_waits(rails->execs[rail]);
    rails_publish_traffic(&rails->endpoints[rail], now_ns);
    return any || more;
}

void rails_free(struct rails *rails, uint64_t now_ns)
{
    if (rails == NULL) {
        return;
    }
    for (bool any = true; any;) {
        any = false;
        for (uint32_t rail = 1; rail < rails->count; rail++) {
            any |= rails_run_rail(rails, rail, now_ns);
        }
        any |= mailbox_run(rails_mailbox(rails, 0), now_ns);
        any |= exec_run(rails->execs[0], now_ns);
    }
    rails->execs[0]->rails = NULL;
    for (uint32_t peer = 0; peer < rails->peer_count; peer++) {
        peer_free(rails->peers[peer]);
    }
    for (uint32_t rail = 1; rail < rails->count; rail++) {
        free(rails->endpoints[rail].links);
    }
    free(rails->peers);
    free(rails);
}
