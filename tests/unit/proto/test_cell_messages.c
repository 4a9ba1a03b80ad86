#include "proto/cell_messages.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define THREAD_MESSAGES 200000u

struct pair {
    struct cell_messages *ring;
    struct cell_messages_out out;
    struct cell_messages_in in;
};

static struct pair pair_of(uint32_t rank_count)
{
    uint32_t data_bytes = cell_messages_data_bytes(rank_count);
    struct cell_messages *ring = aligned_alloc(128, cell_messages_bytes(rank_count));
    assert_non_null(ring);
    memset(ring, 0, cell_messages_bytes(rank_count));
    return (struct pair){.ring = ring,
                         .out = {.ring = ring, .data_bytes = data_bytes},
                         .in = {.ring = ring, .data_bytes = data_bytes}};
}

static struct pair pair_new(void)
{
    return pair_of(2);
}

static void fill(unsigned char *data, size_t size_bytes, uint64_t number)
{
    for (size_t i = 0; i < size_bytes; i++) {
        data[i] = (unsigned char)(number * 31 + i * 7 + (i >> 8));
    }
}

static enum cell_message_fate put(struct pair *pair, uint64_t number, size_t size_bytes)
{
    static unsigned char data[CELL_MESSAGE_MAX_BYTES];
    struct cell_message_said said = {
        .count_elements = size_bytes, .tag = (uint32_t)number, .dtype = DTYPE_U8};
    fill(data, size_bytes, number);
    return cell_messages_put(&pair->out, &said, data, size_bytes);
}

/* The next message must be this one. */
static void take(struct pair *pair, uint64_t number, size_t size_bytes)
{
    static unsigned char expected[CELL_MESSAGE_MAX_BYTES];
    struct cell_message_found found;
    assert_int_equal(cell_messages_look(&pair->in, &found), CELL_MESSAGE_THERE);
    assert_int_equal(found.said.tag, number);
    assert_int_equal(found.size_bytes, size_bytes);
    fill(expected, size_bytes, number);
    assert_memory_equal(found.data, expected, size_bytes);
    cell_messages_take(&pair->in, &found);
}

static void expect_none(const struct pair *pair)
{
    struct cell_message_found found;
    assert_int_equal(cell_messages_look(&pair->in, &found), CELL_MESSAGE_NONE);
}

static void test_closed_at_first(void **state)
{
    struct pair pair = pair_new();
    (void)state;
    assert_int_equal(put(&pair, 1, 8), CELL_MESSAGE_BY_COMMD);
    expect_none(&pair);
    cell_messages_open(&pair.in);
    expect_none(&pair);
    assert_int_equal(put(&pair, 1, 8), CELL_MESSAGE_SENT);
    take(&pair, 1, 8);
    free(pair.ring);
}

static const size_t sizes[] = {0, 1, 39, 40, 41, 64, 65, 4095, 8191, 8192, 16383, CELL_MESSAGE_MAX_BYTES};
static const uint32_t rank_counts[] = {2, 5, 6, 9, 32};
#define RANK_COUNTS (sizeof rank_counts / sizeof rank_counts[0])
#define SIZE_COUNT (sizeof sizes / sizeof sizes[0])

static size_t max_of(const struct pair *pair)
{
    return cell_message_max_bytes(pair->in.data_bytes);
}

/* All sizes, so that places wrap everywhere. */
static void send_sizes(uint32_t rank_count)
{
    struct pair pair = pair_of(rank_count);
    cell_messages_open(&pair.in);
    for (uint64_t number = 1; number < 5000; number++) {
        size_t size_bytes = sizes[number * 7 % SIZE_COUNT];
        size_bytes = size_bytes < max_of(&pair) ? size_bytes : max_of(&pair);
        assert_int_equal(put(&pair, number, size_bytes), CELL_MESSAGE_SENT);
        assert_true(cell_messages_have_news(pair.ring, number - 1, 0));
        take(&pair, number, size_bytes);
        expect_none(&pair);
        assert_false(cell_messages_have_news(pair.ring, number, 0));
        cell_messages_free_taken(&pair.in);
    }
    free(pair.ring);
}

static void test_sizes(void **state)
{
    (void)state;
    for (size_t i = 0; i < RANK_COUNTS; i++) {
        send_sizes(rank_counts[i]);
    }
}

/* As many messages as there is room for; then none until some room is free. */
static void fill_up(uint32_t rank_count, size_t size_bytes)
{
    struct pair pair = pair_of(rank_count);
    uint64_t sent = 0, taken = 0;
    size_bytes = size_bytes < max_of(&pair) ? size_bytes : max_of(&pair);
    cell_messages_open(&pair.in);
    for (unsigned round = 0; round < 300; round++) {
        while (put(&pair, sent + 1, size_bytes) == CELL_MESSAGE_SENT) {
            sent++;
        }
        uint64_t open = sent - taken;
        assert_in_range(open, 3, CELL_MESSAGES_SLOTS);
        assert_true(open == CELL_MESSAGES_SLOTS || (open + 2) * (size_bytes + 64) > pair.in.data_bytes);
        for (uint64_t i = 0; i <= round % open; i++) {
            take(&pair, ++taken, size_bytes);
        }
        assert_int_equal(put(&pair, sent + 1, size_bytes), CELL_MESSAGE_FULL); /* not given back yet */
        cell_messages_free_taken(&pair.in);
    }
    free(pair.ring);
}

static void test_room(void **state)
{
    (void)state;
    for (size_t i = 0; i < SIZE_COUNT * RANK_COUNTS; i++) {
        fill_up(rank_counts[i % RANK_COUNTS], sizes[i / RANK_COUNTS]);
    }
}

/* The rings of one rank are no larger all together than what its slices may take. */
static void test_memory(void **state)
{
    (void)state;
    for (uint32_t ranks = 2; ranks <= 32; ranks++) {
        assert_true(cell_messages_bytes(ranks) * (ranks - 1) <= 3u << 19);
    }
}

static void test_close(void **state)
{
    struct pair pair = pair_new();
    (void)state;
    cell_messages_open(&pair.in);
    for (uint64_t number = 1; number < 300; number++) {
        assert_true(cell_messages_close(&pair.in));
        assert_true(cell_messages_close(&pair.in)); /* twice is once */
        assert_true(cell_messages_have_news(pair.ring, number - 1, 0));
        assert_int_equal(put(&pair, number, 100), CELL_MESSAGE_BY_COMMD);
        expect_none(&pair);
        cell_messages_open(&pair.in);
        assert_int_equal(put(&pair, number, 100), CELL_MESSAGE_SENT);
        assert_false(cell_messages_close(&pair.in)); /* a message is there */
        take(&pair, number, 100);
        cell_messages_free_taken(&pair.in);
    }
    free(pair.ring);
}

/* While commd has a message that was not received, all go there. */
static void test_counts(void **state)
{
    struct pair pair = pair_new();
    (void)state;
    cell_messages_open(&pair.in);
    assert_int_equal(put(&pair, 1, 8), CELL_MESSAGE_SENT);
    cell_messages_count_sent(&pair.out);
    assert_true(cell_messages_commd_has_any(&pair.in));
    assert_true(cell_messages_have_news(pair.ring, 1, 0));
    assert_int_equal(put(&pair, 2, 8), CELL_MESSAGE_BY_COMMD);
    take(&pair, 1, 8);
    cell_messages_count_received(&pair.in);
    assert_false(cell_messages_commd_has_any(&pair.in));
    assert_int_equal(put(&pair, 2, 8), CELL_MESSAGE_SENT);
    take(&pair, 2, 8);
    free(pair.ring);
}

/* What a sender may write there. */
static void test_nonsense(void **state)
{
    struct cell_message_found found;
    (void)state;
    for (unsigned what = 0; what < 4; what++) {
        struct pair pair = pair_new();
        cell_messages_open(&pair.in);
        assert_int_equal(put(&pair, 1, 8), CELL_MESSAGE_SENT);
        struct cell_message_slot *slot = &pair.ring->slots[1];
        slot->count_elements = what == 0 ? CELL_MESSAGE_MAX_BYTES + 1 : what == 1 ? UINT32_MAX : 8;
        slot->dtype = what == 2 ? 999 : DTYPE_U8;
        if (what == 3) {
            atomic_store(&slot->word, UINT64_MAX);
        }
        assert_int_equal(cell_messages_look(&pair.in, &found), CELL_MESSAGE_NONSENSE);
        free(pair.ring);
    }
    /* And a receiver: more is free than was sent. */
    struct pair pair = pair_new();
    cell_messages_open(&pair.in);
    atomic_store(&pair.ring->freed, UINT64_MAX);
    for (uint64_t number = 1; number <= CELL_MESSAGES_SLOTS; number++) {
        assert_int_equal(put(&pair, number, 8), CELL_MESSAGE_SENT);
    }
    assert_int_equal(put(&pair, CELL_MESSAGES_SLOTS + 1, 8), CELL_MESSAGE_FULL);
    free(pair.ring);
}

/* --- Two threads --- */

/* What goes through commd: a queue whose messages are received in order. */
struct by_commd {
    struct pair pair;
    pthread_mutex_t lock;
    uint64_t numbers[THREAD_MESSAGES];
    uint64_t sent, received;
};

static void *send_all(void *argument)
{
    struct by_commd *both = argument;
    for (uint64_t number = 1; number <= THREAD_MESSAGES; number++) {
        size_t size_bytes = number % 64 == 0 ? 5000 : number % 5 == 0 ? 100 : 8;
        if (number % 1000 == 0 || put(&both->pair, number, size_bytes) != CELL_MESSAGE_SENT) {
            cell_messages_count_sent(&both->pair.out);
            pthread_mutex_lock(&both->lock);
            both->numbers[both->sent++] = number;
            pthread_mutex_unlock(&both->lock);
        }
    }
    return NULL;
}

static bool receive_by_commd(struct by_commd *both, uint64_t expected)
{
    bool came;
    pthread_mutex_lock(&both->lock);
    came = both->received < both->sent;
    if (came) {
        assert_int_equal(both->numbers[both->received], expected);
        both->received++;
    }
    pthread_mutex_unlock(&both->lock);
    if (came) {
        cell_messages_count_received(&both->pair.in);
    }
    return came;
}

/* The receiver looks at the ring, sometimes gives its receive to commd, and gets all in order. */
static void test_both_ways_keep_the_order(void **state)
{
    struct by_commd *both = calloc(1, sizeof *both);
    struct cell_message_found found;
    pthread_t sender;
    uint64_t in_ring = 0;
    (void)state;
    both->pair = pair_new();
    pthread_mutex_init(&both->lock, NULL);
    cell_messages_open(&both->pair.in);
    assert_int_equal(pthread_create(&sender, NULL, send_all, both), 0);
    for (uint64_t expected = 1; expected <= THREAD_MESSAGES;) {
        if (cell_messages_look(&both->pair.in, &found) == CELL_MESSAGE_THERE) {
            assert_int_equal(found.said.tag, expected);
            expected++;
            in_ring++;
            cell_messages_take(&both->pair.in, &found);
            cell_messages_free_taken(&both->pair.in);
            continue;
        }
        bool gives = cell_messages_commd_has_any(&both->pair.in) || expected % 777 == 0;
        if (gives && cell_messages_close(&both->pair.in)) {
            while (!receive_by_commd(both, expected)) {
                (void)sched_yield();
            }
            expected++;
            cell_messages_open(&both->pair.in);
        }
    }
    pthread_join(sender, NULL);
    assert_true(in_ring > 0 && both->received > 0);
    pthread_mutex_destroy(&both->lock);
    free(both->pair.ring);
    free(both);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_closed_at_first),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_close),
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_nonsense),
        cmocka_unit_test(test_both_ways_keep_the_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
