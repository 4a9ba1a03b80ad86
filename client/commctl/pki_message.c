#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/pki_join.h"

#define HASH(field) (1u << PKI_HASH_##field)
#define TEXT(field) (1u << PKI_TEXT_##field)

struct shape {
    const char *name;
    unsigned hashes; /* bits of what such a message must have */
    unsigned texts;
    bool can_prove;
};

static const struct shape shapes[PKI_MESSAGE_COUNT] = {
    [PKI_MESSAGE_COMMIT] = {"commit", HASH(COMMITMENT), 0, false},
    [PKI_MESSAGE_AUTHORITY] = {"authority", HASH(NONCE) | HASH(LIST), TEXT(AUTHORITY), false},
    [PKI_MESSAGE_OPEN] = {"open", HASH(NONCE), TEXT(NAME) | TEXT(REQUEST), true},
    [PKI_MESSAGE_CONFIRM] = {"confirm", 0, 0, true},
    [PKI_MESSAGE_CERTIFICATE] = {"certificate", 0, TEXT(CERTIFICATE) | TEXT(REVOCATIONS), false},
    [PKI_MESSAGE_INSTALLED] = {"installed", 0, 0, false},
    [PKI_MESSAGE_REFUSE] = {"refuse", 0, TEXT(REASON), false},
};
static const char *const hash_keys[PKI_HASH_COUNT] = {[PKI_HASH_COMMITMENT] = "commitment",
                                                      [PKI_HASH_NONCE] = "nonce",
                                                      [PKI_HASH_LIST] = "revocation_list_sha256",
                                                      [PKI_HASH_PROOF] = "proof"};
static const char *const text_keys[PKI_TEXT_COUNT] = {
    [PKI_TEXT_NAME] = "name",
    [PKI_TEXT_REQUEST] = "request",
    [PKI_TEXT_AUTHORITY] = "authority",
    [PKI_TEXT_CERTIFICATE] = "certificate",
    [PKI_TEXT_REVOCATIONS] = "revocation_list",
    [PKI_TEXT_REASON] = "reason",
};
#define REASON_MAX_BYTES 200

void pki_message_free(struct pki_message *message)
{
    for (size_t i = 0; i < PKI_TEXT_COUNT; i++) {
        free(message->texts[i]);
    }
    *message = (struct pki_message){0};
}

/* --- Parsing --- */

static int digit_value(char digit)
{
    static const char digits[] = "0123456789abcdef";
    const char *found = digit == '\0' ? NULL : strchr(digits, digit);
    return found == NULL ? -1 : (int)(found - digits);
}

/* Small letters alone, so that a hash has one form. */
static bool hash_parse(const json_t *value, uint8_t out[PKI_HASH_BYTES])
{
    const char *text = json_string_value(value);
    if (text == NULL || json_string_length(value) != (size_t)2 * PKI_HASH_BYTES) {
        return false;
    }
    for (size_t i = 0; i < PKI_HASH_BYTES; i++) {
        int high = digit_value(text[2 * i]);
        int low = digit_value(text[2 * i + 1]);
        if (high < 0 || low < 0) {
            return false;
        }
        out[i] = (uint8_t)(high << 4 | low);
    }
    return true;
}

/* A stranger's text could move the terminal's cursor and change what the person reads. */
static void make_printable(char *text)
{
    if (strlen(text) > REASON_MAX_BYTES) {
        text[REASON_MAX_BYTES] = '\0';
    }
    for (; *text != '\0'; text++) {
        if (*text < ' ' || *text > '~') {
            *text = '?';
        }
    }
}

static bool kind_parse(const json_t *value, enum pki_message_kind *out)
{
    const char *name = json_string_value(value);
    for (int kind = 0; name != NULL && kind < PKI_MESSAGE_COUNT; kind++) {
        if (strcmp(name, shapes[kind].name) == 0) {
            *out = (enum pki_message_kind)kind;
            return true;
        }
    }
    return false;
}

/* Keys that are unknown are ignored, so that later versions can add some. */
static const char *fields_parse(const json_t *object, struct pki_message *out)
{
    const struct shape *shape = &shapes[out->kind];
    for (unsigned i = 0; i < PKI_HASH_COUNT; i++) {
        const json_t *value = json_object_get(object, hash_keys[i]);
        bool optional = i == PKI_HASH_PROOF && shape->can_prove && value != NULL;
        if (((shape->hashes & 1u << i) != 0 || optional) && !hash_parse(value, out->hashes[i])) {
            return "has no hash of 64 hexadecimal digits where one is expected";
        }
        out->has_proof = out->has_proof || optional;
    }
    for (unsigned i = 0; i < PKI_TEXT_COUNT; i++) {
        const char *text = json_string_value(json_object_get(object, text_keys[i]));
        if ((shape->texts & 1u << i) == 0) {
            continue;
        }
        if (text == NULL) {
            return "lacks a text";
        }
        if ((out->texts[i] = strdup(text)) == NULL) {
            return "needs more memory than there is";
        }
    }
    if (out->kind == PKI_MESSAGE_OPEN && !pki_name_is_valid(out->texts[PKI_TEXT_NAME])) {
        return "names no node: letters, digits and hyphens, at most 63, not \"ca\"";
    }
    if (out->kind == PKI_MESSAGE_REFUSE) {
        make_printable(out->texts[PKI_TEXT_REASON]);
    }
    return NULL;
}

const char *pki_message_parse(const char *bytes, size_t size, struct pki_message *out)
{
    *out = (struct pki_message){0};
    json_t *object = json_loadb(bytes, size, JSON_REJECT_DUPLICATES, NULL); /* refuses zero bytes in texts */
    const char *wrong = NULL;
    if (!json_is_object(object)) {
        wrong = "is no JSON object";
    } else if (json_integer_value(json_object_get(object, "version")) != PKI_MESSAGE_VERSION) {
        wrong = "is of another version of commctl";
    } else if (!kind_parse(json_object_get(object, "kind"), &out->kind)) {
        wrong = "is of no known kind";
    } else {
        wrong = fields_parse(object, out);
    }
    json_decref(object);
    if (wrong != NULL) {
        pki_message_free(out);
    }
    return wrong;
}

/* --- Formatting --- */

static json_t *hash_format(const uint8_t hash[PKI_HASH_BYTES])
{
    char text[2 * PKI_HASH_BYTES];
    for (size_t i = 0; i < PKI_HASH_BYTES; i++) {
        text[2 * i] = "0123456789abcdef"[hash[i] >> 4];
        text[2 * i + 1] = "0123456789abcdef"[hash[i] & 15];
    }
    return json_stringn(text, sizeof text);
}

char *pki_message_format(const struct pki_message *message, size_t *size)
{
    const struct shape *shape = &shapes[message->kind];
    json_t *object = json_pack("{si ss}", "version", PKI_MESSAGE_VERSION, "kind", shape->name);
    bool done = object != NULL;
    for (unsigned i = 0; done && i < PKI_HASH_COUNT; i++) {
        if ((shape->hashes & 1u << i) != 0 || (i == PKI_HASH_PROOF && message->has_proof)) {
            done = json_object_set_new(object, hash_keys[i], hash_format(message->hashes[i])) == 0;
        }
    }
    for (unsigned i = 0; done && i < PKI_TEXT_COUNT; i++) {
        if ((shape->texts & 1u << i) != 0) {
            done = json_object_set_new(object, text_keys[i], json_string(message->texts[i])) == 0;
        }
    }
    char *text = done ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    *size = text == NULL ? 0 : strlen(text);
    return text;
}
