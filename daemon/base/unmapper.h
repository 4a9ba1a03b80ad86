#ifndef DAEMON_BASE_UNMAPPER_H
#define DAEMON_BASE_UNMAPPER_H

#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * Unmaps large memory on a thread of its own: the kernel takes about 45 ms for each GiB, in which a loop
 * would serve nobody. It goes in pieces, since other threads' mappings wait for the one under way; after each
 * piece the thread rests for as long, so that it takes no more than half of a processor from others.
 *
 * What is queued lives in its owner's memory, so nothing is refused here. Owners keep what they hold charged
 * until `done` is called: a user's budget thus bounds how much of his is queued, and with the budget used up
 * he can register nothing more until some is unmapped.
 */
struct unmapper;

#define UNMAPPER_PIECE_BYTES (UINT64_C(8) << 20)
#define UNMAPPER_REST_MAX_NS 2000000u
/*
 * Addresses without pages cost next to nothing, and there may be 2^46 bytes of them: while pieces take less
 * than UNMAPPER_QUICK_NS, each is twice as large as the one before, up to this.
 */
#define UNMAPPER_PIECE_MAX_BYTES (UINT64_C(512) << 20)
#define UNMAPPER_QUICK_NS 200000u
#define UNMAPPER_IN_PLACE_MAX_BYTES (UINT64_C(1) << 20) /* what is smaller is unmapped at once */

/* One mapping. The unmapper's from unmapper_put until `done` is called, which may free it. */
struct unmapping {
    void *base; /* on a page */
    uint64_t size_bytes;
    void (*done)(void *context); /* on the loop's thread */
    void *context;
    struct unmapping *next;
};

/* SYSTEM, NO_MEMORY. */
enum status unmapper_new(struct loop *loop, struct unmapper **out, struct error *error) COMM_MUST_USE;
/*
 * Waits for the piece under way alone: what is left goes with the process. All that was put is told to be
 * done. Null is accepted.
 */
void unmapper_free(struct unmapper *unmapper);

/* The loop's thread. In the order put. Without an unmapper (null), and what is small: at once, in place. */
void unmapper_put(struct unmapper *unmapper, struct unmapping *unmapping);

#endif
