#include "tests/lib/fake_daemon_parts.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* Operations and records: their words, what they do, and what the script lets happen instead. */

static _Atomic uint64_t *word_of(struct fake_session *session, const struct record_entry *fence)
{
    const struct fake_memory *memory = fence->memory != 0 ? fake_find_memory(session, fence->memory) : NULL;
    fake_must(memory != NULL && memory->base != NULL && fence->offset_bytes % 8 == 0 &&
                  fence->offset_bytes <= memory->size_bytes - 8,
              "a word that is none");
    return (_Atomic uint64_t *)(void *)(memory->base + fence->offset_bytes);
}

bool fake_words_are_reached(struct fake_session *session, const struct submit_record *record)
{
    bool reached = true;
    for (unsigned i = 0; i < record->entry_count; i++) {
        const struct record_entry *entry = &record->entries[i];
        reached = reached && (entry->what != RECORD_WAIT ||
                              (int64_t)(atomic_load(word_of(session, entry)) - entry->value) >= 0);
    }
    return reached;
}

static unsigned count_waits(const struct submit_record *record)
{
    unsigned waits = 0;
    for (unsigned i = 0; i < record->entry_count; i++) {
        waits += record->entries[i].what == RECORD_WAIT;
    }
    return waits;
}

void fake_set_word(struct fake_session *session, const struct submit_record *record)
{
    const struct record_entry *ended = submit_record_find(record, RECORD_ENDED);
    if (ended != NULL) {
        atomic_store(word_of(session, ended), ended->value);
    }
}

static struct submit_record *copy_record(const struct submit_record *record)
{
    struct submit_record *copy = malloc(sizeof *copy);
    fake_must(copy != NULL, "malloc");
    memcpy(copy, record, submit_record_bytes(record));
    return copy;
}

static bool is_on_gpu(struct fake_daemon *daemon, struct fake_session *session,
                      const struct record_entry *range)
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

static unsigned char *range_address(struct fake_session *session, const struct record_entry *range,
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

/* Carries out an operation. Returns false if commd would refuse it. */
bool fake_perform(struct fake_daemon *daemon, struct fake_session *session,
                  const struct submit_record *submit)
{
    const struct fake_comm *comm = submit->handle != 0 ? fake_find_comm(session, submit->handle) : NULL;
    const struct op_terms *terms = &submit->terms;
    const struct record_entry *read = submit_record_find(submit, RECORD_INPUT);
    const struct record_entry *written = submit_record_find(submit, RECORD_OUTPUT);
    const char *what;
    if (comm == NULL || !op_terms_are_valid(terms, &what)) {
        return false;
    }
    uint64_t size = terms->count_elements * dtype_size_bytes(terms->dtype);
    if (size == 0) {
        return read == NULL && written == NULL;
    }
    if (is_on_gpu(daemon, session, read) || is_on_gpu(daemon, session, written)) {
        return true;
    }
    const unsigned char *input = range_address(session, read, size);
    unsigned char *output = range_address(session, written, size);
    bool is_root = terms->root_rank == comm->rank;
    if (terms->kind == OP_KIND_ALL_REDUCE && input != NULL && output != NULL) {
        for (uint64_t i = 0; i < size; i++) {
            output[i] = fake_daemon_byte(input[i]);
        }
        return true;
    }
    if (terms->kind == OP_KIND_BARRIER) {
        return true;
    }
    if (terms->kind != OP_KIND_BROADCAST || output == NULL || (is_root ? input != output : read != NULL)) {
        return false;
    }
    for (uint64_t i = 0; i < size && !is_root; i++) {
        output[i] = fake_daemon_fill(i);
    }
    return true;
}

static void note_submit(struct fake_counts *counts, const struct submit_record *submit)
{
    const struct record_entry *input = submit_record_find(submit, RECORD_INPUT);
    const struct record_entry *output = submit_record_find(submit, RECORD_OUTPUT);
    counts->submits++;
    counts->input_present = input != NULL;
    counts->output_present = output != NULL;
    counts->input_memory = input != NULL ? input->memory : 0;
    counts->output_memory = output != NULL ? output->memory : 0;
    counts->input_offset_bytes = input != NULL ? input->offset_bytes : 0;
    counts->output_offset_bytes = output != NULL ? output->offset_bytes : 0;
    counts->timeout_ms = submit->timeout_ms;
    counts->factor = submit->factor;
    counts->fences = count_waits(submit);
    counts->ended_present = submit_record_find(submit, RECORD_ENDED) != NULL;
}

void fake_finish(struct fake_daemon *daemon, struct fake_session *session, const struct submit_record *submit,
                 bool done)
{
    fake_set_word(session, submit);
    if (!done) {
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.refused++;
        fake_unlock(daemon);
    }
    fake_send_complete(session, submit->handle, submit->ticket, done ? STATUS_OK : STATUS_INVALID_ARGUMENT,
                       done ? NULL : "fake: refused");
}

static void complete(struct fake_daemon *daemon, struct fake_session *session,
                     const struct submit_record *submit, const struct fake_script *script)
{
    struct fake_delayed delayed = {.due_ns = fake_now_ns() + script->op_delay_ms * UINT64_C(1000000),
                                   .handle = submit->handle,
                                   .ticket = submit->ticket};
    if (fake_words_are_reached(session, submit)) {
        delayed.state = fake_perform(daemon, session, submit) ? FAKE_DONE : FAKE_REFUSED;
        if (script->op_delay_ms == 0 && !script->holds_ops &&
            session->delayed_head == session->delayed_tail) {
            fake_finish(daemon, session, submit, delayed.state == FAKE_DONE);
            return;
        }
    }
    delayed.record = copy_record(submit);
    fake_delay(session, &delayed);
}

void fake_carry_out(struct fake_daemon *daemon, struct fake_session *session,
                    const struct submit_record *event)
{
    fake_set_word(session, event);
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.records++;
    daemon->counts.record_waits = count_waits(event);
    fake_unlock(daemon);
}

static void handle_event(struct fake_daemon *daemon, struct fake_session *session,
                         const struct submit_record *event)
{
    fake_must(event->handle != 0 && fake_find_comm(session, event->handle) != NULL,
              "an event of no communicator");
    if (session->delayed_head == session->delayed_tail && fake_words_are_reached(session, event)) {
        fake_carry_out(daemon, session, event);
        return;
    }
    fake_delay(session, &(struct fake_delayed){
                            .due_ns = fake_now_ns(), .handle = event->handle, .record = copy_record(event)});
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

/* Sends a completion of a version that does not exist. */
static void send_other_record(struct fake_session *session, const struct submit_record *submit)
{
    struct completion_record other;
    completion_record_begin(&other, submit->handle, submit->ticket);
    other.version++;
    fake_send_bytes(session, &other, completion_record_bytes(&other));
}

static void abuse_rings(struct fake_daemon *daemon, const struct fake_session *session, enum fake_abuse abuse)
{
    fake_rings_abuse(session->rings, abuse);
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.abuses++;
    fake_unlock(daemon);
}

static void act(struct fake_daemon *daemon, struct fake_session *session, const struct submit_record *submit,
                const struct fake_script *script)
{
    static const uint8_t oversize[CLIENT_PACKET_MAX_BYTES + 1];
    static const uint8_t unknown_field[] = {0xf8, 0x07, 0x01}; /* field number 127, which no event has */
    static const struct fake_script later = {.op_delay_ms = 1};
    switch (script->action) {
    case FAKE_COMPLETE:
        complete(daemon, session, submit, script);
        return;
    case FAKE_FAIL:
        fake_set_word(session, submit);
        fake_send_complete(session, submit->handle, submit->ticket, script->op_status, script->op_text);
        return;
    case FAKE_ABORT:
        fake_set_word(session, submit);
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
                        /* an event of no bytes would look like the end of the connection */
                        sizeof unknown_field);
        return;
    case FAKE_OTHER_RECORD:
        send_other_record(session, submit);
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
        complete(daemon, session, submit, &later); /* when reading goes on */
        daemon->stopped_reading = true;
        return;
    case FAKE_ABUSE_RINGS:
        abuse_rings(daemon, session, script->abuse);
        return;
    }
}

static void handle_submit(struct fake_daemon *daemon, struct fake_session *session,
                          const struct submit_record *submit)
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

/* No graph is ever replayed here: the operation is kept, or refused. */
static void handle_captured(struct fake_daemon *daemon, struct fake_session *session,
                            const struct submit_record *record)
{
    struct fake_script script = fake_current_script(daemon);
    const struct record_entry *ended = submit_record_find(record, RECORD_ENDED);
    fake_must(count_waits(record) == 1 && ended != NULL && ended->value == 1,
              "words of a captured operation");
    fake_must(atomic_load(word_of(session, ended)) == 0, "a word that a graph can set");
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.captured++;
    fake_unlock(daemon);
    fake_send_complete(session, record->handle, record->ticket,
                       script.refuses_captures ? STATUS_LIMIT : STATUS_OK,
                       script.refuses_captures ? "4096 are the most" : NULL);
}

void fake_handle_record(struct fake_daemon *daemon, struct fake_session *session,
                        const struct submit_record *record)
{
    if (record->kind == RECORD_EVENT) {
        handle_event(daemon, session, record);
    } else if (record->kind == RECORD_CAPTURED) {
        handle_captured(daemon, session, record);
    } else {
        handle_submit(daemon, session, record);
    }
}
