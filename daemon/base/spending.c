#include "daemon/base/spending.h"

#include <stddef.h>

static void share_end(struct spending_share *share, double ns_per_byte)
{
    budget_spend(share->account, (uint64_t)((double)share->bytes * ns_per_byte));
    budget_close(share->account);
}

/* Charges what was spent until that time. */
static void shares_settle(struct spending_shares *shares, uint64_t now_ns)
{
    double ns_per_byte = (double)(now_ns - shares->since_ns) / (double)shares->bytes;
    for (uint32_t i = 0; i < shares->count; i++) {
        share_end(&shares->shares[i], ns_per_byte);
    }
    shares->count = 0;
    shares->bytes = 0;
    shares->since_ns = now_ns;
}

void spending_share(struct spending_shares *shares, struct budget_account *account, uint64_t bytes,
                    uint64_t now_ns)
{
    uint32_t i = 0;
    if (shares->clock == NULL || bytes == 0) {
        return;
    }
    while (i < shares->count && shares->shares[i].account != account) {
        i++;
    }
    if (i == SPENDING_SHARES_MAX && account != NULL) {
        shares_settle(shares, shares->clock());
        i = 0;
    } else if (shares->bytes == 0) {
        shares->since_ns = now_ns;
    }
    shares->bytes += bytes;
    if (account == NULL) {
        return;
    }
    if (i == shares->count) {
        shares->shares[shares->count++] = (struct spending_share){.account = budget_ref(account)};
    }
    shares->shares[i].bytes += bytes;
}

void spending_shares_end(struct spending_shares *shares)
{
    if (shares->count > 0) {
        shares_settle(shares, shares->clock());
    }
    shares->bytes = 0;
}
