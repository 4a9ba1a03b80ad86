#ifndef DAEMON_HOST_MEMORY_H
#define DAEMON_HOST_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "daemon/base/budget.h"

/*
 * A client's memory as the daemon sees it: an imported memfd, or GPU memory. It is reference-counted, so
 * memory that an operation still uses is not unmapped when its client disconnects.
 */
struct memory;

#define MEMORY_OF_HOST (-1) /* in place of a GPU's index */
#define MEMORY_MAX_BYTES (1ull << 44)

/*
 * Maps a memfd that a client passed. It must be sealed against shrinking (F_SEAL_SHRINK), so that no client
 * can truncate it while commd uses it. It must be open for writing, and not sealed against it. It may be of
 * huge pages (MFD_HUGETLB), unless there is no userfaultfd that watches those. Anything else is refused, with
 * the reason in the text. size_bytes: as the client states it; it must not be 0 or exceed the file. The
 * caller keeps the fd and may close it afterwards. The caller gets one reference.
 *
 * The client must create the pages: the first use of a missing page breaks the memory (memory_check), and
 * nothing is charged to commd (guard.h). Without a userfaultfd, commd cannot notice that later: then it
 * refuses a file with holes here. The memory is left out of core dumps.
 *
 * Errors: INVALID_ARGUMENT; LIMIT beyond MEMORY_MAX_BYTES; NO_MEMORY; SYSTEM.
 */
enum status memory_open_memfd(int fd, uint64_t size_bytes, struct memory **out,
                              struct error *error) COMM_MUST_USE;

/* Sets the thread that unmaps a memfd. If null, or without this call, the thread that drops the last
 * reference unmaps it. The memory's charges stay until then. The unmapper must outlive the memory. */
struct unmapper;
void memory_set_unmapper(struct memory *memory, struct unmapper *unmapper);

/* Sets the owner, for messages: a process, and the process's number for this memory. */
void memory_set_owner(struct memory *memory, pid_t process, uint32_t id);

/*
 * Any thread, with a reference. Returns INVALID_ARGUMENT if a thread touched a page that the client never
 * created, or that it removed. What was read there was zero, what was written there is lost, and the memory
 * is unusable from then on. The text names process, memory and offset. guard_hole_count tells whether any
 * memory can have broken.
 */
enum status memory_check(const struct memory *memory, struct error *error) COMM_MUST_USE;

/* The owner of an allocation, and its address in the owner's process. */
struct memory_origin {
    pid_t process; /* 0: not known */
    uid_t uid;
    uint64_t address; /* 0: not known */
};

/*
 * Whether the memory was opened by a handle and, in its owner's process, shares a block of the driver with an
 * allocation of that address and size.
 */
bool memory_was_at(const struct memory *memory, const struct memory_origin *origin, uint64_t size_bytes);
/* Whether there are more references than one. */
bool memory_is_used(const struct memory *memory);

/*
 * Charges what the memory takes of commd (addresses, a mapping) to an account as long as it is mapped. Parts
 * that gpu_memory_map adds are charged, too. Call it once, before the first part. On LIMIT nothing is
 * charged, and the caller must release the memory.
 */
enum status memory_charge(struct memory *memory, struct budget_account *account,
                          struct error *error) COMM_MUST_USE;

/* Wraps memory of this process, for simulations and tests: it must outlive the last reference. */
enum status memory_wrap(void *base, uint64_t size_bytes, struct memory **out,
                        struct error *error) COMM_MUST_USE;

/* Only one thread at a time may use a memory (the daemon's main thread). unref accepts null; the last unref
 * unmaps. */
struct memory *memory_ref(struct memory *memory);
void memory_unref(struct memory *memory);

/* Calls `ended` when the memory is closed: in the last memory_unref, or later, because another thread closes
 * it. Memory that NCCL has registered counts as closed earlier. Once for each memory. */
void memory_when_ended(struct memory *memory, void (*ended)(void *context), void *context);

/* The GPU's index, or MEMORY_OF_HOST. */
int memory_gpu(const struct memory *memory);
/* Usable bytes; and reserved bytes, which are more for virtual memory that may grow. */
uint64_t memory_size_bytes(const struct memory *memory);
uint64_t memory_reserved_bytes(const struct memory *memory);
/* Whether it was opened by a legacy IPC handle. */
bool memory_by_ipc(const struct memory *memory);

/* Address of a range: a GPU address if the memory is on a GPU. Returns null if [offset, offset + size) is not
 * within the memory. */
void *memory_range(const struct memory *memory, uint64_t offset_bytes, uint64_t size_bytes);

#endif
