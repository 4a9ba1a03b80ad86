#include "tests/lib/udp_relay.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/random.h"
#include "daemon/base/time.h"
#include "tests/lib/chance.h"

#define RELAY_DATAGRAM_MAX_BYTES 65536
#define RELAY_BURST 256 /* most datagrams of one socket before other sockets have their turn */
#define RELAY_BUFFER_BYTES (4 << 20)

struct relay_client {
    struct udp_relay *relay;
    struct sockaddr_in address;
    int fd; /* the socket towards the target */
    struct loop_watch *watch;
};

struct relay_packet {
    struct relay_packet *prev, *next; /* a list in the order of due_ns */
    uint64_t due_ns;
    struct relay_client *client;
    bool to_target;
    size_t size;
    uint8_t bytes[];
};

struct udp_relay {
    struct loop *loop;
    int fd; /* at the port of udp_relay_port */
    struct loop_watch *watch;
    int away_fd; /* at another port; -1: the relay has not moved */
    struct loop_watch *away_watch;
    struct loop_timer *timer;
    struct sockaddr_in local;
    struct sockaddr_in target;
    struct relay_client clients[UDP_RELAY_CLIENTS_MAX];
    unsigned client_count;
    struct udp_relay_conditions to_target;
    struct udp_relay_conditions from_target;
    struct random random;
    struct relay_packet *packets;
    unsigned packet_count;
    struct udp_relay_counters counters;
    uint8_t buffer[RELAY_DATAGRAM_MAX_BYTES];
};

static bool parse_address(const char *text, struct sockaddr_in *out)
{
    char host[INET_ADDRSTRLEN];
    const char *colon = strrchr(text, ':');
    size_t length = colon == NULL ? sizeof host : (size_t)(colon - text);
    if (length >= sizeof host) {
        return false;
    }
    memcpy(host, text, length);
    host[length] = '\0';
    memset(out, 0, sizeof *out);
    out->sin_family = AF_INET;
    out->sin_port = htons((uint16_t)strtoul(colon + 1, NULL, 10));
    return inet_pton(AF_INET, host, &out->sin_addr) == 1;
}

/* Returns a bound socket, or -1 with errno set. */
static int open_socket(const struct sockaddr_in *address)
{
    int size = RELAY_BUFFER_BYTES;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return -1;
    }
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    if (bind(fd, (const struct sockaddr *)address, sizeof *address) != 0) {
        int errnum = errno;
        close(fd);
        errno = errnum;
        return -1;
    }
    return fd;
}

/* --- Passing on --- */

static void send_packet(struct udp_relay *relay, const struct relay_client *client, bool to_target,
                        const uint8_t *bytes, size_t size)
{
    int answers_fd = relay->away_fd >= 0 ? relay->away_fd : relay->fd;
    int fd = to_target ? client->fd : answers_fd;
    const struct sockaddr_in *address = to_target ? &relay->target : &client->address;
    if (sendto(fd, bytes, size, MSG_NOSIGNAL, (const struct sockaddr *)address, sizeof *address) >= 0) {
        relay->counters.forwarded++;
    } else {
        relay->counters.lost++;
    }
}

static void set_timer(struct udp_relay *relay)
{
    loop_timer_set(relay->timer, relay->packets == NULL ? TIME_NEVER : relay->packets->due_ns);
}

static void deliver_due(void *context, uint64_t now_ns)
{
    struct udp_relay *relay = context;
    while (relay->packets != NULL && relay->packets->due_ns <= now_ns) {
        struct relay_packet *packet = relay->packets;
        DL_DELETE(relay->packets, packet);
        relay->packet_count--;
        send_packet(relay, packet->client, packet->to_target, packet->bytes, packet->size);
        free(packet);
    }
    set_timer(relay);
}

static void delay_packet(struct udp_relay *relay, struct relay_client *client, bool to_target,
                         const uint8_t *bytes, size_t size, uint64_t due_ns)
{
    struct relay_packet *packet = NULL;
    if (relay->packet_count < UDP_RELAY_PACKETS_MAX) {
        packet = malloc(sizeof *packet + size);
    }
    if (packet == NULL) {
        relay->counters.lost++;
        return;
    }
    packet->due_ns = due_ns;
    packet->client = client;
    packet->to_target = to_target;
    packet->size = size;
    memcpy(packet->bytes, bytes, size);
    /* Searches from the end, where most packets belong. */
    struct relay_packet *before = relay->packets == NULL ? NULL : relay->packets->prev;
    while (before != NULL && before->due_ns > due_ns) {
        before = before == relay->packets ? NULL : before->prev;
    }
    if (before == NULL) {
        DL_PREPEND(relay->packets, packet);
    } else {
        DL_APPEND_ELEM(relay->packets, before, packet);
    }
    relay->packet_count++;
}

static void pass(struct udp_relay *relay, struct relay_client *client, bool to_target, uint8_t *bytes,
                 size_t size, uint64_t now_ns)
{
    const struct udp_relay_conditions *conditions = to_target ? &relay->to_target : &relay->from_target;
    struct random *random = &relay->random;
    bool lost = random_chance(random, conditions->loss) || conditions->blackhole ||
                (conditions->datagram_max_bytes != 0 && size > conditions->datagram_max_bytes);
    bool damaged = random_chance(random, conditions->corruption);
    bool doubled = random_chance(random, conditions->duplication);
    uint64_t where = random_u64(random);
    if (lost) {
        relay->counters.lost++;
        return;
    }
    if (damaged && size > 0) {
        relay->counters.damaged++;
        bytes[where % size] ^= (uint8_t)(1u << (where >> 61));
    }
    for (unsigned copies = doubled ? 2 : 1; copies > 0; copies--) {
        uint64_t jitter_ns = conditions->jitter_ns == 0 ? 0 : random_below(random, conditions->jitter_ns);
        uint64_t delay_ns = conditions->delay_ns + jitter_ns;
        if (delay_ns == 0) {
            send_packet(relay, client, to_target, bytes, size);
        } else {
            delay_packet(relay, client, to_target, bytes, size, now_ns + delay_ns);
        }
    }
    relay->counters.doubled += doubled ? 1 : 0;
}

static void answers_ready(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    struct relay_client *client = context;
    struct udp_relay *relay = client->relay;
    for (int i = 0; i < RELAY_BURST; i++) {
        ssize_t size = recv(client->fd, relay->buffer, sizeof relay->buffer, 0);
        if (size < 0) {
            break;
        }
        pass(relay, client, false, relay->buffer, (size_t)size, now_ns);
    }
    set_timer(relay);
}

/* --- Clients --- */

/* Puts a socket at another port, and its watch, in the place of the present ones. Returns SYSTEM if it fails:
 * then these stay. what: for the text of the error. */
static enum status bind_anew(const struct udp_relay *relay, loop_watch_function *ready, void *context,
                             const char *what, int *fd, struct loop_watch **watch, struct error *error)
{
    struct sockaddr_in any = relay->local;
    any.sin_port = 0;
    int new_fd = open_socket(&any);
    if (new_fd < 0) {
        return error_set_errno(error, errno, "relay: %s", what);
    }
    struct loop_watch *new_watch = NULL;
    enum status status = loop_watch_new(relay->loop, new_fd, LOOP_READ, ready, context, &new_watch, error);
    if (status != STATUS_OK) {
        close(new_fd);
        return status;
    }
    loop_watch_free(*watch);
    if (*fd >= 0) {
        close(*fd);
    }
    *fd = new_fd;
    *watch = new_watch;
    return STATUS_OK;
}

static enum status client_bind(struct relay_client *client, struct error *error)
{
    return bind_anew(client->relay, answers_ready, client, "socket towards the target", &client->fd,
                     &client->watch, error);
}

static struct relay_client *find_client(struct udp_relay *relay, const struct sockaddr_in *address)
{
    for (unsigned i = 0; i < relay->client_count; i++) {
        struct relay_client *client = &relay->clients[i];
        if (client->address.sin_port == address->sin_port &&
            client->address.sin_addr.s_addr == address->sin_addr.s_addr) {
            return client;
        }
    }
    if (relay->client_count == UDP_RELAY_CLIENTS_MAX) {
        return NULL;
    }
    struct relay_client *client = &relay->clients[relay->client_count];
    *client = (struct relay_client){.relay = relay, .address = *address, .fd = -1};
    if (client_bind(client, NULL) != STATUS_OK) {
        return NULL;
    }
    relay->client_count++;
    return client;
}

/* Takes what senders have sent to one of the relay's ports. is_dead: it vanishes. */
static void take_from_clients(struct udp_relay *relay, int fd, bool is_dead, uint64_t now_ns)
{
    for (int i = 0; i < RELAY_BURST; i++) {
        struct sockaddr_in address;
        socklen_t address_size = sizeof address;
        ssize_t size =
            recvfrom(fd, relay->buffer, sizeof relay->buffer, 0, (struct sockaddr *)&address, &address_size);
        if (size < 0) {
            break;
        }
        struct relay_client *client = is_dead ? NULL : find_client(relay, &address);
        if (client == NULL) {
            relay->counters.lost++;
        } else {
            pass(relay, client, true, relay->buffer, (size_t)size, now_ns);
        }
    }
    set_timer(relay);
}

static void clients_ready(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    struct udp_relay *relay = context;
    take_from_clients(relay, relay->fd, relay->away_fd >= 0, now_ns);
}

static void clients_ready_away(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    struct udp_relay *relay = context;
    take_from_clients(relay, relay->away_fd, false, now_ns);
}

/* --- The relay --- */

enum status udp_relay_new(struct loop *loop, const char *listen, const char *target, uint64_t seed,
                          struct udp_relay **out, struct error *error)
{
    struct udp_relay *relay = calloc(1, sizeof *relay);
    if (relay == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "relay: out of memory");
    }
    relay->loop = loop;
    relay->fd = -1;
    relay->away_fd = -1;
    random_seed(&relay->random, seed);
    enum status status = STATUS_OK;
    if (!parse_address(listen, &relay->local) || !parse_address(target, &relay->target)) {
        status = error_set(error, STATUS_INVALID_ARGUMENT,
                           "relay: expected IPv4 \"address:port\", got \"%s\" and \"%s\"", listen, target);
        goto fail;
    }
    socklen_t size = sizeof relay->local;
    relay->fd = open_socket(&relay->local);
    if (relay->fd < 0 || getsockname(relay->fd, (struct sockaddr *)&relay->local, &size) != 0) {
        status = error_set_errno(error, errno, "relay: socket bound to %s", listen);
        goto fail;
    }
    status = loop_timer_new(loop, deliver_due, relay, &relay->timer, error);
    if (status == STATUS_OK) {
        status = loop_watch_new(loop, relay->fd, LOOP_READ, clients_ready, relay, &relay->watch, error);
    }
    if (status == STATUS_OK) {
        *out = relay;
        return STATUS_OK;
    }

fail:
    udp_relay_free(relay);
    return status;
}

void udp_relay_free(struct udp_relay *relay)
{
    if (relay == NULL) {
        return;
    }
    for (unsigned i = 0; i < relay->client_count; i++) {
        loop_watch_free(relay->clients[i].watch);
        close(relay->clients[i].fd);
    }
    while (relay->packets != NULL) {
        struct relay_packet *packet = relay->packets;
        DL_DELETE(relay->packets, packet);
        free(packet);
    }
    udp_relay_move_back(relay);
    loop_watch_free(relay->watch);
    loop_timer_free(relay->timer);
    if (relay->fd >= 0) {
        close(relay->fd);
    }
    free(relay);
}

uint16_t udp_relay_port(const struct udp_relay *relay)
{
    return ntohs(relay->local.sin_port);
}

void udp_relay_set(struct udp_relay *relay, const struct udp_relay_conditions *to_target,
                   const struct udp_relay_conditions *from_target)
{
    if (to_target != NULL) {
        relay->to_target = *to_target;
    }
    if (from_target != NULL) {
        relay->from_target = *from_target;
    }
}

enum status udp_relay_rebind(struct udp_relay *relay, struct error *error)
{
    enum status status = STATUS_OK;
    for (unsigned i = 0; status == STATUS_OK && i < relay->client_count; i++) {
        status = client_bind(&relay->clients[i], error);
    }
    return status;
}

enum status udp_relay_move(struct udp_relay *relay, struct error *error)
{
    return bind_anew(relay, clients_ready_away, relay, "another port towards the senders", &relay->away_fd,
                     &relay->away_watch, error);
}

void udp_relay_move_back(struct udp_relay *relay)
{
    loop_watch_free(relay->away_watch);
    relay->away_watch = NULL;
    if (relay->away_fd >= 0) {
        close(relay->away_fd);
        relay->away_fd = -1;
    }
}

void udp_relay_counters(const struct udp_relay *relay, struct udp_relay_counters *out)
{
    *out = relay->counters;
}
