#include "daemon/configuration.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/coll/overrides.h"
#include "daemon/comm/comms.h"
#include "daemon/conf/address.h"
#include "daemon/conf/credential.h"
#include "daemon/conf/rail_addresses.h"
#include "daemon/exec/rails.h"
#include "daemon/mesh/mesh.h"
#include "daemon/net/quic_address.h"
#include "daemon/net/srv.h"
#include "daemon/service_records.h"
#include "daemon/sockets.h"
#include "daemon/workers.h"

struct quic_options configuration_quic(const struct configuration *configuration)
{
    const struct conf *conf = configuration->conf;
    return (struct quic_options){
        .node_name = conf->node_name,
        .bind_address = configuration->listen,
        .certificate_path = conf->certificate,
        .key_path = conf->key,
        .key_is_credential = conf_is_credential(conf->key),
        .authority_path = conf->authority,
        .revocation_path = conf->revocation_list[0] != '\0' ? conf->revocation_list : NULL,
        .certificates = configuration->certificates,
        .datagram_max_bytes = (uint32_t)conf->datagram_bytes,
        .socket_buffer_bytes = (uint32_t)conf->socket_buffer_bytes,
        .handshake_timeout_ns = conf->handshake_timeout_ms * TIME_MS,
        .idle_timeout_ns = 30 * TIME_S,
        /* The mesh decides first. */
        .patience_ns = (conf->heartbeat_timeout_ms + conf->heartbeat_interval_ms) * TIME_MS};
}

bool configuration_tls(const struct configuration *configuration, struct tls_options *out)
{
    const char *links = configuration->conf->bulk_links;
    long processors = workers_processors();
    *out = (struct tls_options){.mode = strcmp(links, "tls") == 0 ? NET_BULK_TLS : NET_BULK_AUTO,
                                .processors = processors > 1 ? (uint32_t)processors : 1};
    return strcmp(links, "quic") != 0 && !configuration->conf->standalone;
}

/* --- Texts --- */

static enum status check_texts(const struct conf *conf, struct error *error)
{
    struct coll_overrides overrides;
    struct error why;
    if (coll_overrides_parse(conf->algorithms, &overrides, &why) != STATUS_OK) {
        return error_set(error, STATUS_CONFIG, "%s: algorithms = \"%.200s\": %s",
                         conf_source(conf, "algorithms"), conf->algorithms, why.text);
    }
    if (strlen(conf->algorithms) > COMMS_ALGORITHMS_MAX_BYTES) {
        return error_set(error, STATUS_CONFIG, "%s: algorithms: %zu bytes; expected at most %d",
                         conf_source(conf, "algorithms"), strlen(conf->algorithms),
                         COMMS_ALGORITHMS_MAX_BYTES);
    }
    if (strlen(conf->cluster_name) > MESH_CLUSTER_NAME_MAX_BYTES) {
        return error_set(error, STATUS_CONFIG, "%s: cluster_name: %zu bytes; expected at most %d",
                         conf_source(conf, "cluster_name"), strlen(conf->cluster_name),
                         MESH_CLUSTER_NAME_MAX_BYTES);
    }
    return STATUS_OK;
}

static enum status check_datagrams(const struct conf *conf, struct error *error)
{
    if (conf->datagram_bytes != 0 && (conf->datagram_bytes < QUIC_DATAGRAM_LEAST_BYTES ||
                                      conf->datagram_bytes > QUIC_DATAGRAM_LOOPBACK_BYTES)) {
        return error_set(error, STATUS_CONFIG, "%s: datagram_bytes = %llu: expected 0, or %u to %u",
                         conf_source(conf, "datagram_bytes"), (unsigned long long)conf->datagram_bytes,
                         QUIC_DATAGRAM_LEAST_BYTES, QUIC_DATAGRAM_LOOPBACK_BYTES);
    }
    return STATUS_OK;
}

/* --- Sockets --- */

static enum status check_socket_path(const struct conf *conf, const char *key, const char *path,
                                     const char *option, struct error *error)
{
    struct sockaddr_un address;
    size_t max_bytes = sizeof address.sun_path - 1;
    if (strlen(path) > max_bytes) {
        return error_set(error, STATUS_CONFIG,
                         "%s: %s = \"%s\": a socket's path has at most %zu bytes: give a shorter one (%s%s)",
                         conf_source(conf, key), key, path, max_bytes, key, option);
    }
    return STATUS_OK;
}

static enum status check_sockets(const struct conf *conf, struct error *error)
{
    char admin_path[DAEMON_SOCKET_PATH_MAX_BYTES];
    enum status status = check_socket_path(conf, "socket_path", conf->socket_path, ", --socket", error);
    if (status != STATUS_OK) {
        return status;
    }
    if (!daemon_sockets_admin_path(conf, admin_path, sizeof admin_path)) {
        return check_socket_path(conf, "admin_socket_path", conf->admin_socket_path, "", error);
    }
    return check_socket_path(conf, "admin_socket_path", admin_path, "", error);
}

/* --- Addresses --- */

/* Several nodes on one loopback address may use neighbouring ports. So there, further rails are used only if
 * the configuration asks for them. */
static bool is_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strncmp(address, "[::1]", 5) == 0 ||
           strncmp(address, "localhost", 9) == 0;
}

static void count_threads(struct configuration *configuration)
{
    const struct conf *conf = configuration->conf;
    long processors = workers_processors();
    uint32_t cards = 1 + conf_rail_addresses_count(conf->rail_addresses);
    uint32_t rails = is_loopback(conf->listen) ? 1 : workers_rails_default(processors);
    uint32_t threads = workers_threads_default(processors);
    rails = rails < cards ? cards : rails; /* each network card has a rail */
    rails = conf->rails != 0 ? (uint32_t)conf->rails : rails;
    rails = conf->standalone ? 1 : rails;
    threads = conf->worker_threads != 0 ? (uint32_t)conf->worker_threads : threads;
    configuration->rail_count = rails;
    configuration->thread_count = threads < rails ? rails : threads;
}

/* Each rail has a port of its own, from the address's port on. what: "listen", "nodes: address". */
static enum status check_ports(const char *source, const char *what, const char *address, uint32_t rail_count,
                               struct error *error)
{
    unsigned last = conf_address_port(address) + rail_count - 1u;
    if (last > UINT16_MAX) {
        return error_set(
            error, STATUS_CONFIG,
            "%s: %s = \"%s\": its %u rails need ports up to %u; expected at most %u, or fewer rails", source,
            what, address, rail_count, last, UINT16_MAX);
    }
    return STATUS_OK;
}

static int address_order(const void *one, const void *other)
{
    const struct conf_node *a = *(const struct conf_node *const *)one;
    const struct conf_node *b = *(const struct conf_node *const *)other;
    return conf_address_order(a->address, b->address);
}

static bool share_ports(const struct conf_node *low, const struct conf_node *high, uint32_t rail_count)
{
    size_t host_bytes = conf_address_host_bytes(low->address);
    return host_bytes == conf_address_host_bytes(high->address) &&
           strncasecmp(low->address, high->address, host_bytes) == 0 &&
           conf_address_port(high->address) - conf_address_port(low->address) < (int)rail_count;
}

/* Whether the rails of two nodes on one host would have the same port. `sorted` has room for all nodes and
 * this one. */
static enum status check_neighbours(const struct configuration *configuration,
                                    const struct conf_node **sorted, struct error *error)
{
    const struct conf *conf = configuration->conf;
    struct conf_node own = {.name = conf->node_name, .address = conf->listen};
    for (size_t i = 0; i < conf->node_count; i++) {
        sorted[i] = &conf->nodes[i];
    }
    sorted[conf->node_count] = &own;
    qsort(sorted, conf->node_count + 1, sizeof *sorted, address_order);
    for (size_t i = 1; i <= conf->node_count; i++) {
        const struct conf_node *low = sorted[i - 1], *high = sorted[i];
        if (share_ports(low, high, configuration->rail_count)) {
            const struct conf_node *named = high == &own ? low : high;
            return error_set(error, STATUS_CONFIG,
                             "%s: nodes: address = \"%s\": nodes \"%s\" and \"%s\" on one host have %u rails "
                             "each; expected ports at least %u apart",
                             named->source, named->address, low->name, high->name, configuration->rail_count,
                             configuration->rail_count);
        }
    }
    return STATUS_OK;
}

/* Whether each of our network cards has a rail. */
static enum status check_rail_count(const struct conf *conf, struct error *error)
{
    uint32_t cards = 1 + conf_rail_addresses_count(conf->rail_addresses);
    if (conf->rails == 0 || conf->rails >= cards) {
        return STATUS_OK;
    }
    return error_set(
        error, STATUS_CONFIG,
        "%s: rails = %llu: with its rail_addresses this node has %u network addresses; expected at "
        "least %u rails, or 0",
        conf_source(conf, "rails"), (unsigned long long)conf->rails, cards, cards);
}

/* What is wrong with our address for a rail, as `why`. */
static enum status check_own_rail(const struct configuration *configuration, uint32_t rail, struct error *why)
{
    char text[QUIC_ADDRESS_TEXT_MAX_BYTES + 64];
    struct quic_address address;
    if (!conf_rail_address("host:1", configuration->conf->rail_addresses, rail, text, sizeof text)) {
        return error_set(why, STATUS_CONFIG, "the address of rail %u is too long", rail);
    }
    enum status status = quic_address_parse(text, AF_UNSPEC, &address, why);
    text[conf_address_host_bytes(text)] = '\0';
    if (status == STATUS_OK && address.base.sa_family != configuration->family) {
        status = error_set(why, STATUS_CONFIG, "%s is no IPv%d address, as the node's address is", text,
                           configuration->family == AF_INET ? 4 : 6);
    } else if (status == STATUS_OK && !quic_address_is_local(&address)) {
        status = error_set(why, STATUS_CONFIG, "%s is no address of this machine", text);
    }
    return status;
}

static enum status check_own_rails(const struct configuration *configuration, struct error *error)
{
    const struct conf *conf = configuration->conf;
    uint32_t cards = 1 + conf_rail_addresses_count(conf->rail_addresses);
    for (uint32_t rail = 1; rail < cards; rail++) {
        struct error why;
        if (check_own_rail(configuration, rail, &why) != STATUS_OK) {
            return error_set(
                error, STATUS_CONFIG,
                "%s: rail_addresses = \"%s\": %s; expected addresses of this node's network cards",
                conf_source(conf, "rail_addresses"), conf->rail_addresses, why.text);
        }
    }
    return STATUS_OK;
}

static enum status check_addresses(const struct configuration *configuration, struct error *error)
{
    const struct conf *conf = configuration->conf;
    uint32_t rails = configuration->rail_count;
    enum status status = check_ports(conf_source(conf, "listen"), "listen", conf->listen, rails, error);
    for (size_t i = 0; i < conf->node_count && status == STATUS_OK; i++) {
        status = check_ports(conf->nodes[i].source, "nodes: address", conf->nodes[i].address, rails, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    const struct conf_node **sorted = calloc(conf->node_count + 1, sizeof *sorted);
    if (sorted == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the configuration");
    }
    status = check_neighbours(configuration, sorted, error);
    free(sorted);
    if (status == STATUS_OK) {
        status = check_rail_count(conf, error);
    }
    return status == STATUS_OK ? conf_rail_addresses_check(conf, error) : status;
}

static enum status find_own_address(struct configuration *configuration, struct error *error)
{
    struct quic_address address;
    struct error why;
    const struct conf *conf = configuration->conf;
    enum status status = quic_address_resolve(conf->listen, AF_UNSPEC, &address, &why);
    if (status != STATUS_OK) {
        return error_set(error, status, "%s: listen: %s; expected an address of this node",
                         conf_source(conf, "listen"), why.text);
    }
    configuration->family = address.base.sa_family;
    return STATUS_OK;
}

/* --- Certificates --- */

/* Which setting an error of net_quic_load is about. */
static const char *certificate_setting(const char *text)
{
    static const struct {
        const char *start, *key;
    } settings[] = {{"key file ", "key"}, {"CA file ", "authority"}, {"revocation file ", "revocation_list"}};
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++) {
        if (strncmp(text, settings[i].start, strlen(settings[i].start)) == 0) {
            return settings[i].key;
        }
    }
    return "certificate";
}

/* Opening a named pipe would keep commd until somebody writes to it, also while it runs. */
static enum status check_regular(const struct conf *conf, const char *key, const char *path,
                                 struct error *error)
{
    struct stat file;
    return path[0] == '\0' || stat(path, &file) != 0 || S_ISREG(file.st_mode)
               ? STATUS_OK
               : error_set(error, STATUS_CONFIG, "%s: %s: %s: expected a regular file",
                           conf_source(conf, key), key, path);
}

static enum status check_certificate_files(const struct conf *conf, struct error *error)
{
    enum status status = check_regular(conf, "certificate", conf->certificate, error);
    status = status == STATUS_OK ? check_regular(conf, "key", conf->key, error) : status;
    status = status == STATUS_OK ? check_regular(conf, "authority", conf->authority, error) : status;
    return status == STATUS_OK ? check_regular(conf, "revocation_list", conf->revocation_list, error)
                               : status;
}

static enum status load_certificates(struct configuration *configuration, struct error *error)
{
    struct quic_options options = configuration_quic(configuration);
    struct error why;
    enum status status = check_certificate_files(configuration->conf, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = net_quic_load(&options, &configuration->certificates, &why);
    if (status == STATUS_OK) {
        return STATUS_OK;
    }
    const char *key = certificate_setting(why.text);
    return error_set(error, status, "%s: %s: %s", conf_source(configuration->conf, key), key, why.text);
}

/* --- All of it --- */

static enum status check(struct configuration *configuration, const struct configuration *present,
                         struct error *error)
{
    const struct conf *conf = configuration->conf;
    enum status status = check_texts(conf, error);
    if (status == STATUS_OK) {
        status = check_datagrams(conf, error);
    }
    if (status == STATUS_OK) {
        status = check_sockets(conf, error);
    }
    if (status != STATUS_OK || conf->standalone) {
        return status;
    }
    status = check_addresses(configuration, error);
    if (status == STATUS_OK && !conf_rail_listen(conf->listen, conf->rail_addresses, configuration->listen,
                                                 sizeof configuration->listen)) {
        status = error_set(error, STATUS_CONFIG, "%s: listen = \"%s\": it is too long",
                           conf_source(conf, "listen"), conf->listen);
    }
    if (status == STATUS_OK && present != NULL) {
        configuration->family = present->family;
    } else if (status == STATUS_OK) {
        status = find_own_address(configuration, error);
        status = status == STATUS_OK ? check_own_rails(configuration, error) : status;
    }
    return status == STATUS_OK ? load_certificates(configuration, error) : status;
}

/* --- Nodes from DNS --- */

/* A node that knows what it listens on can wait for the others while it runs. */
static enum status ask_for_nodes(struct conf *conf, struct error *error)
{
    struct srv_answer answer;
    struct conf_node_list list = {0};
    struct error why;
    enum status status = srv_lookup(conf->nodes_dns, &answer, &why);
    if (status == STATUS_OK) {
        status = service_records_list(&answer, &list, &why);
        srv_answer_free(&answer);
    }
    if (status == STATUS_OK) {
        status = conf_take_nodes(conf, &list, conf->nodes_dns, &why);
    }
    conf_node_list_free(&list);
    if (status != STATUS_OK && status != STATUS_NO_MEMORY && conf->listen[0] != '\0') {
        log_warning("%s: nodes_dns: %s; no other node is known yet", conf_source(conf, "nodes_dns"),
                    why.text);
        return STATUS_OK;
    }
    if (status != STATUS_OK) {
        return error_set(error, status == STATUS_NO_MEMORY ? status : STATUS_UNREACHABLE, "%s: nodes_dns: %s",
                         conf_source(conf, "nodes_dns"), why.text);
    }
    return STATUS_OK;
}

static enum status find_nodes(struct conf *conf, const struct configuration *present, struct error *error)
{
    if (conf->nodes_dns[0] == '\0') {
        return STATUS_OK;
    }
    return present != NULL ? conf_inherit_nodes(conf, present->conf, error) : ask_for_nodes(conf, error);
}

enum status configuration_take_nodes(struct configuration *configuration, struct conf_node_list *list,
                                     const char *where, struct error *error)
{
    enum status status = conf_take_nodes(configuration->conf, list, where, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = check_addresses(configuration, error);
    if (status != STATUS_OK) {
        conf_swap_nodes(configuration->conf, list);
    }
    return status;
}

enum status configuration_prepare(const struct conf_options *options, const struct configuration *present,
                                  struct configuration *out, struct error *error)
{
    struct configuration configuration = {0};
    enum status status = conf_load(options, &configuration.conf, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = find_nodes(configuration.conf, present, error);
    if (status != STATUS_OK) {
        configuration_free(&configuration);
        return status;
    }
    count_threads(&configuration);
    if (present != NULL && present->rail_count > configuration.rail_count) {
        configuration.rail_count = present->rail_count; /* until a restart */
    }
    status = check(&configuration, present, error);
    if (status != STATUS_OK) {
        configuration_free(&configuration);
        return status;
    }
    *out = configuration;
    return STATUS_OK;
}

void configuration_free(struct configuration *configuration)
{
    net_quic_unload(configuration->certificates);
    conf_free(configuration->conf);
    *configuration = (struct configuration){0};
}
