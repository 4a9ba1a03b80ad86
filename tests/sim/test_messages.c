#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/sim_comm.h"

/*
 * Messages from rank to rank, over pipes, and over datagrams that are lost and overtaken. The tests check
 * which receive takes which message, in what order and for all sizes, against a list of what was sent.
 */
enum { RANKS_MAX = 8, POSTS_MAX = 4000, BYTES_MAX = 60000 };

/* One send or receive. */
struct post {
    bool sends;
    bool done;
    uint32_t rank, peer, tag;
    uint64_t number; /* for a send: its number among all sends */
    uint64_t count;  /* bytes to send; for a receive, bytes that came */
    uint32_t source;
    struct error result;
    unsigned char *bytes;
    struct memory *memory;
};

struct world {
    struct cluster *cluster;
    struct comms_member *members[RANKS_MAX];
    bool formed[RANKS_MAX];
    uint32_t size;
    struct post posts[POSTS_MAX];
    uint32_t post_count;
    uint32_t done_count;
    uint32_t collectives; /* how many have ended well; their ticket is POSTS_MAX */
    struct error aborted;
};
static struct world world;

static void on_formed(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns)
{
    (void)member;
    (void)now_ns;
    assert_int_equal(result->status, STATUS_OK);
    *(bool *)context = true;
}

static void on_completed(void *context, struct comms_member *member,
                         const struct comms_completion *completion, uint64_t now_ns)
{
    (void)context;
    (void)member;
    (void)now_ns;
    if (completion->ticket == POSTS_MAX) {
        assert_int_equal(completion->result->status, STATUS_OK);
        world.collectives++;
        return;
    }
    struct post *post = &world.posts[completion->ticket];
    assert_false(post->done);
    post->done = true;
    post->result = *completion->result;
    if (!post->sends) {
        post->source = completion->source_rank;
        post->count = completion->count_elements;
    }
    world.done_count++;
}

static void on_aborted(void *context, struct comms_member *member, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)member;
    (void)now_ns;
    world.aborted = *cause;
}

static bool all_formed(const void *context)
{
    const struct world *of = context;
    for (uint32_t i = 0; i < of->size; i++) {
        if (!of->formed[i]) {
            return false;
        }
    }
    return true;
}

static bool all_done(const void *context)
{
    const struct world *of = context;
    return of->done_count == of->post_count;
}

static void start(uint32_t seed, uint32_t nodes, uint32_t size, double loss, uint64_t op_timeout_ms)
{
    memset(&world, 0, sizeof world);
    struct network_conditions conditions = {.loss = loss,
                                            .duplication = loss,
                                            .delay_ns = 50 * TIME_US,
                                            .jitter_ns = 200 * TIME_US,
                                            .packet_bytes = 4096};
    world.cluster = cluster_new(&(struct cluster_options){
        .seed = cluster_seed(seed), .node_count = nodes, .conditions = conditions, .datagrams = loss > 0});
    world.size = size;
    for (uint32_t i = 0; i < size; i++) {
        struct comms_client client = {.pid = (pid_t)(1000 + i), .uid = 1000};
        struct comms_terms terms = {.name = "post", .rank = i, .size = size, .op_timeout_ms = op_timeout_ms};
        struct comms_member_handler handler = {.context = &world.formed[i],
                                               .formed = on_formed,
                                               .completed = on_completed,
                                               .aborted = on_aborted};
        struct error error;
        assert_int_equal(comms_member_join(world.cluster->nodes[i % nodes].comms, &client, &terms, &handler,
                                           world.cluster->now_ns, &world.members[i], &error),
                         STATUS_OK);
    }
    cluster_touch(world.cluster);
    assert_true(cluster_run_until(world.cluster, all_formed, &world, 30 * TIME_S));
}

static void stop(void)
{
    for (uint32_t i = 0; i < world.size; i++) {
        if (world.members[i] != NULL) {
            comms_member_leave(world.members[i], COMMS_LEAVE_ORDERLY, world.cluster->now_ns);
        }
    }
    cluster_touch(world.cluster);
    cluster_run(world.cluster, TIME_MS);
    for (uint32_t i = 0; i < world.post_count; i++) {
        memory_unref(world.posts[i].memory);
        free(world.posts[i].bytes);
    }
    cluster_free(world.cluster);
}

static unsigned char byte_of(uint64_t number, uint64_t at)
{
    return (unsigned char)((number + 1) * 167 + at * 13 + (at >> 8));
}

static struct post *post(bool sends, uint32_t rank, uint32_t peer, uint32_t tag, uint64_t bytes,
                         enum dtype dtype)
{
    struct post *new_post = &world.posts[world.post_count];
    struct error error;
    assert_true(world.post_count < POSTS_MAX);
    *new_post = (struct post){
        .sends = sends, .rank = rank, .peer = peer, .tag = tag, .number = world.post_count, .count = bytes};
    new_post->bytes = malloc(bytes + 1);
    assert_non_null(new_post->bytes);
    for (uint64_t i = 0; i <= bytes; i++) {
        new_post->bytes[i] = sends ? byte_of(new_post->number, i) : 0xa5;
    }
    assert_int_equal(memory_wrap(new_post->bytes, bytes + 1, &new_post->memory, &error), STATUS_OK);
    struct comms_op op = {.ticket = world.post_count,
                          .terms.kind = sends ? OP_KIND_SEND : OP_KIND_RECEIVE,
                          .terms.dtype = dtype,
                          .terms.count_elements = bytes / dtype_size_bytes(dtype),
                          .peer_rank = peer,
                          .tag = tag};
    *(sends ? &op.input : &op.output) = (struct comms_op_range){new_post->memory, 0};
    if (comms_submit(world.members[rank], &op, world.cluster->now_ns, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    world.post_count++;
    cluster_touch(world.cluster);
    return new_post;
}

static void check_bytes(const struct post *receive, const struct post *send)
{
    assert_int_equal(receive->count, send->count);
    assert_int_equal(receive->source, send->rank);
    for (uint64_t i = 0; i < send->count; i++) {
        if (receive->bytes[i] != byte_of(send->number, i)) {
            fail_msg("message %llu of %llu bytes, byte %llu is wrong", (unsigned long long)send->number,
                     (unsigned long long)send->count, (unsigned long long)i);
        }
    }
    assert_int_equal(receive->bytes[send->count], 0xa5);
}

/* Checks that each receive has the first message of its source that fits it and that no other receive has. */
static void check_matches(void)
{
    static bool taken[POSTS_MAX];
    memset(taken, 0, sizeof taken);
    for (uint32_t r = 0; r < world.post_count; r++) {
        const struct post *receive = &world.posts[r];
        assert_int_equal(receive->result.status, STATUS_OK);
        if (receive->sends) {
            continue;
        }
        uint32_t s = 0; /* the first message of its source that is not taken */
        while (s < world.post_count &&
               !(world.posts[s].sends && !taken[s] && world.posts[s].peer == receive->rank &&
                 world.posts[s].tag == receive->tag && world.posts[s].rank == receive->source)) {
            s++;
        }
        assert_true(s < world.post_count);
        assert_true(receive->peer == COMM_ANY_SOURCE_RANK || receive->peer == receive->source);
        taken[s] = true;
        check_bytes(receive, &world.posts[s]);
    }
}

/*
 * Random sends and receives. In the end, every receive has a message that fits it, and every message has one
 * receive. For one sender, receiver and tag, the k-th receive has the k-th message, in the order of posting.
 * Receives from any source have tags of their own.
 */
static void run_random(uint32_t seed)
{
    enum { TAGS = 3, MESSAGES = 300 };
    start(seed, 1 + seed % 4, 2 + seed % 7, seed % 3 * 0.02, 0);
    struct random *random = &world.cluster->random;
    int64_t balance[RANKS_MAX][RANKS_MAX][TAGS]; /* sends minus receives; by receiver, sender, tag */
    memset(balance, 0, sizeof balance);
    for (uint32_t i = 0; i < MESSAGES; i++) {
        uint32_t from = (uint32_t)random_below(random, world.size),
                 to = (uint32_t)random_below(random, world.size);
        uint32_t tag = (uint32_t)random_below(random, TAGS);
        uint64_t bytes =
            random_below(random, 3) == 0 ? random_below(random, BYTES_MAX) : random_below(random, 50);
        if (random_below(random, 2) == 0) {
            (void)post(true, from, to, tag, bytes, DTYPE_U8);
            balance[to][from][tag]++;
        } else {
            (void)post(false, to, tag == 2 ? COMM_ANY_SOURCE_RANK : from, tag, BYTES_MAX, DTYPE_U8);
            balance[to][tag == 2 ? 0 : from][tag]--;
        }
        if (random_below(random, 4) == 0) {
            cluster_run(world.cluster, random_below(random, TIME_MS));
        }
    }
    for (uint32_t to = 0; to < world.size; to++) {
        int64_t any = 0;
        for (uint32_t from = 0; from < world.size; from++) {
            for (uint32_t tag = 0; tag < 2; tag++) {
                for (; balance[to][from][tag] > 0; balance[to][from][tag]--) {
                    (void)post(false, to, from, tag, BYTES_MAX, DTYPE_U8);
                }
                for (; balance[to][from][tag] < 0; balance[to][from][tag]++) {
                    (void)post(true, from, to, tag, random_below(random, 40000), DTYPE_U8);
                }
            }
            any += balance[to][from][2];
        }
        for (; any > 0; any--) {
            (void)post(false, to, COMM_ANY_SOURCE_RANK, 2, BYTES_MAX, DTYPE_U8);
        }
        for (; any < 0; any++) {
            (void)post(true, (uint32_t)random_below(random, world.size), to, 2, 100, DTYPE_U8);
        }
    }
    assert_true(cluster_run_until(world.cluster, all_done, &world, 60 * TIME_S));
    check_matches();
    stop();
}

static void test_at_random(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 60; seed++) {
        run_random(seed);
    }
}

/* A receive with another tag does not take a message, and the other messages keep their order. */
static void test_09_other_tags_consume_nothing(void **state)
{
    (void)state;
    start(1000, 2, 2, 0.02, 0);
    static const uint64_t sizes[] = {40000, 10, 0, 16384, 16385, 50000};
    struct post *sends[6], *receives[6];
    for (uint32_t i = 0; i < 6; i++) {
        sends[i] = post(true, 0, 1, i, sizes[i], DTYPE_U8);
    }
    cluster_run(world.cluster, 20 * TIME_MS);
    for (uint32_t i = 6; i-- > 0;) { /* the last one first */
        receives[i] = post(false, 1, 0, i, BYTES_MAX, DTYPE_U8);
        cluster_run(world.cluster, 20 * TIME_MS);
        assert_true(receives[i]->done);
        check_bytes(receives[i], sends[i]);
    }
    stop();
}

/* A message that is longer than the receive's room, or of another type, fails. So does the receive, but
 * nothing else. */
static void test_messages_that_do_not_fit(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        static const uint64_t sizes[] = {800, 40000};
        start(1001 + nodes, nodes, 2, 0.01, 0);
        for (uint32_t i = 0; i < 2; i++) {
            struct post *send = post(true, 0, 1, 5, sizes[i], DTYPE_U8);
            struct post *receive = post(false, 1, 0, 5, sizes[i] - 8, DTYPE_U8);
            struct post *typed_send = post(true, 0, 1, 6, sizes[i], DTYPE_F32);
            struct post *typed_receive = post(false, 1, 0, 6, sizes[i], DTYPE_I32);
            struct post *fine_send = post(true, 0, 1, 7, sizes[i], DTYPE_U8);
            struct post *fine_receive = post(false, 1, 0, 7, sizes[i], DTYPE_U8);
            assert_true(cluster_run_until(world.cluster, all_done, &world, 10 * TIME_S));
            assert_int_equal(receive->result.status, STATUS_MISMATCH);
            assert_non_null(strstr(receive->result.text, "rank 0 sent"));
            assert_int_equal(typed_receive->result.status, STATUS_MISMATCH);
            assert_non_null(strstr(typed_receive->result.text, "f32"));
            assert_non_null(strstr(typed_receive->result.text, "i32"));
            if (sizes[i] > 16384) { /* small messages had left before */
                assert_int_equal(send->result.status, STATUS_MISMATCH);
                assert_int_equal(typed_send->result.status, STATUS_MISMATCH);
            }
            assert_int_equal(fine_send->result.status, STATUS_OK);
            check_bytes(fine_receive, fine_send);
        }
        assert_int_equal(world.aborted.status, STATUS_OK);
        stop();
    }
}

/* More messages than the receiver keeps: the sender must wait. All arrive once they are received. */
static void test_unexpected_messages_are_bounded(void **state)
{
    enum { COUNT = 900 };
    (void)state;
    start(1010, 2, 2, 0, 0);
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)post(true, 0, 1, 1, 4000, DTYPE_U8);
    }
    cluster_run(world.cluster, TIME_S);
    for (uint32_t i = 0; i < COUNT; i++) {
        (void)post(false, 1, 0, 1, 4000, DTYPE_U8);
        if (i % 50 == 0) {
            cluster_run(world.cluster, TIME_MS);
        }
    }
    assert_true(cluster_run_until(world.cluster, all_done, &world, 10 * TIME_S));
    for (uint32_t i = 0; i < COUNT; i++) {
        check_bytes(&world.posts[COUNT + i], &world.posts[i]);
    }
    stop();
}

/* A message that nobody receives ends at its deadline, with a text that says for what it waited. So does a
 * receive for which nobody sends. */
static void test_deadlines(void **state)
{
    (void)state;
    for (uint32_t sends = 0; sends < 2; sends++) {
        start(1020 + sends, 2, 2, 0, 500);
        struct post *lonely = post(sends == 1, 0, 1, 77, 30000, DTYPE_U8);
        cluster_run(world.cluster, 400 * TIME_MS);
        assert_false(lonely->done);
        cluster_run(world.cluster, 400 * TIME_MS);
        assert_true(lonely->done);
        assert_int_equal(lonely->result.status, STATUS_TIMED_OUT);
        assert_non_null(strstr(lonely->result.text, "tag 77"));
        assert_int_equal(world.aborted.status, STATUS_OK); /* only the message ended */
        stop();
    }
}

static void leave_rank(uint32_t rank)
{
    comms_member_leave(world.members[rank], COMMS_LEAVE_ORDERLY, world.cluster->now_ns);
    world.members[rank] = NULL;
    cluster_touch(world.cluster);
}

/* After a message's deadline the communicator goes on. Its collectives go on beside many messages, too. */
static void test_the_communicator_goes_on(void **state)
{
    enum { COUNT = 1200 };
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        start(1030 + nodes, nodes, 2, nodes == 2 ? 0.01 : 0, 20000);
        struct post *lonely = post(false, 1, 0, 77, 100, DTYPE_U8);
        for (uint32_t i = 0; i < COUNT; i++) {
            (void)post(false, 1, 0, 1, 16384, DTYPE_U8);
        }
        for (uint32_t i = 0; i < COUNT; i++) {
            (void)post(true, 0, 1, 1, 16384, DTYPE_U8);
            if (i % 100 == 0) {
                struct comms_op barrier = {.ticket = POSTS_MAX, .terms.kind = OP_KIND_BARRIER};
                struct error error;
                for (uint32_t rank = 0; rank < 2; rank++) {
                    assert_int_equal(
                        comms_submit(world.members[rank], &barrier, world.cluster->now_ns, &error),
                        STATUS_OK);
                }
            }
        }
        cluster_run(world.cluster, 19 * TIME_S);
        assert_int_equal(world.done_count, 2 * COUNT);
        assert_int_equal(world.collectives, 2 * COUNT / 100);
        for (uint32_t i = 0; i < COUNT; i++) {
            check_bytes(&world.posts[1 + i], &world.posts[1 + COUNT + i]);
        }
        cluster_run(world.cluster, 2 * TIME_S);
        assert_int_equal(lonely->result.status, STATUS_TIMED_OUT);
        assert_non_null(
            strstr(lonely->result.text, "recv from rank 0 (node n000), tag 77: nothing has come"));
        assert_int_equal(world.aborted.status, STATUS_OK);
        stop();
    }
}

/* A send ended well, then the sender left, and its node gave up its part of the communicator. The message
 * is received, even if the news of that came first. */
static void test_a_sender_that_left(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 12; turn++) {
        uint32_t nodes = 1 + turn % 3;
        start(1040 + turn, nodes, 3, nodes > 1 ? 0.03 : 0, 0);
        struct post *sends[4];
        struct post *waits = post(false, 1, 0, 9, 100, DTYPE_U8);
        for (uint32_t i = 0; i < 4; i++) {
            sends[i] = post(true, 0, 1, i, 16384, DTYPE_U8);
        }
        while (!sends[3]->done) {
            cluster_run(world.cluster, 10 * TIME_US);
        }
        leave_rank(0);
        cluster_run(world.cluster, turn % 2 == 0 ? TIME_S : 0);
        for (uint32_t i = 0; i < 4; i++) {
            struct post *receive = post(false, 1, i % 2 == 0 ? 0 : COMM_ANY_SOURCE_RANK, i, 16384, DTYPE_U8);
            assert_true(cluster_run_until(world.cluster, all_done, &world, 5 * TIME_S) || !waits->done);
            cluster_run(world.cluster, TIME_S);
            assert_true(receive->done);
            assert_int_equal(receive->result.status, STATUS_OK);
            check_bytes(receive, sends[i]);
        }
        assert_true(waits->done);
        assert_int_equal(waits->result.status, STATUS_RANK_LOST);
        assert_int_equal(world.aborted.status, STATUS_OK);
        stop();
    }
}

/* Messages are given up at any moment. Every message ends once, and the network then holds none of their
 * buffers. */
static void test_given_up_at_any_moment(void **state)
{
    (void)state;
    for (uint32_t turn = 0; turn < 25; turn++) {
        start(1100 + turn, 3, 6, 0.01, 0);
        struct random *random = &world.cluster->random;
        for (uint32_t i = 0; i < 120; i++) {
            uint32_t from = (uint32_t)random_below(random, 6), to = (uint32_t)random_below(random, 6);
            (void)post(i % 2 == 0, i % 2 == 0 ? from : to, i % 2 == 0 ? to : from,
                       (uint32_t)random_below(random, 4), random_below(random, BYTES_MAX), DTYPE_U8);
        }
        cluster_run(world.cluster, turn * 100 * TIME_US);
        comms_member_leave(world.members[5], COMMS_LEAVE_LOST, world.cluster->now_ns);
        world.members[5] = NULL;
        cluster_touch(world.cluster);
        cluster_run(world.cluster, 2 * TIME_S);
        for (uint32_t i = 0; i < world.post_count; i++) {
            const struct post *each = &world.posts[i];
            assert_true(each->done || each->rank == 5);
        }
        stop();
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_at_random),
        cmocka_unit_test(test_09_other_tags_consume_nothing),
        cmocka_unit_test(test_messages_that_do_not_fit),
        cmocka_unit_test(test_unexpected_messages_are_bounded),
        cmocka_unit_test(test_deadlines),
        cmocka_unit_test(test_the_communicator_goes_on),
        cmocka_unit_test(test_a_sender_that_left),
        cmocka_unit_test(test_given_up_at_any_moment),
    };
    return cluster_report(cmocka_run_group_tests(tests, NULL, NULL));
}
