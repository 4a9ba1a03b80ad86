#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/gpu/transfers.h"

#define GPUS 3

static unsigned char memory[GPUS][2][4096];

static struct gpu_transfers made(void)
{
    struct gpu_transfers transfers;
    struct error error;
    assert_int_equal(gpu_transfers_init(&transfers, GPUS, 8, &error), STATUS_OK);
    transfers.dtype = DTYPE_I32;
    transfers.reduce = REDUCE_SUM;
    return transfers;
}

/* Adds a reduction of `count` elements to the GPU `root`, from this block of each input. */
static void add_reduce(struct gpu_transfers *transfers, uint32_t root, uint64_t count, uint64_t begin)
{
    struct gpu_transfer *transfer = gpu_transfers_add(transfers, GPU_TRANSFER_REDUCE, root, count);
    assert_non_null(transfer);
    for (uint32_t g = 0; g < GPUS; g++) {
        transfer->inputs[g] = &memory[g][0][begin * 4];
    }
    transfer->outputs[root] = memory[root][1];
}

static void add_broadcast(struct gpu_transfers *transfers, uint32_t root, uint64_t bytes, uint64_t begin)
{
    struct gpu_transfer *transfer = gpu_transfers_add(transfers, GPU_TRANSFER_BROADCAST, root, bytes);
    assert_non_null(transfer);
    transfer->inputs[root] = memory[root][0];
    for (uint32_t g = 0; g < GPUS; g++) {
        transfer->outputs[g] = &memory[g][1][begin];
    }
}

static void test_reductions_become_a_reduce_scatter(void **state)
{
    struct gpu_transfers transfers = made();
    (void)state;
    for (uint32_t g = 0; g < GPUS; g++) {
        add_reduce(&transfers, g, 5, 5 * g);
    }
    gpu_transfers_join(&transfers);
    assert_int_equal(transfers.count, 1);
    const struct gpu_transfer *joined = &transfers.list[0];
    assert_int_equal(joined->kind, GPU_TRANSFER_REDUCE_SCATTER);
    assert_int_equal(joined->count, 5);
    for (uint32_t g = 0; g < GPUS; g++) {
        assert_ptr_equal(joined->inputs[g], memory[g][0]);
        assert_ptr_equal(joined->outputs[g], memory[g][1]);
    }
    gpu_transfers_release(&transfers);
}

static void test_broadcasts_become_an_all_gather(void **state)
{
    struct gpu_transfers transfers = made();
    (void)state;
    struct gpu_transfer *send = gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 1, 7);
    send->to = 2;
    for (uint32_t g = 0; g < GPUS; g++) {
        add_broadcast(&transfers, g, 7, 7 * g);
    }
    add_broadcast(&transfers, 0, 7, 100);
    gpu_transfers_join(&transfers);
    assert_int_equal(transfers.count, 3);
    assert_int_equal(transfers.list[0].kind, GPU_TRANSFER_SEND);
    assert_int_equal(transfers.list[1].kind, GPU_TRANSFER_ALL_GATHER);
    assert_int_equal(transfers.list[2].kind, GPU_TRANSFER_BROADCAST);
    for (uint32_t g = 0; g < GPUS; g++) {
        assert_ptr_equal(transfers.list[1].inputs[g], memory[g][0]);
        assert_ptr_equal(transfers.list[1].outputs[g], memory[g][1]);
        assert_ptr_equal(transfers.list[2].outputs[g], &memory[g][1][100]);
    }
    gpu_transfers_release(&transfers);
}

/* Other orders of roots, other sizes and gaps stay what they are. */
static void test_what_does_not_fit_together_is_left(void **state)
{
    static const struct {
        uint32_t roots[GPUS];
        uint64_t counts[GPUS], begins[GPUS];
    } cases[] = {{{1, 0, 2}, {5, 5, 5}, {0, 5, 10}},
                 {{0, 1, 2}, {5, 5, 4}, {0, 5, 10}},
                 {{0, 1, 2}, {5, 5, 5}, {0, 6, 11}},
                 {{0, 1, 1}, {5, 5, 5}, {0, 5, 10}}};
    (void)state;
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        struct gpu_transfers transfers = made();
        for (int i = 0; i < GPUS; i++) {
            add_reduce(&transfers, cases[c].roots[i], cases[c].counts[i], cases[c].begins[i]);
        }
        for (int i = 0; i < GPUS; i++) {
            add_broadcast(&transfers, cases[c].roots[i], cases[c].counts[i], cases[c].begins[i]);
        }
        gpu_transfers_join(&transfers);
        assert_int_equal(transfers.count, 2 * GPUS);
        gpu_transfers_release(&transfers);
    }
}

static void test_a_full_list(void **state)
{
    struct gpu_transfers transfers = made();
    (void)state;
    for (int i = 0; i < 8; i++) {
        assert_non_null(gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 0, 1));
    }
    assert_null(gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 0, 1));
    gpu_transfers_clear(&transfers);
    assert_null(gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 0, 1)->inputs[0]);
    gpu_transfers_release(&transfers);
}

/* A list that grows keeps its transfers, and has room for as many more as were asked for. */
static void test_room_for_more(void **state)
{
    (void)state;
    struct gpu_transfers transfers = made();
    struct error error;
    for (uint32_t i = 0; i < 8; i++) {
        add_reduce(&transfers, i % GPUS, i + 1, i);
    }
    assert_null(gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 0, 1));
    assert_int_equal(gpu_transfers_reserve(&transfers, 5, &error), STATUS_OK);
    for (uint32_t i = 0; i < 5; i++) {
        struct gpu_transfer *send = gpu_transfers_add(&transfers, GPU_TRANSFER_SEND, 0, 100 + i);
        assert_non_null(send);
        send->to = 1;
    }
    assert_int_equal(transfers.count, 13);
    assert_int_equal(transfers.dtype, DTYPE_I32);
    for (uint32_t i = 0; i < 8; i++) {
        const struct gpu_transfer *at = &transfers.list[i];
        assert_int_equal(at->kind, GPU_TRANSFER_REDUCE);
        assert_int_equal(at->root, i % GPUS);
        assert_int_equal(at->count, i + 1);
        assert_ptr_equal(at->inputs[1], &memory[1][0][i * 4]);
        assert_ptr_equal(at->outputs[i % GPUS], memory[i % GPUS][1]);
    }
    uint32_t capacity = transfers.capacity;
    assert_int_equal(gpu_transfers_reserve(&transfers, capacity - 13, &error), STATUS_OK);
    assert_int_equal(transfers.capacity, capacity);
    gpu_transfers_release(&transfers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_for_more),
        cmocka_unit_test(test_reductions_become_a_reduce_scatter),
        cmocka_unit_test(test_broadcasts_become_an_all_gather),
        cmocka_unit_test(test_what_does_not_fit_together_is_left),
        cmocka_unit_test(test_a_full_list),
    };
    return cmocka_run_group_tests_name("transfers", tests, NULL, NULL);
}
