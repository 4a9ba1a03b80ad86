#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/quic_greeting.h"

/* The greeting of a peer. If it is accepted, its contents are valid, and it is encoded to the same bytes
 * again. */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(int truth)
{
    if (!truth) {
        abort();
    }
}

static void check_streams(const struct quic_greeting *greeting)
{
    for (uint32_t i = 0; i < greeting->incoming_count; i++) {
        uint64_t number = greeting->incoming[i].number;
        require(quic_greeting_find(greeting, number) == &greeting->incoming[i]);
        require(quic_numbers_have(&greeting->seen, number));
    }
    for (uint32_t i = 0; i < greeting->outgoing_count; i++) {
        require(quic_greeting_sends(greeting, greeting->outgoing[i]));
    }
}

/* Adds the number after the last one, and one number in each hole, as if the node that greeted opened more
 * streams. */
static void go_on(struct quic_numbers *numbers)
{
    uint32_t holes = numbers->hole_count;
    for (uint32_t i = 0; i < holes && numbers->hole_count > 0; i++) {
        uint64_t number = numbers->holes[0].first;
        require(!quic_numbers_have(numbers, number));
        require(quic_numbers_add(numbers, number) == STATUS_OK);
        require(quic_numbers_have(numbers, number));
        require(quic_numbers_add(numbers, number) == STATUS_ALREADY_EXISTS);
    }
    if (numbers->end < UINT64_MAX - 1) {
        require(quic_numbers_add(numbers, numbers->end + 1) == STATUS_OK);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct quic_greeting greeting;
    struct error error;
    /* a block of its own, so that the sanitizers notice reads beyond its end */
    uint8_t *bytes = malloc(size > 0 ? size : 1);
    require(bytes != NULL);
    memcpy(bytes, data, size);
    enum status status = quic_greeting_decode(bytes, size, &greeting, &error);
    require(status == STATUS_OK || status == STATUS_PROTOCOL);
    if (status == STATUS_OK) {
        uint8_t *again = malloc(size);
        require(again != NULL && quic_greeting_size(&greeting) == size);
        quic_greeting_encode(&greeting, again);
        require(memcmp(again, bytes, size) == 0);
        free(again);
        check_streams(&greeting);
        go_on(&greeting.seen);
    }
    quic_greeting_clear(&greeting);
    free(bytes);
    return 0;
}
