#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

/* Operations that sessions submit. */

static enum status submit_ranges(struct api_session *session, const struct submit_record *record,
                                 struct comms_op *op, struct error *error)
{
    const struct {
        enum record_what what;
        const char *text;
        struct comms_op_range *out;
    } ranges[] = {
        {RECORD_INPUT, "input", &op->input},
        {RECORD_OUTPUT, "output", &op->output},
        {RECORD_INPUT_LAYOUT, "counts for the input", &op->input_layout},
        {RECORD_OUTPUT_LAYOUT, "counts for the output", &op->output_layout},
        {RECORD_RESIDUAL, "residual", &op->residual},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const struct record_entry *entry = submit_record_find(record, ranges[i].what);
        struct api_memory *memory = entry != NULL ? api_session_memory(session, entry->memory) : NULL;
        if (memory != NULL) {
            *ranges[i].out = (struct comms_op_range){memory->memory, entry->offset_bytes};
        } else if (entry != NULL) {
            return error_set(error, STATUS_NOT_FOUND, "%s: memory %u is not registered", ranges[i].text,
                             entry->memory);
        }
    }
    return STATUS_OK;
}

/* An invalid word is passed without memory: comms refuses it, or has nobody to signal. */
static struct comms_fence submit_fence(struct api_session *session, const struct record_entry *entry)
{
    struct api_memory *memory = entry != NULL ? api_session_memory(session, entry->memory) : NULL;
    return memory != NULL ? (struct comms_fence){{memory->memory, entry->offset_bytes}, entry->value}
                          : (struct comms_fence){.value = 0};
}

_Static_assert(COMMS_FENCES_MAX == CLIENT_FENCES_MAX, "a record's waits are an operation's");

static uint32_t submit_waits(struct api_session *session, const struct submit_record *record,
                             struct comms_fence out[COMMS_FENCES_MAX])
{
    uint32_t count = 0;
    for (unsigned i = 0; i < record->entry_count; i++) {
        if (record->entries[i].what == RECORD_WAIT) {
            out[count++] = submit_fence(session, &record->entries[i]);
        }
    }
    return count;
}

static void submit_event(struct api_session *session, const struct submit_record *record)
{
    struct error error;
    struct comms_fence waits[COMMS_FENCES_MAX];
    struct comms_fence word = submit_fence(session, submit_record_find(record, RECORD_ENDED));
    const struct api_comm *comm = api_session_comm(session, record->handle);
    if (comm == NULL) {
        comms_fence_set(&word);
        return;
    }
    uint32_t wait_count = submit_waits(session, record, waits);
    uint64_t ticket = record->ticket != 0 ? record->ticket : UINT64_MAX;
    if (comms_record(comm->member, ticket, waits, wait_count, &word, &error) != STATUS_OK) {
        api_session_log(session, LOG_LEVEL_INFO, "an event refused: %s", error.text);
    }
}

static enum status submit_op(struct api_session *session, const struct submit_record *record,
                             const struct comms_fence *ended, uint64_t now_ns, struct error *error)
{
    const char *what;
    struct comms_fence waits[COMMS_FENCES_MAX];
    struct api_comm *comm = api_session_comm(session, record->handle);
    if (comm == NULL) {
        return error_set(error, STATUS_NOT_FOUND, "no communicator has handle %u", record->handle);
    }
    if (!op_terms_are_valid(&record->terms, &what)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "an operation whose %s is not valid", what);
    }
    const struct record_entry *number = submit_record_find(record, RECORD_NUMBER);
    struct comms_op op = {.ticket = record->ticket,
                          .number = number != NULL ? number->value : 0,
                          .waited_ms = number != NULL ? number->offset_bytes : 0,
                          .terms = record->terms,
                          .factor = record->factor,
                          .timeout_ms = record->timeout_ms,
                          .peer_rank = record->peer_rank,
                          .tag = record->tag,
                          .waits = waits,
                          .wait_count = submit_waits(session, record, waits),
                          .ended = *ended};
    enum status status = submit_ranges(session, record, &op, error);
    if (status != STATUS_OK || record->kind == RECORD_OPERATION) {
        return status == STATUS_OK ? comms_submit(comm->member, &op, now_ns, error) : status;
    }
    if (op.wait_count != 1) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a captured operation waits for %u words, not for 1",
                         op.wait_count);
    }
    return api_graph_add(comm, &op, &waits[0], error);
}

/* The client learns that commd keeps the operation. */
static void submit_kept(struct api_session *session, const struct submit_record *record)
{
    static const struct error kept = {.status = STATUS_OK};
    struct comms_completion completion = {.ticket = record->ticket, .result = &kept};
    api_comm_send_complete(session, record->handle, &completion);
}

void api_submit(struct api_session *session, const struct submit_record *record, uint64_t now_ns)
{
    struct error error;
    if (record->kind == RECORD_EVENT) {
        submit_event(session, record);
        return;
    }
    struct comms_fence ended = submit_fence(session, submit_record_find(record, RECORD_ENDED));
    if (submit_op(session, record, &ended, now_ns, &error) == STATUS_OK) {
        session->ops_submitted++;
        if (record->kind == RECORD_CAPTURED) {
            submit_kept(session, record);
        }
        return;
    }
    comms_fence_set(&ended);
    session->api->calls_refused[error.status]++;
    if (error.status == STATUS_LIMIT) {
        api_session_happened(session, HISTORY_REFUSED, "%s", error.text);
    }
    const struct api_comm *comm = api_session_comm(session, record->handle);
    struct comms_detail detail;
    struct comms_completion refused = {.ticket = record->ticket, .result = &error};
    if (comm != NULL) {
        refused.detail =
            comms_refusal_detail(comm->member, record->terms.kind, record->peer_rank, &error, &detail);
    }
    api_comm_send_complete(session, record->handle, &refused);
}
