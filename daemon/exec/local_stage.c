#include <string.h>

#include "daemon/dev/reduce.h"
#include "daemon/exec/exec_internal.h"

/* The local stage: among this node's ranks, between their buffers and the work buffer, which is the first
 * rank's output. */

static unsigned char *output_of(const struct exec_op *op, uint32_t rank, uint64_t offset_elements)
{
    return (unsigned char *)op->ranks[rank].output + offset_elements * op->element_bytes;
}

static const unsigned char *input_of(const struct exec_op *op, uint32_t rank, uint64_t offset_elements)
{
    return (const unsigned char *)op->ranks[rank].input + offset_elements * op->element_bytes;
}

unsigned char *stage_work(const struct exec_op *op, uint64_t offset_elements)
{
    return output_of(op, 0, offset_elements);
}

static void reduce_ranks(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements,
                         bool to_all)
{
    const void *inputs[DEV_REDUCE_BUFFERS_MAX];
    void *outputs[DEV_REDUCE_BUFFERS_MAX];
    double factors[DEV_REDUCE_BUFFERS_MAX];
    for (uint32_t k = 0; k < op->call.rank_count; k++) {
        inputs[k] = input_of(op, k, offset_elements);
        outputs[k] = output_of(op, k, offset_elements);
        factors[k] = op->ranks[k].factor;
    }
    struct dev_reduction reduction = {.dtype = op->call.dtype,
                                      .reduce = op->call.reduce,
                                      .count_elements = count_elements,
                                      .input_count = op->call.rank_count,
                                      .output_count = to_all ? op->call.rank_count : 1,
                                      .inputs = inputs,
                                      .outputs = outputs,
                                      .factors = op->call.reduce == REDUCE_PREMUL_SUM ? factors : NULL,
                                      .divisor = to_all ? op->call.divisor : 0};
    dev_reduce(&reduction);
}

static void copy_from_root(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements,
                           uint32_t outputs)
{
    const unsigned char *source = input_of(op, op->call.root_local, offset_elements);
    for (uint32_t k = 0; k < outputs; k++) {
        unsigned char *target = output_of(op, k, offset_elements);
        if (target != source) {
            memmove(target, source, count_elements * op->element_bytes);
        }
    }
}

void stage_in(const struct exec_op *op, bool at_root, uint64_t offset_elements, uint64_t count_elements)
{
    if (count_elements == 0) {
        return;
    }
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
        reduce_ranks(op, offset_elements, count_elements, false);
        break;
    case OP_KIND_BROADCAST:
        if (at_root) {
            copy_from_root(op, offset_elements, count_elements, 1);
        }
        break;
    case OP_KIND_BARRIER:
        break;
    }
}

void stage_out(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements)
{
    if (count_elements == 0 || op->call.kind == OP_KIND_BARRIER) {
        return;
    }
    unsigned char *work = stage_work(op, offset_elements);
    if (op->call.divisor > 1) {
        const void *input = work;
        void *outputs[DEV_REDUCE_BUFFERS_MAX];
        for (uint32_t k = 0; k < op->call.rank_count; k++) {
            outputs[k] = output_of(op, k, offset_elements);
        }
        struct dev_reduction reduction = {.dtype = op->call.dtype,
                                          .reduce = op->call.reduce,
                                          .count_elements = count_elements,
                                          .input_count = 1,
                                          .output_count = op->call.rank_count,
                                          .inputs = &input,
                                          .outputs = outputs,
                                          .divisor = op->call.divisor};
        dev_reduce(&reduction);
        return;
    }
    for (uint32_t k = 1; k < op->call.rank_count; k++) {
        memcpy(output_of(op, k, offset_elements), work, count_elements * op->element_bytes);
    }
}

void stage_local_only(const struct exec_op *op, uint64_t offset_elements, uint64_t count_elements)
{
    if (count_elements == 0) {
        return;
    }
    switch (op->call.kind) {
    case OP_KIND_ALL_REDUCE:
        reduce_ranks(op, offset_elements, count_elements, true);
        break;
    case OP_KIND_BROADCAST:
        copy_from_root(op, offset_elements, count_elements, op->call.rank_count);
        break;
    case OP_KIND_BARRIER:
        break;
    }
}
