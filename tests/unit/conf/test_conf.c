#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/conf/conf.h"
#include "proto/types.h"
#include "proto/version.h"

#define OWN "nodes = ( { name = \"a\"; address = \"127.0.0.1:7400\"; } );\nnode_name = \"a\";\n"
#define SETTINGS_MAX 64

static char folder[64];
static char path[128];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/commd-test-conf-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/commd.conf", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_bytes(const char *text, size_t size)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static struct conf *load(const struct conf_options *options)
{
    struct conf *conf = NULL;
    struct error error;
    if (conf_load(options, &conf, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return conf;
}

static struct conf *load_text(const char *text)
{
    write_bytes(text, strlen(text));
    struct conf_options options = {.path = path};
    return load(&options);
}

static void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, text);
    }
}

/* line 0: the message names the file without one. */
static void assert_refused_with(const struct conf_options *options, enum status status, unsigned line,
                                const char *part)
{
    struct conf *conf = NULL;
    struct error error = {0};
    char start[192];
    assert_int_equal(conf_load(options, &conf, &error), status);
    assert_int_equal(error.status, status);
    assert_null(conf);
    if (line == 0) {
        snprintf(start, sizeof start, "%s: ", path);
    } else {
        snprintf(start, sizeof start, "%s:%u: ", path, line);
    }
    if (strncmp(error.text, start, strlen(start)) != 0) {
        fail_msg("\"%s\" does not start with \"%s\"", error.text, start);
    }
    assert_contains(error.text, part);
    assert_int_equal(conf_load(options, &conf, NULL), status); /* without a place for the message */
}

static void assert_refused(const char *text, unsigned line, const char *part)
{
    write_bytes(text, strlen(text));
    struct conf_options options = {.path = path};
    assert_refused_with(&options, STATUS_CONFIG, line, part);
}

struct visited {
    size_t count;
    char keys[SETTINGS_MAX][96];
    char values[SETTINGS_MAX][160];
    char sources[SETTINGS_MAX][160];
};

static void visit(void *context, const char *key, const char *value, const char *source)
{
    struct visited *visited = context;
    assert_true(visited->count < SETTINGS_MAX);
    snprintf(visited->keys[visited->count], sizeof visited->keys[0], "%s", key);
    snprintf(visited->values[visited->count], sizeof visited->values[0], "%s", value);
    snprintf(visited->sources[visited->count], sizeof visited->sources[0], "%s", source);
    visited->count++;
}

static size_t find_visited(const struct visited *visited, const char *key)
{
    for (size_t i = 0; i < visited->count; i++) {
        if (strcmp(visited->keys[i], key) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

static void assert_visited(const struct visited *visited, const char *key, const char *value,
                           const char *source)
{
    size_t i = find_visited(visited, key);
    if (i == SIZE_MAX) {
        fail_msg("%s was not visited", key);
    }
    assert_string_equal(visited->values[i], value);
    assert_string_equal(visited->sources[i], source);
}

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
    assert_contains(conf->certificate, "/commd/pki/node.crt");
    assert_contains(conf->key, "/commd/pki/node.key");
    assert_contains(conf->authority, "/commd/pki/ca.crt");
    assert_string_equal(conf->revocation_list, "");
    assert_string_equal(conf->socket_path, CLIENT_SOCKET_DEFAULT);
    assert_string_equal(conf->socket_mode, "0666");
    assert_string_equal(conf->socket_group, "");
    assert_string_equal(conf->log_level, "info");
    assert_int_equal(conf->heartbeat_interval_ms, 500);
    assert_int_equal(conf->heartbeat_timeout_ms, 2500);
    assert_int_equal(conf->suspect_timeout_ms, 600);
    assert_int_equal(conf->reconnect_min_ms, 100);
    assert_int_equal(conf->reconnect_max_ms, 5000);
    assert_int_equal(conf->handshake_timeout_ms, 5000);
    assert_int_equal(conf->slice_bytes, 1048576);
    assert_int_equal(conf->datagram_bytes, 0);
    assert_int_equal(conf->socket_buffer_bytes, 0);
    assert_int_equal(conf->drain_timeout_ms, 10000);
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
                                  "slice_bytes = 0x10000; drain_timeout_ms = 0;\n"
                                  "reconnect_max_ms = 600000L;\n"
                                  "socket_mode = \"0660\"; // \"99999999999\n"
                                  "socket_path = \"/run/\" \"x 99999999999 @include.sock\";\n");
    char where[160];
    assert_string_equal(conf->path, path);
    assert_string_equal(conf->node_name, "b");
    assert_string_equal(conf->cluster_name, "blue");
    assert_string_equal(conf->listen, "[2001:db8::2]:7401"); /* our own address among the nodes */
    assert_int_equal(conf->node_count, 2);
    assert_string_equal(conf->nodes[0].name, "a");
    assert_string_equal(conf->nodes[0].address, "192.0.2.1:7400");
    assert_string_equal(conf->nodes[1].name, "c-3");
    assert_string_equal(conf->nodes[1].address, "c.example:65535");
    assert_int_equal(conf->slice_bytes, 65536);
    assert_int_equal(conf->drain_timeout_ms, 0);
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

static void test_listen_wins_over_own_address(void **state)
{
    (void)state;
    struct conf *conf = load_text(OWN "listen = \"0.0.0.0:7500\";\n");
    assert_string_equal(conf->listen, "0.0.0.0:7500");
    assert_int_equal(conf->node_count, 0);
    conf_free(conf);
}

static void test_limits_of_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint64_t min, max;
        const char *beside; /* what keeps pairs of settings acceptable */
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

/* 4294971392 is 4096 modulo 2^32: a good value, were it cut. */
static void test_numbers_do_not_wrap(void **state)
{
    (void)state;
    assert_refused("\nslice_bytes = 4294971392;\n" OWN, 2,
                   "slice_bytes = 4294971392: expected a number that is not so large");
    assert_refused("slice_bytes = 4294971392L;\n" OWN, 1,
                   "slice_bytes = 4294971392: expected a number from 4096 to 268435456");
    assert_refused("slice_bytes = 0x100001000;\n" OWN, 1, "slice_bytes = 0x100001000: expected");
    assert_refused("slice_bytes = -4294963200;\n" OWN, 1, "slice_bytes = -4294963200: expected");
    assert_refused("slice_bytes = 18446744073709555712L;\n" OWN, 1, "18446744073709555712L: expected");
    assert_refused("/*\n\n*/ slice_bytes =\n 99999999999999999999;\n" OWN, 4, "slice_bytes = 99999999999");
}

static void test_scalars_refused(void **state)
{
    (void)state;
    static const struct {
        const char *line;
        const char *part;
    } cases[] = {
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
        {"cuda_ipc_handles = \"off\";", "cuda_ipc_handles = \"off\": expected accept or refuse"},
        {"cuda_ipc_handles = true;", "cuda_ipc_handles: expected a text in double quotes"},
        {"socket_path = \"\";", "socket_path = \"\": expected a file's path"},
        {"certificate = \"\";", "certificate = \"\": expected a file's path"},
        {"key = \"\";", "key = \"\": expected a file's path"},
        {"authority = \"\";", "authority = \"\": expected a file's path"},
        /* Syntax: libconfig's own words. */
        {"slice_bytes = ;", "syntax error"},
        {"slice_bytes 4096;", "syntax error"},
        {"= 3;", "syntax error"},
        {"nodes = ( );", "duplicate setting name"},
        {"node_name = \"a\";", "duplicate setting name"},
        {"@include \"other.conf\"", "@include: expected the whole configuration in this file"},
        {"  @include \"/tmp\"", "@include: expected the whole configuration in this file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, OWN "\n%s\n", cases[i].line);
        assert_refused(text, 4, cases[i].part);
    }
    assert_refused("slice_bytes = 4096;\ncluster_name = \"x\";\nslice_bytes = 4096;\n" OWN, 3,
                   "duplicate setting name");
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
         "nodes: port: unknown key (name and address are known)"},
        {"nodes = ( { name =\n 5; address = \"h:1\"; } );", 1, "nodes: name = \"\": expected a text"},
        {"nodes = ( { name = \"a\";\n address = 7400; } );", 2, "nodes: address = \"\": expected a text"},
        {"nodes = ( { name = \"a\";\n address = \"h\"; } );", 2,
         "nodes: address = \"h\": expected an address: \"host:port\" or \"[IPv6]:port\""},
        {"nodes = ( { name = \"a.b\"; address = \"h:1\"; } );", 1,
         "nodes: name = \"a.b\": expected a node's name: letters, digits and hyphens, at most 63"},
        {"nodes = ( { name = \"a\";\n name = \"b\"; address = \"h:1\"; } );", 2, "duplicate setting name"},
        {"node_name = \"a\"; nodes = ( { name = \"a\"; address = \"h:1\"; },\n"
         "{ name = \"b\"; address = \"h:2\"; },\n{ name = \"b\"; address = \"h:3\"; } );",
         3, "nodes: \"b\" is there twice, first at "},
        {"node_name = \"a\"; nodes = ( { name = \"a\"; address = \"h:1\"; },\n"
         "{ name = \"a\"; address = \"h:1\"; } );",
         2, "nodes: \"a\" is there twice, first at "},
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
    assert_refused("node_name = \"b\";", 0, "nodes: this node, \"b\", is not among them");
    /* By the host's name, and by an option. */
    static const char *const overrides[] = {"node_name=c"};
    struct conf_options options = {.path = path, .overrides = overrides, .override_count = 1};
    assert_refused_with(&options, STATUS_CONFIG, 0,
                        "nodes: this node, \"c\", is not among them (node_name is option)");
    snprintf(text, sizeof text, "nodes = ( { name = \"no-host-%d\"; address = \"h:1\"; } );", (int)getpid());
    assert_refused(text, 0, "is not among them (node_name is default)");
    /* With an address to listen on, the others may be all that is listed. */
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
    assert_refused(OWN "\nheartbeat_interval_ms = 1251;", 4,
                   "heartbeat_timeout_ms = 2500: expected at least twice heartbeat_interval_ms = 1251");
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
    assert_refused_with(&options, STATUS_CONFIG, 2, "nodes: there are others, but --standalone was given");
}

static void test_unreadable(void **state)
{
    (void)state;
    struct conf_options options = {.path = path};
    unlink(path);
    assert_refused_with(&options, STATUS_SYSTEM, 0, "No such file or directory");
    assert_int_equal(mkdir(path, 0700), 0);
    assert_refused_with(&options, STATUS_SYSTEM, 0, "Is a directory");
    assert_int_equal(rmdir(path), 0);
    if (geteuid() != 0) {
        write_bytes(OWN, strlen(OWN));
        assert_int_equal(chmod(path, 0), 0);
        assert_refused_with(&options, STATUS_SYSTEM, 0, "Permission denied");
        unlink(path);
    }
    assert_refused("", 0, "nodes: this node"); /* an empty file is a good one, without nodes */
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
    const char *key = NULL;
    struct conf *new_conf =
        load_text(OWN "log_level = \"debug\"; drain_timeout_ms = 5; cuda_ipc_handles = \"refuse\";");
    assert_false(conf_needs_restart(old_conf, new_conf, &key));
    assert_null(key);
    conf_free(new_conf);
    new_conf = load_text("node_name = \"a\"; nodes = ( { name = \"a\"; address = \"127.0.0.1:7400\"; }, "
                         "{ name = \"b\"; address = \"h:1\"; } );");
    assert_false(conf_needs_restart(old_conf, new_conf, &key));
    conf_free(new_conf);
    new_conf = load_text(OWN "slice_bytes = 8192; socket_mode = \"0600\";");
    assert_true(conf_needs_restart(old_conf, new_conf, &key));
    assert_string_equal(key, "socket_mode"); /* the first in the schema's order */
    conf_free(new_conf);
    conf_free(old_conf);
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

/* The configuration that is installed: with every comment that sets something taken as a setting. */
static void test_installed_file(void **state)
{
    (void)state;
    FILE *in = fopen("config/commd.conf", "re");
    if (in == NULL) {
        fail_msg("config/commd.conf: run from the repository's root");
    }
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    char line[512];
    unsigned uncommented = 0;
    while (fgets(line, sizeof line, in) != NULL) {
        char *comment = strstr(line, "// ");
        bool sets = comment != NULL && comment == line + strspn(line, " ") &&
                    (strstr(comment, " = ") != NULL) && strchr(comment, ';') != NULL;
        fputs(sets ? comment + 3 : line, out);
        uncommented += sets;
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_in_range(uncommented, 10, 100);

    struct conf_options options = {.path = path};
    struct conf *conf = load(&options); /* an unknown key would be refused */
    assert_string_equal(conf->node_name, "a");
    assert_int_equal(conf->node_count, 1);
    /* What it says to be the default is. */
    struct conf_options bare = {.standalone = true};
    struct conf *defaults = load(&bare);
    struct visited given = {0};
    struct visited standard = {0};
    conf_visit(conf, visit, &given);
    conf_visit(defaults, visit, &standard);
    unsigned compared = 0;
    for (size_t i = 0; i < standard.count; i++) {
        const char *key = standard.keys[i];
        size_t k = find_visited(&given, key);
        assert_int_not_equal(k, SIZE_MAX);
        if (strcmp(given.sources[k], "default") != 0 && strcmp(key, "node_name") != 0 &&
            strcmp(key, "listen") != 0 && strncmp(standard.values[i], "/", 1) != 0) {
            assert_string_equal(given.values[k], standard.values[i]);
            compared++;
        }
    }
    assert_in_range(compared, 4, SETTINGS_MAX);
    conf_free(defaults);
    conf_free(conf);
}

/* Every setting is described in commd.conf(5), and nothing that is none. */
static void test_manual_page(void **state)
{
    (void)state;
    struct conf_options options = {.standalone = true};
    struct conf *conf = load(&options);
    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    conf_free(conf);
    visit(&visited, "nodes", "", "");
    bool described[SETTINGS_MAX] = {false};
    FILE *page = fopen("config/commd.conf.5.scd", "re");
    if (page == NULL) {
        fail_msg("config/commd.conf.5.scd: run from the repository's root");
    }
    char line[1024];
    bool within = false;
    while (fgets(line, sizeof line, page) != NULL) {
        if (strncmp(line, "# ", 2) == 0) {
            within = strcmp(line, "# SETTINGS\n") == 0;
        }
        if (!within || line[0] != '*') {
            continue;
        }
        for (char *key = strtok(line, "*, \n"); key != NULL; key = strtok(NULL, "*, \n")) {
            size_t i = find_visited(&visited, key);
            if (i == SIZE_MAX) {
                fail_msg("commd.conf(5) describes %s, which is no setting", key);
            }
            described[i] = true;
        }
    }
    fclose(page);
    for (size_t i = 0; i < visited.count; i++) {
        if (!described[i]) {
            fail_msg("commd.conf(5) does not describe %s", visited.keys[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_standalone_defaults),
        cmocka_unit_test(test_whole_file),
        cmocka_unit_test(test_listen_wins_over_own_address),
        cmocka_unit_test(test_limits_of_numbers),
        cmocka_unit_test(test_numbers_do_not_wrap),
        cmocka_unit_test(test_scalars_refused),
        cmocka_unit_test(test_unclosed),
        cmocka_unit_test(test_nodes_refused),
        cmocka_unit_test(test_own_name_missing),
        cmocka_unit_test(test_settings_that_contradict_each_other),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_nodes_max),
        cmocka_unit_test(test_overrides),
        cmocka_unit_test(test_needs_restart),
        cmocka_unit_test(test_node_names),
        cmocka_unit_test(test_installed_file),
        cmocka_unit_test(test_manual_page),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
