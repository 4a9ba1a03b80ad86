#include "daemon/drain.h"

#include <stdio.h>
#include <systemd/sd-daemon.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"

/* How often a daemon that stops checks whether everything is done. */
#define DRAIN_POLL_NS (20 * TIME_MS)

/* Tells the parts that refuse and show. */
static void drain_apply(struct drain *drain, uint64_t now_ns)
{
    struct api_drain shown = {
        .draining = drain->active, .stops = drain->stops, .deadline_ns = drain->deadline_ns};
    (void)snprintf(shown.reason, sizeof shown.reason, "%s", drain->reason);
    api_set_drain(drain->api, &shown, now_ns);
    if (drain->active) {
        comms_drain(drain->comms, drain->why, now_ns);
        stores_drain(drain->stores, drain->why);
        gathers_drain(drain->gathers, drain->why, now_ns);
    } else {
        stores_drain(drain->stores, NULL);
        gathers_drain(drain->gathers, NULL, now_ns);
        comms_undrain(drain->comms);
    }
}

enum status drain_ask(void *context, const struct api_drain *asked, uint64_t now_ns, struct error *error)
{
    struct drain *drain = context;
    if (drain->stops) {
        return error_set(error, STATUS_SHUTTING_DOWN, "%s", drain->why);
    }
    if (!asked->draining && !drain->active) {
        return error_set(error, STATUS_NOT_FOUND, "node %s is not draining", drain->node_name);
    }
    drain->active = asked->draining;
    drain->ended = false;
    drain->deadline_ns = asked->draining ? asked->deadline_ns : TIME_NEVER;
    (void)snprintf(drain->reason, sizeof drain->reason, "%s", asked->draining ? asked->reason : "");
    (void)snprintf(drain->why, sizeof drain->why, "node %s is draining%s%s", drain->node_name,
                   drain->reason[0] != '\0' ? ": " : "", drain->reason);
    history_note(HISTORY_DRAIN, HISTORY_FOR_ALL, "%s", asked->draining ? drain->why : "draining ends");
    log_info("%s%s", asked->draining ? drain->why : "draining ends: new communicators are accepted again",
             drain->deadline_ns != TIME_NEVER ? ", until its deadline" : "");
    drain_apply(drain, now_ns);
    sd_notifyf(0, "STATUS=Node %s%s", drain->node_name, drain->active ? ", draining" : "");
    return STATUS_OK;
}

void drain_stop(struct drain *drain, const char *verb, uint64_t timeout_ns, uint64_t now_ns)
{
    drain->active = true;
    drain->stops = true;
    drain->deadline_ns = time_after(now_ns, timeout_ns);
    (void)snprintf(drain->why, sizeof drain->why, "node %s: commd is %s%s%s", drain->node_name, verb,
                   drain->reason[0] != '\0' ? ": " : "", drain->reason);
    drain_apply(drain, now_ns);
}

bool drain_tick(struct drain *drain, uint64_t now_ns)
{
    if (!drain->active) {
        return false;
    }
    if (drain->stops) {
        return comms_idle(drain->comms) || now_ns >= drain->deadline_ns;
    }
    if (!drain->ended && now_ns >= drain->deadline_ns) {
        log_info("%s: its deadline has passed; what still runs is ended", drain->why);
        drain->ended = true;
        comms_drain_end(drain->comms, drain->why, now_ns);
    }
    return false;
}

uint64_t drain_next_deadline_ns(const struct drain *drain, uint64_t now_ns)
{
    if (!drain->active || drain->ended) {
        return TIME_NEVER;
    }
    return drain->stops ? time_after(now_ns, DRAIN_POLL_NS) : drain->deadline_ns;
}
