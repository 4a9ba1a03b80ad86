#include "daemon/dev/quota.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>

struct dev_quota_user {
    uint32_t uid;
    struct dev_quota *quota;
    uint64_t taken[DEV_QUOTA_KINDS];
    UT_hash_handle hh;
};

struct dev_quota {
    bool owned;
    uint64_t max[DEV_QUOTA_KINDS];
    uint64_t taken[DEV_QUOTA_KINDS]; /* by all users */
    struct dev_quota_user *users;
};

static const char *const kind_texts[DEV_QUOTA_KINDS] = {"bytes of addresses", "registered memories",
                                                        "parts of virtual memory on GPUs"};

static uint64_t memories_max(void)
{
    unsigned long long mappings = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "re");
    if (file != NULL) {
        char line[32];
        mappings = fgets(line, sizeof line, file) != NULL ? strtoull(line, NULL, 10) : 0;
        (void)fclose(file);
    }
    uint64_t most = mappings / 4 * 3; /* commd itself needs some, too */
    return most > DEV_QUOTA_MEMORIES_MAX ? most : DEV_QUOTA_MEMORIES_MAX;
}

enum status dev_quota_new(const uint64_t max[DEV_QUOTA_KINDS], struct dev_quota **out, struct error *error)
{
    struct dev_quota *quota = calloc(1, sizeof *quota);
    if (quota == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the count of clients' memory");
    }
    quota->owned = true;
    if (max != NULL) {
        memcpy(quota->max, max, sizeof quota->max);
    } else {
        quota->max[DEV_QUOTA_ADDRESSES] = DEV_QUOTA_ADDRESSES_MAX_BYTES;
        quota->max[DEV_QUOTA_MEMORIES] = memories_max();
        quota->max[DEV_QUOTA_CHUNKS] = DEV_QUOTA_CHUNKS_MAX;
    }
    *out = quota;
    return STATUS_OK;
}

static void free_if_unused(struct dev_quota *quota)
{
    if (!quota->owned && quota->users == NULL) {
        free(quota);
    }
}

void dev_quota_free(struct dev_quota *quota)
{
    if (quota != NULL) {
        quota->owned = false;
        free_if_unused(quota);
    }
}

/* user: null for one that has nothing yet. */
static enum status check(const struct dev_quota *quota, uint32_t uid, const struct dev_quota_user *user,
                         const uint64_t amounts[DEV_QUOTA_KINDS], struct error *error)
{
    for (int kind = 0; kind < DEV_QUOTA_KINDS; kind++) {
        uint64_t has = user != NULL ? user->taken[kind] : 0;
        uint64_t left = quota->max[kind] - quota->taken[kind];
        if (amounts[kind] == 0) {
            continue;
        }
        /* What the user then has is at most what is then left. */
        if (amounts[kind] > left || has + amounts[kind] > left - amounts[kind]) {
            return error_set(
                error, STATUS_LIMIT,
                "%llu %s for user %u, who has %llu: a user may have as many as that leaves for others, and "
                "of the %llu of this commd %llu are left: free memory, or end processes that no longer "
                "need theirs (commctl clients)",
                (unsigned long long)amounts[kind], kind_texts[kind], uid, (unsigned long long)has,
                (unsigned long long)quota->max[kind], (unsigned long long)left);
        }
    }
    return STATUS_OK;
}

static void count(struct dev_quota_user *user, const uint64_t amounts[DEV_QUOTA_KINDS])
{
    for (int kind = 0; kind < DEV_QUOTA_KINDS; kind++) {
        user->taken[kind] += amounts[kind];
        user->quota->taken[kind] += amounts[kind];
    }
}

enum status dev_quota_take(struct dev_quota *quota, uint32_t uid, const uint64_t amounts[DEV_QUOTA_KINDS],
                           struct dev_quota_user **out, struct error *error)
{
    struct dev_quota_user *user;
    HASH_FIND(hh, quota->users, &uid, sizeof uid, user);
    enum status status = check(quota, uid, user, amounts, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (user == NULL) {
        user = calloc(1, sizeof *user);
        if (user == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory for the count of a user's memory");
        }
        user->uid = uid;
        user->quota = quota;
        HASH_ADD(hh, quota->users, uid, sizeof user->uid, user);
    }
    count(user, amounts);
    *out = user;
    return STATUS_OK;
}

enum status dev_quota_take_more(struct dev_quota_user *user, const uint64_t amounts[DEV_QUOTA_KINDS],
                                struct error *error)
{
    enum status status = check(user->quota, user->uid, user, amounts, error);
    if (status == STATUS_OK) {
        count(user, amounts);
    }
    return status;
}

void dev_quota_give(struct dev_quota_user *user, const uint64_t amounts[DEV_QUOTA_KINDS])
{
    struct dev_quota *quota = user->quota;
    bool any = false;
    for (int kind = 0; kind < DEV_QUOTA_KINDS; kind++) {
        user->taken[kind] -= amounts[kind];
        quota->taken[kind] -= amounts[kind];
        any |= user->taken[kind] > 0;
    }
    if (!any) {
        HASH_DEL(quota->users, user);
        free(user);
        free_if_unused(quota);
    }
}
