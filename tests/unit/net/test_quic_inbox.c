#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/net/quic_inbox.h"

/* How peers share the time for incoming datagrams. A datagram's first byte is its peer; the next four bytes
 * are its number. Handling a datagram moves the clock by takes_ns of its peer. */

enum { PEERS = 3, LOG_MAX = 20000, HEADER_BYTES = 5, DATAGRAM_BYTES = 1400 };

static struct quic_inbox inbox;
static struct quic_line lines[PEERS];
static uint64_t clock_ns;
static uint64_t takes_ns[PEERS];
static uint32_t next_sent[PEERS];
static uint32_t next_handled[PEERS];
static unsigned handled_log[LOG_MAX]; /* peers */
static unsigned handled_count;

static uint64_t clock_now(void)
{
    return clock_ns;
}

static struct quic_address address_of(unsigned peer)
{
    struct quic_address address = {.size = sizeof(struct sockaddr_in)};
    address.v4.sin_family = AF_INET;
    address.v4.sin_port = htons((uint16_t)(1000 + peer));
    return address;
}

static void handle(void *context, const struct quic_datagram *datagram)
{
    uint32_t number;
    unsigned peer = datagram->bytes[0];
    assert_ptr_equal(context, &inbox);
    memcpy(&number, datagram->bytes + 1, sizeof number);
    assert_int_equal(number, next_handled[peer]);
    next_handled[peer] = number + 1;
    assert_int_equal(quic_address_port(datagram->remote), 1000 + peer);
    assert_int_equal(quic_address_port(datagram->local), 999);
    assert_int_equal(datagram->ecn, peer);
    for (size_t i = HEADER_BYTES; i < datagram->size; i++) {
        assert_int_equal(datagram->bytes[i], (uint8_t)(number + peer + i));
    }
    clock_ns += takes_ns[peer];
    assert_true(handled_count < LOG_MAX);
    handled_log[handled_count++] = peer;
}

/* Does what quic_datagram_arrived does. */
static void arrive(unsigned peer, size_t size)
{
    static uint8_t bytes[65536];
    struct quic_address local = address_of(0);
    struct quic_address remote = address_of(peer);
    uint32_t number = next_sent[peer]++;
    quic_address_set_port(&local, 999);
    for (size_t i = HEADER_BYTES; i < size; i++) {
        bytes[i] = (uint8_t)(number + peer + i);
    }
    bytes[0] = (uint8_t)peer;
    memcpy(bytes + 1, &number, sizeof number);
    struct quic_datagram datagram = {
        .bytes = bytes, .size = size, .local = &local, .remote = &remote, .ecn = (uint8_t)peer};
    if (!quic_inbox_handle(&inbox, &datagram)) {
        quic_inbox_keep(&inbox, &lines[peer], &datagram);
    }
    memset(bytes, 0xee, size); /* the next datagram overwrites the socket's buffer */
}

static int setup(void **state)
{
    (void)state;
    memset(lines, 0, sizeof lines);
    memset(takes_ns, 0, sizeof takes_ns);
    memset(next_sent, 0, sizeof next_sent);
    memset(next_handled, 0, sizeof next_handled);
    handled_count = 0;
    clock_ns = TIME_S;
    quic_inbox_init(&inbox, handle, &inbox);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    for (unsigned peer = 0; peer < PEERS; peer++) {
        quic_inbox_clear(&lines[peer]);
    }
    assert_false(quic_inbox_waits(&inbox));
    return 0;
}

static void test_without_a_clock_nothing_waits(void **state)
{
    (void)state;
    takes_ns[1] = TIME_S;
    quic_inbox_begin(&inbox, NULL);
    for (unsigned i = 0; i < 100; i++) {
        arrive(1, DATAGRAM_BYTES);
        assert_false(quic_inbox_waits(&inbox));
    }
    assert_int_equal(next_handled[1], 100);
}

/* At 2 ns a byte, datagrams are handled in place, however many there are. */
static void test_what_bytes_justify_is_handled_in_place(void **state)
{
    (void)state;
    takes_ns[1] = 2 * DATAGRAM_BYTES;
    takes_ns[2] = 2 * DATAGRAM_BYTES;
    quic_inbox_begin(&inbox, clock_now);
    for (unsigned i = 0; i < 5000; i++) {
        arrive(1 + i % 2, DATAGRAM_BYTES);
        assert_false(quic_inbox_waits(&inbox));
    }
    assert_int_equal(handled_count, 5000);
}

/* Datagrams that take long take at most QUIC_INBOX_EVENT_NS of an event, and the time of a few datagrams. */
static void test_an_event_is_bounded(void **state)
{
    (void)state;
    takes_ns[1] = 50 * TIME_US;
    quic_inbox_begin(&inbox, clock_now);
    for (unsigned i = 0; i < 500; i++) {
        arrive(1, DATAGRAM_BYTES);
    }
    assert_true(quic_inbox_waits(&inbox));
    assert_true(clock_ns <= TIME_S + QUIC_INBOX_EVENT_NS + 12 * 50 * TIME_US);
    uint64_t begun_ns = clock_ns;
    quic_inbox_serve(&inbox);
    assert_in_range(clock_ns - begun_ns, QUIC_INBOX_SERVE_NS, QUIC_INBOX_SERVE_NS + 50 * TIME_US);
    for (unsigned event = 0; event < 500 && quic_inbox_waits(&inbox); event++) {
        quic_inbox_begin(&inbox, clock_now);
        quic_inbox_serve(&inbox);
    }
    assert_int_equal(next_handled[1], 500);
    assert_int_equal(inbox.dropped, 0);
}

/* The datagrams of peer 1 take long. Peer 2 sends one now and then, behind all of peer 1's in the socket. */
static void test_a_peer_waits_for_its_own_datagrams_alone(void **state)
{
    (void)state;
    takes_ns[1] = 50 * TIME_US;
    takes_ns[2] = 5 * TIME_US;
    for (unsigned event = 0; event < 100; event++) {
        quic_inbox_begin(&inbox, clock_now);
        for (unsigned i = 0; i < 20; i++) {
            arrive(1, DATAGRAM_BYTES);
        }
        arrive(2, 100);
        uint64_t begun_ns = clock_ns;
        while (next_handled[2] <= event) { /* handled in this event or the next one */
            assert_true(clock_ns - begun_ns <= 2 * (QUIC_INBOX_SERVE_NS + takes_ns[1]));
            quic_inbox_begin(&inbox, clock_now);
            quic_inbox_serve(&inbox);
        }
    }
    assert_true(next_handled[1] < next_sent[1]);
}

/* Two peers both send more than can be handled. Each gets half of the time. */
static void test_time_is_shared_not_datagrams(void **state)
{
    (void)state;
    takes_ns[1] = 90 * TIME_US;
    takes_ns[2] = 10 * TIME_US;
    quic_inbox_begin(&inbox, clock_now);
    for (unsigned i = 0; i < 900; i++) {
        arrive(1, 50);
        arrive(2, 50);
    }
    unsigned before[PEERS];
    for (unsigned peer = 0; peer < PEERS; peer++) {
        before[peer] = next_handled[peer];
    }
    uint64_t begun_ns = clock_ns;
    while (clock_ns < begun_ns + 10 * TIME_MS) {
        quic_inbox_serve(&inbox);
    }
    uint64_t spent_ns[PEERS] = {0};
    for (unsigned peer = 1; peer < PEERS; peer++) {
        spent_ns[peer] = (next_handled[peer] - before[peer]) * takes_ns[peer];
    }
    assert_in_range(spent_ns[1], 45 * TIME_MS / 10, 55 * TIME_MS / 10);
    assert_in_range(spent_ns[2], 45 * TIME_MS / 10, 55 * TIME_MS / 10);
}

/* One peer alone cannot use all memory for waiting datagrams. What exceeds its limit is dropped,
 * and counted. */
static void test_what_is_kept_has_limits(void **state)
{
    (void)state;
    takes_ns[1] = TIME_MS;
    quic_inbox_begin(&inbox, clock_now);
    for (unsigned i = 0; i < 8; i++) { /* from here on, peer 1's datagrams wait */
        arrive(1, 100);
    }
    uint32_t waiting = next_sent[1] - next_handled[1];
    while (inbox.dropped == 0) {
        arrive(1, 60000);
    }
    assert_true(lines[1].bytes <= QUIC_INBOX_LINE_MAX_BYTES);
    assert_true(lines[1].bytes > QUIC_INBOX_LINE_MAX_BYTES - 61000);
    next_sent[1]--; /* the last one was dropped */
    uint64_t dropped = inbox.dropped;
    arrive(2, 60000);
    assert_int_equal(inbox.dropped, dropped);
    assert_true(lines[2].bytes > 60000);
    while (quic_inbox_waits(&inbox)) {
        quic_inbox_serve(&inbox);
    }
    assert_int_equal(next_handled[1], next_sent[1]);
    assert_int_equal(next_handled[2], 1);
    assert_true(next_handled[1] > waiting);
}

/* The line of a peer is cleared when the peer goes, also while other peers' datagrams wait. */
static void test_a_line_is_cleared(void **state)
{
    (void)state;
    takes_ns[1] = TIME_MS;
    quic_inbox_begin(&inbox, clock_now);
    for (unsigned i = 0; i < 20; i++) {
        arrive(1, 100);
    }
    arrive(2, 100);
    quic_inbox_clear(&lines[1]);
    assert_int_equal(lines[1].bytes, 0);
    assert_true(quic_inbox_waits(&inbox));
    uint32_t handled = next_handled[1];
    quic_inbox_serve(&inbox);
    assert_int_equal(next_handled[2], 1);
    assert_int_equal(next_handled[1], handled);
    assert_false(quic_inbox_waits(&inbox));
    quic_inbox_serve(&inbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_without_a_clock_nothing_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_bytes_justify_is_handled_in_place, setup, teardown),
        cmocka_unit_test_setup_teardown(test_an_event_is_bounded, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_peer_waits_for_its_own_datagrams_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(test_time_is_shared_not_datagrams, setup, teardown),
        cmocka_unit_test_setup_teardown(test_what_is_kept_has_limits, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_line_is_cleared, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_inbox", tests, NULL, NULL);
}
