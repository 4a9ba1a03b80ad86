#include "daemon/reload.h"

#include <stdio.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"

void reload_set_log_level(const struct conf *conf)
{
    enum log_level level;
    if (log_level_from_text(conf->log_level, &level)) {
        log_set_level(level);
    }
}

enum api_ipc_handles reload_ipc_handles(const struct conf *conf)
{
    return strcmp(conf->cuda_ipc_handles, "refuse") == 0   ? API_IPC_HANDLES_REFUSE
           : strcmp(conf->cuda_ipc_handles, "accept") == 0 ? API_IPC_HANDLES_ACCEPT
                                                           : API_IPC_HANDLES_AUTO;
}

void reload_set_user_limits(struct api *api, const struct conf *conf)
{
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        api_set_user_limit(api, (enum budget_kind)kind, conf->user_limits[kind]);
    }
}

/* Whether a running commd may take the file's configuration. */
static enum status check_role(const struct reload *reload, struct error *error)
{
    const struct conf *present = reload->configuration->conf;
    struct conf *conf;
    enum status status = conf_load(reload->options, &conf, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (strcmp(conf->node_name, present->node_name) != 0) {
        status =
            error_set(error, STATUS_CONFIG, "%s: node_name changes from \"%s\" to \"%s\" only with a restart",
                      conf_source(conf, "node_name"), present->node_name, conf->node_name);
    } else if (conf->standalone != present->standalone) {
        status = error_set(error, STATUS_CONFIG, "%s: %s only with a restart", conf->path,
                           conf->standalone ? "nodes: none is listed: a node leaves its cluster"
                                            : "nodes: a standalone node joins a cluster");
    }
    conf_free(conf);
    return status;
}

/* Does the steps that may fail, before any of it takes effect. */
static enum status load(const struct reload *reload, struct configuration *next, struct error *error)
{
    enum status status = check_role(reload, error);
    return status == STATUS_OK ? configuration_prepare(reload->options, reload->configuration, next, error)
                               : status;
}

static void use_certificates(const struct reload *reload, struct configuration *next,
                             struct conf_changes *changes)
{
    struct error error;
    if (next->certificates == NULL) {
        return;
    }
    net_quic_use(reload->net, next->certificates);
    if (workers_use_certificates(reload->workers, next->certificates, &error) != STATUS_OK) {
        conf_changes_add(&changes->failed, "%s", error.text);
    } else {
        conf_changes_add(&changes->applied, "certificate, key, authority and revocation_list: read again");
    }
    net_quic_unload(reload->configuration->certificates);
    reload->configuration->certificates = next->certificates;
}

/* A revocation list that is gone would let revoked nodes in again without a word. */
static void note_revocation_list(const struct conf *present, const struct conf *next)
{
    if (present->revocation_list[0] != '\0' && next->revocation_list[0] == '\0') {
        log_warning("reload: without %s, no certificate counts as revoked any more",
                    present->revocation_list);
    }
}

static void apply(const struct reload *reload, struct configuration *next, struct conf_changes *changes,
                  uint64_t now_ns)
{
    struct conf *conf = next->conf;
    conf_changes_of_settings(changes, reload->configuration->conf, conf);
    note_revocation_list(reload->configuration->conf, conf);
    conf_keep_until_restart(conf, reload->configuration->conf);
    reload->configuration->conf = conf;
    reload_set_log_level(conf);
    api_set_ipc_handles(reload->api, reload_ipc_handles(conf));
    reload_set_user_limits(reload->api, conf);
    nodes_update(reload->nodes, conf, changes, now_ns);
    node_source_follow(reload->node_source, now_ns);
    use_certificates(reload, next, changes);
    comms_recheck_users(reload->comms, now_ns);
    stores_recheck_users(reload->stores, now_ns);
    gathers_recheck_users(reload->gathers, now_ns);
}

static void log_changes(const struct conf_changes *changes)
{
    for (size_t i = 0; i < changes->applied.count; i++) {
        log_info("reload: applied: %s", changes->applied.texts[i]);
    }
    for (size_t i = 0; i < changes->waiting.count; i++) {
        log_warning("reload: waits for a restart: %s", changes->waiting.texts[i]);
    }
    for (size_t i = 0; i < changes->failed.count; i++) {
        log_error("reload: %s", changes->failed.texts[i]);
    }
}

enum status reload_run(const struct reload *reload, struct conf_changes *changes, uint64_t now_ns,
                       struct error *error)
{
    struct configuration next;
    struct error why;
    char notice[96];
    (void)snprintf(notice, sizeof notice, "RELOADING=1\nMONOTONIC_USEC=%llu",
                   (unsigned long long)(now_ns / TIME_US));
    sd_notify(0, notice);
    enum status status = load(reload, &next, &why);
    if (status != STATUS_OK) {
        log_error("reload: %s; configuration and certificates stay as they were", why.text);
        history_note(HISTORY_RELOAD_FAILED, HISTORY_FOR_ADMINISTRATORS, "%s", why.text);
        sd_notify(0, "READY=1");
        return error_set(error, status, "%s", why.text);
    }
    apply(reload, &next, changes, now_ns);
    log_changes(changes);
    if (changes->failed.count + changes->failed.left_out > 0) {
        status = error_set(error, STATUS_INTERNAL, "%s; the rest is applied",
                           changes->failed.count > 0 ? changes->failed.texts[0] : "no memory");
    }
    log_info("reload: done");
    history_note(HISTORY_RELOADED, HISTORY_FOR_ALL, "done");
    sd_notify(0, "READY=1");
    return status;
}
