#include "daemon/conf/consistency.h"

/* Where an error about two settings is reported: at the one that was set, if only one was. */
static const char *source_of_two(const struct conf *conf, const char *key, const char *other)
{
    return conf_source(conf, conf_is_given(conf, key) ? key : other);
}

enum status conf_check_consistency(const struct conf *conf, struct error *error)
{
    if (conf->heartbeat_timeout_ms < 2 * conf->heartbeat_interval_ms) {
        return error_set(
            error, STATUS_CONFIG,
            "%s: heartbeat_timeout_ms = %llu: expected at least twice heartbeat_interval_ms = %llu",
            source_of_two(conf, "heartbeat_timeout_ms", "heartbeat_interval_ms"),
            (unsigned long long)conf->heartbeat_timeout_ms, (unsigned long long)conf->heartbeat_interval_ms);
    }
    if (conf->reconnect_max_ms < conf->reconnect_min_ms) {
        return error_set(
            error, STATUS_CONFIG, "%s: reconnect_max_ms = %llu: expected at least reconnect_min_ms = %llu",
            source_of_two(conf, "reconnect_max_ms", "reconnect_min_ms"),
            (unsigned long long)conf->reconnect_max_ms, (unsigned long long)conf->reconnect_min_ms);
    }
    if (conf->standalone && conf->node_count > 0) {
        return error_set(error, STATUS_CONFIG,
                         "%s: nodes: other nodes are listed, but --standalone was given",
                         conf->nodes[0].source);
    }
    if (conf->standalone && conf->nodes_dns[0] != '\0') {
        return error_set(error, STATUS_CONFIG, "%s: nodes_dns: it is set, but --standalone was given",
                         conf_source(conf, "nodes_dns"));
    }
    return STATUS_OK;
}
