#include "tests/unit/net/quic_nodes.h"

#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <time.h>

#include "daemon/net/quic_internal.h"

/* Who may connect, who is refused, and what everybody is told. */

#define DAY_S (24 * 3600L)

static char log_lines[16384];

static void keep_line(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    size_t used = strlen(log_lines);
    snprintf(log_lines + used, sizeof log_lines - used, "%s\n", line);
}

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

static int setup(void **state)
{
    log_lines[0] = '\0';
    log_set_sink(keep_line, NULL);
    return setup_loop(state);
}

static int teardown(void **state)
{
    (void)teardown_nodes(state);
    log_set_sink(NULL, NULL);
    return 0;
}

static bool a_failed(const void *context)
{
    (void)context;
    return a->failed_calls[0] > 0;
}

static bool b_failed(const void *context)
{
    (void)context;
    return b->failed_calls[0] > 0;
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

/* OpenSSL's own arena is left out of core dumps. */
static void the_key_lies_in_secure_memory(void **state)
{
    (void)state;
    size_t before = CRYPTO_secure_used();
    a = quic_node_new(loop, pki, "a", NULL);
    assert_true(CRYPTO_secure_used() > before);
}

/* systemd passes it with an access list, whose mask looks like a group's access. */
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
 * Puts another certificate into an endpoint that has started with a good one, as an attacker's would be: what
 * its own start-up checks refuse, the other side has to.
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
    const char *dialled_text;  /* what b, dialling a, says; null: it accepts that */
    const char *accepted_text; /* what b, dialled by a, says */
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

/* The dialling side sees it in the handshake; its error names the dialled node and the fault. */
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

/* Another node's valid certificate makes one that node, and nobody else. */
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

/* Begins node a's dial, before its first packet. */
static SSL *begin_dial(void)
{
    struct quic_endpoint *endpoint = (struct quic_endpoint *)a->net;
    struct quic_peer *peer = endpoint->peers[0];
    struct error error;
    assert_int_equal(quic_connection_dial(endpoint, peer, &error), STATUS_OK);
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

/* --- Reloading --- */

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
    make_nodes("a");
    quic_node_free(a);
    test_pki_issue(pki, "renewed", &(struct test_certificate){.name = "a"});
    quic_node_options(pki, "renewed", &options);
    options.node_name = "a";
    a = quic_node_new(loop, pki, "a", &options);
    quic_node_free(b);
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
    assert_true(quic_run_until(loop, both_up, NULL, 3000)); /* with the old one */
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

/* b's certificate is revoked while it is connected to a, by whichever side: a ends the connection. */
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
    quic_node_connect(a, 0); /* it does not come back */
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

/* The whole authority is replaced: who is of the old one goes. Dates do not end a connection. */
static void a_peer_of_an_authority_that_is_gone_is_dropped(void **state)
{
    (void)state;
    struct quic_options options;
    struct error error;
    make_nodes("a");
    quic_node_free(b);
    quic_node_free(a);
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

/* Seconds since 1970: of the certificate that was shown, and of our own. */
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

/* The handshake began before the list was loaded. */
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

/* An attempt is called off without a word, and the next one goes to the new address. */
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
    assert_true(both_up(NULL)); /* what works stays */
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
        cmocka_unit_test_setup_teardown(reload_takes_new_files_and_keeps_old_ones_on_failure, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_revoked_peer_that_was_dialled_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_revoked_peer_that_dialled_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_of_an_authority_that_is_gone_is_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(the_end_of_certificates_is_known, setup, teardown),
        cmocka_unit_test_setup_teardown(a_peer_that_is_revoked_during_its_handshake_is_refused, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_removed_peer_is_told_and_stays_away, setup, teardown),
        cmocka_unit_test_setup_teardown(a_moved_peer_is_dialled_at_its_new_address, setup, teardown),
    };
    return cmocka_run_group_tests_name("quic_certificate", tests, setup_certificates, teardown_files);
}
