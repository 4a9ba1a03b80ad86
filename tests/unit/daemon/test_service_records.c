#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/service_records.h"

/* Which nodes an answer of DNS adds and removes. */

static struct srv_record records[8];

static struct srv_answer answer_of(const char *const *targets, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        snprintf(records[i].target, sizeof records[i].target, "%s", targets[i]);
        records[i].port = 7400;
    }
    return (struct srv_answer){.records = records, .count = count, .ttl_s = 5};
}

static void test_names_and_addresses(void **state)
{
    (void)state;
    const char *targets[] = {"pod-1.svc.ns.svc.cluster.local", "pod-0.svc.ns.svc.cluster.local"};
    struct srv_answer answer = answer_of(targets, 2);
    struct conf_node_list list = {0};
    struct error error;
    assert_int_equal(service_records_list(&answer, &list, &error), STATUS_OK);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.nodes[0].name, "pod-0"); /* in order, whatever the order of the answer */
    assert_string_equal(list.nodes[0].address, "pod-0.svc.ns.svc.cluster.local:7400");
    assert_string_equal(list.nodes[1].name, "pod-1");
    conf_node_list_free(&list);
}

static void test_targets_that_name_no_node(void **state)
{
    (void)state;
    const char *targets[] = {"a_b.test", "10.0.0.1", "a\\032b.test", "-a.test", "a b", ""};
    for (size_t i = 0; i < sizeof targets / sizeof targets[0]; i++) {
        struct srv_answer answer = answer_of(&targets[i], 1);
        struct conf_node_list list = {0};
        struct error error;
        assert_int_equal(service_records_list(&answer, &list, &error), STATUS_CONFIG);
        assert_int_equal(list.count, 0);
        conf_node_list_free(&list);
    }
    const char *good = "a.test";
    struct srv_answer answer = answer_of(&good, 1);
    struct conf_node_list list = {0};
    struct error error;
    records[0].port = 0;
    assert_int_equal(service_records_list(&answer, &list, &error), STATUS_CONFIG);
    conf_node_list_free(&list);
}

/* Gives the nodes after an answer; returns how many it kept that it had missed. */
static size_t after(struct service_records *missed, const char *const *targets, size_t count,
                    const struct conf *conf, struct conf_node_list *list)
{
    struct srv_answer answer = answer_of(targets, count);
    struct error error;
    size_t kept;
    *list = (struct conf_node_list){0};
    assert_int_equal(service_records_list(&answer, list, &error), STATUS_OK);
    assert_int_equal(service_records_keep(missed, conf, list, &kept, &error), STATUS_OK);
    return kept;
}

static void test_a_node_that_answers_miss(void **state)
{
    (void)state;
    char a[] = "a", b[] = "b", at_a[] = "a.test:7400", at_b[] = "b.test:7400", none[] = "", dns[] = "DNS";
    struct conf_node known[] = {{a, at_a, none, dns}, {b, at_b, none, dns}};
    struct conf conf = {.nodes = known, .node_count = 2};
    const char *all[] = {"a.test", "b.test", "me.test"}, *without_b[] = {"me.test", "a.test"};
    struct service_records missed = {0};
    struct conf_node_list list;
    assert_int_equal(after(&missed, all, 3, &conf, &list), 0);
    assert_int_equal(list.count, 3);
    conf_node_list_free(&list);
    /* Two answers miss it, and the next one has it: the count begins anew. */
    for (unsigned round = 0; round < 2; round++) {
        for (unsigned i = 1; i < SERVICE_RECORDS_MISSES; i++) {
            assert_int_equal(after(&missed, without_b, 2, &conf, &list), 1);
            assert_int_equal(list.count, 3);
            assert_string_equal(list.nodes[1].name, "b");
            assert_string_equal(list.nodes[1].address, "b.test:7400");
            conf_node_list_free(&list);
        }
        if (round == 0) {
            assert_int_equal(after(&missed, all, 3, &conf, &list), 0);
            conf_node_list_free(&list);
        }
    }
    assert_int_equal(after(&missed, without_b, 2, &conf, &list), 0);
    assert_int_equal(list.count, 2);
    assert_string_equal(list.nodes[0].name, "a");
    assert_string_equal(list.nodes[1].name, "me");
    conf_node_list_free(&list);
    service_records_reset(&missed);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_addresses),
        cmocka_unit_test(test_targets_that_name_no_node),
        cmocka_unit_test(test_a_node_that_answers_miss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
