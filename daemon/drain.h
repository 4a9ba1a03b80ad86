#ifndef DAEMON_DRAIN_H
#define DAEMON_DRAIN_H

#include "daemon/api/api.h"
#include "daemon/comm/comms.h"

/*
 * How the node ends its work. By commctl drain: it takes no new communicators, those that run go on until a
 * deadline, and commd stays. By SIGTERM: it takes no new clients either, and commd stops when no operation is
 * under way, or at the deadline.
 */
struct drain {
    struct comms *comms;
    struct stores *stores;
    struct gathers *gathers;
    struct api *api;
    const char *node_name;
    bool active;
    bool stops;           /* SIGTERM */
    bool ended;           /* the deadline has passed: what ran has been ended */
    uint64_t deadline_ns; /* TIME_NEVER: none */
    char reason[API_DRAIN_REASON_MAX_BYTES + 1];
    char why[COMMS_DRAIN_TEXT_MAX_BYTES]; /* "node a is draining: reason" */
};

/*
 * context: the drain. Begins, or changes deadline and reason, or (asked->draining false) ends it. Tells
 * systemd. Errors: SHUTTING_DOWN (commd stops), NOT_FOUND (nothing to end). The ask_drain of api_options.
 */
enum status drain_ask(void *context, const struct api_drain *asked, uint64_t now_ns,
                      struct error *error) COMM_MUST_USE;
/* SIGTERM. verb: what commd is doing, "stopping" or "restarting". */
void drain_stop(struct drain *drain, const char *verb, uint64_t timeout_ns, uint64_t now_ns);
/* Call it when the deadline has passed, and often while it stops. Returns whether commd must stop now. */
bool drain_tick(struct drain *drain, uint64_t now_ns);
uint64_t drain_next_deadline_ns(const struct drain *drain, uint64_t now_ns);

#endif
