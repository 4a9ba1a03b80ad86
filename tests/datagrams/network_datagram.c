#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/base/loop.h"
#include "daemon/base/random.h"
#include "daemon/net/quic.h"
#include "daemon/net/quic_socket.h"
#include "proto/types.h"
#include "tests/datagrams/seeded_tls.h"
#include "tests/datagrams/stranger.h"
#include "tests/datagrams/virtual_time.h"
#include "tests/lib/chance.h"
#include "tests/lib/test_pki.h"
#include "tests/network/network.h"

/*
 * Endpoints of net/quic on simulated sockets. This file replaces daemon/net/quic_socket.c. Every network has
 * a port, and every host has an address of 10.77.0.0/16. An endpoint that binds to 127.0.0.1 is a host of its
 * own, on a network without faults. All networks share one clock (virtual_time.h): advancing one network
 * advances all. OpenSSL's random numbers come from the seed.
 */
#define HOSTS_MAX 64u
#define NETWORKS_MAX 8u
#define HANDSHAKES_KNOWN 256u
#define HANDSHAKE_ID_BYTES 8u
/* on a link with a bandwidth, a datagram is dropped if it would wait longer than this */
#define QUEUE_MAX_NS (20 * TIME_MS)

struct host {
    struct datagram_network *network;
    char name[NODE_NAME_MAX_BYTES + 1];
    struct quic_address address;
    bool open;     /* an endpoint listens */
    bool stranger; /* no endpoint listens; datagrams that arrive are kept */
    bool dead;
    bool held;                             /* its process stands still */
    uint64_t busy_ns;                      /* it reads nothing until then */
    uint64_t handshakes[HANDSHAKES_KNOWN]; /* hashes of connection IDs: the last ones */
    uint64_t handshake_count;
    struct virtual_event ready; /* fires when there is something to read */
    struct flight *arrived;
    struct flight *unreachable; /* ICMP errors for datagrams that this host sent */
};

struct link {
    struct network_conditions conditions;
    uint64_t free_ns; /* when the last byte put on it has left */
    bool cut;
};

/* A datagram on its way. */
struct flight {
    struct virtual_event event;
    struct flight *prev, *next; /* in the network's list, then in its host's */
    struct host *from, *to;
    struct quic_address source; /* the address of `from` at the time of sending */
    bool unreachable;           /* this is an ICMP error for `to` */
    uint8_t ecn;
    size_t size;
    uint8_t bytes[];
};

struct datagram_network {
    struct network base;
    uint16_t port;
    struct random random;
    struct flight *flights;
    uint32_t host_count;
    struct host hosts[HOSTS_MAX];
    struct link links[HOSTS_MAX][HOSTS_MAX];
};

/* a descriptor is an index into networks and the index of the host there */
static struct datagram_network *networks[NETWORKS_MAX];
static struct network *loopback; /* 127.0.0.1; made when the first endpoint binds to it */

/* --- Hosts and links --- */

static struct datagram_network *network_of(struct network *network)
{
    return (struct datagram_network *)network;
}

static void host_address(const struct host *host, char out[NETWORK_ADDRESS_MAX_BYTES])
{
    unsigned number = (unsigned)(host - host->network->hosts) + 1;
    (void)snprintf(out, NETWORK_ADDRESS_MAX_BYTES, "10.77.%u.%u:%u", number / 256, number % 256,
                   host->network->port);
}

static void host_ready(struct virtual_event *event);

static struct host *host_intern(struct datagram_network *network, const char *name)
{
    for (uint32_t i = 0; i < network->host_count; i++) {
        if (strcmp(network->hosts[i].name, name) == 0) {
            return &network->hosts[i];
        }
    }
    assert(network->host_count < HOSTS_MAX);
    struct host *host = &network->hosts[network->host_count++];
    char text[NETWORK_ADDRESS_MAX_BYTES];
    struct error error;
    host->network = network;
    host->ready = (struct virtual_event){.node.index = TIMER_NODE_DISARMED, .fire = host_ready};
    (void)snprintf(host->name, sizeof host->name, "%s", name);
    host_address(host, text);
    if (quic_address_resolve(text, AF_UNSPEC, &host->address, &error) != STATUS_OK) {
        abort();
    }
    return host;
}

/* Returns null if no host has the address. */
static struct host *host_at(struct datagram_network *network, const struct quic_address *address)
{
    struct quic_address_key wanted, key;
    quic_address_key(address, &wanted);
    for (uint32_t i = 0; i < network->host_count; i++) {
        quic_address_key(&network->hosts[i].address, &key);
        if (memcmp(&key, &wanted, sizeof key) == 0) {
            return &network->hosts[i];
        }
    }
    return NULL;
}

static struct link *link_between(const struct host *from, const struct host *to)
{
    return &from->network->links[from - from->network->hosts][to - to->network->hosts];
}

static struct link *link_named(struct network *base, const char *from, const char *to)
{
    return link_between(host_intern(network_of(base), from), host_intern(network_of(base), to));
}

static void datagrams_set_link(struct network *network, const char *from, const char *to,
                               const struct network_conditions *conditions)
{
    link_named(network, from, to)->conditions = *conditions;
}

static void datagrams_cut(struct network *network, const char *from, const char *to, bool cut)
{
    link_named(network, from, to)->cut = cut;
}

static void datagrams_kill(struct network *network, const char *name)
{
    host_intern(network_of(network), name)->dead = true;
}

static void datagrams_address(const struct network *network, const char *name,
                              char out[NETWORK_ADDRESS_MAX_BYTES])
{
    host_address(host_intern((struct datagram_network *)network, name), out);
}

/* --- Datagrams --- */

static void trace(struct datagram_network *network, const struct flight *flight)
{
    uint64_t words[] = {loop_now_ns(), (uint64_t)(flight->from - network->hosts),
                        (uint64_t)(flight->to - network->hosts), flight->unreachable, flight->size};
    network->base.counters.trace_hash = hash_bytes(network->base.counters.trace_hash, words, sizeof words);
}

static int host_fd(const struct host *host)
{
    unsigned at = 0;
    while (networks[at] != host->network) {
        at++;
    }
    return (int)(at * HOSTS_MAX + (unsigned)(host - host->network->hosts));
}

static struct host *fd_host(int fd)
{
    return &networks[(unsigned)fd / HOSTS_MAX]->hosts[(unsigned)fd % HOSTS_MAX];
}

static void host_ready(struct virtual_event *event)
{
    struct host *host = (struct host *)((char *)event - offsetof(struct host, ready));
    if (host->busy_ns > loop_now_ns()) {
        virtual_event_set(&host->ready, host->busy_ns);
        return;
    }
    if (host->open && !host->held) {
        virtual_fd_ready(host_fd(host), LOOP_READ);
    }
    if (host->open && !host->held && (host->arrived != NULL || host->unreachable != NULL)) {
        virtual_event_set(&host->ready, 0); /* one read does not take all that has come */
    }
}

static void launch(struct host *from, struct host *to, bool unreachable, uint8_t ecn, const uint8_t *bytes,
                   size_t size, uint64_t left_ns);

static void flight_arrives(struct virtual_event *event)
{
    struct flight *flight = (struct flight *)event;
    struct host *host = flight->to;
    DL_DELETE(host->network->flights, flight);
    trace(host->network, flight);
    if (host->dead || (!host->open && flight->unreachable)) {
        free(flight);
    } else if (host->stranger) {
        DL_APPEND(host->arrived, flight);
    } else if (!host->open) {
        launch(host, flight->from, true, 0, NULL, 0, loop_now_ns());
        free(flight);
    } else {
        if (flight->unreachable) {
            DL_APPEND(host->unreachable, flight);
        } else {
            DL_APPEND(host->arrived, flight);
        }
        virtual_event_set(&host->ready, 0);
    }
}

static void launch(struct host *from, struct host *to, bool unreachable, uint8_t ecn, const uint8_t *bytes,
                   size_t size, uint64_t left_ns)
{
    struct datagram_network *network = from->network;
    const struct network_conditions *conditions = &link_between(from, to)->conditions;
    struct flight *flight = calloc(1, sizeof *flight + size);
    if (flight == NULL) {
        abort();
    }
    flight->event = (struct virtual_event){.node.index = TIMER_NODE_DISARMED, .fire = flight_arrives};
    flight->from = from;
    flight->source = from->address;
    flight->to = to;
    flight->unreachable = unreachable;
    flight->ecn = ecn;
    flight->size = size;
    if (size > 0) {
        memcpy(flight->bytes, bytes, size);
    }
    uint64_t delay_ns = conditions->delay_ns;
    if (conditions->jitter_ns > 0) {
        delay_ns += random_below(&network->random, conditions->jitter_ns + 1);
    }
    DL_APPEND(network->flights, flight);
    virtual_event_set(&flight->event, left_ns + (delay_ns == 0 ? 1 : delay_ns));
}

/*
 * The first datagram to each connection ID that an endpoint has chosen contains what takes its sender long: a
 * certificate and a signature, after those of the other side were checked. What is sent again is cheap, and
 * so is a client's first datagram, to an ID of another length. So a handshake takes this time of each side
 * once.
 */
static void host_works(struct host *host, uint64_t handshake_ns, const uint8_t *bytes, size_t size)
{
    if (handshake_ns == 0 || size < 6 + HANDSHAKE_ID_BYTES || (bytes[0] & 0x80) == 0 ||
        bytes[5] != HANDSHAKE_ID_BYTES) {
        return;
    }
    uint64_t id = hash_bytes(1, bytes + 6, bytes[5]);
    for (size_t i = 0; i < HANDSHAKES_KNOWN; i++) {
        if (host->handshakes[i] == id) {
            return;
        }
    }
    host->handshakes[host->handshake_count++ % HANDSHAKES_KNOWN] = id;
    uint64_t begin_ns = host->busy_ns > loop_now_ns() ? host->busy_ns : loop_now_ns();
    host->busy_ns = begin_ns + random_below(&host->network->random, 2 * handshake_ns);
}

/* One datagram leaves a host. */
static void host_sends(struct host *from, const struct quic_batch *batch, const uint8_t *bytes, size_t size)
{
    struct datagram_network *network = from->network;
    struct host *to = host_at(network, &batch->remote);
    if (from->dead || from->held || to == NULL) {
        return;
    }
    struct link *link = link_between(from, to);
    const struct network_conditions *conditions = &link->conditions;
    uint64_t left_ns = loop_now_ns();
    host_works(from, conditions->handshake_ns, bytes, size);
    network->base.counters.packets++;
    network->base.counters.stream_bytes += size;
    bool lost = link->cut || (conditions->packet_bytes > 0 && size > conditions->packet_bytes);
    lost |= random_chance(&network->random, conditions->loss);
    bool doubled = random_chance(&network->random, conditions->duplication);
    if (conditions->bandwidth_bytes_s > 0 && !lost) {
        left_ns = link->free_ns > left_ns ? link->free_ns : left_ns;
        lost = left_ns - loop_now_ns() > QUEUE_MAX_NS;
        left_ns += size * TIME_S / conditions->bandwidth_bytes_s;
        link->free_ns = lost ? link->free_ns : left_ns;
    }
    if (lost) {
        network->base.counters.packets_lost++;
        return;
    }
    uint8_t *damaged = NULL;
    if (size > 0 && random_chance(&network->random, conditions->corruption)) {
        damaged = malloc(size);
        if (damaged == NULL) {
            abort();
        }
        memcpy(damaged, bytes, size);
        damaged[random_below(&network->random, size)] ^= (uint8_t)(1 + random_below(&network->random, 255));
    }
    launch(from, to, false, batch->ecn, damaged == NULL ? bytes : damaged, size, left_ns);
    if (doubled) {
        launch(from, to, false, batch->ecn, bytes, size, left_ns);
    }
    free(damaged);
}

/* --- stranger.h --- */

void stranger_sends(struct network *base, const char *from, const char *to, const void *bytes, size_t size)
{
    struct host *host = host_intern(network_of(base), from);
    const struct quic_batch batch = {.remote = host_intern(network_of(base), to)->address};
    host->stranger = !host->open;
    host_sends(host, &batch, bytes, size);
}

bool stranger_receives(struct network *base, const char *name, void *out, size_t size, size_t *received)
{
    struct host *host = host_intern(network_of(base), name);
    struct flight *flight = host->arrived;
    if (flight == NULL) {
        return false;
    }
    *received = flight->size < size ? flight->size : size;
    memcpy(out, flight->bytes, *received);
    DL_DELETE(host->arrived, flight);
    free(flight);
    return true;
}

/* --- daemon/net/quic_socket.h --- */

static struct host *host_of_loopback(const struct quic_address *address)
{
    static const struct network_conditions conditions = {.delay_ns = 20 * TIME_US};
    static uint16_t port = 20000;
    char name[32];
    assert(quic_address_is_loopback(address));
    if (loopback == NULL) {
        loopback = network_new_datagrams(1, &conditions, 0);
    }
    uint16_t wanted = quic_address_port(address) == 0 ? ++port : quic_address_port(address);
    (void)snprintf(name, sizeof name, "127.0.0.1:%u", wanted);
    struct host *host = host_intern(network_of(loopback), name);
    host->address = *address;
    quic_address_set_port(&host->address, wanted);
    return host;
}

enum status quic_socket_open(const char *bind_address, uint32_t buffer_bytes, struct quic_socket *out,
                             struct error *error)
{
    *out = (struct quic_socket){.granted_receive_bytes = buffer_bytes, .granted_send_bytes = buffer_bytes};
    enum status status = quic_address_resolve(bind_address, AF_UNSPEC, &out->local, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct host *host = NULL;
    for (unsigned i = 0; i < NETWORKS_MAX && host == NULL; i++) {
        host = networks[i] == NULL ? NULL : host_at(networks[i], &out->local);
    }
    host = host == NULL ? host_of_loopback(&out->local) : host;
    assert(!host->open);
    out->local = host->address;
    out->fd = host_fd(host);
    host->open = true;
    return STATUS_OK;
}

static void flights_free(struct flight **flights)
{
    while (*flights != NULL) {
        struct flight *flight = *flights;
        DL_DELETE(*flights, flight);
        virtual_event_cancel(&flight->event);
        free(flight);
    }
}

void quic_socket_close(struct quic_socket *closed)
{
    if (closed->fd >= 0) {
        struct host *host = fd_host(closed->fd);
        host->open = false;
        flights_free(&host->arrived);
        flights_free(&host->unreachable);
        virtual_event_cancel(&host->ready);
        closed->fd = -1;
    }
}

enum quic_send_result quic_socket_send(struct quic_socket *from, const struct quic_batch *batch,
                                       size_t *sent_bytes)
{
    for (size_t at = *sent_bytes; at < batch->size; at += batch->datagram_bytes) {
        size_t left = batch->size - at;
        host_sends(fd_host(from->fd), batch, batch->bytes + at,
                   left < batch->datagram_bytes ? left : batch->datagram_bytes);
    }
    return QUIC_SEND_DONE;
}

size_t quic_socket_receive(struct quic_socket *at, quic_datagram_function *function, void *context,
                           bool *more)
{
    struct host *host = fd_host(at->fd);
    struct flight *flight = host->arrived;
    *more = false;
    at->has_errors = host->unreachable != NULL;
    if (flight == NULL || host->held || host->busy_ns > loop_now_ns()) {
        return 0;
    }
    DL_DELETE(host->arrived, flight);
    *more = host->arrived != NULL;
    struct quic_datagram datagram = {flight->bytes, flight->size, &at->local, &flight->source, flight->ecn};
    function(context, &datagram);
    free(flight);
    return 1;
}

void quic_socket_read_errors(struct quic_socket *at, quic_unreachable_function *function, void *context)
{
    struct host *host = fd_host(at->fd);
    at->has_errors = false;
    while (host->unreachable != NULL) {
        struct flight *flight = host->unreachable;
        DL_DELETE(host->unreachable, flight);
        function(context, &flight->source, QUIC_UNREACHABLE_PORT);
        free(flight);
    }
}

bool quic_socket_local_address(const struct quic_socket *at, const struct quic_address *remote,
                               struct quic_address *out)
{
    (void)remote;
    *out = at->local;
    return true;
}

/* --- The network --- */

static struct net *datagrams_add(struct network *base, const char *name)
{
    char address[NETWORK_ADDRESS_MAX_BYTES], file[NODE_NAME_MAX_BYTES + 8];
    struct host *host = host_intern(network_of(base), name);
    struct quic_options options = {.node_name = name,
                                   .bind_address = address,
                                   .handshake_timeout_ns = NETWORK_CONNECT_TIMEOUT_NS,
                                   .idle_timeout_ns = NETWORK_IDLE_TIMEOUT_NS,
                                   .patience_ns = NETWORK_IDLE_TIMEOUT_NS};
    struct net *net = NULL;
    struct error error = {0};
    struct test_pki *pki = seeded_tls_certificate(name);
    options.authority_path = test_pki_path(pki, "ca.pem");
    (void)snprintf(file, sizeof file, "%s.pem", name);
    options.certificate_path = test_pki_path(pki, file);
    (void)snprintf(file, sizeof file, "%s.key", name);
    options.key_path = test_pki_path(pki, file);
    host_address(host, address);
    host->dead = false;
    if (net_quic_new(NULL, &options, &net, &error) != STATUS_OK) {
        (void)fprintf(stderr, "network_datagram: %s\n", error.text);
        abort();
    }
    return net;
}

static uint64_t datagrams_next_ns(const struct network *network)
{
    (void)network;
    return virtual_next_ns();
}

static void datagrams_advance(struct network *network, uint64_t now_ns)
{
    (void)network;
    virtual_advance(now_ns);
}

/* Changes the address that others see for this host. */
static void datagrams_rebind(struct network *base, const char *name)
{
    struct host *host = host_intern(network_of(base), name);
    quic_address_set_port(&host->address, (uint16_t)(quic_address_port(&host->address) + 1000));
}

static void datagrams_hold(struct network *base, const char *name, bool held)
{
    struct host *host = host_intern(network_of(base), name);
    host->held = held;
    virtual_event_set(&host->ready, 0);
}

static void datagrams_free(struct network *base)
{
    struct datagram_network *network = network_of(base);
    flights_free(&network->flights);
    for (uint32_t i = 0; i < network->host_count; i++) {
        flights_free(&network->hosts[i].arrived);
    }
    for (unsigned i = 0; i < NETWORKS_MAX; i++) {
        networks[i] = networks[i] == network ? NULL : networks[i];
    }
    free(network);
}

static const struct network_operations datagrams_operations = {
    .free = datagrams_free,
    .add = datagrams_add,
    .address = datagrams_address,
    .next_ns = datagrams_next_ns,
    .advance = datagrams_advance,
    .set_link = datagrams_set_link,
    .cut = datagrams_cut,
    .kill = datagrams_kill,
    .rebind = datagrams_rebind,
    .hold = datagrams_hold,
};

struct network *network_new_datagrams(uint64_t seed, const struct network_conditions *conditions,
                                      uint16_t port)
{
    unsigned count = 0;
    struct datagram_network *network = calloc(1, sizeof *network);
    if (network == NULL || !seeded_tls_begin()) {
        abort();
    }
    for (unsigned i = 0; i < NETWORKS_MAX; i++) {
        count += networks[i] != NULL;
    }
    if (count == 0) {
        virtual_time_start();
        seeded_tls_seed(seed);
    }
    assert(count < NETWORKS_MAX);
    unsigned free_place = 0;
    while (networks[free_place] != NULL) {
        free_place++;
    }
    networks[free_place] = network;
    network->base.operations = &datagrams_operations;
    network->port = port;
    random_seed(&network->random, seed);
    for (unsigned i = 0; i < HOSTS_MAX * HOSTS_MAX; i++) {
        network->links[i / HOSTS_MAX][i % HOSTS_MAX].conditions = *conditions;
    }
    return &network->base;
}
