#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/bench.h"
#include "daemon/host/reduce.h"

/* Checks what `commctl bench` sends and expects. The test computes the operations by their definition, with
 * the daemon's own arithmetic. A right result must count as right, and every wrong element as wrong. */
#define RANKS_MAX 5

/* The ranks of one operation. Each has two buffers, as in a run. */
struct world {
    struct bench_options options;
    const struct bench_operation *operation;
    struct bench_call calls[RANKS_MAX];
    unsigned char *buffers[RANKS_MAX][2];
    unsigned char *sent[RANKS_MAX]; /* copies: in place, the operation overwrites what is sent */
    size_t element_bytes, block_bytes;
};

static struct bench_options options_of(enum dtype dtype, enum reduce reduce, uint32_t size)
{
    return (struct bench_options){.size = size, .dtype = dtype, .reduce = reduce, .root = size - 1};
}

static void world_make(struct world *world, const char *name, const struct bench_options *options,
                       size_t count, bool in_place)
{
    *world = (struct world){.options = *options, .operation = bench_operation_find(name)};
    assert_non_null(world->operation);
    world->element_bytes = dtype_size_bytes(options->dtype);
    world->block_bytes = count * world->element_bytes;
    for (uint32_t rank = 0; rank < options->size; rank++) {
        struct bench_call *call = &world->calls[rank];
        for (int i = 0; i < 2; i++) {
            world->buffers[rank][i] = malloc(options->size * world->block_bytes);
            assert_non_null(world->buffers[rank][i]);
        }
        *call = (struct bench_call){.options = &world->options,
                                    .rank = rank,
                                    .count = count,
                                    .send = world->buffers[rank][0],
                                    .receive = world->buffers[rank][1]};
        if (in_place) {
            world->operation->set_in_place(call);
        }
        bench_call_fill(call, world->operation);
        world->sent[rank] = malloc(options->size * world->block_bytes);
        assert_non_null(world->sent[rank]);
        memcpy(world->sent[rank], call->send, world->operation->sent_blocks(call) * world->block_bytes);
    }
}

static void world_free(struct world *world)
{
    for (uint32_t rank = 0; rank < world->options.size; rank++) {
        free(world->buffers[rank][0]);
        free(world->buffers[rank][1]);
        free(world->sent[rank]);
    }
}

/* Reduces the blocks of that number of all ranks. rounds: one after the other, each result stored, as between
 * nodes. */
static void reduce_blocks(const struct world *world, uint32_t block, bool rounds, void *out)
{
    const void *inputs[RANKS_MAX];
    for (uint32_t rank = 0; rank < world->options.size; rank++) {
        inputs[rank] = world->sent[rank] + block * world->block_bytes;
    }
    if (rounds) {
        memcpy(out, inputs[0], world->block_bytes);
        for (uint32_t rank = 1; rank < world->options.size; rank++) {
            host_reduce_into(world->options.dtype, world->options.reduce, out, inputs[rank],
                             world->calls[0].count);
        }
        return;
    }
    struct host_reduction reduction = {.dtype = world->options.dtype,
                                       .reduce = world->options.reduce,
                                       .count_elements = world->calls[0].count,
                                       .input_count = world->options.size,
                                       .output_count = 1,
                                       .inputs = inputs,
                                       .outputs = &out};
    host_reduce(&reduction);
}

/* Does for one rank what the operation does by its definition. */
static void perform(const struct world *world, uint32_t rank, bool rounds)
{
    const char *name = world->operation->name;
    uint32_t size = world->options.size, root = world->options.root;
    size_t bytes = world->block_bytes;
    unsigned char *out = world->calls[rank].receive;
    if (strcmp(name, "all_reduce") == 0 || (strcmp(name, "reduce") == 0 && rank == root)) {
        reduce_blocks(world, 0, rounds, out);
    } else if (strcmp(name, "reduce_scatter") == 0) {
        reduce_blocks(world, rank, rounds, out);
    } else if (strcmp(name, "broadcast") == 0) {
        memcpy(out, world->sent[root], bytes);
    } else if (strcmp(name, "send_recv") == 0) {
        memcpy(out, world->sent[(rank + size - 1) % size], bytes);
    } else if (strcmp(name, "all_gather") == 0) {
        for (uint32_t other = 0; other < size; other++) {
            memcpy(out + other * bytes, world->sent[other], bytes);
        }
    } else if (strcmp(name, "all_to_all") == 0) {
        for (uint32_t other = 0; other < size; other++) {
            memcpy(out + other * bytes, world->sent[other] + rank * bytes, bytes);
        }
    } else {
        assert_string_equal(name, "reduce");
    }
}

static size_t wrong_of(const struct world *world, uint32_t rank)
{
    return bench_call_wrong(&world->calls[rank], world->operation);
}

static void must_count(const struct world *world, uint32_t rank, size_t expected, const char *what)
{
    size_t wrong = wrong_of(world, rank);
    if (wrong != expected) {
        fail_msg("%s of %s, %s, %u ranks of %zu: rank %u: %s: %zu wrong, not %zu", world->operation->name,
                 dtype_text(world->options.dtype), reduce_text(world->options.reduce), world->options.size,
                 world->calls[0].count, rank, what, wrong, expected);
    }
}

/* Changes some elements, in each of their bytes, and restores them; then changes all of them. */
static void spoil(const struct world *world, uint32_t rank)
{
    unsigned char *received = world->calls[rank].receive;
    size_t elements = world->operation->received_blocks(&world->calls[rank]) * world->calls[rank].count;
    const size_t places[] = {0, elements - 1, elements / 2};
    for (size_t i = 0; elements > 0 && (i < 3 || i < world->element_bytes); i++) {
        unsigned char *at = received + places[i % 3] * world->element_bytes + i % world->element_bytes;
        *at ^= 1;
        must_count(world, rank, 1, "one bit is another");
        *at ^= 1;
    }
    for (size_t i = 0; i < elements * world->element_bytes; i++) {
        received[i] ^= 0x80;
    }
    must_count(world, rank, elements, "all are others");
}

static void check(const char *name, const struct bench_options *options, size_t count, bool in_place)
{
    struct world world;
    for (int rounds = 0; rounds < 2; rounds++) {
        world_make(&world, name, options, count, in_place);
        for (uint32_t rank = 0; rank < options->size; rank++) {
            perform(&world, rank, rounds != 0);
            must_count(&world, rank, 0, rounds ? "in rounds" : "at once");
            if (rank + 1 == options->size && !rounds) { /* the root, if there is one */
                spoil(&world, rank);
            }
        }
        world_free(&world);
    }
}

static void test_every_operation_and_type(void **state)
{
    (void)state;
    static const enum reduce reduces[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX};
    static const uint32_t sizes[] = {1, 2, RANKS_MAX};
    const struct bench_operation *operation;
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (size_t i = 0; i < 9; i++) {
            struct bench_options options = options_of((enum dtype)dtype, reduces[i % 3], sizes[i / 3]);
            bool means = reduce_is_defined(options.dtype, options.reduce);
            for (size_t k = 0; means && (operation = bench_operation_at(k)) != NULL; k++) {
                for (int in_place = 0; in_place < 2 && operation->has_data; in_place++) {
                    if (in_place ? operation->in_place : operation->out_of_place) {
                        check(operation->name, &options, 1 + 37 * i, in_place != 0);
                    }
                }
            }
        }
    }
}

/* The values repeat. A buffer that is longer than the sequence is checked to its end. */
static void test_long_buffers(void **state)
{
    (void)state;
    struct bench_options options = options_of(DTYPE_F32, REDUCE_SUM, 2);
    for (size_t count = 13310; count < 13316; count++) {
        check("all_reduce", &options, count, true);
        check("reduce_scatter", &options, count, true);
    }
    check("all_to_all", &options, 3 * 13312 + 1, false);
}

/* Buffers that could be taken for right: one that nobody wrote to, another rank's, or the right values from a
 * later place on. */
static void test_what_could_be_taken_for_right(void **state)
{
    (void)state;
    enum { COUNT = 4096 };
    static unsigned char bytes[(COUNT + 64) * DTYPE_SIZE_MAX_BYTES];
    for (unsigned dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        struct bench_options options = options_of((enum dtype)dtype, REDUCE_SUM, 4);
        size_t element = dtype_size_bytes((enum dtype)dtype);
        memset(bytes, 0xa5, sizeof bytes);
        assert_int_equal(bench_wrong(&options, 1, 0, COUNT, bytes), COUNT);
        bench_fill(&options, 1, COUNT + 64, bytes);
        assert_int_equal(bench_wrong(&options, 1, 0, COUNT, bytes), 0);
        assert_true(bench_wrong(&options, 2, 0, COUNT, bytes) > COUNT / 4);
        assert_true(bench_wrong(&options, BENCH_REDUCED, 0, COUNT, bytes) > COUNT / 4);
        for (size_t shift = 1; shift <= 64; shift++) {
            assert_int_equal(bench_wrong(&options, 1, shift, COUNT, bytes + shift * element), 0);
            assert_true(bench_wrong(&options, 1, 0, COUNT, bytes + shift * element) > COUNT / 4);
        }
        memset(bytes, 0, sizeof bytes);
        assert_true(bench_wrong(&options, 1, 0, COUNT, bytes) > COUNT / 4);
    }
}

/* With short floats, sums of any number of ranks are exact: in any order, and with each step rounded. A rank
 * that is left out is noticed. */
static void test_sums_of_many_ranks(void **state)
{
    (void)state;
    enum { COUNT = 13312 };
    static const uint32_t sizes[] = {8, 9, 16, 17, 128, 170, 171};
    static unsigned char sum[COUNT * DTYPE_SIZE_MAX_BYTES], own[COUNT * DTYPE_SIZE_MAX_BYTES];
    for (unsigned i = 0; i < DTYPE_COUNT * (sizeof sizes / sizeof sizes[0]); i++) {
        enum dtype dtype = (enum dtype)(i % DTYPE_COUNT);
        struct bench_options options = options_of(dtype, REDUCE_SUM, sizes[i / DTYPE_COUNT]);
        uint32_t left_out = options.size / 3;
        if (dtype_size_bytes(dtype) > 2 || (dtype == DTYPE_BOOL && options.size > 9)) {
            continue; /* with so many ranks, truth values show little */
        }
        memset(sum, 0, sizeof sum);
        for (uint32_t rank = 0; rank < options.size; rank++) {
            bench_fill(&options, rank, COUNT, own);
            if (rank != left_out) {
                host_reduce_into(dtype, REDUCE_SUM, sum, own, COUNT);
            }
        }
        assert_true(bench_wrong(&options, BENCH_REDUCED, 0, COUNT, sum) > 0);
        bench_fill(&options, left_out, COUNT, own);
        host_reduce_into(dtype, REDUCE_SUM, sum, own, COUNT);
        if (bench_wrong(&options, BENCH_REDUCED, 0, COUNT, sum) != 0) {
            fail_msg("%s: the sum of %u ranks is not exact", dtype_text(dtype), options.size);
        }
    }
}

/* What is sent and expected depends on the present options, not on those of the call before. */
static void test_options_change(void **state)
{
    (void)state;
    double wide[64];
    float narrow[64];
    struct bench_options first = options_of(DTYPE_F64, REDUCE_SUM, 2);
    struct bench_options second = options_of(DTYPE_F32, REDUCE_SUM, 2);
    struct bench_options third = options_of(DTYPE_F32, REDUCE_MAX, 2);
    struct bench_options fourth = options_of(DTYPE_F32, REDUCE_MAX, 5);
    for (int again = 0; again < 2; again++) {
        bench_fill(&first, BENCH_REDUCED, 64, wide);
        bench_fill(&second, BENCH_REDUCED, 64, narrow);
        for (size_t i = 0; i < 64; i++) {
            assert_true((double)narrow[i] == wide[i]);
            assert_true(wide[i] == bench_value(&first, 0, i) + bench_value(&first, 1, i));
        }
        bench_fill(&third, BENCH_REDUCED, 64, narrow);
        for (size_t i = 0; i < 64; i++) {
            assert_true((double)narrow[i] == fmax(bench_value(&first, 0, i), bench_value(&first, 1, i)));
        }
        assert_int_equal(bench_wrong(&third, BENCH_REDUCED, 0, 64, narrow), 0);
        assert_true(bench_wrong(&fourth, BENCH_REDUCED, 0, 64, narrow) > 0);
    }
}

/* --- Figures: nccl-tests, doc/PERFORMANCE.md --- */

static void test_bus_factors(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1, 2, 3, 8, 1000, 65536};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double n = sizes[i];
        const struct {
            const char *name;
            double factor;
        } expected[] = {
            {"all_reduce", 2 * (n - 1) / n},
            {"all_gather", (n - 1) / n},
            {"reduce_scatter", (n - 1) / n},
            {"all_to_all", (n - 1) / n},
            {"broadcast", 1},
            {"reduce", 1},
            {"send_recv", 1},
        };
        for (size_t k = 0; k < sizeof expected / sizeof expected[0]; k++) {
            const struct bench_operation *operation = bench_operation_find(expected[k].name);
            assert_non_null(operation);
            assert_true(fabs(operation->bus_factor(sizes[i]) - expected[k].factor) < 1e-15);
        }
    }
    assert_true(bench_algbw_gbs(1000000000, 1e6) == 1.0); /* 10^9 bytes in a second */
    assert_true(bench_algbw_gbs(4096, 2.0) == 2.048);
    assert_true(bench_algbw_gbs(0, 5.0) == 0.0);
}

static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        uint64_t size_bytes;
        size_t element_bytes;
        uint32_t size;
        size_t count;      /* of the buffer, or of each block */
        size_t real_bytes; /* what is printed, and what algbw is of */
    } expected[] = {
        {"all_reduce", 1024, 4, 3, 256, 1024},
        {"all_reduce", 1023, 4, 3, 255, 1020},
        {"all_reduce", 3, 4, 3, 1, 4},
        {"all_reduce", 1, 8, 1, 1, 8},
        {"broadcast", 1000, 2, 7, 500, 1000},
        {"reduce", 1000, 1, 7, 1000, 1000},
        {"send_recv", 1000, 16, 2, 62, 992},
        {"all_gather", 1024, 4, 4, 64, 1024},
        {"all_gather", 1024, 4, 3, 85, 1020},
        {"all_gather", 8, 8, 4, 1, 32},
        {"reduce_scatter", 4096, 8, 4, 128, 4096},
        {"all_to_all", 4100, 2, 4, 512, 4096},
        {"all_to_all", 1, 1, 256, 1, 256},
        {"barrier", 0, 4, 4, 0, 0},
    };
    for (size_t i = 0; i < sizeof expected / sizeof expected[0]; i++) {
        const struct bench_operation *operation = bench_operation_find(expected[i].name);
        assert_non_null(operation);
        size_t count =
            bench_count(operation, expected[i].size_bytes, expected[i].element_bytes, expected[i].size);
        assert_int_equal(count, expected[i].count);
        assert_int_equal(bench_bytes(operation, count, expected[i].element_bytes, expected[i].size),
                         expected[i].real_bytes);
    }
}

static void test_operations(void **state)
{
    (void)state;
    assert_null(bench_operation_find("dance"));
    assert_null(bench_operation_find(""));
    assert_null(bench_operation_find("all"));
    assert_null(bench_operation_at(8));
    for (size_t i = 0; i < 8; i++) {
        assert_ptr_equal(bench_operation_find(bench_operation_at(i)->name), bench_operation_at(i));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_operation_and_type),
        cmocka_unit_test(test_long_buffers),
        cmocka_unit_test(test_what_could_be_taken_for_right),
        cmocka_unit_test(test_sums_of_many_ranks),
        cmocka_unit_test(test_options_change),
        cmocka_unit_test(test_bus_factors),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_operations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
