#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "daemon/net/quic_admission.h"

/* Slots of handshakes: who gets one, who must first prove an address, and who must not take all slots. */

enum { SLOTS = QUIC_HALF_OPEN_MAX + 1 };

static struct quic_admission admission;
static struct quic_slot slots[SLOTS];
static unsigned slot_count;
static uint32_t peer_slots;

static int setup(void **state)
{
    (void)state;
    admission = (struct quic_admission){0};
    slot_count = 0;
    peer_slots = 0;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    while (slot_count > 0) {
        quic_admission_give_back(&admission, &slots[--slot_count]);
    }
    assert_int_equal(admission.half_open, 0);
    assert_int_equal(admission.strangers, 0);
    assert_null(admission.origins);
    assert_int_equal(peer_slots, 0);
    return 0;
}

/* Reads an address: head, then the two bytes of the number, then tail. The bytes are decimal, or two
 * hexadecimal groups of an IPv6 address. */
static struct quic_address address_of(const char *head, unsigned number, const char *tail)
{
    char text[64];
    struct quic_address address;
    struct error error;
    if (head[0] == '[' && head[1] != ':') {
        snprintf(text, sizeof text, "%s%x::%x%s", head, number >> 8, number & 255u, tail);
    } else {
        snprintf(text, sizeof text, "%s%u.%u%s", head, number >> 8, number & 255u, tail);
    }
    assert_int_equal(quic_address_resolve(text, AF_UNSPEC, &address, &error), STATUS_OK);
    return address;
}

/* Takes slots until one is refused, at most `most` of them. *verdict is the answer to the last request. */
static unsigned take(const struct quic_address *address, uint32_t *peer, bool validated, unsigned most,
                     enum quic_verdict *verdict)
{
    for (unsigned taken = 0; taken < most; taken++) {
        *verdict = quic_admission_ask(&admission, address, peer, validated);
        if (*verdict != QUIC_VERDICT_ADMIT) {
            return taken;
        }
        assert_true(slot_count < SLOTS);
        assert_true(quic_admission_take(&admission, address, peer, validated, &slots[slot_count]));
        slot_count++;
    }
    return most;
}

/* An attacker at one address gets only its share. */
static void one_address_gets_its_share(void **state)
{
    (void)state;
    enum quic_verdict verdict;
    struct quic_address attacker = address_of("192.0.", 1, ":1");
    struct quic_address other = address_of("192.0.", 2, ":1");
    assert_int_equal(take(&attacker, NULL, false, SLOTS, &verdict), QUIC_HALF_OPEN_ADDRESS_RETRY);
    assert_int_equal(verdict, QUIC_VERDICT_RETRY);
    assert_int_equal(take(&attacker, NULL, true, SLOTS, &verdict), QUIC_HALF_OPEN_ADDRESS_MAX);
    assert_int_equal(verdict, QUIC_VERDICT_DROP_ADDRESS);
    attacker = address_of("192.0.", 1, ":2"); /* another port is the same address */
    assert_int_equal(take(&attacker, NULL, true, SLOTS, &verdict), 0);
    assert_int_equal(take(&other, NULL, false, 1, &verdict), 1);
    assert_int_equal(take(&other, NULL, true, 1, &verdict), 1);
}

/* An attacker forges the victim's address. The victim's own share stays free. */
static void forged_addresses_take_nobodys_share(void **state)
{
    (void)state;
    enum quic_verdict verdict;
    struct quic_address victim = address_of("192.0.", 1, ":1");
    assert_int_equal(take(&victim, NULL, false, SLOTS, &verdict), QUIC_HALF_OPEN_ADDRESS_RETRY);
    for (unsigned i = 2; i < 1000; i++) {
        struct quic_address forged = address_of("192.0.", i, ":1");
        (void)take(&forged, NULL, false, SLOTS, &verdict);
        assert_int_equal(verdict, QUIC_VERDICT_RETRY);
    }
    assert_int_equal(admission.half_open, QUIC_HALF_OPEN_RETRY);
    assert_int_equal(take(&victim, NULL, true, SLOTS, &verdict), QUIC_HALF_OPEN_ADDRESS_MAX);
    /* A peer's address may be forged as well. So the peer gets a Retry like all others, and then its own
     * slots. */
    struct quic_address peer = address_of("198.51.", 1, ":7400");
    assert_int_equal(quic_admission_ask(&admission, &peer, &peer_slots, false), QUIC_VERDICT_RETRY);
    assert_int_equal(take(&peer, &peer_slots, true, SLOTS, &verdict), QUIC_HALF_OPEN_PEER_MAX);
    assert_int_equal(verdict, QUIC_VERDICT_DROP_ADDRESS);
}

/* There are any number of strangers with validated addresses. A peer still connects, even from an address
 * whose share a stranger has used up. */
static void strangers_leave_slots_to_peers(void **state)
{
    (void)state;
    enum quic_verdict verdict = QUIC_VERDICT_ADMIT;
    for (unsigned i = 1; i < 1000; i++) {
        struct quic_address stranger = address_of("192.0.", i, ":1");
        (void)take(&stranger, NULL, true, SLOTS, &verdict);
    }
    assert_int_equal(verdict, QUIC_VERDICT_DROP_ALL);
    assert_int_equal(admission.half_open, QUIC_HALF_OPEN_MAX - QUIC_HALF_OPEN_KEPT);
    struct quic_address peer = address_of("192.0.", 1, ":7400");
    assert_int_equal(take(&peer, &peer_slots, true, 2, &verdict), 2);
    quic_admission_give_back(&admission, &slots[0]); /* a stranger gets in when another is done */
    slots[0] = slots[--slot_count];
    struct quic_address late = address_of("192.0.", 5000, ":1");
    assert_int_equal(take(&late, NULL, true, SLOTS, &verdict), 1);
}

/* Peers may have all slots, each a few of them. */
static void peers_may_have_all(void **state)
{
    (void)state;
    enum quic_verdict verdict = QUIC_VERDICT_ADMIT;
    static uint32_t of_peer[QUIC_HALF_OPEN_MAX];
    for (unsigned i = 0; i < QUIC_HALF_OPEN_MAX; i++) {
        struct quic_address peer = address_of("192.0.", i, ":7400");
        assert_int_equal(take(&peer, &of_peer[i], true, 1, &verdict), 1);
    }
    struct quic_address peer = address_of("192.0.", QUIC_HALF_OPEN_MAX, ":7400");
    assert_int_equal(take(&peer, &peer_slots, true, 1, &verdict), 0);
    assert_int_equal(verdict, QUIC_VERDICT_DROP_ALL);
}

static void an_ipv6_network_is_one_address(void **state)
{
    (void)state;
    enum quic_verdict verdict;
    for (unsigned i = 0; i < QUIC_HALF_OPEN_ADDRESS_MAX; i++) {
        struct quic_address address = address_of("[2001:db8:1:2:", i * 257, "]:1");
        assert_int_equal(take(&address, NULL, true, 1, &verdict), 1);
    }
    struct quic_address same = address_of("[2001:db8:1:2:ffff:", 0, "]:1");
    struct quic_address other = address_of("[2001:db8:1:3:", 0, "]:1");
    struct quic_address mapped = address_of("[::ffff:192.0.", 1, "]:1");
    struct quic_address v4 = address_of("192.0.", 1, ":1");
    assert_int_equal(quic_admission_ask(&admission, &same, NULL, true), QUIC_VERDICT_DROP_ADDRESS);
    assert_int_equal(quic_admission_ask(&admission, &other, NULL, true), QUIC_VERDICT_ADMIT);
    assert_int_equal(take(&mapped, NULL, true, SLOTS, &verdict), QUIC_HALF_OPEN_ADDRESS_MAX);
    assert_int_equal(quic_admission_ask(&admission, &v4, NULL, true), QUIC_VERDICT_DROP_ADDRESS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(one_address_gets_its_share, setup, teardown),
        cmocka_unit_test_setup_teardown(forged_addresses_take_nobodys_share, setup, teardown),
        cmocka_unit_test_setup_teardown(strangers_leave_slots_to_peers, setup, teardown),
        cmocka_unit_test_setup_teardown(peers_may_have_all, setup, teardown),
        cmocka_unit_test_setup_teardown(an_ipv6_network_is_one_address, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_admission", tests, NULL, NULL);
}
