#ifndef DAEMON_DEV_QUOTA_H
#define DAEMON_DEV_QUOTA_H

#include <stdint.h>

#include "daemon/base/error.h"

/*
 * What the memory of all clients together may take of commd. It costs a client next to nothing to register
 * sparse files, or to reserve a GPU's addresses, and what commd has of these is bounded: addresses (a process
 * has 2^47 bytes of them), mappings (vm.max_map_count), and the driver's memory for each part of a GPU's
 * virtual memory. Without them commd could not go on, for anybody.
 *
 * Memory counts as long as commd has it mapped, also when its client has withdrawn it, or is gone, and
 * operations still use it.
 *
 * A user may have as much as is then left for all others: half of everything who is alone, two a third each,
 * and so on, so that there is some for whoever comes next. Beyond: LIMIT, with what is left and what to do.
 */
struct dev_quota;

#define DEV_QUOTA_ADDRESSES_MAX_BYTES (UINT64_C(1) << 46)
/* Or three quarters of vm.max_map_count, which is 65,530 where nobody changed it, if that is more. */
#define DEV_QUOTA_MEMORIES_MAX 49152u
#define DEV_QUOTA_CHUNKS_MAX (1u << 18)

enum dev_quota_kind { DEV_QUOTA_ADDRESSES /* bytes */, DEV_QUOTA_MEMORIES, DEV_QUOTA_CHUNKS };
#define DEV_QUOTA_KINDS 3

/* max: of each kind; null: the above. NO_MEMORY. One thread uses it, and all memory that is charged to it. */
enum status dev_quota_new(const uint64_t max[DEV_QUOTA_KINDS], struct dev_quota **out,
                          struct error *error) COMM_MUST_USE;
/* The owner's part: it goes with the last memory that is charged to it. Null is accepted. */
void dev_quota_free(struct dev_quota *quota);

/*
 * What a user has been given; made with the first, gone when all is given back. For memory.c: others charge
 * whole memories (dev_memory_charge). LIMIT, NO_MEMORY.
 */
struct dev_quota_user;
enum status dev_quota_take(struct dev_quota *quota, uint32_t uid, const uint64_t amounts[DEV_QUOTA_KINDS],
                           struct dev_quota_user **out, struct error *error) COMM_MUST_USE;
enum status dev_quota_take_more(struct dev_quota_user *user, const uint64_t amounts[DEV_QUOTA_KINDS],
                                struct error *error) COMM_MUST_USE;
/* The user, and the quota, may be gone afterwards. */
void dev_quota_give(struct dev_quota_user *user, const uint64_t amounts[DEV_QUOTA_KINDS]);

#endif
