#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H

#include "daemon/conf/conf.h"

/*
 * One commd: constructs every part from a configuration, wires them, runs them, and tears them down in
 * reverse.
 */
struct daemon_options {
    struct conf_options conf; /* kept for reloads: outlives daemon_run */
};

/*
 * Runs until SIGTERM or SIGINT (drains: no new clients or communicators, operations under way may end within
 * drain_timeout_ms; a second signal stops at once). SIGHUP reads the configuration again and applies what can
 * change. Returns STATUS_OK after an orderly end; otherwise what kept it from starting.
 */
enum status daemon_run(const struct daemon_options *options, struct error *error) COMM_MUST_USE;

#endif
