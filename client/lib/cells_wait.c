#include <poll.h>
#include <sched.h>

#include "client/lib/cells_internal.h"

/* Waiting for operations in cells. */

#define PAUSES 50u                     /* between two yields, while every rank can have a processor */
#define PAUSES_CROWDED 4u              /* otherwise */
#define SPIN_NS 10000000u              /* then the thread sleeps */
#define SPIN_BETWEEN_NODES_NS 1000000u /* the same: commd needs a processor, too */
#define YIELDS_LONG_MAX 2u             /* then sleeping wakes us sooner than spinning, */
#define YIELDS_SHARED_MAX 2u           /* in a row; then sleeping is better between nodes, */
#define CROWDED_NODES_NS 10000000u     /* for so long; */
#define CROWDED_MIN_NS 1000000u        /* within one node so long, */
#define CROWDED_MAX_NS 32000000u       /* or four times as long as before if it happens again, */
#define CROWDED_AGAIN_NS 10000000u     /* within that time and this one */
#define SLEEP_MAX_NS 10000000u         /* then the thread looks at commd, too */
/* The same while commd has other operations of this client, or the thread is not woken for the oldest one. */
#define SLEEP_BRIEF_NS 1000000u
#define LOOKS_PER_COMMD 50u /* looks of the feeder for each one at commd */
#define IDLE_LOOKS_MAX 50u  /* of the feeder without a new operation: then it rests */

struct watch {
    struct client_cells *cells;
    const struct client_rings *rings; /* null: there are none, or another thread reads them */
    uint64_t seq;
    uint64_t wakes_seq; /* between nodes: for which it is woken, if all goes well; not before seq */
    uint64_t reads_seq; /* see cells_reader; 0: none */
    struct op_terms reads;
    uint64_t deadline_ns;
    bool has_slot;   /* an operation is in cells */
    bool has_others; /* receives wait in other communicators, which do not ring this bell */
    struct cells_messages_watch messages;
};

/* Whether the waiting thread has something to do; without the lock. */
static bool has_news(const struct watch *watch)
{
    struct client_cells *cells = watch->cells;
    if (cells_messages_came(&watch->messages) ||
        (watch->rings != NULL && ring_has_packet(&watch->rings->in))) {
        return true;
    }
    if (!watch->has_slot) {
        return false;
    }
    bool news = cells_is_between_nodes(cells)
                    ? node_cells_look(&cells->node, watch->seq) == CELLS_BY_COMMD ||
                          node_cells_look(&cells->node, watch->wakes_seq) != CELLS_WAIT
                    : cells_have_news(cells->shared, cells->rank_count, cells->rank, watch->seq);
    news = news || (watch->reads_seq != 0 && cells_has_root(cells, watch->reads_seq, &watch->reads));
    return news || atomic_load_explicit(&cells->gone, memory_order_acquire) >= watch->seq;
}

/* Returns whether there is news. */
static bool look_for_a_while(const struct watch *watch)
{
    uint32_t pauses = watch->cells->crowded ? PAUSES_CROWDED : PAUSES;
    for (uint32_t i = 0; i < pauses; i++) {
        if (has_news(watch)) {
            return true;
        }
        cells_pause();
    }
    return has_news(watch);
}

/*
 * Between nodes, commd works while the rank waits. If both have the same processor, a rank that spins gets as
 * much of it as commd: the kernel is fair, whatever the rank yields. So the rank sleeps at once.
 */
static bool sleeps_at_once(const struct client_cells *cells)
{
    return cells->crowded && cells_is_between_nodes(cells);
}

struct spinning {
    uint64_t began_ns, looked_ns;
    uint64_t yield_ns; /* how long the last one took */
    uint32_t shared_yields, long_yields;
};

/* Returns whether the processor is needed by others, so that sleeping wakes us sooner than spinning. */
static bool yield_to_others(const struct watch *watch, struct spinning *spinning)
{
    uint64_t before_ns = clock_ns();
    (void)sched_yield();
    uint64_t took_ns = spinning->yield_ns = clock_ns() - before_ns;
    spinning->long_yields += took_ns > CELLS_YIELD_LONG_NS;
    spinning->shared_yields = took_ns > CELLS_YIELD_SHARED_NS ? spinning->shared_yields + 1 : 0;
    spinning->looked_ns = before_ns + took_ns;
    bool shared = cells_is_between_nodes(watch->cells) && spinning->shared_yields >= YIELDS_SHARED_MAX;
    return shared || spinning->long_yields >= YIELDS_LONG_MAX;
}

/* For a while: others need the processor. */
static void sleep_from_now_on(struct client_cells *cells, const struct spinning *spinning)
{
    uint64_t last_ns = cells->crowded_ns;
    bool again = last_ns > 0 && spinning->began_ns < cells->crowded_until_ns + last_ns + CROWDED_AGAIN_NS;
    uint64_t next_ns = cells_is_between_nodes(cells)  ? CROWDED_NODES_NS
                       : !again                       ? CROWDED_MIN_NS
                       : 4 * last_ns < CROWDED_MAX_NS ? 4 * last_ns
                                                      : CROWDED_MAX_NS;
    cells->crowded_ns = next_ns;
    cells->crowded_until_ns = spinning->looked_ns + next_ns;
}

/* Returns whether there is news. */
static bool spin(const struct watch *watch)
{
    uint64_t most_ns = cells_is_between_nodes(watch->cells) ? SPIN_BETWEEN_NODES_NS : SPIN_NS;
    if (sleeps_at_once(watch->cells)) {
        return has_news(watch);
    }
    if (look_for_a_while(watch)) {
        watch->cells->yields_here = 0;
        return true;
    }
    struct spinning spinning = {.began_ns = clock_ns()};
    if (spinning.began_ns < watch->cells->crowded_until_ns) {
        return has_news(watch);
    }
    do {
        bool is_needed = yield_to_others(watch, &spinning);
        if (cells_should_move(watch->cells, spinning.yield_ns)) {
            return has_news(watch);
        }
        if (is_needed) {
            sleep_from_now_on(watch->cells, &spinning);
            return has_news(watch);
        }
        if (look_for_a_while(watch)) {
            return true;
        }
    } while (spinning.looked_ns - spinning.began_ns <= most_ns && spinning.looked_ns < watch->deadline_ns);
    return has_news(watch);
}

static void sleep_at_bell(const struct watch *watch, uint64_t most_ns)
{
    struct client_cells *cells = watch->cells;
    bool between_nodes = cells_is_between_nodes(cells);
    uint32_t bell = between_nodes ? node_cells_rank_lies_down(&cells->node, cells->rank, watch->wakes_seq)
                                  : cells_lie_down(cells->shared, cells->rank);
    uint64_t now_ns = clock_ns();
    if (!has_news(watch) && now_ns < watch->deadline_ns) {
        uint64_t left_ns = watch->deadline_ns - now_ns;
        cells_sleep(cells->shared, cells->rank, bell, left_ns < most_ns ? left_ns : most_ns);
    }
    if (between_nodes) {
        node_cells_rank_gets_up(&cells->node, cells->rank);
    } else {
        cells_get_up(cells->shared, cells->rank);
    }
}

/* The operations of the communicator's list that are in cells. */
static uint32_t in_cells(const struct comm_comm *comm)
{
    return comm->cells != NULL ? comm->cells->count - comm->cells->behind_count + cells_receive_count(comm)
                               : 0;
}

/* Whether commd has operations of the client, whose ends do not ring the bell. */
static bool commd_has_any(const struct comm_client *client)
{
    const struct comm_comm *comm = client->comms;
    while (comm != NULL && comm->op_count == in_cells(comm)) {
        comm = comm->next;
    }
    return comm != NULL;
}

/* Waits without the lock, as the thread that reads unless there is one. */
static void await_news(struct comm_client *client, struct watch *watch, bool spins)
{
    bool is_brief = commd_has_any(client) || watch->wakes_seq != watch->seq || watch->has_others;
    uint64_t most_ns = is_brief ? SLEEP_BRIEF_NS : SLEEP_MAX_NS;
    watch->rings = client->reading ? NULL : client->rings;
    client->reading = client->reading || watch->rings != NULL;
    cells_messages_hold(&watch->messages);
    pthread_mutex_unlock(&client->lock);
    bool news = spins ? spin(watch) : has_news(watch);
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
        watch->cells->idle_seq = has_news(watch) ? 0 : watch->seq;
        client_take_all(client);
    }
    cells_messages_release(client, &watch->messages);
}

/*
 * Between nodes: the operation whose end wakes the rank, if all goes well. If the awaited one has no room
 * yet, it is when half of those that may be open have ended. Otherwise rank and commd would take turns for
 * each of them, as they may share a processor.
 */
static uint64_t wakes_at(struct client_cells *cells, const struct client_op *awaited)
{
    if (awaited != NULL && awaited->held != NULL) {
        return cells_slot_at(cells, cells->count / 2)->seq;
    }
    return awaited != NULL && awaited->cell != NULL ? awaited->cell->seq : cells_slot_at(cells, 0)->seq;
}

/* Waits for the message of a receive. */
static void await_message(struct comm_comm *comm, uint64_t deadline_ns, bool spins)
{
    struct watch watch = {.cells = comm->cells,
                          .deadline_ns = deadline_ns,
                          .has_others = comm->client->cells.receives > cells_receive_count(comm)};
    cells_messages_watch(comm->client, &watch.messages);
    watch.deadline_ns = watch.messages.until_ns < deadline_ns ? watch.messages.until_ns : watch.deadline_ns;
    cells_look_at_places(comm->cells);
    await_news(comm->client, &watch, spins);
    held_feed(comm->client);
}

bool cells_wait(struct comm_comm *comm, const struct client_op *awaited, uint64_t deadline_ns, bool spins)
{
    struct comm_client *client = comm->client;
    struct client_cells *cells = comm->cells;
    const struct client_op *oldest = awaited != NULL ? awaited : comm->ops;
    if (cells == NULL || (cells->count == 0 && cells_receive_count(comm) == 0)) {
        return false;
    }
    bool receives = oldest != NULL && oldest->receive != NULL;
    if (cells_take_ready(comm) | cells_receive_ready(comm, false)) {
        pthread_cond_broadcast(&client->changed);
        held_feed(client);
        return true;
    }
    if (receives && cells_receives_are_handed(comm)) {
        uint64_t soon_ns = clock_ns() + SLEEP_BRIEF_NS;
        client_progress(client, soon_ns < deadline_ns ? soon_ns : deadline_ns);
        return true;
    }
    if (receives) {
        await_message(comm, deadline_ns, spins);
        return true;
    }
    if (cells->count == 0) {
        return false;
    }
    cells_fetch_behind(comm);
    if (cells->count == 0) {
        return false;
    }
    cells_look_at_places(cells);
    const struct cells_slot *slot = &cells->slots[cells->first];
    if (!cells_is_oldest(comm, slot->op->ticket)) {
        return false; /* commd has an earlier one */
    }
    if (slot->op->staging) { /* another thread copies a slice, and says when it has */
        (void)pthread_cond_wait(&client->changed, &client->lock);
        return true;
    }
    struct watch watch = {.cells = cells,
                          .seq = slot->seq,
                          .has_slot = true,
                          .has_others = client->cells.receives > cells_receive_count(comm),
                          .deadline_ns =
                              slot->op->deadline_ns < deadline_ns ? slot->op->deadline_ns : deadline_ns};
    const struct cells_slot *reader = cells_reader(comm);
    if (reader != NULL) {
        watch.reads_seq = reader->seq;
        watch.reads = reader->call.terms;
    }
    watch.wakes_seq = wakes_at(cells, awaited);
    cells_messages_watch(client, &watch.messages);
    if (cells->asked_seq >= slot->seq) {
        watch.deadline_ns = clock_ns() + SLEEP_MAX_NS; /* commd answers soon */
    }
    await_news(client, &watch, spins && cells->idle_seq != slot->seq);
    held_feed(client);
    return true;
}

/* --- Of the feeder thread --- */

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
