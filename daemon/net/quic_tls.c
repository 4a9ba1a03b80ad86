#include "daemon/net/quic_tls.h"

#include <assert.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <ngtcp2/ngtcp2_crypto_ossl.h>

#include "daemon/net/quic_algorithms.h"
#include "daemon/net/quic_certificate.h"

struct quic_tls {
    atomic_uint references;
    SSL_CTX *dialling;
    SSL_CTX *accepting;
};

static const unsigned char quic_alpn_list[] = {sizeof QUIC_ALPN - 1, 'c', 'o', 'm', 'm', 'd', '/', '2'};
_Static_assert(sizeof quic_alpn_list == sizeof QUIC_ALPN, "one protocol, with its length before it");

/* --- Contexts --- */

static pthread_once_t quic_once = PTHREAD_ONCE_INIT;
static int quic_refusal_index = -1; /* index of the session's error that is to be filled */

static void quic_once_init(void)
{
    quic_refusal_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
    (void)ngtcp2_crypto_ossl_init(); /* fetches algorithms once, not for each packet; without it, everything
                                        works, but slowly */
}

/* Records why a certificate is refused. It never changes the decision: it returns what OpenSSL found. */
static int quic_verify_record(int acceptable, X509_STORE_CTX *verification)
{
    if (acceptable == 1) {
        return 1;
    }
    const SSL *ssl = X509_STORE_CTX_get_ex_data(verification, SSL_get_ex_data_X509_STORE_CTX_idx());
    struct error *refusal = ssl == NULL ? NULL : SSL_get_ex_data(ssl, quic_refusal_index);
    if (refusal != NULL && refusal->status == STATUS_OK) {
        char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES];
        const X509 *certificate = X509_STORE_CTX_get_current_cert(verification);
        if (certificate == NULL) {
            certificate = X509_STORE_CTX_get0_cert(verification);
        }
        int code = X509_STORE_CTX_get_error(verification);
        quic_certificate_text(certificate, text);
        if (code == X509_V_ERR_HOSTNAME_MISMATCH) {
            const char *expected = X509_VERIFY_PARAM_get0_host(X509_STORE_CTX_get0_param(verification), 0);
            error_set(refusal, STATUS_CERTIFICATE, "the certificate (%s) is not of node \"%s\"", text,
                      expected == NULL ? "?" : expected);
        } else {
            error_set(refusal, STATUS_CERTIFICATE, "the certificate (%s) %s", text, quic_verify_text(code));
        }
    }
    return acceptable;
}

static int quic_alpn_select(SSL *ssl, const unsigned char **out, unsigned char *out_size,
                            const unsigned char *in, unsigned in_size, void *context)
{
    (void)ssl;
    (void)context;
    unsigned char *selected = NULL;
    if (SSL_select_next_proto(&selected, out_size, quic_alpn_list, sizeof quic_alpn_list, in, in_size) !=
        OPENSSL_NPN_NEGOTIATED) {
        return SSL_TLSEXT_ERR_ALERT_FATAL;
    }
    *out = selected;
    return SSL_TLSEXT_ERR_OK;
}

static enum status quic_context_new(const SSL_METHOD *method, const struct quic_options *options,
                                    SSL_CTX **out, struct error *error)
{
    SSL_CTX *context = SSL_CTX_new(method);
    if (context == NULL) {
        return quic_error_tls(error, STATUS_NO_MEMORY, "TLS context");
    }
    SSL_CTX_set_options(context, SSL_OP_NO_TICKET);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, quic_verify_record);
    SSL_CTX_set_alpn_select_cb(context, quic_alpn_select, NULL);
    enum status status = STATUS_OK;
    if (SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION) != 1 ||
        SSL_CTX_set_num_tickets(context, 0) != 1 || SSL_CTX_set_max_early_data(context, 0) != 1 ||
        SSL_CTX_set_ciphersuites(
            context, "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256") != 1 ||
        SSL_CTX_set_alpn_protos(context, quic_alpn_list, sizeof quic_alpn_list) != 0) {
        status = quic_error_tls(error, STATUS_INTERNAL, "TLS context: its options");
    }
    if (status == STATUS_OK) {
        status = quic_certificate_load(context, options, error);
    }
    if (status == STATUS_OK) {
        status = quic_certificate_check(context, options, error);
    }
    if (status != STATUS_OK) {
        SSL_CTX_free(context);
        return status;
    }
    *out = context;
    return STATUS_OK;
}

enum status quic_tls_new(const struct quic_options *options, struct quic_tls **out, struct error *error)
{
    pthread_once(&quic_once, quic_once_init);
    enum status status = quic_algorithms_load(error);
    if (status != STATUS_OK) {
        return status;
    }
    struct quic_tls *tls = calloc(1, sizeof *tls);
    if (tls == NULL || quic_refusal_index < 0) {
        free(tls);
        return error_set(error, STATUS_NO_MEMORY, "no memory for TLS");
    }
    atomic_init(&tls->references, 1);
    status = quic_context_new(TLS_client_method(), options, &tls->dialling, error);
    if (status == STATUS_OK) {
        status = quic_context_new(TLS_server_method(), options, &tls->accepting, error);
    }
    if (status != STATUS_OK) {
        quic_tls_free(tls);
        return status;
    }
    *out = tls;
    return STATUS_OK;
}

struct quic_tls *quic_tls_share(struct quic_tls *tls)
{
    (void)atomic_fetch_add(&tls->references, 1);
    return tls;
}

void quic_tls_free(struct quic_tls *tls)
{
    if (tls != NULL && atomic_fetch_sub(&tls->references, 1) == 1) {
        SSL_CTX_free(tls->dialling);
        SSL_CTX_free(tls->accepting);
        free(tls);
    }
}

enum status quic_tls_reset_secret(const struct quic_tls *tls, const char *node_name,
                                  const struct quic_address *local, uint8_t out[QUIC_SECRET_BYTES],
                                  struct error *error)
{
    static const char label[] = "commd stateless reset 2";
    struct quic_address_key key;
    uint8_t message[sizeof label + NODE_NAME_MAX_BYTES + 1 + sizeof key.bytes + sizeof key.port];
    size_t used = 0;
    unsigned char *der = NULL;
    int size = i2d_PrivateKey(SSL_CTX_get0_privatekey(tls->accepting), &der);
    size_t written = 0;
    quic_address_key(local, &key);
    const struct {
        const void *bytes;
        size_t size;
    } parts[] = {{label, sizeof label}, /* with its terminating zero byte */
                 {node_name, strlen(node_name) + 1},
                 {key.bytes, sizeof key.bytes},
                 {&key.port, sizeof key.port}};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        assert(used + parts[i].size <= sizeof message);
        memcpy(message + used, parts[i].bytes, parts[i].size);
        used += parts[i].size;
    }
    bool done = size > 0 && EVP_Q_mac(NULL, "HMAC", NULL, "SHA256", NULL, der, (size_t)size, message, used,
                                      out, QUIC_SECRET_BYTES, &written) != NULL;
    OPENSSL_clear_free(der, size > 0 ? (size_t)size : 0);
    return done && written == QUIC_SECRET_BYTES
               ? STATUS_OK
               : quic_error_tls(error, STATUS_INTERNAL, "deriving the secret of stateless resets");
}

/* --- Sessions --- */

static SSL *quic_session_new(SSL_CTX *context, struct error *refusal)
{
    SSL *ssl = SSL_new(context);
    *refusal = (struct error){.status = STATUS_OK};
    if (ssl != NULL && SSL_set_ex_data(ssl, quic_refusal_index, refusal) != 1) {
        SSL_free(ssl);
        return NULL;
    }
    return ssl;
}

/* Makes a session of the dialling side, which accepts only a certificate of that name. */
static SSL *quic_session_dial(const struct quic_tls *tls, const char *peer_name, struct error *refusal)
{
    SSL *ssl = quic_session_new(tls->dialling, refusal);
    if (ssl == NULL) {
        return NULL;
    }
    SSL_set_hostflags(ssl, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS);
    if (SSL_set1_host(ssl, peer_name) != 1) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_connect_state(ssl);
    return ssl;
}

SSL *quic_tls_dial(const struct quic_tls *tls, const char *peer_name, struct error *refusal)
{
    SSL *ssl = quic_session_dial(tls, peer_name, refusal);
    if (ssl != NULL && ngtcp2_crypto_ossl_configure_client_session(ssl) != 0) {
        SSL_free(ssl);
        return NULL;
    }
    return ssl;
}

SSL *quic_tls_stream(const struct quic_tls *tls, const char *peer_name, struct error *refusal)
{
    if (peer_name != NULL) {
        return quic_session_dial(tls, peer_name, refusal);
    }
    SSL *ssl = quic_session_new(tls->accepting, refusal);
    if (ssl != NULL) {
        SSL_set_accept_state(ssl);
    }
    return ssl;
}

SSL *quic_tls_accept(const struct quic_tls *tls, struct error *refusal)
{
    SSL *ssl = quic_session_new(tls->accepting, refusal);
    if (ssl == NULL) {
        return NULL;
    }
    if (ngtcp2_crypto_ossl_configure_server_session(ssl) != 0) {
        SSL_free(ssl);
        return NULL;
    }
    SSL_set_accept_state(ssl);
    return ssl;
}

enum status quic_tls_check_again(const struct quic_tls *tls, const SSL *ssl, bool dialled,
                                 struct error *error)
{
    const SSL_CTX *made_from = SSL_get_SSL_CTX(ssl);
    X509 *certificate = SSL_get0_peer_certificate(ssl);
    if (made_from == tls->dialling || made_from == tls->accepting) {
        return STATUS_OK;
    }
    X509_STORE_CTX *verification = X509_STORE_CTX_new();
    enum status status = STATUS_OK;
    if (certificate == NULL || verification == NULL ||
        X509_STORE_CTX_init(verification, SSL_CTX_get_cert_store(tls->accepting), certificate,
                            SSL_get_peer_cert_chain(ssl)) != 1 ||
        X509_STORE_CTX_set_default(verification, dialled ? "ssl_server" : "ssl_client") != 1) {
        status = quic_error_tls(error, STATUS_CERTIFICATE, "the peer's certificate cannot be checked");
    } else {
        X509_STORE_CTX_set_flags(verification, X509_V_FLAG_NO_CHECK_TIME);
        if (X509_verify_cert(verification) != 1) {
            char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES];
            status = error_set(error, STATUS_CERTIFICATE, "the certificate (%s) %s",
                               quic_certificate_text(certificate, text),
                               quic_verify_text(X509_STORE_CTX_get_error(verification)));
        }
    }
    ERR_clear_error();
    X509_STORE_CTX_free(verification);
    return status;
}

/* --- Names --- */

/*
 * Copies a DNS name as a string. Returns false for other kinds of names, and for names that are longer than a
 * node's or hold a zero byte.
 */
static bool quic_general_name(const GENERAL_NAME *general, char out[NODE_NAME_MAX_BYTES + 1])
{
    int type = 0;
    const ASN1_STRING *string = GENERAL_NAME_get0_value(general, &type);
    if (type != GEN_DNS) {
        return false;
    }
    int size = ASN1_STRING_length(string);
    const unsigned char *data = ASN1_STRING_get0_data(string);
    if (size <= 0 || size > NODE_NAME_MAX_BYTES || memchr(data, 0, (size_t)size) != NULL) {
        return false;
    }
    memcpy(out, data, (size_t)size);
    out[size] = '\0';
    return true;
}

enum status quic_tls_peer_name(SSL *ssl, const char *own_name, quic_name_function *known, void *context,
                               char out[NODE_NAME_MAX_BYTES + 1], struct error *error)
{
    const unsigned char *alpn = NULL;
    unsigned alpn_size = 0;
    SSL_get0_alpn_selected(ssl, &alpn, &alpn_size);
    if (alpn_size != sizeof QUIC_ALPN - 1 || memcmp(alpn, QUIC_ALPN, alpn_size) != 0) {
        return error_set(error, STATUS_VERSION, "the protocol \"%s\" was not agreed on", QUIC_ALPN);
    }
    const X509 *certificate = SSL_get0_peer_certificate(ssl);
    if (certificate == NULL || SSL_get_verify_result(ssl) != X509_V_OK) {
        return error_set(error, STATUS_CERTIFICATE, "no verified certificate was presented");
    }
    char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES];
    quic_certificate_text(certificate, text);
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    unsigned matches = 0;
    bool ours = false;
    for (int i = 0; names != NULL && i < sk_GENERAL_NAME_num(names); i++) {
        char name[NODE_NAME_MAX_BYTES + 1];
        if (!quic_general_name(sk_GENERAL_NAME_value(names, i), name)) {
            continue;
        }
        ours = ours || strcmp(name, own_name) == 0;
        if (known(context, name) && (matches == 0 || strcmp(name, out) != 0)) {
            memcpy(out, name, strlen(name) + 1);
            matches++;
        }
    }
    GENERAL_NAMES_free(names);
    if (ours) {
        return error_set(error, STATUS_CERTIFICATE, "the certificate (%s) is of node \"%s\" itself", text,
                         own_name);
    }
    if (matches != 1) {
        return error_set(error, STATUS_CERTIFICATE,
                         "the certificate (%s) names %s node that node \"%s\" knows", text,
                         matches == 0 ? "no" : "more than one", own_name);
    }
    return STATUS_OK;
}

const char *quic_certificate_text(const X509 *certificate, char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES])
{
    char subject[96] = "";
    if (certificate == NULL) {
        snprintf(text, QUIC_CERTIFICATE_TEXT_MAX_BYTES, "unknown");
        return text;
    }
    BIO *memory = BIO_new(BIO_s_mem());
    if (memory != NULL &&
        X509_NAME_print_ex(memory, X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253) >= 0) {
        int size = BIO_read(memory, subject, (int)sizeof subject - 1);
        subject[size > 0 ? size : 0] = '\0';
    }
    BIO_free(memory);
    int used = snprintf(text, QUIC_CERTIFICATE_TEXT_MAX_BYTES, "subject \"%s\"", subject);
    size_t end = (size_t)used;
    unsigned count = 0;
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names != NULL && i < sk_GENERAL_NAME_num(names); i++) {
        char name[NODE_NAME_MAX_BYTES + 1];
        if (quic_general_name(sk_GENERAL_NAME_value(names, i), name) &&
            end + strlen(name) + 12 < QUIC_CERTIFICATE_TEXT_MAX_BYTES) {
            used = snprintf(text + end, QUIC_CERTIFICATE_TEXT_MAX_BYTES - end, "%s\"%s\"",
                            count == 0 ? ", name " : ", ", name);
            end += (size_t)used;
            count++;
        }
    }
    GENERAL_NAMES_free(names);
    if (count == 0) {
        snprintf(text + end, QUIC_CERTIFICATE_TEXT_MAX_BYTES - end, ", no DNS name");
    }
    return text;
}

uint64_t quic_certificate_ends_s(const X509 *certificate)
{
    struct tm parts;
    const ASN1_TIME *ends = certificate == NULL ? NULL : X509_get0_notAfter(certificate);
    if (ends == NULL || ASN1_TIME_to_tm(ends, &parts) != 1) {
        ERR_clear_error();
        return 0;
    }
    time_t seconds = timegm(&parts);
    return seconds < 0 ? 0 : (uint64_t)seconds;
}

uint64_t quic_tls_certificate_ends_s(const struct quic_tls *tls)
{
    return quic_certificate_ends_s(SSL_CTX_get0_certificate(tls->accepting));
}

/* --- Texts --- */

const char *quic_verify_text(int code)
{
    switch (code) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        return "has expired";
    case X509_V_ERR_CERT_NOT_YET_VALID:
        return "is not valid yet";
    case X509_V_ERR_CERT_REVOKED:
        return "is revoked";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
    case X509_V_ERR_CERT_UNTRUSTED:
        return "was not issued by the cluster's CA";
    case X509_V_ERR_INVALID_PURPOSE:
        return "does not allow this use (expected extended key usage serverAuth and clientAuth, or none)";
    case X509_V_ERR_UNABLE_TO_GET_CRL:
        return "cannot be checked: the revocation file has no list of its CA";
    case X509_V_ERR_CRL_HAS_EXPIRED:
        return "cannot be checked: the revocation list has expired";
    case X509_V_ERR_CRL_NOT_YET_VALID:
        return "cannot be checked: the revocation list is not valid yet";
    default:
        return X509_verify_cert_error_string(code);
    }
}

/* The alerts that OpenSSL sends for certificates: RFC 8446, 6.2. */
enum status quic_alert_status(unsigned alert)
{
    switch (alert) {
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_EXPIRED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
    case SSL_AD_UNKNOWN_CA:
    case SSL_AD_ACCESS_DENIED:
    case SSL_AD_CERTIFICATE_REQUIRED:
        return STATUS_CERTIFICATE;
    case SSL_AD_NO_APPLICATION_PROTOCOL:
    case SSL_AD_PROTOCOL_VERSION:
        return STATUS_VERSION;
    default:
        return STATUS_PROTOCOL;
    }
}

const char *quic_alert_text(unsigned alert)
{
    switch (alert) {
    case SSL_AD_CERTIFICATE_REQUIRED:
        return "no certificate was presented";
    case SSL_AD_NO_APPLICATION_PROTOCOL:
        return "the protocol \"" QUIC_ALPN "\" was not agreed on";
    default:
        return SSL_alert_desc_string_long((int)alert);
    }
}
