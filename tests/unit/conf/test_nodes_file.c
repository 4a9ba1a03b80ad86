#include "tests/unit/conf/conf_file.h"

#include <sys/stat.h>

#include "daemon/conf/nodes_file.h"

/* The file of nodes_file, good and hostile; and where the nodes of a configuration come from. */

static struct conf_node_list parse(const char *text)
{
    struct conf_node_list list = {0};
    struct error error;
    if (conf_nodes_file_parse(text, "nodes", &list, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return list;
}

static void refused(const char *text, const char *start)
{
    struct conf_node_list list = {0};
    struct error error;
    assert_int_equal(conf_nodes_file_parse(text, "nodes", &list, &error), STATUS_CONFIG);
    if (strncmp(error.text, start, strlen(start)) != 0) {
        fail_msg("\"%s\" does not start with \"%s\"", error.text, start);
    }
    conf_node_list_free(&list);
}

static void test_lines(void **state)
{
    (void)state;
    struct conf_node_list list = parse("# all nodes\n"
                                       "\n"
                                       " \t a 10.0.0.1:7400\r\n"
                                       "b\t\t[2001:db8::2]:7401 # the second\n"
                                       "c c.example:1 10.1.0.3, 10.2.0.3  \r\n"
                                       "   # nothing\n"
                                       "d 10.0.0.4:65535");
    assert_int_equal(list.count, 4);
    assert_string_equal(list.nodes[0].name, "a");
    assert_string_equal(list.nodes[0].address, "10.0.0.1:7400");
    assert_string_equal(list.nodes[0].rail_addresses, "");
    assert_string_equal(list.nodes[0].source, "nodes:3");
    assert_string_equal(list.nodes[1].address, "[2001:db8::2]:7401");
    assert_string_equal(list.nodes[2].rail_addresses, "10.1.0.3, 10.2.0.3");
    assert_string_equal(list.nodes[3].source, "nodes:7");
    conf_node_list_free(&list);
    assert_int_equal(list.count, 0);
}

static void test_hostile_lines(void **state)
{
    (void)state;
    char line[CONF_NODES_FILE_LINE_MAX_BYTES + 64];
    refused("", "nodes: no node is listed");
    refused("# a 10.0.0.1:7400\n", "nodes: no node is listed");
    refused("a 10.0.0.1:7400\nb\n", "nodes:2: address \"\": expected");
    refused("a_b 10.0.0.1:7400\n", "nodes:1: name \"a_b\": expected");
    refused("\xff\x01 10.0.0.1:7400\n", "nodes:1: name");
    refused("a 10.0.0.1\n", "nodes:1: address \"10.0.0.1\"");
    refused("a 10.0.0.1:0\n", "nodes:1: address");
    refused("a 10.0.0.1:7400 b 10.0.0.2:7400\n", "nodes:1: rail_addresses \"b 10.0.0.2:7400\"");
    memset(line, 'a', sizeof line);
    line[sizeof line - 1] = '\0';
    refused(line, "nodes:1: a line of 1087 bytes; expected at most 1024");
    line[300] = '\0';
    refused(line, "nodes:1: name");
}

static void test_as_many_as_are_allowed(void **state)
{
    (void)state;
    enum { LINE_BYTES = 32 };
    char *text = malloc((CONF_NODES_MAX + 1) * LINE_BYTES + 1), *end = text;
    struct conf_node_list list = {0};
    struct error error;
    assert_non_null(text);
    for (unsigned i = 0; i < CONF_NODES_MAX; i++) {
        end += sprintf(end, "n%u 10.%u.%u.1:7400\n", i, i >> 8, i & 255);
    }
    list = parse(text);
    assert_int_equal(list.count, CONF_NODES_MAX);
    conf_node_list_free(&list);
    strcpy(end, "one-more 192.0.2.1:7400\n");
    assert_int_equal(conf_nodes_file_parse(text, "nodes", &list, &error), STATUS_LIMIT);
    assert_contains(error.text, "nodes:16385: more than 16384 nodes");
    conf_node_list_free(&list);
    free(text);
}

static void test_files_that_are_none(void **state)
{
    (void)state;
    struct conf_node_list list = {0};
    struct error error;
    assert_int_equal(conf_nodes_file_read("/nonexistent/nodes", &list, &error), STATUS_SYSTEM);
    assert_int_equal(conf_nodes_file_read(folder, &list, &error), STATUS_CONFIG);
    assert_contains(error.text, "expected a regular file");
    assert_int_equal(mkfifo(path, 0600), 0); /* it would block */
    assert_int_equal(conf_nodes_file_read(path, &list, &error), STATUS_CONFIG);
    assert_int_equal(unlink(path), 0);
    write_bytes("a 10.0.0.1:7400\n\0b", 18);
    assert_int_equal(conf_nodes_file_read(path, &list, &error), STATUS_CONFIG);
    assert_contains(error.text, ":2: a zero byte");
    assert_int_equal(list.count, 0);
}

static void write_nodes(const char *name, const char *text)
{
    char where[192];
    snprintf(where, sizeof where, "%s/%s", folder, name);
    FILE *file = fopen(where, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_nodes(const char *name)
{
    char where[192];
    snprintf(where, sizeof where, "%s/%s", folder, name);
    assert_int_equal(unlink(where), 0);
}

static void test_a_configuration_with_a_file(void **state)
{
    (void)state;
    char text[512], where[192];
    write_nodes("b.nodes", "a 10.0.0.1:7400\nb 10.0.0.2:7400 10.1.0.2\nc 10.0.0.3:7400\n");
    snprintf(text, sizeof text,
             "node_name = \"b\"; nodes_file = \"%s/%%n.nodes\";\n"
             "users = ( { name = \"root\"; nodes = [ \"a\", \"later\" ]; } );\n",
             folder);
    struct conf *conf = load_text(text);
    snprintf(where, sizeof where, "%s/b.nodes:1", folder);
    assert_false(conf->standalone);
    assert_true(conf->is_listed);
    assert_int_equal(conf->node_count, 2);
    assert_string_equal(conf->listen, "10.0.0.2:7400");
    assert_string_equal(conf->rail_addresses, "10.1.0.2");
    assert_string_equal(conf->nodes[0].source, where);
    conf_free(conf);
    write_nodes("b.nodes", "a 10.0.0.1:7400\nc 10.0.0.3:7400\n");
    write_bytes(text, strlen(text));
    struct conf_options options = {.path = path};
    struct error error;
    assert_int_equal(conf_load(&options, &conf, &error), STATUS_CONFIG);
    snprintf(where, sizeof where, "%s/b.nodes: nodes: this node, \"b\", is not among them", folder);
    assert_contains(error.text, where);
    remove_nodes("b.nodes");
}

static void test_one_source_alone(void **state)
{
    (void)state;
    assert_refused(OWN "nodes_file = \"/etc/nodes\";\n", 3,
                   "expected one of nodes, nodes_file and nodes_dns");
    assert_refused("node_name = \"a\";\nnodes_file = \"/etc/nodes\"; nodes_dns = \"_commd._udp.example\";\n",
                   2, "expected one of");
    assert_refused(OWN "nodes_dns = \"_commd._udp.example\";\n", 3, "expected one of");
    assert_refused("nodes_dns = \"no name\";\n", 1, "expected a name in DNS");
    assert_refused("nodes_dns = \"a..b\";\n", 1, "expected a name in DNS");
    assert_refused("nodes_dns = \"10.0.0.1\";\n", 1, "expected a name in DNS");
    struct conf *conf = load_text("node_name = \"a\"; nodes_dns = \"_commd._udp.example\";\n");
    assert_false(conf->standalone); /* the caller asks for the nodes */
    assert_int_equal(conf->node_count, 0);
    conf_free(conf);
}

/* What the source says later on. */
static void test_taking_nodes(void **state)
{
    (void)state;
    struct conf *conf =
        load_text("node_name = \"a\"; nodes = ( { name = \"a\"; address = \"10.0.0.1:7400\"; },\n"
                  "{ name = \"b\"; address = \"10.0.0.2:7400\"; } );\n");
    struct error error;
    struct conf_node_list same = parse("a 10.0.0.1:7400\nb 10.0.0.2:7400\n"),
                          more = parse("c 10.0.0.3:7400\na 10.0.0.9:7400\nb 10.0.0.2:7401\n"),
                          others = parse("b 10.0.0.2:7400\n"), twice = parse("a 10.0.0.1:1\nb 10.0.0.1:1\n");
    assert_true(conf_has_nodes(conf, &same));
    assert_false(conf_has_nodes(conf, &more));
    assert_false(conf_has_nodes(conf, &others)); /* this node must be there */
    assert_int_equal(conf_take_nodes(conf, &others, "nodes", &error), STATUS_CONFIG);
    assert_contains(error.text, "nodes: nodes: this node, \"a\", is not among them");
    assert_int_equal(conf_take_nodes(conf, &twice, "nodes", &error), STATUS_CONFIG);
    assert_int_equal(conf->node_count, 1);
    assert_int_equal(conf_take_nodes(conf, &more, "nodes", &error), STATUS_OK);
    assert_int_equal(conf->node_count, 2);
    assert_string_equal(conf->nodes[0].name, "c");
    assert_string_equal(conf->nodes[1].address, "10.0.0.2:7401");
    assert_string_equal(conf->listen, "10.0.0.1:7400"); /* until a restart */
    assert_int_equal(more.count, 1);                    /* the former ones */
    conf_node_list_free(&same);
    conf_node_list_free(&more);
    conf_node_list_free(&others);
    conf_node_list_free(&twice);
    conf_free(conf);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_hostile_lines),
        cmocka_unit_test(test_as_many_as_are_allowed),
        cmocka_unit_test_setup_teardown(test_files_that_are_none, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_configuration_with_a_file, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_one_source_alone, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_taking_nodes, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
