#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/pki.h"

#define CLOCK_SKEW_S 300 /* certificates begin this long ago, because clocks of nodes differ */

enum exit_code pki_fail_openssl(const char *what)
{
    char text[256];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    fprintf(stderr, "commctl pki: %s: %s\n", what, text);
    return EXIT_CODE_FAILURE;
}

static bool fail(const char *path, const char *what)
{
    fprintf(stderr, "commctl pki: %s: %s\n", path, what);
    return false;
}

/* --- Certificates --- */

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool added = extension != NULL && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

bool pki_add_authority_identifier(X509_CRL *list, X509 *authority)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, authority, NULL, NULL, list, 0);
    X509_EXTENSION *extension =
        X509V3_EXT_conf_nid(NULL, &context, NID_authority_key_identifier, "keyid:always");
    bool added = extension != NULL && X509_CRL_add_ext(list, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_random_serial(X509 *certificate)
{
    BIGNUM *number = BN_new();
    bool set = number != NULL && BN_rand(number, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
               BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return set;
}

/* Makes a certificate without its extensions and signature. Returns null if OpenSSL fails. */
static X509 *new_certificate(EVP_PKEY *key, long days, time_t now_s)
{
    X509 *certificate = X509_new();
    if (certificate == NULL || X509_set_version(certificate, X509_VERSION_3) != 1 ||
        !set_random_serial(certificate) ||
        X509_time_adj_ex(X509_getm_notBefore(certificate), 0, -CLOCK_SKEW_S, &now_s) == NULL ||
        X509_time_adj_ex(X509_getm_notAfter(certificate), (int)days, 0, &now_s) == NULL ||
        X509_set_pubkey(certificate, key) != 1) {
        X509_free(certificate);
        return NULL;
    }
    return certificate;
}

static bool complete_authority(X509 *certificate, EVP_PKEY *key)
{
    return pki_set_name(X509_get_subject_name(certificate), "commd cluster authority") &&
           X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
           add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
           add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static bool complete_node(X509 *certificate, const char *name, const struct pki_authority *authority)
{
    X509 *issuer = authority->certificate;
    char alternative[NODE_NAME_MAX_BYTES + 8];
    snprintf(alternative, sizeof alternative, "DNS:%s", name);
    return pki_set_name(X509_get_subject_name(certificate), name) &&
           X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) == 1 &&
           add_extension(certificate, issuer, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, issuer, NID_key_usage, "critical,digitalSignature") &&
           add_extension(certificate, issuer, NID_ext_key_usage, "serverAuth,clientAuth") &&
           add_extension(certificate, issuer, NID_subject_alt_name, alternative) &&
           add_extension(certificate, issuer, NID_subject_key_identifier, "hash") &&
           add_extension(certificate, issuer, NID_authority_key_identifier, "keyid:always") &&
           X509_sign(certificate, authority->key, EVP_sha256()) > 0;
}

/* --- The authority --- */

void pki_authority_free(struct pki_authority *authority)
{
    X509_free(authority->certificate);
    EVP_PKEY_free(authority->key);
    *authority = (struct pki_authority){0};
}

static bool authority_check(struct pki *pki, const struct pki_authority *authority)
{
    if (authority->certificate == NULL) {
        return fail(pki_path(pki, "ca", "crt"), "not a certificate in PEM");
    }
    if (X509_check_ca(authority->certificate) == 0) {
        return fail(pki_path(pki, "ca", "crt"), "not the certificate of an authority");
    }
    if (authority->key == NULL) {
        return fail(pki_path(pki, "ca", "key"), "not an unencrypted private key in PEM");
    }
    if (X509_check_private_key(authority->certificate, authority->key) != 1) {
        ERR_clear_error();
        return fail(pki_path(pki, "ca", "key"), "does not belong to ca.crt");
    }
    return true;
}

bool pki_authority_load(struct pki *pki, struct pki_authority *out)
{
    struct pki_bytes file;
    *out = (struct pki_authority){0};
    bool read = pki_read(pki_path(pki, "ca", "crt"), &file);
    if (read) {
        out->certificate = pki_parse_certificate(file.bytes, file.size);
        free(file.bytes);
        read = pki_read(pki_path(pki, "ca", "key"), &file);
    }
    if (read) {
        out->key = pki_parse_key(file.bytes, file.size);
        explicit_bzero(file.bytes, file.size);
        free(file.bytes);
    } else {
        fprintf(stderr, "commctl pki: has 'commctl pki init' been run in %s?\n", pki->folder);
    }
    if (!read || !authority_check(pki, out)) {
        pki_authority_free(out);
        return false;
    }
    return true;
}

enum exit_code pki_init(struct pki *pki)
{
    struct pki_authority authority = {.key = EVP_EC_gen("P-256")};
    const struct pki_record none = {0};
    enum exit_code code = EXIT_CODE_FAILURE;
    int lock = pki_make_folder(pki->folder) ? pki_lock(pki->folder) : -1;
    if (lock < 0) {
        goto cleanup;
    }
    if (authority.key != NULL) {
        authority.certificate =
            new_certificate(authority.key, pki->days != 0 ? pki->days : PKI_AUTHORITY_DAYS, pki->now_s);
    }
    if (authority.certificate == NULL || !complete_authority(authority.certificate, authority.key)) {
        code = pki_fail_openssl("the authority's certificate cannot be made");
    } else if (pki_write_key(pki_path(pki, "ca", "key"), PKI_WRITE_NEW, NULL, authority.key) &&
               pki_write_certificate(pki_path(pki, "ca", "crt"), PKI_WRITE_NEW, authority.certificate) &&
               pki_revocations_store(pki, &authority, &none)) {
        code = EXIT_CODE_OK;
    }
    close(lock);
cleanup:
    pki_authority_free(&authority);
    return code;
}

static EVP_PKEY *key_of_request(const char *path, const char *name)
{
    struct pki_bytes file;
    if (!pki_read(path, &file)) {
        return NULL;
    }
    EVP_PKEY *key = pki_request_key(path, file.bytes, file.size, name);
    free(file.bytes);
    return key;
}

/* --- Issuing --- */

/* The certificate is recorded before it is written, so every certificate that exists can be revoked. */
static bool record_certificate(struct pki *pki, const X509 *certificate)
{
    struct pki_record record;
    struct pki_entry entry;
    if (!pki_record_load(pki, &record)) {
        return false;
    }
    bool recorded = pki_entry_of(certificate, &entry) && pki_record_add(&record, &entry);
    if (!recorded) {
        fputs("commctl pki: the certificate cannot be recorded\n", stderr);
    }
    recorded = recorded && pki_record_store(pki, &record);
    pki_record_free(&record);
    return recorded;
}

enum exit_code pki_issue_to(struct pki *pki, const struct pki_authority *authority, EVP_PKEY *key,
                            EVP_PKEY *private_key, enum pki_write_mode how)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    X509 *certificate = new_certificate(key, pki->days != 0 ? pki->days : PKI_NODE_DAYS, pki->now_s);
    if (certificate == NULL || !complete_node(certificate, pki->name, authority)) {
        code = pki_fail_openssl("the certificate cannot be made");
    } else if (record_certificate(pki, certificate) &&
               (private_key == NULL ||
                pki_write_key(pki_path(pki, pki->name, "key"), how, NULL, private_key)) &&
               pki_write_certificate(pki_path(pki, pki->name, "crt"), how, certificate)) {
        code = EXIT_CODE_OK;
    }
    X509_free(certificate);
    return code;
}

static bool is_absent(const char *path)
{
    return access(path, F_OK) < 0 || fail(path, "File exists ('commctl pki renew' replaces it)");
}

enum exit_code pki_issue(struct pki *pki)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    struct pki_authority authority = {0};
    EVP_PKEY *key = NULL;
    bool key_made_here = pki->request_path == NULL;
    int lock = pki_lock(pki->folder);
    if (lock < 0 || !pki_authority_load(pki, &authority) || !is_absent(pki_path(pki, pki->name, "crt")) ||
        (key_made_here && !is_absent(pki_path(pki, pki->name, "key")))) {
        goto cleanup;
    }
    key = key_made_here ? EVP_EC_gen("P-256") : key_of_request(pki->request_path, pki->name);
    if (key != NULL) {
        code = pki_issue_to(pki, &authority, key, key_made_here ? key : NULL, PKI_WRITE_NEW);
    } else if (key_made_here) {
        code = pki_fail_openssl("no key can be made");
    }
cleanup:
    EVP_PKEY_free(key);
    pki_authority_free(&authority);
    if (lock >= 0) {
        close(lock);
    }
    return code;
}

/* Gets the key of a certificate that the authority issued for the name and has not revoked. */
static EVP_PKEY *key_of_certificate(struct pki *pki, const struct pki_authority *authority)
{
    struct pki_bytes file;
    struct pki_record record = {0};
    struct pki_entry entry;
    EVP_PKEY *key = NULL;
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s", pki_path(pki, pki->name, "crt"));
    if (!pki_read(path, &file)) {
        fputs("commctl pki: renew needs that certificate to keep its key; use --new-key or --request FILE "
              "for another key\n",
              stderr);
        return NULL;
    }
    X509 *certificate = pki_parse_certificate(file.bytes, file.size);
    free(file.bytes);
    if (certificate == NULL) {
        (void)fail(path, "not a certificate in PEM");
    } else if (X509_verify(certificate, authority->key) != 1) {
        (void)fail(path, "not issued by this authority");
    } else if (!pki_entry_of(certificate, &entry) || strcmp(entry.name, pki->name) != 0) {
        fprintf(stderr, "commctl pki: %s: the certificate is not for \"%s\"\n", path, pki->name);
    } else if (pki_record_load(pki, &record)) {
        const struct pki_entry *known = pki_record_find(&record, entry.serial);
        if (known != NULL && known->revoked[0] != '\0') {
            (void)fail(path, "it is revoked, and so is its key: use --new-key or --request FILE");
        } else {
            key = X509_get_pubkey(certificate);
        }
    }
    ERR_clear_error();
    pki_record_free(&record);
    X509_free(certificate);
    return key;
}

enum exit_code pki_renew(struct pki *pki)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    struct pki_authority authority = {0};
    EVP_PKEY *key = NULL;
    int lock = pki_lock(pki->folder);
    if (lock < 0 || !pki_authority_load(pki, &authority)) {
        goto cleanup;
    }
    if (pki->request_path != NULL) {
        key = key_of_request(pki->request_path, pki->name);
    } else if (pki->new_key) {
        key = EVP_EC_gen("P-256");
    } else {
        key = key_of_certificate(pki, &authority);
    }
    if (key != NULL) {
        code = pki_issue_to(pki, &authority, key, pki->new_key ? key : NULL, PKI_WRITE_REPLACE);
    }
cleanup:
    EVP_PKEY_free(key);
    pki_authority_free(&authority);
    if (lock >= 0) {
        close(lock);
    }
    return code;
}
