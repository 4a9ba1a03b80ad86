#include "daemon/net/quic_certificate.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509_vfy.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/net/quic_tls.h"

enum status quic_error_tls(struct error *error, enum status status, const char *format, ...)
{
    char text[ERROR_TEXT_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    ERR_clear_error();
    return error_set(error, status, "%s%s%s", text, reason == NULL ? "" : ": ", reason == NULL ? "" : reason);
}

/* Opens a file. Distinguishes a missing file from one with wrong content: the texts of OpenSSL do not. */
static enum status quic_file_open(const char *what, const char *path, FILE **out, struct error *error)
{
    if (path == NULL || path[0] == '\0') {
        return error_set(error, STATUS_CONFIG, "no %s file is configured", what);
    }
    struct stat file;
    *out = fopen(path, "re");
    if (*out == NULL && errno == EACCES && stat(path, &file) == 0) {
        return error_set(
            error, STATUS_CONFIG,
            "%s file %s: uid %u may not read it: it belongs to uid %u (mode %04o); expected it to "
            "belong to uid %u",
            what, path, (unsigned)geteuid(), (unsigned)file.st_uid, (unsigned)file.st_mode & 07777u,
            (unsigned)geteuid());
    }
    if (*out == NULL) {
        error_set_errno(error, errno, "%s file %s", what, path);
        if (error != NULL) {
            error->status = STATUS_CONFIG;
        }
        return STATUS_CONFIG;
    }
    return STATUS_OK;
}

static enum status quic_file_check(const char *what, const char *path, struct error *error)
{
    FILE *file = NULL;
    enum status status = quic_file_open(what, path, &file, error);
    if (status == STATUS_OK) {
        fclose(file);
    }
    return status;
}

/*
 * Key files here are not encrypted. Without this callback OpenSSL would ask for a password at the terminal.
 */
static int quic_no_password(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

/* Memory for private keys, kept out of core dumps and of swap: for the present key, and that of a reload. */
#define QUIC_SECURE_BYTES 65536
#define QUIC_SECURE_LEAST_BYTES 32

/* Called once per process. If it fails, keys are in ordinary memory. */
static void quic_secure_keys(void)
{
    if (!CRYPTO_secure_malloc_initialized()) {
        (void)CRYPTO_secure_malloc_init(QUIC_SECURE_BYTES, QUIC_SECURE_LEAST_BYTES);
    }
}

static enum status quic_key_load(SSL_CTX *context, const struct quic_options *options, struct error *error)
{
    const char *path = options->key_path;
    mode_t forbidden = S_IRWXO | (options->key_is_credential ? S_IWGRP | S_IXGRP : S_IRWXG);
    FILE *file = NULL;
    struct stat attributes;
    EVP_PKEY *key = NULL;
    char text[BUFSIZ]; /* a buffer for the file, not on the heap, where the key would remain */
    enum status status = quic_file_open("key", path, &file, error);
    if (status != STATUS_OK) {
        return status;
    }
    quic_secure_keys();
    (void)setvbuf(file, text, _IOFBF, sizeof text);
    if (fstat(fileno(file), &attributes) != 0) {
        status = error_set_errno(error, errno, "key file %s", path);
        goto done;
    }
    if ((attributes.st_mode & forbidden) != 0) {
        status = error_set(
            error, STATUS_CONFIG,
            "key file %s: others than its owner have access to it (mode %04o, expected 0600 or 0400)", path,
            (unsigned)attributes.st_mode & 07777u);
        goto done;
    }
    key = PEM_read_PrivateKey(file, NULL, quic_no_password, NULL);
    if (key == NULL) {
        status =
            quic_error_tls(error, STATUS_CONFIG, "key file %s: not an unencrypted private key in PEM", path);
    } else if (SSL_CTX_use_PrivateKey(context, key) != 1) {
        status =
            quic_error_tls(error, STATUS_CERTIFICATE, "key file %s does not belong to the certificate", path);
    }

done:
    EVP_PKEY_free(key);
    fclose(file);
    OPENSSL_cleanse(text, sizeof text);
    return status;
}

static enum status quic_revocations_load(SSL_CTX *context, const char *path, struct error *error)
{
    enum status status = quic_file_check("revocation", path, error);
    if (status != STATUS_OK) {
        return status;
    }
    X509_STORE *store = SSL_CTX_get_cert_store(context);
    X509_LOOKUP *lookup = X509_STORE_add_lookup(store, X509_LOOKUP_file());
    if (lookup == NULL || X509_load_crl_file(lookup, path, X509_FILETYPE_PEM) < 1) {
        return quic_error_tls(error, STATUS_CONFIG,
                              "revocation file %s: not a certificate revocation list in PEM", path);
    }
    X509_STORE_set_flags(store, X509_V_FLAG_CRL_CHECK);
    return STATUS_OK;
}

enum status quic_certificate_load(SSL_CTX *context, const struct quic_options *options, struct error *error)
{
    ERR_clear_error();
    enum status status = quic_file_check("certificate", options->certificate_path, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (SSL_CTX_use_certificate_chain_file(context, options->certificate_path) != 1) {
        return quic_error_tls(error, STATUS_CONFIG, "certificate file %s: not a certificate in PEM",
                              options->certificate_path);
    }
    status = quic_key_load(context, options, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (SSL_CTX_check_private_key(context) != 1) {
        return quic_error_tls(error, STATUS_CERTIFICATE, "key file %s does not belong to certificate file %s",
                              options->key_path, options->certificate_path);
    }
    status = quic_file_check("CA", options->authority_path, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (SSL_CTX_load_verify_file(context, options->authority_path) != 1) {
        return quic_error_tls(error, STATUS_CONFIG, "CA file %s: no certificates in PEM",
                              options->authority_path);
    }
    if (options->revocation_path != NULL && options->revocation_path[0] != '\0') {
        return quic_revocations_load(context, options->revocation_path, error);
    }
    return STATUS_OK;
}

/* role: "ssl_client" or "ssl_server", names of OpenSSL's verification parameters. */
static enum status quic_certificate_verify(SSL_CTX *context, const struct quic_options *options,
                                           const char *role, struct error *error)
{
    STACK_OF(X509) *chain = NULL;
    X509_STORE_CTX *verification = X509_STORE_CTX_new();
    enum status status = STATUS_OK;
    SSL_CTX_get0_chain_certs(context, &chain);
    if (verification == NULL || X509_STORE_CTX_init(verification, SSL_CTX_get_cert_store(context),
                                                    SSL_CTX_get0_certificate(context), chain) != 1) {
        status = quic_error_tls(error, STATUS_NO_MEMORY, "checking certificate file %s",
                                options->certificate_path);
        goto done;
    }
    if (X509_STORE_CTX_set_default(verification, role) != 1) {
        status =
            quic_error_tls(error, STATUS_INTERNAL, "checking certificate file %s", options->certificate_path);
        goto done;
    }
    if (X509_verify_cert(verification) != 1) {
        char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES];
        int code = X509_STORE_CTX_get_error(verification);
        const X509 *certificate = X509_STORE_CTX_get_current_cert(verification);
        status =
            error_set(error, STATUS_CERTIFICATE, "certificate file %s: the certificate (%s) %s (CA file %s)",
                      options->certificate_path,
                      quic_certificate_text(
                          certificate == NULL ? SSL_CTX_get0_certificate(context) : certificate, text),
                      quic_verify_text(code), options->authority_path);
    }

done:
    ERR_clear_error();
    X509_STORE_CTX_free(verification);
    return status;
}

enum status quic_certificate_check(SSL_CTX *context, const struct quic_options *options, struct error *error)
{
    X509 *certificate = SSL_CTX_get0_certificate(context);
    char text[QUIC_CERTIFICATE_TEXT_MAX_BYTES];
    unsigned flags = X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_WILDCARDS;
    enum status status = quic_certificate_verify(context, options, "ssl_server", error);
    if (status == STATUS_OK) {
        status = quic_certificate_verify(context, options, "ssl_client", error);
    }
    if (status == STATUS_OK && X509_check_host(certificate, options->node_name, 0, flags, NULL) != 1) {
        status = error_set(error, STATUS_CERTIFICATE,
                           "certificate file %s is not of node \"%s\": it has %s (expected a DNS subject "
                           "alternative name \"%s\")",
                           options->certificate_path, options->node_name,
                           quic_certificate_text(certificate, text), options->node_name);
    }
    return status;
}
