#ifndef DAEMON_CONFIGURATION_H
#define DAEMON_CONFIGURATION_H

#include "daemon/conf/conf.h"
#include "daemon/net/quic.h"
#include "daemon/net/tls.h"

/*
 * A configuration that is read and checked completely. The start, a reload and --check-config share this, so
 * they accept and refuse the same files, in the same words. What is left to the start is to bind sockets.
 */
struct configuration {
    struct conf *conf;
    struct quic_tls *certificates; /* null: standalone */
    int family;                    /* of the network's socket: AF_INET or AF_INET6; 0: standalone */
    char listen[512];              /* where rail 0's socket is bound: conf_rail_listen */
    uint32_t rail_count;           /* network threads, the main one included */
    uint32_t thread_count;         /* at least rail_count */
};

/*
 * conf_load, and the checks that need higher layers: algorithms, paths of sockets, the ports of all rails,
 * our own address, certificate, key, authority and revocation list. It may ask a name server for our own
 * address, unless `present` is given: the configuration in force, whose socket stays bound, when it is loaded
 * again. With nodes_dns it asks for the nodes, too, or takes those of
 * `present`. The caller calls configuration_free. CONFIG or CERTIFICATE: the text says where, which setting,
 * what was found, and what was expected. UNREACHABLE: our own address has a name that is not known, or DNS
 * does not list this node.
 */
enum status configuration_prepare(const struct conf_options *options, const struct configuration *present,
                                  struct configuration *out, struct error *error) COMM_MUST_USE;
/*
 * Makes the nodes of the list those of the configuration in force, after the checks of configuration_prepare.
 * The list gets the former ones. where: what it came from. CONFIG, NO_MEMORY: nothing has changed.
 */
enum status configuration_take_nodes(struct configuration *configuration, struct conf_node_list *list,
                                     const char *where, struct error *error) COMM_MUST_USE;
void configuration_free(struct configuration *configuration);

/* The options of net_tls_attach. Returns false if the node has no bulk links. */
bool configuration_tls(const struct configuration *configuration, struct tls_options *out);

/* The options of net_quic_new. They point into the configuration. */
struct quic_options configuration_quic(const struct configuration *configuration);

#endif
