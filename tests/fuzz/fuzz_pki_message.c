#include <stdlib.h>
#include <string.h>

#include "client/commctl/pki_join.h"
#include "tests/fuzz/input.h"

/* A message of `commctl pki join` or `admit`, which any stranger can send. If it can be parsed, it is written
 * again, and the result can be parsed, too. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_again(const struct pki_message *message)
{
    struct pki_message again;
    size_t size;
    char *text = pki_message_format(message, &size);
    fuzz_require(text != NULL);
    fuzz_require(pki_message_parse(text, size, &again) == NULL);
    fuzz_require(again.kind == message->kind && again.has_proof == message->has_proof);
    fuzz_require(memcmp(again.hashes, message->hashes, sizeof again.hashes) == 0);
    for (size_t i = 0; i < PKI_TEXT_COUNT; i++) {
        fuzz_require((again.texts[i] == NULL) == (message->texts[i] == NULL));
        fuzz_require(again.texts[i] == NULL || strcmp(again.texts[i], message->texts[i]) == 0);
    }
    pki_message_free(&again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pki_message message;
    if (size > PKI_MESSAGE_MAX_BYTES) {
        return 0;
    }
    char *bytes = malloc(size > 0 ? size : 1); /* of its own, so that the sanitizers see its ends */
    fuzz_require(bytes != NULL);
    memcpy(bytes, data, size);
    const char *wrong = pki_message_parse(bytes, size, &message);
    if (wrong == NULL) {
        check_again(&message);
    }
    for (size_t i = 0; wrong != NULL && i < PKI_TEXT_COUNT; i++) {
        fuzz_require(message.texts[i] == NULL);
    }
    pki_message_free(&message);
    free(bytes);
    return 0;
}
