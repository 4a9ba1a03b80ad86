#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#include "client/commctl/pki_join.h"

/* Labels separate the uses of one hash function, and the versions of this protocol. */
#define COMMITMENT_LABEL "commctl pki join 1: commitment"
#define TRANSCRIPT_LABEL "commctl pki join 1: transcript"
#define PROOF_LABEL "commctl pki join 1: proof of "
#define CODE_COUNT 100000000u /* of 8 decimal digits */

bool pki_nonce(uint8_t out[PKI_HASH_BYTES])
{
    return RAND_bytes(out, PKI_HASH_BYTES) == 1;
}

bool pki_hash(const char *bytes, size_t size, uint8_t out[PKI_HASH_BYTES])
{
    return EVP_Digest(bytes, size, out, NULL, EVP_sha256(), NULL) == 1;
}

/* Hashes the size, too, so that no two lists of fields give the same bytes. */
static bool add(EVP_MD_CTX *hash, const void *bytes, size_t size)
{
    const uint8_t prefix[4] = {(uint8_t)(size >> 24), (uint8_t)(size >> 16), (uint8_t)(size >> 8),
                               (uint8_t)size};
    return size <= UINT32_MAX && EVP_DigestUpdate(hash, prefix, sizeof prefix) == 1 &&
           EVP_DigestUpdate(hash, bytes, size) == 1;
}

static bool add_text(EVP_MD_CTX *hash, const char *text)
{
    return add(hash, text, strlen(text));
}

bool pki_commitment(const struct pki_exchange *exchange, uint8_t out[PKI_HASH_BYTES])
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    bool done = hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
                add_text(hash, COMMITMENT_LABEL) && add(hash, exchange->join_nonce, PKI_HASH_BYTES) &&
                add_text(hash, exchange->name) && add_text(hash, exchange->request) &&
                EVP_DigestFinal_ex(hash, out, NULL) == 1;
    EVP_MD_CTX_free(hash);
    return done;
}

bool pki_transcript(const struct pki_exchange *exchange, uint8_t out[PKI_HASH_BYTES])
{
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    bool done = hash != NULL && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
                add_text(hash, TRANSCRIPT_LABEL) && add_text(hash, exchange->name) &&
                add_text(hash, exchange->request) && add_text(hash, exchange->authority) &&
                add(hash, exchange->join_nonce, PKI_HASH_BYTES) &&
                add(hash, exchange->admit_nonce, PKI_HASH_BYTES) &&
                add(hash, exchange->list_hash, PKI_HASH_BYTES) && EVP_DigestFinal_ex(hash, out, NULL) == 1;
    EVP_MD_CTX_free(hash);
    return done;
}

bool pki_proof(const char *secret, const char *role, const uint8_t transcript[PKI_HASH_BYTES],
               uint8_t out[PKI_HASH_BYTES])
{
    uint8_t text[64 + PKI_HASH_BYTES];
    int size = snprintf((char *)text, 64, PROOF_LABEL "%s", role); /* so that no proof can be sent back */
    if (size < 0 || size >= 64) {
        return false;
    }
    memcpy(text + size, transcript, PKI_HASH_BYTES);
    return HMAC(EVP_sha256(), secret, (int)strlen(secret), text, (size_t)size + PKI_HASH_BYTES, out, NULL) !=
           NULL;
}

bool pki_proof_is_right(const struct pki_message *message, const char *secret, const char *role,
                        const uint8_t transcript[PKI_HASH_BYTES])
{
    uint8_t expected[PKI_HASH_BYTES];
    return message->has_proof && pki_proof(secret, role, transcript, expected) &&
           CRYPTO_memcmp(expected, message->hashes[PKI_HASH_PROOF], PKI_HASH_BYTES) == 0;
}

void pki_code_text(const uint8_t transcript[PKI_HASH_BYTES], char out[PKI_CODE_BYTES])
{
    uint64_t number = 0; /* of 64 bits, so no code is more likely than another by more than 1 in 10^11 */
    for (size_t i = 0; i < sizeof number; i++) {
        number = number << 8 | transcript[i];
    }
    uint32_t code = (uint32_t)(number % CODE_COUNT);
    snprintf(out, PKI_CODE_BYTES, "%04u-%04u", code / 10000 % 10000, code % 10000);
}
