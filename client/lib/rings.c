#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/internal.h"

#define BELL_TRIES 3

static size_t rings_bytes(void)
{
    return 2 * ring_shared_bytes(CLIENT_RING_BYTES);
}

/* send() and recv() with MSG_DONTWAIT never block on a Unix socket, whatever flags its other holders set. */
static bool is_unix_socket(int fd)
{
    int domain;
    socklen_t size = sizeof domain;
    return getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

bool memory_is_fixed(int fd, size_t least_bytes)
{
    struct stat file;
    int seals = fcntl(fd, F_GET_SEALS);
    return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(fd, &file) == 0 &&
           file.st_size >= (off_t)least_bytes;
}

bool rings_are_safe(const int fds[CLIENT_RING_FDS])
{
    return memory_is_fixed(fds[0], rings_bytes()) && is_unix_socket(fds[1]) && is_unix_socket(fds[2]);
}

struct client_rings *rings_open(const int fds[CLIENT_RING_FDS])
{
    struct client_rings *rings = calloc(1, sizeof *rings);
    void *memory = MAP_FAILED;
    if (rings != NULL && rings_are_safe(fds)) {
        memory = mmap(NULL, rings_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    }
    close(fds[0]);
    if (memory == MAP_FAILED) {
        free(rings);
        close(fds[1]);
        close(fds[2]);
        return NULL;
    }
    rings->memory = memory;
    rings->daemon_bell_fd = fds[1];
    rings->bell_fd = fds[2];
    rings->spin_ns = RING_SPIN_MAX_NS;
    ring_attach(&rings->out, memory, CLIENT_RING_BYTES);
    ring_attach(&rings->in, rings->memory + ring_shared_bytes(CLIENT_RING_BYTES), CLIENT_RING_BYTES);
    return rings;
}

void rings_close(struct client_rings *rings)
{
    if (rings != NULL) {
        (void)munmap(rings->memory, rings_bytes());
        close(rings->bell_fd);
        close(rings->daemon_bell_fd);
        free(rings);
    }
}

void rings_ring(const struct client_rings *rings)
{
    char byte = 1;
    /* A ring that is lost leaves commd asleep, so a failure is tried again. If the socket is full, it rings
     * anyway. The connection reports it if commd has ended. */
    for (int tries = 0; tries < BELL_TRIES; tries++) {
        if (send(rings->daemon_bell_fd, &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 ||
            errno == EAGAIN) {
            return;
        }
    }
}

enum ring_result rings_send(struct client_rings *rings, const void *packet, size_t size_bytes)
{
    enum ring_result result = ring_put(&rings->out, packet, size_bytes);
    while (result == RING_FULL && !ring_producer_sleep(&rings->out, size_bytes)) {
        result = ring_put(&rings->out, packet, size_bytes);
    }
    if ((result == RING_OK || result == RING_FULL) && ring_wake_consumer(&rings->out)) {
        rings_ring(rings);
    }
    return result;
}

enum ring_result rings_send_quietly(struct client_rings *rings, const void *packet, size_t size_bytes)
{
    return ring_put(&rings->out, packet, size_bytes);
}

void rings_taken(struct client_rings *rings)
{
    if (ring_wake_producer(&rings->in)) {
        rings_ring(rings);
    }
}

static void rest(struct client_rings *rings, uint64_t now_ns)
{
    bool again = now_ns < rings->rest_until_ns + rings->rest_ns;
    rings->rest_ns = !again                                  ? RING_REST_MIN_NS
                     : 4 * rings->rest_ns < RING_REST_MAX_NS ? 4 * rings->rest_ns
                                                             : RING_REST_MAX_NS;
    rings->rest_until_ns = now_ns + rings->rest_ns;
}

/*
 * Spins for a moment, and yields meanwhile: another process, perhaps commd, may have work on this processor.
 * If it has, a thread that spins gets as much of the processor as commd, because the kernel is fair. So the
 * thread sleeps then if commd has much to do: for operations between nodes. The time gets shorter if spinning
 * is mostly in vain.
 */
static bool spin(struct client_rings *rings, uint64_t deadline_ns)
{
    uint64_t now_ns = clock_ns();
    uint64_t end_ns = now_ns + rings->spin_ns < deadline_ns ? now_ns + rings->spin_ns : deadline_ns;
    uint32_t shared_yields = 0;
    bool between_nodes = atomic_load_explicit(&rings->between_nodes, memory_order_relaxed);
    if (ring_has_packet(&rings->in) || now_ns < rings->rest_until_ns) {
        return ring_has_packet(&rings->in);
    }
    do {
        uint64_t before_ns = now_ns;
        (void)sched_yield();
        if (ring_has_packet(&rings->in)) {
            rings->spin_ns = RING_SPIN_MAX_NS;
            return true;
        }
        now_ns = clock_ns();
        shared_yields = now_ns - before_ns > RING_SHARED_NS ? shared_yields + 1 : 0;
        bool shared = between_nodes && shared_yields == RING_SHARED_YIELDS;
        if (shared || now_ns - before_ns > RING_CROWDED_NS) {
            rest(rings, now_ns);
            return ring_has_packet(&rings->in);
        }
    } while (now_ns < end_ns);
    rings->spin_ns = rings->spin_ns / 2 > RING_SPIN_MIN_NS ? rings->spin_ns / 2 : RING_SPIN_MIN_NS;
    return false;
}

static void quiet_bell(const struct client_rings *rings)
{
    char bytes[64];
    (void)recv(rings->bell_fd, bytes, sizeof bytes, MSG_DONTWAIT);
}

bool rings_wait(struct client_rings *rings, int socket_fd, short events, struct pollfd *other,
                uint64_t deadline_ns)
{
    if (rings->armed) { /* while this thread looks, commd need not ring */
        ring_consumer_wakes(&rings->in);
    }
    if (spin(rings, deadline_ns) || !ring_consumer_sleep(&rings->in)) {
        return false;
    }
    struct pollfd ready[] = {{.fd = socket_fd, .events = events},
                             {.fd = rings->bell_fd, .events = POLLIN},
                             {.fd = other != NULL ? other->fd : -1, .events = POLLIN}};
    (void)poll(ready, sizeof ready / sizeof *ready, poll_timeout_ms(deadline_ns));
    ring_consumer_wakes(&rings->in);
    if ((ready[1].revents & POLLIN) != 0) {
        quiet_bell(rings);
    }
    if (other != NULL) {
        other->revents = ready[2].revents;
    }
    return true;
}

bool rings_arm(struct client_rings *rings)
{
    if (rings->armed) {
        quiet_bell(rings); /* a byte may be late; the ring is looked at afterwards */
    }
    rings->armed = true;
    return ring_consumer_sleep(&rings->in);
}
