#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "tests/checker/check.h"
#include "tests/unit/coll/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER_BYTES 2
#define RECORD_BYTES 4
#define RUNS_EACH 8
#define SCRATCH_ELEMENTS 4
#define ROOT_COPIES_SENDS 8 /* a bit of the root field, in kinds that have no root */

/* The bits of a record's last byte. */
enum record_flag {
    FLAG_REDUCE = 1,
    FLAG_NO_SEND = 2,
    FLAG_NO_RECEIVE = 4,
    FLAG_OTHER_OFFSET = 8,
    FLAG_OTHER_ACTION = 16,
    FLAG_BEFORE = 32, /* with FLAG_REDUCE: COLL_REDUCE_BEFORE; without it: COLL_PREFIX */
    FLAG_FROM_SCRATCH = 64,
    FLAG_TO_SCRATCH = 128
};

static enum coll_action record_action(uint8_t flags)
{
    if (flags & FLAG_REDUCE) {
        return flags & FLAG_BEFORE ? COLL_REDUCE_BEFORE : COLL_REDUCE;
    }
    return flags & FLAG_BEFORE ? COLL_PREFIX : COLL_STORE;
}

/*
 * Adds one message. Its record has from and to, both rounds, offset and count, four bits each, and a byte of
 * flags. If one side is no node of the call, that side is left out. In an all_to_all, the message goes from
 * the input to its right place, unless the flags name scratch.
 */
static void add_record(struct script *script, const struct coll_call *call, const uint8_t *record)
{
    uint32_t from = record[0] >> 4;
    uint32_t to = record[0] & 15;
    bool exchanges = call->kind == OP_KIND_ALL_TO_ALL;
    struct coll_transfer transfer = {.action = record_action(record[3]),
                                     .offset_elements = record[2] >> 4,
                                     .count_elements = record[2] & 15};
    bool fits = true;
    if ((record[3] & FLAG_NO_SEND) == 0 && from < call->node_count) {
        transfer.node = to;
        transfer.space = exchanges ? COLL_INPUT : COLL_WORK;
        transfer.space = record[3] & FLAG_FROM_SCRATCH ? COLL_SCRATCH : transfer.space;
        fits = script_add(script, from, record[1] >> 4, SCRIPT_SEND, transfer);
    }
    if ((record[3] & FLAG_NO_RECEIVE) == 0 && to < call->node_count && fits) {
        uint64_t each = call->count_elements / call->node_count;
        transfer.node = from;
        transfer.space = record[3] & FLAG_TO_SCRATCH ? COLL_SCRATCH : COLL_WORK;
        transfer.offset_elements += record[3] & FLAG_OTHER_OFFSET ? 1 : 0;
        if (exchanges && (record[3] & (FLAG_FROM_SCRATCH | FLAG_TO_SCRATCH)) == 0) {
            transfer.offset_elements += from * each - to * each;
        }
        transfer.action = record[3] & FLAG_OTHER_ACTION ? COLL_STORE : transfer.action;
        (void)script_add(script, to, record[1] & 15, SCRIPT_RECEIVE, transfer);
    }
}

static void require(bool truth)
{
    if (!truth) {
        abort();
    }
}

/* Reads the call from the header. Blocks are as even as possible; those of an all_to_all are equal. */
static bool read_call(const uint8_t *data, struct coll_call *call, uint64_t *offsets)
{
    *call = (struct coll_call){.node_count = 1 + (data[0] & 15) % SCRIPT_NODES_MAX};
    if (!op_kind_from_wire(data[0] >> 4, &call->kind) || op_kind_is_message(call->kind)) {
        return false;
    }
    uint32_t nodes = call->node_count;
    call->root_node = op_kind_has_root(call->kind) ? (data[1] >> 4) % nodes : 0;
    call->count_elements = call->kind == OP_KIND_BARRIER ? 0 : data[1] & 15;
    if (call->kind == OP_KIND_ALL_TO_ALL) {
        call->count_elements -= call->count_elements % nodes;
        call->send_offsets = offsets;
        call->blocks_are_equal = true;
    }
    for (uint32_t node = 0; node <= nodes; node++) {
        offsets[node] = call->count_elements * node / nodes;
    }
    call->block_offsets = op_kind_has_blocks(call->kind) ? offsets : NULL;
    return true;
}

/*
 * The input is a schedule. Byte 0 has the kind and the number of nodes, byte 1 the root and the number of
 * elements; then come messages. coll_check must answer whatever the schedule is. A schedule that it accepts
 * must end right in every order that is tried.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct script script;
    struct coll_call call;
    uint64_t offsets[SCRIPT_NODES_MAX + 1];
    if (size < HEADER_BYTES || !read_call(data, &call, offsets)) {
        return 0;
    }
    script = (struct script){.scratch_elements = SCRATCH_ELEMENTS,
                             .copies_sends =
                                 !op_kind_has_root(call.kind) && (data[1] >> 4 & ROOT_COPIES_SENDS) != 0};
    for (size_t at = HEADER_BYTES; size - at >= RECORD_BYTES; at += RECORD_BYTES) {
        add_record(&script, &call, data + at);
    }
    struct coll_algorithm algorithm = script_algorithm(&script, call.kind);
    struct coll_cost cost = {0};
    struct error error = {.status = STATUS_OK};
    enum status status = coll_check(&algorithm, &call, &cost, &error);
    require(status == STATUS_OK || status == STATUS_INTERNAL);
    require(status == error.status);
    struct random random;
    random_seed(&random, size);
    for (int run = 0; status == STATUS_OK && run < RUNS_EACH; run++) {
        require(script_runs_right(&script, &call, &random));
    }
    return 0;
}
