#ifndef DAEMON_HOST_MEMORY_H
#define DAEMON_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/budget.h"

/*
 * A client's memory as the daemon sees it: an imported memfd, or memory of a GPU, counted by reference, so
 * that nothing that an operation still uses is unmapped when its client leaves.
 */
struct memory;

#define MEMORY_OF_HOST (-1) /* in place of a GPU's index */
#define MEMORY_MAX_BYTES (1ull << 44)

/*
 * Maps a memfd that a client passed. It must be sealed against shrinking (F_SEAL_SHRINK), or a client could
 * truncate it under us, and it must not be of huge pages. It must be open, and not sealed, for writing.
 * Anything else is refused by name. size_bytes: what the client says; must not be 0 or exceed the file. The
 * fd stays the caller's and may be closed afterwards. The caller gets one reference.
 *
 * Its pages are the client's to make: the first use of one that is not there breaks the memory
 * (memory_check), and nothing is charged to commd (guard.h). Without a userfaultfd that cannot be seen
 * later: then a file with holes is refused here. The memory is left out of core dumps.
 *
 * INVALID_ARGUMENT; LIMIT beyond MEMORY_MAX_BYTES; NO_MEMORY; SYSTEM.
 */
enum status memory_open_memfd(int fd, uint64_t size_bytes, struct memory **out,
                              struct error *error) COMM_MUST_USE;

/* Whose thread unmaps it, where it is a memfd; null, and without this: whoever gives the last reference. What
 * it is charged stays charged until then. The unmapper outlives it. */
struct unmapper;
void memory_set_unmapper(struct memory *memory, struct unmapper *unmapper);

/* Whose it is, for messages: a process, and its number for this memory. */
void memory_set_owner(struct memory *memory, pid_t process, uint32_t id);

/*
 * Any thread, with a reference. INVALID_ARGUMENT when somebody has touched a page that the client never made,
 * or has taken out again: what was read there was zero, what was written there is lost, and the memory is of
 * no use any more. The text names process, memory and offset. guard_hole_count says whether any can have
 * broken.
 */
enum status memory_check(const struct memory *memory, struct error *error) COMM_MUST_USE;

/* Whose an allocation is, and where it is there. */
struct memory_origin {
    pid_t process; /* 0: not known */
    uid_t uid;
    uint64_t address; /* 0: not known */
};

/*
 * Whether it was opened by a handle and lies, in the process it is of, in a block of the driver's that an
 * allocation of that place and size has a part in.
 */
bool memory_was_at(const struct memory *memory, const struct memory_origin *origin, uint64_t size_bytes);
/* Whether anybody but one has a reference. */
bool memory_is_used(const struct memory *memory);

/*
 * Charges what the memory takes of commd (addresses, a mapping) to an account, as long as it is mapped, and
 * each part of it that gpu_memory_map adds. Once, before the first part. LIMIT: nothing is charged, and the
 * memory is to be let go of.
 */
enum status memory_charge(struct memory *memory, struct budget_account *account,
                          struct error *error) COMM_MUST_USE;

/* Wraps memory of this process, for simulations and tests: it must outlive the last reference. */
enum status memory_wrap(void *base, uint64_t size_bytes, struct memory **out,
                        struct error *error) COMM_MUST_USE;

/* One thread at a time a memory (the daemon's main loop). unref of null is accepted; the last one unmaps. */
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory);

/* The GPU's index, or MEMORY_OF_HOST. */
int memory_gpu(const struct memory *memory);
/* That can be used; and that were reserved, of virtual memory more where it may grow. */
uint64_t memory_size_bytes(const struct memory *memory);
uint64_t memory_reserved_bytes(const struct memory *memory);
/* Whether it was opened by a legacy IPC handle. */
bool memory_by_ipc(const struct memory *memory);

/* Address of a range, which is the GPU's where the memory is, checked: null when [offset, offset + size) is
 * not within the memory. */
void *memory_range(const struct memory *memory, uint64_t offset_bytes, uint64_t size_bytes);

#endif
