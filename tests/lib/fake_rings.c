#include "tests/lib/fake_rings.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fake_rings: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static size_t shared_bytes(void)
{
    return 2 * ring_shared_bytes(CLIENT_RING_BYTES);
}

struct fake_rings *fake_rings_new(void)
{
    struct fake_rings *rings = calloc(1, sizeof *rings);
    must(rings != NULL, "calloc");
    rings->memory_fd = memfd_create("fake-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(rings->memory_fd >= 0 && ftruncate(rings->memory_fd, (off_t)shared_bytes()) == 0, "memory");
    must(fcntl(rings->memory_fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0, "seal");
    void *memory = mmap(NULL, shared_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, rings->memory_fd, 0);
    must(memory != MAP_FAILED, "mmap");
    rings->memory = memory;
    const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    must(socketpair(AF_UNIX, type, 0, rings->bell) == 0, "socketpair");
    must(socketpair(AF_UNIX, type, 0, rings->client_bell) == 0, "socketpair");
    ring_attach(&rings->in, memory, CLIENT_RING_BYTES);
    ring_attach(&rings->out, rings->memory + ring_shared_bytes(CLIENT_RING_BYTES), CLIENT_RING_BYTES);
    return rings;
}

void fake_rings_unseal(struct fake_rings *rings)
{
    close(rings->memory_fd);
    rings->memory_fd = memfd_create("fake-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    must(rings->memory_fd >= 0 && ftruncate(rings->memory_fd, (off_t)shared_bytes()) == 0, "memory");
}

void fake_rings_free(struct fake_rings *rings)
{
    if (rings != NULL) {
        munmap(rings->memory, shared_bytes());
        close(rings->memory_fd);
        for (int i = 0; i < 2; i++) {
            close(rings->bell[i]);
            close(rings->client_bell[i]);
        }
        free(rings);
    }
}

void fake_rings_client_fds(const struct fake_rings *rings, int fds[CLIENT_RING_FDS])
{
    fds[0] = rings->memory_fd;
    fds[1] = rings->bell[1];
    fds[2] = rings->client_bell[0];
}

static void ring_bell(const struct fake_rings *rings)
{
    char byte = 1;
    (void)!write(rings->client_bell[1], &byte, sizeof byte);
}

bool fake_rings_put(struct fake_rings *rings, const void *packet, size_t size_bytes)
{
    if (rings->spoilt) {
        return true;
    }
    enum ring_result result = ring_put(&rings->out, packet, size_bytes);
    must(result == RING_OK || result == RING_FULL, "a ring that the client broke");
    if (ring_wake_consumer(&rings->out)) {
        ring_bell(rings);
    }
    return result == RING_OK;
}

bool fake_rings_await_room(struct fake_rings *rings, size_t size_bytes, int fd)
{
    struct pollfd polled[2] = {{.fd = rings->bell[0], .events = POLLIN}, {.fd = fd, .events = POLLRDHUP}};
    if (ring_producer_sleep(&rings->out, size_bytes)) {
        (void)poll(polled, 2, -1);
        /* a lost ring does no harm: before it sleeps again, the reader looks at the ring */
        (void)fake_rings_heard(rings);
    }
    ring_producer_wakes(&rings->out);
    return polled[1].revents == 0;
}

size_t fake_rings_take(struct fake_rings *rings, void *packet, size_t room_bytes)
{
    size_t size_bytes;
    if (rings->spoilt) {
        return 0;
    }
    enum ring_result result = ring_take(&rings->in, packet, room_bytes, &size_bytes);
    must(result == RING_OK || result == RING_NOTHING, "a ring that the client broke");
    if (result == RING_OK && ring_wake_producer(&rings->in)) {
        ring_bell(rings);
    }
    return result == RING_OK ? size_bytes : 0;
}

size_t fake_rings_heard(struct fake_rings *rings)
{
    char bytes[4096];
    ssize_t count = read(rings->bell[0], bytes, sizeof bytes);
    return count > 0 ? (size_t)count : 0;
}

void fake_rings_abuse(struct fake_rings *rings, enum fake_abuse abuse)
{
    struct ring *out = &rings->out;
    /* entries begin at multiples of 8, so the length is never split */
    uint32_t offset = out->own & (CLIENT_RING_BYTES - 1);
    uint32_t length = abuse == FAKE_ABUSE_NO_LENGTH ? 0 : 1000;
    rings->spoilt = true;
    switch (abuse) {
    case FAKE_ABUSE_TAIL:
        atomic_store(&out->shared->tail, out->own + CLIENT_RING_BYTES + 8);
        break;
    case FAKE_ABUSE_ODD_TAIL:
        atomic_store(&out->shared->tail, out->own + 4);
        break;
    case FAKE_ABUSE_NO_LENGTH:
    case FAKE_ABUSE_LENGTH:
        memcpy(out->data + offset, &length, sizeof length);
        atomic_store(&out->shared->tail, out->own + 64);
        break;
    case FAKE_ABUSE_HEAD:
        atomic_store(&rings->in.shared->head, rings->in.own + 4096);
        break;
    case FAKE_ABUSE_SCRIBBLE:
    case FAKE_ABUSE_COUNT:
        memset(rings->memory, 0xc3, shared_bytes());
        break;
    }
    ring_bell(rings);
}
