#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/exec/exec.h"

/* Operations of two ranks on one node, driven by hand: the first rank has windows, the second whole buffers.
 */
#define RANKS 2u
#define SLICES 20u
#define ELEMENTS (SLICES * (WINDOW_SLICE_BYTES / sizeof(uint32_t)) - 77)

struct rank {
    uint32_t *input, *output;               /* whole */
    uint32_t *window_input, *window_output; /* null: none */
};

struct job {
    struct exec *exec;
    struct exec_comm *comm;
    struct window_shape shape;
    struct exec_window window;
    struct rank ranks[RANKS];
    uint64_t drained, sliced;
    uint32_t ends;
    struct error result;
};

static void comm_failed(void *context, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)cause;
    (void)now_ns;
    fail();
}

static void op_sliced(void *context, uint64_t slices)
{
    struct job *job = context;
    assert_true(slices == job->sliced + 1);
    assert_true(slices <= job->window.filled);
    job->sliced = slices;
}

static void op_done(void *context, const struct error *result, uint64_t now_ns)
{
    struct job *job = context;
    (void)now_ns;
    job->ends++;
    job->result = *result;
}

static uint32_t number_of(uint32_t rank, uint64_t index)
{
    return (uint32_t)(index + 1) * 2654435761u ^ (rank + 1) * 40503u;
}

static uint64_t run(struct job *job)
{
    uint64_t before = job->sliced;
    while (exec_run(job->exec, 1)) {
    }
    return job->sliced - before;
}

static void *need(size_t bytes)
{
    void *memory = malloc(bytes);
    assert_non_null(memory);
    memset(memory, 0xA5, bytes);
    return memory;
}

static void begin(struct job *job, enum op_kind kind, bool in_one)
{
    static const uint32_t node_of_rank[RANKS] = {0};
    static const uint32_t peers[1] = {0};
    static const char *const names[1] = {"a"};
    struct error error;
    memset(job, 0, sizeof *job);
    uint64_t blocks =
        kind == OP_KIND_ALL_REDUCE || kind == OP_KIND_REDUCE || kind == OP_KIND_BROADCAST ? 1 : RANKS;
    struct op_terms terms = {
        .kind = kind, .dtype = DTYPE_U32, .bucket_ops = 1, .count_elements = ELEMENTS / blocks};
    assert_true(window_shape_of(&terms, RANKS, &job->shape));
    assert_int_equal(exec_new(NULL, &job->exec, &error), STATUS_OK);
    struct exec_comm_options options = {.comm_id = 7,
                                        .generation = 1,
                                        .size = RANKS,
                                        .node_of_rank = node_of_rank,
                                        .node_count = 1,
                                        .peers = peers,
                                        .node_names = names,
                                        .slice_bytes = 1 << 20,
                                        .name = "test",
                                        .failed = comm_failed,
                                        .context = job};
    assert_int_equal(exec_comm_new(job->exec, &options, &job->comm, &error), STATUS_OK);
    job->window = (struct exec_window){.shape = job->shape, .input = true, .output = true};
    struct exec_rank ranks[RANKS] = {0};
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *rank = &job->ranks[i];
        uint64_t in = job->shape.input_blocks * terms.count_elements;
        rank->input = need(in * sizeof(uint32_t));
        rank->output = need(job->shape.output_blocks * terms.count_elements * sizeof(uint32_t));
        for (uint64_t k = 0; k < in; k++) {
            rank->input[k] = number_of(i, k);
        }
        ranks[i] = (struct exec_rank){.input = rank->input, .output = rank->output, .factor = 1};
        ranks[i].input_on_host = ranks[i].output_on_host = ranks[i].residual_on_host = true;
    }
    struct rank *first = &job->ranks[0];
    first->window_input = need(window_elements(&job->shape, job->shape.input_blocks) * sizeof(uint32_t));
    first->window_output =
        in_one ? first->window_input
               : need(window_elements(&job->shape, job->shape.output_blocks) * sizeof(uint32_t));
    ranks[0].input = first->window_input;
    ranks[0].output = first->window_output;
    ranks[0].window = &job->window;
    if (kind == OP_KIND_BROADCAST) { /* the rank with windows is the root */
        ranks[0].output = NULL;
        ranks[1].input = NULL;
    } else if (kind == OP_KIND_REDUCE) {
        ranks[1].output = NULL;
    }
    struct exec_call call = {.terms = terms,
                             .seq = 1,
                             .rank_count = RANKS,
                             .ranks = ranks,
                             .done = op_done,
                             .sliced = op_sliced,
                             .context = job};
    assert_int_equal(exec_submit(job->comm, &call, &error), STATUS_OK);
}

static void end(struct job *job)
{
    struct rank *first = &job->ranks[0];
    if (first->window_output != first->window_input) {
        free(first->window_output);
    }
    free(first->window_input);
    for (uint32_t i = 0; i < RANKS; i++) {
        free(job->ranks[i].input);
        free(job->ranks[i].output);
    }
    assert_true(exec_comm_idle(job->comm));
    exec_comm_free(job->comm);
    exec_free(job->exec);
}

/* Copies what the slice has of each block, in or out. */
static void copy(const struct job *job, uint64_t slice, bool in)
{
    const struct rank *rank = &job->ranks[0];
    const struct window_shape *shape = &job->shape;
    uint32_t blocks = in ? shape->input_blocks : shape->output_blocks;
    for (uint32_t block = 0; block < blocks; block++) {
        uint64_t offset, part;
        window_part(shape, slice, &offset, &part);
        uint64_t place = window_place(shape, blocks, slice, block);
        if (in) {
            memcpy(rank->window_input + place, rank->input + block * shape->count_elements + offset,
                   part * sizeof(uint32_t));
        } else {
            memcpy(rank->output + block * shape->count_elements + offset, rank->window_output + place,
                   part * sizeof(uint32_t));
        }
    }
}

static void fill_slots(struct job *job, bool has_output)
{
    for (; job->drained < job->sliced; job->drained++) {
        if (has_output) {
            copy(job, job->drained, false);
        }
    }
    while (job->window.filled < job->shape.slice_count && job->window.filled < job->drained + WINDOW_SLOTS) {
        copy(job, job->window.filled++, true);
    }
    exec_filled(job->comm);
}

static uint32_t expected(const struct job *job, enum op_kind kind, uint32_t rank, uint64_t index)
{
    uint64_t count = job->shape.count_elements;
    uint64_t at = kind == OP_KIND_REDUCE_SCATTER ? rank * count + index : index;
    switch (kind) {
    case OP_KIND_BROADCAST:
        return number_of(0, index);
    case OP_KIND_ALL_GATHER:
        return number_of((uint32_t)(index / count), index % count);
    case OP_KIND_ALL_TO_ALL:
        return number_of((uint32_t)(index / count), rank * count + index % count);
    case OP_KIND_ALL_REDUCE:
    case OP_KIND_REDUCE:
    case OP_KIND_REDUCE_SCATTER:
    case OP_KIND_BARRIER:
    case OP_KIND_GATHER:
    case OP_KIND_SCATTER:
    case OP_KIND_SCAN:
    case OP_KIND_EXCLUSIVE_SCAN:
    case OP_KIND_SEND:
    case OP_KIND_RECEIVE:
        break;
    }
    return number_of(0, at) + number_of(1, at);
}

static void check_kind(enum op_kind kind, bool in_one)
{
    struct job job;
    begin(&job, kind, in_one);
    assert_true(run(&job) == 0); /* nothing begins before a slot is filled */
    for (uint64_t rounds = 0; job.ends == 0; rounds++) {
        assert_true(rounds <= job.shape.slice_count);
        fill_slots(&job, kind != OP_KIND_BROADCAST);
        uint64_t ready = job.window.filled - job.sliced;
        assert_true(run(&job) == ready);
    }
    assert_int_equal(job.result.status, STATUS_OK);
    fill_slots(&job, kind != OP_KIND_BROADCAST);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        bool has = rank == 0 ? kind != OP_KIND_BROADCAST : kind != OP_KIND_REDUCE;
        for (uint64_t i = 0; has && i < job.shape.output_blocks * job.shape.count_elements; i++) {
            assert_true(job.ranks[rank].output[i] == expected(&job, kind, rank, i));
        }
    }
    end(&job);
}

static void test_kinds(void **state)
{
    (void)state;
    check_kind(OP_KIND_ALL_REDUCE, false);
    check_kind(OP_KIND_ALL_REDUCE, true);
    check_kind(OP_KIND_REDUCE, true);
    check_kind(OP_KIND_BROADCAST, false);
    check_kind(OP_KIND_ALL_GATHER, false);
    check_kind(OP_KIND_REDUCE_SCATTER, false);
    check_kind(OP_KIND_ALL_TO_ALL, false);
}

/* A window that claims more slices than there are harms its own data alone. */
static void test_too_many_slices(void **state)
{
    struct job job;
    (void)state;
    begin(&job, OP_KIND_ALL_REDUCE, true);
    job.window.filled = UINT64_MAX;
    exec_filled(job.comm);
    assert_true(run(&job) == job.shape.slice_count);
    assert_int_equal(job.ends, 1);
    end(&job);
}

static void test_cancel(void **state)
{
    struct job job;
    struct error cause;
    char text[200];
    (void)state;
    begin(&job, OP_KIND_ALL_GATHER, false);
    assert_true(run(&job) == 0);
    fill_slots(&job, true);
    assert_true(run(&job) == WINDOW_SLOTS);
    exec_comm_describe_wait(job.comm, text, sizeof text);
    assert_string_equal(text, "rank 0 has not copied its part of slice 4 of 20");
    error_set(&cause, STATUS_TIMED_OUT, "too late");
    exec_cancel(job.comm, 1, 1, &cause, 2);
    (void)run(&job);
    assert_int_equal(job.ends, 1);
    assert_int_equal(job.result.status, STATUS_TIMED_OUT);
    exec_filled(job.comm); /* it came too late */
    end(&job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_too_many_slices),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
