#include "daemon/net/quic_algorithms.h"

#include <stdbool.h>
#include <stddef.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>

/* X(kind of EVP, name): the algorithms that TLS 1.3 and QUIC need, of each kind. */
#define ALGORITHM_LIST(X)                                                                                    \
    X(MD, "SHA2-256")                                                                                        \
    X(MD, "SHA2-384")                                                                                        \
    X(CIPHER, "AES-128-GCM")                                                                                 \
    X(CIPHER, "AES-256-GCM")                                                                                 \
    X(CIPHER, "AES-128-ECB")                                                                                 \
    X(CIPHER, "AES-256-ECB")                                                                                 \
    X(CIPHER, "AES-256-CTR")                                                                                 \
    X(MAC, "HMAC")                                                                                           \
    X(KDF, "HKDF")                                                                                           \
    X(KDF, "TLS13-KDF")                                                                                      \
    X(RAND, "CTR-DRBG")                                                                                      \
    X(KEYMGMT, "EC")                                                                                         \
    X(KEYMGMT, "RSA")                                                                                        \
    X(KEYEXCH, "ECDH")                                                                                       \
    X(SIGNATURE, "ECDSA")                                                                                    \
    X(SIGNATURE, "RSA")                                                                                      \
    X(ASYM_CIPHER, "RSA")

/* Likewise, if this OpenSSL has them. */
#define OPTIONAL_LIST(X)                                                                                     \
    X(CIPHER, "ChaCha20-Poly1305")                                                                           \
    X(CIPHER, "ChaCha20")                                                                                    \
    X(KEYMGMT, "X25519")                                                                                     \
    X(KEYMGMT, "X25519MLKEM768")                                                                             \
    X(KEYEXCH, "X25519")                                                                                     \
    X(KEM, "X25519MLKEM768")

#define FETCH(kind, name)                                                                                    \
    static bool fetch_##kind(const char *algorithm)                                                          \
    {                                                                                                        \
        EVP_##kind *found = EVP_##kind##_fetch(NULL, algorithm, NULL);                                       \
        EVP_##kind##_free(found);                                                                            \
        return found != NULL;                                                                                \
    }
#define KIND_LIST(X)                                                                                         \
    X(MD, )                                                                                                  \
    X(CIPHER, )                                                                                              \
    X(MAC, )                                                                                                 \
    X(KDF, )                                                                                                 \
    X(RAND, )                                                                                                \
    X(KEYMGMT, )                                                                                             \
    X(KEYEXCH, )                                                                                             \
    X(SIGNATURE, )                                                                                           \
    X(ASYM_CIPHER, )                                                                                         \
    X(KEM, )
KIND_LIST(FETCH)

struct algorithm {
    bool (*fetch)(const char *name);
    const char *name;
};
#define ALGORITHM(kind, text) {fetch_##kind, text},

enum status quic_algorithms_load(struct error *error)
{
    static const struct algorithm needed[] = {ALGORITHM_LIST(ALGORITHM)};
    static const struct algorithm optional[] = {OPTIONAL_LIST(ALGORITHM)};
    ERR_set_mark();
    for (size_t i = 0; i < sizeof optional / sizeof *optional; i++) {
        (void)optional[i].fetch(optional[i].name);
    }
    ERR_pop_to_mark();
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!needed[i].fetch(needed[i].name)) {
            return error_set(error, STATUS_NO_MEMORY, "TLS: OpenSSL has no %s, or no memory for it",
                             needed[i].name);
        }
    }
    return STATUS_OK;
}
