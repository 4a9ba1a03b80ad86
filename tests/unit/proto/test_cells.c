#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "proto/cells.h"

/* --- Every order of the steps of a few ranks and commd --- */

enum { RANKS_MAX = 3, OPS = 3, SEEN_MAX = 1 << 16 };

/* What a rank does for an operation. */
enum part { PUBLISHES, PUBLISHES_OTHER_TERMS, HANDS_OVER };

struct world {
    struct cells_shared *shared;
    uint32_t ranks;
    enum part parts[RANKS_MAX][OPS];
    uint32_t ops[RANKS_MAX];     /* of each rank; less than OPS: it is gone afterwards */
    unsigned begun[RANKS_MAX];   /* operations in which it has taken part */
    unsigned decided[RANKS_MAX]; /* operations of which it knows the way */
    enum cells_way ways[RANKS_MAX][OPS];
    unsigned retire_step;
    bool retires;
    bool reopens; /* once; then it retires for good */
    unsigned long ends;
};

/* The caller frees them. */
static struct cells_shared *new_cells(size_t size_bytes)
{
    struct cells_shared *shared = aligned_alloc(CELLS_PAGE_BYTES, size_bytes);
    assert_non_null(shared);
    memset(shared, 0, size_bytes);
    return shared;
}

/* Worlds from which all orders were tried, as hashes; 0: none. */
static uint64_t seen[SEEN_MAX];

static uint64_t hash_more(uint64_t hash, const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        hash = (hash ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3u;
    }
    return hash;
}

/* Returns false if this world was seen before. What is not hashed follows from what is. */
static bool is_new(const struct world *world)
{
    uint64_t hash = hash_more(0xcbf29ce484222325u, world->begun, sizeof world->begun);
    hash = hash_more(hash, world->decided, sizeof world->decided);
    hash = hash_more(hash, world->ways, sizeof world->ways);
    hash = hash_more(hash, &world->retire_step, sizeof world->retire_step);
    hash = hash_more(hash, world->shared, offsetof(struct cells_shared, ranks)) | 1;
    size_t at = hash % SEEN_MAX;
    for (size_t tries = 0; seen[at] != 0; at = (at + 1) % SEEN_MAX) {
        if (seen[at] == hash) {
            return false;
        }
        assert_true(++tries < SEEN_MAX / 2);
    }
    seen[at] = hash;
    return true;
}

static struct op_terms terms_of(enum part part)
{
    return (struct op_terms){
        .kind = OP_KIND_BARRIER, .count_elements = part == PUBLISHES_OTHER_TERMS ? 1 : 0, .bucket_ops = 1};
}

static void take_part(struct world *world, uint32_t rank)
{
    uint64_t seq = ++world->begun[rank];
    enum part part = world->parts[rank][seq - 1];
    if (part == HANDS_OVER) {
        world->ways[rank][seq - 1] = CELLS_BY_COMMD;
        cells_hand_over(world->shared, world->ranks, rank, seq);
    } else {
        world->ways[rank][seq - 1] = CELLS_WAIT;
        cells_header(world->shared, rank, seq)->said.terms = terms_of(part);
        cells_publish(world->shared, world->ranks, rank, seq, true);
    }
}

/* Looks at the oldest operation that the rank has not decided. Returns whether it is decided now. */
static bool decide(struct world *world, uint32_t rank)
{
    enum cells_way *way = &world->ways[rank][world->decided[rank]];
    if (*way == CELLS_WAIT) {
        uint64_t seq = world->decided[rank] + 1;
        *way = cells_look(world->shared, world->ranks, rank, seq,
                          &cells_header(world->shared, rank, seq)->said.terms);
        bool news = cells_have_news(world->shared, world->ranks, rank, seq);
        assert_true(news || *way == CELLS_WAIT || *way == CELLS_BY_COMMD);
    }
    world->decided[rank] += *way != CELLS_WAIT;
    return *way != CELLS_WAIT;
}

/* The last operation that the rank has given to commd. */
static uint64_t given(const struct world *world, uint32_t rank)
{
    uint64_t seq = world->decided[rank];
    while (seq > 0 && world->ways[rank][seq - 1] != CELLS_BY_COMMD) {
        seq--;
    }
    return seq;
}

static uint64_t highest(const _Atomic uint64_t *heads, uint32_t ranks)
{
    uint64_t head = 0;
    for (uint32_t rank = 0; rank < ranks; rank++) {
        head = heads[rank] > head ? heads[rank] : head;
    }
    return head;
}

static bool may_reopen(const struct world *world)
{
    bool all = true;
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        all = all && given(world, rank) >= highest(world->shared->heads, world->ranks);
    }
    return all;
}

static bool commd_may_go_on(const struct world *world)
{
    unsigned retirement = world->ranks + 2;
    if (world->reopens && world->retire_step == retirement) {
        return may_reopen(world);
    }
    return world->retires && world->retire_step < (world->reopens ? 2 * retirement + 1 : retirement);
}

static void reopen(struct world *world)
{
    uint64_t head = 0;
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        uint64_t its = cells_head(world->shared, rank);
        head = its > head ? its : head;
    }
    cells_reopen(world->shared, head + 1);
}

static void retire_on(struct world *world)
{
    unsigned step = world->retire_step++;
    if (step == world->ranks + 2) {
        reopen(world);
        return;
    }
    step %= world->ranks + 3;
    if (step == 0) {
        cells_decide(world->shared);
    } else if (step <= world->ranks) {
        cells_copy_head(world->shared, step - 1);
    } else {
        cells_end(world->shared, world->ranks);
    }
}

static unsigned direct_after_opening;

/* All ranks that know the way of an operation know the same. */
static void check(struct world *world, bool over)
{
    for (unsigned op = 0; op < OPS; op++) {
        enum cells_way way = CELLS_WAIT;
        for (uint32_t rank = 0; rank < world->ranks; rank++) {
            if (world->decided[rank] <= op) {
                assert_true(!over || world->ops[rank] <= op || !world->retires);
                continue;
            }
            assert_true(way == CELLS_WAIT || way == world->ways[rank][op]);
            way = world->ways[rank][op];
            bool opened = world->reopens && world->retire_step > world->ranks + 2;
            direct_after_opening += opened && way == CELLS_DIRECT && op + 1 >= world->shared->open_from;
        }
    }
}

static void visit(struct world *world);

/* Makes the step on a copy of the world, and goes on from there. Returns whether it changed something. */
static bool try_step(const struct world *before, uint32_t who, bool decides)
{
    size_t size_bytes = cells_control_bytes(before->ranks);
    struct world *world = malloc(sizeof *world);
    assert_non_null(world);
    *world = *before;
    world->shared = aligned_alloc(CELLS_PAGE_BYTES, size_bytes);
    assert_non_null(world->shared);
    memcpy(world->shared, before->shared, sizeof *world->shared);
    for (uint32_t rank = 0; rank < before->ranks; rank++) { /* without what nobody decides by */
        memcpy(&world->shared->ranks[rank], &before->shared->ranks[rank],
               offsetof(struct cells_rank, counts));
    }
    bool changed = true;
    if (who == before->ranks) {
        retire_on(world);
    } else if (decides) {
        changed = decide(world, who);
    } else {
        take_part(world, who);
    }
    if (changed) {
        check(world, false);
        if (is_new(world)) {
            visit(world);
        }
        ((struct world *)(uintptr_t)before)->ends = world->ends;
    }
    free(world->shared);
    free(world);
    return changed;
}

static void visit(struct world *world)
{
    bool any = false;
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        if (world->begun[rank] < world->ops[rank]) {
            any = try_step(world, rank, false) || any;
        }
        if (world->decided[rank] < world->begun[rank]) {
            any = try_step(world, rank, true) || any;
        }
    }
    if (commd_may_go_on(world)) {
        any = try_step(world, world->ranks, false) || any;
    }
    if (!any) {
        world->ends++;
        check(world, true);
    }
}

enum commd { WATCHES, RETIRES, RETIRES_AND_REOPENS };

static void try_all_orders(uint32_t ranks, const enum part parts[RANKS_MAX][OPS],
                           const uint32_t ops[RANKS_MAX], enum commd commd)
{
    struct world world = {
        .ranks = ranks, .retires = commd != WATCHES, .reopens = commd == RETIRES_AND_REOPENS};
    memset(seen, 0, sizeof seen);
    memcpy(world.parts, parts, sizeof world.parts);
    memcpy(world.ops, ops, sizeof world.ops);
    world.shared = new_cells(cells_control_bytes(ranks));
    visit(&world);
    assert_true(world.ends > 0);
    free(world.shared);
}

/* Two ranks. Each takes part in each operation in every possible way, or is gone before it. */
static void test_every_order_of_two_ranks(void **state)
{
    (void)state;
    for (unsigned pattern = 0; pattern < 3 * 3 * 3 * 3; pattern++) {
        const enum part parts[RANKS_MAX][OPS] = {{(enum part)(pattern % 3), (enum part)(pattern / 3 % 3)},
                                                 {(enum part)(pattern / 9 % 3), (enum part)(pattern / 27)}};
        for (uint32_t ops = 0; ops <= 2; ops++) {
            try_all_orders(2, parts, (const uint32_t[RANKS_MAX]){2, ops}, RETIRES);
        }
        try_all_orders(2, parts, (const uint32_t[RANKS_MAX]){2, 2}, WATCHES);
    }
}

/* The same with a retirement, an opening and another retirement, at any time. A rank may publish what it
 * should hand over, because it saw the segment open before. */
static void test_every_order_of_an_opening(void **state)
{
    (void)state;
    unsigned direct = 0;
    for (unsigned pattern = 0; pattern < 1u << 6; pattern++) {
        enum part parts[RANKS_MAX][OPS];
        for (unsigned i = 0; i < 6; i++) {
            parts[i / 3][i % 3] = (pattern >> i & 1u) != 0 ? HANDS_OVER : PUBLISHES;
        }
        for (uint32_t ops = 1; ops <= OPS; ops++) {
            if (ops == OPS && pattern % 8 > pattern / 8) {
                continue; /* the same with the ranks exchanged */
            }
            direct_after_opening = 0;
            try_all_orders(2, parts, (const uint32_t[RANKS_MAX]){OPS, ops}, RETIRES_AND_REOPENS);
            direct += direct_after_opening;
        }
    }
    assert_true(direct > 0);
}

static void test_every_order_of_three_ranks(void **state)
{
    (void)state;
    for (unsigned pattern = 0; pattern < 3 * 3 * 3; pattern++) {
        const enum part parts[RANKS_MAX][OPS] = {
            {(enum part)(pattern % 3)}, {(enum part)(pattern / 3 % 3)}, {(enum part)(pattern / 9)}};
        for (uint32_t ops = 0; ops <= 1; ops++) {
            try_all_orders(3, parts, (const uint32_t[RANKS_MAX]){1, 1, ops}, RETIRES);
        }
    }
}

/* Readers sleep until their root has published; in other operations, until all have. */
static void test_who_wakes_a_sleeper(void **state)
{
    (void)state;
    const struct {
        enum op_kind kind;
        uint32_t root_rank;
        bool first_wakes;
    } cases[] = {{OP_KIND_BROADCAST, 0, true},
                 {OP_KIND_BROADCAST, 1, false},
                 {OP_KIND_SCATTER, 0, true},
                 {OP_KIND_REDUCE, 0, false},
                 {OP_KIND_BARRIER, 0, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct cells_shared *shared = new_cells(cells_control_bytes(3));
        const struct op_terms terms = {.kind = cases[i].kind, .root_rank = cases[i].root_rank};
        uint32_t bell = cells_lie_down(shared, 2);
        for (uint32_t rank = 0; rank < 3; rank++) {
            cells_header(shared, rank, 1)->said.terms = terms;
        }
        cells_publish(shared, 3, 0, 1, false);
        assert_int_equal(shared->ranks[2].bell != bell, cases[i].first_wakes);
        bell = shared->ranks[2].bell;
        cells_publish(shared, 3, 2, 1, false); /* a sleeper's rank has published; itself it does not wake */
        assert_int_equal(shared->ranks[2].bell, bell);
        cells_publish(shared, 3, 1, 1, false);
        assert_int_not_equal(shared->ranks[2].bell, bell);
        cells_get_up(shared, 2);
        free(shared);
    }
}

/* --- Threads --- */

enum { THREADS = 3, ROUNDS = 20000, LONG_BYTES = 5000 };

struct job {
    struct cells_shared *shared;
    uint32_t rank;
    unsigned seed;
    bool needs_fences;
    uint64_t last;       /* the last operation to take part in */
    uint64_t first_left; /* the first one that commd must carry out because the use has ended; 0: none */
    uint64_t wrong;
};

static size_t size_of(uint64_t seq)
{
    bool may_be_long = seq / (2 * CELLS_WINDOW) % 2 == 0;
    size_t most = seq % 2 == 0 ? CELLS_SHORT_MAX_BYTES : CELLS_MIDDLE_MAX_BYTES;
    return may_be_long && seq % 3 == 0 ? LONG_BYTES : 1 + seq * 53 % most;
}

static unsigned char byte_of(uint32_t rank, uint64_t seq, size_t place)
{
    return (unsigned char)(rank * 89 + seq * 7 + place * 13 + 1);
}

/* In every eleventh operation, some rank hands over. */
static bool hands_over(uint32_t rank, uint64_t seq)
{
    return seq % 11 == 5 && seq / 11 % THREADS == rank;
}

static void put(const struct job *job, uint64_t seq)
{
    unsigned char *data = cells_data(job->shared, THREADS, job->rank, seq, size_of(seq));
    for (size_t i = 0; i < size_of(seq); i++) {
        data[i] = byte_of(job->rank, seq, i);
    }
    cells_header(job->shared, job->rank, seq)->said.terms = (struct op_terms){.bucket_ops = 1};
    cells_publish(job->shared, THREADS, job->rank, seq, job->needs_fences);
}

static enum cells_way await(const struct job *job, uint64_t seq)
{
    const struct op_terms own = {.bucket_ops = 1};
    enum cells_way way;
    for (unsigned looks = 0; (way = cells_look(job->shared, THREADS, job->rank, seq, &own)) == CELLS_WAIT;
         looks++) {
        if (looks < 3) {
            sched_yield();
            continue;
        }
        uint32_t bell = cells_lie_down(job->shared, job->rank);
        if (!cells_have_news(job->shared, THREADS, job->rank, seq)) {
            cells_sleep(job->shared, job->rank, bell, UINT64_C(60000000000)); /* a lost bell fails the test */
        }
        cells_get_up(job->shared, job->rank);
    }
    return way;
}

static uint64_t check_data(const struct job *job, uint64_t seq)
{
    uint64_t wrong = 0;
    for (uint32_t rank = 0; rank < THREADS; rank++) {
        const unsigned char *data = cells_data(job->shared, THREADS, rank, seq, size_of(seq));
        for (size_t i = 0; i < size_of(seq); i++) {
            wrong += data[i] != byte_of(rank, seq, i);
        }
    }
    return wrong;
}

static void end_one(struct job *job, uint64_t seq, bool was_handed)
{
    enum cells_way way = was_handed ? CELLS_BY_COMMD : await(job, seq);
    bool one_hands_over = false;
    for (uint32_t rank = 0; rank < THREADS; rank++) {
        one_hands_over = one_hands_over || hands_over(rank, seq);
    }
    if (way == CELLS_DIRECT) {
        job->wrong += one_hands_over || job->first_left != 0;
        job->wrong += check_data(job, seq);
    } else if (!one_hands_over && job->first_left == 0) {
        job->first_left = seq;
    }
}

/* How many operations may be open when this one is published. */
static uint64_t window_at(const struct job *job, uint64_t ended, uint64_t seq)
{
    uint64_t most = CELLS_WINDOW;
    for (uint64_t open = ended + 1; open <= seq; open++) {
        most = size_of(open) > CELLS_MIDDLE_MAX_BYTES ? CELLS_LONG_WINDOW : most;
    }
    return 1 + (seq * 31 + job->seed) % most;
}

/* Up to CELLS_WINDOW operations at a time. In place of commd, a rank that handed over waits for the others.
 */
static void *take_all(void *argument)
{
    struct job *job = argument;
    uint64_t ended = 0;
    for (uint64_t seq = 1; seq <= job->last && job->first_left == 0; seq++) {
        while (seq - ended > window_at(job, ended, seq) && job->first_left == 0) {
            ended++;
            end_one(job, ended, false);
        }
        if (hands_over(job->rank, seq)) {
            while (ended + 1 < seq) {
                ended++;
                end_one(job, ended, false);
            }
            cells_hand_over(job->shared, THREADS, job->rank, seq);
            ended = seq;
            for (uint32_t rank = 0; rank < THREADS; rank++) {
                while (cells_head(job->shared, rank) < seq && atomic_load(&job->shared->open_from) == 0) {
                    sched_yield();
                }
            }
        } else if (job->first_left == 0) {
            put(job, seq);
        }
    }
    while (ended < job->last && job->first_left == 0) {
        ended++;
        end_one(job, ended, hands_over(job->rank, ended));
    }
    return NULL;
}

static void run_threads(unsigned seed, uint64_t rounds, bool retires)
{
    struct job jobs[THREADS];
    pthread_t threads[THREADS];
    struct cells_shared *shared = new_cells(cells_bytes(THREADS));
    cells_begin(shared, true);
    for (uint32_t rank = 0; rank < THREADS; rank++) {
        bool needs_fences =
            cells_need_fences(shared) || rank == seed % THREADS; /* one as in an old process */
        jobs[rank] = (struct job){
            .shared = shared, .rank = rank, .seed = seed, .last = rounds, .needs_fences = needs_fences};
        assert_int_equal(pthread_create(&threads[rank], NULL, take_all, &jobs[rank]), 0);
    }
    if (retires) {
        while (cells_head(shared, seed % THREADS) < rounds / 2) {
            sched_yield();
        }
        cells_retire(shared, THREADS);
    }
    for (uint32_t rank = 0; rank < THREADS; rank++) {
        pthread_join(threads[rank], NULL);
        assert_int_equal(jobs[rank].wrong, 0);
        if (rank > 0 && jobs[rank].first_left != 0 && jobs[0].first_left != 0) {
            assert_int_equal(jobs[rank].first_left, jobs[0].first_left);
        }
        assert_true(retires || jobs[rank].first_left == 0);
    }
    free(shared);
}

static void test_threads(void **state)
{
    (void)state;
    run_threads(1, ROUNDS, false);
    run_threads(2, ROUNDS, false);
}

static void test_threads_and_a_retirement(void **state)
{
    (void)state;
    for (unsigned seed = 0; seed < 200; seed++) {
        run_threads(seed, 40 + seed, true);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_order_of_two_ranks),  cmocka_unit_test(test_every_order_of_three_ranks),
        cmocka_unit_test(test_every_order_of_an_opening), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_and_a_retirement),  cmocka_unit_test(test_who_wakes_a_sleeper),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
