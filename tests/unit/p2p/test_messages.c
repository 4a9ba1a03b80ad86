#include "tests/unit/p2p/p2p_nodes.h"

/* Messages behave as MPI defines it, both within a node and between nodes. */

#define EAGER MESSAGE_EAGER_MAX_BYTES
#define BIG (3u << 20)

static unsigned char source[BIG], target[BIG];

static void fill(unsigned seed)
{
    for (size_t i = 0; i < BIG; i++) {
        source[i] = (unsigned char)(i * 7 + (i >> 8) + seed);
    }
    memset(target, 0xa5, BIG);
}

/* A rank posts any number of messages in one direction. Nothing stalls. Each post has its own storage, which
 * bounds the memory. */
static void many_one_way(uint32_t nodes, uint32_t count)
{
    struct post *sends = calloc(count, sizeof *sends), *receives = calloc(count, sizeof *receives);
    assert_true(sends != NULL && receives != NULL);
    start(nodes, 2, NULL);
    fill(1);
    for (uint32_t i = 0; i < count; i++) {
        post_receive(&receives[i], 1, 0, 0, target, EAGER);
    }
    for (uint32_t i = 0; i < count; i++) {
        post_send(&sends[i], 0, 1, 0, source, EAGER);
    }
    settle(0);
    for (uint32_t i = 0; i < count; i++) {
        assert_ended(&sends[i], STATUS_OK);
        assert_ended(&receives[i], STATUS_OK);
    }
    assert_memory_equal(source, target, EAGER);
    stop();
    free(sends);
    free(receives);
}

static void test_many_one_way(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        many_one_way(nodes, 1000);
        many_one_way(nodes, 100000);
    }
}

/* The same with the sends first. Envelopes are never held back. */
static void test_many_unexpected(void **state)
{
    enum { COUNT = 20000 };
    static struct post sends[COUNT], receives[COUNT];
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        start(nodes, 2, NULL);
        fill(2);
        for (uint32_t i = 0; i < COUNT; i++) {
            post_send(&sends[i], 0, 1, i, source + i, EAGER);
        }
        turns(2000);
        for (uint32_t i = COUNT; i-- > 0;) {
            post_receive(&receives[i], 1, 0, i, target, EAGER);
        }
        settle(0);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_ended(&sends[i], STATUS_OK);
            assert_ended(&receives[i], STATUS_OK);
        }
        stop();
    }
}

/* Messages of one tag or pair that nobody receives hold up no others. */
static void test_other_pairs_and_tags_go_on(void **state)
{
    enum { COUNT = 400 };
    static struct post unreceived[COUNT];
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct post sends[3], receives[3];
        start(nodes, 4, NULL);
        fill(3);
        for (uint32_t i = 0; i < COUNT; i++) {
            post_send(&unreceived[i], 0, 1, 1, source, EAGER);
        }
        turns(1000);
        static const uint32_t froms[] = {0, 2, 3};
        for (uint32_t i = 0; i < 3; i++) {
            post_send(&sends[i], froms[i], 1, 2, source, i == 1 ? BIG : 100);
            post_receive(&receives[i], 1, froms[i], 2, target, BIG);
        }
        settle(COUNT - P2P_CREDIT_MAX_BYTES / EAGER);
        for (uint32_t i = 0; i < 3; i++) {
            assert_ended(&sends[i], STATUS_OK);
            assert_ended(&receives[i], STATUS_OK);
        }
        assert_memory_equal(source, target, BIG);
        stop();
    }
}

/* A send of at most the eager limit ends at once, wherever the receiver is, as long as the pair has credit.
 */
static void test_eager_sends_end_at_once(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct post sends[6], receives[6];
        start(nodes, 2, NULL);
        fill(4);
        for (uint32_t i = 0; i < 2; i++) { /* both ranks send to each other */
            post_send(&sends[i], i, 1 - i, 0, source, EAGER);
        }
        settle(0);
        for (uint32_t i = 0; i < 2; i++) {
            post_receive(&receives[i], i, 1 - i, 0, target, EAGER);
        }
        settle(0);
        assert_memory_equal(source, target, EAGER);
        for (uint32_t i = 0; i < 6; i++) { /* the credit is 64 KiB */
            post_send(&sends[i], 0, 1, 0, source, EAGER);
        }
        turns(500);
        assert_true(world.pending == 2 ||
                    world.pending == 3); /* the receiver may not have reported yet what it took */
        for (uint32_t i = 0; i < 6; i++) {
            post_receive(&receives[i], 1, 0, 0, target, EAGER);
        }
        settle(0);
        post_send(&sends[0], 0, 1, 0, source, EAGER); /* it has credit again */
        settle(0);
        stop();
    }
}

/* --- Ends --- */

static uint32_t both_ended;

/* The deadline of either side passes, at any moment. That message ends on both sides, and nothing else does.
 * A send may have ended well meanwhile: its last byte was there, or it was eager. */
static void cancelled(uint32_t nodes, uint64_t bytes, bool cancels_send, uint32_t after)
{
    struct post send, receive, next_send, next_receive;
    start(nodes, 2, NULL);
    fill(5);
    post_send(&send, 0, 1, 7, source, bytes);
    turns(after % 3);
    post_receive(&receive, 1, 0, 7, target, bytes);
    turns(after);
    cancel(cancels_send ? &send : &receive, "too late");
    settle(0);
    if (send.result.status != STATUS_OK && receive.result.status != STATUS_OK) {
        assert_ended(&send, STATUS_TIMED_OUT);
        assert_ended(&receive, STATUS_TIMED_OUT);
        assert_string_equal((cancels_send ? &send : &receive)->result.text, "too late");
        assert_non_null(strstr((cancels_send ? &receive : &send)->result.text, "ended first"));
        both_ended++;
    }
    memset(target, 0x11, bytes);
    turns(3000);
    for (uint64_t i = 0; i < bytes; i++) { /* nobody writes to the buffer of a message that has ended */
        assert_int_equal(target[i], 0x11);
    }
    post_send(&next_send, 0, 1, 8, source, bytes);
    post_receive(&next_receive, 1, 0, 8, target, bytes);
    settle(0);
    assert_ended(&next_send, STATUS_OK);
    assert_ended(&next_receive, STATUS_OK);
    assert_memory_equal(source, target, bytes);
    stop();
}

static void test_cancelled_at_any_moment(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        for (uint32_t after = 0; after < 40; after++) {
            for (uint32_t cancels_send = 0; cancels_send < 2; cancels_send++) {
                cancelled(nodes, after % 4 == 0 ? 1000 : 40000 + after * 50000, cancels_send == 1, after);
            }
        }
    }
    assert_true(both_ended >= 10);
}

/* A receive for which nothing came, and a send that nobody took. */
static void test_a_deadline_of_its_own(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct post receive, send, later;
        start(nodes, 2, NULL);
        post_receive(&receive, 1, 0, 1, target, 100);
        post_send(&send, 0, 1, 2, source, BIG);
        turns(300);
        cancel(&receive, "nothing came");
        cancel(&send, "nobody took it");
        settle(0);
        assert_ended(&receive, STATUS_TIMED_OUT);
        assert_ended(&send, STATUS_TIMED_OUT);
        turns(300);
        post_send(&send, 0, 1, 1, source, 100); /* goes to the next receive, not to the one that ended */
        post_receive(&later, 1, 0, 1, target, 100);
        settle(0);
        assert_ended(&later, STATUS_OK);
        post_receive(&receive, 1, 0, 2, target, BIG); /* the envelope was withdrawn */
        turns(500);
        assert_int_equal(receive.calls, 0);
        stop();
    }
}

/* --- Ranks that leave --- */

static void test_what_was_sent_is_received_after_its_sender_left(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 3; nodes++) {
        struct post sends[3], receive, pending;
        struct error error;
        start(nodes, 3, NULL);
        fill(6);
        post_receive(&pending, 1, 0, 9, target, 10);
        for (uint32_t i = 0; i < 3; i++) {
            post_send(&sends[i], 0, 1, 0, source + i, EAGER);
        }
        settle(1);
        leave(0);
        settle(0);
        assert_ended(&pending, STATUS_RANK_LOST);
        assert_non_null(strstr(pending.result.text, "rank 0 (pid 5000) of node n0 has left"));
        for (uint32_t i = 0; i < 3; i++) {
            post_receive(&receive, 1, i == 1 ? COMM_ANY_SOURCE_RANK : 0, 0, target, EAGER);
            settle(0);
            assert_ended(&receive, STATUS_OK);
            assert_int_equal(receive.source, 0);
            assert_memory_equal(source + i, target, EAGER);
        }
        assert_int_equal(try_post(&receive, false, 1, 0, 0, target, EAGER, &error), STATUS_RANK_LOST);
        assert_int_equal(try_post(&receive, true, 1, 0, 0, source, EAGER, &error), STATUS_RANK_LOST);
        stop();
    }
}

static void test_who_waits_for_a_rank_that_leaves(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        struct post big, queued, any, other_send, other_receive;
        struct error error;
        start(nodes, 3, NULL);
        fill(7);
        post_send(&big, 0, 1, 0, source, BIG);
        post_send(&queued, 0, 1, 0, source, BIG);
        post_receive(&any, 0, COMM_ANY_SOURCE_RANK, 3, target, BIG);
        turns(nodes == 1 ? 0 : 300);
        leave(1);
        settle(1);
        assert_ended(&big, STATUS_RANK_LOST);
        assert_ended(&queued, STATUS_RANK_LOST);
        post_send(&other_send, 2, 0, 4, source, BIG); /* the others go on */
        post_receive(&other_receive, 0, 2, 4, target, BIG);
        settle(1);
        assert_ended(&other_receive, STATUS_OK);
        assert_int_equal(any.calls, 0);
        leave(2);
        settle(0);
        assert_ended(&any, STATUS_RANK_LOST);
        assert_string_equal(any.result.text, "recv from any rank on \"test\": every other rank has left");
        assert_non_null(strstr(big.result.text, "rank 1 (pid 5001) of node n"));
        assert_int_equal(try_post(&any, false, 0, COMM_ANY_SOURCE_RANK, 3, target, BIG, &error),
                         STATUS_RANK_LOST);
        stop();
    }
}

/* A text takes half a KiB. So receives that end for the same reason share one. */
static void test_receives_that_wait_for_a_rank_that_leaves_share_a_text(void **state)
{
    (void)state;
    struct post receives[64];
    start(1, 3, NULL);
    for (uint32_t i = 0; i < 64; i++) {
        post_receive(&receives[i], 0, 1, i, target, 16);
    }
    leave(1);
    settle(0);
    for (uint32_t i = 0; i < 64; i++) {
        assert_ended(&receives[i], STATUS_RANK_LOST);
        assert_ptr_equal(receives[i].result_at, receives[0].result_at);
    }
    stop();
}

/* Messages that a rank has pending when it leaves end for the other side, too. */
static void test_a_rank_that_leaves_with_messages_pending(void **state)
{
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        for (uint32_t after = 0; after < 30; after += 3) {
            struct post send, receive, take, give;
            start(nodes, 2, NULL);
            post_send(&send, 1, 0, 0, source, BIG);
            post_receive(&take, 0, 1, 0, target, BIG);
            post_receive(&receive, 1, 0, 1, target, BIG);
            post_send(&give, 0, 1, 1, source, BIG);
            turns(after);
            leave(1);
            settle(0);
            assert_true(take.result.status == STATUS_RANK_LOST || take.result.status == STATUS_OK);
            assert_true(give.result.status == STATUS_RANK_LOST || give.result.status == STATUS_OK);
            stop();
        }
    }
}

/* --- The store --- */

/* Beyond the receiver's budget, the sends that would be stored last end with LIMIT, and no others. Between
 * nodes, an eager send has ended well already, so its receive ends with LIMIT. */
static void test_a_store_that_is_full(void **state)
{
    enum { COUNT = 100 };
    uint64_t all[BUDGET_KINDS];
    (void)state;
    for (uint32_t nodes = 1; nodes <= 2; nodes++) {
        static struct post sends[COUNT], eager[4], receive;
        struct budget *budget;
        struct budget_account *accounts[2] = {NULL, NULL};
        for (int i = 0; i < BUDGET_KINDS; i++) {
            all[i] = 1u << 20;
        }
        all[BUDGET_EARLY] = 16000;
        assert_int_equal(budget_new(all, &budget, NULL), STATUS_OK);
        assert_int_equal(budget_open(budget, 1, "", &accounts[1], NULL), STATUS_OK);
        start(nodes, 2, accounts);
        uint32_t refused = 0;
        for (uint32_t i = 0; i < COUNT; i++) {
            post_send(&sends[i], 0, 1, i, source, BIG);
        }
        turns(500);
        for (uint32_t i = 0; i < COUNT; i++) {
            assert_true(sends[i].calls == 0 || sends[i].result.status == STATUS_LIMIT);
            refused += sends[i].calls;
        }
        assert_true(refused > COUNT / 4 && refused < COUNT);
        assert_int_equal(sends[0].calls, 0);
        post_send(&eager[0], 0, 1, 1000, source, EAGER);
        turns(500);
        assert_int_equal(try_post(&receive, false, 1, 0, 0, target, BIG, NULL), STATUS_OK);
        settle(COUNT - refused - 1 + (nodes == 1 ? eager[0].calls == 0 : 0));
        assert_ended(&receive, STATUS_OK);
        if (nodes == 2) {
            assert_ended(&eager[0], STATUS_OK);
            post_receive(&receive, 1, 0, 1000, target, EAGER);
            settle(COUNT - refused - 1);
            assert_ended(&receive, STATUS_LIMIT);
        }
        stop();
        budget_close(accounts[1]);
        budget_free(budget);
    }
}

/* --- At random --- */

/*
 * Everything happens at random. Nothing hangs, nothing ends twice, and what ends well is right and in order.
 * A naive model says which send each receive took. Messages of one sender, receiver and tag are taken in the
 * order sent. There are gaps where a send, or the receive that took it, was given up.
 */
static void run_random(uint32_t seed)
{
    enum { POSTS = 250, RANKS = 5, TAGS = 3, BYTES = 50000 };
    static struct post posts[POSTS];
    static unsigned char buffers[POSTS][BYTES];
    static uint32_t numbers[RANKS][RANKS][TAGS], taken[RANKS][RANKS][TAGS];
    uint64_t lot = seed * 2654435761u + 1;
#define LOT(below) ((uint32_t)((lot = lot * 6364136223846793005u + 1442695040888963407u) >> 33) % (below))
    uint32_t size = 2 + seed % (RANKS - 1);
    memset(numbers, 0, sizeof numbers);
    memset(taken, 0, sizeof taken);
    start(1 + seed % NODES_MAX < size ? 1 + seed % NODES_MAX : size, size, NULL);
    for (uint32_t i = 0; i < POSTS; i++) {
        uint32_t from = LOT(size), to = LOT(size), tag = LOT(TAGS);
        uint32_t bytes = LOT(3) == 0 ? 8 + LOT(BYTES - 8) : 8 + LOT(100);
        if (LOT(2) == 0) {
            uint32_t mark[2] = {from * 100 + tag, ++numbers[from][to][tag]};
            memset(buffers[i], (int)(mark[1] & 0xff), BYTES);
            memcpy(buffers[i], mark, sizeof mark);
            post_send(&posts[i], from, to, tag, buffers[i], bytes);
        } else {
            memset(buffers[i], 0xee, BYTES);
            post_receive(&posts[i], to, LOT(4) == 0 ? COMM_ANY_SOURCE_RANK : from, tag, buffers[i], BYTES);
        }
        turns(LOT(4) == 0 ? LOT(60) : 0);
        struct post *victim = &posts[LOT(i + 1)];
        if (LOT(6) == 0 && victim->calls == 0) {
            cancel(victim, "at random");
        }
    }
    turns(3000);
    for (uint32_t i = 0; i < POSTS; i++) {
        if (posts[i].calls == 0) {
            cancel(&posts[i], "at last");
        }
    }
    settle(0);
    for (uint32_t i = 0; i < POSTS; i++) { /* in the order posted, in which receives of one key are matched */
        const struct p2p_message *message = &posts[i].message;
        uint32_t mark[2];
        if (message->sends || posts[i].result.status != STATUS_OK) {
            continue;
        }
        memcpy(mark, buffers[i], sizeof mark);
        assert_int_equal(mark[0], posts[i].source * 100 + message->tag);
        assert_true(mark[1] >= 1 && mark[1] <= numbers[posts[i].source][message->rank][message->tag]);
        if (message->peer_rank != COMM_ANY_SOURCE_RANK) {
            uint32_t *last = &taken[posts[i].source][message->rank][message->tag];
            assert_true(mark[1] > *last);
            *last = mark[1];
        }
        for (uint64_t at = 8; at < posts[i].count; at++) {
            assert_int_equal(buffers[i][at], mark[1] & 0xff);
        }
        for (uint64_t at = posts[i].count; at < BYTES; at++) {
            assert_int_equal(buffers[i][at], 0xee);
        }
    }
    stop();
}

static void test_at_random(void **state)
{
    (void)state;
    for (uint32_t seed = 0; seed < 120; seed++) {
        run_random(seed);
    }
}

static enum status comm_try(struct p2p *p2p, struct budget_account *account, struct p2p_comm **out,
                            struct error *error)
{
    static const uint32_t node_of_rank[4] = {0}, peers[1] = {0};
    static const char *const names[1] = {"a"};
    const struct p2p_comm_handler handler = {.failed = node_failed};
    struct comm_map facts = {.comm_id = 1,
                             .ranks = {.size = 4, .node_count = 1},
                             .node_of_rank = node_of_rank,
                             .peers = peers,
                             .node_names = names,
                             .name = "alone",
                             .account = account};
    struct comm_map *map = NULL;
    enum status status = comm_map_new(&facts, &map, error);
    if (status == STATUS_OK) {
        status = p2p_comm_new(p2p, map, NULL, &handler, out, error);
    }
    comm_map_release(map);
    return status;
}

/* A communicator beyond the ceiling is refused. What the other one took is given back. */
static void test_communicators_are_charged(void **state)
{
    (void)state;
    struct budget *budget;
    struct budget_account *account;
    struct budget_info info;
    struct p2p *p2p;
    struct p2p_comm *comm;
    struct error error;
    assert_int_equal(budget_new(NULL, &budget, NULL), STATUS_OK);
    assert_int_equal(budget_open(budget, 1000, NULL, &account, NULL), STATUS_OK);
    assert_int_equal(p2p_new(NULL, &p2p, NULL), STATUS_OK);
    assert_int_equal(comm_try(p2p, account, &comm, &error), STATUS_OK);
    budget_account_info(account, &info);
    uint64_t bytes = info.used[BUDGET_COMMUNICATOR_BYTES];
    assert_in_range(bytes, 512, 8192);
    p2p_comm_free(comm);
    budget_account_info(account, &info);
    assert_int_equal(info.used[BUDGET_COMMUNICATOR_BYTES], 0);
    budget_set_ceiling(budget, BUDGET_COMMUNICATOR_BYTES, bytes - 1);
    assert_int_equal(comm_try(p2p, account, &comm, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "communicator \"alone\""));
    assert_non_null(strstr(error.text, "user_limit_communicator_bytes"));
    budget_account_info(account, &info);
    assert_int_equal(info.used[BUDGET_COMMUNICATOR_BYTES], 0);
    p2p_free(p2p);
    budget_close(account);
    budget_free(budget);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_one_way),
        cmocka_unit_test(test_many_unexpected),
        cmocka_unit_test(test_other_pairs_and_tags_go_on),
        cmocka_unit_test(test_eager_sends_end_at_once),
        cmocka_unit_test(test_cancelled_at_any_moment),
        cmocka_unit_test(test_a_deadline_of_its_own),
        cmocka_unit_test(test_what_was_sent_is_received_after_its_sender_left),
        cmocka_unit_test(test_who_waits_for_a_rank_that_leaves),
        cmocka_unit_test(test_receives_that_wait_for_a_rank_that_leaves_share_a_text),
        cmocka_unit_test(test_a_rank_that_leaves_with_messages_pending),
        cmocka_unit_test(test_a_store_that_is_full),
        cmocka_unit_test(test_at_random),
        cmocka_unit_test(test_communicators_are_charged),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
