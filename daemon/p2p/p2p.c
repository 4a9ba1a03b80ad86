#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/time.h"
#include "daemon/p2p/p2p_internal.h"

const struct error p2p_fine = {.status = STATUS_OK};
const struct error p2p_no_memory = {.status = STATUS_NO_MEMORY, .text = "no memory for a message"};

enum status p2p_new(struct net *net, struct p2p **out, struct error *error)
{
    struct p2p *p2p = calloc(1, sizeof *p2p);
    if (p2p == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for messages");
    }
    p2p->net = net;
    p2p->pacer.next_ns = TIME_NEVER;
    p2p->retry_ns = TIME_NEVER;
    stream_readers_register(&p2p->readers, &message_reader_kind, net, p2p, &p2p->now_ns);
    *out = p2p;
    return STATUS_OK;
}

void p2p_set_gpus(struct p2p *p2p, struct gpu_devices *gpus)
{
    p2p->gpus = gpus;
}

void p2p_set_by_nccl(struct p2p *p2p, p2p_by_nccl by_nccl, void *context)
{
    p2p->by_nccl = by_nccl;
    p2p->by_nccl_context = context;
}

void p2p_set_clock(struct p2p *p2p, uint64_t (*clock)(void))
{
    p2p->spending.clock = clock;
}

void p2p_free(struct p2p *p2p)
{
    if (p2p != NULL) {
        stream_readers_free(&p2p->readers);
        free(p2p);
    }
}

void p2p_wake(struct p2p *p2p)
{
    rounds_wake(&p2p->rounds);
}

void p2p_retry(struct p2p *p2p)
{
    p2p->retry_ns = time_min(p2p->retry_ns, time_after(p2p->now_ns, P2P_RETRY_NS));
}

/* --- Turns --- */

void p2p_comm_set_busy(struct p2p_comm *comm)
{
    rounds_put(&comm->p2p->rounds, &comm->turn, comm->map->owner_uid);
    p2p_wake(comm->p2p);
}

/* The communicator whose turn it is; null: the round is over. */
static struct p2p_comm *comm_next(struct p2p *p2p)
{
    struct rounds_entry *turn = rounds_next(&p2p->rounds);
    return turn == NULL ? NULL : (struct p2p_comm *)((char *)turn - offsetof(struct p2p_comm, turn));
}

bool p2p_run(struct p2p *p2p, uint64_t now_ns)
{
    p2p->now_ns = now_ns;
    p2p->retry_ns = TIME_NEVER;
    if (rounds_begin(&p2p->rounds)) {
        pacer_begin(&p2p->pacer);
    }
    uint32_t steps = P2P_RUN_STEPS, looks = P2P_RUN_LOOKS;
    struct p2p_comm *comm;
    while (steps > 0 && looks > 0 && (comm = comm_next(p2p)) != NULL) {
        looks--;
        if (comm->count == 0 && comm->flushing == NULL && comm->ending == NULL) {
            rounds_remove(&p2p->rounds, &comm->turn);
            continue;
        }
        spending_turn(&p2p->spending, comm->map->account);
        if (messages_step(comm, now_ns)) {
            p2p->rounds.more = true;
            steps--;
        }
    }
    spending_turn(&p2p->spending, NULL);
    bool polls = p2p->rounds.unstepped == 0 && pacer_end(&p2p->pacer, now_ns);
    return rounds_end(&p2p->rounds, polls);
}

bool p2p_has_work(const struct p2p *p2p)
{
    return p2p->rounds.woken;
}

uint64_t p2p_next_deadline_ns(const struct p2p *p2p)
{
    uint64_t deadline_ns = time_min(p2p->pacer.next_ns, p2p->retry_ns);
    deadline_ns = p2p->cut != NULL ? time_min(deadline_ns, p2p->cut->cut_ns) : deadline_ns;
    return time_min(deadline_ns, stream_readers_deadline_ns(&p2p->readers));
}

void p2p_tick(struct p2p *p2p, uint64_t now_ns)
{
    p2p->now_ns = now_ns;
    stream_readers_expire(&p2p->readers, now_ns);
    incoming_end_cut(p2p, now_ns);
    if (now_ns >= p2p->pacer.next_ns || now_ns >= p2p->retry_ns) {
        p2p_wake(p2p);
    }
}

/* --- Communicators --- */

static void comm_release(struct p2p_comm *comm)
{
    struct p2p_pair *pair, *next;
    match_release(comm);
    HASH_ITER (hh, comm->pairs, pair, next) {
        HASH_DEL(comm->pairs, pair);
        if (pair->charged) {
            budget_release(comm->locals[comm->map->ranks.local_of_rank[pair->key.rank]].account,
                           BUDGET_OPERATIONS, P2P_PAIR_COST_BYTES);
        }
        free(pair);
    }
    for (uint32_t node = 0; comm->links != NULL && node < comm->map->ranks.node_count; node++) {
        link_release(comm->links[node]);
    }
    for (uint32_t i = 0; comm->locals != NULL && i < comm->map->ranks.local_count; i++) {
        budget_close(comm->locals[i].account);
    }
    p2p_result_drop(comm->last_result);
    staging_release(comm);
    free(comm->links);
    free(comm->locals);
    free(comm->gone);
    free(comm->pids);
    comm_map_release(comm->map);
    free(comm);
}

/* What the communicator takes without any message. */
static uint64_t comm_bytes(const struct comm_map *map)
{
    const struct p2p_comm *comm;
    uint64_t of_node = sizeof *comm->links + sizeof(struct p2p_link);
    return sizeof *comm + map->ranks.size * (sizeof *comm->gone + sizeof *comm->pids) +
           map->ranks.node_count * of_node + map->ranks.local_count * sizeof *comm->locals;
}

/* Returns false without memory. */
static bool comm_fill(struct p2p_comm *comm, struct budget_account *const *accounts)
{
    const struct coll_map *ranks = &comm->map->ranks;
    comm->gone = calloc(ranks->size, sizeof *comm->gone);
    comm->pids = calloc(ranks->size, sizeof *comm->pids);
    comm->locals = calloc(ranks->local_count, sizeof *comm->locals);
    comm->links = calloc(ranks->node_count, sizeof(struct p2p_link *));
    if (comm->gone == NULL || comm->pids == NULL || comm->locals == NULL || comm->links == NULL) {
        return false;
    }
    for (uint32_t local = 0; local < ranks->local_count; local++) {
        struct budget_account *account = accounts != NULL ? accounts[local] : NULL;
        comm->locals[local].account = account != NULL ? budget_ref(account) : NULL;
        comm->locals[local].rank = coll_map_local_rank(ranks, local);
    }
    for (uint32_t node = 0; node < ranks->node_count; node++) {
        if (node != ranks->node_index && (comm->links[node] = link_new(comm, node)) == NULL) {
            return false;
        }
    }
    return true;
}

enum status p2p_comm_new(struct p2p *p2p, struct comm_map *map, struct budget_account *const *accounts,
                         const struct p2p_comm_handler *handler, struct p2p_comm **out, struct error *error)
{
    enum status status = comm_map_charge(map, comm_bytes(map), error);
    if (status != STATUS_OK) {
        return status;
    }
    struct p2p_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", map->name);
    }
    comm->p2p = p2p;
    comm->map = comm_map_ref(map);
    comm->handler = *handler;
    uint32_t others = map->ranks.size > 1 ? map->ranks.size - 1 : 1;
    comm->credit_bytes = P2P_CREDITS_MAX_BYTES / others < P2P_CREDIT_MAX_BYTES
                             ? P2P_CREDITS_MAX_BYTES / others
                             : P2P_CREDIT_MAX_BYTES;
    bool filled = comm_fill(comm, accounts);
    if (filled) {
        HASH_ADD_KEYPTR(hh, p2p->comms, &map->comm_id, sizeof map->comm_id, comm);
    }
    if (!filled || !table_has(comm, hh)) {
        comm_release(comm);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", map->name);
    }
    comm->streams = (struct stream_group){.comm_id = map->comm_id,
                                          .peers = map->peers,
                                          .node_count = map->ranks.node_count,
                                          .node_index = map->ranks.node_index,
                                          .account = map->account};
    stream_readers_claim(&p2p->readers, &comm->streams);
    *out = comm;
    incoming_resume(comm);
    return STATUS_OK;
}

void p2p_comm_fail(struct p2p_comm *comm, const struct error *cause)
{
    if (!comm->failed) {
        comm->failed = true;
        comm->cause = *cause;
        comm->handler.failed(comm->handler.context, cause, comm->p2p->now_ns);
    }
}

void p2p_comm_abort(struct p2p_comm *comm, const struct error *cause)
{
    if (comm->aborted) {
        return;
    }
    comm->failed = true;
    comm->aborted = true;
    comm->cause = *cause;
    stream_readers_detach(&comm->p2p->readers, &comm->streams);
    for (uint32_t node = 0; node < comm->map->ranks.node_count; node++) {
        if (comm->links[node] != NULL) {
            link_reset(comm->links[node], true);
        }
    }
    p2p_comm_set_busy(comm); /* messages end in the next turns */
}

bool p2p_comm_idle(const struct p2p_comm *comm)
{
    return comm->count == 0;
}

void p2p_comm_free(struct p2p_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    stream_readers_detach(&comm->p2p->readers, &comm->streams);
    for (uint32_t node = 0; node < comm->map->ranks.node_count; node++) {
        if (comm->links[node] != NULL) {
            link_flush(comm->links[node]);
            link_reset(comm->links[node], false);
        }
    }
    comm->failed = true; /* no callback reports what is left */
    rounds_remove(&comm->p2p->rounds, &comm->turn);
    HASH_DEL(comm->p2p->comms, comm);
    comm_release(comm);
}

const char *p2p_node_name(const struct p2p_comm *comm, uint32_t rank)
{
    return comm->map->node_names[comm->map->node_of_rank[rank]];
}

uint64_t p2p_sent_count(const struct p2p_comm *comm, uint32_t node)
{
    return comm->links[node] != NULL ? comm->links[node]->sent_count : 0;
}

/* --- Pairs --- */

struct p2p_pair *pair_find(const struct p2p_comm *comm, uint32_t rank, uint32_t peer)
{
    const struct p2p_pair_key key = {.rank = rank, .peer = peer};
    struct p2p_pair *pair;
    HASH_FIND(hh, comm->pairs, &key, sizeof key, pair);
    return pair;
}

struct p2p_pair *pair_make(struct p2p_comm *comm, uint32_t rank, uint32_t peer, bool force,
                           struct error *error)
{
    struct p2p_pair *pair = pair_find(comm, rank, peer);
    if (pair != NULL) {
        return pair;
    }
    struct budget_account *account = comm->locals[comm->map->ranks.local_of_rank[rank]].account;
    bool charged = budget_charge(account, BUDGET_OPERATIONS, P2P_PAIR_COST_BYTES, error) == STATUS_OK;
    if (!charged && !force) {
        return NULL;
    }
    pair = calloc(1, sizeof *pair);
    if (pair != NULL) {
        pair->key = (struct p2p_pair_key){.rank = rank, .peer = peer};
        pair->charged = charged;
        HASH_ADD(hh, comm->pairs, key, sizeof pair->key, pair);
    }
    if (pair == NULL || !table_has(pair, hh)) {
        if (charged) {
            budget_release(account, BUDGET_OPERATIONS, P2P_PAIR_COST_BYTES);
        }
        free(pair);
        error_set(error, STATUS_NO_MEMORY, "no memory for a message");
        return NULL;
    }
    return pair;
}

static void pair_end_later(struct p2p_comm *comm, struct p2p_pair *pair)
{
    if (!pair->ending && pair->messages != NULL) {
        pair->ending = true;
        DL_APPEND2(comm->ending, pair, end_prev, end_next);
        p2p_comm_set_busy(comm);
    }
}

/* --- Ranks that leave --- */

/* Ends receives from any source of local ranks to which no other rank can send any more. */
static void end_any_source(struct p2p_comm *comm)
{
    for (uint32_t i = 0; i < comm->map->ranks.local_count; i++) {
        uint32_t rank = comm->locals[i].rank;
        struct p2p_pair *pair = pair_find(comm, rank, COMM_ANY_SOURCE_RANK);
        if (pair != NULL && comm->gone_count == comm->map->ranks.size - 1 && !comm->gone[rank]) {
            pair_end_later(comm, pair);
        }
    }
}

static void rank_is_gone(struct p2p_comm *comm, uint32_t rank)
{
    if (comm->gone[rank]) {
        return;
    }
    comm->gone[rank] = true;
    comm->gone_count++;
    for (uint32_t i = 0; i < comm->map->ranks.local_count; i++) {
        struct p2p_pair *pair = pair_find(comm, comm->locals[i].rank, rank);
        if (pair != NULL) {
            pair_end_later(comm, pair);
        }
    }
    end_any_source(comm);
}

void link_departures(struct p2p_link *link, uint64_t came_count)
{
    struct p2p_departure *departure, *next;
    DL_FOREACH_SAFE(link->departures, departure, next)
    {
        if (came_count >= departure->sent_count) {
            DL_DELETE(link->departures, departure);
            rank_is_gone(link->comm, departure->rank);
            free(departure);
        }
    }
}

void p2p_node_lost(struct p2p_comm *comm, uint32_t node, uint64_t now_ns)
{
    comm->p2p->now_ns = now_ns;
    if (comm->links[node] != NULL && !comm->failed) {
        link_departures(comm->links[node], UINT64_MAX);
    }
}

void p2p_rank_left(struct p2p_comm *comm, uint32_t rank, int32_t pid, uint64_t sent_count, uint64_t now_ns)
{
    struct p2p_link *link = comm->links[comm->map->node_of_rank[rank]];
    comm->p2p->now_ns = now_ns;
    if (link == NULL || comm->failed || comm->gone[rank]) {
        return;
    }
    comm->pids[rank] = pid;
    if (link->came_count >= sent_count) {
        rank_is_gone(comm, rank);
        return;
    }
    struct p2p_departure *departure = calloc(1, sizeof *departure);
    if (departure == NULL) {
        p2p_comm_fail(comm, &p2p_no_memory);
        return;
    }
    departure->rank = rank;
    departure->sent_count = sent_count;
    DL_APPEND(link->departures, departure);
}

void p2p_rank_leaves(struct p2p_comm *comm, uint32_t rank, int32_t pid, uint64_t now_ns)
{
    struct p2p_pair *pair, *next;
    struct p2p_local *local = &comm->locals[comm->map->ranks.local_of_rank[rank]];
    struct error left;
    comm->p2p->now_ns = now_ns;
    if (comm->failed || local->has_left) {
        return;
    }
    local->has_left = true;
    comm->pids[rank] = pid;
    message_set_left(comm, &left, rank);
    HASH_ITER (hh, comm->pairs, pair, next) {
        while (pair->key.rank == rank && pair->messages != NULL) {
            message_give_up(pair->messages, &left, true);
        }
    }
    for (struct p2p_arrival *arrival; (arrival = local->arrivals) != NULL;) {
        match_remove_arrival(comm, arrival);
        if (arrival->send != NULL) {
            arrival->send->arrival = NULL;
            message_end(arrival->send, &left);
        } else if (!arrival->eager) {
            link_answer(arrival, MESSAGE_REFUSE, STATUS_RANK_LOST, (enum dtype)arrival->dtype, 0);
        }
        arrival_free(arrival);
    }
    rank_is_gone(comm, rank);
}
