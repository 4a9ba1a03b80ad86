#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/pki.h"

#define KEY_BITS_MIN 112 /* of security: RSA of 2,048 bits, any usual curve */

static bool fail(const char *where, const char *what)
{
    fprintf(stderr, "commctl pki: %s: %s\n", where, what);
    return false;
}

bool pki_set_name(X509_NAME *name, const char *common_name)
{
    return X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_UTF8, (const unsigned char *)common_name, -1, -1,
                                      0) == 1;
}

X509_REQ *pki_request_new(EVP_PKEY *key, const char *name)
{
    X509_REQ *request = X509_REQ_new();
    if (request == NULL || !pki_set_name(X509_REQ_get_subject_name(request), name) ||
        X509_REQ_set_pubkey(request, key) != 1 || X509_REQ_sign(request, key, EVP_sha256()) <= 0) {
        X509_REQ_free(request);
        return NULL;
    }
    return request;
}

EVP_PKEY *pki_request_key(const char *where, const char *bytes, size_t size, const char *name)
{
    char found[NODE_NAME_MAX_BYTES + 1];
    X509_REQ *request = pki_parse_request(bytes, size);
    EVP_PKEY *key = request == NULL ? NULL : X509_REQ_get_pubkey(request);
    bool good = false;
    if (request == NULL) {
        (void)fail(where, "no certificate request in PEM");
    } else if (key == NULL || X509_REQ_verify(request, key) != 1) {
        (void)fail(where, "the request's signature is wrong");
    } else if (EVP_PKEY_get_security_bits(key) < KEY_BITS_MIN) {
        (void)fail(where, "the request's key is too weak (expected a usual curve, or RSA of 2048 bits)");
    } else if (!pki_name_of_request(request, found)) {
        fprintf(stderr, "commctl pki: %s: the request does not name one node (expected only \"CN=%s\")\n",
                where, name);
    } else if (strcmp(found, name) != 0) {
        fprintf(stderr, "commctl pki: %s: the request is for \"%s\", not for \"%s\"\n", where, found, name);
    } else {
        good = true;
    }
    ERR_clear_error();
    X509_REQ_free(request);
    if (!good) {
        EVP_PKEY_free(key);
        return NULL;
    }
    return key;
}

EVP_PKEY *pki_own_key(struct pki *pki, const struct pki_owner *owner)
{
    struct pki_bytes file;
    const char *path = pki_path(pki, pki->name, "key");
    if (access(path, F_OK) < 0 && errno == ENOENT) {
        EVP_PKEY *made = EVP_EC_gen("P-256");
        if (made == NULL) {
            (void)pki_fail_openssl("no key can be made");
        } else if (!pki_write_key(path, PKI_WRITE_NEW, owner, made)) {
            EVP_PKEY_free(made);
            made = NULL;
        }
        return made;
    }
    if (!pki_read(path, &file)) {
        return NULL;
    }
    EVP_PKEY *key = pki_parse_key(file.bytes, file.size);
    explicit_bzero(file.bytes, file.size);
    free(file.bytes);
    if (key == NULL) {
        (void)fail(path, "not an unencrypted private key in PEM");
    } else {
        printf("uses the key %s, which is there\n", path);
    }
    return key;
}

enum exit_code pki_request(struct pki *pki)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    struct pki_owner storage;
    const struct pki_owner *owner;
    if (!pki_owner_find(pki, &storage, &owner) || !pki_make_node_folder(pki->folder)) {
        return code;
    }
    EVP_PKEY *key = EVP_EC_gen("P-256");
    X509_REQ *request = key == NULL ? NULL : pki_request_new(key, pki->name);
    if (request == NULL) {
        code = pki_fail_openssl("the request cannot be made");
    } else if (pki_write_key(pki_path(pki, pki->name, "key"), PKI_WRITE_NEW, owner, key) &&
               pki_write_request(pki_path(pki, pki->name, "csr"), request)) {
        pki_owner_advise(pki, owner, pki_path(pki, pki->name, "key"));
        code = EXIT_CODE_OK;
    }
    X509_REQ_free(request);
    EVP_PKEY_free(key);
    return code;
}
