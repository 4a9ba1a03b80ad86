#include "tests/unit/net/quic_logged.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>

#include "daemon/net/quic_internal.h"

/* Which nodes may connect, which are refused, and what each side is told. */

static int setup_certificates(void **state)
{
    if (setup_files(state) != 0) {
        return -1;
    }
    test_pki_issue(pki, "stranger", &(struct test_certificate){.name = "stranger"});
    test_pki_issue(pki, "nameless", &(struct test_certificate){.name = NULL});
    test_pki_issue(pki, "two", &(struct test_certificate){.name = "a", .second_name = "c"});
    test_pki_issue(pki, "alias", &(struct test_certificate){.name = "a", .second_name = "a.example.org"});
    test_pki_issue(pki, "foreign", &(struct test_certificate){.name = "a", .other_authority = true});
    test_pki_issue(pki, "expired",
                   &(struct test_certificate){.name = "a", .begins_s = -2 * DAY_S, .ends_s = -60});
    test_pki_issue(pki, "early", &(struct test_certificate){.name = "a", .begins_s = 600, .ends_s = DAY_S});
    test_pki_issue(pki, "server", &(struct test_certificate){.name = "a", .server_only = true});
    test_pki_issue(pki, "revoked", &(struct test_certificate){.name = "a"});
    test_pki_revoke(pki, "revoked");
    return 0;
}

/* --- One's own files --- */

static void refuse_options(const struct quic_options *options, enum status status, const char *file,
                           const char *text)
{
    struct net *net = NULL;
    struct error error;
    assert_int_equal(net_quic_new(loop, options, &net, &error), status);
    assert_int_equal(error.status, status);
    assert_text(error.text, file);
    assert_text(error.text, text);
}

static void unusable_files_are_named(void **state)
{
    (void)state;
    struct quic_options good;
    quic_node_options(pki, "a", &good);
    struct quic_options options = good;
    options.certificate_path = "/nowhere/node.pem";
    refuse_options(&options, STATUS_CONFIG, "/nowhere/node.pem", "No such file");
    options = good;
    options.key_path = "/nowhere/node.key";
    refuse_options(&options, STATUS_CONFIG, "/nowhere/node.key", "No such file");
    options = good;
    options.authority_path = "/nowhere/ca.pem";
    refuse_options(&options, STATUS_CONFIG, "/nowhere/ca.pem", "No such file");
    options = good;
    options.revocation_path = "/nowhere/crl.pem";
    refuse_options(&options, STATUS_CONFIG, "/nowhere/crl.pem", "No such file");
    options = good;
    options.certificate_path = good.key_path;
    refuse_options(&options, STATUS_CONFIG, good.key_path, "not a certificate in PEM");
    options = good;
    options.key_path = good.certificate_path;
    refuse_options(&options, STATUS_CONFIG, good.certificate_path, "not an unencrypted private key");
    options = good;
    options.authority_path = good.key_path;
    refuse_options(&options, STATUS_CONFIG, good.key_path, "no certificates");
    options = good;
    options.revocation_path = good.certificate_path;
    refuse_options(&options, STATUS_CONFIG, good.certificate_path, "not a certificate revocation list");
    options = good;
    options.certificate_path = NULL;
    refuse_options(&options, STATUS_CONFIG, "certificate", "configured");
}

static void an_encrypted_key_is_refused_without_a_question(void **state)
{
    (void)state;
    struct quic_options options;
    quic_node_options(pki, "a", &options);
    const char *path = test_pki_path(pki, "encrypted.key");
    EVP_PKEY *key = EVP_EC_gen("P-256");
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(
        PEM_write_PrivateKey(file, key, EVP_aes_128_cbc(), (const unsigned char *)"secret", 6, NULL, NULL),
        1);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, 0600), 0);
    EVP_PKEY_free(key);
    options.key_path = path;
    refuse_options(&options, STATUS_CONFIG, "encrypted.key", "not an unencrypted private key");
}

/* OpenSSL leaves its own arena out of core dumps. */
static void the_key_lies_in_secure_memory(void **state)
{
    (void)state;
    size_t before = CRYPTO_secure_used();
    a = quic_node_new(loop, pki, "a", NULL);
    assert_true(CRYPTO_secure_used() > before);
}

/* systemd passes a credential with an access list, whose mask looks like access for the file's group. */
static void a_credential_may_have_an_access_list(void **state)
{
    (void)state;
    struct quic_options options;
    quic_node_options(pki, "a", &options);
    options.key_is_credential = true;
    assert_int_equal(chmod(options.key_path, 0460), 0);
    refuse_options(&options, STATUS_CONFIG, options.key_path, "mode 0460");
    assert_int_equal(chmod(options.key_path, 0444), 0);
    refuse_options(&options, STATUS_CONFIG, options.key_path, "mode 0444");
    assert_int_equal(chmod(options.key_path, 0440), 0);
    a = quic_node_new(loop, pki, "a", &options);
    assert_int_equal(chmod(options.key_path, 0600), 0);
}

static void a_key_that_others_can_read_is_refused(void **state)
{
    (void)state;
    struct quic_options options;
    static const unsigned modes[] = {0640, 0604, 0660, 0601, 0777};
    quic_node_options(pki, "a", &options);
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        char text[32];
        assert_int_equal(chmod(options.key_path, modes[i]), 0);
        snprintf(text, sizeof text, "mode %04o", modes[i]);
        refuse_options(&options, STATUS_CONFIG, options.key_path, text);
    }
    assert_int_equal(chmod(options.key_path, 0400), 0);
    a = quic_node_new(loop, pki, "a", &options);
    assert_int_equal(chmod(options.key_path, 0600), 0);
}

static void unacceptable_certificates_are_noticed_at_start(void **state)
{
    (void)state;
    static const struct {
        const char *stem;
        const char *text;
    } cases[] = {
        {"foreign", "not issued by the cluster's CA"},
        {"expired", "has expired"},
        {"early", "not valid yet"},
        {"revoked", "is revoked"},
        {"server", "does not allow this use"},
        {"b", "is not of node \"a\""},
        {"nameless", "no DNS name"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct quic_options options;
        char file[64];
        quic_node_options(pki, cases[i].stem, &options);
        options.node_name = "a";
        options.revocation_path = test_pki_path(pki, "crl.pem");
        snprintf(file, sizeof file, "/%s.pem", cases[i].stem);
        refuse_options(&options, STATUS_CERTIFICATE, file, cases[i].text);
    }
    struct quic_options options;
    quic_node_options(pki, "a", &options);
    options.key_path = test_pki_path(pki, "b.key");
    refuse_options(&options, STATUS_CERTIFICATE, "/b.key", "does not belong");
}

/* --- The peer's --- */

/*
 * Puts another certificate into an endpoint that has started with a good one. An attacker's endpoint would do
 * so. The start-up checks of an endpoint would refuse that certificate, so here the other side must refuse
 * it.
 */
static void disguise(struct quic_node *node, const char *stem)
{
    struct quic_endpoint *endpoint = (struct quic_endpoint *)node->net;
    struct error refusal;
    SSL *samples[] = {quic_tls_dial(endpoint->tls, "b", &refusal), quic_tls_accept(endpoint->tls, &refusal)};
    char file[64];
    for (size_t i = 0; i < 2; i++) {
        SSL_CTX *context = SSL_get_SSL_CTX(samples[i]);
        snprintf(file, sizeof file, "%s.pem", stem);
        assert_int_equal(SSL_CTX_use_certificate_chain_file(context, test_pki_path(pki, file)), 1);
        snprintf(file, sizeof file, "%s.key", stem);
        assert_int_equal(SSL_CTX_use_PrivateKey_file(context, test_pki_path(pki, file), SSL_FILETYPE_PEM), 1);
        SSL_free(samples[i]);
    }
}

/* Node a, with the certificate of `stem`, and node b, which know each other; b knows c, too. */
static void make_nodes(const char *stem)
{
    struct quic_options options;
    quic_node_free(a);
    quic_node_free(b);
    a = quic_node_new(loop, pki, "a", NULL);
    disguise(a, stem);
    quic_node_options(pki, "b", &options);
    options.revocation_path = test_pki_path(pki, "crl.pem");
    b = quic_node_new(loop, pki, "b", &options);
    quic_node_add_peer(a, "b", b->port);
    quic_node_add_peer(b, "a", a->port);
    quic_node_add_peer(b, "c", 1);
    log_lines[0] = '\0';
}

struct fault {
    const char *stem;
    const char *dialled_text;  /* b's error when it dials a; null: it accepts a */
    const char *accepted_text; /* b's error when a dials it */
    const char *log_text;
};

static const struct fault faults[] = {
    {"foreign", "not issued by the cluster's CA", "not issued by the cluster's CA", "CN=foreign"},
    {"expired", "has expired", "has expired", "name \"a\""},
    {"early", "not valid yet", "not valid yet", "CN=early"},
    {"revoked", "is revoked", "is revoked", "CN=revoked"},
    {"server", NULL, "does not allow this use", "CN=server"},
    {"stranger", "is not of node \"a\"", "names no node that node \"b\" knows", "name \"stranger\""},
    {"c", "is not of node \"a\"", NULL, NULL},
    {"b", "is not of node \"a\"", "is of node \"b\" itself", "name \"b\""},
    {"nameless", "is not of node \"a\"", "no DNS name", "no DNS name"},
    {"two", "names more than one node", "names more than one node", "\"a\", \"c\""},
};

/* The dialling side finds the fault during the handshake. Its error names the dialled node and the fault. */
static void a_dialled_peer_with_a_bad_certificate_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        if (faults[i].dialled_text == NULL) {
            continue;
        }
        make_nodes(faults[i].stem);
        quic_node_connect(b, 0);
        assert_true(quic_run_until(loop, b_failed, NULL, 3000));
        assert_int_equal(b->failed_cause.status, STATUS_CERTIFICATE);
        assert_text(b->failed_cause.text, "node a");
        assert_text(b->failed_cause.text, faults[i].dialled_text);
        quic_run_for(loop, 30);
        assert_int_equal(a->up_calls[0] + b->up_calls[0] + b->up_calls[1], 0);
    }
}

/* The accepting side tells the dialling one why, and logs one line with address, certificate and reason. */
static void a_dialling_peer_with_a_bad_certificate_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        if (faults[i].accepted_text == NULL) {
            continue;
        }
        make_nodes(faults[i].stem);
        quic_node_connect(a, 0);
        assert_true(quic_run_until(loop, a_failed, NULL, 3000));
        assert_int_equal(a->failed_cause.status, STATUS_CERTIFICATE);
        assert_text(a->failed_cause.text, "node b");
        assert_text(a->failed_cause.text, "refuses");
        assert_text(a->failed_cause.text, faults[i].accepted_text);
        quic_run_for(loop, 30);
        assert_int_equal(a->up_calls[0] + b->up_calls[0] + b->up_calls[1], 0);
        char address[32];
        snprintf(address, sizeof address, "127.0.0.1:%u", a->port);
        assert_text(log_lines, "refused a connection from");
        assert_text(log_lines, address);
        assert_text(log_lines, faults[i].accepted_text);
        assert_text(log_lines, faults[i].log_text);
        assert_null(strstr(strstr(log_lines, "refused a connection from") + 1, "refused a connection from"));
        struct net_statistics statistics;
        net_statistics(b->net, &statistics);
        assert_int_equal(statistics.refused_handshakes, 1);
    }
}

/* A node that shows the valid certificate of another node counts as that other node only. */
static void the_certificate_says_who_it_is(void **state)
{
    (void)state;
    make_nodes("c");
    quic_node_connect(a, 0);
    assert_true(quic_run_until_count(loop, &b->up_calls[1], 1, 3000));
    assert_int_equal(b->up_calls[0], 0);
    make_nodes("alias");
    quic_node_connect(a, 0);
    assert_true(quic_run_until(loop, both_up, NULL, 3000));
}

/* Begins node a's dial, and returns before the first packet is sent. */
static SSL *begin_dial(void)
{
    struct quic_endpoint *endpoint = (struct quic_endpoint *)a->net;
    struct quic_peer *peer = quic_peer_of(endpoint, 0);
    struct error error;
    assert_int_equal(quic_connection_dial(endpoint, peer, &peer->address, &error), STATUS_OK);
    return peer->dial->tls;
}

static void nobody_connects_without_a_certificate(void **state)
{
    (void)state;
    make_nodes("a");
    SSL_certs_clear(begin_dial());
    assert_true(quic_run_until(loop, a_failed, NULL, 3000));
    assert_int_equal(a->failed_cause.status, STATUS_CERTIFICATE);
    assert_text(a->failed_cause.text, "no certificate was presented");
    assert_text(log_lines, "no certificate was presented");
    assert_int_equal(b->up_calls[0], 0);
}

static void another_protocol_is_refused(void **state)
{
    (void)state;
    make_nodes("a");
    assert_int_equal(SSL_set_alpn_protos(begin_dial(), (const unsigned char *)"\x02h3", 3), 0);
    assert_true(quic_run_until(loop, a_failed, NULL, 3000));
    assert_int_equal(a->failed_cause.status, STATUS_VERSION);
    assert_text(a->failed_cause.text, QUIC_ALPN);
    assert_text(log_lines, "refused a connection");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(unusable_files_are_named, setup, teardown),
        cmocka_unit_test_setup_teardown(an_encrypted_key_is_refused_without_a_question, setup, teardown),
        cmocka_unit_test_setup_teardown(the_key_lies_in_secure_memory, setup, teardown),
        cmocka_unit_test_setup_teardown(a_credential_may_have_an_access_list, setup, teardown),
        cmocka_unit_test_setup_teardown(a_key_that_others_can_read_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(unacceptable_certificates_are_noticed_at_start, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dialled_peer_with_a_bad_certificate_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dialling_peer_with_a_bad_certificate_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(the_certificate_says_who_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_connects_without_a_certificate, setup, teardown),
        cmocka_unit_test_setup_teardown(another_protocol_is_refused, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_certificate", tests, setup_certificates, teardown_files);
}
