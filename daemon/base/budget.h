#ifndef DAEMON_BASE_BUDGET_H
#define DAEMON_BASE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/base/turns.h"

/*
 * What users make commd hold. Everything of which commd has a bounded amount is charged to a budget account
 * while it is held. An account belongs to one user, or to one control group of that user. So pods and jobs
 * that share a uid have budgets of their own.
 *
 * How much each account may hold. Each kind has a total, `all`; one user may hold `ceiling` of it. An eighth
 * of `all` is set aside in BUDGET_PLACES equal parts, one guaranteed minimum per place. The rest is the
 * common pool.
 * - Each user's first account gets a place, as long as fewer than BUDGET_USER_PLACES users have one. Further
 *   accounts of a user share the other places. An account with a place can always hold its minimum, whatever
 *   other accounts hold.
 * - Above its minimum an account takes from the common pool. It must leave free there at least one part in
 *   BUDGET_POOL_SHARE of what it has taken. If only one user holds anything, that user gets 86 % of `all`.
 * - The ceiling counts all accounts of a user, but takes nobody's minimum away.
 * So the sum never exceeds `all`, and a new user always finds something free. A charge above these limits
 * fails with LIMIT; its text names the limit, its value, the use, and what to do.
 *
 * Every call takes constant time. Any thread may charge, release, and take or drop references. All other
 * calls belong to the owner's thread.
 */
struct budget;
struct budget_account;

#define BUDGET_PLACES 32u
#define BUDGET_USER_PLACES 16u
#define BUDGET_MINIMUM_PARTS (UINT64_C(8) * BUDGET_PLACES) /* the minimum is `all` divided by this */
#define BUDGET_POOL_SHARE 64u
#define BUDGET_ADDRESSES_MAX_BYTES (UINT64_C(1) << 46) /* of the 2^47 that a process has */
/* Or three quarters of vm.max_map_count if that is more; its default is 65,530. */
#define BUDGET_MEMORIES_MAX 49152u
#define BUDGET_SESSIONS_MAX 4096
#define BUDGET_DESCRIPTORS_MAX 49152u /* or three quarters of RLIMIT_NOFILE, if that is less */

#define BUDGET_BOUNCES_MIN_BYTES (UINT64_C(256) << 20) /* or a quarter of the machine's memory, if more */

/* NAME, key in commd.conf, words for people, `all`, and a user's ceiling if commd.conf sets none. */
#define BUDGET_KIND_LIST(X)                                                                                  \
    X(SESSIONS, "sessions", "sessions", BUDGET_SESSIONS_MAX, BUDGET_SESSIONS_MAX)                            \
    X(GREETINGS, "greetings", "connections that have not said Hello", 2048, 1024)                            \
    X(COMMUNICATORS, "communicators", "ranks of communicators", 8192, 8192)                                  \
    X(COMMUNICATOR_BYTES, "communicator_bytes", "bytes for communicators", 384u << 20, 256u << 20)           \
    X(OPERATIONS, "operation_bytes", "bytes for operations, messages and records", 192u << 20, 128u << 20)   \
    X(QUEUED, "queued_bytes", "bytes of replies that wait to be read", 64u << 20, 32u << 20)                 \
    X(RINGS, "ring_bytes", "bytes of rings that are shared with clients", 512u << 20, 512u << 20)            \
    X(ADDRESSES, "address_bytes", "bytes of addresses", BUDGET_ADDRESSES_MAX_BYTES,                          \
      BUDGET_ADDRESSES_MAX_BYTES)                                                                            \
    X(MEMORIES, "memories", "registered memories", BUDGET_MEMORIES_MAX, UINT64_MAX)                          \
    X(CHUNKS, "gpu_chunks", "parts of virtual memory on GPUs", 1u << 18, 1u << 18)                           \
    X(EARLY, "early_bytes", "bytes that were sent for calls that are not posted", 384u << 20, 128u << 20)    \
    X(LANES, "lane_bytes", "bytes that operations and messages work in", 256u << 20, 96u << 20)              \
    X(BOUNCES, "bounce_bytes", "bytes of bounce buffers of GPUs", BUDGET_BOUNCES_MIN_BYTES, UINT64_MAX)      \
    X(GPU_WAITS, "gpu_waits", "operations that GPUs wait for in advance", 64, 16)                            \
    X(STORES, "store_bytes", "bytes of stores", 256u << 20, 128u << 20)                                      \
    X(DESCRIPTORS, "descriptors", "file descriptors", BUDGET_DESCRIPTORS_MAX, BUDGET_DESCRIPTORS_MAX)

enum budget_kind {
#define BUDGET_KIND_NAME(name, key, text, all, user) BUDGET_##name,
    BUDGET_KIND_LIST(BUDGET_KIND_NAME)
#undef BUDGET_KIND_NAME
        BUDGET_KINDS
};

/* The key of one row of the list above. */
const char *budget_kind_key(enum budget_kind kind);

#define BUDGET_GROUP_MAX_BYTES 255 /* of a control group's path; the hash tells longer paths apart */

/* all: the total of each kind; null takes the totals of the list above. NO_MEMORY. */
enum status budget_new(const uint64_t all[BUDGET_KINDS], struct budget **out,
                       struct error *error) COMM_MUST_USE;
/* Ends the owner's use; memory is freed when the last account is. Null is accepted. */
void budget_free(struct budget *budget);

/* Replaces the ceiling of a kind for every user; 0 restores the list's. A user above the new ceiling keeps
 * what it holds. Takes time for each account. */
void budget_set_ceiling(struct budget *budget, enum budget_kind kind, uint64_t ceiling);

/*
 * Returns a reference to the account of a user. group is the path of its control group, "" or null if that is
 * not known. The account lasts while references exist or anything is charged. NO_MEMORY.
 */
enum status budget_open(struct budget *budget, uint32_t uid, const char *group, struct budget_account **out,
                        struct error *error) COMM_MUST_USE;
struct budget_account *budget_ref(struct budget_account *account);
/* Null is accepted. */
void budget_close(struct budget_account *account);

/* Fails with LIMIT, and then charges nothing. A null account is charged nothing and refused nothing. */
enum status budget_charge(struct budget_account *account, enum budget_kind kind, uint64_t amount,
                          struct error *error) COMM_MUST_USE;
/* Whether the account has charged at least half of its user's ceiling: callers that can wait then do. False
 * for a null account. */
bool budget_is_scarce(const struct budget_account *account, enum budget_kind kind);
/* Releases at most what was charged. */
void budget_release(struct budget_account *account, enum budget_kind kind, uint64_t amount);

/* Whether a line about a user may be logged now: see user_log_pass. The user need not hold anything. */
bool budget_may_log(struct budget *budget, uint32_t uid, uint64_t now_ns, uint64_t *suppressed);

/* Charges processor time that was spent for the account outside its turns of the loop. Does nothing for a
 * null account. */
void budget_spend(struct budget_account *account, uint64_t spent_ns);

/* The line whose turns of the loop are charged to the account. Valid while the account is. */
struct turn_line *budget_line(struct budget_account *account);

/* All accounts together. `refused` counts refused charges since the start. */
struct budget_totals {
    uint64_t used[BUDGET_KINDS];
    uint64_t all[BUDGET_KINDS];
    uint64_t refused[BUDGET_KINDS];
    uint64_t users;
};
/* Takes time for each user. */
void budget_totals(struct budget *budget, struct budget_totals *out);

/* One account, as shown to people. Texts are valid while the account is. */
struct budget_info {
    uint32_t uid;
    const char *group; /* "" if not known */
    bool shares_uid;   /* the user has other accounts */
    uint64_t used[BUDGET_KINDS];
    uint64_t ceiling[BUDGET_KINDS];
    uint64_t spent_ns; /* of processor time, since the account was made */
    uint64_t refused;  /* charges refused, since the account was made */
};
void budget_account_info(const struct budget_account *account, struct budget_info *out);
/* Visits accounts by number, in the order in which they were made. Starts after number `after`; 0 starts at
 * the first. The visitor returns false to stop. The budget is locked during the visit. */
typedef bool budget_visit(void *context, uint64_t number, const struct budget_info *info);
void budget_visit_accounts(struct budget *budget, uint64_t after, budget_visit *visit, void *context);

#endif
