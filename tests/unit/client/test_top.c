#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "client/commctl/top.h"

/* The rows of commctl top: rates between two looks, and their order. */

static struct top_rows rows_of(unsigned table)
{
    return (struct top_rows){.table = &top_tables[table],
                             .sort_column = top_tables[table].sort_column,
                             .descending = top_tables[table].descending};
}

static json_t *comm(const char *id, json_int_t completed, json_int_t bytes)
{
    return json_pack("{ss,ss,sI,sI}", "comm_id", id, "name", id, "ops_completed", completed, "bytes_reduced",
                     bytes);
}

static json_int_t number_of(const struct top_rows *top, size_t row, const char *key)
{
    return json_integer_value(json_object_get(json_array_get(top->rows, row), key));
}

static const char *name_of(const struct top_rows *top, size_t row)
{
    return json_string_value(json_object_get(json_array_get(top->rows, row), "name"));
}

static void rates_are_differences_for_each_second(void **state)
{
    (void)state;
    struct top_rows top = rows_of(TOP_COMMS);
    top_rows_take(&top, json_pack("[o,o]", comm("a", 10, 1000), comm("b", 0, 0)), 100.0);
    assert_int_equal(number_of(&top, 0, "ops_per_s"), 0); /* of the first look nothing is known */
    top_rows_take(&top, json_pack("[o,o]", comm("a", 30, 1000), comm("b", 1, 5000)), 102.0);
    assert_string_equal(name_of(&top, 0), "b"); /* by bytes for each second, the largest first */
    assert_int_equal(number_of(&top, 0, "bytes_per_s"), 2500);
    assert_int_equal(number_of(&top, 0, "ops_per_s"), 1); /* rounded */
    assert_int_equal(number_of(&top, 1, "bytes_per_s"), 0);
    assert_int_equal(number_of(&top, 1, "ops_per_s"), 10);
    top_rows_free(&top);
}

static void what_is_new_or_counts_from_zero_again_has_no_rate(void **state)
{
    (void)state;
    struct top_rows top = rows_of(TOP_COMMS);
    top_rows_take(&top, json_pack("[o]", comm("a", 1000, 1000)), 1.0);
    top_rows_take(&top, json_pack("[o,o]", comm("a", 5, 7), comm("new", 900, 900)), 2.0);
    for (size_t row = 0; row < 2; row++) {
        assert_int_equal(number_of(&top, row, "ops_per_s"), 0);
        assert_int_equal(number_of(&top, row, "bytes_per_s"), 0);
    }
    /* A communicator that was away for a look is new again. */
    top_rows_take(&top, json_array(), 3.0);
    top_rows_take(&top, json_pack("[o]", comm("a", 500, 500)), 4.0);
    assert_int_equal(number_of(&top, 0, "ops_per_s"), 0);
    top_rows_free(&top);
}

static void rows_without_an_identity_have_no_rates(void **state)
{
    (void)state;
    struct top_rows top = rows_of(TOP_OPS);
    top_rows_take(&top,
                  json_pack("[{ss,sI},{ss,sI}]", "name", "young", "age_ms", (json_int_t)5, "name", "old",
                            "age_ms", (json_int_t)5000),
                  1.0);
    assert_string_equal(name_of(&top, 0), "old");
    assert_string_equal(name_of(&top, 1), "young");
    top_rows_free(&top);
}

static void equal_rows_keep_their_order(void **state)
{
    (void)state;
    struct top_rows top = rows_of(TOP_COMMS);
    json_t *rows = json_array();
    for (int i = 0; i < 100; i++) {
        char name[16];
        snprintf(name, sizeof name, "c%02d", i);
        json_array_append_new(rows, comm(name, i % 2, 0));
    }
    top_rows_take(&top, rows, 1.0);
    for (size_t i = 1; i < 100; i++) {
        assert_true(strcmp(name_of(&top, i - 1), name_of(&top, i)) < 0);
    }
    top.sort_column = 7; /* DONE */
    assert_string_equal(top_tables[TOP_COMMS].columns[7].title, "DONE");
    top_rows_sort(&top);
    for (size_t i = 1; i < 100; i++) {
        assert_int_equal(number_of(&top, i, "ops_completed"), i < 50 ? 1 : 0);
        assert_true(i == 50 || strcmp(name_of(&top, i - 1), name_of(&top, i)) < 0);
    }
    top.descending = false;
    top_rows_sort(&top);
    assert_int_equal(number_of(&top, 0, "ops_completed"), 0);
    top_rows_free(&top);
}

static void texts_are_sorted_without_regard_to_case(void **state)
{
    (void)state;
    struct top_rows top = rows_of(TOP_COMMS);
    top.sort_column = 0;
    top.descending = false;
    top_rows_take(&top, json_pack("[o,o,o]", comm("beta", 0, 0), comm("Gamma", 0, 0), comm("Alpha", 0, 0)),
                  1.0);
    assert_string_equal(name_of(&top, 0), "Alpha");
    assert_string_equal(name_of(&top, 1), "beta");
    assert_string_equal(name_of(&top, 2), "Gamma");
    top_rows_free(&top);
}

/* commctl(1) and --table have these names, and each table's first column to sort by is a number. */
static void tables_are_whole(void **state)
{
    (void)state;
    static const char *const names[TOP_TABLES] = {"communicators", "operations", "links", "processes"};
    for (unsigned i = 0; i < TOP_TABLES; i++) {
        const struct top_table *table = &top_tables[i];
        assert_string_equal(table->name, names[i]);
        assert_true(table->sort_column < table->column_count);
        assert_int_not_equal(table->columns[table->sort_column].format, COLUMN_TEXT);
        assert_true(table->id != NULL || table->rates[0].total == NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_differences_for_each_second),
        cmocka_unit_test(what_is_new_or_counts_from_zero_again_has_no_rate),
        cmocka_unit_test(rows_without_an_identity_have_no_rates),
        cmocka_unit_test(equal_rows_keep_their_order),
        cmocka_unit_test(texts_are_sorted_without_regard_to_case),
        cmocka_unit_test(tables_are_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
