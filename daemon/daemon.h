#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/conf/conf.h"

/*
 * One commd: constructs every part from a configuration, connects them, runs them, and frees them in reverse
 * order.
 */
struct daemon_options {
    struct conf_options conf; /* used again by reloads: outlives daemon_run */
};

/*
 * Runs until SIGTERM or SIGINT. Then it drains: it accepts no new clients or communicators, and waits up to
 * drain_timeout_ms for operations under way. A second signal stops at once. SIGHUP reads the configuration
 * again and applies what can change. Returns STATUS_OK after an orderly end, otherwise what prevented the
 * start.
 */
enum status daemon_run(const struct daemon_options *options, struct error *error) COMM_MUST_USE;

#endif
