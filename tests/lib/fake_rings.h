#ifndef TESTS_LIB_FAKE_RINGS_H
#define TESTS_LIB_FAKE_RINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/ring.h"
#include "proto/version.h"

/* commd's side of a client's rings, without a session: for whoever plays commd, and may play foul. */
struct fake_rings {
    unsigned char *memory;
    int memory_fd;
    int bell[2];        /* the client writes, we read */
    int client_bell[2]; /* we write, the client reads */
    struct ring in, out;
    bool spoilt; /* by us: nothing is put or taken any more */
};

enum fake_abuse {
    FAKE_ABUSE_TAIL,     /* of what we send: beyond the ring */
    FAKE_ABUSE_ODD_TAIL, /* at no entry's end */
    FAKE_ABUSE_NO_LENGTH,
    FAKE_ABUSE_LENGTH,   /* more than was put */
    FAKE_ABUSE_HEAD,     /* of what we take: beyond what was put */
    FAKE_ABUSE_SCRIBBLE, /* everything */
    FAKE_ABUSE_COUNT
};

/* Fails the process when they cannot be made. */
struct fake_rings *fake_rings_new(void);
/* What the client gets is other memory, which nothing keeps from being cut. */
void fake_rings_unseal(struct fake_rings *rings);
void fake_rings_free(struct fake_rings *rings);
/* The three descriptors that the client gets; ours. */
void fake_rings_client_fds(const struct fake_rings *rings, int fds[CLIENT_RING_FDS]);
/* False: full. Rings when the client sleeps. */
bool fake_rings_put(struct fake_rings *rings, const void *packet, size_t size_bytes);
/* Waits at our bell until the client has made room. False: the client, at the other end of fd, is gone. */
bool fake_rings_await_room(struct fake_rings *rings, size_t size_bytes, int fd);
/* The next packet's size; 0: there is none. Rings when the client waits for room. */
size_t fake_rings_take(struct fake_rings *rings, void *packet, size_t room_bytes);
/* How often the client has rung since the last time (or more rarely, had its bell been full). */
size_t fake_rings_heard(struct fake_rings *rings);
void fake_rings_abuse(struct fake_rings *rings, enum fake_abuse abuse);

#endif
