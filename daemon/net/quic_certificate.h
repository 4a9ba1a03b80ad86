#ifndef DAEMON_NET_QUIC_CERTIFICATE_H
#define DAEMON_NET_QUIC_CERTIFICATE_H

#include <openssl/ssl.h>

#include "daemon/base/error.h"
#include "daemon/net/quic.h"

/*
 * Loads a node's own files into a context for either role. Error texts name the file and what is wrong with
 * it.
 */

/* CONFIG for a file that cannot be read or parsed, CERTIFICATE for one whose content is not acceptable. */
enum status quic_certificate_load(SSL_CTX *context, const struct quic_options *options,
                                  struct error *error) COMM_MUST_USE;

/* Reports what a peer would find wrong with the loaded certificate. */
enum status quic_certificate_check(SSL_CTX *context, const struct quic_options *options,
                                   struct error *error) COMM_MUST_USE;

/* As error_set, followed by the text of OpenSSL's last error, if it has one. */
enum status quic_error_tls(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
