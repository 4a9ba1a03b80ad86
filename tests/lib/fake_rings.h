#ifndef TESTS_LIB_FAKE_RINGS_H
#define TESTS_LIB_FAKE_RINGS_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/ring.h"
#include "proto/version.h"

/* commd's side of a client's rings, without a session. For tests that play commd, and may break the rules. */
struct fake_rings {
    unsigned char *memory;
    int memory_fd;
    int bell[2];        /* the client writes, this side reads */
    int client_bell[2]; /* this side writes, the client reads */
    struct ring in, out;
    bool spoilt; /* this side has broken the rings; nothing is put or taken any more */
};

enum fake_abuse {
    FAKE_ABUSE_TAIL,     /* of the outgoing ring: beyond the ring */
    FAKE_ABUSE_ODD_TAIL, /* the tail is not at the end of an entry */
    FAKE_ABUSE_NO_LENGTH,
    FAKE_ABUSE_LENGTH,   /* the length of an entry is more than what was put */
    FAKE_ABUSE_HEAD,     /* of the incoming ring: beyond what was put */
    FAKE_ABUSE_SCRIBBLE, /* overwrites everything */
    FAKE_ABUSE_COUNT
};

/* Makes rings. A failure ends the process. */
struct fake_rings *fake_rings_new(void);
/* Gives the client other memory, which has no seal against truncation. */
void fake_rings_unseal(struct fake_rings *rings);
void fake_rings_free(struct fake_rings *rings);
/* Writes the three descriptors that the client gets. This side still owns them. */
void fake_rings_client_fds(const struct fake_rings *rings, int fds[CLIENT_RING_FDS]);
/* Returns false if the ring is full. Rings the bell if the client sleeps. */
bool fake_rings_put(struct fake_rings *rings, const void *packet, size_t size_bytes);
/* Waits at this side's bell until the client has made room. fd is the socket to the client. Returns false
 * if the client is gone. */
bool fake_rings_await_room(struct fake_rings *rings, size_t size_bytes, int fd);
/* Takes the next packet and returns its size; 0: there is none. Rings the bell if the client waits for
 * room. */
size_t fake_rings_take(struct fake_rings *rings, void *packet, size_t room_bytes);
/* Returns how often the client has rung since the last call. It may be less if the bell was full. */
size_t fake_rings_heard(struct fake_rings *rings);
void fake_rings_abuse(struct fake_rings *rings, enum fake_abuse abuse);

#endif
