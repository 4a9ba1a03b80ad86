#ifndef DAEMON_BASE_UNMAPPER_H
#define DAEMON_BASE_UNMAPPER_H

#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * Unmaps large memory on a thread of its own: the kernel takes about 45 ms per GiB, which would block a loop.
 * The memory is unmapped in pieces, since other threads that map memory wait for the piece under way. After
 * each piece the thread sleeps for as long as the piece took, so that it uses at most half of a processor.
 *
 * The queue lives in its owners' memory, so nothing is refused here. Owners keep their memory charged until
 * `done` is called. A user's budget thus bounds how much of that user's memory is queued. With the budget
 * used up, that user can register nothing more until some memory is unmapped.
 */
struct unmapper;

#define UNMAPPER_PIECE_BYTES (UINT64_C(8) << 20)
#define UNMAPPER_REST_MAX_NS 2000000u
/*
 * Unmapping addresses without pages costs next to nothing, and there may be 2^46 bytes of them. While pieces
 * take less than UNMAPPER_QUICK_NS, each is twice as large as the one before, up to this.
 */
#define UNMAPPER_PIECE_MAX_BYTES (UINT64_C(512) << 20)
#define UNMAPPER_QUICK_NS 200000u
#define UNMAPPER_IN_PLACE_MAX_BYTES (UINT64_C(1) << 20) /* smaller mappings are unmapped at once */

/* One mapping. It belongs to the unmapper from unmapper_put until `done` is called, which may free it. */
struct unmapping {
    void *base; /* on a page */
    uint64_t size_bytes;
    uint64_t unit_bytes;         /* of huge pages, which can only be unmapped whole; 0: any page */
    void (*done)(void *context); /* on the loop's thread */
    void *context;
    struct unmapping *prev, *next;
};

/* SYSTEM, NO_MEMORY. */
enum status unmapper_new(struct loop *loop, struct unmapper **out, struct error *error) COMM_MUST_USE;
/*
 * Waits for the piece under way only; the rest is unmapped when the process ends. `done` is called for every
 * mapping that was put. Null is accepted.
 */
void unmapper_free(struct unmapper *unmapper);

/* The loop's thread. Unmaps in the order of the calls. Small mappings, and all mappings without an unmapper
 * (null), are unmapped at once, in place. */
void unmapper_put(struct unmapper *unmapper, struct unmapping *unmapping);

#endif
