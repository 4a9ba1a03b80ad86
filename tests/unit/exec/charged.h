#ifndef TESTS_UNIT_EXEC_CHARGED_H
#define TESTS_UNIT_EXEC_CHARGED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/budget.h"
#include "tests/lib/hostile_node.h"

/* An operation of node a's ranks, charged to one user with a ceiling. Node b does what the test tells it. */
#define USER 1000

static struct hostile hostile;
static struct hostile_buffer in[HOSTILE_LOCAL_RANKS], out[HOSTILE_LOCAL_RANKS];
static struct hostile_outcome outcome;
static struct budget *budget;
static struct budget_account *account;

static inline uint64_t charged(enum budget_kind kind)
{
    struct budget_info info;
    budget_account_info(account, &info);
    return info.used[kind];
}

/* All other kinds are without a limit. */
static inline void charged_begin(enum budget_kind kind, uint64_t ceiling, uint64_t slice_bytes,
                                 const struct hostile_call *call)
{
    uint64_t all[BUDGET_KINDS];
    for (int i = 0; i < BUDGET_KINDS; i++) {
        all[i] = UINT64_C(1) << 40;
    }
    assert_int_equal(budget_new(all, &budget, NULL), STATUS_OK);
    budget_set_ceiling(budget, kind, ceiling);
    assert_int_equal(budget_open(budget, USER, NULL, &account, NULL), STATUS_OK);
    hostile_start_charged(&hostile, slice_bytes, account);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        in[i] = hostile_buffer_new(hostile_input_bytes(call));
        out[i] = hostile_buffer_new(hostile_output_bytes(call));
    }
    outcome = (struct hostile_outcome){0};
    assert_int_not_equal(hostile_submit(&hostile, call, in, out, &outcome), 0);
}

static inline void charged_end(enum budget_kind kind)
{
    hostile_stop(&hostile);
    for (uint32_t i = 0; i < HOSTILE_LOCAL_RANKS; i++) {
        hostile_buffer_free(&in[i]);
        hostile_buffer_free(&out[i]);
    }
    assert_int_equal(charged(kind), 0);
    budget_close(account);
    budget_free(budget);
}

#endif
