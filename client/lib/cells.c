#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/internal.h"

#define NS_PER_MS 1000000u
#define PAUSES 50u              /* between two yields, while every rank can have a processor */
#define PAUSES_CROWDED 4u       /* otherwise */
#define SPIN_NS 10000000u       /* then the thread sleeps */
#define YIELD_LONG_NS 100000u   /* a yield that takes so long gave the processor to another process */
#define YIELDS_LONG_MAX 2u      /* then sleeping wakes us sooner than spinning, */
#define CROWDED_NS 10000000u    /* for so long */
#define SLEEP_MAX_NS 10000000u  /* then the thread looks at commd, too */
#define SLEEP_BRIEF_NS 1000000u /* the same while commd has other operations of this client */
#define LOOKS_PER_CLOCK 16u     /* looks at the cells between two looks at the clock */
#define LOOKS_PER_COMMD 50u     /* looks of the feeder for each one at commd */
#define IDLE_LOOKS_MAX 50u      /* of the feeder without a new operation: then it rests */

/* An operation that was published and has not ended. */
struct cells_slot {
    struct client_op *op; /* null: it was dropped */
    uint64_t seq;
    struct client_call call;
    size_t counts[4][CELLS_RANKS_MAX]; /* of the call: the caller may change its own */
};

struct client_cells {
    struct cells_shared *shared;
    uint32_t rank_count;
    uint32_t rank;
    uint64_t seq;          /* the last number that was used */
    _Atomic uint64_t gone; /* the last published operation that has ended; read without the lock */
    uint64_t asked_seq;    /* the last operation at whose deadline commd was told */
    bool crowded;          /* more ranks than processors */
    _Atomic uint64_t crowded_until_ns;
    uint32_t first, count;      /* of the slots, a ring */
    struct cell_counts *counts; /* this rank's */
    struct cells_slot slots[CELLS_WINDOW];
};

/* --- Beginning and end --- */

static void tell_retire(struct comm_comm *comm, bool late)
{
    Commd__Client__CellsRetire body = COMMD__CLIENT__CELLS_RETIRE__INIT;
    body.handle = comm->handle;
    body.late = late;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_CELLS_RETIRE;
    request.cells_retire = &body;
    client_tell(comm->client, &request);
}

/* The memory stays this process's: a child of fork that wrote there would take part in its place. */
static struct cells_shared *map_segment(int fd, size_t size_bytes)
{
    if (!memory_is_fixed(fd, size_bytes)) {
        return NULL;
    }
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return NULL;
    }
    if (madvise(memory, size_bytes, MADV_DONTFORK) != 0) {
        (void)munmap(memory, size_bytes);
        return NULL;
    }
    (void)madvise(memory, size_bytes, MADV_DONTDUMP);
    return memory;
}

static bool is_crowded(uint32_t rank_count)
{
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) == 0 && (uint32_t)CPU_COUNT(&set) < rank_count;
}

void cells_handle(struct comm_client *client, uint32_t handle)
{
    struct comm_comm *comm = member_by_handle(client, handle);
    bool is_joining = comm != NULL && (comm->comm_id == 0 || comm->offers_cells);
    if (is_joining && comm->cells == NULL && comm->size <= CELLS_RANKS_MAX) {
        comm->cells = calloc(1, sizeof *comm->cells);
        if (comm->cells != NULL && client->cells.fd >= 0) {
            comm->cells->shared = map_segment(client->cells.fd, cells_bytes(comm->size));
        }
    }
}

/* The event was sent before commd's answer. But the socket may not have been read since. */
static void await_segment(struct comm_comm *comm)
{
    struct comm_client *client = comm->client;
    uint64_t deadline_ns = clock_after_ms(REQUEST_TIMEOUT_MS);
    client_take_all(client);
    while (comm->cells == NULL && client->lost == COMM_OK && clock_ns() < deadline_ns) {
        client_progress(client, clock_ns() + SLEEP_BRIEF_NS);
        client_take_all(client);
    }
}

void cells_open(struct comm_comm *comm)
{
    await_segment(comm);
    comm->offers_cells = false;
    struct client_cells *cells = comm->cells;
    if (cells == NULL || cells->shared == NULL) {
        free(cells);
        comm->cells = NULL;
        tell_retire(comm, false); /* otherwise the other ranks would wait for this rank's cells */
        return;
    }
    cells->rank_count = comm->size;
    cells->rank = comm->rank;
    cells->counts = &cells->shared->ranks[comm->rank].counts;
    cells->crowded = is_crowded(comm->size);
}

void cells_close(struct comm_comm *comm)
{
    if (comm->cells != NULL) {
        comm->client->cells.open -= comm->cells->count;
        if (comm->cells->shared != NULL) {
            (void)munmap(comm->cells->shared, cells_bytes(comm->size));
        }
        free(comm->cells);
        comm->cells = NULL;
    }
}

/* --- Publishing --- */

static struct cells_slot *slot_at(struct client_cells *cells, uint32_t index)
{
    return &cells->slots[(cells->first + index) % CELLS_WINDOW];
}

static size_t buffer_bytes(const struct client_call *call, const struct call_buffer *buffer)
{
    return buffer->at != NULL ? buffer->elements * dtype_size_bytes(call->terms.dtype) : 0;
}

static bool reads_output_of(const struct client_call *call, const struct client_call *open)
{
    uintptr_t in = (uintptr_t)call->input.at, out = (uintptr_t)open->output.at;
    size_t in_bytes = buffer_bytes(call, &call->input), out_bytes = buffer_bytes(open, &open->output);
    return in_bytes > 0 && out_bytes > 0 && out < in + in_bytes && in < out + out_bytes;
}

/* Whether its input is an output that is not there yet. */
static bool needs_open(struct client_cells *cells, const struct client_call *call)
{
    for (uint32_t i = 0; i < cells->count; i++) {
        if (reads_output_of(call, &slot_at(cells, i)->call)) {
            return true;
        }
    }
    return false;
}

static bool is_plain(const struct comm_comm *comm, const struct client_call *call)
{
    return call->input.list == NULL && call->output.list == NULL && call->options.queue == NULL &&
           comm->client->gpus == NULL;
}

bool cells_may_publish(struct comm_comm *comm, const struct client_call *call, bool waits)
{
    struct client_cells *cells = comm->cells;
    return cells != NULL && comm->failure == COMM_OK && !waits && comm->collectives_in_flight == 0 &&
           cells->count < CELLS_WINDOW && cells_take(&call->terms, cells->rank_count) &&
           is_plain(comm, call) &&
           (call->terms.has_layouts == 0 || cells_blocks_fit(call, cells->rank_count)) &&
           !needs_open(cells, call) &&
           atomic_load_explicit(&cells->shared->open_from, memory_order_relaxed) <= cells->seq + 1;
}

static void keep_counts(struct cells_slot *slot, uint32_t rank_count)
{
    const size_t **counts[4] = {&slot->call.input.counts, &slot->call.input.displacements,
                                &slot->call.output.counts, &slot->call.output.displacements};
    for (size_t i = 0; i < 4; i++) {
        if (*counts[i] != NULL) {
            memcpy(slot->counts[i], *counts[i], rank_count * sizeof(size_t));
            *counts[i] = slot->counts[i];
        }
    }
}

void cells_reserve(struct comm_comm *comm, const struct client_call *call, struct client_op *op)
{
    struct client_cells *cells = comm->cells;
    struct cells_slot *slot = slot_at(cells, cells->count++);
    slot->op = op;
    slot->seq = ++cells->seq;
    slot->call = *call;
    if (call->terms.has_layouts != 0) {
        keep_counts(slot, cells->rank_count);
    }
    op->cell = slot;
    op->number = slot->seq;
    comm->client->cells.open++;
    comm->client->cells.used++;
}

void cells_put(struct comm_comm *comm, const struct client_op *op)
{
    struct client_cells *cells = comm->cells;
    uint64_t seq = op->cell->seq;
    cells_write(cells->shared, cells->rank_count, cells->rank, seq, &op->cell->call);
    cell_counts_raise(&cells->counts->published, 1);
    cells_publish(cells->shared, cells->rank_count, cells->rank, seq);
    held_watch(comm->client);
}

void cells_pass(struct comm_comm *comm, struct client_op *op, struct submit_record *record)
{
    struct client_cells *cells = comm->cells;
    if (cells == NULL || op_kind_is_message(op->kind)) {
        return;
    }
    if (op->number == 0) {
        op->number = ++cells->seq;
        cells_hand_over(cells->shared, cells->rank_count, cells->rank, op->number);
    }
    uint64_t waited_ns = op->waits_since_ns != 0 ? clock_ns() - op->waits_since_ns : 0;
    submit_record_add(record, RECORD_NUMBER, 0, waited_ns / NS_PER_MS, op->number);
}

bool cells_must_wait(const struct comm_comm *comm)
{
    return comm->cells != NULL && comm->cells->count > 0;
}

bool cells_may_feed(struct comm_comm *comm, const struct client_held *held)
{
    if (!cells_must_wait(comm) || held->returned) {
        return true;
    }
    return held->op != NULL && cells_may_publish(comm, held->call, held->wait_count > 0);
}

/* --- The end --- */

static void pop(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    uint64_t seq = cells->slots[cells->first].seq;
    cells->first = (cells->first + 1) % CELLS_WINDOW;
    cells->count--;
    comm->client->cells.open--;
    atomic_store_explicit(&cells->gone, seq, memory_order_release);
}

void cells_forget(struct comm_comm *comm, struct client_op *op)
{
    if (op->cell != NULL) {
        op->cell->op = NULL;
        op->cell = NULL;
        while (comm->cells->count > 0 && comm->cells->slots[comm->cells->first].op == NULL) {
            pop(comm);
        }
    }
}

/* Whether all earlier collectives have ended. */
static bool is_oldest(const struct comm_comm *comm, const struct client_op *op)
{
    const struct client_op *oldest = comm->ops;
    while (oldest != op && op_kind_is_message(oldest->kind)) {
        oldest = oldest->next;
    }
    return oldest == op;
}

/* Hands the oldest published operation to commd. */
static void give_back(struct comm_comm *comm, struct cells_slot *slot)
{
    struct client_op *op = slot->op;
    cell_counts_raise(&comm->cells->counts->published, UINT64_MAX); /* one less */
    uint32_t timeout_ms = slot->call.options.timeout_ms;
    op->waits_since_ns =
        op->deadline_ns - (uint64_t)(timeout_ms != 0 ? timeout_ms : comm->op_timeout_ms) * NS_PER_MS;
    if (held_return(comm, &slot->call, op)) {
        cells_forget(comm, op);
    } else {
        member_fail(comm, COMM_NO_MEMORY, "%s on \"%s\": no memory for an operation", slot->call.name,
                    comm->name);
        ops_drop(comm, op);
    }
}

/* The size is that which commd counts: of the whole vector, or of all blocks. */
static void count_end(const struct client_cells *cells, const struct cells_slot *slot)
{
    const struct op_terms *terms = &slot->call.terms;
    uint64_t elements = terms->count_elements * (op_kind_has_blocks(terms->kind) ? cells->rank_count : 1);
    if (terms->has_layouts != 0) {
        elements = cells_elements(cells->shared, cells->rank_count, slot->seq, terms);
    }
    uint64_t size_bytes = elements * dtype_size_bytes(terms->dtype);
    struct cell_count *timed = cell_counts_add(cells->counts, terms->kind, size_bytes);
    if (timed != NULL) {
        cell_counts_time(timed, clock_ns() - slot->op->submitted_ns);
    }
}

/* Returns whether the oldest published operation has ended, or left its cell. */
static bool step(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    struct cells_slot *slot = &cells->slots[cells->first];
    struct client_op *op = slot->op;
    enum cells_way way = cells_look(cells->shared, cells->rank_count, cells->rank, slot->seq);
    bool failed = comm->failure != COMM_OK;
    if (way == CELLS_DIRECT && (failed || is_oldest(comm, op))) {
        cells_read(cells->shared, cells->rank_count, cells->rank, slot->seq, &slot->call);
        count_end(cells, slot);
        ops_end_well(comm, op);
        return true;
    }
    if (failed) {
        ops_drop(comm, op);
        return true;
    }
    if (way == CELLS_BY_COMMD) {
        give_back(comm, slot);
        return true;
    }
    return false;
}

static bool take_ready(struct comm_comm *comm)
{
    bool any = false;
    while (comm->cells != NULL && comm->cells->count > 0 && step(comm)) {
        any = true;
    }
    return any;
}

/* A deadline has passed, so commd is to say who is missing. May release the lock. */
static bool retire_late(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    if (cells == NULL || cells->count == 0 || comm->failure != COMM_OK) {
        return false;
    }
    const struct cells_slot *slot = &cells->slots[cells->first];
    uint64_t now_ns = clock_ns(), deadline_ns = slot->op->deadline_ns;
    bool asked = cells->asked_seq >= slot->seq;
    if (asked && now_ns > deadline_ns + (uint64_t)DAEMON_MARGIN_MS * NS_PER_MS) {
        member_fail(comm, COMM_TIMED_OUT,
                    "\"%s\": a rank has damaged the communicator's cells, or commd at %s "
                    "does not answer: an operation is past its deadline, and has not ended",
                    comm->name, comm->client->path);
        (void)take_ready(comm);
        return false;
    }
    if (asked || now_ns < deadline_ns) {
        return false;
    }
    cells->asked_seq = slot->seq;
    tell_retire(comm, true);
    return true;
}

void cells_progress(struct comm_client *client)
{
    bool any = false;
    if (client->cells.open == 0) {
        return;
    }
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        any = take_ready(comm) || any;
        if (retire_late(comm)) {
            break; /* the list may be another one now */
        }
    }
    if (any) {
        pthread_cond_broadcast(&client->changed);
    }
}

bool cells_are_busy(struct comm_client *client)
{
    bool used = client->cells.used != client->cells.seen;
    client->cells.seen = client->cells.used;
    client->cells.idle_looks = used ? 0 : client->cells.idle_looks + 1;
    return client->cells.open > 0 || client->cells.idle_looks < IDLE_LOOKS_MAX;
}

static bool has_hung_up(const struct comm_client *client)
{
    struct pollfd connection = {.fd = client->fd};
    return poll(&connection, 1, 0) > 0;
}

void cells_look_at_commd(struct comm_client *client)
{
    bool hung_up = has_hung_up(client);
    if (hung_up || ++client->cells.looks % LOOKS_PER_COMMD == 0) {
        client->cells.hung_up = hung_up;
        client_take_all(client);
    }
}

/* --- Waiting --- */

struct watch {
    struct client_cells *cells;
    const struct client_rings *rings; /* null: there are none, or another thread reads them */
    uint64_t seq;
    uint64_t deadline_ns;
};

/* Whether the waiting thread has something to do; without the lock. */
static bool has_news(const struct watch *watch)
{
    struct client_cells *cells = watch->cells;
    return cells_have_news(cells->shared, cells->rank_count, cells->rank, watch->seq) ||
           atomic_load_explicit(&cells->gone, memory_order_acquire) >= watch->seq ||
           (watch->rings != NULL && ring_has_packet(&watch->rings->in));
}

/* Returns whether there is news. */
static bool look_for_a_while(const struct watch *watch)
{
    uint32_t pauses = watch->cells->crowded ? PAUSES_CROWDED : PAUSES;
    for (uint32_t i = 0; i < pauses; i++) {
        if (has_news(watch)) {
            return true;
        }
#if defined(__x86_64__)
        __builtin_ia32_pause();
#else
        atomic_signal_fence(memory_order_seq_cst);
#endif
    }
    return has_news(watch);
}

/* Returns whether there is news. */
static bool spin(const struct watch *watch)
{
    uint64_t began_ns = 0, before_ns = 0;
    uint32_t long_yields = 0;
    for (uint32_t looks = 0;; looks++) {
        if (look_for_a_while(watch)) {
            return true;
        }
        if (looks == 0) {
            before_ns = began_ns = clock_ns();
            if (began_ns < watch->cells->crowded_until_ns) {
                return has_news(watch);
            }
        }
        (void)sched_yield();
        if (looks % LOOKS_PER_CLOCK != 0) {
            continue;
        }
        uint64_t now_ns = clock_ns();
        long_yields += looks > 0 && now_ns - before_ns > YIELD_LONG_NS ? 1 : 0;
        before_ns = now_ns;
        if (long_yields >= YIELDS_LONG_MAX) {
            watch->cells->crowded_until_ns = now_ns + CROWDED_NS;
            return has_news(watch);
        }
        if (now_ns - began_ns > SPIN_NS || now_ns >= watch->deadline_ns) {
            return has_news(watch);
        }
    }
}

static void sleep_at_bell(const struct watch *watch, uint64_t most_ns)
{
    struct client_cells *cells = watch->cells;
    uint32_t bell = cells_lie_down(cells->shared, cells->rank);
    uint64_t now_ns = clock_ns();
    if (!has_news(watch) && now_ns < watch->deadline_ns) {
        uint64_t left_ns = watch->deadline_ns - now_ns;
        cells_sleep(cells->shared, cells->rank, bell, left_ns < most_ns ? left_ns : most_ns);
    }
    cells_get_up(cells->shared, cells->rank);
}

/* Whether commd has operations of the client, whose ends do not ring the bell. */
static bool commd_has_any(const struct comm_client *client)
{
    const struct comm_comm *comm = client->comms;
    while (comm != NULL && comm->op_count == (comm->cells != NULL ? comm->cells->count : 0)) {
        comm = comm->next;
    }
    return comm != NULL;
}

/* Waits without the lock, as the thread that reads unless there is one. */
static void await_news(struct comm_client *client, struct watch *watch)
{
    uint64_t most_ns = commd_has_any(client) ? SLEEP_BRIEF_NS : SLEEP_MAX_NS;
    watch->rings = client->reading ? NULL : client->rings;
    client->reading = client->reading || watch->rings != NULL;
    pthread_mutex_unlock(&client->lock);
    bool news = spin(watch);
    pthread_mutex_lock(&client->lock);
    if (watch->rings != NULL) {
        bool has_packet = ring_has_packet(&watch->rings->in);
        client->reading = false;
        if (client->cells.hung_up) {
            client_take_all(client);
        } else if (has_packet) {
            client_take_events(client);
        }
        queues_reading_ended(client);
        pthread_cond_broadcast(&client->changed);
    }
    if (!news) {
        watch->rings = NULL;
        pthread_mutex_unlock(&client->lock);
        sleep_at_bell(watch, most_ns);
        pthread_mutex_lock(&client->lock);
        client_take_all(client);
    }
}

bool cells_wait(struct comm_comm *comm, uint64_t deadline_ns)
{
    struct comm_client *client = comm->client;
    struct client_cells *cells = comm->cells;
    if (cells == NULL || cells->count == 0) {
        return false;
    }
    if (take_ready(comm)) {
        pthread_cond_broadcast(&client->changed);
        held_feed(client);
        return true;
    }
    const struct cells_slot *slot = &cells->slots[cells->first];
    if (!is_oldest(comm, slot->op)) {
        return false; /* commd has an earlier one */
    }
    struct watch watch = {.cells = cells,
                          .seq = slot->seq,
                          .deadline_ns =
                              slot->op->deadline_ns < deadline_ns ? slot->op->deadline_ns : deadline_ns};
    if (cells->asked_seq >= slot->seq) {
        watch.deadline_ns = clock_ns() + SLEEP_MAX_NS; /* commd answers soon */
    }
    await_news(client, &watch);
    held_feed(client);
    return true;
}
