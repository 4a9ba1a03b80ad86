#include "tests/unit/conf/conf_file.h"

#include <sys/stat.h>

/* What conf_load refuses, with which text, and at which line. */

static void test_limits_of_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint64_t min, max;
        const char *beside; /* the other setting of a pair, so that both fit together */
    } numbers[] = {
        {"heartbeat_interval_ms", 10, 60000, "heartbeat_timeout_ms = 600000;"},
        {"heartbeat_timeout_ms", 50, 600000, "heartbeat_interval_ms = 10;"},
        {"suspect_timeout_ms", 20, 600000, ""},
        {"reconnect_min_ms", 10, 60000, "reconnect_max_ms = 600000;"},
        {"reconnect_max_ms", 10, 600000, "reconnect_min_ms = 10;"},
        {"handshake_timeout_ms", 100, 60000, ""},
        {"slice_bytes", 4096, 268435456, ""},
        {"datagram_bytes", 0, 65527, ""},
        {"socket_buffer_bytes", 0, 1073741824, ""},
        {"drain_timeout_ms", 0, 600000, ""},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        char text[512];
        char part[256];
        uint64_t good[] = {numbers[i].min, numbers[i].max};
        int64_t bad[] = {(int64_t)numbers[i].min - 1, (int64_t)numbers[i].max + 1, -1, INT32_MIN, INT32_MAX};
        for (size_t k = 0; k < 2; k++) {
            snprintf(text, sizeof text, OWN "%s\n%s = %llu;", numbers[i].beside, numbers[i].key,
                     (unsigned long long)good[k]);
            struct conf *conf = load_text(text);
            struct visited visited = {0};
            conf_visit(conf, visit, &visited);
            char value[32];
            char where[160];
            snprintf(value, sizeof value, "%llu", (unsigned long long)good[k]);
            snprintf(where, sizeof where, "%s:4", path);
            assert_visited(&visited, numbers[i].key, value, where);
            conf_free(conf);
        }
        for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
            snprintf(text, sizeof text, OWN "%s = %lld;", numbers[i].key, (long long)bad[k]);
            snprintf(part, sizeof part, "%s = %lld: expected a number from %llu to %llu", numbers[i].key,
                     (long long)bad[k], (unsigned long long)numbers[i].min,
                     (unsigned long long)numbers[i].max);
            assert_refused(text, 3, part);
        }
    }
}

/* 4294971392 is 4096 modulo 2^32. Cut to 32 bits, it would be accepted. */
static void test_numbers_do_not_wrap(void **state)
{
    (void)state;
    assert_refused("\nslice_bytes = 4294971392;\n" OWN, 2,
                   "slice_bytes = 4294971392: expected a smaller number");
    assert_refused("slice_bytes = 4294971392L;\n" OWN, 1,
                   "slice_bytes = 4294971392: expected a number from 4096 to 268435456");
    assert_refused("slice_bytes = 0x100001000;\n" OWN, 1, "slice_bytes = 0x100001000: expected");
    assert_refused("slice_bytes = -4294963200;\n" OWN, 1, "slice_bytes = -4294963200: expected");
    assert_refused("slice_bytes = 18446744073709555712L;\n" OWN, 1, "18446744073709555712L: expected");
    assert_refused("/*\n\n*/ slice_bytes =\n 99999999999999999999;\n" OWN, 4, "slice_bytes = 99999999999");
}

static const struct {
    const char *line;
    const char *part;
} scalars[] = {
    {"no_such_key = 1;", "no_such_key: unknown key"},
    {"Slice_Bytes = 4096;", "Slice_Bytes: unknown key"},
    {"node = { name = \"a\"; };", "node: unknown key"},
    /* Another type. */
    {"slice_bytes = \"4096\";", "slice_bytes: expected a whole number"},
    {"slice_bytes = 4096.0;", "slice_bytes: expected a whole number"},
    {"slice_bytes = 1e30;", "slice_bytes: expected a whole number"},
    {"slice_bytes = true;", "slice_bytes: expected a whole number"},
    {"slice_bytes = [ 4096 ];", "slice_bytes: expected a whole number"},
    {"slice_bytes = { };", "slice_bytes: expected a whole number"},
    {"cluster_name = 5;", "cluster_name: expected a text in double quotes"},
    {"cluster_name = false;", "cluster_name: expected a text in double quotes"},
    {"cluster_name = ( \"x\" );", "cluster_name: expected a text in double quotes"},
    /* Addresses. */
    {"metrics = \"0.0.0.0:9464\";", "metrics = \"0.0.0.0:9464\": expected a port of this machine alone"},
    {"metrics = 9464;", "metrics: expected a text"},
    {"listen = \"\";", "listen = \"\": expected an address: \"host:port\" or \"[IPv6]:port\""},
    {"listen = \"127.0.0.1\";", "listen = \"127.0.0.1\": expected an address"},
    {"listen = \":7400\";", "expected an address"},
    {"listen = \"host:\";", "expected an address"},
    {"listen = \"host:65536\";", "expected an address"},
    {"listen = \"host:100000\";", "expected an address"},
    {"listen = \"host:-1\";", "expected an address"},
    {"listen = \"host:74x\";", "expected an address"},
    {"listen = \"::1:7400\";", "expected an address"},
    {"listen = \"[::1]7400\";", "expected an address"},
    {"listen = \"[::1:7400\";", "expected an address"},
    {"listen = \"[]:7400\";", "expected an address"},
    {"listen = \"::1]:7400\";", "expected an address"},
    {"listen = \"host:0\";", "the port from 1 to 65535"},
    {"listen = \"300.1.1.1:7400\";", "the host an IP address or a name"},
    {"listen = \"192.0.2:7400\";", "the host an IP address or a name"},
    {"listen = \"a host:7400\";", "the host an IP address or a name"},
    {"listen = \"-x:7400\";", "the host an IP address or a name"},
    {"listen = \"[::g]:7400\";", "the host an IP address or a name"},
    {"listen = \"[192.0.2.1]:7400\";", "the host an IP address or a name"},
    /* Permissions. */
    {"socket_mode = \"\";", "socket_mode = \"\": expected file permissions in octal, as \"0660\""},
    {"socket_mode = \"0888\";", "expected file permissions"},
    {"socket_mode = \"1777\";", "expected file permissions"},
    {"socket_mode = \"-1\";", "expected file permissions"},
    {"socket_mode = \" 660\";", "expected file permissions"},
    {"socket_mode = \"660 \";", "expected file permissions"},
    {"socket_mode = \"00660\";", "expected file permissions"},
    {"socket_mode = 438;", "socket_mode: expected a text in double quotes"},
    /* Levels, names, paths. */
    {"log_level = \"loud\";", "log_level = \"loud\": expected error, warning, info or debug"},
    {"log_level = \"INFO\";", "expected error, warning, info or debug"},
    {"gpus = \"on\";", "gpus = \"on\": expected auto or off"},
    {"gpu_engine = \"cuda\";", "gpu_engine = \"cuda\": expected auto, nccl or kernels"},
    {"gpu_nccl_register = \"auto\";", "gpu_nccl_register = \"auto\": expected off, on or windows"},
    {"gpu_ahead = 17;", "gpu_ahead = 17: expected a number from 0 to 16"},
    {"gpu_nccl_ctas = 65;", "gpu_nccl_ctas = 65: expected a number from 0 to 64"},
    {"gpu_tuning = \"table.json\";",
     "gpu_tuning = \"table.json\": expected auto, off or a file's path from /"},
    {"gpu_peer_access = \"\";", "gpu_peer_access = \"\": expected auto or off"},
    {"cuda_ipc_handles = \"off\";", "cuda_ipc_handles = \"off\": expected auto, accept or refuse"},
    {"cuda_ipc_handles = true;", "cuda_ipc_handles: expected a text in double quotes"},
    {"socket_path = \"\";", "socket_path = \"\": expected a file's path"},
    {"certificate = \"\";", "certificate = \"\": expected a file's path"},
    {"key = \"\";", "key = \"\": expected a file's path"},
    {"authority = \"\";", "authority = \"\": expected a file's path"},
    /* Syntax: libconfig's own words. */
    {"slice_bytes = ;", "syntax error"},
    {"slice_bytes 4096;", "syntax error"},
    {"= 3;", "syntax error"},
    {"nodes = ( );", "nodes: duplicate setting name"},
    {"node_name = \"a\";", "node_name: duplicate setting name"},
    {"@include \"other.conf\"", "@include: expected the whole configuration in this file"},
    {"  @include \"/tmp\"", "@include: expected the whole configuration in this file"},
};

static void test_scalars_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scalars / sizeof scalars[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, OWN "\n%s\n", scalars[i].line);
        assert_refused(text, 4, scalars[i].part);
    }
    assert_refused("slice_bytes = 4096;\ncluster_name = \"x\";\nslice_bytes = 4096;\n" OWN, 3,
                   "duplicate setting name");
}

static void test_node_names_refused(void **state)
{
    (void)state;
    static const char *const names[] = {
        "a_b",
        "-a",
        "a-",
        "a.b",
        "a b",
        "ä",
        "a123456789012345678901234567890123456789012345678901234567890123"}; /* 64 bytes */
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char text[256];
        char part[256];
        snprintf(text, sizeof text, "\nnode_name = \"%s\";", names[i]);
        snprintf(part, sizeof part, "node_name = \"%s\": expected a node's name: letters, digits and hyphens",
                 names[i]);
        assert_refused(text, 2, part);
    }
}

static void test_unclosed(void **state)
{
    (void)state;
    static const char *const texts[] = {OWN "cluster_name = \"abc", OWN "nodes2 = (",
                                        OWN "cluster_name = \"abc\\"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_bytes(texts[i], strlen(texts[i]));
        struct conf_options options = {.path = path};
        struct conf *conf = NULL;
        struct error error;
        enum status status = conf_load(&options, &conf, &error);
        assert_int_equal(status, STATUS_CONFIG);
        assert_contains(error.text, "syntax error");
        assert_contains(error.text, path);
    }
}

static void test_nodes_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        unsigned line;
        const char *part;
    } cases[] = {
        {"nodes = 5;", 1, "nodes: expected a list: ( { name = ...; address = ...; }, ... )"},
        {"nodes = [ \"a\" ];", 1, "nodes: expected a list"},
        {"nodes = { name = \"a\"; };", 1, "nodes: expected a list"},
        {"nodes = (\n \"a\" );", 2, "nodes: expected { name = \"...\"; address = \"host:port\"; }"},
        {"nodes = (\n { name = \"a\"; } );", 2, "nodes: a node needs a name and an address"},
        {"nodes = (\n { address = \"h:1\"; } );", 2, "nodes: a node needs a name and an address"},
        {"nodes = ( { } );", 1, "nodes: a node needs a name and an address"},
        {"nodes = ( {\n name = \"a\";\n port = 7; } );", 3,
         "nodes: port: unknown key (name, address and rail_addresses are known)"},
        {"nodes = ( { name =\n 5; address = \"h:1\"; } );", 1, "nodes: name = \"\": expected a text"},
        {"nodes = ( { name = \"a\";\n address = 7400; } );", 2, "nodes: address = \"\": expected a text"},
        {"nodes = ( { name = \"a\";\n address = \"h\"; } );", 2,
         "nodes: address = \"h\": expected an address: \"host:port\" or \"[IPv6]:port\""},
        {"nodes = ( { name = \"a.b\"; address = \"h:1\"; } );", 1,
         "nodes: name = \"a.b\": expected a node's name: letters, digits and hyphens, at most 63"},
        {"nodes = ( { name = \"a\";\n name = \"b\"; address = \"h:1\"; } );", 2,
         "name: duplicate setting name"},
        {"node_name = \"a\"; nodes = ( { name = \"a\"; address = \"h:1\"; },\n"
         "{ name = \"b\"; address = \"h:2\"; },\n{ name = \"b\"; address = \"h:3\"; } );",
         3, "nodes: \"b\" is listed twice, first at "},
        {"node_name = \"a\"; nodes = ( { name = \"a\"; address = \"h:1\"; },\n"
         "{ name = \"a\"; address = \"h:1\"; } );",
         2, "nodes: \"a\" is listed twice, first at "},
        {"node_name = \"a\"; nodes = ( { name = \"a\"; address = \"h:1\"; },\n{ name = \"c\"; address = "
         "\"h:2\"; },\n"
         "{ name = \"b\"; address = \"H:01\"; } );",
         3, "nodes: address = \"H:01\": node \"a\" at "},
        {"nodes = ( { name = \"a\"; address = \"[::1%\"; } );", 1, "expected an address"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_refused(cases[i].text, cases[i].line, cases[i].part);
    }
}

static void test_own_name_missing(void **state)
{
    (void)state;
    char part[256];
    const char *nodes = "nodes = ( { name = \"a\"; address = \"h:1\"; } );\n";
    char text[256];
    snprintf(text, sizeof text, "%snode_name = \"b\";", nodes);
    snprintf(part, sizeof part, "nodes: this node, \"b\", is not among them (node_name is %s:2)", path);
    assert_refused(text, 0, part);
    /* The node's name comes from an option, then from the host's name. */
    static const char *const overrides[] = {"node_name=c"};
    struct conf_options options = {.path = path, .overrides = overrides, .override_count = 1};
    assert_refused_with(&options, STATUS_CONFIG, 0,
                        "nodes: this node, \"c\", is not among them (node_name is option)");
    snprintf(text, sizeof text, "nodes = ( { name = \"no-host-%d\"; address = \"h:1\"; } );", (int)getpid());
    assert_refused(text, 0, "is not among them (node_name is default)");
    /* With an address to listen on, the list may leave out this node. */
    snprintf(text, sizeof text, "%snode_name = \"b\"; listen = \"0.0.0.0:7400\";", nodes);
    struct conf *conf = load_text(text);
    assert_int_equal(conf->node_count, 1);
    assert_string_equal(conf->nodes[0].name, "a");
    conf_free(conf);
}

static void test_settings_that_contradict_each_other(void **state)
{
    (void)state;
    assert_refused(OWN "heartbeat_timeout_ms = 999;", 3,
                   "heartbeat_timeout_ms = 999: expected at least twice heartbeat_interval_ms = 500");
    assert_refused(OWN "\nheartbeat_interval_ms = 2001;", 4,
                   "heartbeat_timeout_ms = 4000: expected at least twice heartbeat_interval_ms = 2001");
    assert_refused(OWN "reconnect_max_ms = 99;", 3,
                   "reconnect_max_ms = 99: expected at least reconnect_min_ms = 100");
    struct conf *conf = load_text(OWN "heartbeat_timeout_ms = 1000; reconnect_max_ms = 100;");
    conf_free(conf);
    write_bytes(OWN, strlen(OWN));
    struct conf_options options = {.path = path, .standalone = true};
    conf_free(load(&options));
    const char *others = "node_name = \"b\";\n"
                         "nodes = ( { name = \"a\"; address = \"h:1\"; } );";
    write_bytes(others, strlen(others));
    assert_refused_with(&options, STATUS_CONFIG, 2,
                        "nodes: other nodes are listed, but --standalone was given");
}

/* The second of two equal names is shown, in its own group, and none that stands in a text or comment. */
static void test_duplicates_are_named(void **state)
{
    (void)state;
    assert_refused(OWN "rails = 1; /* log_level = 2 */ slice_bytes = 8192; rails = 2;", 3,
                   "rails: duplicate setting name");
    assert_refused("nodes = ( { name = \"a\"; address = \"h:1\"; },\n{ name = \"b\"; address = \"h:2\";\n"
                   "address = \"h:3\"; } );",
                   3, "address: duplicate setting name");
    assert_refused("cluster_name = \"rails = 1;\";\nrails : 1;\nrails=2;", 3,
                   "rails: duplicate setting name");
}

/* Nobody ever writes to it: without the refusal, this test would not end. */
static void test_named_pipe(void **state)
{
    (void)state;
    (void)unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    struct conf_options options = {.path = path};
    assert_refused_with(&options, STATUS_CONFIG, 0, "a named pipe; expected a regular file");
    assert_int_equal(unlink(path), 0);
}

/* A shell's pipe has a writer, and ends. */
static void test_pipe_of_a_shell(void **state)
{
    (void)state;
    static const char text[] = OWN "slice_bytes = 8192;";
    int ends[2];
    char name[64];
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], text, strlen(text)), strlen(text));
    assert_int_equal(close(ends[1]), 0);
    snprintf(name, sizeof name, "/dev/fd/%d", ends[0]);
    struct conf_options options = {.path = name};
    struct conf *conf = load(&options);
    assert_int_equal(conf->slice_bytes, 8192);
    conf_free(conf);
    assert_int_equal(close(ends[0]), 0);
}

static void test_unreadable(void **state)
{
    (void)state;
    struct conf_options options = {.path = path};
    unlink(path);
    assert_refused_with(&options, STATUS_CONFIG, 0, "No such file or directory");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused_with(&options, STATUS_CONFIG, 0, "Is a directory");
    assert_int_equal(rmdir(path), 0);
    if (geteuid() != 0) {
        write_bytes(OWN, strlen(OWN));
        assert_int_equal(chmod(path, 0), 0);
        assert_refused_with(&options, STATUS_CONFIG, 0, "Permission denied");
        unlink(path);
    }
    static const char zero[] = OWN "slice_bytes = 5000;\0 garbage";
    write_bytes(zero, sizeof zero - 1);
    assert_refused_with(&options, STATUS_CONFIG, 3, "a zero byte; expected text");
}

static void test_too_large(void **state)
{
    (void)state;
    size_t size = CONF_FILE_MAX_BYTES + 1;
    char *text = malloc(size + 1);
    assert_non_null(text);
    memset(text, ' ', size);
    memcpy(text, OWN, strlen(OWN));
    text[size] = '\0';
    write_bytes(text, size);
    struct conf_options options = {.path = path};
    assert_refused_with(&options, STATUS_CONFIG, 0, "expected at most 16777216 bytes");
    write_bytes(text, size - 1);
    conf_free(load(&options));
    /* Nesting without end is refused as well, and does not end the process. */
    memset(text, '(', 1u << 20);
    memcpy(text, "nodes = ", 8);
    text[1u << 20] = '\0';
    assert_refused(text, 1, "");
    free(text);
}

static void test_nodes_max(void **state)
{
    (void)state;
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    fputs("node_name = \"n0\";\nnodes = (", file);
    for (unsigned i = 0; i < CONF_NODES_MAX; i++) {
        fprintf(file, "%s{ name = \"n%u\"; address = \"host-%u.example:%u\"; }", i == 0 ? "" : ",\n", i, i,
                1 + i % 65535);
    }
    fputs(");\n", file);
    assert_int_equal(fclose(file), 0);
    struct conf_options options = {.path = path};
    struct conf *conf = load(&options);
    assert_int_equal(conf->node_count, CONF_NODES_MAX - 1);
    assert_string_equal(conf->nodes[CONF_NODES_MAX - 2].name, "n16383");
    conf_free(conf);
    file = fopen(path, "r+e");
    assert_non_null(file);
    assert_int_equal(fseek(file, -3, SEEK_END), 0);
    fputs(", { name = \"one\"; address = \"too:1\"; } );\n", file);
    assert_int_equal(fclose(file), 0);
    assert_refused_with(&options, STATUS_CONFIG, 2, "nodes: 16385 of them; expected at most 16384");
}

static void test_users(void **state)
{
    (void)state;
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"users = 3;", "users: expected a list of at most 4096"},
        {"users = { name = \"root\"; };", "users: expected a list"},
        {"users = ( 3 );", "users: expected { name = \"...\"; nodes = [ \"...\", ... ]; }"},
        {"users = ( { name = \"root\"; } );", "users: expected { name"},
        {"users = ( { nodes = [ \"a\" ]; } );", "users: expected { name"},
        {"users = ( { name = 7; nodes = [ \"a\" ]; } );", "users: expected { name"},
        {"users = ( { name = \"root\"; nodes = [ \"a\" ]; group = \"x\"; } );", "users: group: unknown key"},
        {"users = ( { name = \"root\"; nodes = \"a\"; } );", "users: nodes: expected a list"},
        {"users = ( { name = \"root\"; nodes = [ 1 ]; } );", "users: nodes: expected names in double quotes"},
        {"users = ( { name = \"no-such-user\"; nodes = [ \"a\" ]; } );",
         "users: there is no user \"no-such-user\" on this node"},
        {"users = ( { name = \"4294967295\"; nodes = [ \"a\" ]; } );", "expected a user's number or name"},
        {"users = ( { name = \"99999999999999999999\"; nodes = [ \"a\" ]; } );",
         "expected a user's number or name"},
        {"users = ( { name = \"7\"; nodes = [ \"b\" ]; } );", "users: nodes: there is no node \"b\""},
        {"users = ( { name = \"0\"; nodes = [ ]; }, { name = \"root\"; nodes = [ \"a\" ]; } );",
         "users: uid 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, OWN "%s", cases[i].text);
        assert_refused(text, 3, cases[i].expected);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_limits_of_numbers),
        cmocka_unit_test(test_numbers_do_not_wrap),
        cmocka_unit_test(test_scalars_refused),
        cmocka_unit_test(test_node_names_refused),
        cmocka_unit_test(test_unclosed),
        cmocka_unit_test(test_nodes_refused),
        cmocka_unit_test(test_own_name_missing),
        cmocka_unit_test(test_settings_that_contradict_each_other),
        cmocka_unit_test(test_duplicates_are_named),
        cmocka_unit_test(test_named_pipe),
        cmocka_unit_test(test_pipe_of_a_shell),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_nodes_max),
        cmocka_unit_test(test_users),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
