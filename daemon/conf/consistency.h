#ifndef DAEMON_CONF_CONSISTENCY_H
#define DAEMON_CONF_CONSISTENCY_H

#include "daemon/conf/conf.h"

/* Whether settings fit together that are each fine. CONFIG, with the place of one of them. */
enum status conf_check_consistency(const struct conf *conf, struct error *error) COMM_MUST_USE;

#endif
