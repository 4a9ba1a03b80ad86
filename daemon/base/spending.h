#ifndef DAEMON_BASE_SPENDING_H
#define DAEMON_BASE_SPENDING_H

#include <stdint.h>

#include "daemon/base/budget.h"

/*
 * Whose processor time a thread spends, where users take turns (daemon/base/fair.h). The clock is looked at
 * when the account changes, not for each turn. Zero at first; without a clock nothing is charged. One thread.
 */
struct spending {
    uint64_t (*clock)(void); /* ns */
    struct budget_account *account;
    uint64_t since_ns;
};

/* The turn of that account begins; null: nobody's, so the one before is over. */
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
 * Processor time of one event that bytes of several accounts are part of: packets that came together, and
 * those that go in answer. Each account is charged in proportion to its bytes. The clock is looked at once,
 * at the end, and not at all where every byte is nobody's. Beyond SPENDING_SHARES_MAX accounts an event
 * counts as two. Zero at first; without a clock nothing is charged. One thread.
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
    uint64_t bytes; /* of all, and of nobody */
    uint64_t since_ns;
};

/* Bytes of that account; null: nobody's. now_ns: when the event began, by the same clock. */
void spending_share(struct spending_shares *shares, struct budget_account *account, uint64_t bytes,
                    uint64_t now_ns);
/* The event is over. */
void spending_shares_end(struct spending_shares *shares);

#endif
