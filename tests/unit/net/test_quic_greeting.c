#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/net/quic_greeting.h"

/* What two nodes tell each other before their streams go on, and the numbers of the streams that have come.
 */

enum { SETS = 40, NUMBERS = 400 };

/* Numbers are added in any order, and some twice. The set has exactly these numbers. */
static void numbers_in_any_order(void **state)
{
    (void)state;
    struct random random;
    random_seed(&random, 5);
    for (unsigned set = 0; set < SETS; set++) {
        struct quic_numbers numbers = {0};
        bool added[NUMBERS] = {false};
        uint32_t near = 1 + (uint32_t)random_below(&random, NUMBERS);
        for (unsigned step = 0; step < 3 * NUMBERS; step++) {
            uint64_t most = numbers.end + near < NUMBERS ? numbers.end + near : NUMBERS;
            uint64_t number = random_below(&random, most);
            enum status expected = added[number] ? STATUS_ALREADY_EXISTS : STATUS_OK;
            assert_int_equal(quic_numbers_add(&numbers, number), expected);
            added[number] = true;
            assert_true(numbers.end > number);
        }
        for (uint64_t number = 0; number < NUMBERS; number++) {
            assert_int_equal(quic_numbers_have(&numbers, number), added[number]);
        }
        for (uint32_t i = 0; i < numbers.hole_count; i++) {
            assert_true(numbers.holes[i].first < numbers.holes[i].end);
            assert_true(i == 0 || numbers.holes[i].first > numbers.holes[i - 1].end);
        }
        quic_numbers_clear(&numbers);
        assert_false(quic_numbers_have(&numbers, 0));
    }
}

static void numbers_are_bounded(void **state)
{
    (void)state;
    struct quic_numbers numbers = {0};
    assert_int_equal(quic_numbers_add(&numbers, UINT64_MAX), STATUS_LIMIT);
    assert_int_equal(quic_numbers_add(&numbers, 1ull << 40), STATUS_LIMIT);
    for (uint64_t i = 0; i < 3 * (uint64_t)QUIC_HOLES_MAX; i++) {
        assert_int_equal(quic_numbers_add(&numbers, 2 * i + 1), STATUS_OK);
    }
    assert_int_equal(numbers.hole_count, QUIC_HOLES_MAX);
    assert_true(quic_numbers_have(&numbers, 0)); /* the oldest holes are forgotten */
    assert_false(quic_numbers_have(&numbers, 6 * (uint64_t)QUIC_HOLES_MAX - 2));
    quic_numbers_clear(&numbers);
}

static struct quic_hole holes[] = {{3, 5}, {8, 9}};
static struct quic_greeting_stream incoming[] = {{0, 77}, {2, QUIC_GREETING_STOPPED}, {9, 9}};
static uint64_t outgoing[] = {4, 5, 1000};
static const struct quic_greeting usual = {.own_id = 0x1122334455667788,
                                           .peer_id = 9,
                                           .seen = {.end = 12, .holes = holes, .hole_count = 2},
                                           .incoming = incoming,
                                           .incoming_count = 3,
                                           .outgoing = outgoing,
                                           .outgoing_count = 3};

static uint8_t *encode(const struct quic_greeting *greeting, size_t *size)
{
    *size = quic_greeting_size(greeting);
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    quic_greeting_encode(greeting, bytes);
    return bytes;
}

static void a_greeting_arrives_as_it_was_sent(void **state)
{
    (void)state;
    size_t size;
    struct quic_greeting read;
    uint8_t *bytes = encode(&usual, &size);
    assert_int_equal(size, 40 + 2 * 16 + 3 * 16 + 3 * 8);
    assert_int_equal(quic_greeting_decode(bytes, size, &read, NULL), STATUS_OK);
    assert_int_equal(read.own_id, usual.own_id);
    assert_int_equal(read.peer_id, usual.peer_id);
    assert_int_equal(read.seen.end, 12);
    assert_memory_equal(read.seen.holes, holes, sizeof holes);
    assert_memory_equal(read.incoming, incoming, sizeof incoming);
    assert_memory_equal(read.outgoing, outgoing, sizeof outgoing);
    assert_int_equal(quic_greeting_find(&read, 0)->received, 77);
    assert_true(quic_greeting_find(&read, 2)->received == QUIC_GREETING_STOPPED);
    assert_null(quic_greeting_find(&read, 1));
    assert_true(quic_greeting_sends(&read, 1000));
    assert_false(quic_greeting_sends(&read, 6));
    quic_greeting_clear(&read);
    assert_null(quic_greeting_find(&read, 0));
    assert_false(quic_greeting_sends(&read, 4));
    free(bytes);
}

static void assert_refused(const struct quic_greeting *greeting, const char *why)
{
    size_t size;
    struct quic_greeting read;
    struct error error;
    uint8_t *bytes = encode(greeting, &size);
    assert_int_equal(quic_greeting_decode(bytes, size, &read, &error), STATUS_PROTOCOL);
    if (strstr(error.text, why) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", error.text, why);
    }
    assert_null(read.incoming);
    free(bytes);
}

static void false_greetings_are_refused(void **state)
{
    (void)state;
    size_t size;
    struct quic_greeting read, changed;
    uint8_t *bytes = encode(&usual, &size);
    for (size_t shorter = 0; shorter < size; shorter++) {
        uint8_t *copy = malloc(shorter + 1); /* so that a sanitizer sees a look beyond the end */
        assert_non_null(copy);
        memcpy(copy, bytes, shorter);
        assert_int_equal(quic_greeting_decode(copy, shorter, &read, NULL), STATUS_PROTOCOL);
        free(copy);
    }
    bytes[0] = 2;
    assert_int_equal(quic_greeting_decode(bytes, size, &read, NULL), STATUS_PROTOCOL);
    free(bytes);
    changed = usual;
    changed.own_id = 0;
    assert_refused(&changed, "wrong counts");
    changed = usual;
    changed.seen.holes = (struct quic_hole[]){{8, 9}, {3, 5}};
    assert_refused(&changed, "numbers of streams out of order");
    changed.seen.holes = (struct quic_hole[]){{3, 5}, {8, 12}};
    assert_refused(&changed, "numbers of streams out of order");
    changed.seen.holes = (struct quic_hole[]){{3, 5}, {5, 9}};
    assert_refused(&changed, "numbers of streams out of order");
    changed = usual;
    changed.incoming = (struct quic_greeting_stream[]){{0, 1}, {0, 1}, {9, 1}};
    assert_refused(&changed, "incoming streams out of order");
    changed.incoming = (struct quic_greeting_stream[]){{0, 1}, {4, 1}, {9, 1}};
    assert_refused(&changed, "an incoming stream that has not come");
    changed.incoming = (struct quic_greeting_stream[]){{0, 1}, {2, 1}, {12, 1}};
    assert_refused(&changed, "an incoming stream that has not come");
    changed = usual;
    changed.outgoing = (uint64_t[]){4, 4, 5};
    assert_refused(&changed, "outgoing streams out of order");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_in_any_order),
        cmocka_unit_test(numbers_are_bounded),
        cmocka_unit_test(a_greeting_arrives_as_it_was_sent),
        cmocka_unit_test(false_greetings_are_refused),
    };
    return cmocka_run_group_tests_name("quic_greeting", tests, NULL, NULL);
}
