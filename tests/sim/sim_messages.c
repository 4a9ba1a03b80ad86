#include "tests/sim/sim_messages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define SIM_GUARD_BYTES 8 /* guards on either side of the bytes; nothing may write there */
#define SIM_POISON 0xa5

static unsigned char byte_of(uint64_t number, uint64_t at)
{
    return (unsigned char)((number + 1) * 167 + at * 13 + (at >> 8));
}

static uint64_t call_bytes(const struct sim_message_call *call)
{
    return call->count * dtype_size_bytes(call->dtype);
}

static struct sim_message *message_new(struct sim_comm *comm, const struct sim_message_call *call)
{
    struct sim_message *message = calloc(1, sizeof *message), **last = &comm->messages;
    struct error error;
    assert_non_null(message);
    while (*last != NULL) {
        last = &(*last)->next;
    }
    *last = message;
    message->call = *call;
    message->number = comm->message_count++;
    uint64_t bytes = call_bytes(call);
    message->bytes = malloc(bytes + UINT64_C(2) * SIM_GUARD_BYTES);
    assert_non_null(message->bytes);
    memset(message->bytes, SIM_POISON, bytes + UINT64_C(2) * SIM_GUARD_BYTES);
    for (uint64_t i = 0; call->sends && i < bytes; i++) {
        message->bytes[SIM_GUARD_BYTES + i] = byte_of(message->number, i);
    }
    assert_int_equal(
        memory_wrap(message->bytes, bytes + UINT64_C(2) * SIM_GUARD_BYTES, &message->memory, &error),
        STATUS_OK);
    return message;
}

struct sim_message *sim_message_post(struct sim_comm *comm, const struct sim_message_call *call)
{
    struct sim_rank *who = &comm->ranks[call->rank];
    struct sim_message *message = message_new(comm, call);
    struct comms_op request = {.ticket = SIM_MESSAGE_TICKETS + message->number,
                               .terms.kind = call->sends ? OP_KIND_SEND : OP_KIND_RECEIVE,
                               .terms.dtype = call->dtype,
                               .terms.count_elements = call->count,
                               .timeout_ms = call->timeout_ms,
                               .peer_rank = call->peer,
                               .tag = call->tag};
    *(call->sends ? &request.input : &request.output) =
        (struct comms_op_range){message->memory, SIM_GUARD_BYTES};
    who->calling = true;
    enum status status = comms_submit(who->member, &request, comm->cluster->now_ns, &message->refused);
    who->calling = false;
    if (status == STATUS_OK) {
        message->refused.status = STATUS_OK;
    } else {
        assert_int_equal(message->refused.status, status);
        message->done = true;
    }
    cluster_touch(comm->cluster);
    return message;
}

const struct error *sim_message_outcome(const struct sim_message *message)
{
    return message->refused.status != STATUS_OK ? &message->refused : &message->result;
}

void sim_message_completed(struct sim_rank *rank, const struct comms_completion *completion)
{
    struct sim_message *message = rank->comm->messages;
    while (message != NULL && message->number != completion->ticket - SIM_MESSAGE_TICKETS) {
        message = message->next;
    }
    assert_non_null(message);
    assert_int_equal(message->call.rank, rank->rank);
    assert_false(message->done);
    message->done = true;
    message->result = *completion->result;
    message->source = completion->source_rank;
    message->came = completion->count_elements;
}

bool sim_messages_done(const struct sim_comm *comm)
{
    for (const struct sim_message *each = comm->messages; each != NULL; each = each->next) {
        if (!each->done && comm->ranks[each->call.rank].member != NULL) {
            return false;
        }
    }
    return true;
}

/* --- Checks --- */

static bool received_well(const struct sim_message *message)
{
    return !message->call.sends && message->done && sim_message_outcome(message)->status == STATUS_OK;
}

static bool has_bytes_of(const struct sim_message *receive, const struct sim_message *send)
{
    bool same = receive->came == send->call.count && receive->call.dtype == send->call.dtype;
    for (uint64_t i = 0; same && i < call_bytes(&send->call); i++) {
        same = receive->bytes[SIM_GUARD_BYTES + i] == byte_of(send->number, i);
    }
    return same;
}

/* Finds the send that this receive took. Of the same sender, receiver and tag, it is the first one that fits,
 * after the last one that was taken. */
static void check_receive(struct sim_comm *comm, const struct sim_message *receive)
{
    const struct sim_message_call *call = &receive->call;
    struct sim_message *found = NULL;
    assert_true(call->peer == COMM_ANY_SOURCE_RANK || call->peer == receive->source);
    assert_true(receive->came <= call->count);
    for (struct sim_message *send = comm->messages; send != NULL; send = send->next) {
        if (send->call.sends && send->call.rank == receive->source && send->call.peer == call->rank &&
            send->call.tag == call->tag) {
            found = send->taken ? NULL
                    : found == NULL && send->refused.status == STATUS_OK && has_bytes_of(receive, send)
                        ? send
                        : found;
        }
    }
    if (found == NULL) {
        fail_msg("message %llu: %llu elements came to rank %u from rank %u, tag %u, that it did not send, or "
                 "out of order",
                 (unsigned long long)receive->number, (unsigned long long)receive->came, call->rank,
                 receive->source, call->tag);
    }
    found->taken = true;
}

/* Checks that nothing was written to what is sent, nor outside of what was received. */
static void check_untouched(const struct sim_message *message)
{
    uint64_t bytes = call_bytes(&message->call);
    uint64_t written = message->call.sends ? 0 : bytes; /* at most this much */
    if (received_well(message)) {
        written = message->came * dtype_size_bytes(message->call.dtype);
    }
    for (uint64_t i = 0; i < bytes + UINT64_C(2) * SIM_GUARD_BYTES; i++) {
        bool is_guard = i < SIM_GUARD_BYTES || i >= SIM_GUARD_BYTES + bytes;
        unsigned char expected =
            is_guard || !message->call.sends ? SIM_POISON : byte_of(message->number, i - SIM_GUARD_BYTES);
        if ((is_guard || i - SIM_GUARD_BYTES >= written) && message->bytes[i] != expected) {
            fail_msg("message %llu: byte %lld of %llu was written", (unsigned long long)message->number,
                     (long long)i - SIM_GUARD_BYTES, (unsigned long long)bytes);
        }
    }
}

void sim_messages_check(struct sim_comm *comm)
{
    for (struct sim_message *each = comm->messages; each != NULL; each = each->next) {
        if (received_well(each)) {
            check_receive(comm, each);
        }
        check_untouched(each);
    }
}

bool sim_messages_use_memory(const struct sim_comm *comm)
{
    for (const struct sim_message *each = comm->messages; each != NULL; each = each->next) {
        if (memory_is_used(each->memory)) {
            return true;
        }
    }
    return false;
}

void sim_messages_free(struct sim_comm *comm)
{
    while (comm->messages != NULL) {
        struct sim_message *message = comm->messages;
        comm->messages = message->next;
        memory_unref(message->memory);
        free(message->bytes);
        free(message);
    }
}
