#include "daemon/conf/rail_addresses.h"

#include "tests/unit/conf/conf_file.h"

/* The IP addresses of a node's network cards: what is accepted, and where each rail is. */

#define EXPECTED "expected at most 15 IP addresses without ports"
/* This node, a, with other nodes. */
#define NODES(own, others)                                                                                   \
    "node_name = \"a\"; nodes = ( { name = \"a\"; address = \"10.0.0.1:7400\"; " own " }\n" others " );\n"
#define TEN "10.1.0.1,10.1.0.2,10.1.0.3,10.1.0.4,10.1.0.5,10.1.0.6,10.1.0.7,10.1.0.8,10.1.0.9,10.1.0.10"

static void test_texts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t count;
    } good[] = {{"", 0},
                {"10.1.0.1", 1},
                {"10.1.0.1,10.2.0.1", 2},
                {"  10.1.0.1 ,  10.2.0.1  ", 2},
                {"[2001:db8::1], [fe80::1%eth1]", 2},
                {TEN ",10.2.0.1,10.2.0.2,10.2.0.3,10.2.0.4,10.2.0.5", 15}};
    static const char *const bad[] = {" ",
                                      ",",
                                      "10.1.0.1,",
                                      ",10.1.0.1",
                                      "10.1.0.1,,10.2.0.1",
                                      "10.1.0.1 10.2.0.1",
                                      "10.1.0.1:7401",
                                      "10.1.0.256",
                                      "host-1",
                                      "2001:db8::1",
                                      "[2001:db8::1",
                                      "[2001:db8::1]:1",
                                      "[" TEN TEN "]",
                                      TEN ",10.2.0.1,10.2.0.2,10.2.0.3,10.2.0.4,10.2.0.5,10.2.0.6"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_null(conf_rail_addresses_expected(good[i].text));
        assert_int_equal(conf_rail_addresses_count(good[i].text), good[i].count);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (conf_rail_addresses_expected(bad[i]) == NULL) {
            fail_msg("\"%s\" was accepted", bad[i]);
        }
    }
}

static void test_addresses_of_rails(void **state)
{
    (void)state;
    static const struct {
        const char *address, *rail_addresses;
        uint32_t rail;
        const char *at, *spare; /* null: none */
    } cases[] = {
        {"10.0.0.1:7400", "", 0, "10.0.0.1:7400", NULL},
        {"10.0.0.1:7400", "", 3, "10.0.0.1:7403", NULL},
        {"host.example:7400", "10.1.0.1", 0, "host.example:7400", "10.1.0.1:7400"},
        {"10.0.0.1:7400", "10.1.0.1, 10.2.0.1", 1, "10.1.0.1:7401", "10.2.0.1:7401"},
        {"10.0.0.1:7400", "10.1.0.1, 10.2.0.1", 2, "10.2.0.1:7402", "10.0.0.1:7402"},
        {"10.0.0.1:7400", "10.1.0.1, 10.2.0.1", 3, "10.0.0.1:7403", "10.1.0.1:7403"},
        {"[2001:db8::1]:7400", "[2001:db8:1::1]", 1, "[2001:db8:1::1]:7401", "[2001:db8::1]:7401"},
        {"10.0.0.1:65535", "10.1.0.1", 1, NULL, NULL},
        {"10.0.0.1", "10.1.0.1", 1, NULL, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[64] = "unchanged";
        bool found =
            conf_rail_address(cases[i].address, cases[i].rail_addresses, cases[i].rail, text, sizeof text);
        assert_int_equal(found, cases[i].at != NULL);
        assert_string_equal(found ? text : "", found ? cases[i].at : "");
        found = conf_rail_spare(cases[i].address, cases[i].rail_addresses, cases[i].rail, text, sizeof text);
        assert_int_equal(found, cases[i].spare != NULL);
        assert_string_equal(found ? text : "", found ? cases[i].spare : "");
    }
}

static void test_texts_that_do_not_fit(void **state)
{
    (void)state;
    char text[14];
    assert_true(conf_rail_address("10.0.0.1:7400", NULL, 1, text, sizeof text));
    assert_string_equal(text, "10.0.0.1:7401");
    assert_false(conf_rail_address("10.0.0.1:7400", NULL, 1, text, sizeof text - 1));
}

static void test_where_rail_0_listens(void **state)
{
    (void)state;
    char text[64];
    assert_true(conf_rail_listen("10.0.0.1:7400", "", text, sizeof text));
    assert_string_equal(text, "10.0.0.1:7400");
    assert_true(conf_rail_listen("10.0.0.1:7400", "10.1.0.1", text, sizeof text));
    assert_string_equal(text, "0.0.0.0:7400");
    assert_true(conf_rail_listen("[2001:db8::1]:7400", " [2001:db8:1::1]", text, sizeof text));
    assert_string_equal(text, "[::]:7400");
}

static void test_own_entry_is_ours(void **state)
{
    (void)state;
    struct conf *conf =
        load_text(NODES("rail_addresses = \"10.1.0.1\";",
                        ", { name = \"b\"; address = \"10.0.0.2:7400\"; rail_addresses = \"10.1.0.2\"; }"));
    struct visited visited = {0};
    char where[160];
    assert_string_equal(conf->rail_addresses, "10.1.0.1");
    assert_string_equal(conf->nodes[0].rail_addresses, "10.1.0.2");
    conf_visit(conf, visit, &visited);
    snprintf(where, sizeof where, "%s:1", path);
    assert_visited(&visited, "rail_addresses", "10.1.0.1", where);
    snprintf(where, sizeof where, "%s:2", path);
    assert_visited(&visited, "nodes.b.rails", "10.1.0.2", where);
    conf_free(conf);
    conf =
        load_text(NODES("rail_addresses = \"10.1.0.1\";", "") "rail_addresses = \"10.2.0.1, 10.3.0.1\";\n");
    assert_string_equal(conf->rail_addresses, "10.2.0.1, 10.3.0.1");
    conf_free(conf);
    conf = load_text(NODES("", ""));
    assert_string_equal(conf->rail_addresses, "");
    conf_free(conf);
}

static void test_refused(void **state)
{
    (void)state;
    assert_refused(NODES("rail_addresses = \"host\";", ""), 1, "nodes: rail_addresses = \"host\": " EXPECTED);
    assert_refused(NODES("rail_addresses = 5;", ""), 1, "nodes: rail_addresses = \"\": expected a text");
    assert_refused(NODES("rails = 5;", ""), 1,
                   "nodes: rails: unknown key (name, address and rail_addresses are known)");
    assert_refused("\nrail_addresses = \"10.1.0.1:5\";\n" OWN, 2,
                   "rail_addresses = \"10.1.0.1:5\": " EXPECTED);
}

/* What only the whole configuration shows. */
static void assert_check(const char *text, const char *expected)
{
    struct conf *conf = load_text(text);
    struct error error = {0};
    enum status status = conf_rail_addresses_check(conf, &error);
    assert_int_equal(status, expected == NULL ? STATUS_OK : STATUS_CONFIG);
    if (expected != NULL && strstr(error.text, expected) == NULL) {
        fail_msg("\"%s\" does not contain \"%s\"", error.text, expected);
    }
    conf_free(conf);
}

static void test_checks(void **state)
{
    (void)state;
    char text[256];
    assert_check(NODES("", ""), NULL);
    assert_check(NODES("rail_addresses = \"10.1.0.1, 10.2.0.1\";",
                       ", { name = \"b\"; address = \"10.0.0.2:7400\"; rail_addresses = \"10.1.0.2\"; }"),
                 NULL);
    assert_check(NODES("rail_addresses = \"10.1.0.1\";",
                       ", { name = \"b\"; address = \"10.0.0.1:7500\"; rail_addresses = \"10.2.0.1\"; }"),
                 NULL); /* two nodes of one host, which differ in their ports */
    assert_check(NODES("rail_addresses = \"10.1.0.1, 10.1.0.1\";", ""),
                 "node \"a\" has 10.1.0.1 twice; expected an address of its own for each network card");
    assert_check(NODES("rail_addresses = \"10.0.0.1\";", ""), "node \"a\" has 10.0.0.1 twice");
    snprintf(text, sizeof text, "%s:2: nodes: rail_addresses: node \"b\" has 10.1.0.1, and so has node \"a\"",
             path);
    assert_check(NODES("rail_addresses = \"10.1.0.1\";",
                       ", { name = \"b\"; address = \"10.0.0.2:7400\"; rail_addresses = \"10.1.0.1\"; }"),
                 text);
    snprintf(text, sizeof text,
             "%s:2: nodes: rail_addresses: rail 1 of node \"b\" has an IPv6 address, and that of node \"a\" "
             "an IPv4 "
             "address; expected the same",
             path);
    assert_check(
        NODES("rail_addresses = \"10.1.0.1\";",
              ", { name = \"b\"; address = \"10.0.0.2:7400\"; rail_addresses = \"[2001:db8::2]\"; }"),
        text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_addresses_of_rails),
        cmocka_unit_test(test_texts_that_do_not_fit),
        cmocka_unit_test(test_where_rail_0_listens),
        cmocka_unit_test(test_own_entry_is_ours),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_checks),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
