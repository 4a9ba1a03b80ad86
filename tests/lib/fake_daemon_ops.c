#include "tests/lib/fake_daemon_parts.h"

#include <stdatomic.h>

/* Operations and records: their words, what they do, and what the script has happen in their place. */

static _Atomic uint64_t *word_of(struct fake_session *session, const Commd__Client__Fence *fence)
{
    const Commd__Client__Range *range = fence->word;
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? fake_find_memory(session, range->memory) : NULL;
    fake_must(memory != NULL && memory->base != NULL && range->offset_bytes % 8 == 0 &&
                  range->offset_bytes <= memory->size_bytes - 8,
              "a word that is none");
    return (_Atomic uint64_t *)(void *)(memory->base + range->offset_bytes);
}

bool fake_words_are_reached(struct fake_session *session, Commd__Client__Fence *const *fences, size_t count)
{
    fake_must(count <= CLIENT_FENCES_MAX, "more words than there may be");
    for (size_t i = 0; i < count; i++) {
        if ((int64_t)(atomic_load(word_of(session, fences[i])) - fences[i]->value) < 0) {
            return false;
        }
    }
    return true;
}

void fake_set_word(struct fake_session *session, const Commd__Client__Fence *fence)
{
    if (fence != NULL) {
        atomic_store(word_of(session, fence), fence->value);
    }
}

/* Messages have no copy of their own: through bytes and back. */
static Commd__Client__Submit *copy_submit(const Commd__Client__Submit *submit)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    return commd__client__submit__unpack(NULL, commd__client__submit__pack(submit, bytes), bytes);
}

static Commd__Client__Record *copy_record(const Commd__Client__Record *record)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    return commd__client__record__unpack(NULL, commd__client__record__pack(record, bytes), bytes);
}

static bool is_on_gpu(struct fake_daemon *daemon, struct fake_session *session,
                      const Commd__Client__Range *range)
{
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? fake_find_memory(session, range->memory) : NULL;
    if (memory != NULL && range->offset_bytes >= memory->mapped_bytes) {
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.unmapped++;
        fake_unlock(daemon);
    }
    return memory != NULL && memory->base == NULL;
}

static unsigned char *range_address(struct fake_session *session, const Commd__Client__Range *range,
                                    uint64_t size)
{
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? fake_find_memory(session, range->memory) : NULL;
    if (memory == NULL || range->offset_bytes > memory->size_bytes ||
        size > memory->size_bytes - range->offset_bytes) {
        return NULL;
    }
    return memory->base + range->offset_bytes;
}

/* Does it; false where commd would refuse. */
bool fake_perform(struct fake_daemon *daemon, struct fake_session *session,
                  const Commd__Client__Submit *submit)
{
    const struct fake_comm *comm = submit->handle != 0 ? fake_find_comm(session, submit->handle) : NULL;
    enum dtype dtype;
    enum reduce reduce;
    if (comm == NULL || !dtype_from_wire(submit->dtype, &dtype) ||
        !reduce_from_wire(submit->reduce, &reduce)) {
        return false;
    }
    uint64_t size = submit->count_elements * dtype_size_bytes(dtype);
    if (size == 0) {
        return submit->input == NULL && submit->output == NULL;
    }
    if (is_on_gpu(daemon, session, submit->input) || is_on_gpu(daemon, session, submit->output)) {
        return true;
    }
    const unsigned char *input = range_address(session, submit->input, size);
    unsigned char *output = range_address(session, submit->output, size);
    bool is_root = submit->root_rank == comm->rank;
    if (submit->kind == OP_KIND_ALL_REDUCE && input != NULL && output != NULL) {
        for (uint64_t i = 0; i < size; i++) {
            output[i] = fake_daemon_byte(input[i]);
        }
        return true;
    }
    if (submit->kind == OP_KIND_BARRIER) {
        return true;
    }
    if (submit->kind != OP_KIND_BROADCAST || output == NULL ||
        (is_root ? input != output : submit->input != NULL)) {
        return false;
    }
    for (uint64_t i = 0; i < size && !is_root; i++) {
        output[i] = fake_daemon_fill(i);
    }
    return true;
}

static void note_submit(struct fake_counts *counts, const Commd__Client__Submit *submit)
{
    counts->submits++;
    counts->input_present = submit->input != NULL;
    counts->output_present = submit->output != NULL;
    counts->input_memory = submit->input != NULL ? submit->input->memory : 0;
    counts->output_memory = submit->output != NULL ? submit->output->memory : 0;
    counts->input_offset_bytes = submit->input != NULL ? submit->input->offset_bytes : 0;
    counts->output_offset_bytes = submit->output != NULL ? submit->output->offset_bytes : 0;
    counts->timeout_ms = submit->timeout_ms;
    counts->factor = submit->factor;
    counts->fences = (uint32_t)submit->n_waits;
    counts->ended_present = submit->ended != NULL;
}

void fake_finish(struct fake_daemon *daemon, struct fake_session *session,
                 const Commd__Client__Submit *submit, bool done)
{
    fake_set_word(session, submit->ended);
    if (!done) {
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.refused++;
        fake_unlock(daemon);
    }
    fake_send_complete(session, submit->handle, submit->ticket, done ? STATUS_OK : STATUS_INVALID_ARGUMENT,
                       done ? NULL : "fake: refused");
}

static void complete(struct fake_daemon *daemon, struct fake_session *session,
                     const Commd__Client__Submit *submit, uint32_t delay_ms)
{
    struct fake_delayed delayed = {.due_ns = fake_now_ns() + delay_ms * UINT64_C(1000000),
                                   .handle = submit->handle,
                                   .ticket = submit->ticket};
    if (fake_words_are_reached(session, submit->waits, submit->n_waits)) {
        delayed.state = fake_perform(daemon, session, submit) ? FAKE_DONE : FAKE_REFUSED;
        if (delay_ms == 0 && session->delayed_head == session->delayed_tail) {
            fake_finish(daemon, session, submit, delayed.state == FAKE_DONE);
            return;
        }
    }
    delayed.submit = copy_submit(submit);
    fake_delay(session, &delayed);
}

void fake_carry_out(struct fake_daemon *daemon, struct fake_session *session,
                    const Commd__Client__Record *record)
{
    fake_set_word(session, record->word);
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.records++;
    daemon->counts.record_waits = record->n_waits;
    fake_unlock(daemon);
}

void fake_handle_record(struct fake_daemon *daemon, struct fake_session *session,
                        const Commd__Client__Record *record)
{
    fake_must(record->handle != 0 && fake_find_comm(session, record->handle) != NULL,
              "a record of no communicator");
    if (session->delayed_head == session->delayed_tail &&
        fake_words_are_reached(session, record->waits, record->n_waits)) {
        fake_carry_out(daemon, session, record);
        return;
    }
    fake_delay(session, &(struct fake_delayed){.due_ns = fake_now_ns(),
                                               .handle = record->handle,
                                               .record = copy_record(record)});
}

static void abort_comm(struct fake_session *session, uint32_t handle, uint32_t status)
{
    Commd__Client__Aborted aborted = COMMD__CLIENT__ABORTED__INIT;
    aborted.handle = handle;
    aborted.status = status;
    aborted.text = (char *)"aborted after it";
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_ABORTED;
    event.aborted = &aborted;
    fake_send_event(session, &event);
}

static void act(struct fake_daemon *daemon, struct fake_session *session, const Commd__Client__Submit *submit,
                const struct fake_script *script)
{
    static const uint8_t oversize[CLIENT_PACKET_MAX_BYTES + 1];
    static const uint8_t unknown_field[] = {0xf8, 0x07, 0x01}; /* number 127, which no event has */
    switch (script->action) {
    case FAKE_COMPLETE:
        complete(daemon, session, submit, script->op_delay_ms);
        return;
    case FAKE_FAIL:
        fake_set_word(session, submit->ended);
        fake_send_complete(session, submit->handle, submit->ticket, script->op_status, script->op_text);
        return;
    case FAKE_ABORT:
        fake_set_word(session, submit->ended);
        fake_send_complete(session, submit->handle, submit->ticket, script->op_status, script->op_text);
        abort_comm(session, submit->handle, script->op_status);
        return;
    case FAKE_NO_WORD:
        return;
    case FAKE_CLOSE:
        session->closing = true;
        return;
    case FAKE_GARBAGE:
        fake_send_bytes(session, "\xff\xfe\xfd\xfc garbage", 12);
        return;
    case FAKE_EMPTY_EVENT:
        fake_send_bytes(session, unknown_field,
                        sizeof unknown_field); /* one of no bytes would be an end of file */
        return;
    case FAKE_OVERSIZE:
        fake_send_bytes(session, oversize, sizeof oversize);
        return;
    case FAKE_OTHER_TICKET:
        fake_send_complete(session, submit->handle, submit->ticket + 77, STATUS_OK, NULL);
        return;
    case FAKE_OTHER_HANDLE:
        fake_send_complete(session, submit->handle + 77, submit->ticket, STATUS_OK, NULL);
        return;
    case FAKE_OTHER_REQUEST:
        fake_send_done(session, 1u << 30);
        return;
    case FAKE_SESSION_ERROR:
        fake_send_error(session, 0, STATUS_SHUTTING_DOWN, "commd is being upgraded");
        session->closing = true;
        return;
    case FAKE_STOP_READING:
        complete(daemon, session, submit, 1); /* later: when it goes on */
        daemon->stopped_reading = true;
        return;
    case FAKE_ABUSE_RINGS:
        fake_rings_abuse(session->rings, script->abuse);
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.abuses++;
        fake_unlock(daemon);
        return;
    }
}

void fake_handle_submit(struct fake_daemon *daemon, struct fake_session *session,
                        const Commd__Client__Submit *submit)
{
    session->pending++;
    pthread_mutex_lock(&daemon->lock);
    struct fake_script script = daemon->script;
    note_submit(&daemon->counts, submit);
    if (session->pending > daemon->counts.pending_max) {
        daemon->counts.pending_max = session->pending;
    }
    if (++daemon->op_count != script.action_at_op) {
        script.action = FAKE_COMPLETE;
    }
    fake_unlock(daemon);
    act(daemon, session, submit, &script);
}
