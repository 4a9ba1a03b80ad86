#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/base/random.h"
#include "daemon/comm/agreement.h"

/*
 * Agreements of up to 12 nodes on a network in virtual time, under seeded crashes and cuts. Links deliver in
 * order, with random delays, until they are cut. Each end notices a cut, or a crash of the other end, at a
 * time of its own within the patience. A crash that was noticed is proven or not, at random.
 *
 * What must hold in every run:
 *   - every living node decides in time, and none gives up alone;
 *   - only one of all decisions lets its nodes go on, and it is the same on all nodes that go on;
 *   - a node whose ranks go on has ended every operation up to `last`.
 */
#define NODES_MAX 12
#define RANKS_OF_NODE 2
#define RUNS 400
#define MESSAGES_MAX 20000
#define PATIENCE_NS (4 * TIME_S)
#define BOUND_NS (2 * PATIENCE_NS + TIME_S)
#define DELAY_NS (5 * TIME_MS)

struct world;

struct host {
    struct world *world;
    struct agreement *agreement;
    uint32_t index;
    bool alive, begun;
    uint64_t finished;
    uint64_t begins_ns; /* when it has a reason of its own; or TIME_NEVER */
    bool decided;
    uint64_t decided_ns;
    bool gave_up;
    uint8_t dead[NODES_MAX / 8 + 1]; /* proven */
};

struct packet {
    bool used;
    uint64_t at_ns, order;
    uint32_t from, to;
    struct agreement_message message;
    struct agreement_value value;
};

struct world {
    struct random random;
    uint32_t count;
    uint64_t now_ns;
    uint64_t order;
    struct host hosts[NODES_MAX];
    bool cut[NODES_MAX][NODES_MAX];
    uint64_t notice_ns[NODES_MAX]
                      [NODES_MAX]; /* when the first learns that the second is lost; or TIME_NEVER */
    bool proven[NODES_MAX];
    uint64_t last_ns[NODES_MAX][NODES_MAX]; /* of the last packet on that way: they stay in order */
    struct packet packets[MESSAGES_MAX];
    uint32_t packet_count;
    uint64_t crash_at_send[NODES_MAX]; /* crashes after this many messages; 0: not */
    uint64_t sent[NODES_MAX];
    bool reached[NODES_MAX];
};

static void crash(struct world *world, uint32_t node, bool proven)
{
    world->hosts[node].alive = false;
    world->proven[node] = proven;
    for (uint32_t i = 0; i < world->count; i++) {
        world->cut[i][node] = world->cut[node][i] = true;
        uint64_t at_ns = world->now_ns + 1 + random_below(&world->random, PATIENCE_NS);
        world->notice_ns[i][node] = time_min(world->notice_ns[i][node], at_ns);
    }
}

/* Cuts one direction or both. Both ends lose the link, each at a time of its own. */
static void cut(struct world *world, uint32_t a, uint32_t b, bool both)
{
    world->cut[a][b] = true;
    world->cut[b][a] = world->cut[b][a] || both;
    uint64_t noticed_ns = world->now_ns + 1 + random_below(&world->random, PATIENCE_NS);
    world->notice_ns[a][b] = time_min(world->notice_ns[a][b], noticed_ns);
    /* the end that notices first closes the connection; the other end is told, or notices the silence itself
     */
    world->notice_ns[b][a] =
        time_min(world->notice_ns[b][a], noticed_ns + random_below(&world->random, TIME_S));
}

static void on_send(void *context, uint32_t node, const struct agreement_message *message)
{
    struct host *host = context;
    struct world *world = host->world;
    assert_true(node < world->count);
    world->sent[host->index]++;
    if (host->alive && world->sent[host->index] == world->crash_at_send[host->index]) {
        crash(world, host->index, random_below(&world->random, 2) == 0);
    }
    if (!host->alive || world->cut[host->index][node]) {
        return;
    }
    assert_true(world->packet_count < MESSAGES_MAX);
    struct packet *packet = &world->packets[world->packet_count++];
    uint64_t at_ns = world->now_ns + 1 + random_below(&world->random, DELAY_NS);
    uint64_t *last_ns = &world->last_ns[host->index][node];
    *last_ns = at_ns > *last_ns ? at_ns : *last_ns + 1;
    *packet = (struct packet){.used = true,
                              .at_ns = *last_ns,
                              .order = ++world->order,
                              .from = host->index,
                              .to = node,
                              .message = *message};
    if (message->value != NULL) {
        assert_true(agreement_value_init(&packet->value, world->count * RANKS_OF_NODE, world->count));
        uint8_t *lost = packet->value.lost, *down = packet->value.down;
        memcpy(lost, message->value->lost, agreement_bits_bytes(world->count * RANKS_OF_NODE));
        memcpy(down, message->value->down, agreement_bits_bytes(world->count));
        packet->value = *message->value;
        packet->value.lost = lost;
        packet->value.down = down;
        packet->message.value = &packet->value;
    }
}

static void begin(struct host *host)
{
    struct agreement_value part;
    host->begun = true;
    assert_true(agreement_value_init(&part, host->world->count * RANKS_OF_NODE, host->world->count));
    part.last = host->finished;
    part.generation = 1 + host->index % 3;
    part.cause_weight = 1 + host->index % 2;
    error_set(&part.cause, STATUS_NODE_LOST, "as node %u sees it", host->index);
    assert_int_equal(agreement_begin(host->agreement, &part, host->world->now_ns), STATUS_OK);
    agreement_value_free(&part);
}

static void on_wanted(void *context, const struct agreement_value *value, uint64_t now_ns)
{
    struct host *host = context;
    assert_non_null(value);
    if (random_below(&host->world->random, 3) == 0) { /* it first lets operations end */
        host->finished++;
        host->begins_ns =
            time_min(host->begins_ns, now_ns + random_below(&host->world->random, 50 * TIME_MS));
    } else {
        begin(host);
    }
}

static void on_conclude(void *context, struct agreement_value *value)
{
    struct host *host = context;
    for (uint32_t i = 0; i < host->world->count; i++) {
        if (agreement_bit(value->down, i)) {
            agreement_bit_set(value->lost, RANKS_OF_NODE * i);
            agreement_bit_set(value->lost, RANKS_OF_NODE * i + 1);
        }
    }
    value->minority = !agreement_may_go_on(value->down, host->dead, host->world->count);
}

static void on_decided(void *context, const struct agreement_value *value, uint64_t now_ns)
{
    struct host *host = context;
    assert_false(host->decided);
    assert_ptr_equal(value, agreement_decision(host->agreement));
    host->decided = true;
    host->decided_ns = now_ns;
}

static void on_gave_up(void *context, uint64_t now_ns)
{
    struct host *host = context;
    (void)now_ns;
    host->gave_up = true;
}

static struct world *world_new(uint64_t seed, uint32_t count)
{
    struct world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    random_seed(&world->random, seed);
    world->count = count;
    world->now_ns = TIME_S;
    for (uint32_t i = 0; i < count; i++) {
        struct host *host = &world->hosts[i];
        struct agreement_options options = {.node_count = count,
                                            .rank_count = count * RANKS_OF_NODE,
                                            .own = i,
                                            .context = host,
                                            .send = on_send,
                                            .wanted = on_wanted,
                                            .conclude = on_conclude,
                                            .decided = on_decided,
                                            .gave_up = on_gave_up};
        *host = (struct host){
            .world = world, .index = i, .alive = true, .begins_ns = TIME_NEVER, .finished = 10 + i % 2};
        host->agreement = agreement_new(&options);
        assert_non_null(host->agreement);
        for (uint32_t j = 0; j < count; j++) {
            world->notice_ns[i][j] = TIME_NEVER;
        }
    }
    return world;
}

static void world_free(struct world *world)
{
    for (uint32_t i = 0; i < world->count; i++) {
        agreement_free(world->hosts[i].agreement);
    }
    for (uint32_t i = 0; i < world->packet_count; i++) {
        agreement_value_free(&world->packets[i].value);
    }
    free(world);
}

static void notice(struct host *host, uint32_t node)
{
    struct world *world = host->world;
    world->notice_ns[host->index][node] = TIME_NEVER;
    world->cut[host->index][node] = world->cut[node][host->index] = true; /* it closes the connection */
    if (world->proven[node] && !world->hosts[node].alive) {
        agreement_bit_set(host->dead, node);
    }
    agreement_node_down(host->agreement, node, world->now_ns);
    if (!host->begun && !host->decided) {
        begin(host); /* a lost node is a reason */
    }
}

static void host_step(struct host *host)
{
    struct world *world = host->world;
    for (uint32_t i = 0; i < world->count && host->alive; i++) {
        if (i != host->index && world->notice_ns[host->index][i] <= world->now_ns) {
            notice(host, i);
        }
    }
    if (host->alive && host->begins_ns <= world->now_ns) {
        host->begins_ns = TIME_NEVER;
        if (!host->decided) {
            begin(host);
        }
    }
    if (host->alive && agreement_deadline_ns(host->agreement) <= world->now_ns) {
        agreement_tick(host->agreement, world->now_ns);
    }
}

/* The next packet that is due; null: none before `until_ns`. */
static struct packet *packet_next(struct world *world, uint64_t until_ns)
{
    struct packet *next = NULL;
    for (uint32_t i = 0; i < world->packet_count; i++) {
        struct packet *packet = &world->packets[i];
        if (packet->used && packet->at_ns <= until_ns &&
            (next == NULL || packet->at_ns < next->at_ns ||
             (packet->at_ns == next->at_ns && packet->order < next->order))) {
            next = packet;
        }
    }
    return next;
}

static uint64_t hosts_next_ns(const struct world *world)
{
    uint64_t next_ns = TIME_NEVER;
    for (uint32_t i = 0; i < world->count; i++) {
        const struct host *host = &world->hosts[i];
        for (uint32_t j = 0; host->alive && j < world->count; j++) {
            next_ns = i == j ? next_ns : time_min(next_ns, world->notice_ns[i][j]);
        }
        if (host->alive) {
            next_ns = time_min(next_ns, time_min(host->begins_ns, agreement_deadline_ns(host->agreement)));
        }
    }
    return next_ns;
}

static void world_run(struct world *world, uint64_t until_ns)
{
    for (;;) {
        uint64_t hosts_ns = hosts_next_ns(world);
        struct packet *packet = packet_next(world, time_min(hosts_ns, until_ns));
        if (packet == NULL && hosts_ns > until_ns) {
            world->now_ns = until_ns;
            return;
        }
        uint64_t at_ns = packet != NULL ? packet->at_ns : hosts_ns;
        world->now_ns = at_ns > world->now_ns ? at_ns : world->now_ns;
        if (packet != NULL) {
            struct host *to = &world->hosts[packet->to];
            packet->used = false;
            if (to->alive && !world->cut[packet->from][packet->to]) {
                agreement_received(to->agreement, packet->from, &packet->message, world->now_ns);
            }
        }
        for (uint32_t i = 0; i < world->count; i++) {
            host_step(&world->hosts[i]);
        }
    }
}

static void assert_same(const struct world *world, const struct agreement_value *a,
                        const struct agreement_value *b)
{
    assert_string_equal(a->cause.text, b->cause.text);
    assert_int_equal(a->cause.status, b->cause.status);
    assert_int_equal(a->last, b->last);
    assert_int_equal(a->generation, b->generation);
    assert_memory_equal(a->lost, b->lost, agreement_bits_bytes(world->count * RANKS_OF_NODE));
    assert_memory_equal(a->down, b->down, agreement_bits_bytes(world->count));
}

/* Checks what must hold. Returns how many nodes go on. */
static uint32_t world_check(const struct world *world, uint64_t by_ns)
{
    const struct agreement_value *agreed = NULL;
    uint32_t go_on = 0;
    for (uint32_t i = 0; i < world->count; i++) {
        const struct host *host = &world->hosts[i];
        const struct agreement_value *value = agreement_decision(host->agreement);
        if (host->alive) {
            assert_false(host->gave_up);
            assert_true(host->decided);
            assert_true(host->decided_ns <= by_ns);
        }
        if (!host->decided || value->minority) {
            continue; /* the decision of a node that died meanwhile also counts */
        }
        agreed = agreed == NULL ? value : agreed;
        assert_same(world, agreed, value);
        if (!agreement_bit(value->down, i)) {
            assert_true(value->last <= host->finished);
            go_on += host->alive;
        }
    }
    return go_on;
}

static uint32_t run_and_check(struct world *world)
{
    uint64_t by_ns = world->now_ns + BOUND_NS;
    world_run(world, by_ns + AGREEMENT_LIMIT_NS + TIME_S);
    return world_check(world, by_ns);
}

/* --- Scenarios; the numbers are those of the sheet on membership --- */

static void test_one_death(void **state) /* 1 */
{
    (void)state;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t count = 2 + run % (NODES_MAX - 1);
        struct world *world = world_new(run, count);
        uint32_t victim = (uint32_t)random_below(&world->random, count);
        crash(world, victim, true);
        assert_int_equal(run_and_check(world), count - 1);
        world_free(world);
    }
}

/* A death that nobody can prove: of two nodes, only the lower one goes on. */
static void test_one_silent_node(void **state)
{
    (void)state;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t count = 2 + run % (NODES_MAX - 1);
        struct world *world = world_new(1000 + run, count);
        uint32_t victim = (uint32_t)random_below(&world->random, count);
        crash(world, victim, false);
        assert_int_equal(run_and_check(world), count == 2 && victim == 0 ? 0 : count - 1);
        world_free(world);
    }
}

/* The leader dies after any number of its messages, also between those that commit. */
static void test_leader_dies_committing(void **state) /* 3 */
{
    (void)state;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t count = 3 + run % (NODES_MAX - 2);
        struct world *world = world_new(2000 + run, count);
        world->crash_at_send[0] = 1 + random_below(&world->random, 3 * count);
        crash(world, count - 1, true);
        (void)run_and_check(world);
        world_free(world);
    }
}

static void test_even_split(void **state) /* 5 */
{
    (void)state;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t count = 2 * (1 + run % (NODES_MAX / 2));
        struct world *world = world_new(3000 + run, count);
        uint32_t side = 0;
        bool first[NODES_MAX] = {false};
        for (uint32_t i = 0; i < count; i++) { /* half of the nodes, any of them */
            first[i] =
                side < count / 2 && (random_below(&world->random, 2) == 0 || count - i <= count / 2 - side);
            side += first[i];
        }
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = i + 1; j < count; j++) {
                if (first[i] != first[j]) {
                    cut(world, i, j, true);
                }
            }
        }
        assert_int_equal(run_and_check(world), count / 2);
        for (uint32_t i = 0; i < count; i++) {
            assert_int_equal(agreement_decision(world->hosts[i].agreement)->minority, first[i] != first[0]);
        }
        world_free(world);
    }
}

/* One way between two nodes is cut: all others go on, and one of the two. */
static void test_one_way_cut(void **state) /* 6 */
{
    (void)state;
    for (uint32_t run = 0; run < RUNS; run++) {
        uint32_t count = 3 + run % (NODES_MAX - 2);
        struct world *world = world_new(4000 + run, count);
        uint32_t a = (uint32_t)random_below(&world->random, count);
        uint32_t b = (a + 1 + (uint32_t)random_below(&world->random, count - 1)) % count;
        cut(world, a, b, false);
        assert_int_equal(run_and_check(world), count - 1);
        const struct agreement_value *value = agreement_decision(world->hosts[a].agreement);
        assert_int_not_equal(agreement_bit(value->down, a), agreement_bit(value->down, b));
        world_free(world);
    }
}

/* Up to three deaths at any time, leaders among them, and a cut; nodes have ended different operations. */
static void test_deaths_while_agreeing(void **state) /* 14 */
{
    (void)state;
    for (uint32_t run = 0; run < 4 * RUNS; run++) {
        uint32_t count = 4 + run % (NODES_MAX - 3);
        struct world *world = world_new(5000 + run, count);
        for (uint32_t i = 0; i < count; i++) {
            world->hosts[i].finished = 10 + random_below(&world->random, 5);
        }
        for (uint32_t i = 0; i < 2; i++) {
            world->crash_at_send[random_below(&world->random, count)] =
                1 + random_below(&world->random, 4 * count);
        }
        if (run % 2 == 0) {
            cut(world, (uint32_t)random_below(&world->random, count / 2),
                count / 2 + (uint32_t)random_below(&world->random, count / 2), run % 4 == 0);
        }
        crash(world, (uint32_t)random_below(&world->random, count), run % 3 != 0);
        uint64_t by_ns = world->now_ns + 4 * BOUND_NS; /* one death after the other may delay it */
        world_run(world, by_ns);
        (void)world_check(world, by_ns);
        world_free(world);
    }
}

/* A node never answers, although its link is up. The others do not wait for ever. */
static void test_limit(void **state)
{
    (void)state;
    struct world *world = world_new(1, 3);
    world->cut[0][2] = world->cut[2][0] = true; /* and nobody notices */
    world->hosts[0].begins_ns = world->now_ns;
    uint64_t begin_ns = world->now_ns;
    world_run(world, begin_ns + AGREEMENT_LIMIT_NS - 1);
    assert_false(world->hosts[0].gave_up || world->hosts[0].decided);
    world_run(world, begin_ns + 3 * AGREEMENT_LIMIT_NS);
    assert_true(world->hosts[0].gave_up);
    assert_false(world->hosts[0].decided);
    assert_true(world->hosts[1].decided && world->hosts[2].decided); /* they go on without it */
    assert_same(world, agreement_decision(world->hosts[1].agreement),
                agreement_decision(world->hosts[2].agreement));
    world_free(world);
}

static void test_who_may_go_on(void **state)
{
    (void)state;
    const struct {
        uint32_t nodes, down, dead;
        bool goes_on;
    } cases[] = {
        {2, 0x2, 0x0, true},  {2, 0x1, 0x0, false}, {2, 0x1, 0x1, true},  {3, 0x1, 0x0, true},
        {3, 0x6, 0x0, false}, {3, 0x6, 0x4, true},  {3, 0x3, 0x2, false}, {4, 0x3, 0x0, false},
        {4, 0xc, 0x0, true},  {4, 0x3, 0x1, true},  {1, 0x0, 0x0, true},  {8, 0xf8, 0x00, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t down[2] = {(uint8_t)cases[i].down}, dead[2] = {(uint8_t)cases[i].dead};
        assert_int_equal(agreement_may_go_on(down, dead, cases[i].nodes), cases[i].goes_on);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_death),
        cmocka_unit_test(test_one_silent_node),
        cmocka_unit_test(test_leader_dies_committing),
        cmocka_unit_test(test_even_split),
        cmocka_unit_test(test_one_way_cut),
        cmocka_unit_test(test_deaths_while_agreeing),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_who_may_go_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
