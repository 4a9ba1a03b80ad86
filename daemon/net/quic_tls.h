#ifndef DAEMON_NET_QUIC_TLS_H
#define DAEMON_NET_QUIC_TLS_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "daemon/net/quic.h"
#include "daemon/net/quic_address.h"
#include "proto/types.h"

/*
 * Certificates and node identity. Mutual TLS 1.3 (RFC 8446): each side must present a certificate of the
 * cluster's CA. No early data, no tickets, no resumption. A node's name is a DNS name in its certificate's
 * subject alternative name.
 */
struct quic_tls;

#define QUIC_ALPN "commd/2"
#define QUIC_SECRET_BYTES 32u
#define QUIC_CERTIFICATE_TEXT_MAX_BYTES 256

/*
 * Loads and checks the files. The key belongs to the certificate, and only its owner can read it. The
 * certificate is in date, of the CA, not revoked, good for both roles, and names the node. CONFIG (a file
 * that cannot be read), CERTIFICATE.
 */
enum status quic_tls_new(const struct quic_options *options, struct quic_tls **out,
                         struct error *error) COMM_MUST_USE;
/* Takes another reference, to be released by quic_tls_free. Any thread may hold one. */
struct quic_tls *quic_tls_share(struct quic_tls *tls);
/* Releases a reference. Sessions made from it stay valid. Null is accepted. */
void quic_tls_free(struct quic_tls *tls);

/*
 * Whether these authorities and revocations also accept the peer's certificate, which a handshake has
 * accepted. Dates are not checked. Returns at once for a session that was made from tls. CERTIFICATE.
 */
enum status quic_tls_check_again(const struct quic_tls *tls, const SSL *ssl, bool dialled,
                                 struct error *error) COMM_MUST_USE;

/*
 * The secret of one endpoint's stateless resets (RFC 9000, 10.3.2), an HMAC under the private key. It stays
 * the same after a restart, so that peers know its tokens. It differs between endpoints, by node and by local
 * address and port. Otherwise one endpoint would reveal the tokens of another's connections (RFC 9000,
 * 21.11). node_name has at most NODE_NAME_MAX_BYTES; local is the bound address with its port.
 */
enum status quic_tls_reset_secret(const struct quic_tls *tls, const char *node_name,
                                  const struct quic_address *local, uint8_t out[QUIC_SECRET_BYTES],
                                  struct error *error) COMM_MUST_USE;

/*
 * Makes a session for one connection; null when out of memory. If a certificate does not verify, the reason
 * goes to *refusal, which outlives the session. peer_name is the name that the dialling side expects.
 */
SSL *quic_tls_dial(const struct quic_tls *tls, const char *peer_name, struct error *refusal);
SSL *quic_tls_accept(const struct quic_tls *tls, struct error *refusal);
/* The same for TLS over a stream, such as TCP. peer_name null: the accepting side. */
SSL *quic_tls_stream(const struct quic_tls *tls, const char *peer_name, struct error *refusal);

/* Whether a name of the peer's certificate is one to look for. context is the caller's. */
typedef bool quic_name_function(void *context, const char *name);

/*
 * After the handshake, finds the one name of the peer's certificate that `known` accepts. CERTIFICATE when
 * there is none or more than one, or when the certificate is own_name's. VERSION when ALPN was not agreed on.
 */
enum status quic_tls_peer_name(SSL *ssl, const char *own_name, quic_name_function *known, void *context,
                               char out[NODE_NAME_MAX_BYTES + 1], struct error *error) COMM_MUST_USE;

/* `subject "CN=a", name "a"`, all DNS names listed. Returns text. */
const char *quic_certificate_text(const X509 *certificate, char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES]);

/* The last second in which the certificate is valid, since 1970. 0 when it is null or holds no valid time. */
uint64_t quic_certificate_ends_s(const X509 *certificate);
/* The same for our own certificate. */
uint64_t quic_tls_certificate_ends_s(const struct quic_tls *tls);

/* "has expired", "was not issued by the cluster's CA", … for a code of X509_STORE_CTX_get_error. */
const char *quic_verify_text(int code);

/* A TLS alert (RFC 8446, 6.2) as the reason why a handshake failed. */
enum status quic_alert_status(unsigned alert);
const char *quic_alert_text(unsigned alert);

#endif
