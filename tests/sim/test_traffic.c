#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/cases.h"
#include "tests/sim/traffic.h"

/*
 * Everything at once, on a few nodes: collectives, some of them grouped, messages, and deadlines that pass.
 * One rank may leave, die, lose its node, or post nothing more. What must hold: every call ends; a call that
 * ended well has the right result; calls that no deadline and no departure affected end well; all memory and
 * budgets are given back.
 */
#define CASES_DEFAULT 300
#define TIMEOUT_MS UINT64_C(8000) /* long enough to notice a node that died silently */
#define SPAN_NS (60 * TIME_S)
#define ELEMENTS_MAX 40001

static const char *const departure_texts[DEPARTURES] = {
    "nobody departs", "a rank leaves", "a rank dies", "a host dies", "a daemon dies", "a rank falls silent"};

static const char *const field_names[CASE_FIELDS] = {
    "seed",          "collectives",    "messages", "nodes", "ranks", "departure", "departure_permille",
    "short_percent", "lonely_percent", "grouped",  "slice", "delay", "jitter",    "loss",
    "rails",         "workers",        "datagrams"};

static void case_draw(uint64_t seed, uint64_t number, uint64_t *fields)
{
    static const uint64_t slices[] = {4096, 8192, 65536};
    static const uint64_t delays_us[] = {20, 20, 300, 1500};
    struct random random;
    random_seed(&random, seed * 0x9e3779b97f4a7c15u + number);
    fields[CASE_SEED] = random_u64(&random) % 1000000;
    fields[CASE_COLLECTIVES] = random_below(&random, CASE_COLLECTIVES_MAX + 1);
    fields[CASE_MESSAGES] = random_below(&random, CASE_MESSAGES_MAX + 1);
    fields[CASE_NODES] = 1 + random_below(&random, CASE_NODES_MAX);
    fields[CASE_RANKS] = fields[CASE_NODES] + random_below(&random, CASE_RANKS_MAX - fields[CASE_NODES] + 1);
    fields[CASE_DEPARTURE] = random_below(&random, 2) * random_below(&random, DEPARTURES);
    fields[CASE_DEPARTURE_PERMILLE] = random_below(&random, 1000);
    fields[CASE_SHORT_PERCENT] = random_below(&random, 3) == 0 ? random_below(&random, 40) : 0;
    fields[CASE_LONELY_PERCENT] = random_below(&random, 3) == 0 ? random_below(&random, 20) : 0;
    fields[CASE_GROUPED] = random_below(&random, 2);
    fields[CASE_SLICE_BYTES] = slices[random_below(&random, 3)];
    fields[CASE_DELAY_US] = delays_us[random_below(&random, 4)];
    fields[CASE_JITTER_US] = random_below(&random, 2) * random_below(&random, 500);
    fields[CASE_DATAGRAMS] = fields[CASE_NODES] > 1 && random_below(&random, 8) == 0;
    fields[CASE_LOSS_PERMILLE] = fields[CASE_DATAGRAMS] * random_below(&random, 20);
    fields[CASE_RAILS] = random_below(&random, 2) * random_below(&random, CLUSTER_RAILS_MAX);
    fields[CASE_WORKERS] = random_below(&random, 2) * random_below(&random, CLUSTER_WORKERS_MAX + 1);
}

static bool case_is_valid(const uint64_t *fields)
{
    return fields[CASE_COLLECTIVES] <= CASE_COLLECTIVES_MAX && fields[CASE_MESSAGES] <= CASE_MESSAGES_MAX &&
           fields[CASE_NODES] >= 1 && fields[CASE_NODES] <= CASE_NODES_MAX &&
           fields[CASE_RANKS] >= fields[CASE_NODES] && fields[CASE_RANKS] <= CASE_RANKS_MAX &&
           fields[CASE_DEPARTURE] < DEPARTURES && fields[CASE_SLICE_BYTES] >= 4096 &&
           fields[CASE_RAILS] < CLUSTER_RAILS_MAX && fields[CASE_WORKERS] <= CLUSTER_WORKERS_MAX &&
           fields[CASE_DATAGRAMS] <= 1;
}

static void case_describe(const uint64_t *fields, char *text, size_t size)
{
    (void)snprintf(text, size, "%llu collectives and %llu messages on %llu nodes; %s",
                   (unsigned long long)fields[CASE_COLLECTIVES], (unsigned long long)fields[CASE_MESSAGES],
                   (unsigned long long)fields[CASE_NODES], departure_texts[fields[CASE_DEPARTURE]]);
}

/* --- What ranks post --- */

static uint64_t draw_timeout_ms(struct world *world)
{
    bool is_short = random_below(&world->random, 100) < world->fields[CASE_SHORT_PERCENT];
    return is_short ? 1 + random_below(&world->random, 8) : 0;
}

static void draw_collective(struct world *world, struct sim_call *call)
{
    static const enum dtype dtypes[] = {DTYPE_U8, DTYPE_I32, DTYPE_F32, DTYPE_F64};
    static const uint64_t counts[] = {0, 1, 3, 7, 64, 1000, 1025, 4097, 20011};
    struct random *random = &world->random;
    do {
        call->kind = (enum op_kind)random_below(random, OP_KIND_COUNT);
    } while (op_kind_is_message(call->kind));
    call->dtype = dtypes[random_below(random, 4)];
    call->reduce = op_kind_reduces(call->kind) && random_below(random, 2) == 0 ? REDUCE_MAX : REDUCE_SUM;
    call->count = counts[random_below(random, op_kind_has_blocks(call->kind) ? 8 : 9)];
    call->root = (uint32_t)random_below(random, world->ranks);
    call->in_place = random_below(random, 3) == 0;
    call->has_layouts = random_below(random, 4) == 0;
    call->layout_seed = random_u64(random);
    call->timeout_ms = draw_timeout_ms(world);
}

/* Draws collectives. Some of one kind form a group, which runs as one operation. */
static void draw_collectives(struct world *world)
{
    uint32_t count = (uint32_t)world->fields[CASE_COLLECTIVES];
    for (uint32_t i = 0; i < count;) {
        uint32_t left = count - i, ops = 1;
        draw_collective(world, &world->calls[i]);
        if (world->fields[CASE_GROUPED] != 0 && left > 1 && random_below(&world->random, 3) == 0) {
            ops = 2 + (uint32_t)random_below(&world->random, left < 4 ? left - 1 : 3);
            static const enum op_kind kinds[] = {OP_KIND_ALL_REDUCE, OP_KIND_ALL_GATHER,
                                                 OP_KIND_REDUCE_SCATTER};
            world->calls[i].kind = kinds[random_below(&world->random, 3)];
            world->calls[i].reduce =
                op_kind_reduces(world->calls[i].kind) ? world->calls[i].reduce : REDUCE_SUM;
            world->calls[i].has_layouts = false;
        }
        for (uint32_t k = 0; k < ops; k++) {
            struct sim_call *call = &world->calls[i + k];
            *call = world->calls[i];
            call->count = k == 0 ? call->count : random_below(&world->random, 3000);
            call->bucket_ops = ops;
            call->bucket_index = k;
        }
        i += ops;
    }
}

static void draw_message(struct world *world)
{
    static const uint64_t counts[] = {0, 1, 7, 333, 16384, 16385, ELEMENTS_MAX};
    static const enum dtype dtype_of_tag[TAGS] = {DTYPE_U8, DTYPE_I32, DTYPE_U8, DTYPE_F64};
    struct random *random = &world->random;
    uint32_t tag = (uint32_t)random_below(random, TAGS);
    struct sim_message_call send = {.sends = true,
                                    .rank = (uint32_t)random_below(random, world->ranks),
                                    .peer = (uint32_t)random_below(random, world->ranks),
                                    .tag = tag,
                                    .dtype = dtype_of_tag[tag],
                                    .count = counts[random_below(random, 7)],
                                    .timeout_ms = draw_timeout_ms(world)};
    bool any = tag == TAG_ANY_SOURCE || (tag == TAG_EITHER && random_below(random, 2) == 0);
    struct sim_message_call receive = {.rank = send.peer,
                                       .peer = any ? COMM_ANY_SOURCE_RANK : send.rank,
                                       .tag = tag,
                                       .dtype = send.dtype,
                                       .count = ELEMENTS_MAX,
                                       .timeout_ms = draw_timeout_ms(world)};
    if (tag < TAG_ANY_SOURCE && random_below(random, 20) == 0) {
        receive.count = random_below(random, 400); /* this may be too little room */
    }
    bool lonely = random_below(random, 100) < world->fields[CASE_LONELY_PERCENT];
    bool is_send = random_below(random, 2) == 0;
    if (!lonely || is_send) {
        world->message_calls[world->message_count++] = send;
    }
    if (!lonely || !is_send) {
        world->message_calls[world->message_count++] = receive;
    }
}

/* Draws each rank's steps: the collectives in the common order, messages anywhere between them. */
static void draw_steps(struct world *world)
{
    uint32_t collectives = (uint32_t)world->fields[CASE_COLLECTIVES];
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        struct step *steps = world->steps[rank];
        uint32_t count = 0;
        for (uint32_t i = 0; i < collectives; i++) {
            bool joined = world->calls[i].bucket_index + 1 < world->calls[i].bucket_ops;
            steps[count++] = (struct step){.joined = joined, .index = i};
        }
        for (uint32_t i = 0; i < world->message_count; i++) {
            if (world->message_calls[i].rank == rank) {
                uint32_t at = (uint32_t)random_below(&world->random, count + 1);
                memmove(&steps[at + 1], &steps[at], (count - at) * sizeof steps[0]);
                steps[at] = (struct step){.is_message = true,
                                          .joined = world->fields[CASE_GROUPED] != 0 &&
                                                    random_below(&world->random, 3) == 0,
                                          .index = i};
                count++;
            }
        }
        world->step_count[rank] = count;
    }
}

/* --- A run --- */

static void rank_departs(struct world *world)
{
    enum departure departure = (enum departure)world->fields[CASE_DEPARTURE];
    uint32_t rank = world->departed = (uint32_t)random_below(&world->random, world->ranks);
    struct cluster_node *node = world->comm->ranks[rank].node;
    switch (departure) {
    case DEPARTURE_NONE:
        world->departed = CASE_RANKS_MAX;
        return;
    case DEPARTURE_SILENT:
        world->step_at[rank] = world->step_count[rank];
        return;
    case DEPARTURE_LEAVES:
    case DEPARTURE_DIES:
        world->gone[rank] = true;
        sim_comm_leave(world->comm, rank,
                       departure == DEPARTURE_LEAVES ? COMMS_LEAVE_ORDERLY : COMMS_LEAVE_LOST);
        return;
    case DEPARTURE_HOST_DIES:
    case DEPARTURE_DAEMON_DIES:
        for (uint32_t i = 0; i < world->ranks; i++) {
            world->gone[i] = world->comm->ranks[i].node == node;
        }
        (departure == DEPARTURE_HOST_DIES ? cluster_kill : cluster_crash)(world->cluster, node->index);
        sim_comm_forget_node(world->comm, node->index);
        cluster_bury(world->cluster, node->index);
        return;
    case DEPARTURES:
        return;
    }
}

static void take_step(struct world *world, uint32_t rank)
{
    const struct step *step;
    do {
        step = &world->steps[rank][world->step_at[rank]++];
        if (world->comm->ranks[rank].member == NULL) {
            continue;
        }
        if (step->is_message) {
            (void)sim_message_post(world->comm, &world->message_calls[step->index]);
        } else {
            sim_op_post(world->ops[step->index], rank);
        }
    } while (step->joined && world->step_at[rank] < world->step_count[rank]);
}

static void pause_at_random(struct world *world)
{
    struct random *random = &world->random;
    uint64_t draw = random_below(random, 40);
    if (draw < 12) {
        cluster_run(world->cluster, random_below(random, draw == 0 ? 4 * TIME_MS : 200 * TIME_US));
    }
}

static uint32_t steps_left(const struct world *world)
{
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        left += world->step_count[rank] - world->step_at[rank];
    }
    return left;
}

static void take_steps(struct world *world)
{
    uint32_t left = steps_left(world);
    uint32_t departs_at = left - left * (uint32_t)(world->fields[CASE_DEPARTURE_PERMILLE] % 1000) / 1000;
    for (bool over = false; left > 0;) {
        if (!over && left <= departs_at) {
            over = true;
            rank_departs(world);
        }
        uint32_t rank = (uint32_t)random_below(&world->random, world->ranks);
        if (world->step_at[rank] < world->step_count[rank]) {
            take_step(world, rank);
            pause_at_random(world);
        }
        left = steps_left(world);
    }
}

/* --- The end --- */

static bool all_memory_is_back(const void *context)
{
    return !sim_comm_memory_is_used(((const struct world *)context)->comm);
}

static bool budgets_are_back(const void *context)
{
    const struct world *world = context;
    for (uint32_t i = 0; i < world->fields[CASE_NODES]; i++) {
        struct budget_info info;
        budget_account_info(world->accounts[i], &info);
        for (uint32_t kind = 0; kind < BUDGET_KINDS; kind++) {
            if (info.used[kind] != 0) {
                return false;
            }
        }
    }
    return true;
}

static void world_start(struct world *world, const uint64_t *fields)
{
    uint32_t node_of_rank[CASE_RANKS_MAX];
    memset(world, 0, sizeof *world);
    world->fields = fields;
    world->ranks = (uint32_t)fields[CASE_RANKS];
    world->departed = CASE_RANKS_MAX;
    random_seed(&world->random, fields[CASE_SEED]);
    struct network_conditions conditions = {.loss = (double)fields[CASE_LOSS_PERMILLE] / 1000,
                                            .delay_ns = fields[CASE_DELAY_US] * TIME_US,
                                            .jitter_ns = fields[CASE_JITTER_US] * TIME_US,
                                            .packet_bytes = 4096};
    world->cluster = cluster_new(&(struct cluster_options){.seed = fields[CASE_SEED],
                                                           .node_count = (uint32_t)fields[CASE_NODES],
                                                           .conditions = conditions,
                                                           .rail_count = 1 + (uint32_t)fields[CASE_RAILS],
                                                           .worker_count = (uint32_t)fields[CASE_WORKERS],
                                                           .datagrams = fields[CASE_DATAGRAMS] != 0});
    for (uint32_t i = 0; i < world->ranks; i++) {
        node_of_rank[i] =
            i < fields[CASE_NODES] ? i : (uint32_t)random_below(&world->random, fields[CASE_NODES]);
    }
    world->comm = sim_comm_new(world->cluster, "case", world->ranks, node_of_rank);
    for (uint32_t i = 0; i < fields[CASE_NODES]; i++) {
        assert_int_equal(budget_new(NULL, &world->budgets[i], NULL), STATUS_OK);
        assert_int_equal(budget_open(world->budgets[i], 1000, NULL, &world->accounts[i], NULL), STATUS_OK);
    }
    for (uint32_t i = 0; i < world->ranks; i++) {
        world->comm->ranks[i].client.account = world->accounts[node_of_rank[i]];
    }
    sim_comm_form(world->comm,
                  &(struct sim_options){
                      .slice_bytes = fields[CASE_SLICE_BYTES], .op_timeout_ms = TIMEOUT_MS, .algorithms = ""},
                  SPAN_NS);
}

static void world_stop(struct world *world)
{
    for (uint32_t i = 0; i < world->ranks; i++) {
        sim_comm_leave(world->comm, i, COMMS_LEAVE_ORDERLY);
    }
    assert_true(cluster_run_until(world->cluster, all_memory_is_back, world, SPAN_NS));
    assert_true(cluster_run_until(world->cluster, budgets_are_back, world, SPAN_NS));
    sim_comm_free(world->comm);
    cluster_free(world->cluster);
    for (uint32_t i = 0; i < world->fields[CASE_NODES]; i++) {
        budget_close(world->accounts[i]);
        budget_free(world->budgets[i]);
    }
}

static void case_run(const uint64_t *fields)
{
    static struct world world;
    world_start(&world, fields);
    draw_collectives(&world);
    for (uint32_t i = 0; i < fields[CASE_MESSAGES]; i++) {
        draw_message(&world);
    }
    draw_steps(&world);
    for (uint32_t i = 0; i < fields[CASE_COLLECTIVES]; i++) {
        world.ops[i] = sim_op_new(world.comm, &world.calls[i]);
    }
    take_steps(&world);
    (void)cluster_run_until(world.cluster, sim_comm_idle, world.comm, SPAN_NS);
    cluster_run(world.cluster, TIME_MS); /* ranks are told of the communicator's end after their calls' */
    traffic_check(&world);
    world_stop(&world);
}

int main(void)
{
    return cases_main(&(struct cases){.count = CASES_DEFAULT,
                                      .which = 101,
                                      .field_count = CASE_FIELDS,
                                      .first_shrunk = CASE_COLLECTIVES,
                                      .field_names = field_names,
                                      .draw = case_draw,
                                      .is_valid = case_is_valid,
                                      .run = case_run,
                                      .describe = case_describe});
}
