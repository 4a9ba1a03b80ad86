#ifndef TESTS_UNIT_COLL_CHECK_SCRIPT_H
#define TESTS_UNIT_COLL_CHECK_SCRIPT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/unit/coll/script.h"

#include <cmocka.h>

#include "daemon/coll/registry.h"
#include "tests/checker/check.h"

/* One script at a time, written line by line, and what coll_check says about it. */

#define STORE COLL_STORE
#define REDUCE COLL_REDUCE

static struct script script;
static uint32_t script_root; /* of the call for which the script is checked */

/* The call for which a script is checked. Its blocks are as equal as possible. */
static inline struct coll_call call_of(enum op_kind kind, uint32_t nodes, uint64_t count)
{
    static uint64_t offsets[128];
    struct coll_call call = {
        .kind = kind, .node_count = nodes, .root_node = script_root, .count_elements = count};
    if (op_kind_has_blocks(kind)) {
        for (uint32_t node = 0; node <= nodes; node++) {
            offsets[node] = count * node / nodes;
        }
        call.block_offsets = offsets;
        call.send_offsets = kind == OP_KIND_ALL_TO_ALL ? offsets : NULL;
        call.blocks_are_equal = kind == OP_KIND_ALL_TO_ALL;
    }
    return call;
}

static inline void add_transfer(uint32_t node, uint32_t round, enum script_direction direction,
                                struct coll_transfer transfer)
{
    assert_true(script_add(&script, node, round, direction, transfer));
}

static inline void add(uint32_t node, uint32_t round, enum script_direction direction, uint32_t other,
                       enum coll_action action, uint64_t offset, uint64_t count)
{
    struct coll_transfer transfer = {
        .node = other, .action = action, .offset_elements = offset, .count_elements = count};
    add_transfer(node, round, direction, transfer);
}

/* Adds a message whose round, space and offset differ on its two sides. */
static inline void move_between(uint32_t from, uint32_t from_round, enum coll_space from_space,
                                uint64_t from_offset, uint32_t to, uint32_t to_round,
                                enum coll_space to_space, uint64_t to_offset, uint64_t count)
{
    add_transfer(
        from, from_round, SCRIPT_SEND,
        (struct coll_transfer){
            .node = to, .space = from_space, .offset_elements = from_offset, .count_elements = count});
    add_transfer(to, to_round, SCRIPT_RECEIVE,
                 (struct coll_transfer){
                     .node = from, .space = to_space, .offset_elements = to_offset, .count_elements = count});
}

/* Adds a send in the sender's round, and its receive in the receiver's round. */
static inline void move(uint32_t from, uint32_t from_round, uint32_t to, uint32_t to_round,
                        enum coll_action action, uint64_t offset, uint64_t count)
{
    add(from, from_round, SCRIPT_SEND, to, action, offset, count);
    add(to, to_round, SCRIPT_RECEIVE, from, action, offset, count);
}

static inline void begin(void)
{
    script = (struct script){0};
    script_root = 0;
}

static inline void begin_with(const struct coll_algorithm *algorithm, uint32_t nodes, uint64_t count)
{
    script_root = 0;
    struct coll_call call = call_of(algorithm->kind, nodes, count);
    assert_true(script_record(&script, algorithm, &call, NULL));
}

static inline struct script_line *line_of(uint32_t node, uint32_t round, enum script_direction direction)
{
    for (uint32_t i = 0; i < script.line_count; i++) {
        struct script_line *line = &script.lines[i];
        if (line->node == node && line->round == round && line->direction == direction) {
            return line;
        }
    }
    fail_msg("no such line");
    return NULL;
}

static inline void remove_line(const struct script_line *line)
{
    size_t at = (size_t)(line - script.lines);
    script.line_count--;
    memmove(&script.lines[at], &script.lines[at + 1], (script.line_count - at) * sizeof *line);
}

static inline enum status check(enum op_kind kind, uint32_t nodes, uint64_t count, struct coll_cost *cost,
                                struct error *error)
{
    struct coll_algorithm algorithm = script_algorithm(&script, kind);
    struct coll_call call = call_of(kind, nodes, count);
    return coll_check(&algorithm, &call, cost, error);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, text);
    }
}

/* coll_check refuses the script at that place, for that reason, and leaves the cost as it was. */
static inline void assert_refused(enum op_kind kind, uint32_t nodes, uint64_t count, const char *place,
                                  const char *reason)
{
    struct coll_cost cost = {.rounds = 4711};
    struct error error = {.status = STATUS_OK};
    assert_int_equal(check(kind, nodes, count, &cost, &error), STATUS_INTERNAL);
    assert_int_equal(error.status, STATUS_INTERNAL);
    assert_contains(error.text, "script ");
    assert_contains(error.text, place);
    assert_contains(error.text, reason);
    assert_int_equal(cost.rounds, 4711);
    assert_int_equal(check(kind, nodes, count, NULL, NULL), STATUS_INTERNAL);
}

/* coll_check accepts the script, and rightly: it gives the right result in every order tried. */
static inline struct coll_cost assert_accepted(enum op_kind kind, uint32_t nodes, uint64_t count)
{
    struct coll_cost cost;
    memset(&cost, 0xa5, sizeof cost);
    struct error error = {.status = STATUS_OK};
    if (check(kind, nodes, count, &cost, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    assert_int_equal(check(kind, nodes, count, NULL, NULL), STATUS_OK);
    struct coll_call call = call_of(kind, nodes, count);
    struct random random;
    random_seed(&random, 5);
    for (int run = 0; run < 50; run++) {
        assert_true(script_runs_right(&script, &call, &random));
    }
    return cost;
}

#endif
