#ifndef DAEMON_CONFIGURATION_H
#define DAEMON_CONFIGURATION_H

#include "daemon/conf/conf.h"
#include "daemon/net/quic.h"

/* The steps that the start, a reload and --check-config share. */

/* conf_load, and the checks that need higher layers. The caller frees *out. */
enum status configuration_load(const struct conf_options *options, struct conf **out,
                               struct error *error) COMM_MUST_USE;

/* The options of net_quic_new. They point into conf. */
struct quic_options configuration_quic(const struct conf *conf);

/*
 * configuration_load. If other nodes are configured, it also checks that certificate, key, authority and
 * revocation list can be used. It binds nothing. If systemd keeps the key from this process (in ExecReload=),
 * neither the key nor what belongs to it is checked. The caller frees *out. CONFIG or CERTIFICATE: the text
 * names the file.
 */
enum status configuration_check(const struct conf_options *options, struct conf **out,
                                struct error *error) COMM_MUST_USE;

#endif
