#ifndef DAEMON_BASE_SPENDING_H
#define DAEMON_BASE_SPENDING_H

#include <stdint.h>

#include "daemon/base/budget.h"

/*
 * Charges a thread's processor time to accounts, for threads on which users take turns (daemon/base/fair.h).
 * The clock is read when the account changes, not at each turn. Zero at first; without a clock nothing is
 * charged. One thread.
 */
struct spending {
    uint64_t (*clock)(void); /* ns */
    struct budget_account *account;
    uint64_t since_ns;
};

/* The turn of that account begins, and the one before ends. Null: no account has this turn. */
static inline void spending_turn(struct spending *spending, struct budget_account *account)
{
    if (spending->clock == 0 || account == spending->account) {
        return;
    }
    uint64_t now_ns = spending->clock();
    struct budget_account *next = account != 0 ? budget_ref(account) : 0;
    if (spending->account != 0) {
        budget_spend(spending->account, now_ns - spending->since_ns);
        budget_close(spending->account);
    }
    spending->account = next;
    spending->since_ns = now_ns;
}

/*
 * Charges the processor time of one event that carries bytes of several accounts: packets that came together,
 * and the packets that answer them. Each account is charged in proportion to its bytes. The clock is read
 * once, at the end, and not at all if no byte belongs to an account. An event with more than
 * SPENDING_SHARES_MAX accounts counts as two. Zero at first; without a clock nothing is charged. One thread.
 */
#define SPENDING_SHARES_MAX 16u

struct spending_share {
    struct budget_account *account;
    uint64_t bytes;
};

struct spending_shares {
    uint64_t (*clock)(void); /* ns */
    struct spending_share shares[SPENDING_SHARES_MAX];
    uint32_t count;
    uint64_t bytes; /* of all accounts, and those that belong to none */
    uint64_t since_ns;
};

/* The event carries these bytes of that account; null: of no account. now_ns: when the event began, by the
 * same clock. */
void spending_share(struct spending_shares *shares, struct budget_account *account, uint64_t bytes,
                    uint64_t now_ns);
/* The event is over. */
void spending_shares_end(struct spending_shares *shares);

#endif
