#include <string.h>

#include "client/commctl/bench.h"

/* --- busbw: nccl-tests, doc/PERFORMANCE.md --- */

static double bus_all_reduce(uint32_t size)
{
    return 2.0 * (size - 1) / size;
}

static double bus_blocks(uint32_t size)
{
    return (double)(size - 1) / size;
}

static double bus_one(uint32_t size)
{
    (void)size;
    return 1;
}

/* --- Calls --- */

static comm_dtype_t type(const struct bench_call *call)
{
    return (comm_dtype_t)call->options->dtype;
}

static comm_op_t operator_of(const struct bench_call *call)
{
    return (comm_op_t)call->options->reduce;
}

static comm_result_t all_reduce(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_all_reduce(call->comm, call->send, call->receive, call->count, type(call), operator_of(call),
                           options);
}

static comm_result_t reduce(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_reduce(call->comm, call->send, call->receive, call->count, type(call), operator_of(call),
                       call->options->root, options);
}

static comm_result_t broadcast(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_broadcast(call->comm, call->receive, call->count, type(call), call->options->root, options);
}

static comm_result_t all_gather(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_all_gather(call->comm, call->send, call->receive, call->count, type(call), options);
}

static comm_result_t reduce_scatter(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_reduce_scatter(call->comm, call->send, call->receive, call->count, type(call),
                               operator_of(call), options);
}

static comm_result_t all_to_all(const struct bench_call *call, const comm_call_options_t *options)
{
    return comm_all_to_all(call->comm, call->send, call->receive, call->count, type(call), options);
}

static uint32_t previous(const struct bench_call *call)
{
    return (call->rank + call->options->size - 1) % call->options->size;
}

/* comm_send_recv waits by itself: there is no handle. */
static comm_result_t send_recv(const struct bench_call *call, const comm_call_options_t *options)
{
    (void)options;
    return comm_send_recv(call->comm, call->send, call->count, (call->rank + 1) % call->options->size,
                          call->receive, call->count, previous(call), type(call), 0, NULL);
}

static comm_result_t barrier(const struct bench_call *call, const comm_call_options_t *options)
{
    (void)options;
    return comm_barrier(call->comm, NULL);
}

/* --- In place --- */

static void *block(const struct bench_call *call, void *buffer)
{
    return (unsigned char *)buffer + call->rank * call->count * dtype_size_bytes(call->options->dtype);
}

static void one_buffer(struct bench_call *call)
{
    call->receive = call->send;
}

static void own_block_received(struct bench_call *call)
{
    call->receive = block(call, call->send);
}

static void own_block_sent(struct bench_call *call)
{
    call->send = block(call, call->receive);
}

/* --- Inputs and expected results --- */

static uint32_t one_block(const struct bench_call *call)
{
    (void)call;
    return 1;
}

static uint32_t all_blocks(const struct bench_call *call)
{
    return call->options->size;
}

static uint32_t roots_block(const struct bench_call *call)
{
    return call->rank == call->options->root ? 1 : 0;
}

static void expect_reduced(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    (void)call;
    (void)block;
    *source = BENCH_REDUCED;
    *first = 0;
}

static void expect_roots(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    (void)block;
    *source = call->options->root;
    *first = 0;
}

static void expect_gathered(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    (void)call;
    *source = block;
    *first = 0;
}

static void expect_own_block(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    (void)block;
    *source = BENCH_REDUCED;
    *first = call->rank * call->count;
}

static void expect_exchanged(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    *source = block;
    *first = call->rank * call->count;
}

static void expect_previous(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first)
{
    (void)block;
    *source = previous(call);
    *first = 0;
}

/* name, has_blocks, has_data, out_of_place, in_place, bus_factor, submit, set_in_place, sent_blocks,
 * received_blocks, expected */
static const struct bench_operation operations[] = {
    {"all_reduce", false, true, true, true, bus_all_reduce, all_reduce, one_buffer, one_block, one_block,
     expect_reduced},
    {"all_gather", true, true, true, true, bus_blocks, all_gather, own_block_sent, one_block, all_blocks,
     expect_gathered},
    {"reduce_scatter", true, true, true, true, bus_blocks, reduce_scatter, own_block_received, all_blocks,
     one_block, expect_own_block},
    {"all_to_all", true, true, true, true, bus_blocks, all_to_all, one_buffer, all_blocks, all_blocks,
     expect_exchanged},
    {"broadcast", false, true, false, true, bus_one, broadcast, one_buffer, roots_block, one_block,
     expect_roots},
    {"reduce", false, true, true, true, bus_one, reduce, one_buffer, one_block, roots_block, expect_reduced},
    {"send_recv", false, true, true, false, bus_one, send_recv, NULL, one_block, one_block, expect_previous},
    {"barrier", false, false, true, false, bus_one, barrier, NULL, NULL, NULL, NULL},
};

const struct bench_operation *bench_operation_at(size_t index)
{
    return index < sizeof operations / sizeof operations[0] ? &operations[index] : NULL;
}

const struct bench_operation *bench_operation_find(const char *name)
{
    const struct bench_operation *operation;
    for (size_t i = 0; (operation = bench_operation_at(i)) != NULL; i++) {
        if (strcmp(operation->name, name) == 0) {
            return operation;
        }
    }
    return NULL;
}

size_t bench_count(const struct bench_operation *operation, uint64_t size_bytes, size_t element_bytes,
                   uint32_t size)
{
    uint64_t count = size_bytes / element_bytes / (operation->has_blocks ? size : 1);
    return operation->has_data && count == 0 ? 1 : (size_t)count;
}

size_t bench_bytes(const struct bench_operation *operation, size_t count, size_t element_bytes, uint32_t size)
{
    return count * element_bytes * (operation->has_blocks ? size : 1);
}

double bench_algbw_gbs(size_t size_bytes, double time_us)
{
    return (double)size_bytes / (time_us * 1e3);
}

void bench_call_fill(const struct bench_call *call, const struct bench_operation *operation)
{
    size_t block_bytes = call->count * dtype_size_bytes(call->options->dtype);
    if (operation->has_data) {
        memset(call->receive, 0xa5, operation->received_blocks(call) * block_bytes);
        bench_fill(call->options, call->rank, operation->sent_blocks(call) * call->count, call->send);
    }
}

size_t bench_call_wrong(const struct bench_call *call, const struct bench_operation *operation)
{
    size_t block_bytes = call->count * dtype_size_bytes(call->options->dtype);
    size_t wrong = 0;
    for (uint32_t block = 0; operation->has_data && block < operation->received_blocks(call); block++) {
        uint32_t source;
        size_t first;
        operation->expected(call, block, &source, &first);
        wrong += bench_wrong(call->options, source, first, call->count,
                             (const unsigned char *)call->receive + block * block_bytes);
    }
    return wrong;
}
