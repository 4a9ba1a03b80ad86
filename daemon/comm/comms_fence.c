#include "daemon/comm/comms_fence.h"

#include <stdatomic.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/gpu/words.h"

/* Null if the range is not an aligned 64-bit word in host memory. */
static _Atomic uint64_t *word_of(const struct comms_fence *fence)
{
    if (fence->word.memory == NULL || memory_gpu(fence->word.memory) != MEMORY_OF_HOST ||
        fence->word.offset_bytes % sizeof(uint64_t) != 0) {
        return NULL;
    }
    return memory_range(fence->word.memory, fence->word.offset_bytes, sizeof(uint64_t));
}

void comms_fence_set(const struct comms_fence *fence)
{
    _Atomic uint64_t *word = word_of(fence);
    if (word != NULL) {
        atomic_store_explicit(word, fence->value, memory_order_release);
    }
}

static enum status fences_fill(struct comms_fences *fences, const struct comms_fence *waits,
                               uint32_t wait_count, const struct comms_fence *ended, struct error *error)
{
    for (uint32_t i = 0; i < wait_count; i++) {
        _Atomic uint64_t *word = word_of(&waits[i]);
        if (word == NULL) {
            return error_set(
                error, STATUS_INVALID_ARGUMENT,
                "a word that it waits for is not an aligned 64-bit word in registered host memory");
        }
        fences->waits[i] = (struct fence){.word = word, .value = waits[i].value};
        fences->memories[i] = memory_ref(waits[i].word.memory);
        fences->wait_count++;
    }
    if (ended->word.memory != NULL) {
        fences->ended = word_of(ended);
        fences->ended_value = ended->value;
        if (fences->ended == NULL) {
            return error_set(error, STATUS_INVALID_ARGUMENT,
                             "its completion word is not an aligned 64-bit word in registered host memory");
        }
        fences->ended_memory = memory_ref(ended->word.memory);
    }
    return STATUS_OK;
}

enum status comms_fences_take(const struct comms_fence *waits, uint32_t wait_count,
                              const struct comms_fence *ended, struct comms_fences **out, struct error *error)
{
    *out = NULL;
    if (wait_count == 0 && ended->word.memory == NULL) {
        return STATUS_OK;
    }
    if (wait_count > COMMS_FENCES_MAX) {
        comms_fence_set(ended);
        return error_set(error, STATUS_LIMIT, "it waits for %u words; at most %d are allowed", wait_count,
                         COMMS_FENCES_MAX);
    }
    struct comms_fences *fences = calloc(1, sizeof *fences);
    if (fences == NULL) {
        comms_fence_set(ended);
        return error_set(error, STATUS_NO_MEMORY, "no memory for an operation");
    }
    enum status status = fences_fill(fences, waits, wait_count, ended, error);
    if (status != STATUS_OK) {
        comms_fence_set(ended);
        comms_fences_end(fences);
        return status;
    }
    *out = fences;
    return STATUS_OK;
}

static struct gpu_word gpu_word_of(const struct memory *of_gpu, struct memory *memory,
                                   const _Atomic uint64_t *word)
{
    const unsigned char *base = memory_range(memory, 0, 1);
    return gpu_words_find(of_gpu, memory, (uint64_t)((const unsigned char *)(uintptr_t)word - base));
}

void comms_fences_find(struct comms_fences *fences, const struct memory *of_gpu)
{
    for (uint32_t i = 0; i < fences->wait_count; i++) {
        fences->waits[i].gpu_word = gpu_word_of(of_gpu, fences->memories[i], fences->waits[i].word);
    }
    if (fences->ended != NULL) {
        fences->ended_gpu_word = gpu_word_of(of_gpu, fences->ended_memory, fences->ended);
    }
}

/* A stream may write the word, and later operations may have raised it: it is never set back. */
static void raise_word(_Atomic uint64_t *word, uint64_t value)
{
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    while ((int64_t)(now - value) < 0 && !atomic_compare_exchange_weak_explicit(
                                             word, &now, value, memory_order_release, memory_order_relaxed)) {
    }
}

void comms_fences_signal(const struct comms_fences *fences)
{
    if (fences == NULL || fences->ended == NULL) {
        return;
    }
    if (fences->ended_by_gpu) {
        raise_word(fences->ended, fences->ended_value);
    } else {
        atomic_store_explicit(fences->ended, fences->ended_value, memory_order_release);
    }
}

void comms_fences_end(struct comms_fences *fences)
{
    if (fences == NULL) {
        return;
    }
    comms_fences_signal(fences);
    for (uint32_t i = 0; i < fences->wait_count; i++) {
        memory_unref(fences->memories[i]);
    }
    memory_unref(fences->ended_memory);
    free(fences);
}

/* --- Records --- */

struct comms_record {
    struct comms_record *prev, *next;
    uint64_t seq;        /* the last operation before it */
    uint64_t message_id; /* the last message before it */
    uint64_t ticket;     /* messages with higher tickets are not waited for */
    struct comms_fences *fences;
};

#define RECORD_COST_BYTES (sizeof(struct comms_record) + sizeof(struct comms_fences))

enum status comms_record(struct comms_member *member, uint64_t ticket, const struct comms_fence *waits,
                         uint32_t wait_count, const struct comms_fence *word, struct error *error)
{
    struct communicator *comm = member->comm;
    if (comm->state != COMMS_COMM_FORMED || member->record_count >= COMMS_RECORDS_MAX) {
        comms_fence_set(word);
        return comm->state != COMMS_COMM_FORMED
                   ? error_set(error, STATUS_IN_PROGRESS, "communicator \"%s\" is not formed", comm->name)
                   : error_set(error, STATUS_LIMIT, "communicator \"%s\": rank %u has %d records pending",
                               comm->name, member->rank, COMMS_RECORDS_MAX);
    }
    struct error why;
    if (budget_charge(member->client.account, BUDGET_OPERATIONS, RECORD_COST_BYTES, &why) != STATUS_OK) {
        comms_fence_set(word);
        return error_set(error, why.status, "communicator \"%s\", rank %u: a record: %s", comm->name,
                         member->rank, why.text);
    }
    struct comms_record *record = calloc(1, sizeof *record);
    if (record == NULL) {
        budget_release(member->client.account, BUDGET_OPERATIONS, RECORD_COST_BYTES);
        comms_fence_set(word);
        return error_set(error, STATUS_NO_MEMORY, "communicator \"%s\": no memory for a record", comm->name);
    }
    enum status status = comms_fences_take(waits, wait_count, word, &record->fences, error);
    if (status != STATUS_OK) {
        budget_release(member->client.account, BUDGET_OPERATIONS, RECORD_COST_BYTES);
        free(record);
        return status;
    }
    record->seq = member->posted_seq;
    record->message_id = comm->last_message_id;
    record->ticket = ticket;
    DL_APPEND(member->records, record);
    member->record_count++;
    communicator_queue(comm);
    return STATUS_OK;
}

static void record_end(struct comms_member *member, struct comms_record *record)
{
    DL_DELETE(member->records, record);
    member->record_count--;
    budget_release(member->client.account, BUDGET_OPERATIONS, RECORD_COST_BYTES);
    comms_fences_end(record->fences);
    free(record);
}

bool comms_records_step(struct comms_member *member)
{
    struct communicator *comm = member->comm;
    while (member->records != NULL) {
        struct comms_record *record = member->records;
        const struct comms_fences *fences = record->fences;
        if (comm->state == COMMS_COMM_FORMED) {
            if ((comm->pending != NULL && comm->pending->seq <= record->seq) ||
                comms_p2p_is_pending(member, record->message_id, record->ticket)) {
                return false; /* their end queues the communicator again */
            }
            if (fences != NULL && !fences_are_reached(fences->waits, fences->wait_count)) {
                return true;
            }
        }
        record_end(member, record);
    }
    return false;
}

void comms_records_end(struct comms_member *member)
{
    while (member->records != NULL) {
        record_end(member, member->records);
    }
}
