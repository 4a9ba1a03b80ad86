#include "daemon/base/log.h"
#include "daemon/daemon_internal.h"
#include "daemon/reload.h"

/* The configuration of a running daemon: it is shown, read again, and changed. */

void daemon_visit_settings(void *context, conf_visit_function *visit, void *visit_context)
{
    const struct daemon *daemon = context;
    conf_visit(daemon->configuration.conf, visit, visit_context);
}

enum status daemon_reload(void *context, struct conf_changes *changes, uint64_t now_ns, struct error *error)
{
    struct daemon *daemon = context;
    struct reload reload = {.options = &daemon->options->conf,
                            .configuration = &daemon->configuration,
                            .net = daemon->net,
                            .workers = daemon->workers,
                            .nodes = daemon->nodes,
                            .node_source = daemon->node_source,
                            .comms = daemon->comms,
                            .stores = daemon->stores,
                            .gathers = daemon->gathers,
                            .api = daemon->api};
    return reload_run(&reload, changes, now_ns, error);
}

bool daemon_reload_is_used(void *context)
{
    const struct daemon *daemon = context;
    return workers_certificates_are_used(daemon->workers);
}

void daemon_hang_up(void *context, int signal_number, uint64_t now_ns)
{
    struct conf_changes changes = {0};
    struct error error;
    (void)signal_number;
    enum status status = daemon_reload(context, &changes, now_ns, &error);
    (void)status; /* the log says it */
    conf_changes_free(&changes);
}

enum status daemon_log_level(void *context, const char *level, struct error *error)
{
    struct daemon *daemon = context;
    struct conf *conf = daemon->configuration.conf;
    enum status status = conf_set_text(conf, "log_level", level, "commctl", error);
    if (status == STATUS_OK) {
        reload_set_log_level(conf);
        log_info("log level %s until the next reload or restart", conf->log_level);
    }
    return status;
}
