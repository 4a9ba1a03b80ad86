#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/*
 * Events: points of streams and communicators that others wait for. Each event has a word. To record an event
 * means to have a writer set the word to the next value: a stream, or commd, or the library itself at once.
 *
 * An event's lock is taken before the client's. The driver is called while it is held, but no thread waits
 * for an event then.
 */

#define WAIT_POLL_NS 200000u /* polled, because the library gets no notice when a word is set */

struct comm_event {
    struct comm_event *next, **link; /* of the client's */
    struct comm_client *client;
    pthread_mutex_t lock;
    struct fence_slot *slot;
    bool recorded;
    struct fence_mark last;
    uint64_t deadline_ns; /* if commd has not set the word by then, it counts as frozen */
};

/* --- Waits and records that are sent to commd --- */

/* Removes events that are reached from the communicator's waits. */
static void member_drop_reached(struct comm_comm *comm)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < comm->wait_count; i++) {
        if (!fence_is_reached(&comm->waits[i])) {
            comm->waits[kept++] = comm->waits[i];
        }
    }
    comm->wait_count = kept;
}

uint32_t member_collect_waits(struct comm_comm *comm, const struct stream_order *order,
                              struct fence_mark out[CLIENT_FENCES_MAX])
{
    member_drop_reached(comm);
    uint32_t count = comm->wait_count;
    memcpy(out, comm->waits, count * sizeof *out);
    if (order != NULL && order->slot != NULL && !fence_is_reached(&order->ready)) {
        out[count++] = order->ready;
    }
    return count;
}

static void records_drop_reached(struct member_records *records)
{
    while (records->count > 0 && fence_is_reached(&records->marks[records->first])) {
        records->first = (records->first + 1) % RECORDS_MAX;
        records->count--;
    }
}

void records_forget(struct comm_comm *comm)
{
    struct member_records *records = &comm->records;
    for (uint32_t i = 0; i < records->count; i++) {
        fence_reach(&records->marks[(records->first + i) % RECORDS_MAX]);
    }
    free(records->marks);
    *records = (struct member_records){0};
}

bool records_have_room(struct comm_comm *comm)
{
    records_drop_reached(&comm->records);
    return comm->records.count < RECORDS_MAX;
}

void records_take_room(struct comm_comm *comm, const struct fence_mark *mark)
{
    struct member_records *records = &comm->records;
    records->marks[(records->first + records->count++) % RECORDS_MAX] = *mark;
}

void record_make(const struct comm_comm *comm, const struct fence_mark *mark, uint64_t ticket,
                 const struct fence_mark *waits, uint32_t wait_count, struct submit_record *out)
{
    submit_record_begin(out, RECORD_EVENT, comm->handle);
    out->ticket = comm->client->records_by_ticket ? ticket : 0;
    fence_add(out, RECORD_ENDED, mark);
    for (uint32_t i = 0; i < wait_count; i++) {
        fence_add(out, RECORD_WAIT, &waits[i]);
    }
}

/* May release the lock. */
static void record_send(struct comm_comm *comm, const struct fence_mark *mark)
{
    struct submit_record event;
    struct fence_mark waits[CLIENT_FENCES_MAX];
    uint32_t wait_count = member_collect_waits(comm, NULL, waits);
    records_take_room(comm, mark);
    record_make(comm, mark, comm->last_ticket, waits, wait_count, &event);
    comm_result_t result = client_send_packet(comm->client, &event, submit_record_bytes(&event), -1,
                                              clock_after_ms((uint64_t)comm->op_timeout_ms));
    if (result != COMM_OK) {
        fence_reach(mark);
        member_fail(comm, result, "%s: commd does not read its socket: a record on \"%s\" could not be sent",
                    comm->client->path, comm->name);
    }
}

/*
 * Has commd set the word after all operations so far. Later operations do not delay it, because they may wait
 * for the event. With the client's lock, which it may release.
 */
static comm_result_t record(struct comm_comm *comm, struct fence_slot *slot, struct fence_mark *mark)
{
    cells_settle_receives(comm); /* commd's record comes after them */
    comm_result_t result = member_check(comm);
    if (result == COMM_OK && comm->records.marks == NULL) {
        comm->records.marks = calloc(RECORDS_MAX, sizeof *comm->records.marks);
        if (comm->records.marks == NULL) {
            result = error_report(COMM_NO_MEMORY, "\"%s\": no memory for a record", comm->name);
        }
    }
    if (result != COMM_OK) {
        return result;
    }
    *mark = fence_next(&comm->client->fences, slot, FENCE_ENDED);
    if (!held_record_must_wait(comm)) {
        record_send(comm, mark);
    } else if ((result = held_push_record(comm, mark)) != COMM_OK) {
        fence_reach(mark);
    }
    return result == COMM_OK ? member_check(comm) : result;
}

/* --- Events --- */

static comm_result_t check_event(const comm_event_t *event, const char *call)
{
    if (event == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the event is a null pointer", call);
    }
    return client_check(event->client);
}

static comm_result_t check_event_and_comm(const comm_event_t *event, const comm_t *comm, const char *call)
{
    comm_result_t result = check_event(event, call);
    if (result == COMM_OK && comm == NULL) {
        result = error_report(COMM_INVALID_ARGUMENT, "%s: the communicator is a null pointer", call);
    }
    if (result == COMM_OK && event->client != comm->client) {
        result = error_report(COMM_INVALID_ARGUMENT,
                              "%s on \"%s\": the event and the communicator belong to different clients",
                              call, comm->name);
    }
    return result;
}

/* Finds the GPU that null or a special stream handle means. *out is null for the calling thread. */
static comm_result_t find_gpu(struct comm_client *client, void *stream, const char *call,
                              struct client_gpu **out)
{
    cuda_context current = NULL;
    pthread_mutex_lock(&client->fences.lock);
    struct client_gpu *gpus = client->gpus;
    *out = gpus;
    if (gpus != NULL && gpus->next != NULL && gpu_driver()->context_get(&current) == CUDA_RESULT_OK) {
        for (struct client_gpu *gpu = gpus; gpu != NULL; gpu = gpu->next) {
            *out = gpu->context == current ? gpu : *out;
        }
    }
    pthread_mutex_unlock(&client->fences.lock);
    if (stream == COMM_STREAM_NONE) {
        *out = NULL;
    } else if (*out == NULL && stream != NULL) {
        return error_report(COMM_UNSUPPORTED,
                            "%s: a CUDA stream, but the client has no communicator on a GPU", call);
    }
    return *out != NULL ? watchdog_start(client) : COMM_OK;
}

comm_result_t comm_event_create(comm_client_t *client, comm_event_t **out)
{
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_event_create: the argument for the event is a null pointer");
    }
    *out = NULL;
    comm_result_t result = client_check(client);
    if (result != COMM_OK) {
        return result;
    }
    struct comm_event *event = calloc(1, sizeof *event);
    if (event == NULL) {
        return error_report(COMM_NO_MEMORY, "comm_event_create: no memory for an event");
    }
    result = fence_take(client, &event->slot);
    if (result != COMM_OK) {
        free(event);
        return result;
    }
    event->client = client;
    pthread_mutex_init(&event->lock, NULL);
    pthread_mutex_lock(&client->fences.lock);
    event->next = client->events;
    event->link = &client->events;
    if (event->next != NULL) {
        event->next->link = &event->next;
    }
    client->events = event;
    pthread_mutex_unlock(&client->fences.lock);
    *out = event;
    return COMM_OK;
}

static void event_free(struct comm_event *event)
{
    struct client_fences *fences = &event->client->fences;
    pthread_mutex_lock(&fences->lock);
    *event->link = event->next;
    if (event->next != NULL) {
        event->next->link = event->link;
    }
    pthread_mutex_unlock(&fences->lock);
    fence_give(fences, event->slot, false);
    pthread_mutex_destroy(&event->lock);
    free(event);
}

void comm_event_destroy(comm_event_t *event)
{
    if (event != NULL && client_check(event->client) == COMM_OK) {
        event_free(event);
    }
}

void events_free_all(struct comm_client *client)
{
    while (client->events != NULL) {
        event_free(client->events);
    }
}

/*
 * Gets a slot for the next record. If a writer has yet to write the old slot, it would set the word back.
 * Then the event takes a new slot. Waits for the earlier record stay at the old slot.
 */
static comm_result_t renew_slot(struct comm_event *event)
{
    struct fence_slot *slot;
    if (fence_slot_rests(event->slot)) {
        return COMM_OK;
    }
    comm_result_t result = fence_take(event->client, &slot);
    if (result == COMM_OK) {
        fence_give(&event->client->fences, event->slot, false);
        event->slot = slot;
    }
    return result;
}

comm_result_t comm_event_record(comm_event_t *event, void *stream)
{
    struct client_gpu *gpu;
    struct fence_mark mark;
    comm_result_t result = check_event(event, "comm_event_record");
    result = result == COMM_OK ? find_gpu(event->client, stream, "comm_event_record", &gpu) : result;
    if (result != COMM_OK) {
        return result;
    }
    struct client_fences *fences = &event->client->fences;
    pthread_mutex_lock(&event->lock);
    result = renew_slot(event);
    if (result == COMM_OK && gpu != NULL) {
        result = stream_write(gpu, stream, fences, event->slot, &mark);
    } else if (result == COMM_OK) {
        mark = fence_next(fences, event->slot, FENCE_READY);
        fence_reach(&mark);
    }
    if (result == COMM_OK) {
        event->last = mark;
        event->recorded = true;
        event->deadline_ns = UINT64_MAX;
    }
    pthread_mutex_unlock(&event->lock);
    return result == COMM_OK ? COMM_OK : error_within(result, "comm_event_record");
}

/* Whether the event may be reached later than the deadlines of operations in flight. Then commd has no
 * deadline for it. */
static bool may_take_long(const struct comm_comm *comm)
{
    return comm->wait_count > 0 || comm->held != NULL;
}

/* With the event's lock. */
static comm_result_t record_on_comm(struct comm_event *event, struct comm_comm *comm)
{
    struct fence_mark mark;
    comm_result_t result = renew_slot(event);
    result = result == COMM_OK ? client_enter(comm->client) : result;
    if (result != COMM_OK) {
        return result;
    }
    result = record(comm, event->slot, &mark);
    if (result == COMM_OK) {
        event->last = mark;
        event->recorded = true;
        event->deadline_ns = may_take_long(comm) ? UINT64_MAX : ops_latest_ns(comm);
    }
    client_leave(comm->client);
    return result;
}

comm_result_t comm_event_record_comm(comm_event_t *event, comm_t *comm)
{
    comm_result_t result = check_event_and_comm(event, comm, "comm_event_record_comm");
    if (result == COMM_OK && group_is_open()) {
        result = error_report(
            COMM_INVALID_ARGUMENT,
            "comm_event_record_comm on \"%s\": the group's operations are not submitted yet", comm->name);
    }
    if (result != COMM_OK) {
        return result;
    }
    pthread_mutex_lock(&event->lock);
    result = record_on_comm(event, comm);
    pthread_mutex_unlock(&event->lock);
    return result;
}

/* Returns whether the event is recorded and not reached yet. */
static bool take_pending(comm_event_t *event, struct fence_mark *mark, uint64_t *deadline_ns)
{
    pthread_mutex_lock(&event->lock);
    bool pending = event->recorded && !fence_is_reached(&event->last);
    *mark = event->last;
    *deadline_ns = event->deadline_ns;
    pthread_mutex_unlock(&event->lock);
    return pending;
}

/* With the client's lock, which it releases meanwhile. */
static comm_result_t await_mark(struct comm_client *client, const struct fence_mark *mark,
                                uint64_t deadline_ns, const char *call)
{
    while (!fence_is_reached(mark) && client->lost == COMM_OK) {
        uint64_t now_ns = clock_ns();
        if (now_ns >= deadline_ns) {
            return error_report(COMM_TIMED_OUT, "%s: commd has not reported that the event is reached", call);
        }
        client_progress(client, now_ns + WAIT_POLL_NS);
    }
    return client->lost == COMM_OK ? COMM_OK : error_repeat(client->lost, client->lost_text);
}

comm_result_t comm_event_wait(comm_event_t *event, void *stream)
{
    struct client_gpu *gpu;
    struct fence_mark mark;
    uint64_t deadline_ns;
    comm_result_t result = check_event(event, "comm_event_wait");
    result = result == COMM_OK ? find_gpu(event->client, stream, "comm_event_wait", &gpu) : result;
    if (result != COMM_OK || !take_pending(event, &mark, &deadline_ns)) {
        return result;
    }
    if (gpu != NULL) {
        result = stream_wait(gpu, stream, &mark);
        return result == COMM_OK ? COMM_OK : error_within(result, "comm_event_wait");
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_event_wait: a group is open: a call cannot wait before comm_group_end");
    }
    result = client_enter(event->client);
    if (result == COMM_OK) {
        result = await_mark(event->client, &mark, deadline_ns, "comm_event_wait");
        client_leave(event->client);
    }
    return result;
}

/* Returns false if there is no room. */
static bool add_wait(struct comm_comm *comm, const struct fence_mark *mark)
{
    for (uint32_t i = 0; i < comm->wait_count; i++) {
        struct fence_mark *other = &comm->waits[i];
        if (other->slot == mark->slot && other->word == mark->word) {
            other->value = mark->value > other->value ? mark->value : other->value;
            return true;
        }
    }
    if (comm->wait_count == COMM_WAITS_MAX) {
        member_drop_reached(comm);
    }
    if (comm->wait_count == COMM_WAITS_MAX) {
        return false;
    }
    comm->waits[comm->wait_count++] = *mark;
    return true;
}

static bool is_among(const struct fence_mark *mark, const struct fence_mark *marks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (marks[i].slot == mark->slot && marks[i].word == mark->word && marks[i].value >= mark->value) {
            return true;
        }
    }
    return false;
}

/*
 * Replaces all waits of the communicator by one wait, for a record of it. With the client's lock. The waits
 * are replaced after the record is sent, because operations that wait for it must come after it.
 */
static comm_result_t replace_waits(struct comm_comm *comm, struct fence_slot *slot)
{
    struct fence_mark before[COMM_WAITS_MAX], merged;
    uint32_t before_count = comm->wait_count, kept = 0;
    memcpy(before, comm->waits, before_count * sizeof *before);
    comm_result_t result = record(comm, slot, &merged);
    if (result != COMM_OK) {
        return result;
    }
    for (uint32_t i = 0; i < comm->wait_count; i++) { /* other threads may have added waits */
        if (!is_among(&comm->waits[i], before, before_count)) {
            comm->waits[kept++] = comm->waits[i];
        }
    }
    bool replaced = kept < comm->wait_count;
    comm->wait_count = kept;
    if (replaced) { /* otherwise another thread has done it */
        comm->waits[comm->wait_count++] = merged;
    }
    return COMM_OK;
}

/* Takes the client's lock. */
static comm_result_t merge_waits(struct comm_comm *comm)
{
    struct fence_slot *slot;
    comm_result_t result = fence_take(comm->client, &slot);
    if (result != COMM_OK) {
        return result;
    }
    result = client_enter(comm->client);
    if (result == COMM_OK) {
        result = replace_waits(comm, slot);
        client_leave(comm->client);
    }
    fence_give(&comm->client->fences, slot, false);
    return result;
}

comm_result_t comm_event_wait_comm(comm_event_t *event, comm_t *comm)
{
    struct fence_mark mark;
    uint64_t deadline_ns;
    comm_result_t result = check_event_and_comm(event, comm, "comm_event_wait_comm");
    if (result != COMM_OK || !take_pending(event, &mark, &deadline_ns)) {
        return result;
    }
    for (bool added = false; !added;) {
        result = client_enter(comm->client);
        if (result == COMM_OK) {
            result = member_check(comm);
            added = result != COMM_OK || add_wait(comm, &mark);
            client_leave(comm->client);
        }
        if (result == COMM_OK && !added) {
            result = merge_waits(comm);
        }
        if (result != COMM_OK) {
            break;
        }
    }
    return result;
}

comm_result_t comm_sync_stream(comm_t *comm, uint32_t timeout_ms)
{
    struct fence_slot *slot;
    struct fence_mark mark;
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_sync_stream: the communicator is a null pointer");
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_sync_stream: a group is open: a call cannot wait before comm_group_end");
    }
    comm_result_t result = client_check(comm->client);
    result = result == COMM_OK ? fence_take(comm->client, &slot) : result;
    if (result != COMM_OK) {
        return result;
    }
    uint64_t deadline_ns = timeout_ms != 0 ? clock_after_ms(timeout_ms) : UINT64_MAX;
    result = client_enter(comm->client);
    if (result == COMM_OK) {
        result = record(comm, slot, &mark);
        uint64_t ticket = comm->last_ticket;
        uint64_t latest_ns = may_take_long(comm) ? UINT64_MAX : ops_latest_ns(comm);
        comm_result_t ended = result == COMM_OK ? ops_finish(comm, ticket, deadline_ns) : result;
        if (ended == COMM_OK) {
            ended = await_mark(comm->client, &mark, deadline_ns < latest_ns ? deadline_ns : latest_ns,
                               "comm_sync_stream");
        }
        result = ended;
        client_leave(comm->client);
    }
    fence_give(&comm->client->fences, slot, false);
    return result;
}
