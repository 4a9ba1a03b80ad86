#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "daemon/coll/check.h"
#include "tests/unit/coll/script.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEADER_BYTES 2
#define RECORD_BYTES 4
#define RUNS_EACH 8

/* What the last byte of a record says, besides the action in bit 0. */
enum record_flag {
    FLAG_REDUCE = 1,
    FLAG_NO_SEND = 2,
    FLAG_NO_RECEIVE = 4,
    FLAG_OTHER_OFFSET = 8,
    FLAG_OTHER_ACTION = 16
};

/*
 * One message: from and to, both rounds, offset and count, flags; four bits each but for the last. A side
 * that is no node of the call has no rounds to list it in.
 */
static void add_record(struct script *script, uint32_t node_count, const uint8_t *record)
{
    uint32_t from = record[0] >> 4;
    uint32_t to = record[0] & 15;
    struct coll_transfer transfer = {.action = record[3] & FLAG_REDUCE ? COLL_REDUCE : COLL_STORE,
                                     .offset_elements = record[2] >> 4,
                                     .count_elements = record[2] & 15};
    bool fits = true;
    if ((record[3] & FLAG_NO_SEND) == 0 && from < node_count) {
        transfer.node = to;
        fits = script_add(script, from, record[1] >> 4, SCRIPT_SEND, transfer);
    }
    if ((record[3] & FLAG_NO_RECEIVE) == 0 && to < node_count && fits) {
        transfer.node = from;
        transfer.offset_elements += record[3] & FLAG_OTHER_OFFSET ? 1 : 0;
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

/*
 * The input is a schedule: byte 0 the kind and the number of nodes, byte 1 the root and the number of
 * elements, then messages. Whatever it is, coll_check answers; what it accepts comes to the right end in
 * every order tried.
 */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct script script;
    struct coll_call call;
    if (size < HEADER_BYTES || !op_kind_from_wire(data[0] >> 4, &call.kind)) {
        return 0;
    }
    call.node_count = 1 + (data[0] & 15) % SCRIPT_NODES_MAX;
    call.node_index = 0;
    call.root_node = (data[1] >> 4) % call.node_count;
    call.count_elements = call.kind == OP_KIND_BARRIER ? 0 : data[1] & 15;
    script = (struct script){0};
    for (size_t at = HEADER_BYTES; size - at >= RECORD_BYTES; at += RECORD_BYTES) {
        add_record(&script, call.node_count, data + at);
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
