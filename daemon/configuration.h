#ifndef DAEMON_CONFIGURATION_H
#define DAEMON_CONFIGURATION_H

#include "daemon/conf/conf.h"
#include "daemon/net/quic.h"

/* What the start, a reload and --check-config do with the configuration. */

/* conf_load, and what only a higher layer can check. The caller frees *out. */
enum status configuration_load(const struct conf_options *options, struct conf **out,
                               struct error *error) COMM_MUST_USE;

/* What net_quic_new needs to know of it; points into it. */
struct quic_options configuration_quic(const struct conf *conf);

/*
 * configuration_load; and, if other nodes are to be reached, whether certificate, key, authority and
 * revocation list can be used. It binds nothing. A key that systemd keeps from this process (in ExecReload=)
 * is not looked at, and nor is what belongs to it. The caller frees *out. CONFIG or CERTIFICATE: the text
 * names the file.
 */
enum status configuration_check(const struct conf_options *options, struct conf **out,
                                struct error *error) COMM_MUST_USE;

#endif
