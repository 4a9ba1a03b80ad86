#ifndef DAEMON_CONF_METRICS_ADDRESS_H
#define DAEMON_CONF_METRICS_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* The setting `metrics`: "" (off), "127.0.0.1:9464", "[::1]:9464", "localhost:9464", or a Unix socket's path,
 * which begins with "/". Other machines never reach the metrics. */

/* Returns null if the text is one of these, otherwise what was expected. */
const char *conf_metrics_expected(const char *text);

/* Converts a text that is not empty. False if it is none of the above. */
bool conf_metrics_address(const char *text, struct sockaddr_storage *out, socklen_t *size_bytes);

#endif
