#include "tests/fuzz/quic_initial.h"

#include <openssl/evp.h>
#include <stdbool.h>
#include <string.h>

#include <ngtcp2/ngtcp2.h>
#include <ngtcp2/ngtcp2_crypto.h>

#define DATAGRAM_MIN_BYTES 1200u
#define TAG_BYTES 16u
#define NUMBER_BYTES 4u

/* The salt of RFC 9001, 5.2. */
static const uint8_t salt[] = {0x38, 0x76, 0x2c, 0xf7, 0xf5, 0x59, 0x34, 0xb3, 0x4d, 0x17,
                               0x9a, 0xe6, 0xa4, 0xc8, 0x0c, 0xad, 0xcc, 0xbb, 0x7f, 0x0a};

struct keys {
    uint8_t key[16], iv[12], protection[16];
};

/* HKDF-Expand-Label (RFC 8446, 7.1) without a context. */
static bool expand(const ngtcp2_crypto_md *md, const uint8_t secret[32], const char *label, uint8_t *out,
                   size_t size)
{
    uint8_t info[32] = {0, (uint8_t)size, (uint8_t)(6 + strlen(label)), 't', 'l', 's', '1', '3', ' '};
    memcpy(info + 9, label, strlen(label));
    return ngtcp2_crypto_hkdf_expand(out, size, md, secret, 32, info, 10 + strlen(label)) == 0;
}

static bool derive(const struct quic_initial *initial, struct keys *out)
{
    ngtcp2_crypto_md md;
    uint8_t secret[32], client[32];
    ngtcp2_crypto_md_init(&md, (void *)(uintptr_t)EVP_sha256());
    return ngtcp2_crypto_hkdf_extract(secret, &md, initial->key_id, initial->key_id_bytes, salt,
                                      sizeof salt) == 0 &&
           expand(&md, secret, "client in", client, sizeof client) &&
           expand(&md, client, "quic key", out->key, sizeof out->key) &&
           expand(&md, client, "quic iv", out->iv, sizeof out->iv) &&
           expand(&md, client, "quic hp", out->protection, sizeof out->protection);
}

static bool encrypt(const struct keys *keys, uint32_t number, const uint8_t *header, size_t header_bytes,
                    uint8_t *payload, size_t size)
{
    uint8_t nonce[12];
    int length = 0;
    memcpy(nonce, keys->iv, sizeof nonce);
    for (unsigned i = 0; i < 4; i++) {
        nonce[11 - i] ^= (uint8_t)(number >> 8 * i);
    }
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    bool done = context != NULL &&
                EVP_EncryptInit_ex(context, EVP_aes_128_gcm(), NULL, keys->key, nonce) == 1 &&
                EVP_EncryptUpdate(context, NULL, &length, header, (int)header_bytes) == 1 &&
                EVP_EncryptUpdate(context, payload, &length, payload, (int)size) == 1 &&
                EVP_EncryptFinal_ex(context, payload + length, &length) == 1 &&
                EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, TAG_BYTES, payload + size) == 1;
    EVP_CIPHER_CTX_free(context);
    return done;
}

/* Header protection (RFC 9001, 5.4). */
static bool protect(const struct keys *keys, uint8_t *packet, size_t number_at)
{
    uint8_t mask[32];
    int length = 0;
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    bool done = context != NULL &&
                EVP_EncryptInit_ex(context, EVP_aes_128_ecb(), NULL, keys->protection, NULL) == 1 &&
                EVP_EncryptUpdate(context, mask, &length, packet + number_at + 4, 16) == 1;
    EVP_CIPHER_CTX_free(context);
    packet[0] ^= mask[0] & 0x0fu;
    for (unsigned i = 0; i < NUMBER_BYTES; i++) {
        packet[number_at + i] ^= mask[1 + i];
    }
    return done;
}

size_t quic_initial_make(const struct quic_initial *initial, const uint8_t *payload, size_t payload_bytes,
                         uint8_t out[QUIC_INITIAL_DATAGRAM_MAX_BYTES])
{
    struct keys keys;
    size_t head = 7u + initial->destination_bytes + initial->source_bytes + 2u + initial->token_bytes + 2u;
    size_t padded = payload_bytes;
    if (head + NUMBER_BYTES + padded + TAG_BYTES < DATAGRAM_MIN_BYTES) {
        padded = DATAGRAM_MIN_BYTES - head - NUMBER_BYTES - TAG_BYTES;
    }
    if (head + NUMBER_BYTES + padded + TAG_BYTES > QUIC_INITIAL_DATAGRAM_MAX_BYTES ||
        !derive(initial, &keys)) {
        return 0;
    }
    size_t at = 0;
    const uint8_t first[] = {0xc3, 0, 0, 0, 1};
    memcpy(out, first, sizeof first);
    at += sizeof first;
    out[at++] = initial->destination_bytes;
    memcpy(out + at, initial->destination, initial->destination_bytes);
    at += initial->destination_bytes;
    out[at++] = initial->source_bytes;
    memcpy(out + at, initial->source, initial->source_bytes);
    at += initial->source_bytes;
    out[at++] = (uint8_t)(0x40u | initial->token_bytes >> 8);
    out[at++] = (uint8_t)initial->token_bytes;
    memcpy(out + at, initial->token, initial->token_bytes);
    at += initial->token_bytes;
    size_t length = NUMBER_BYTES + padded + TAG_BYTES;
    out[at++] = (uint8_t)(0x40u | length >> 8);
    out[at++] = (uint8_t)length;
    size_t number_at = at;
    for (unsigned i = 0; i < NUMBER_BYTES; i++) {
        out[at++] = (uint8_t)(initial->number >> 8 * (3 - i));
    }
    memcpy(out + at, payload, payload_bytes);
    memset(out + at + payload_bytes, 0, padded - payload_bytes);
    if (!encrypt(&keys, initial->number, out, at, out + at, padded) || !protect(&keys, out, number_at)) {
        return 0;
    }
    return at + padded + TAG_BYTES;
}
