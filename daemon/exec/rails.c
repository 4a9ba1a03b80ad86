#include "daemon/exec/rails.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/array.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/exec/rails_internal.h"

/* The rails' connections, and what a rail's thread does. */

/* --- Orders to a rail's network, and news from it --- */

enum link_news { LINK_UP, LINK_DOWN, LINK_FAILED };

struct link_mail {
    struct mail mail;
    struct rails *rails;
    uint32_t rail;
    uint32_t peer;
    enum link_news news;
    bool keep;            /* an order: keep the connection alive; otherwise dial */
    bool closed_by_peer;  /* of LINK_DOWN */
    char *name, *address; /* an order: a new peer */
    struct error cause;
};

static struct link_mail *link_mail_new(struct rails *rails, uint32_t rail, uint32_t peer)
{
    struct link_mail *mail = calloc(1, sizeof *mail);
    if (mail == NULL) {
        log_error("rail %u: no memory", rail);
        return NULL;
    }
    mail->rails = rails;
    mail->rail = rail;
    mail->peer = peer;
    return mail;
}

static void link_mail_put(struct link_mail *mail, uint32_t to_rail,
                          void (*deliver)(void *context, uint64_t now_ns))
{
    mail->mail.deliver = deliver;
    mail->mail.context = mail;
    mailbox_put(rails_mailbox(mail->rails, to_rail), &mail->mail);
}

static void link_mail_free(struct link_mail *mail)
{
    free(mail->name);
    free(mail->address);
    free(mail);
}

/* --- Links, as the home knows them --- */

static void link_is_down(struct rails *rails, struct rails_link *link, const struct error *why,
                         uint64_t now_ns)
{
    link->up = false;
    link->dialling = false;
    link->why = *why;
    link->wait_ns = link->wait_ns < rails->reconnect_min_ns ? rails->reconnect_min_ns : link->wait_ns;
    link->retry_ns = time_after(now_ns, link->wait_ns);
    link->wait_ns = time_min(2 * link->wait_ns, rails->reconnect_max_ns);
}

/* The node of the communicator that is that peer; node_count when none is. */
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
 * Communicators that have slices on the lost connection cannot go on: what was under way on it is gone. Those
 * that have none there miss nothing. Should the other node do so, it fails the communicator.
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

static void do_disconnect(void *context, uint64_t now_ns);

/* A connection of a node that is down for the mesh. */
static void refuse(struct rails *rails, uint32_t rail, uint32_t peer)
{
    struct link_mail *mail = link_mail_new(rails, rail, peer);
    if (mail != NULL) {
        error_set(&mail->cause, STATUS_UNREACHABLE,
                  "node %s takes no connection of node %s on rail %u before rail 0", rails->node_name,
                  rails->peers[peer].name, rail);
        link_mail_put(mail, rail, do_disconnect);
    }
}

static void on_news(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct rails *rails = mail->rails;
    struct rails_peer *peer = &rails->peers[mail->peer];
    struct rails_link *link = &peer->links[mail->rail];
    switch (mail->news) {
    case LINK_UP:
        if (peer->is_down) {
            refuse(rails, mail->rail, mail->peer);
        }
        link->up = true;
        link->dialling = false;
        link->wait_ns = 0;
        exec_wake(rails->execs[0]);
        break;
    case LINK_DOWN:
        if (link->wanted > 0) {
            log_warning("rail %u to node %s is lost: %s", mail->rail, peer->name, mail->cause.text);
        }
        link_is_down(rails, link, &mail->cause, now_ns);
        fail_communicators(rails, mail->rail, mail->peer, &mail->cause, now_ns);
        /* The node's offence, not the rail's: see stream_reader_violates. Of ours it thinks itself. */
        if (mail->cause.status == STATUS_PROTOCOL && !mail->closed_by_peer) {
            net_disconnect(rails->execs[0]->net, mail->peer, &mail->cause);
        }
        break;
    case LINK_FAILED:
        if (link->wanted > 0) {
            log_warning("rail %u to node %s: %s", mail->rail, peer->name, mail->cause.text);
        }
        link_is_down(rails, link, &mail->cause, now_ns);
        break;
    }
    link_mail_free(mail);
}

/* On the rail's thread. */
static void tell(void *context, uint32_t peer, enum link_news news, const struct error *cause)
{
    const struct rails_endpoint *endpoint = context;
    struct link_mail *mail = link_mail_new(endpoint->rails, endpoint->rail, peer);
    if (mail == NULL) {
        return;
    }
    mail->news = news;
    if (cause != NULL) {
        struct net_peer_statistics statistics;
        net_peer_statistics(endpoint->rails->nets[endpoint->rail], peer, &statistics);
        mail->closed_by_peer = statistics.closed_by_peer;
        mail->cause = *cause;
    }
    link_mail_put(mail, 0, on_news);
}

static void peer_up(void *context, uint32_t peer, uint64_t now_ns)
{
    (void)now_ns;
    tell(context, peer, LINK_UP, NULL);
}

/* On the rail's thread. Communicators without work on it go on over the next connection, with new streams. */
static void drop_streams(struct exec *exec, uint32_t peer)
{
    struct exec_comm *comm, *next;
    HASH_ITER (hh, exec->comms, comm, next) {
        uint32_t node = node_of_peer(comm, peer);
        for (uint32_t i = 0; i <= EXEC_AGREEMENT_LANE && node < comm->options.node_count; i++) {
            struct net_stream **stream = &comm->lanes[i].streams[node];
            if (*stream != NULL && comm->first_op == NULL) {
                net_stream_reset(*stream);
                *stream = NULL;
            }
        }
    }
}

static void peer_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    const struct rails_endpoint *endpoint = context;
    (void)now_ns;
    drop_streams(endpoint->rails->execs[endpoint->rail], peer);
    tell(context, peer, LINK_DOWN, cause);
}

static void connect_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    tell(context, peer, LINK_FAILED, cause);
}

/* On the rail's thread. */
static void do_connect(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct error error;
    (void)now_ns;
    if (net_connect(mail->rails->nets[mail->rail], mail->peer, &error) != STATUS_OK) {
        tell(&mail->rails->endpoints[mail->rail], mail->peer, LINK_FAILED, &error);
    }
    link_mail_free(mail);
}

static void do_keep_alive(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    (void)now_ns;
    net_keep_alive(mail->rails->nets[mail->rail], mail->peer, mail->keep);
    link_mail_free(mail);
}

static void do_add_peer(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct error error;
    uint32_t index;
    (void)now_ns;
    if (net_add_peer(mail->rails->nets[mail->rail], mail->name, mail->address, &index, &error) != STATUS_OK) {
        log_error("rail %u: node %s: %s", mail->rail, mail->name, error.text);
    } else if (index != mail->peer) {
        log_error("rail %u: node %s is its peer %u, not %u", mail->rail, mail->name, index, mail->peer);
    } else if (index >= mail->rails->endpoints[mail->rail].peer_count) { /* not one that was removed */
        mail->rails->endpoints[mail->rail].peer_count = index + 1;
    }
    link_mail_free(mail);
}

static void do_remove_peer(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    (void)now_ns;
    if (mail->peer < mail->rails->endpoints[mail->rail].peer_count) {
        net_remove_peer(mail->rails->nets[mail->rail], mail->peer, &mail->cause);
    }
    link_mail_free(mail);
}

static void do_disconnect(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    (void)now_ns;
    if (mail->peer < mail->rails->endpoints[mail->rail].peer_count) {
        net_disconnect(mail->rails->nets[mail->rail], mail->peer, &mail->cause);
    }
    link_mail_free(mail);
}

static void do_move_peer(void *context, uint64_t now_ns)
{
    struct link_mail *mail = context;
    struct error error;
    (void)now_ns;
    if (mail->peer < mail->rails->endpoints[mail->rail].peer_count &&
        net_move_peer(mail->rails->nets[mail->rail], mail->peer, mail->address, &error) != STATUS_OK) {
        log_error("rail %u: node %s: %s", mail->rail, mail->name, error.text);
    }
    link_mail_free(mail);
}

/* --- Wanted ones --- */

static void order(struct rails *rails, uint32_t rail, uint32_t peer, bool keep,
                  void (*deliver)(void *context, uint64_t now_ns))
{
    struct link_mail *mail = link_mail_new(rails, rail, peer);
    if (mail != NULL) {
        mail->keep = keep;
        link_mail_put(mail, rail, deliver);
    }
}

static void dial(struct rails *rails, uint32_t peer, uint64_t now_ns)
{
    struct rails_peer *at = &rails->peers[peer];
    for (uint32_t rail = 1; rail < rails->network_count && at->dials && !at->is_down; rail++) {
        struct rails_link *link = &at->links[rail];
        if (link->wanted > 0 && !link->up && !link->dialling && link->retry_ns <= now_ns) {
            link->dialling = true;
            order(rails, rail, peer, true, do_connect);
        }
    }
}

void rails_want(struct rails *rails, uint32_t peer, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (rails->peers[peer].links[rail].wanted++ == 0) {
            order(rails, rail, peer, true, do_keep_alive);
        }
    }
    dial(rails, peer, rails->now_ns);
}

void rails_unwant(struct rails *rails, uint32_t peer, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (--rails->peers[peer].links[rail].wanted == 0) {
            order(rails, rail, peer, false, do_keep_alive); /* the transport drops it when it stays idle */
        }
    }
}

uint32_t rails_missing_link(const struct rails *rails, uint32_t peer, uint32_t rail_count)
{
    for (uint32_t rail = 1; rail < rail_count; rail++) {
        if (!rails->peers[peer].links[rail].up) {
            return rail;
        }
    }
    return 0;
}

uint32_t rails_network_count(const struct rails *rails)
{
    return rails->network_count;
}

uint64_t rails_next_deadline_ns(const struct rails *rails)
{
    uint64_t earliest_ns = TIME_NEVER;
    for (uint32_t peer = 0; peer < rails->peer_count; peer++) {
        const struct rails_peer *at = &rails->peers[peer];
        for (uint32_t rail = 1; rail < rails->network_count && at->dials && !at->is_down; rail++) {
            const struct rails_link *link = &at->links[rail];
            bool waits = link->wanted > 0 && !link->up && !link->dialling;
            earliest_ns = !waits ? earliest_ns : time_min(earliest_ns, link->retry_ns);
        }
    }
    return earliest_ns;
}

void rails_tick(struct rails *rails, uint64_t now_ns)
{
    rails->now_ns = now_ns;
    for (uint32_t peer = 0; peer < rails->peer_count; peer++) {
        dial(rails, peer, now_ns);
    }
}

/* --- Peers --- */

/* "host:port" with another port. False when there is none, or it would be too large. */
bool rails_address(const char *address, uint32_t rail, char *out, size_t size)
{
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    unsigned long port = colon == NULL ? 0 : strtoul(colon + 1, &end, 10);
    if (colon == NULL || end == colon + 1 || *end != '\0' || port + rail > UINT16_MAX) {
        return false;
    }
    int length = snprintf(out, size, "%.*s:%lu", (int)(colon - address), address, port + rail);
    return length > 0 && (size_t)length < size;
}

static bool peers_reserve(struct rails *rails, uint32_t count)
{
    struct rails_peer *peers = array_reserve(rails->peers, &rails->peer_capacity, sizeof *peers, count);
    rails->peers = peers != NULL ? peers : rails->peers;
    return peers != NULL;
}

/* Tells every rail of a peer's address, which is that rail's. */
static enum status peer_address(struct rails *rails, uint32_t peer, const char *address,
                                void (*deliver)(void *context, uint64_t now_ns), struct error *error)
{
    const char *name = rails->peers[peer].name;
    char of_rail[512];
    if (rails->network_count > 1 &&
        !rails_address(address, rails->network_count - 1, of_rail, sizeof of_rail)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "node %s: rail %u of \"%s\" has no port", name,
                         rails->network_count - 1, address);
    }
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        struct link_mail *mail = link_mail_new(rails, rail, peer);
        (void)rails_address(address, rail, of_rail, sizeof of_rail);
        if (mail != NULL) {
            mail->name = strdup(name);
            mail->address = strdup(of_rail);
        }
        if (mail == NULL || mail->name == NULL || mail->address == NULL) {
            if (mail != NULL) {
                link_mail_free(mail);
            }
            return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
        }
        link_mail_put(mail, rail, deliver);
    }
    return STATUS_OK;
}

enum status rails_add_peer(struct rails *rails, uint32_t peer, const char *name, const char *address,
                           struct error *error)
{
    if (!peers_reserve(rails, peer + 1)) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    rails->peer_count = rails->peer_count > peer ? rails->peer_count : peer + 1;
    struct rails_peer *at = &rails->peers[peer];
    if (at->name == NULL && (at->name = strdup(name)) == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for node %s", name);
    }
    at->dials = strcmp(rails->node_name, name) < 0;
    return peer_address(rails, peer, address, do_add_peer, error);
}

/* An attempt under way is called off, and nobody tells of it. */
static void forget_attempts(struct rails *rails, uint32_t peer)
{
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        struct rails_link *link = &rails->peers[peer].links[rail];
        link->dialling = false;
        link->retry_ns = 0;
        link->wait_ns = 0;
    }
}

void rails_remove_peer(struct rails *rails, uint32_t peer, const struct error *cause)
{
    rails->peers[peer].dials = false;
    forget_attempts(rails, peer);
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        struct link_mail *mail = link_mail_new(rails, rail, peer);
        if (mail != NULL) {
            mail->cause = *cause;
            link_mail_put(mail, rail, do_remove_peer);
        }
    }
}

void exec_node_down(struct exec *exec, uint32_t peer, const struct error *cause)
{
    struct rails *rails = exec->rails;
    if (rails != NULL && peer < rails->peer_count) {
        rails->peers[peer].is_down = true;
    }
    for (uint32_t rail = 1; rails != NULL && peer < rails->peer_count && rail < rails->network_count;
         rail++) {
        struct link_mail *mail = rails->peers[peer].links[rail].up ? link_mail_new(rails, rail, peer) : NULL;
        if (mail != NULL) {
            mail->cause = *cause;
            link_mail_put(mail, rail, do_disconnect);
        }
    }
}

void exec_node_up(struct exec *exec, uint32_t peer, uint64_t now_ns)
{
    struct rails *rails = exec->rails;
    if (rails != NULL && peer < rails->peer_count) {
        rails->peers[peer].is_down = false;
        dial(rails, peer, now_ns);
    }
}

enum status rails_move_peer(struct rails *rails, uint32_t peer, const char *address, struct error *error)
{
    enum status status = peer_address(rails, peer, address, do_move_peer, error);
    if (status == STATUS_OK) {
        forget_attempts(rails, peer);
    }
    return status;
}

/* --- All of them --- */

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
    for (uint32_t rail = 0; rail < rails->count; rail++) {
        rails->execs[rail] = options->execs[rail];
        rails->endpoints[rail] = (struct rails_endpoint){.rails = rails, .rail = rail};
        if (rail > 0 && rail < rails->network_count) {
            struct net_peer_handler handler = {.context = &rails->endpoints[rail],
                                               .peer_up = peer_up,
                                               .peer_down = peer_down,
                                               .connect_failed = connect_failed};
            rails->nets[rail] = options->nets[rail];
            net_set_peer_handler(rails->nets[rail], &handler);
        }
    }
    rails->execs[0]->rails = rails;
    *out = rails;
    return STATUS_OK;
}

bool rails_rail_is_busy(const struct exec *exec)
{
    return exec->comms != NULL;
}

bool rails_run_rail(struct exec *exec, struct mailbox *mailbox, uint64_t now_ns)
{
    bool any = mailbox_run(mailbox, now_ns);
    bool more = exec_run(exec, now_ns);
    spread_publish_waits(exec);
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
            any |= rails_run_rail(rails->execs[rail], rails_mailbox(rails, rail), now_ns);
        }
        any |= mailbox_run(rails_mailbox(rails, 0), now_ns);
        any |= exec_run(rails->execs[0], now_ns);
    }
    rails->execs[0]->rails = NULL;
    for (uint32_t peer = 0; peer < rails->peer_count; peer++) {
        free(rails->peers[peer].name);
    }
    free(rails->peers);
    free(rails);
}
