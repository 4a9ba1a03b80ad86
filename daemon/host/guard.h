#ifndef DAEMON_HOST_GUARD_H
#define DAEMON_HOST_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * Guards the mappings of clients' memory against holes. A hole is a page that a memfd does not have: nobody
 * ever wrote to it, or the client removed it (fallocate, madvise). Without a guard, the kernel would allocate
 * such a page for the process that touches it. It would charge the page to commd's memory cgroup instead of
 * the client's.
 *
 * Mappings are registered with a userfaultfd that has UFFD_FEATURE_SIGBUS: the kernel then never allocates a
 * page for commd. Touching a hole raises SIGBUS in the thread that touches it, or EFAULT in a system call.
 * The signal handler maps zeroed memory of commd there, marks the mapping as broken, and the thread
 * continues. The user of a mapping checks afterwards whether it is broken, and then reports a failure. What
 * was read from the hole is zero; what was written there is lost.
 *
 * commd's own memory under holes is bounded: GUARD_PATCHED_MAX_BYTES for all mappings together. When more is
 * needed, the oldest patch is removed, and comes back empty when it is touched. A signal at an address
 * outside every guarded mapping is a bug of commd: it has the effect that it would have without the handler.
 *
 * No part of a huge page can be replaced. At the first hole in memory of huge pages, the whole mapping is
 * replaced by usual pages, so that commd's own memory is bounded there, too.
 *
 * The handler also covers pages with memory errors (BUS_MCEERR_AR). Threads must not block SIGBUS and
 * SIGSEGV.
 */
struct guard {
    unsigned char *base;
    uint64_t size_bytes;     /* whole pages */
    _Atomic uint64_t broken; /* 0: not; else 1 + offset of the first missing page touched */
    bool is_huge;            /* it is of huge pages; owned by the handler, until it was given up whole */
    uint32_t patch_count;    /* owned by the handler: patches so far */
    uint32_t split_count;    /* owned by the handler: mappings that the patches added by splitting */
};

#define GUARD_PATCHES_MAX 256                        /* in place at a time, in all mappings */
#define GUARD_PATCHED_MAX_BYTES (UINT64_C(16) << 20) /* bytes of these */
#define GUARD_PATCH_MAX_BYTES (UINT64_C(2) << 20)    /* of one; a mapping's first ones are single pages */
#define GUARD_PATCHES_EACH_SIZE 64                   /* patches of a mapping before their size doubles */
/* The kernel limits a process's mappings (vm.max_map_count), and each patch splits one. Once there are
 * GUARD_SPLITS_MAX patches in all, a mapping that has more than GUARD_SPLITS_LEAST is given up as a whole. */
#define GUARD_SPLITS_MAX 4096
#define GUARD_SPLITS_LEAST 16

/*
 * Opens the userfaultfd and installs the handlers, once in a process; later calls change nothing. Returns
 * whether there is a userfaultfd (Linux 5.11, CONFIG_USERFAULTFD, and no seccomp filter against it). If not,
 * logs that and its consequence, once. Call it before there are other threads.
 */
bool guard_start(void);

/* Whether there is a userfaultfd that watches mappings of huge pages. Calls guard_start. */
bool guard_watches_huge_pages(void);

/*
 * Guards a mapping of a memfd, which must be MAP_SHARED, from now on. huge_page_bytes: 0, or the size of its
 * huge pages; then size_bytes must be a multiple of it, and guard_watches_huge_pages must be true. `guard`
 * must not move until guard_remove. Calls guard_start. Without a userfaultfd, holes are not noticed: see
 * guard_start. Errors: NO_MEMORY, SYSTEM.
 */
enum status guard_add(struct guard *guard, void *base, uint64_t size_bytes, uint64_t huge_page_bytes,
                      struct error *error) COMM_MUST_USE;
/* Call it after the last use of the mapping, before the mapping is unmapped. */
void guard_remove(struct guard *guard);

extern _Atomic uint64_t guard_holes;

/* Any thread. How often a thread touched a hole, in all mappings. If the number is unchanged, no mapping
 * broke meanwhile. */
static inline uint64_t guard_hole_count(void)
{
    return atomic_load(&guard_holes);
}

/* Any thread. *offset_bytes: offset of the first missing page. */
static inline bool guard_is_broken(const struct guard *guard, uint64_t *offset_bytes)
{
    uint64_t broken = atomic_load(&guard->broken);
    *offset_bytes = broken == 0 ? 0 : broken - 1;
    return broken != 0;
}

#endif
