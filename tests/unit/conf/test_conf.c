#include "tests/unit/conf/conf_file.h"

#include "daemon/conf/changes.h"
#include "daemon/conf/credential.h"
#include "proto/types.h"
#include "proto/version.h"

/* What conf_load reads, and where each value comes from. test_conf_refused.c checks what it refuses. */

static void test_standalone_defaults(void **state)
{
    (void)state;
    struct conf_options options = {.standalone = true};
    struct conf *conf = load(&options);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    host[strcspn(host, ".")] = '\0';
    assert_string_equal(conf->path, "");
    assert_true(conf->standalone);
    assert_string_equal(conf->node_name, host);
    assert_string_equal(conf->cluster_name, "");
    assert_string_equal(conf->listen, "");
    char file[300];
    snprintf(file, sizeof file, "/commd/pki/%s.crt", host); /* the node's own, in every node's file */
    assert_contains(conf->certificate, file);
    snprintf(file, sizeof file, "/commd/pki/%s.key", host);
    assert_contains(conf->key, file);
    assert_contains(conf->authority, "/commd/pki/ca.crt");
    assert_string_equal(conf->revocation_list, "");
    assert_string_equal(conf->socket_path, CLIENT_SOCKET_DEFAULT);
    assert_string_equal(conf->socket_mode, "0666");
    assert_string_equal(conf->socket_group, "");
    assert_string_equal(conf->log_level, "info");
    assert_int_equal(conf->heartbeat_interval_ms, 500);
    assert_int_equal(conf->heartbeat_timeout_ms, 4000);
    assert_int_equal(conf->suspect_timeout_ms, 450);
    assert_int_equal(conf->reconnect_min_ms, 100);
    assert_int_equal(conf->reconnect_max_ms, 5000);
    assert_int_equal(conf->handshake_timeout_ms, 5000);
    assert_int_equal(conf->slice_bytes, 1048576);
    assert_int_equal(conf->datagram_bytes, 0);
    assert_int_equal(conf->socket_buffer_bytes, 0);
    assert_int_equal(conf->drain_timeout_ms, 10000);
    assert_int_equal(conf->user_limits[BUDGET_SESSIONS], 0);
    assert_int_equal(conf->node_count, 0);
    conf_free(conf);
    conf_free(NULL);
}

static void test_whole_file(void **state)
{
    (void)state;
    struct conf *conf = load_text("/* a cluster\n of three */ node_name = \"b\";\n"
                                  "cluster_name : \"blue\"\n"
                                  "nodes = (\n"
                                  "  { name = \"a\"; address = \"192.0.2.1:7400\"; },\n"
                                  "  { name = \"b\"; address = \"[2001:db8::2]:7401\"; },\n"
                                  "  { address = \"c.example:65535\"; name = \"c-3\"; }\n"
                                  ");\n"
                                  "# a comment: slice_bytes = 99999999999;\n"
                                  "slice_bytes = 0x10000; drain_timeout_ms = 0; user_limit_sessions = 77;\n"
                                  "reconnect_max_ms = 600000L;\n"
                                  "socket_mode = \"0660\"; // \"99999999999\n"
                                  "socket_path = \"/run/\" \"x 99999999999 @include.sock\";\n");
    char where[160];
    assert_string_equal(conf->path, path);
    assert_string_equal(conf->node_name, "b");
    assert_string_equal(conf->cluster_name, "blue");
    assert_string_equal(conf->listen, "[2001:db8::2]:7401"); /* this node's own address in the list */
    assert_int_equal(conf->node_count, 2);
    assert_string_equal(conf->nodes[0].name, "a");
    assert_string_equal(conf->nodes[0].address, "192.0.2.1:7400");
    assert_string_equal(conf->nodes[1].name, "c-3");
    assert_string_equal(conf->nodes[1].address, "c.example:65535");
    assert_int_equal(conf->slice_bytes, 65536);
    assert_int_equal(conf->drain_timeout_ms, 0);
    assert_int_equal(conf->user_limits[BUDGET_SESSIONS], 77);
    assert_int_equal(conf->reconnect_max_ms, 600000);
    assert_string_equal(conf->socket_mode, "0660");
    assert_string_equal(conf->socket_path, "/run/x 99999999999 @include.sock");

    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    snprintf(where, sizeof where, "%s:2", path);
    assert_visited(&visited, "node_name", "b", where);
    snprintf(where, sizeof where, "%s:5", path);
    assert_visited(&visited, "nodes.a", "192.0.2.1:7400", where);
    snprintf(where, sizeof where, "%s:7", path);
    assert_visited(&visited, "nodes.c-3", "c.example:65535", where);
    snprintf(where, sizeof where, "%s:10", path);
    assert_visited(&visited, "slice_bytes", "65536", where);
    assert_visited(&visited, "log_level", "info", "default");
    assert_int_equal(find_visited(&visited, "nodes.b"), SIZE_MAX);
    conf_free(conf);
}

static void test_paths_with_the_name_of_the_node(void **state)
{
    (void)state;
    struct conf *conf =
        load_text(OWN "certificate = \"/pki/%n.crt\"; key = \"/pki/%n/%n.key\"; authority = \"/100%%.crt\";\n"
                      "socket_path = \"/run/%n\"; admin_socket_path = \"/run/%%n\";");
    assert_string_equal(conf->certificate, "/pki/a.crt");
    assert_string_equal(conf->key, "/pki/a/a.key");
    assert_string_equal(conf->authority, "/100%.crt");
    assert_string_equal(conf->socket_path, "/run/a");
    assert_string_equal(conf->admin_socket_path, "/run/%n");
    assert_string_equal(conf->revocation_list, ""); /* another authority's list would be no use */
    conf_free(conf);
    assert_refused(OWN "certificate = \"/pki/%h.crt\";", 3,
                   "certificate = \"/pki/%h.crt\": expected %n (the node's name) or %%");
    assert_refused(OWN "revocation_list = \"/pki/%\";", 3, "revocation_list = \"/pki/%\": expected %n");
}

static void test_listen_wins_over_own_address(void **state)
{
    (void)state;
    struct conf *conf = load_text(OWN "listen = \"0.0.0.0:7500\";\n");
    assert_string_equal(conf->listen, "0.0.0.0:7500");
    assert_int_equal(conf->node_count, 0);
    conf_free(conf);
}

/* Files that systemd passes to the service. */
static void test_credentials(void **state)
{
    (void)state;
    static const char text[] = OWN "key = \"$CREDENTIALS_DIRECTORY/node.key\";\n";
    assert_int_equal(unsetenv("CREDENTIALS_DIRECTORY"), 0);
    assert_refused(text, 3, "key = \"$CREDENTIALS_DIRECTORY/node.key\": $CREDENTIALS_DIRECTORY is not set");
    assert_int_equal(setenv("CREDENTIALS_DIRECTORY", "/run/credentials/commd.service", 1), 0);
    struct conf *conf = load_text(text);
    assert_string_equal(conf->key, "/run/credentials/commd.service/node.key");
    assert_true(conf_is_credential(conf->key));
    assert_false(conf_is_credential(conf->certificate));
    assert_false(conf_is_credential("/run/credentials/commd.service/../other/node.key"));
    assert_false(conf_is_credential("/run/credentials/commd.service-2/node.key"));
    conf_free(conf);
    assert_int_equal(unsetenv("CREDENTIALS_DIRECTORY"), 0);
    assert_false(conf_is_credential("/run/credentials/commd.service/node.key"));
    /* In other settings, the text is not replaced. */
    conf = load_text(OWN "cluster_name = \"$CREDENTIALS_DIRECTORY/x\";\n");
    assert_string_equal(conf->cluster_name, "$CREDENTIALS_DIRECTORY/x");
    conf_free(conf);
}

static void test_overrides(void **state)
{
    (void)state;
    write_bytes(OWN "slice_bytes = 8192; cluster_name = \"file\";",
                strlen(OWN "slice_bytes = 8192; cluster_name = \"file\";"));
    static const char *const good[] = {"slice_bytes=4096", "cluster_name=a=b", "listen=h:5",
                                       "slice_bytes=5000", "revocation_list="};
    struct conf_options options = {.path = path, .overrides = good, .override_count = 5};
    struct conf *conf = load(&options);
    assert_int_equal(conf->slice_bytes, 5000); /* the last one */
    assert_string_equal(conf->cluster_name, "a=b");
    assert_string_equal(conf->listen, "h:5");
    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    assert_visited(&visited, "slice_bytes", "5000", "option");
    conf_free(conf);

    static const struct {
        const char *text;
        const char *part;
    } bad[] = {
        {"slice_bytes", "option slice_bytes: expected KEY=VALUE"},
        {"slice_byte=1", "option slice_byte: unknown key"},
        {"=1", "option : unknown key"},
        {"nodes=x", "option nodes: unknown key"},
        {"a_key_that_is_longer_than_any_that_there_is_and_than_any_that_will_be=1", ": unknown key"},
        {"slice_bytes=", "option slice_bytes: expected a whole number, not \"\""},
        {"slice_bytes=4k", "option slice_bytes: expected a whole number, not \"4k\""},
        {"slice_bytes=99999999999999999999", "expected a whole number, not \"99999999999999999999\""},
        {"slice_bytes=4294971392", "option: slice_bytes = 4294971392: expected a number from 4096"},
        {"slice_bytes=-1", "option: slice_bytes = -1: expected a number from 4096"},
        {"listen=here", "option: listen = \"here\": expected an address"},
        {"log_level=x", "option: log_level = \"x\": expected error"},
        {"node_name=x.y", "option: node_name = \"x.y\": expected a node's name"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct error error;
        options.overrides = &bad[i].text;
        options.override_count = 1;
        conf = NULL;
        assert_int_equal(conf_load(&options, &conf, &error), STATUS_CONFIG);
        assert_null(conf);
        assert_contains(error.text, bad[i].part);
    }
}

static void test_needs_restart(void **state)
{
    (void)state;
    struct conf *old_conf = load_text(OWN);
    struct conf_changes changes = {0};
    struct conf *new_conf =
        load_text(OWN "log_level = \"debug\"; drain_timeout_ms = 5; cuda_ipc_handles = \"refuse\";");
    conf_changes_of_settings(&changes, old_conf, new_conf);
    assert_int_equal(changes.waiting.count, 0);
    assert_int_equal(changes.applied.count, 3);
    assert_string_equal(changes.applied.texts[0], "log_level = debug");
    conf_changes_free(&changes);
    conf_free(new_conf);
    new_conf = load_text("node_name = \"a\"; nodes = ( { name = \"a\"; address = \"127.0.0.1:7400\"; }, "
                         "{ name = \"b\"; address = \"h:1\"; } );");
    conf_changes_of_settings(&changes, old_conf, new_conf);
    assert_int_equal(changes.waiting.count + changes.applied.count, 0);
    conf_free(new_conf);
    new_conf = load_text(
        OWN "slice_bytes = 8192; socket_mode = \"0600\"; users = ( { name = \"0\"; nodes = [ ]; } );");
    conf_changes_of_settings(&changes, old_conf, new_conf);
    assert_int_equal(changes.waiting.count, 2);
    assert_string_equal(changes.waiting.texts[0], "socket_mode = 0600"); /* in the schema's order */
    assert_string_equal(changes.waiting.texts[1], "slice_bytes = 8192");
    assert_int_equal(changes.applied.count, 1);
    assert_string_equal(changes.applied.texts[0], "users: 1 listed");
    conf_changes_free(&changes);
    conf_free(new_conf);
    conf_free(old_conf);
}

static void assert_in_force(const struct conf *conf, const char *key, const char *value, const char *waiting)
{
    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    size_t i = find_visited(&visited, key);
    assert_int_not_equal(i, SIZE_MAX);
    assert_string_equal(visited.values[i], value);
    assert_string_equal(visited.waiting[i], waiting);
}

/* After reloads, the configuration says what is in force, and what waits for a restart. */
static void test_reloads_keep_what_needs_a_restart(void **state)
{
    (void)state;
    struct error error;
    struct conf *conf = load_text(OWN "slice_bytes = 8192; log_level = \"error\";");
    struct conf *next =
        load_text("\n" OWN "slice_bytes = 16384; socket_mode = \"0600\"; log_level = \"debug\";");
    conf_keep_until_restart(next, conf);
    assert_in_force(next, "slice_bytes", "8192", "16384");
    assert_in_force(next, "socket_mode", "0666", "0600");
    assert_in_force(next, "log_level", "debug", "");
    assert_int_equal(next->slice_bytes, 8192);
    conf = next;
    next = load_text(OWN "slice_bytes = 8192;"); /* taken back */
    conf_keep_until_restart(next, conf);
    assert_in_force(next, "slice_bytes", "8192", "");
    assert_in_force(next, "socket_mode", "0666", "");
    assert_in_force(next, "log_level", "info", "");
    assert_int_equal(conf_set_text(next, "log_level", "debug", "commctl", &error), STATUS_OK);
    assert_in_force(next, "log_level", "debug", "");
    assert_int_equal(conf_set_text(next, "log_level", "loud", "commctl", &error), STATUS_INVALID_ARGUMENT);
    assert_contains(error.text, "log_level = \"loud\": expected error, warning, info or debug");
    assert_in_force(next, "log_level", "debug", "");
    conf_free(next);
}

static void test_node_names(void **state)
{
    (void)state;
    char name[NODE_NAME_MAX_BYTES + 2];
    memset(name, 'x', sizeof name);
    name[NODE_NAME_MAX_BYTES] = '\0';
    assert_true(conf_node_name_is_valid(name));
    name[NODE_NAME_MAX_BYTES] = 'x';
    name[NODE_NAME_MAX_BYTES + 1] = '\0';
    assert_false(conf_node_name_is_valid(name));
    assert_true(conf_node_name_is_valid("0"));
    assert_true(conf_node_name_is_valid("A-b-9"));
    assert_false(conf_node_name_is_valid(""));
    assert_false(conf_node_name_is_valid("a\n"));
}

/* Users are given by name or by number, before or after the nodes. A user who is not listed may use every
 * node. */
static void test_users_of_nodes(void **state)
{
    (void)state;
    struct conf *conf = load_text(
        "users = ( { name = \"2000\"; nodes = [ \"c\", \"a\" ]; }, { name = \"root\"; nodes = ( \"b\" ); },\n"
        " { name = \"3000\"; nodes = [ ]; } );\n"
        "nodes = ( { name = \"a\"; address = \"127.0.0.1:7400\"; }, { name = \"b\"; address = "
        "\"127.0.0.1:7410\"; },\n"
        " { name = \"c\"; address = \"127.0.0.1:7420\"; } );\nnode_name = \"a\";\n");
    static const struct {
        uint32_t uid;
        const char *nodes;
    } may[] = {{2000, "ac"}, {0, "b"}, {3000, ""}, {1000, "abc"}, {UINT32_MAX, "abc"}};
    for (size_t i = 0; i < sizeof may / sizeof *may; i++) {
        for (const char *name = "abc"; *name != '\0'; name++) {
            char node[2] = {*name, '\0'};
            assert_int_equal(conf_user_may(conf, may[i].uid, node), strchr(may[i].nodes, *name) != NULL);
        }
    }
    assert_false(conf_user_may(conf, 2000, "d"));
    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    char where[160];
    snprintf(where, sizeof where, "%s:1", path);
    assert_visited(&visited, "users.2000", "a, c", where);
    assert_visited(&visited, "users.root", "b", where);
    assert_true(conf_is_private("users.root"));
    conf_free(conf);
}

/* The shipped file names no node: it is for one machine. */
static void test_no_nodes_is_standalone(void **state)
{
    (void)state;
    static const char *const texts[] = {"", "nodes = ( );", "node_name = \"a\"; nodes = ( );"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct conf *conf = load_text(texts[i]);
        assert_true(conf->standalone);
        conf_free(conf);
    }
    struct conf *listening = load_text("listen = \"0.0.0.0:7400\";");
    assert_false(listening->standalone);
    conf_free(listening);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standalone_defaults),
        cmocka_unit_test(test_no_nodes_is_standalone),
        cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_listen_wins_over_own_address),
        cmocka_unit_test(test_paths_with_the_name_of_the_node),
        cmocka_unit_test(test_credentials),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_needs_restart),
        cmocka_unit_test(test_reloads_keep_what_needs_a_restart),
        cmocka_unit_test(test_node_names),
        cmocka_unit_test(test_users_of_nodes),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
