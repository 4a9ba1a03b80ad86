#ifndef DAEMON_BASE_USER_LOG_H
#define DAEMON_BASE_USER_LOG_H

#include "daemon/base/log.h"

/*
 * How many log lines users may cause. Each user may cause a burst, then one line per second. All users
 * together have larger limits of the same kind. A user's record outlives everything that the user holds, so
 * connecting again gives no new burst. USER_LOG_USERS are remembered; a further user replaces the one whose
 * last line is the oldest.
 *
 * All zero at first. One thread at a time.
 */
#define USER_LOG_USERS 64
#define USER_LOG_BURST 10u
#define USER_LOG_TOTAL_BURST 100u /* of all users */
#define USER_LOG_TOTAL_PER_S 10u

struct user_log {
    struct log_limit total;
    struct {
        uint32_t uid;
        uint64_t last_ns;       /* 0: free */
        struct log_limit limit; /* its `dropped`: not reported yet */
    } users[USER_LOG_USERS];
};

/* As log_limit_pass; *suppressed (may be null) counts that user's lines. */
bool user_log_pass(struct user_log *logs, uint32_t uid, uint64_t now_ns, uint64_t *suppressed);

#endif
