#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/commctl.h"
#include "proto/types.h"

/*
 * The cluster's authority and its nodes' certificates (X.509 v3, RFC 5280; ECDSA on P-256). The subject
 * alternative name is the node's name and nothing else: that is what commd compares. Keys are made where they
 * are used: `request` on the node, `issue --request` where the authority's key is; a bare `issue` makes the
 * key too, for nodes that share this machine. No file is ever overwritten.
 */
#define AUTHORITY_DAYS 3650
#define NODE_DAYS_DEFAULT 825
#define CLOCK_SKEW_S 300

struct pki {
    const char *folder;
    const char *name;
    const char *request_path;
    long days;
    char path[PATH_MAX];
};

static const char *pki_path(struct pki *pki, const char *name, const char *extension)
{
    snprintf(pki->path, sizeof pki->path, "%s/%s.%s", pki->folder, name, extension);
    return pki->path;
}

static enum exit_code fail_openssl(const char *what)
{
    char text[256];
    ERR_error_string_n(ERR_get_error(), text, sizeof text);
    fprintf(stderr, "commctl pki: %s: %s\n", what, text);
    return EXIT_CODE_FAILURE;
}

static FILE *create_file(const char *path, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    if (file == NULL) {
        fprintf(stderr, "commctl pki: %s: %s\n", path, strerror(errno));
    }
    return file;
}

static bool close_written(FILE *file, bool written, const char *path)
{
    if (fclose(file) != 0 || !written) {
        fprintf(stderr, "commctl pki: %s: could not be written\n", path);
        unlink(path);
        return false;
    }
    printf("wrote %s\n", path);
    return true;
}

static bool write_key(const char *path, EVP_PKEY *key)
{
    FILE *file = create_file(path, 0600);
    return file != NULL &&
           close_written(file, PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) == 1, path);
}

static bool write_certificate(const char *path, X509 *certificate)
{
    FILE *file = create_file(path, 0644);
    return file != NULL && close_written(file, PEM_write_X509(file, certificate) == 1, path);
}

static bool add_extension(X509 *certificate, X509 *issuer, int nid, const char *value)
{
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    bool added = extension != NULL && X509_add_ext(certificate, extension, -1) == 1;
    X509_EXTENSION_free(extension);
    return added;
}

static bool set_name(X509_NAME *name, const char *common_name)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name, -1, -1,
                                      0) == 1;
}

static bool set_random_serial(X509 *certificate)
{
    BIGNUM *number = BN_new();
    bool set = number != NULL && BN_rand(number, 127, BN_RAND_TOP_ONE, BN_RAND_BOTTOM_ANY) == 1 &&
               BN_to_ASN1_INTEGER(number, X509_get_serialNumber(certificate)) != NULL;
    BN_free(number);
    return set;
}

/* A certificate without its extensions and signature; null when OpenSSL fails. */
static X509 *new_certificate(EVP_PKEY *key, long days)
{
    X509 *certificate = X509_new();
    if (certificate == NULL || X509_set_version(certificate, X509_VERSION_3) != 1 ||
        !set_random_serial(certificate) ||
        X509_gmtime_adj(X509_getm_notBefore(certificate), -CLOCK_SKEW_S) == NULL ||
        X509_gmtime_adj(X509_getm_notAfter(certificate), days * 86400) == NULL ||
        X509_set_pubkey(certificate, key) != 1) {
        X509_free(certificate);
        return NULL;
    }
    return certificate;
}

static bool complete_authority(X509 *certificate, EVP_PKEY *key)
{
    return set_name(X509_get_subject_name(certificate), "commd cluster authority") &&
           X509_set_issuer_name(certificate, X509_get_subject_name(certificate)) == 1 &&
           add_extension(certificate, certificate, NID_basic_constraints, "critical,CA:TRUE,pathlen:0") &&
           add_extension(certificate, certificate, NID_key_usage, "critical,keyCertSign,cRLSign") &&
           add_extension(certificate, certificate, NID_subject_key_identifier, "hash") &&
           X509_sign(certificate, key, EVP_sha256()) > 0;
}

static bool complete_node(X509 *certificate, const char *name, X509 *authority, EVP_PKEY *authority_key)
{
    char alternative[NODE_NAME_MAX_BYTES + 8];
    snprintf(alternative, sizeof alternative, "DNS:%s", name);
    return set_name(X509_get_subject_name(certificate), name) &&
           X509_set_issuer_name(certificate, X509_get_subject_name(authority)) == 1 &&
           add_extension(certificate, authority, NID_basic_constraints, "critical,CA:FALSE") &&
           add_extension(certificate, authority, NID_key_usage, "critical,digitalSignature") &&
           add_extension(certificate, authority, NID_ext_key_usage, "serverAuth,clientAuth") &&
           add_extension(certificate, authority, NID_subject_alt_name, alternative) &&
           add_extension(certificate, authority, NID_subject_key_identifier, "hash") &&
           add_extension(certificate, authority, NID_authority_key_identifier, "keyid:always") &&
           X509_sign(certificate, authority_key, EVP_sha256()) > 0;
}

static enum exit_code make_folder(const char *folder)
{
    if (mkdir(folder, 0755) < 0 && errno != EEXIST) {
        fprintf(stderr, "commctl pki: %s: %s\n", folder, strerror(errno));
        return EXIT_CODE_FAILURE;
    }
    return EXIT_CODE_OK;
}

static enum exit_code pki_init(struct pki *pki)
{
    if (make_folder(pki->folder) != EXIT_CODE_OK) {
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = EXIT_CODE_FAILURE;
    X509 *certificate = NULL;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    if (key == NULL ||
        (certificate = new_certificate(key, pki->days != 0 ? pki->days : AUTHORITY_DAYS)) == NULL ||
        !complete_authority(certificate, key)) {
        code = fail_openssl("the authority's certificate cannot be made");
    } else if (write_key(pki_path(pki, "ca", "key"), key) &&
               write_certificate(pki_path(pki, "ca", "crt"), certificate)) {
        code = EXIT_CODE_OK;
    }
    X509_free(certificate);
    EVP_PKEY_free(key);
    return code;
}

static enum exit_code pki_request(struct pki *pki)
{
    if (make_folder(pki->folder) != EXIT_CODE_OK) {
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = EXIT_CODE_FAILURE;
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509_REQ *request = X509_REQ_new();
    if (key == NULL || request == NULL || !set_name(X509_REQ_get_subject_name(request), pki->name) ||
        X509_REQ_set_pubkey(request, key) != 1 || X509_REQ_sign(request, key, EVP_sha256()) <= 0) {
        code = fail_openssl("the request cannot be made");
    } else if (write_key(pki_path(pki, pki->name, "key"), key)) {
        const char *path = pki_path(pki, pki->name, "csr");
        FILE *file = create_file(path, 0644);
        if (file != NULL && close_written(file, PEM_write_X509_REQ(file, request) == 1, path)) {
            code = EXIT_CODE_OK;
        }
    }
    X509_REQ_free(request);
    EVP_PKEY_free(key);
    return code;
}

/* The public key that is to be certified: of a request, whose signature proves that its sender has the key.
 */
static EVP_PKEY *key_of_request(const char *path)
{
    FILE *file = fopen(path, "re");
    X509_REQ *request = file != NULL ? PEM_read_X509_REQ(file, NULL, NULL, NULL) : NULL;
    EVP_PKEY *key = NULL;
    if (request == NULL) {
        fprintf(stderr, "commctl pki: %s: %s\n", path,
                file == NULL ? strerror(errno) : "no certificate request");
    } else if ((key = X509_REQ_get_pubkey(request)) == NULL || X509_REQ_verify(request, key) != 1) {
        fprintf(stderr, "commctl pki: %s: the request's signature is wrong\n", path);
        EVP_PKEY_free(key);
        key = NULL;
    }
    X509_REQ_free(request);
    if (file != NULL) {
        fclose(file);
    }
    return key;
}

static bool read_authority(struct pki *pki, X509 **certificate, EVP_PKEY **key)
{
    const char *path = pki_path(pki, "ca", "crt");
    FILE *file = fopen(path, "re");
    *certificate = file != NULL ? PEM_read_X509(file, NULL, NULL, NULL) : NULL;
    if (file != NULL) {
        fclose(file);
    }
    file = *certificate != NULL ? fopen(path = pki_path(pki, "ca", "key"), "re") : NULL;
    *key = file != NULL ? PEM_read_PrivateKey(file, NULL, NULL, NULL) : NULL;
    if (file != NULL) {
        fclose(file);
    }
    if (*key == NULL) {
        fprintf(stderr, "commctl pki: %s: cannot be read (has 'commctl pki init' been run here?)\n", path);
    }
    return *key != NULL;
}

static enum exit_code pki_issue(struct pki *pki)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    X509 *authority = NULL;
    X509 *certificate = NULL;
    EVP_PKEY *authority_key = NULL;
    EVP_PKEY *key = NULL;
    bool key_made_here = pki->request_path == NULL;
    if (!read_authority(pki, &authority, &authority_key)) {
        goto cleanup;
    }
    key = key_made_here ? EVP_EC_gen("P-256") : key_of_request(pki->request_path);
    if (key == NULL) {
        code = key_made_here ? fail_openssl("no key can be made") : EXIT_CODE_FAILURE;
        goto cleanup;
    }
    certificate = new_certificate(key, pki->days != 0 ? pki->days : NODE_DAYS_DEFAULT);
    if (certificate == NULL || !complete_node(certificate, pki->name, authority, authority_key)) {
        code = fail_openssl("the certificate cannot be made");
        goto cleanup;
    }
    if (key_made_here && !write_key(pki_path(pki, pki->name, "key"), key)) {
        goto cleanup;
    }
    if (write_certificate(pki_path(pki, pki->name, "crt"), certificate)) {
        code = EXIT_CODE_OK;
    }
cleanup:
    X509_free(certificate);
    EVP_PKEY_free(key);
    EVP_PKEY_free(authority_key);
    X509_free(authority);
    return code;
}

static bool name_is_valid(const char *name)
{
    size_t length = strlen(name);
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    return length >= 1 && length <= NODE_NAME_MAX_BYTES && strspn(name, allowed) == length &&
           name[0] != '-' && name[length - 1] != '-' && strcmp(name, "ca") != 0;
}

static enum exit_code pki_usage(void)
{
    fputs("usage: commctl pki init [--dir DIR] [--days N]                     make the cluster's authority\n"
          "       commctl pki request NAME [--dir DIR]                        on a node: make its key and a "
          "request\n"
          "       commctl pki issue NAME [--request FILE] [--dir DIR] [--days N]\n"
          "                                                                   certify a request; without "
          "one, make the key, too\n"
          "Files are DIR/ca.crt, ca.key, NAME.crt, NAME.key, NAME.csr; DIR is . by default. NAME is a node's "
          "name: letters, digits\n"
          "and hyphens, at most 63, not \"ca\".\n",
          stderr);
    return EXIT_CODE_USAGE;
}

enum exit_code verb_pki(struct commctl *commctl, int argc, char **argv)
{
    (void)commctl;
    static struct pki pki = {.folder = "."};
    for (int i = 2; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--dir") == 0 && i + 1 < argc) {
            pki.folder = argv[++i];
        } else if (strcmp(argv[i], "--request") == 0 && i + 1 < argc) {
            pki.request_path = argv[++i];
        } else if (strcmp(argv[i], "--days") == 0 && i + 1 < argc) {
            pki.days = strtol(argv[++i], &end, 10);
            if (*end != '\0' || pki.days == 0 || pki.days > 36500 || pki.days < -36500) {
                return pki_usage();
            }
        } else if (pki.name == NULL && argv[i][0] != '-') {
            pki.name = argv[i];
        } else {
            return pki_usage();
        }
    }
    if (argc >= 2 && strcmp(argv[1], "init") == 0 && pki.name == NULL && pki.request_path == NULL) {
        return pki_init(&pki);
    }
    if (argc < 2 || pki.name == NULL || !name_is_valid(pki.name)) {
        return pki_usage();
    }
    if (strcmp(argv[1], "request") == 0 && pki.request_path == NULL) {
        return pki_request(&pki);
    }
    return strcmp(argv[1], "issue") == 0 ? pki_issue(&pki) : pki_usage();
}
