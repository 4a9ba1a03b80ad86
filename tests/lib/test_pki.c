#include "tests/lib/test_pki.h"

#include <dirent.h>
#include <limits.h>
#include <openssl/ec.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define HOUR_S 3600L
#define DAY_S (24 * HOUR_S)

struct test_path {
    struct test_path *next;
    char text[PATH_MAX];
};

struct test_authority {
    EVP_PKEY *key;
    X509 *certificate;
};

struct test_pki {
    char folder[32];
    struct test_authority authority;
    struct test_authority other;
    X509_CRL *revocations;
    struct test_path *paths;
};

static void require(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "test_pki: %s failed\n", what);
        abort();
    }
}

const char *test_pki_path(struct test_pki *pki, const char *file)
{
    struct test_path *path = malloc(sizeof *path);
    require(path != NULL, "malloc");
    snprintf(path->text, sizeof path->text, "%s/%s", pki->folder, file);
    path->next = pki->paths;
    pki->paths = path;
    return path->text;
}

static FILE *open_file(struct test_pki *pki, const char *stem, const char *extension)
{
    char name[128];
    snprintf(name, sizeof name, "%s%s", stem, extension);
    const char *path = test_pki_path(pki, name);
    (void)unlink(path);
    FILE *file = fopen(path, "we");
    require(file != NULL && fchmod(fileno(file), 0600) == 0, "opening a file");
    return file;
}

static void write_certificate(struct test_pki *pki, const char *stem, X509 *certificate)
{
    FILE *file = open_file(pki, stem, ".pem");
    require(PEM_write_X509(file, certificate) == 1 && fclose(file) == 0, "writing a certificate");
}

static void add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    require(extension != NULL && X509_add_ext(certificate, extension, -1) == 1, "adding an extension");
    X509_EXTENSION_free(extension);
}

static X509 *new_certificate(const char *common_name, EVP_PKEY *key, long begins_s, long ends_s)
{
    X509 *certificate = X509_new();
    unsigned char serial[8];
    require(certificate != NULL && RAND_bytes(serial, sizeof serial) == 1, "making a certificate");
    uint64_t number = 1;
    memcpy(&number, serial, sizeof number);
    X509_NAME *name = X509_get_subject_name(certificate);
    require(X509_set_version(certificate, X509_VERSION_3) == 1 &&
                ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate), (number >> 1) | 1) == 1 &&
                X509_gmtime_adj(X509_getm_notBefore(certificate), begins_s) != NULL &&
                X509_gmtime_adj(X509_getm_notAfter(certificate), ends_s) != NULL &&
                X509_set_pubkey(certificate, key) == 1 &&
                X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, (const unsigned char *)common_name, -1,
                                           -1, 0) == 1,
            "filling a certificate");
    return certificate;
}

static void make_authority(struct test_pki *pki, struct test_authority *authority, const char *stem,
                           const char *name)
{
    authority->key = EVP_EC_gen("P-256");
    require(authority->key != NULL, "making a key");
    authority->certificate = new_certificate(name, authority->key, -HOUR_S, DAY_S);
    X509 *certificate = authority->certificate;
    require(X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1, "naming the issuer");
    add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE");
    add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign");
    add_extension(certificate, certificate, NID_subject_key_identifier, "hash");
    require(X509_sign(certificate, authority->key, EVP_sha256()) > 0, "signing");
    write_certificate(pki, stem, certificate);
}

struct test_pki *test_pki_new(void)
{
    struct test_pki *pki = calloc(1, sizeof *pki);
    require(pki != NULL, "calloc");
    strcpy(pki->folder, "/tmp/test-pki-XXXXXX");
    require(mkdtemp(pki->folder) != NULL, "mkdtemp");
    make_authority(pki, &pki->authority, "ca", "test cluster");
    make_authority(pki, &pki->other, "other-ca", "another cluster");
    return pki;
}

void test_pki_free(struct test_pki *pki)
{
    DIR *folder = opendir(pki->folder);
    require(folder != NULL, "opendir");
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            (void)unlinkat(dirfd(folder), entry->d_name, 0);
        }
    }
    closedir(folder);
    (void)rmdir(pki->folder);
    EVP_PKEY_free(pki->authority.key);
    X509_free(pki->authority.certificate);
    EVP_PKEY_free(pki->other.key);
    X509_free(pki->other.certificate);
    X509_CRL_free(pki->revocations);
    while (pki->paths != NULL) {
        struct test_path *path = pki->paths;
        pki->paths = path->next;
        free(path);
    }
    free(pki);
}

void test_pki_issue(struct test_pki *pki, const char *stem, const struct test_certificate *wanted)
{
    struct test_authority *authority = wanted->other_authority ? &pki->other : &pki->authority;
    bool usual = wanted->begins_s == 0 && wanted->ends_s == 0;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    require(key != NULL, "making a key");
    X509 *certificate =
        new_certificate(stem, key, usual ? -HOUR_S : wanted->begins_s, usual ? DAY_S : wanted->ends_s);
    require(X509_set_issuer_name(certificate, X509_get_subject_name(authority->certificate)) == 1,
            "naming the issuer");
    add_extension(certificate, authority->certificate, NID_basic_constraints, "critical,CA:FALSE");
    add_extension(certificate, authority->certificate, NID_ext_key_usage,
                  wanted->server_only ? "serverAuth" : "serverAuth,clientAuth");
    if (wanted->name != NULL) {
        char names[512];
        snprintf(names, sizeof names, "DNS:%s%s%s", wanted->name, wanted->second_name != NULL ? ",DNS:" : "",
                 wanted->second_name != NULL ? wanted->second_name : "");
        add_extension(certificate, authority->certificate, NID_subject_alt_name, names);
    }
    require(X509_sign(certificate, authority->key, EVP_sha256()) > 0, "signing");
    write_certificate(pki, stem, certificate);
    FILE *file = open_file(pki, stem, ".key");
    require(PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1 && fclose(file) == 0,
            "writing a key");
    X509_free(certificate);
    EVP_PKEY_free(key);
}

static void add_revoked(struct test_pki *pki, const char *stem)
{
    char name[128];
    snprintf(name, sizeof name, "%s.pem", stem);
    FILE *file = fopen(test_pki_path(pki, name), "re");
    require(file != NULL, "opening a certificate");
    X509 *certificate = PEM_read_X509(file, NULL, NULL, NULL);
    X509_REVOKED *revoked = X509_REVOKED_new();
    ASN1_TIME *now = ASN1_TIME_set(NULL, time(NULL));
    require(certificate != NULL && revoked != NULL && now != NULL &&
                X509_REVOKED_set_serialNumber(revoked, X509_get_serialNumber(certificate)) == 1 &&
                X509_REVOKED_set_revocationDate(revoked, now) == 1 &&
                X509_CRL_add0_revoked(pki->revocations, revoked) == 1,
            "revoking");
    ASN1_TIME_free(now);
    X509_free(certificate);
    fclose(file);
}

void test_pki_revoke(struct test_pki *pki, const char *stem)
{
    if (pki->revocations == NULL) {
        pki->revocations = X509_CRL_new();
        require(pki->revocations != NULL && X509_CRL_set_version(pki->revocations, X509_CRL_VERSION_2) == 1 &&
                    X509_CRL_set_issuer_name(pki->revocations,
                                             X509_get_subject_name(pki->authority.certificate)) == 1,
                "making a revocation list");
    }
    ASN1_TIME *last = ASN1_TIME_set(NULL, time(NULL) - HOUR_S);
    ASN1_TIME *next = ASN1_TIME_set(NULL, time(NULL) + DAY_S);
    if (stem != NULL) {
        add_revoked(pki, stem);
    }
    require(X509_CRL_set1_lastUpdate(pki->revocations, last) == 1 &&
                X509_CRL_set1_nextUpdate(pki->revocations, next) == 1 &&
                X509_CRL_sign(pki->revocations, pki->authority.key, EVP_sha256()) > 0,
            "signing the revocation list");
    ASN1_TIME_free(last);
    ASN1_TIME_free(next);
    FILE *file = open_file(pki, "crl", ".pem");
    require(PEM_write_X509_CRL(file, pki->revocations) == 1 && fclose(file) == 0,
            "writing the revocation list");
}
