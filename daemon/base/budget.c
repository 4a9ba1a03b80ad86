#include "daemon/base/budget.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/hash.h"
#include "daemon/base/table.h"
#include "daemon/base/user_log.h"

struct budget_user {
    uint32_t uid;
    uint64_t used[BUDGET_KINDS];
    struct budget_account *accounts; /* by group */
    UT_hash_handle hh;
};

struct budget_account {
    struct budget_account *prev, *next; /* in the budget's list, oldest first */
    struct budget *budget;
    struct budget_user *user;
    uint64_t number;
    uint64_t group_hash;
    char group[BUDGET_GROUP_MAX_BYTES + 1];
    bool is_first;  /* its user's first account */
    bool has_place; /* a minimum is set aside for it */
    uint32_t references;
    uint64_t used[BUDGET_KINDS];
    uint64_t held; /* the sum of used[], to test whether it is zero: modulo 2^64, of amounts below 2^48 */
    struct turn_line line;
    uint64_t spent_ns; /* in addition to the line's */
    uint64_t refused;
    UT_hash_handle hh;
};

struct budget {
    pthread_mutex_t lock; /* protects everything except logs and lines */
    bool owned;
    uint64_t all[BUDGET_KINDS];
    uint64_t minimum[BUDGET_KINDS];
    uint64_t pool[BUDGET_KINDS];      /* the size of the common pool */
    uint64_t pool_used[BUDGET_KINDS]; /* used by all accounts above their minimums */
    uint64_t ceiling[BUDGET_KINDS];
    uint64_t refused[BUDGET_KINDS];
    uint32_t places_of_users, places_of_others; /* places that are taken */
    uint64_t last_number;
    struct budget_user *users;
    struct budget_account *accounts;
    struct user_log logs;
};

static const struct {
    const char *key, *text;
    uint64_t all, user;
} kinds[BUDGET_KINDS] = {
#define BUDGET_KIND_ROW(name, key, text, all, user) {key, text, all, user},
    BUDGET_KIND_LIST(BUDGET_KIND_ROW)
#undef BUDGET_KIND_ROW
};

const char *budget_kind_key(enum budget_kind kind)
{
    return kinds[kind].key;
}

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
    return most > BUDGET_MEMORIES_MAX ? most : BUDGET_MEMORIES_MAX;
}

static uint64_t descriptors_max(void)
{
    struct rlimit limit = {.rlim_cur = RLIM_INFINITY};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    uint64_t most = limit.rlim_cur / 4 * 3; /* commd itself needs some, too */
    return most < BUDGET_DESCRIPTORS_MAX ? most : BUDGET_DESCRIPTORS_MAX;
}

static uint64_t bounces_max(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    uint64_t most = pages > 0 && page_bytes > 0 ? (uint64_t)pages * (uint64_t)page_bytes / 4 : 0;
    return most > BUDGET_BOUNCES_MIN_BYTES ? most : BUDGET_BOUNCES_MIN_BYTES;
}

static uint64_t kind_max(enum budget_kind kind)
{
    return kind == BUDGET_MEMORIES      ? memories_max()
           : kind == BUDGET_BOUNCES     ? bounces_max()
           : kind == BUDGET_DESCRIPTORS ? descriptors_max()
                                        : kinds[kind].all;
}

enum status budget_new(const uint64_t all[BUDGET_KINDS], struct budget **out, struct error *error)
{
    struct budget *budget = calloc(1, sizeof *budget);
    if (budget == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for users' budgets");
    }
    (void)pthread_mutex_init(&budget->lock, NULL); /* the default one: it cannot fail */
    budget->owned = true;
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        uint64_t most = all != NULL ? all[kind] : kind_max((enum budget_kind)kind);
        budget->all[kind] = most;
        budget->minimum[kind] = most / BUDGET_MINIMUM_PARTS;
        budget->pool[kind] = most - budget->minimum[kind] * BUDGET_PLACES;
        budget_set_ceiling(budget, (enum budget_kind)kind, all != NULL ? most : 0);
    }
    *out = budget;
    return STATUS_OK;
}

static void lock(struct budget *budget)
{
    (void)pthread_mutex_lock(&budget->lock); /* fails only if used wrongly */
}

/* The budget may be gone afterwards. */
static void unlock(struct budget *budget)
{
    bool unused = !budget->owned && budget->accounts == NULL;
    (void)pthread_mutex_unlock(&budget->lock);
    if (unused) {
        (void)pthread_mutex_destroy(&budget->lock);
        free(budget);
    }
}

void budget_free(struct budget *budget)
{
    if (budget != NULL) {
        lock(budget);
        budget->owned = false;
        unlock(budget);
    }
}

void budget_set_ceiling(struct budget *budget, enum budget_kind kind, uint64_t ceiling)
{
    uint64_t wanted = ceiling != 0 ? ceiling : kinds[kind].user;
    lock(budget);
    budget->ceiling[kind] = wanted < budget->all[kind] ? wanted : budget->all[kind];
    unlock(budget);
}

/* --- Accounts --- */

/* How much an account uses of the common pool. */
static uint64_t pool_part(const struct budget_account *account, enum budget_kind kind)
{
    uint64_t minimum = account->has_place ? account->budget->minimum[kind] : 0;
    return account->used[kind] > minimum ? account->used[kind] - minimum : 0;
}

/* Gives the account a place if one is free: what it holds then counts against its minimum first. */
static void place_take(struct budget_account *account)
{
    struct budget *budget = account->budget;
    uint32_t *taken = account->is_first ? &budget->places_of_users : &budget->places_of_others;
    uint32_t places = account->is_first ? BUDGET_USER_PLACES : BUDGET_PLACES - BUDGET_USER_PLACES;
    if (account->has_place || *taken >= places) {
        return;
    }
    *taken += 1;
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        budget->pool_used[kind] -= pool_part(account, (enum budget_kind)kind);
    }
    account->has_place = true;
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        budget->pool_used[kind] += pool_part(account, (enum budget_kind)kind);
    }
}

static void account_free_if_unused(struct budget_account *account)
{
    struct budget *budget = account->budget;
    struct budget_user *user = account->user;
    if (account->references > 0 || account->held > 0) {
        return;
    }
    if (account->has_place) {
        *(account->is_first ? &budget->places_of_users : &budget->places_of_others) -= 1;
    }
    HASH_DEL(user->accounts, account);
    DL_DELETE(budget->accounts, account);
    if (user->accounts == NULL) {
        HASH_DEL(budget->users, user);
        free(user);
    }
    free(account);
}

static struct budget_user *user_get(struct budget *budget, uint32_t uid)
{
    struct budget_user *user;
    HASH_FIND(hh, budget->users, &uid, sizeof uid, user);
    if (user == NULL) {
        user = calloc(1, sizeof *user);
        if (user != NULL) {
            user->uid = uid;
            HASH_ADD(hh, budget->users, uid, sizeof user->uid, user);
        }
        if (user != NULL && !table_has(user, hh)) {
            free(user);
            user = NULL;
        }
    }
    return user;
}

static struct budget_account *account_new(struct budget *budget, struct budget_user *user, const char *group,
                                          uint64_t group_hash)
{
    struct budget_account *account = calloc(1, sizeof *account);
    if (account == NULL) {
        return NULL;
    }
    account->budget = budget;
    account->user = user;
    account->number = ++budget->last_number;
    account->group_hash = group_hash;
    (void)snprintf(account->group, sizeof account->group, "%s", group);
    account->is_first = user->accounts == NULL;
    HASH_ADD(hh, user->accounts, group_hash, sizeof account->group_hash, account);
    if (!table_has(account, hh)) {
        free(account);
        return NULL;
    }
    DL_APPEND(budget->accounts, account);
    place_take(account);
    return account;
}

static enum status open_account(struct budget *budget, uint32_t uid, const char *group,
                                struct budget_account **out, struct error *error)
{
    const char *path = group != NULL ? group : "";
    uint64_t group_hash = hash_bytes(0, path, strlen(path));
    struct budget_account *account = NULL;
    struct budget_user *user = user_get(budget, uid);
    if (user != NULL) {
        HASH_FIND(hh, user->accounts, &group_hash, sizeof group_hash, account);
        account = account != NULL ? account : account_new(budget, user, path, group_hash);
    }
    if (account == NULL) {
        if (user != NULL && user->accounts == NULL) {
            HASH_DEL(budget->users, user);
            free(user);
        }
        return error_set(error, STATUS_NO_MEMORY, "no memory for the budget of user %u", uid);
    }
    account->references++;
    *out = account;
    return STATUS_OK;
}

enum status budget_open(struct budget *budget, uint32_t uid, const char *group, struct budget_account **out,
                        struct error *error)
{
    lock(budget);
    enum status status = open_account(budget, uid, group, out, error);
    unlock(budget);
    return status;
}

struct budget_account *budget_ref(struct budget_account *account)
{
    struct budget *budget = account->budget;
    lock(budget);
    account->references++;
    unlock(budget);
    return account;
}

void budget_close(struct budget_account *account)
{
    if (account != NULL) {
        struct budget *budget = account->budget;
        lock(budget);
        account->references--;
        account_free_if_unused(account);
        unlock(budget);
    }
}

/* --- Charges --- */

static enum status refuse_ceiling(struct budget_account *account, enum budget_kind kind, uint64_t amount,
                                  struct error *error)
{
    account->refused++;
    account->budget->refused[kind]++;
    return error_set(error, STATUS_LIMIT,
                     "%llu more %s: user %u holds %llu, and the limit for one user is %llu (user_limit_%s in "
                     "commd.conf). End what is not needed; commctl users shows what is held",
                     (unsigned long long)amount, kinds[kind].text, account->user->uid,
                     (unsigned long long)account->user->used[kind],
                     (unsigned long long)account->budget->ceiling[kind], kinds[kind].key);
}

static enum status refuse_pool(struct budget_account *account, enum budget_kind kind, uint64_t amount,
                               struct error *error)
{
    const struct budget *budget = account->budget;
    account->refused++;
    account->budget->refused[kind]++;
    return error_set(error, STATUS_LIMIT,
                     "%llu more %s: user %u holds %llu%s, all users together have %llu of this commd's %llu, "
                     "and the rest is kept for others (%s). End what is not needed; commctl users shows what "
                     "is held",
                     (unsigned long long)amount, kinds[kind].text, account->user->uid,
                     (unsigned long long)account->used[kind],
                     account->user->used[kind] != account->used[kind] ? " in this control group" : "",
                     (unsigned long long)(budget->pool_used[kind]), (unsigned long long)budget->all[kind],
                     kinds[kind].key);
}

static enum status charge(struct budget_account *account, enum budget_kind kind, uint64_t amount,
                          struct error *error)
{
    struct budget *budget = account->budget;
    place_take(account);
    uint64_t minimum = account->has_place ? budget->minimum[kind] : 0;
    uint64_t had = pool_part(account, kind);
    if (amount > budget->all[kind]) {
        return refuse_ceiling(account, kind, amount, error);
    }
    uint64_t will_use = account->used[kind] + amount; /* both are at most `all`, which is below 2^63 */
    if ((will_use > minimum || will_use > budget->ceiling[kind]) &&
        account->user->used[kind] + amount > budget->ceiling[kind]) {
        return refuse_ceiling(account, kind, amount, error);
    }
    if (will_use > minimum) {
        uint64_t has = will_use - minimum;
        uint64_t others = budget->pool_used[kind] - had;
        if (others > budget->pool[kind] || has > budget->pool[kind] - others ||
            budget->pool[kind] - others - has < has / BUDGET_POOL_SHARE) {
            return refuse_pool(account, kind, amount, error);
        }
    }
    account->used[kind] = will_use;
    account->user->used[kind] += amount;
    account->held += amount;
    budget->pool_used[kind] += pool_part(account, kind) - had;
    return STATUS_OK;
}

enum status budget_charge(struct budget_account *account, enum budget_kind kind, uint64_t amount,
                          struct error *error)
{
    if (account == NULL || amount == 0) {
        return STATUS_OK;
    }
    struct budget *budget = account->budget;
    lock(budget);
    enum status status = charge(account, kind, amount, error);
    unlock(budget);
    return status;
}

void budget_release(struct budget_account *account, enum budget_kind kind, uint64_t amount)
{
    if (account == NULL || amount == 0) {
        return;
    }
    struct budget *budget = account->budget;
    lock(budget);
    assert(amount <= account->used[kind]);
    uint64_t had = pool_part(account, kind);
    account->used[kind] -= amount;
    account->user->used[kind] -= amount;
    account->held -= amount;
    budget->pool_used[kind] -= had - pool_part(account, kind);
    account_free_if_unused(account);
    unlock(budget);
}

bool budget_may_log(struct budget *budget, uint32_t uid, uint64_t now_ns, uint64_t *suppressed)
{
    return user_log_pass(&budget->logs, uid, now_ns, suppressed);
}

bool budget_is_scarce(const struct budget_account *account, enum budget_kind kind)
{
    if (account == NULL) {
        return false;
    }
    lock(account->budget);
    bool scarce = account->used[kind] >= account->budget->ceiling[kind] / 2;
    unlock(account->budget);
    return scarce;
}

void budget_spend(struct budget_account *account, uint64_t spent_ns)
{
    if (account != NULL) {
        lock(account->budget);
        account->spent_ns += spent_ns;
        unlock(account->budget);
    }
}

struct turn_line *budget_line(struct budget_account *account)
{
    return &account->line;
}

/* --- For people --- */

static void describe(const struct budget_account *account, struct budget_info *out)
{
    *out = (struct budget_info){
        .uid = account->user->uid,
        .group = account->group,
        .shares_uid = HASH_COUNT(account->user->accounts) > 1,
        .spent_ns = account->line.spent_ns + account->spent_ns,
        .refused = account->refused,
    };
    memcpy(out->used, account->used, sizeof out->used);
    memcpy(out->ceiling, account->budget->ceiling, sizeof out->ceiling);
}

void budget_totals(struct budget *budget, struct budget_totals *out)
{
    const struct budget_user *user;
    *out = (struct budget_totals){.users = 0};
    lock(budget);
    memcpy(out->all, budget->all, sizeof out->all);
    memcpy(out->refused, budget->refused, sizeof out->refused);
    for (user = budget->users; user != NULL; user = user->hh.next) {
        out->users++;
        for (int kind = 0; kind < BUDGET_KINDS; kind++) {
            out->used[kind] += user->used[kind];
        }
    }
    unlock(budget);
}

void budget_account_info(const struct budget_account *account, struct budget_info *out)
{
    lock(account->budget);
    describe(account, out);
    unlock(account->budget);
}

void budget_visit_accounts(struct budget *budget, uint64_t after, budget_visit *visit, void *context)
{
    const struct budget_account *account;
    lock(budget);
    DL_FOREACH(budget->accounts, account)
    {
        struct budget_info info;
        if (account->number <= after) {
            continue;
        }
        describe(account, &info);
        if (!visit(context, account->number, &info)) {
            break;
        }
    }
    unlock(budget);
}
