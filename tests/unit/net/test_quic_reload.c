#include "tests/unit/net/quic_logged.h"

#include <time.h>

#include "daemon/net/quic_internal.h"

/* WAITS = True */

/* Certificates, revocation lists and peers change while endpoints run. */

static int setup_certificates(void **state)
{
    if (setup_files(state) != 0) {
        return -1;
    }
    test_pki_issue(pki, "foreign", &(struct test_certificate){.name = "a", .other_authority = true});
    return 0;
}

static enum status reload(struct quic_node *node, const struct quic_options *options, struct error *error)
{
    struct quic_tls *tls = NULL;
    enum status status = net_quic_load(options, &tls, error);
    if (status == STATUS_OK) {
        net_quic_use(node->net, tls);
        net_quic_unload(tls);
    }
    return status;
}

static void reload_takes_new_files_and_keeps_old_ones_on_failure(void **state)
{
    (void)state;
    struct quic_options options;
    struct error error;
    test_pki_issue(pki, "renewed", &(struct test_certificate){.name = "a"});
    quic_node_options(pki, "renewed", &options);
    options.node_name = "a";
    a = quic_node_new(loop, pki, "a", &options);
    b = quic_node_new(loop, pki, "b", NULL);
    quic_nodes_connect(a, b);
    test_pki_issue(pki, "renewed",
                   &(struct test_certificate){.name = "a", .begins_s = -2 * DAY_S, .ends_s = -60});
    assert_int_equal(reload(a, &options, &error), STATUS_CERTIFICATE);
    assert_text(error.text, "renewed.pem");
    assert_text(error.text, "has expired");
    error_set(&error, STATUS_ABORTED, "a test");
    net_disconnect(a->net, 0, &error);
    quic_run_until(loop, both_down, NULL, 3000);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000)); /* with the old certificate */
    test_pki_issue(pki, "renewed", &(struct test_certificate){.name = "a"});
    assert_int_equal(reload(a, &options, &error), STATUS_OK);
    quic_run_for(loop, 50);
    assert_true(both_up(NULL)); /* what is up stays up */
    error_set(&error, STATUS_ABORTED, "a test");
    net_disconnect(a->net, 0, &error);
    quic_run_until(loop, both_down, NULL, 3000);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000));
}

/* b's certificate is revoked while b is connected to a. Whichever side dialled, a ends the connection. */
static void revoke_b(struct quic_node *dialler, struct quic_node *other)
{
    struct quic_options options;
    struct error error;
    test_pki_issue(pki, "b-later", &(struct test_certificate){.name = "b"});
    quic_node_options(pki, "b-later", &options);
    options.node_name = "b";
    b = quic_node_new(loop, pki, "b", &options);
    quic_nodes_connect(dialler == NULL ? b : dialler, other == NULL ? b : other);
    test_pki_revoke(pki, "b-later");
    quic_node_options(pki, "a", &options);
    options.revocation_path = test_pki_path(pki, "crl.pem");
    assert_int_equal(reload(a, &options, &error), STATUS_OK);
    assert_true(quic_run_until(loop, both_down, NULL, 3000));
    assert_int_equal(a->down_cause.status, STATUS_CERTIFICATE);
    assert_text(a->down_cause.text, "node b");
    assert_text(a->down_cause.text, "is revoked");
    assert_int_equal(b->down_cause.status, STATUS_CERTIFICATE);
    assert_text(b->down_cause.text, "is revoked");
    quic_node_connect(a, 0); /* the connection does not come back */
    quic_node_connect(b, 0);
    assert_true(quic_run_until(loop, a_failed, NULL, 3000));
    assert_true(quic_run_until(loop, b_failed, NULL, 3000));
    quic_run_for(loop, 50);
    assert_true(both_down(NULL));
    assert_int_equal(a->failed_cause.status, STATUS_CERTIFICATE);
    assert_int_equal(b->failed_cause.status, STATUS_CERTIFICATE);
}

static void a_revoked_peer_that_was_dialled_is_dropped(void **state)
{
    (void)state;
    a = quic_node_new(loop, pki, "a", NULL);
    revoke_b(a, NULL);
}

static void a_revoked_peer_that_dialled_is_dropped(void **state)
{
    (void)state;
    a = quic_node_new(loop, pki, "a", NULL);
    revoke_b(NULL, a);
}

/* Another authority replaces the old one: a drops the peer whose certificate the old one issued. A
 * certificate that expires does not end a connection. */
static void a_peer_of_an_authority_that_is_gone_is_dropped(void **state)
{
    (void)state;
    struct quic_options options;
    struct error error;
    a = quic_node_new(loop, pki, "a", NULL);
    test_pki_issue(pki, "brief", &(struct test_certificate){.name = "b", .begins_s = -DAY_S, .ends_s = 2});
    quic_node_options(pki, "brief", &options);
    options.node_name = "b";
    b = quic_node_new(loop, pki, "b", &options);
    quic_nodes_connect(a, b);
    quic_run_for(loop, 2500);
    quic_node_options(pki, "a", &options);
    assert_int_equal(reload(a, &options, &error), STATUS_OK);
    quic_run_for(loop, 50);
    assert_true(both_up(NULL));
    quic_node_options(pki, "foreign", &options);
    options.node_name = "a";
    options.authority_path = test_pki_path(pki, "other-ca.pem");
    assert_int_equal(reload(a, &options, &error), STATUS_OK);
    assert_true(quic_run_until(loop, both_down, NULL, 3000));
    assert_int_equal(a->down_cause.status, STATUS_CERTIFICATE);
    assert_text(a->down_cause.text, "was not issued by the cluster's CA");
}

/* The ends of certificates, in seconds since 1970: of the peer's certificate and of the node's own. */
static void the_end_of_certificates_is_known(void **state)
{
    (void)state;
    struct quic_options options;
    struct net_peer_statistics peer;
    struct net_statistics own;
    uint64_t now_s = (uint64_t)time(NULL);
    a = quic_node_new(loop, pki, "a", NULL);
    test_pki_issue(pki, "b-long", &(struct test_certificate){.name = "b", .ends_s = 50 * DAY_S});
    quic_node_options(pki, "b-long", &options);
    options.node_name = "b";
    b = quic_node_new(loop, pki, "b", &options);
    quic_node_add_peer(a, "c", 1);
    net_peer_statistics(a->net, 0, &peer);
    assert_int_equal(peer.certificate_ends_s, 0);
    quic_node_free(a);
    a = quic_node_new(loop, pki, "a", NULL);
    quic_nodes_connect(a, b);
    net_peer_statistics(a->net, 0, &peer);
    assert_in_range(peer.certificate_ends_s, now_s + 50 * DAY_S - 60, now_s + 50 * DAY_S + 60);
    net_statistics(b->net, &own);
    assert_int_equal(own.certificate_ends_s, peer.certificate_ends_s);
    net_peer_statistics(b->net, 0, &peer);
    assert_in_range(peer.certificate_ends_s, now_s + DAY_S - 3600, now_s + DAY_S + 60);
}

/* The handshake begins before node a loads the list that revokes b's certificate. */
static void a_peer_that_is_revoked_during_its_handshake_is_refused(void **state)
{
    (void)state;
    struct quic_options options;
    struct error error;
    a = quic_node_new(loop, pki, "a", NULL);
    test_pki_issue(pki, "b-early", &(struct test_certificate){.name = "b"});
    quic_node_options(pki, "b-early", &options);
    options.node_name = "b";
    b = quic_node_new(loop, pki, "b", &options);
    quic_node_add_peer(a, "b", b->port);
    quic_node_add_peer(b, "a", a->port);
    quic_node_connect(b, 0);
    const struct quic_endpoint *endpoint = quic_endpoint_of(a->net);
    assert_true(quic_run_until_count(loop, &endpoint->admission.half_open, 1, 3000));
    test_pki_revoke(pki, "b-early");
    quic_node_options(pki, "a", &options);
    options.revocation_path = test_pki_path(pki, "crl.pem");
    assert_int_equal(reload(a, &options, &error), STATUS_OK);
    quic_run_until_count(loop, &b->down_calls[0], 1, 3000);
    quic_run_for(loop, 100);
    assert_int_equal(a->up_calls[0], 0);
    assert_true(both_down(NULL));
    assert_text(log_lines, "is revoked");
}

static void a_removed_peer_is_told_and_stays_away(void **state)
{
    (void)state;
    struct error cause, error;
    uint32_t index = 7;
    a = quic_node_new(loop, pki, "a", NULL);
    b = quic_node_new(loop, pki, "b", NULL);
    quic_nodes_connect(a, b);
    error_set(&cause, STATUS_PERMISSION, "node b is not wanted");
    net_remove_peer(a->net, 0, &cause);
    assert_true(quic_run_until(loop, both_down, NULL, 3000));
    assert_int_equal(a->down_cause.status, STATUS_PERMISSION);
    assert_int_equal(b->down_cause.status, STATUS_PERMISSION);
    assert_text(b->down_cause.text, "node b is not wanted");
    assert_int_equal(net_connect(a->net, 0, &error), STATUS_PERMISSION);
    quic_node_connect(b, 0);
    quic_run_for(loop, 300);
    assert_false(a->up[0]);
    assert_text(log_lines, "names no node that node \"a\" knows");
    char address[32];
    snprintf(address, sizeof address, "127.0.0.1:%u", b->port);
    assert_int_equal(net_add_peer(a->net, "b", address, &index, &error), STATUS_OK);
    assert_int_equal(index, 0);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000));
}

/* A dial to the old address is dropped and reports nothing. The next dial goes to the new address. */
static void a_moved_peer_is_dialled_at_its_new_address(void **state)
{
    (void)state;
    struct error error;
    char address[32];
    a = quic_node_new(loop, pki, "a", NULL);
    b = quic_node_new(loop, pki, "b", NULL);
    quic_node_add_peer(a, "b", 9); /* nobody is there */
    quic_node_add_peer(b, "a", a->port);
    quic_node_connect(a, 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", b->port);
    assert_int_equal(net_move_peer(a->net, 0, "nonsense", &error), STATUS_INVALID_ARGUMENT);
    assert_int_equal(net_move_peer(a->net, 0, address, &error), STATUS_OK);
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000));
    assert_int_equal(a->failed_calls[0], 0);
    assert_int_equal(net_move_peer(a->net, 0, "127.0.0.1:9", &error), STATUS_OK);
    quic_run_for(loop, 100);
    assert_true(both_up(NULL)); /* the connection that works stays */
}

/* The first address does not answer, so the next dial goes to the spare one; without a spare one, it does
 * not. */
static void a_peer_is_dialled_at_its_spare_address_in_turn(void **state)
{
    (void)state;
    char address[32];
    a = quic_node_new(loop, pki, "a", NULL);
    b = quic_node_new(loop, pki, "b", NULL);
    quic_node_add_peer(a, "b", 9); /* nobody is there */
    quic_node_add_peer(b, "a", a->port);
    for (uint32_t failed = 1; failed <= 2; failed++) {
        quic_node_connect(a, 0);
        assert_true(quic_run_until_count(loop, &a->failed_calls[0], failed, 5000));
    }
    snprintf(address, sizeof address, "127.0.0.1:%u", b->port);
    net_set_spare(a->net, 0, address);
    net_set_spare(a->net, 0, "nonsense"); /* is none */
    quic_node_connect(a, 0);
    assert_true(quic_run_until_count(loop, &a->failed_calls[0], 3, 5000));
    quic_node_connect(a, 0);
    assert_true(quic_run_until_count(loop, &a->failed_calls[0], 4, 5000));
    net_set_spare(a->net, 0, address);
    quic_node_connect(a, 0);
    assert_true(quic_run_until_count(loop, &a->failed_calls[0], 5, 5000)); /* the first address first */
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000));
    net_set_spare(NULL, 0, address); /* a node alone has no network */
    quic_run_for(loop, 100);
    assert_true(both_up(NULL));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(reload_takes_new_files_and_keeps_old_ones_on_failure, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_revoked_peer_that_was_dialled_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_is_dialled_at_its_spare_address_in_turn, setup, teardown),
        cmocka_unit_test_setup_teardown(a_revoked_peer_that_dialled_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_of_an_authority_that_is_gone_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_of_certificates_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_is_revoked_during_its_handshake_is_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_removed_peer_is_told_and_stays_away, setup, teardown),
        cmocka_unit_test_setup_teardown(a_moved_peer_is_dialled_at_its_new_address, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_reload", tests, setup_certificates, teardown_files);
}
