#include "daemon/configuration.h"

#include <errno.h>
#include <unistd.h>

#include "daemon/base/time.h"
#include "daemon/coll/overrides.h"
#include "daemon/conf/credential.h"

enum status configuration_load(const struct conf_options *options, struct conf **out, struct error *error)
{
    struct conf *conf = NULL;
    struct coll_overrides overrides;
    struct error why;
    enum status status = conf_load(options, &conf, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (coll_overrides_parse(conf->algorithms, &overrides, &why) != STATUS_OK) {
        status = error_set(error, STATUS_CONFIG, "%s: algorithms = \"%s\": %s", conf->path, conf->algorithms,
                           why.text);
        conf_free(conf);
        return status;
    }
    *out = conf;
    return STATUS_OK;
}

struct quic_options configuration_quic(const struct conf *conf)
{
    return (struct quic_options){.node_name = conf->node_name,
                                 .bind_address = conf->listen,
                                 .certificate_path = conf->certificate,
                                 .key_path = conf->key,
                                 .key_is_credential = conf_is_credential(conf->key),
                                 .authority_path = conf->authority,
                                 .revocation_path =
                                     conf->revocation_list[0] != '\0' ? conf->revocation_list : NULL,
                                 .datagram_max_bytes = (uint32_t)conf->datagram_bytes,
                                 .socket_buffer_bytes = (uint32_t)conf->socket_buffer_bytes,
                                 .handshake_timeout_ns = conf->handshake_timeout_ms * TIME_MS,
                                 .idle_timeout_ns = 30 * TIME_S};
}

enum status configuration_check(const struct conf_options *options, struct conf **out, struct error *error)
{
    struct conf *conf = NULL;
    struct quic_tls *certificates = NULL;
    enum status status = configuration_load(options, &conf, error);
    bool hidden = status == STATUS_OK && conf_is_credential(conf->key) && access(conf->key, R_OK) != 0 &&
                  errno == EACCES;
    if (status == STATUS_OK && !conf->standalone && !hidden) {
        struct quic_options quic = configuration_quic(conf);
        status = net_quic_load(&quic, &certificates, error);
    }
    if (status != STATUS_OK) {
        conf_free(conf);
        return status;
    }
    if (certificates != NULL) {
        net_quic_unload(certificates);
    }
    *out = conf;
    return STATUS_OK;
}
