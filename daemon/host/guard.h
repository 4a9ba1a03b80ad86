#ifndef DAEMON_HOST_GUARD_H
#define DAEMON_HOST_GUARD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * Guards the mappings of clients' memory against holes: pages that a memfd does not have, because nobody ever
 * wrote to them, or because the client has taken them out again (fallocate, madvise). The kernel would make
 * such a page for whoever touches it, and charge it to the memory cgroup of commd instead of the client's.
 *
 * Mappings are registered with a userfaultfd that has UFFD_FEATURE_SIGBUS: no page is ever made for commd.
 * Touching a hole raises SIGBUS in the thread that touches it, or EFAULT in a system call. The handler puts
 * zeroed memory of commd's own there, marks the mapping as broken, and the thread goes on. Who uses a mapping
 * looks afterwards whether it is broken, and then reports a failure: what was read there is zero, as the hole
 * is; what was written there is lost.
 *
 * commd's own memory under holes is bounded: GUARD_PATCHED_MAX_BYTES of all mappings together. Beyond, the
 * oldest is taken away again, and comes back empty when it is touched. A signal at an address that is in no
 * guarded mapping is a fault of commd: it gets what it would get without the handler.
 *
 * The handler also covers pages with memory errors (BUS_MCEERR_AR). Threads must not block SIGBUS and
 * SIGSEGV.
 */
struct guard {
    unsigned char *base;
    uint64_t size_bytes;     /* whole pages */
    _Atomic uint64_t broken; /* 0: not; else 1 + the offset of the first missing page that was touched */
    uint32_t patch_count;    /* the handler's: so far */
    uint32_t split_count;    /* likewise: as many mappings of its own it has got by patches */
};

#define GUARD_PATCHES_MAX 256                        /* in place at a time, of all mappings */
#define GUARD_PATCHED_MAX_BYTES (UINT64_C(16) << 20) /* and their bytes */
#define GUARD_PATCH_MAX_BYTES (UINT64_C(2) << 20) /* of one; the first ones of a mapping are single pages */
#define GUARD_PATCHES_EACH_SIZE 64                /* of a mapping, before they double in size */
/* The kernel bounds a process's mappings (vm.max_map_count), and each patch splits one. With so many patches
 * of all, a mapping that has more than the least is given up as a whole. */
#define GUARD_SPLITS_MAX 4096
#define GUARD_SPLITS_LEAST 16

/*
 * Opens the userfaultfd and installs the handlers, once in a process; later calls change nothing. Returns
 * whether there is a userfaultfd (Linux 5.11, CONFIG_USERFAULTFD, and no seccomp filter against it): if not,
 * that and what is lost is logged, once. Before there are other threads.
 */
bool guard_start(void);

/*
 * Guards a mapping of a memfd, which must be MAP_SHARED, from now on. `guard` stays where it is until
 * guard_remove. Without a userfaultfd holes are not noticed: see guard_start. Calls guard_start.
 * NO_MEMORY; SYSTEM.
 */
enum status guard_add(struct guard *guard, void *base, uint64_t size_bytes,
                      struct error *error) COMM_MUST_USE;
/* Before the mapping is unmapped, and after its last use. */
void guard_remove(struct guard *guard);

extern _Atomic uint64_t guard_holes;

/* Any thread. How often a thread met a hole, in all mappings: unchanged means that none broke meanwhile. */
static inline uint64_t guard_hole_count(void)
{
    return atomic_load(&guard_holes);
}

/* Any thread. *offset_bytes: of the first missing page. */
static inline bool guard_is_broken(const struct guard *guard, uint64_t *offset_bytes)
{
    uint64_t broken = atomic_load(&guard->broken);
    *offset_bytes = broken == 0 ? 0 : broken - 1;
    return broken != 0;
}

#endif
