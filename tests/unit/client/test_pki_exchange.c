#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/pki_join.h"

static struct pki_exchange example(void)
{
    struct pki_exchange exchange = {.name = "alpha", .request = "REQUEST", .authority = "AUTHORITY"};
    for (size_t i = 0; i < PKI_HASH_BYTES; i++) {
        exchange.join_nonce[i] = (uint8_t)i;
        exchange.admit_nonce[i] = (uint8_t)(0x80 + i);
        exchange.list_hash[i] = (uint8_t)(0x40 + i);
    }
    return exchange;
}

static void assert_hash(const uint8_t hash[PKI_HASH_BYTES], const char *expected)
{
    char text[2 * PKI_HASH_BYTES + 1];
    for (size_t i = 0; i < PKI_HASH_BYTES; i++) {
        snprintf(text + 2 * i, 3, "%02x", hash[i]);
    }
    assert_string_equal(text, expected);
}

/* The values come from Python's hashlib and hmac: SHA-256 over each field after its size. */
static void test_vectors(void **state)
{
    (void)state;
    const struct pki_exchange exchange = example();
    uint8_t hash[PKI_HASH_BYTES];
    uint8_t proof[PKI_HASH_BYTES];
    char code[PKI_CODE_BYTES];
    assert_true(pki_commitment(&exchange, hash));
    assert_hash(hash, "ab6f0cb750693c745c0b4ee9b62a369840b39f574c7db30f3148883538e3ce53");
    assert_true(pki_transcript(&exchange, hash));
    assert_hash(hash, "68ab933715ce92a2e28cdd5107ba0d3805e9b5e684972b2760f61ba3f48ec450");
    pki_code_text(hash, code);
    assert_string_equal(code, "6037-1362");
    assert_true(pki_proof("a secret of twenty characters", "join", hash, proof));
    assert_hash(proof, "8123b72bc06179d6da5dc17ddd106353a4a91e8a5adc4f005a9f3672f2e0ca0f");
}

static void assert_code_changes(const struct pki_exchange *changed, const char *what)
{
    const struct pki_exchange exchange = example();
    uint8_t before[PKI_HASH_BYTES];
    uint8_t after[PKI_HASH_BYTES];
    assert_true(pki_transcript(&exchange, before) && pki_transcript(changed, after));
    if (memcmp(before, after, sizeof before) == 0) {
        fail_msg("%s does not count", what);
    }
}

static void test_everything_counts(void **state)
{
    (void)state;
    struct pki_exchange changed = example();
    changed.name = "alphA";
    assert_code_changes(&changed, "name");
    changed = example();
    changed.request = "REQUESt";
    assert_code_changes(&changed, "request");
    changed = example();
    changed.authority = "AUTHORITy";
    assert_code_changes(&changed, "authority");
    changed = example();
    changed.join_nonce[31] ^= 1;
    assert_code_changes(&changed, "join's nonce");
    changed = example();
    changed.admit_nonce[0] ^= 0x80;
    assert_code_changes(&changed, "admit's nonce");
    changed = example();
    changed.list_hash[7] ^= 1;
    assert_code_changes(&changed, "the revocation list");
    changed = example();
    changed.name = "alphaR"; /* the same letters, cut elsewhere */
    changed.request = "EQUEST";
    assert_code_changes(&changed, "where a field ends");
}

static void test_a_commitment_binds(void **state)
{
    (void)state;
    struct pki_exchange exchange = example();
    uint8_t before[PKI_HASH_BYTES];
    uint8_t after[PKI_HASH_BYTES];
    assert_true(pki_commitment(&exchange, before));
    exchange.admit_nonce[0] ^= 1; /* not known yet */
    exchange.authority = NULL;
    assert_true(pki_commitment(&exchange, after));
    assert_memory_equal(before, after, sizeof before);
    exchange.join_nonce[0] ^= 1;
    assert_true(pki_commitment(&exchange, after));
    assert_memory_not_equal(before, after, sizeof before);
    exchange = example();
    exchange.request = "ANOTHER";
    assert_true(pki_commitment(&exchange, after));
    assert_memory_not_equal(before, after, sizeof before);
    exchange = example();
    exchange.name = "beta";
    assert_true(pki_commitment(&exchange, after));
    assert_memory_not_equal(before, after, sizeof before);
}

static void test_a_proof_is_of_one_side(void **state)
{
    (void)state;
    static const char secret[] = "a secret of twenty characters";
    const struct pki_exchange exchange = example();
    uint8_t transcript[PKI_HASH_BYTES];
    struct pki_message message = {.kind = PKI_MESSAGE_CONFIRM, .has_proof = true};
    assert_true(pki_transcript(&exchange, transcript));
    assert_true(pki_proof(secret, "join", transcript, message.hashes[PKI_HASH_PROOF]));
    assert_true(pki_proof_is_right(&message, secret, "join", transcript));
    assert_false(pki_proof_is_right(&message, secret, "admit", transcript));
    assert_false(pki_proof_is_right(&message, "another one of twenty characters", "join", transcript));
    transcript[0] ^= 1;
    assert_false(pki_proof_is_right(&message, secret, "join", transcript));
    transcript[0] ^= 1;
    message.has_proof = false;
    assert_false(pki_proof_is_right(&message, secret, "join", transcript));
}

/* --- Messages --- */

static struct pki_message full_message(enum pki_message_kind kind)
{
    struct pki_message message = {.kind = kind, .has_proof = true};
    static char *const texts[PKI_TEXT_COUNT] = {(char *)"alpha",          (char *)"a request\n",
                                                (char *)"an authority\n", (char *)"a certificate\n",
                                                (char *)"a list\n",       (char *)"a reason"};
    memcpy(message.texts, texts, sizeof texts);
    memset(message.hashes, 0xa5, sizeof message.hashes);
    return message;
}

static void test_messages_there_and_back(void **state)
{
    (void)state;
    static const struct {
        bool proof;
        unsigned texts;
    } expected[PKI_MESSAGE_COUNT] = {
        [PKI_MESSAGE_AUTHORITY] = {false, 1u << PKI_TEXT_AUTHORITY},
        [PKI_MESSAGE_OPEN] = {true, 1u << PKI_TEXT_NAME | 1u << PKI_TEXT_REQUEST},
        [PKI_MESSAGE_CONFIRM] = {true, 0},
        [PKI_MESSAGE_CERTIFICATE] = {false, 1u << PKI_TEXT_CERTIFICATE | 1u << PKI_TEXT_REVOCATIONS},
        [PKI_MESSAGE_REFUSE] = {false, 1u << PKI_TEXT_REASON},
    };
    for (int kind = 0; kind < PKI_MESSAGE_COUNT; kind++) {
        const struct pki_message message = full_message((enum pki_message_kind)kind);
        struct pki_message parsed;
        size_t size;
        char *text = pki_message_format(&message, &size);
        assert_non_null(text);
        assert_null(pki_message_parse(text, size, &parsed));
        assert_int_equal(parsed.kind, kind);
        assert_int_equal(parsed.has_proof, expected[kind].proof);
        for (unsigned i = 0; i < PKI_TEXT_COUNT; i++) {
            if ((expected[kind].texts & 1u << i) != 0) {
                assert_string_equal(parsed.texts[i], message.texts[i]);
            } else {
                assert_null(parsed.texts[i]);
            }
        }
        pki_message_free(&parsed);
        for (size_t cut = 0; cut < size; cut++) {
            assert_non_null(pki_message_parse(text, cut, &parsed));
        }
        free(text);
    }
}

static void test_wrong_messages(void **state)
{
    (void)state;
#define HASH_TEXT "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define V "{\"version\":1,\"kind\":"
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"", "no JSON object"},
        {"null", "no JSON object"},
        {"[]", "no JSON object"},
        {"{", "no JSON object"},
        {"{} {}", "no JSON object"},
        {"{}", "version"},
        {"{\"version\":2,\"kind\":\"confirm\"}", "version"},
        {"{\"version\":\"1\",\"kind\":\"confirm\"}", "version"},
        {V "\"dance\"}", "kind"},
        {V "7}", "kind"},
        {V "\"confirm\",\"kind\":\"confirm\"}", "no JSON object"},
        {V "\"confirm\",\"proof\":7}", "hash"},
        {V "\"commit\"}", "hash"},
        {V "\"commit\",\"commitment\":\"0123\"}", "hash"},
        {V "\"commit\",\"commitment\":\"0" HASH_TEXT "\"}", "hash"},
        {V "\"commit\",\"commitment\":\"0123456789ABCDEF0123456789abcdef0123456789abcdef0123456789abcdef\"}",
         "hash"},
        {V "\"authority\",\"nonce\":\"" HASH_TEXT "\"}", "hash"},
        {V "\"authority\",\"nonce\":\"" HASH_TEXT "\",\"revocation_list_sha256\":\"" HASH_TEXT "\"}", "text"},
        {V "\"authority\",\"nonce\":\"" HASH_TEXT "\",\"revocation_list_sha256\":\"" HASH_TEXT
           "\",\"authority\":7}",
         "text"},
        {V "\"refuse\"}", "text"},
        {V "\"refuse\",\"reason\":\"zero \\u0000 byte\"}", "no JSON object"},
        {V "\"open\",\"nonce\":\"" HASH_TEXT "\",\"name\":\"alpha\"}", "text"},
        {V "\"open\",\"nonce\":\"" HASH_TEXT "\",\"name\":\"../etc\",\"request\":\"\"}", "no node"},
        {V "\"open\",\"nonce\":\"" HASH_TEXT "\",\"name\":\"ca\",\"request\":\"\"}", "no node"},
        {V "\"open\",\"nonce\":\"" HASH_TEXT "\",\"name\":\"\",\"request\":\"\"}", "no node"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct pki_message message;
        const char *says = pki_message_parse(wrong[i].text, strlen(wrong[i].text), &message);
        if (says == NULL || strstr(says, wrong[i].says) == NULL) {
            fail_msg("%s: %s", wrong[i].text, says == NULL ? "accepted" : says);
        }
        for (size_t field = 0; field < PKI_TEXT_COUNT; field++) {
            assert_null(message.texts[field]);
        }
    }
}

/* A reason is shown on a terminal. */
static void test_a_reason_is_printable(void **state)
{
    (void)state;
    struct pki_message message;
    static const char text[] = V "\"refuse\",\"reason\":\"a\\u001b[2Jb\\nc\\u00e4\"}";
    assert_null(pki_message_parse(text, sizeof text - 1, &message));
    assert_string_equal(message.texts[PKI_TEXT_REASON], "a?[2Jb?c??");
    pki_message_free(&message);
    char large[1024];
    int size = snprintf(large, sizeof large, V "\"refuse\",\"reason\":\"%0500d\"}", 7);
    assert_null(pki_message_parse(large, (size_t)size, &message));
    assert_true(strlen(message.texts[PKI_TEXT_REASON]) <= 200);
    pki_message_free(&message);
}

static void test_deep_and_large_messages(void **state)
{
    (void)state;
    struct pki_message message;
    char *bytes = malloc(PKI_MESSAGE_MAX_BYTES);
    assert_non_null(bytes);
    memset(bytes, '[', PKI_MESSAGE_MAX_BYTES);
    assert_non_null(pki_message_parse(bytes, PKI_MESSAGE_MAX_BYTES, &message));
    memset(bytes, 0, PKI_MESSAGE_MAX_BYTES);
    assert_non_null(pki_message_parse(bytes, PKI_MESSAGE_MAX_BYTES, &message));
    free(bytes);
}

/* --- Addresses --- */

static void test_addresses(void **state)
{
    (void)state;
    static const struct {
        const char *text, *host, *port;
    } cases[] = {
        {"alpha", "alpha", "7399"},        {"alpha:80", "alpha", "80"}, {"192.0.2.1", "192.0.2.1", "7399"},
        {"192.0.2.1:0", "192.0.2.1", "0"}, {"::1", "::1", "7399"},      {"[::1]:65535", "::1", "65535"},
        {"[fe80::1]", "fe80::1", "7399"},  {":7401", "", "7401"},       {"", "", "7399"},
    };
    static const char *const wrong[] = {"alpha:", "alpha:65536", "alpha:8x", "alpha:-1",    "[::1",
                                        "[::1]x", "[::1]:",      "al]pha",   "alpha:123456"};
    char host[PKI_ADDRESS_MAX_BYTES + 1];
    char port[6];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (!pki_address_split(cases[i].text, host, port)) {
            fail_msg("%s: refused", cases[i].text);
        }
        assert_string_equal(host, cases[i].host);
        assert_string_equal(port, cases[i].port);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        if (pki_address_split(wrong[i], host, port)) {
            fail_msg("%s: accepted as %s, %s", wrong[i], host, port);
        }
    }
    char large[PKI_ADDRESS_MAX_BYTES + 2];
    memset(large, 'a', sizeof large - 1);
    large[sizeof large - 1] = '\0';
    assert_false(pki_address_split(large, host, port));
    large[sizeof large - 2] = '\0';
    assert_true(pki_address_split(large, host, port));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vectors),
        cmocka_unit_test(test_everything_counts),
        cmocka_unit_test(test_a_commitment_binds),
        cmocka_unit_test(test_a_proof_is_of_one_side),
        cmocka_unit_test(test_messages_there_and_back),
        cmocka_unit_test(test_wrong_messages),
        cmocka_unit_test(test_a_reason_is_printable),
        cmocka_unit_test(test_deep_and_large_messages),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
