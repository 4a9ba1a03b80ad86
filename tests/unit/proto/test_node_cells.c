#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "proto/node_cells.h"

/* --- Every order of the steps of the local ranks and commd --- */

enum { RANKS = 2, OPS = 3, SEEN_MAX = 1 << 16 };

/* What a rank does for an operation, and how it ends. */
enum part { PUBLISHES, SUBMITS };
enum knows { NOTHING, HAS_OUTPUT, HAS_SUBMITTED };

/*
 * Steps of a rank: it takes part in its next operation, or it looks for the end of the oldest one. A rank
 * submits only when its earlier operations have ended. Steps of commd: it takes the next operation, answers
 * the oldest one, hears of a submission, or closes the segment.
 */
struct world {
    struct node_cells cells;
    enum part parts[RANKS][OPS];
    bool ends_well[OPS];
    bool closes;
    uint32_t begun[RANKS], ended[RANKS];
    enum knows knows[RANKS][OPS];
    bool heard[RANKS][OPS]; /* commd has the rank's submission */
    bool taken[OPS], answered[OPS];
    bool closed;
    uint64_t last_taken;
};

static uint64_t seen[SEEN_MAX];
static unsigned long worlds, all_worlds, ends;

static size_t world_bytes(void)
{
    return node_cells_bytes(RANKS);
}

static uint64_t hash_more(uint64_t hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    }
    return hash;
}

/* What the ranks and commd have done decides what is in the segment, but for the order of a few stores. */
static bool is_new(const struct world *world)
{
    const struct cells_shared *shared = world->cells.shared;
    uint64_t hash =
        hash_more(0xcbf29ce484222325u, world->begun, sizeof *world - offsetof(struct world, begun));
    for (uint32_t i = 0; i <= RANKS; i++) {
        hash = hash_more(hash, (const void *)&shared->ranks[i].by_commd, sizeof(uint64_t));
        for (uint32_t d = 0; d < CELLS_DEPTH; d++) {
            hash = hash_more(hash, (const void *)&shared->ranks[i].headers[d].seq, sizeof(uint64_t));
        }
    }
    hash |= 1;
    size_t at = hash % SEEN_MAX;
    while (seen[at] != 0 && seen[at] != hash) {
        at = (at + 1) % SEEN_MAX;
    }
    bool is_new_one = seen[at] == 0;
    seen[at] = hash;
    worlds += is_new_one;
    assert_true(worlds < SEEN_MAX / 2);
    return is_new_one;
}

static bool rank_begins(struct world *world, uint32_t rank)
{
    uint32_t op = world->begun[rank];
    if (op == OPS || (world->parts[rank][op] == SUBMITS && world->ended[rank] < op)) {
        return false;
    }
    world->begun[rank]++;
    if (world->parts[rank][op] == PUBLISHES) {
        (void)node_cells_publish(&world->cells, rank, op + 1);
    } else {
        world->knows[rank][op] = HAS_SUBMITTED;
        world->ended[rank]++; /* commd tells it by a completion, once it has heard of it */
    }
    return true;
}

static bool rank_looks(struct world *world, uint32_t rank)
{
    uint32_t op = world->ended[rank];
    if (op == world->begun[rank]) {
        return false;
    }
    enum cells_way way = node_cells_look(&world->cells, op + 1);
    if (way == CELLS_WAIT) {
        return false;
    }
    if (way == CELLS_DIRECT) {
        assert_true(world->answered[op] && world->ends_well[op]);
    }
    world->knows[rank][op] = way == CELLS_DIRECT ? HAS_OUTPUT : HAS_SUBMITTED;
    world->ended[rank]++;
    return true;
}

static bool commd_hears(struct world *world, uint32_t rank, uint32_t op)
{
    if (world->knows[rank][op] != HAS_SUBMITTED || world->heard[rank][op]) {
        return false;
    }
    world->heard[rank][op] = true;
    if (!world->taken[op]) {
        node_cells_pass(&world->cells, op + 1);
    }
    return true;
}

/* Whether commd has every local rank's part of all earlier operations, and none of this one. */
static bool is_next(const struct world *world, uint32_t op)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t before = 0; before < op; before++) {
            if (!world->taken[before] && !world->heard[rank][before]) {
                return false;
            }
        }
        if (world->heard[rank][op]) {
            return false;
        }
    }
    return !world->taken[op];
}

static bool commd_takes(struct world *world)
{
    for (uint32_t op = 0; op < OPS && !world->closed; op++) {
        if (is_next(world, op) && node_cells_are_published(&world->cells, op + 1)) {
            world->taken[op] = true;
            world->last_taken = op + 1;
            return true;
        }
    }
    return false;
}

static bool commd_answers(struct world *world)
{
    for (uint32_t op = 0; op < OPS; op++) {
        if (world->taken[op] && !world->answered[op]) {
            world->answered[op] = true;
            node_cells_answer(&world->cells, op + 1, world->ends_well[op]);
            node_cells_wake(&world->cells, op + 1);
            return true;
        }
    }
    return false;
}

static bool commd_closes(struct world *world)
{
    if (!world->closes || world->closed) {
        return false;
    }
    world->closed = true;
    node_cells_close(&world->cells, world->last_taken);
    return true;
}

static bool do_step(struct world *world, uint32_t step)
{
    if (step < RANKS) {
        return rank_begins(world, step);
    }
    if (step < 2 * RANKS) {
        return rank_looks(world, step - RANKS);
    }
    step -= 2 * RANKS;
    if (step < RANKS * OPS) {
        return commd_hears(world, step / OPS, step % OPS);
    }
    step -= RANKS * OPS;
    return step == 0 ? commd_takes(world) : step == 1 ? commd_answers(world) : commd_closes(world);
}

/* No step is left: nobody waits, and the ranks agree. */
static void check_end(const struct world *world)
{
    ends++;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        assert_int_equal(world->ended[rank], OPS);
        for (uint32_t op = 0; op < OPS; op++) {
            assert_int_equal(world->knows[rank][op], world->knows[0][op]);
            assert_true(world->knows[rank][op] == HAS_OUTPUT || world->heard[rank][op]);
            if (world->parts[rank][op] == SUBMITS) {
                assert_int_equal(world->knows[rank][op], HAS_SUBMITTED);
            }
            if (world->taken[op]) {
                assert_int_equal(world->knows[rank][op] == HAS_OUTPUT, world->ends_well[op]);
            }
        }
    }
}

static void try_all(struct world *world)
{
    bool any = false;
    unsigned char *saved = malloc(world_bytes());
    assert_non_null(saved);
    memcpy(saved, world->cells.shared, cells_control_bytes(RANKS + 1));
    for (uint32_t step = 0; step < 2 * RANKS + RANKS * OPS + 3; step++) {
        struct world next = *world;
        if (do_step(&next, step)) {
            any = true;
            if (is_new(&next)) {
                try_all(&next);
            }
            memcpy(world->cells.shared, saved, cells_control_bytes(RANKS + 1));
        }
    }
    if (!any) {
        check_end(world);
    }
    free(saved);
}

static void every_order_ends_alike_on_all_ranks(void **state)
{
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, world_bytes());
    assert_non_null(shared);
    for (unsigned chosen = 0; chosen < 1u << (RANKS * OPS + OPS + 1); chosen += 3) {
        struct world world = {.cells = {.shared = shared, .local_count = RANKS, .rank_count = RANKS + 1}};
        memset(shared, 0, cells_control_bytes(RANKS + 1));
        for (uint32_t i = 0; i < RANKS * OPS; i++) {
            world.parts[i / OPS][i % OPS] = (chosen >> i & 1) != 0 ? SUBMITS : PUBLISHES;
        }
        for (uint32_t op = 0; op < OPS; op++) {
            world.ends_well[op] = (chosen >> (RANKS * OPS + op) & 1) != 0;
        }
        world.closes = (chosen >> (RANKS * OPS + OPS) & 1) != 0;
        memset(seen, 0, sizeof seen);
        worlds = 0;
        try_all(&world);
        all_worlds += worlds;
    }
    assert_true(ends >= (1u << (RANKS * OPS + OPS + 1)) / 3);
    assert_true(all_worlds > 10000);
    free(shared);
}

/* --- Places of inputs and outputs --- */

static void outputs_of_local_ranks_lie_apart(void **state)
{
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, node_cells_bytes(3));
    struct node_cells cells = {.shared = shared, .local_count = 3, .rank_count = 5};
    assert_non_null(shared);
    unsigned taken = 0;
    for (uint32_t kind = 0; kind < OP_KIND_SEND; kind++) {
        for (uint64_t count = 0; count <= 9000; count = count < 90 ? count + 1 : 2 * count) {
            struct op_terms terms = {
                .kind = (enum op_kind)kind, .dtype = DTYPE_F32, .bucket_ops = 1, .count_elements = count};
            if (!node_cells_take(&cells, &terms)) {
                continue;
            }
            taken++;
            const unsigned char *end = (const unsigned char *)shared + node_cells_bytes(3);
            for (uint32_t i = 0; i < 3; i++) {
                const unsigned char *out = node_cells_output(&cells, &terms, i, 7);
                size_t size_bytes = node_cells_output_bytes(&cells, &terms, i);
                assert_true(size_bytes <= NODE_CELLS_DATA_MAX_BYTES);
                assert_true(i == 2 || out + size_bytes <= node_cells_output(&cells, &terms, i + 1, 7));
                assert_true(out + size_bytes <= end);
                assert_true(node_cells_input(&cells, &terms, i, i, 7) + cells_published_bytes(&terms, 5, i) <=
                            node_cells_input(&cells, &terms, i, i, 7) + NODE_CELLS_DATA_MAX_BYTES);
            }
        }
    }
    assert_true(taken > 500);
    free(shared);
}

/* Of one rank, and of commd, for operations that may be open at the same time. */
static void places_lie_apart(void **state)
{
    static const uint64_t counts[] = {40, 41, 4096, 4097, 8192}; /* halves of the limits */
    static unsigned char *begins[5 * 3 * NODE_CELLS_DEPTH];
    static size_t sizes[5 * 3 * NODE_CELLS_DEPTH];
    size_t count = 0;
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, node_cells_bytes(2));
    struct node_cells cells = {.shared = shared, .local_count = 2, .rank_count = 4};
    assert_non_null(shared);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct op_terms terms = {
            .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .bucket_ops = 1, .count_elements = 2 * counts[i]};
        uint64_t depth = 2 * counts[i] > NODE_CELLS_MIDDLE_MAX_BYTES ? CELLS_LONG_DEPTH : NODE_CELLS_DEPTH;
        assert_true(node_cells_take(&cells, &terms));
        assert_int_equal(node_cells_are_short(&cells, &terms), 4 * counts[i] <= NODE_CELLS_MIDDLE_MAX_BYTES);
        for (uint64_t seq = 0; seq < depth; seq++) {
            for (uint32_t rank = 0; rank < 2; rank++) {
                begins[count] = node_cells_input(&cells, &terms, rank, rank, seq);
                sizes[count++] = 2 * counts[i];
            }
        }
    }
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < i; k++) {
            bool same = begins[i] == begins[k]; /* sizes of one class, in the same cell */
            assert_true(same || begins[i] + sizes[i] <= begins[k] || begins[k] + sizes[k] <= begins[i]);
        }
        assert_true(begins[i] + sizes[i] <= (unsigned char *)shared + node_cells_bytes(2));
    }
    struct op_terms terms = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_U8, .bucket_ops = 1, .count_elements = 4096};
    assert_true(node_cells_output(&cells, &terms, 1, NODE_CELLS_DEPTH - 1) + 4096 <=
                (unsigned char *)shared + node_cells_bytes(2));
    free(shared);
}

static void offers(void **state)
{
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, node_cells_bytes(2));
    struct node_cells cells = {.shared = shared, .local_count = 2, .rank_count = 4};
    struct op_terms small = {
        .kind = OP_KIND_BROADCAST, .dtype = DTYPE_U8, .bucket_ops = 1, .count_elements = 9};
    struct op_terms large = small, other = small;
    assert_non_null(shared);
    memset(shared, 0, node_cells_bytes(2));
    large.count_elements = NODE_CELLS_MIDDLE_MAX_BYTES;
    other.root_rank = 1;
    const struct {
        const struct op_terms *terms;
        uint64_t window;
    } cases[] = {{&small, NODE_CELLS_WINDOW}, {&large, CELLS_LONG_WINDOW}};
    for (size_t i = 0; i < 2; i++) {
        uint64_t base = 100 * (i + 1);
        assert_true(node_cells_may_offer(&cells, cases[i].window, cases[i].terms));
        (void)node_cells_publish(&cells, 0, base);
        assert_false(
            node_cells_may_offer(&cells, base + cases[i].window, cases[i].terms)); /* of one rank only */
        (void)node_cells_publish(&cells, 1, base);
        assert_true(node_cells_may_offer(&cells, base + cases[i].window, cases[i].terms));
        assert_false(node_cells_may_offer(&cells, base + cases[i].window + 1, cases[i].terms));
    }
    assert_false(node_cells_root_is_there(&cells, 7, &small));
    node_cells_offer(&cells, 7, &small);
    assert_true(node_cells_root_is_there(&cells, 7, &small));
    assert_false(node_cells_root_is_there(&cells, 7, &other));
    assert_false(node_cells_root_is_there(&cells, 7 + CELLS_DEPTH, &small));
    assert_int_equal(node_cells_look(&cells, 7), CELLS_WAIT);
    node_cells_answer(&cells, 7, true);
    assert_true(node_cells_root_is_there(&cells, 7, &small));
    assert_int_equal(node_cells_look(&cells, 7), CELLS_DIRECT);
    node_cells_offer(&cells, 8, &small);
    node_cells_answer(&cells, 8, false);
    assert_false(node_cells_root_is_there(&cells, 8, &small));
    free(shared);
}

/* Whether the bell was rung for a rank that sleeps until that operation is answered. */
static bool rings(const struct node_cells *cells, uint64_t awaits, uint64_t answered, bool two_sleep)
{
    uint32_t bell = node_cells_rank_lies_down(cells, 0, awaits);
    uint32_t second = two_sleep ? node_cells_rank_lies_down(cells, 0, awaits) : bell;
    node_cells_wake(cells, answered);
    if (two_sleep) {
        node_cells_rank_gets_up(cells, 0);
    }
    node_cells_rank_gets_up(cells, 0);
    return bell == second && cells_lie_down(cells->shared, 0) != bell;
}

static void one_answer_of_several_wakes(void **state)
{
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, node_cells_bytes(2));
    struct node_cells cells = {.shared = shared, .local_count = 2, .rank_count = 4};
    assert_non_null(shared);
    memset(shared, 0, node_cells_bytes(2));
    assert_false(rings(&cells, 5, 4, false));
    memset(shared, 0, node_cells_bytes(2));
    assert_true(rings(&cells, 5, 5, false));
    memset(shared, 0, node_cells_bytes(2));
    assert_true(rings(&cells, 5, UINT64_MAX, false));
    memset(shared, 0, node_cells_bytes(2));
    assert_true(rings(&cells, 5, 1, true)); /* each may wait for another one */
    memset(shared, 0, node_cells_bytes(2));
    (void)node_cells_rank_lies_down(&cells, 0, 3);
    (void)node_cells_rank_lies_down(&cells, 0, 9);
    node_cells_rank_gets_up(&cells, 0); /* the one that waits for 9, perhaps */
    uint32_t bell = atomic_load(&shared->ranks[0].bell);
    node_cells_wake(&cells, 3);
    assert_int_not_equal(atomic_load(&shared->ranks[0].bell), bell);
    free(shared);
}

static void large_operations_and_those_with_layouts_are_not_taken(void **state)
{
    (void)state;
    struct node_cells cells = {.local_count = 2, .rank_count = 4};
    struct op_terms terms = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_F64, .bucket_ops = 1, .count_elements = 2048};
    assert_true(node_cells_take(&cells, &terms)); /* the outputs of two ranks fill a cell */
    terms.count_elements = 2049;
    assert_false(node_cells_take(&cells, &terms));
    terms.kind = OP_KIND_ALL_TO_ALL;
    terms.count_elements = 512;
    assert_true(node_cells_take(&cells, &terms));
    terms.count_elements = 513;
    assert_false(node_cells_take(&cells, &terms));
    terms.count_elements = 1;
    terms.has_layouts = 1;
    assert_false(node_cells_take(&cells, &terms));
    terms.has_layouts = 0;
    terms.bucket_ops = 2;
    assert_false(node_cells_take(&cells, &terms));
    terms.bucket_ops = 1;
    terms.count_elements = UINT64_MAX;
    assert_false(node_cells_take(&cells, &terms));
    cells.local_count = 30;
    cells.rank_count = 31;
    terms.kind = OP_KIND_ALL_REDUCE;
    terms.count_elements = 1024; /* 30 outputs do not fit into one cell */
    assert_false(node_cells_take(&cells, &terms));
}

/* --- Threads: the same with real stores, and with sleep --- */

enum { ROUNDS = 20000 };

struct meeting {
    struct node_cells cells;
    _Atomic uint32_t rings; /* of commd */
};

struct one {
    struct meeting *meeting;
    uint32_t rank;
};

static void *run_rank(void *context)
{
    const struct one *one = context;
    const struct node_cells *cells = &one->meeting->cells;
    struct op_terms terms = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I64, .bucket_ops = 1, .count_elements = 1};
    for (uint64_t seq = 1; seq <= ROUNDS; seq++) {
        int64_t value = (int64_t)(seq * (one->rank + 1)), sum = 0;
        memcpy(node_cells_input(cells, &terms, one->rank, one->rank, seq), &value, sizeof value);
        if (node_cells_publish(cells, one->rank, seq)) {
            atomic_fetch_add(&one->meeting->rings, 1);
        }
        while (node_cells_look(cells, seq) == CELLS_WAIT) {
            uint32_t bell = cells_lie_down(cells->shared, one->rank);
            if (node_cells_look(cells, seq) == CELLS_WAIT) {
                cells_sleep(cells->shared, one->rank, bell, UINT64_C(10000000000));
            }
            cells_get_up(cells->shared, one->rank);
        }
        assert_int_equal(node_cells_look(cells, seq), CELLS_DIRECT);
        memcpy(&sum, node_cells_output(cells, &terms, one->rank, seq), sizeof sum);
        assert_int_equal(sum, 3 * seq);
    }
    return NULL;
}

/* commd sleeps whenever nothing is published, so a ring that is lost leaves all asleep. */
static void nobody_sleeps_for_ever(void **state)
{
    (void)state;
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, node_cells_bytes(2));
    struct meeting meeting = {.cells = {.shared = shared, .local_count = 2, .rank_count = 2}};
    struct one ones[2] = {{&meeting, 0}, {&meeting, 1}};
    pthread_t threads[2];
    struct op_terms terms = {
        .kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I64, .bucket_ops = 1, .count_elements = 1};
    assert_non_null(shared);
    memset(shared, 0, node_cells_bytes(2));
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, run_rank, &ones[i]), 0);
    }
    for (uint64_t seq = 1; seq <= ROUNDS; seq++) {
        uint32_t rings = atomic_load(&meeting.rings);
        node_cells_lie_down(&meeting.cells);
        if (!node_cells_are_published(&meeting.cells, seq)) {
            while (atomic_load(&meeting.rings) == rings) {
            }
        }
        node_cells_get_up(&meeting.cells);
        while (!node_cells_are_published(&meeting.cells, seq)) {
        }
        for (uint32_t i = 0; i < 2; i++) {
            int64_t values[2], sum;
            for (uint32_t from = 0; from < 2; from++) {
                memcpy(&values[from], node_cells_input(&meeting.cells, &terms, from, from, seq), sizeof sum);
            }
            sum = values[0] + values[1];
            memcpy(node_cells_output(&meeting.cells, &terms, i, seq), &sum, sizeof sum);
        }
        node_cells_answer(&meeting.cells, seq, true);
        node_cells_wake(&meeting.cells, seq);
    }
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    free(shared);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_ends_alike_on_all_ranks),
        cmocka_unit_test(outputs_of_local_ranks_lie_apart),
        cmocka_unit_test(places_lie_apart),
        cmocka_unit_test(offers),
        cmocka_unit_test(one_answer_of_several_wakes),
        cmocka_unit_test(large_operations_and_those_with_layouts_are_not_taken),
        cmocka_unit_test(nobody_sleeps_for_ever),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
