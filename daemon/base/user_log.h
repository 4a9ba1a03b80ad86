#ifndef DAEMON_BASE_USER_LOG_H
#define DAEMON_BASE_USER_LOG_H

#include "daemon/base/log.h"

/*
 * How many log lines users may cause: each a burst, then a line a second; all of them together likewise,
 * more. What is remembered of a user outlives all that the user holds: to connect anew gives no new burst.
 * USER_LOG_USERS are remembered; one more takes the place of whose last line is the oldest.
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
        struct log_limit limit; /* its `dropped`: not told yet */
    } users[USER_LOG_USERS];
};

/* As log_limit_pass; *suppressed (may be null) counts that user's lines. */
bool user_log_pass(struct user_log *logs, uint32_t uid, uint64_t now_ns, uint64_t *suppressed);

#endif
