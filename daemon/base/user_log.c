#include "daemon/base/user_log.h"

#include "daemon/base/time.h"

static size_t find_user(struct user_log *logs, uint32_t uid)
{
    size_t oldest = 0;
    for (size_t i = 0; i < USER_LOG_USERS; i++) {
        if (logs->users[i].last_ns != 0 && logs->users[i].uid == uid) {
            return i;
        }
        if (logs->users[i].last_ns < logs->users[oldest].last_ns) {
            oldest = i;
        }
    }
    logs->users[oldest].uid = uid;
    logs->users[oldest].limit = (struct log_limit){.burst = USER_LOG_BURST, .interval_ns = TIME_S};
    return oldest;
}

bool user_log_pass(struct user_log *logs, uint32_t uid, uint64_t now_ns, uint64_t *suppressed)
{
    size_t user = find_user(logs, uid);
    struct log_limit *limit = &logs->users[user].limit;
    uint64_t dropped_before = limit->dropped;
    logs->users[user].last_ns = now_ns + 1;
    logs->total.burst = USER_LOG_TOTAL_BURST;
    logs->total.interval_ns = TIME_S / USER_LOG_TOTAL_PER_S;
    bool pass = log_limit_pass(limit, now_ns, suppressed);
    if (pass && !log_limit_pass(&logs->total, now_ns, NULL)) {
        limit->dropped = dropped_before + 1;
        pass = false;
    }
    return pass;
}
