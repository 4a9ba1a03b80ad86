#include "daemon/base/lag.h"

#include <stdbool.h>

#include "daemon/base/time.h"

void lag_note(struct lag *lag, uint64_t due_ns, uint64_t now_ns)
{
    if (now_ns - lag->since_ns >= LAG_WINDOW_NS) {
        bool is_next = now_ns - lag->since_ns < 2ull * LAG_WINDOW_NS;
        lag->earlier_ns = is_next ? lag->worst_ns : 0;
        lag->worst_ns = 0;
        lag->since_ns = now_ns;
    }
    bool is_late = due_ns != 0 && due_ns != TIME_NEVER && now_ns > due_ns;
    uint64_t late_ns = is_late ? now_ns - due_ns : 0;
    lag->worst_ns = late_ns > lag->worst_ns ? late_ns : lag->worst_ns;
}

uint64_t lag_worst_ns(const struct lag *lag, uint64_t now_ns)
{
    uint64_t age_ns = now_ns > lag->since_ns ? now_ns - lag->since_ns : 0;
    if (age_ns >= 2ull * LAG_WINDOW_NS) {
        return 0;
    }
    bool has_earlier = age_ns < LAG_WINDOW_NS && lag->earlier_ns > lag->worst_ns;
    return has_earlier ? lag->earlier_ns : lag->worst_ns;
}
