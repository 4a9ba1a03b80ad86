#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "proto/ring.h"

enum { CAPACITY = 4096, PACKETS = 200000 };

/* Two sides of one ring, in memory that both see. */
struct pair {
    _Alignas(64) unsigned char memory[sizeof(struct ring_shared) + CAPACITY];
    struct ring producer, consumer;
};

static void pair_make(struct pair *pair)
{
    memset(pair, 0, sizeof *pair);
    ring_attach(&pair->producer, pair->memory, CAPACITY);
    ring_attach(&pair->consumer, pair->memory, CAPACITY);
}

static unsigned char byte_of(size_t packet, size_t place)
{
    return (unsigned char)(packet * 37 + place * 11 + place / 256 + 3);
}

static void fill(unsigned char *out, size_t packet, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        out[i] = byte_of(packet, i);
    }
}

static void check(const unsigned char *got, size_t packet, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        if (got[i] != byte_of(packet, i)) {
            fail_msg("packet %zu: byte %zu of %zu", packet, i, size);
        }
    }
}

static void test_every_length_wherever_it_begins(void **state)
{
    (void)state;
    static struct pair pair;
    unsigned char packet[CAPACITY], got[CAPACITY];
    size_t number = 0, size_bytes;
    pair_make(&pair);
    for (size_t size = 1; size <= ring_packet_max_bytes(CAPACITY); size += size < 64 ? 1 : 61) {
        /* Packets begin at other places each time, and wrap. */
        for (int again = 0; again < 20; again++, number++) {
            fill(packet, number, size);
            assert_int_equal(ring_put(&pair.producer, packet, size), RING_OK);
            assert_true(ring_has_packet(&pair.consumer));
            assert_int_equal(ring_take(&pair.consumer, got, sizeof got, &size_bytes), RING_OK);
            assert_int_equal(size_bytes, size);
            check(got, number, size);
            assert_false(ring_has_packet(&pair.consumer));
        }
    }
    assert_int_equal(ring_take(&pair.consumer, got, sizeof got, &size_bytes), RING_NOTHING);
}

static void test_full_and_room_again(void **state)
{
    (void)state;
    static struct pair pair;
    unsigned char packet[100], got[100];
    size_t put = 0, size_bytes;
    pair_make(&pair);
    for (fill(packet, 0, sizeof packet); ring_put(&pair.producer, packet, sizeof packet) == RING_OK; put++) {
        fill(packet, put + 1, sizeof packet);
    }
    assert_int_equal(put, CAPACITY / 104);
    assert_true(ring_producer_sleep(&pair.producer, sizeof packet));
    assert_false(ring_producer_sleep(&pair.producer, 1)); /* there is room for 1 byte */
    assert_true(ring_producer_sleep(&pair.producer, sizeof packet));
    assert_int_equal(ring_take(&pair.consumer, got, sizeof got, &size_bytes), RING_OK);
    check(got, 0, sizeof got);
    assert_true(ring_wake_producer(&pair.consumer));
    assert_false(ring_wake_producer(&pair.consumer)); /* once */
    assert_int_equal(ring_put(&pair.producer, packet, sizeof packet), RING_OK);
    assert_int_equal(ring_put(&pair.producer, packet, ring_packet_max_bytes(CAPACITY) + 1), RING_FULL);
}

static void test_who_sleeps_is_woken_once(void **state)
{
    (void)state;
    static struct pair pair;
    pair_make(&pair);
    assert_false(ring_wake_consumer(&pair.producer));
    assert_true(ring_consumer_sleep(&pair.consumer));
    assert_int_equal(ring_put(&pair.producer, "x", 1), RING_OK);
    assert_true(ring_wake_consumer(&pair.producer));
    assert_false(ring_wake_consumer(&pair.producer));
    assert_false(ring_consumer_sleep(&pair.consumer)); /* there is something */
    assert_false(ring_wake_consumer(&pair.producer));
}

/* --- What a hostile other side can write --- */

static void test_hostile_producer(void **state)
{
    (void)state;
    static struct pair pair;
    unsigned char got[64];
    size_t size_bytes;
    static const uint32_t tails[] = {4, 12, CAPACITY + 8, UINT32_MAX, 0x80000000u};
    for (size_t i = 0; i < sizeof tails / sizeof tails[0]; i++) {
        pair_make(&pair);
        atomic_store(&pair.producer.shared->tail, tails[i]);
        assert_int_equal(ring_take(&pair.consumer, got, sizeof got, &size_bytes), RING_BROKEN);
    }
    static const uint32_t lengths[] = {0, 65, 2049, CAPACITY, UINT32_MAX, UINT32_MAX - 3, 21};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        pair_make(&pair);
        memcpy(pair.producer.data, &lengths[i], sizeof lengths[i]);
        atomic_store(&pair.producer.shared->tail, 24);
        assert_int_equal(ring_take(&pair.consumer, got, sizeof got, &size_bytes), RING_BROKEN);
    }
}

static void test_hostile_consumer(void **state)
{
    (void)state;
    static struct pair pair;
    static const uint32_t heads[] = {8, 4, CAPACITY, 0x80000000u};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        pair_make(&pair);
        atomic_store(&pair.producer.shared->head, heads[i]);
        assert_int_equal(ring_put(&pair.producer, "x", 1), RING_BROKEN);
    }
}

/* --- Two threads --- */

static void *produce(void *context)
{
    struct pair *pair = context;
    unsigned char packet[256];
    for (size_t i = 0; i < PACKETS; i++) {
        size_t size = 1 + i * 7 % sizeof packet;
        fill(packet, i, size);
        while (ring_put(&pair->producer, packet, size) == RING_FULL) {
            (void)sched_yield();
        }
        (void)ring_wake_consumer(&pair->producer);
    }
    return NULL;
}

static void test_two_threads(void **state)
{
    (void)state;
    static struct pair pair;
    unsigned char got[256];
    pthread_t thread;
    pair_make(&pair);
    assert_int_equal(pthread_create(&thread, NULL, produce, &pair), 0);
    for (size_t i = 0; i < PACKETS; i++) {
        size_t size_bytes = 0;
        while (ring_take(&pair.consumer, got, sizeof got, &size_bytes) == RING_NOTHING) {
            (void)ring_consumer_sleep(&pair.consumer);
            (void)sched_yield();
            ring_consumer_wakes(&pair.consumer);
        }
        assert_int_equal(size_bytes, 1 + i * 7 % sizeof got);
        check(got, i, size_bytes);
        (void)ring_wake_producer(&pair.consumer);
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_length_wherever_it_begins),
        cmocka_unit_test(test_full_and_room_again),
        cmocka_unit_test(test_who_sleeps_is_woken_once),
        cmocka_unit_test(test_hostile_producer),
        cmocka_unit_test(test_hostile_consumer),
        cmocka_unit_test(test_two_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
