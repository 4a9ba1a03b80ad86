#include <netinet/icmp6.h>
#include <netinet/ip_icmp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <linux/errqueue.h>

#include <cmocka.h>

#include "daemon/net/quic_socket.h"

/* What ICMP errors say of a peer. Only its own host can say that its process is gone. */

static enum quic_unreachable says(uint8_t origin, uint8_t type, uint8_t code, const char *offender,
                                  const char *remote)
{
    struct sock_extended_err said = {.ee_origin = origin, .ee_type = type, .ee_code = code};
    struct quic_address sender, peer;
    struct error error;
    assert_int_equal(quic_address_parse(offender, AF_UNSPEC, &sender, &error), STATUS_OK);
    assert_int_equal(quic_address_parse(remote, AF_UNSPEC, &peer, &error), STATUS_OK);
    return quic_icmp_says(&said, &sender, &peer);
}

static void a_closed_port_is_said_by_its_host(void **state)
{
    (void)state;
    const uint8_t v4 = SO_EE_ORIGIN_ICMP, v6 = SO_EE_ORIGIN_ICMP6;
    assert_int_equal(says(v4, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, "10.0.0.2:0", "10.0.0.2:7400"),
                     QUIC_UNREACHABLE_PORT);
    assert_int_equal(says(v4, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, "10.0.0.2:0", "[::ffff:10.0.0.2]:7400"),
                     QUIC_UNREACHABLE_PORT);
    assert_int_equal(says(v6, ICMP6_DST_UNREACH, ICMP6_DST_UNREACH_NOPORT, "[fd00::2]:0", "[fd00::2]:7400"),
                     QUIC_UNREACHABLE_PORT);
}

static void a_router_knows_no_process(void **state)
{
    (void)state;
    const uint8_t v4 = SO_EE_ORIGIN_ICMP, v6 = SO_EE_ORIGIN_ICMP6;
    assert_int_equal(says(v4, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, "10.0.0.1:0", "10.0.0.2:7400"),
                     QUIC_UNREACHABLE_HOST);
    assert_int_equal(says(v6, ICMP6_DST_UNREACH, ICMP6_DST_UNREACH_NOPORT, "[fd00::1]:0", "[fd00::2]:7400"),
                     QUIC_UNREACHABLE_HOST);
}

/* This host says so itself, when it gets no answer to ARP: the link may be down for a moment. */
static void an_unreachable_host_may_live(void **state)
{
    (void)state;
    const uint8_t v4 = SO_EE_ORIGIN_ICMP, v6 = SO_EE_ORIGIN_ICMP6;
    assert_int_equal(says(v4, ICMP_DEST_UNREACH, ICMP_HOST_UNREACH, "10.0.0.1:0", "10.0.0.2:7400"),
                     QUIC_UNREACHABLE_HOST);
    assert_int_equal(says(v4, ICMP_DEST_UNREACH, ICMP_HOST_UNREACH, "10.0.0.2:0", "10.0.0.2:7400"),
                     QUIC_UNREACHABLE_HOST);
    assert_int_equal(says(v6, ICMP6_DST_UNREACH, ICMP6_DST_UNREACH_ADDR, "[fd00::1]:0", "[fd00::2]:7400"),
                     QUIC_UNREACHABLE_HOST);
}

static void other_errors_say_nothing(void **state)
{
    (void)state;
    assert_int_equal(
        says(SO_EE_ORIGIN_LOCAL, ICMP_DEST_UNREACH, ICMP_PORT_UNREACH, "10.0.0.2:0", "10.0.0.2:7400"),
        QUIC_UNREACHABLE_NOT);
    assert_int_equal(
        says(SO_EE_ORIGIN_ICMP, ICMP_DEST_UNREACH, ICMP_FRAG_NEEDED, "10.0.0.1:0", "10.0.0.2:7400"),
        QUIC_UNREACHABLE_NOT);
    assert_int_equal(says(SO_EE_ORIGIN_ICMP, ICMP_TIME_EXCEEDED, 0, "10.0.0.1:0", "10.0.0.2:7400"),
                     QUIC_UNREACHABLE_NOT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_closed_port_is_said_by_its_host),
        cmocka_unit_test(a_router_knows_no_process),
        cmocka_unit_test(an_unreachable_host_may_live),
        cmocka_unit_test(other_errors_say_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
