#ifndef DAEMON_RELOAD_H
#define DAEMON_RELOAD_H

#include "daemon/api/api.h"
#include "daemon/configuration.h"
#include "daemon/node_source.h"
#include "daemon/nodes.h"
#include "daemon/workers.h"

/*
 * Reads the configuration again while commd runs, after SIGHUP or on request (commctl reload). First come all
 * steps that may fail; if one does, nothing has changed. Only the main thread calls this.
 */
struct reload {
    const struct conf_options *options;
    struct configuration *configuration; /* in force */
    struct net *net;                     /* null: standalone */
    struct workers *workers;
    struct nodes *nodes;
    struct node_source *node_source;
    struct comms *comms;
    struct stores *stores;
    struct gathers *gathers;
    struct api *api;
};

/*
 * Applies what can change: nodes, users, limits, the log level, certificates, how long a drain may take.
 * Other settings keep their values until a restart (conf_keep_until_restart). *changes, empty at first, gets
 * what was done and what waits; the caller frees it. CONFIG, CERTIFICATE, UNREACHABLE: nothing has changed.
 * INTERNAL: some nodes or rails could not be changed, and the rest is applied. The service manager and the
 * log are told.
 */
enum status reload_run(const struct reload *reload, struct conf_changes *changes, uint64_t now_ns,
                       struct error *error) COMM_MUST_USE;

/* Parts of it that the start uses, too. */
void reload_set_log_level(const struct conf *conf);
void reload_set_user_limits(struct api *api, const struct conf *conf);
enum api_ipc_handles reload_ipc_handles(const struct conf *conf);

#endif
