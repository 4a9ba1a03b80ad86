#include <sys/mman.h>
#include <unistd.h>

#include "daemon/base/random.h"
#include "proto/node_cells.h"
#include "tests/lib/case_count.h"
#include "tests/unit/comm/comm_ops.h"

/*
 * Two nodes with two ranks each. The ranks' parts of small operations are in cells, which any process of
 * their user may write to. What must hold: operations that all ranks publish end well, with the right
 * results. And whatever is in the segment of one communicator, another one goes on. The sanitizers detect
 * other accesses.
 */
#define RANKS 4u
#define NODES 2u
#define LOCAL_RANKS (RANKS / NODES)
#define CASES 500u
#define STEPS 40u

struct rank {
    struct comms_client client;
    struct comms_member *handle;
    enum status formed;
    unsigned ended_in_cells, ended_otherwise;
    struct node_cells cells;
    uint32_t number, local; /* in the communicator; on its node */
};

struct job {
    struct rank ranks[RANKS];
    uint64_t seq;
};

static void on_cell_formed(void *context, struct comms_member *handle, const struct error *result,
                           uint64_t now_ns)
{
    struct rank *rank = context;
    (void)handle;
    (void)now_ns;
    rank->formed = result->status;
}

/* Its ticket is in the segment, too, so it may be anything. */
static void on_cell_completed(void *context, struct comms_member *handle,
                              const struct comms_completion *completion, uint64_t now_ns)
{
    struct rank *rank = context;
    (void)handle;
    (void)now_ns;
    rank->ended_in_cells += completion->in_cells;
    rank->ended_otherwise += !completion->in_cells;
}

static void on_cell_aborted(void *context, struct comms_member *handle, const struct error *cause,
                            uint64_t now_ns)
{
    (void)context;
    (void)handle;
    (void)cause;
    (void)now_ns;
}

static void join_job(struct rank *rank, const char *name)
{
    struct comms_terms terms = {
        .name = name, .rank = rank->number, .size = RANKS, .takes_cells = true, .takes_node_cells = true};
    struct comms_member_handler handler = {.context = rank,
                                           .formed = on_cell_formed,
                                           .completed = on_cell_completed,
                                           .aborted = on_cell_aborted};
    struct error error;
    rank->client = (struct comms_client){.pid = (pid_t)(100 + rank->number), .uid = 1000};
    rank->formed = STATUS_TIMED_OUT;
    assert_int_equal(comms_member_join(world.nodes[rank->number % NODES].comms, &rank->client, &terms,
                                       &handler, world.now_ns, &rank->handle, &error),
                     STATUS_OK);
}

static void job_open(struct job *job, const char *name)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        job->ranks[i] = (struct rank){.number = i, .local = i / NODES};
        join_job(&job->ranks[i], name);
    }
    run(&world, 20 * TIME_MS);
    for (uint32_t i = 0; i < RANKS; i++) {
        struct rank *rank = &job->ranks[i];
        struct error error;
        int fd;
        assert_int_equal(rank->formed, STATUS_OK);
        assert_int_equal(comms_member_cell_ranks(rank->handle), LOCAL_RANKS);
        assert_int_equal(comms_member_open_cells(rank->handle, &fd, &error), STATUS_OK);
        rank->cells = (struct node_cells){.local_count = LOCAL_RANKS, .rank_count = RANKS};
        rank->cells.shared =
            mmap(NULL, node_cells_bytes(LOCAL_RANKS), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        assert_true(rank->cells.shared != MAP_FAILED);
        assert_int_equal(close(fd), 0);
    }
}

static void job_close(struct job *job)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        comms_member_leave(job->ranks[i].handle, COMMS_LEAVE_ORDERLY, world.now_ns);
        assert_int_equal(munmap(job->ranks[i].cells.shared, node_cells_bytes(LOCAL_RANKS)), 0);
    }
}

/* As commd's main loops do. */
static void turns(unsigned count)
{
    for (unsigned turn = 0; turn < count; turn++) {
        for (unsigned node = 0; node < NODES; node++) {
            (void)comms_cells_poll(world.nodes[node].comms, world.now_ns);
        }
        settle(&world);
        for (unsigned node = 0; node < NODES; node++) {
            comms_cells_ring(world.nodes[node].comms);
        }
        run(&world, 200 * TIME_US);
    }
}

static void publish(const struct rank *rank, uint64_t seq, const struct op_terms *terms)
{
    struct cell_header *header = cells_header(rank->cells.shared, rank->local, seq);
    size_t bytes = cells_published_bytes(terms, RANKS, rank->number);
    header->said = (struct cell_terms){.terms = *terms, .factor = 1};
    rank->cells.shared->ranks[rank->local].tickets[seq % CELLS_DEPTH] = seq;
    if (bytes > 0) {
        int32_t *values =
            (int32_t *)(void *)node_cells_input(&rank->cells, terms, rank->number, rank->local, seq);
        for (size_t i = 0; i < bytes / sizeof *values; i++) {
            values[i] = (int32_t)(1000 * (rank->number + 1) + i);
        }
    }
    if (node_cells_publish(&rank->cells, rank->local, seq)) {
        (void)comms_member_wake_cells(rank->handle, world.now_ns);
    }
}

static struct op_terms all_reduce_of(uint64_t count)
{
    return (struct op_terms){.kind = OP_KIND_ALL_REDUCE,
                             .dtype = DTYPE_I32,
                             .reduce = REDUCE_SUM,
                             .count_elements = count,
                             .bucket_ops = 1};
}

static void publish_all(struct job *job, const struct op_terms *terms)
{
    job->seq++;
    for (uint32_t i = 0; i < RANKS; i++) {
        publish(&job->ranks[i], job->seq, terms);
    }
}

static void check_works(struct job *job, uint64_t count)
{
    struct op_terms terms = all_reduce_of(count);
    publish_all(job, &terms);
    turns(4);
    for (uint32_t i = 0; i < RANKS; i++) {
        const struct rank *rank = &job->ranks[i];
        assert_int_equal(node_cells_look(&rank->cells, job->seq), CELLS_DIRECT);
        const int32_t *sums =
            (const int32_t *)(const void *)node_cells_output(&rank->cells, &terms, rank->local, job->seq);
        for (uint64_t element = 0; element < count; element++) {
            assert_int_equal(sums[element], 1000 * (1 + 2 + 3 + 4) + RANKS * element);
        }
    }
}

static void test_operations_end_in_cells(void **state)
{
    static const uint64_t counts[] = {1, 20, 21, 1024, 4096}; /* within the header, behind it; the most */
    struct job job = {0};
    (void)state;
    world_start(&world, NODES, 1, NULL);
    job_open(&job, "job");
    for (unsigned round = 0; round < 3 * CELLS_DEPTH; round++) {
        check_works(&job, counts[round % (sizeof counts / sizeof *counts)]);
    }
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(job.ranks[i].ended_in_cells, job.seq);
        assert_int_equal(job.ranks[i].ended_otherwise, 0);
    }
    job_close(&job);
    world_stop(&world);
}

static const int32_t *output_of(const struct rank *rank, uint64_t seq, const struct op_terms *terms)
{
    return (const int32_t *)(const void *)node_cells_output(&rank->cells, terms, rank->local, seq);
}

/* A root's data are on the other node before its ranks take part. They get them from commd's cell, if their
 * calls are the same. The operation ends on all ranks once all have taken part. */
static void test_a_root_is_ahead(void **state)
{
    static const uint64_t counts[] = {1, 20, 21, 1024, 4096};
    (void)state;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        struct op_terms terms = all_reduce_of(counts[i]), other = terms;
        struct job job = {0};
        terms.kind = OP_KIND_BROADCAST;
        other.kind = OP_KIND_REDUCE;
        world_start(&world, NODES, 1, NULL);
        job_open(&job, "job");
        check_works(&job, 5);
        bool is_short = node_cells_are_short(&job.ranks[0].cells, &terms);
        uint64_t last = job.seq + (is_short ? NODE_CELLS_WINDOW : CELLS_LONG_WINDOW);
        for (uint64_t seq = job.seq + 1; seq <= last; seq++) {
            publish(&job.ranks[0], seq, &terms);
            publish(&job.ranks[2], seq, &terms);
        }
        turns(4);
        for (uint64_t seq = job.seq + 1; seq <= last; seq++) {
            for (uint32_t number = 1; number < RANKS; number += 2) {
                const struct rank *rank = &job.ranks[number];
                assert_int_equal(node_cells_look(&rank->cells, seq), CELLS_WAIT);
                assert_true(node_cells_root_is_there(&rank->cells, seq, &terms));
                assert_false(node_cells_root_is_there(&rank->cells, seq, &other));
                for (uint64_t element = 0; element < counts[i]; element++) {
                    assert_int_equal(output_of(rank, seq, &terms)[element], 1000 + element);
                }
            }
            assert_int_equal(node_cells_look(&job.ranks[0].cells, seq), CELLS_WAIT);
        }
        for (uint64_t seq = job.seq + 1; seq <= last; seq++) {
            publish(&job.ranks[1], seq, &terms);
            turns(4);
            assert_int_equal(node_cells_look(&job.ranks[0].cells, seq), CELLS_WAIT);
            publish(&job.ranks[3], seq, &terms);
            turns(8);
            for (uint32_t number = 0; number < RANKS; number++) {
                const struct rank *rank = &job.ranks[number];
                assert_int_equal(node_cells_look(&rank->cells, seq), CELLS_DIRECT);
                assert_int_equal(output_of(rank, seq, &terms)[counts[i] - 1],
                                 (int32_t)(1000 + counts[i] - 1));
            }
        }
        job.seq = last;
        check_works(&job, 7);
        job_close(&job);
        world_stop(&world);
    }
}

/* Ranks and commd sleep in every operation between nodes. With a barrier for each sleep, 8 bytes took 39 us
 * in place of 19. */
static void test_sleepers_need_no_barriers(void **state)
{
    struct job job = {0};
    (void)state;
    world_start(&world, NODES, 1, NULL);
    job_open(&job, "job");
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_true(cells_need_fences(job.ranks[i].cells.shared));
    }
    job_close(&job);
    world_stop(&world);
}

/* Ranks that contradict each other, or say what no library says, are told to submit. */
static void test_what_is_wrong_goes_the_usual_way(void **state)
{
    const struct op_terms wrong[] = {
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_COUNT, .count_elements = 1, .bucket_ops = 1},
        {.kind = OP_KIND_COUNT, .dtype = DTYPE_I32, .count_elements = 1, .bucket_ops = 1},
        {.kind = OP_KIND_BROADCAST,
         .dtype = DTYPE_I32,
         .count_elements = 1,
         .root_rank = RANKS,
         .bucket_ops = 1},
        {.kind = OP_KIND_ALL_REDUCE, .dtype = DTYPE_I32, .count_elements = UINT64_MAX, .bucket_ops = 1}};
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct job job = {0}, other = {0};
        world_start(&world, NODES, 1, NULL);
        job_open(&job, "job");
        job_open(&other, "other");
        struct op_terms right = all_reduce_of(1);
        job.seq++;
        for (uint32_t rank = 1; rank < RANKS; rank++) {
            publish(&job.ranks[rank], job.seq, &right);
        }
        struct cell_header *header = cells_header(job.ranks[0].cells.shared, 0, job.seq);
        header->said = (struct cell_terms){.terms = wrong[i]};
        (void)node_cells_publish(&job.ranks[0].cells, 0, job.seq);
        turns(4);
        assert_int_equal(node_cells_look(&job.ranks[0].cells, job.seq), CELLS_BY_COMMD);
        assert_int_equal(node_cells_look(&job.ranks[2].cells, job.seq), CELLS_BY_COMMD);
        check_works(&other, 100);
        job_close(&job);
        job_close(&other);
        world_stop(&world);
    }
}

static uint64_t number_of(struct random *random, uint64_t seq)
{
    switch (random_below(random, 4)) {
    case 0:
        return seq + random_below(random, 4);
    case 1:
        return seq > 2 ? seq - 2 : 0;
    case 2:
        return UINT64_MAX - random_below(random, 3);
    default:
        return random_u64(random);
    }
}

/* A process of the user writes anywhere: one of the numbers, or a few bytes. */
static void scribble(const struct job *job, struct random *random)
{
    struct cells_shared *shared = job->ranks[random_below(random, RANKS)].cells.shared;
    uint32_t index = (uint32_t)random_below(random, LOCAL_RANKS + 1);
    struct cells_rank *its = &shared->ranks[index];
    struct cell_header *header = &its->headers[random_below(random, CELLS_DEPTH)];
    _Atomic uint64_t *const numbers[] = {&shared->open_from, &shared->opened_from, &shared->heads[index],
                                         &its->by_commd,     &header->seq,         &header->seq,
                                         &header->seq};
    uint64_t which = random_below(random, 12);
    if (which < sizeof numbers / sizeof *numbers) {
        atomic_store(numbers[which], number_of(random, job->seq));
        return;
    }
    size_t at =
        (size_t)random_below(random, which < 10 ? sizeof header->said : node_cells_bytes(LOCAL_RANKS) - 8);
    uint64_t bits = random_u64(random);
    memcpy(which < 10 ? (unsigned char *)&header->said + (at > 8 ? at - 8 : 0) : (unsigned char *)shared + at,
           &bits, sizeof bits);
}

static void test_hostile_ranks_harm_their_own_communicator_alone(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= case_count(CASES); seed++) {
        struct random random;
        struct job job = {0}, other = {0};
        random_seed(&random, seed);
        world_start(&world, NODES, seed, NULL);
        job_open(&job, "job");
        job_open(&other, "other");
        for (unsigned step = 0; step < STEPS; step++) {
            struct op_terms terms = all_reduce_of(1 + random_below(&random, 4096));
            terms.kind = (uint8_t)random_below(&random, OP_KIND_COUNT);
            if (random_below(&random, 3) != 0 && node_cells_take(&job.ranks[0].cells, &terms)) {
                publish_all(&job, &terms);
            }
            for (uint64_t left = random_below(&random, 4); left > 0; left--) {
                scribble(&job, &random);
            }
            turns(1);
            if (step % 10 == 9) {
                check_works(&other, 1 + random_below(&random, 1000));
            }
        }
        job_close(&job);
        job_close(&other);
        world_stop(&world);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_operations_end_in_cells),
        cmocka_unit_test(test_a_root_is_ahead),
        cmocka_unit_test(test_sleepers_need_no_barriers),
        cmocka_unit_test(test_what_is_wrong_goes_the_usual_way),
        cmocka_unit_test(test_hostile_ranks_harm_their_own_communicator_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
