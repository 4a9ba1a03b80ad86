/*
 * One rank: messages of all sizes between all ranks, short ones through shared memory and others through
 * commd, in random orders: receives before and after their messages, from one rank and from any, waited for
 * in every way, in groups, with pauses, and some of them much later. Every receive must get the message that
 * it would get if there was one queue for each sender and tag.
 */

#include <stdbool.h>
#include <time.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define TIMEOUT_MS 30000u
#define RANKS_MAX 8u
#define TAGS 4u     /* the last one is received from any rank */
#define LATE_TAG 1u /* its messages are received a round later */
#define ANY_TAG_FROM (TAGS - 1)
#define EACH_MAX 4u /* messages from one rank to another one with one tag, in a round */
#define OPS_MAX (2 * RANKS_MAX * TAGS * EACH_MAX)
#define LONG_ELEMENTS 9000u

static const uint32_t counts[] = {0, 1, 2, 10, 11, 500, 3000, 4095, 4096, 4097, LONG_ELEMENTS};

/* How many messages have gone from rank to rank with each tag so far, as every rank knows. */
static uint32_t sent_before[RANKS_MAX][RANKS_MAX][TAGS];
static uint32_t received_before[RANKS_MAX][TAGS]; /* by this rank, */
static uint32_t any_before[RANKS_MAX];            /* and by its receives from any rank */

struct op {
    bool sends, any, posted, done;
    uint32_t peer, tag, number; /* number: of the pair's messages with this tag */
    uint32_t room;
    comm_request_t *request;
    comm_received_t received;
    uint32_t *data;
};
static struct op ops[OPS_MAX];
static size_t op_count;

static uint64_t mix(uint32_t from, uint32_t to, uint32_t tag, uint32_t number)
{
    uint64_t state = ((uint64_t)from << 40) ^ ((uint64_t)to << 32) ^ ((uint64_t)tag << 24) ^ number;
    return next_random(&state);
}

static uint32_t count_of(uint32_t from, uint32_t to, uint32_t tag, uint32_t number)
{
    uint64_t value = mix(from, to, tag, number);
    /* Mostly short ones. What may be received a round later must not make its sender wait. */
    bool any = tag != LATE_TAG && tag != ANY_TAG_FROM && (value >> 32) % 4 == 0;
    return counts[any ? value % (sizeof counts / sizeof counts[0]) : value % 6];
}

static uint32_t element_of(uint32_t from, uint32_t to, uint32_t tag, uint32_t number, uint32_t i)
{
    return (uint32_t)mix(from, to, tag, number) + i * 2654435761u;
}

/* How many messages of this round go that way: the same on every rank. */
static uint32_t each_of(uint64_t seed, uint32_t round, uint32_t from, uint32_t to, uint32_t tag)
{
    uint64_t state = seed ^ ((uint64_t)round << 32) ^ (from * 64 + to * 8 + tag);
    return (uint32_t)(next_random(&state) % (EACH_MAX + 1));
}

static void fail_op(const struct op *op, const char *what)
{
    fprintf(stderr, "rank %u: %s of rank %u, tag %u, number %u (got %zu from %u): %s\n", rank,
            op->sends ? "send" : "receive", op->peer, op->tag, op->number, op->received.count,
            op->received.source, what);
    exit(EXIT_FAILURE);
}

static void add(bool sends, bool any, uint32_t peer, uint32_t tag, uint32_t number, uint32_t room)
{
    struct op *op = &ops[op_count++];
    *op = (struct op){.sends = sends, .any = any, .peer = peer, .tag = tag, .number = number, .room = room};
    op->data = malloc((room + 1u) * sizeof *op->data);
    if (op->data == NULL) {
        exit(EXIT_FAILURE);
    }
    for (uint32_t i = 0; i <= room; i++) {
        op->data[i] = sends && i < room ? element_of(rank, peer, tag, number, i) : 0xdeadbeefu;
    }
}

/* All messages of a round that concern this rank.  */
static void plan(uint64_t seed, uint32_t round, uint32_t rounds, uint64_t *chance)
{
    op_count = 0;
    for (uint32_t other = 0; other < size; other++) {
        for (uint32_t tag = 0; tag < TAGS; tag++) {
            for (uint32_t i = 0; i < each_of(seed, round, rank, other, tag); i++) {
                uint32_t number = sent_before[rank][other][tag] + i;
                add(true, false, other, tag, number, count_of(rank, other, tag, number));
            }
            uint32_t of_round = tag == LATE_TAG ? round - 1 : round;
            uint32_t each = tag == LATE_TAG && round == 0 ? 0 : each_of(seed, of_round, other, rank, tag);
            each += tag == LATE_TAG && round + 1 == rounds ? each_of(seed, round, other, rank, tag) : 0;
            for (uint32_t i = 0; i < each; i++) {
                uint32_t number = received_before[other][tag]++;
                bool exact = next_random(chance) % 3 != 0 && tag != ANY_TAG_FROM;
                add(false, tag == ANY_TAG_FROM, other, tag, number,
                    exact ? count_of(other, rank, tag, number) : LONG_ELEMENTS);
            }
        }
    }
    for (uint32_t from = 0; from < size; from++) {
        for (uint32_t to = 0; to < size; to++) {
            for (uint32_t tag = 0; tag < TAGS; tag++) {
                sent_before[from][to][tag] += each_of(seed, round, from, to, tag);
            }
        }
    }
}

static void post(struct op *op)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &op->request;
    op->posted = true;
    must(op->sends ? comm_send(comm, op->data, op->room, COMM_U32, op->peer, op->tag, &options)
                   : comm_recv(comm, op->data, op->room, COMM_U32, op->any ? COMM_ANY_SOURCE : op->peer,
                               op->tag, &options),
         op->sends ? "comm_send" : "comm_recv");
}

/* Whether an earlier one of the same kind, peer and tag was not posted yet: messages have an order. */
static bool is_early(size_t index)
{
    for (size_t i = 0; i < index; i++) {
        if (!ops[i].posted && ops[i].sends == ops[index].sends && ops[i].tag == ops[index].tag &&
            (ops[i].peer == ops[index].peer || ops[index].any)) {
            return true;
        }
    }
    return false;
}

static void pause_at_random(uint64_t *chance)
{
    uint64_t value = next_random(chance) % 400;
    if (value < 4) {
        usleep((useconds_t)(value * 9000)); /* longer than receives wait without commd */
    } else if (value < 40) {
        usleep((useconds_t)(value * 10));
    }
}

/* Waits for some of those that were posted; at the end for all. */
static void wait_for_some(uint64_t *chance, bool all)
{
    comm_request_t *requests[OPS_MAX];
    size_t indexes[OPS_MAX], count = 0, index;
    comm_received_t received;
    for (size_t i = 0; i < op_count; i++) {
        if (ops[i].posted && !ops[i].done && (all || next_random(chance) % 4 == 0)) {
            int done = 0;
            if (all && next_random(chance) % 2 == 0) {
                must(comm_wait(&ops[i].request, &ops[i].received), "comm_wait");
                ops[i].done = true;
            } else if (!all) {
                must(comm_test(&ops[i].request, &done, &ops[i].received), "comm_test");
                ops[i].done = done != 0;
            }
        }
        if (all && ops[i].posted && !ops[i].done) {
            indexes[count] = i;
            requests[count++] = ops[i].request;
        }
    }
    for (size_t left = count; left > 0; left--) {
        must(comm_wait_any(requests, count, &index, &received), "comm_wait_any");
        ops[indexes[index]].received = received;
        ops[indexes[index]].done = true;
    }
}

static void post_all(uint64_t *chance)
{
    for (size_t left = op_count; left > 0;) {
        size_t index = next_random(chance) % op_count;
        while (ops[index].posted || is_early(index)) {
            index = (index + 1) % op_count;
        }
        bool grouped = left > 1 && next_random(chance) % 8 == 0;
        if (grouped) {
            must(comm_group_begin(), "comm_group_begin");
        }
        post(&ops[index]);
        left--;
        for (size_t i = 0; grouped && i < op_count && left > 0; i++) {
            if (!ops[i].posted && !is_early(i) && next_random(chance) % 4 == 0) {
                post(&ops[i]);
                left--;
            }
        }
        if (grouped) {
            must(comm_group_end(), "comm_group_end");
        }
        pause_at_random(chance);
        if (next_random(chance) % 8 == 0) {
            wait_for_some(chance, false);
        }
    }
}

/* Every receive from any rank, in the order of the calls, has the next message of the rank from which it
 * came. That rank may be a round ahead. */
static void check(void)
{
    for (size_t i = 0; i < op_count; i++) {
        struct op *op = &ops[i];
        if (op->sends) {
            continue;
        }
        uint32_t from = op->received.source;
        if (from >= size || (!op->any && from != op->peer)) {
            fail_op(op, "another source");
        }
        uint32_t number = op->any ? any_before[from]++ : op->number;
        uint32_t count = count_of(from, rank, op->tag, number);
        if (op->received.count != count) {
            fail_op(op, "another count");
        }
        for (uint32_t k = 0; k < count; k++) {
            if (op->data[k] != element_of(from, rank, op->tag, number, k)) {
                fail_op(op, "a wrong element");
            }
        }
        if (op->data[op->room > count ? count : op->room] != 0xdeadbeefu) {
            fail_op(op, "something was written behind the message");
        }
    }
}

/* Between rounds, ranks are at different places; sometimes a collective brings them together. */
static void meet(uint64_t seed, uint32_t round)
{
    uint64_t state = seed + round;
    uint32_t one = 1, sum = 0;
    if (next_random(&state) % 3 == 0) {
        must(comm_all_reduce(comm, &one, &sum, 1, COMM_U32, COMM_SUM, NULL), "comm_all_reduce");
        must(comm_sync(comm, 0), "comm_sync");
        if (sum != size) {
            fprintf(stderr, "rank %u: a sum is %u, not %u\n", rank, sum, size);
            exit(EXIT_FAILURE);
        }
    }
}

static comm_request_t *receive_from(comm_t *from, void *data, size_t count, comm_dtype_t dtype, uint32_t peer)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    must(comm_recv(from, data, count, dtype, peer, TAGS, &options), "comm_recv");
    return request;
}

static void fail(const char *what)
{
    fprintf(stderr, "rank %u: %s\n", rank, what);
    exit(EXIT_FAILURE);
}

/* A message that does not fit ends its receive, whichever came first, and no other one. */
static void send_misfits(void)
{
    for (unsigned way = 0; way < 16; way++) {
        bool receives_first = way % 2 == 0, is_long = way / 2 % 2 == 0, any = way / 8 == 1;
        uint32_t count = way / 4 % 2 == 0 ? 4 : 1000, data[1000] = {1, 2, 3, 4}, got[1000] = {0}, next = 0;
        uint32_t peer = any ? COMM_ANY_SOURCE : 0;
        comm_request_t *first = NULL, *second = NULL;
        comm_received_t received;
        meet_on(comm);
        for (unsigned step = 0; step < 2; step++) {
            if (rank == 1 && receives_first == (step == 0)) {
                first =
                    receive_from(comm, got, is_long ? count - 1 : count, is_long ? COMM_U32 : COMM_F32, peer);
                second = receive_from(comm, &next, 1, COMM_U32, peer);
            }
            if (rank == 0 && receives_first == (step == 1)) {
                must(comm_send(comm, data, count, COMM_U32, 1, TAGS, NULL), "comm_send");
            }
            /* Sometimes longer than receives wait without commd. */
            usleep(step == 0 && way % 8 == 4 ? 30000 : 500);
            meet_on(comm);
        }
        if (rank == 0) {
            must(comm_send(comm, &way, 1, COMM_U32, 1, TAGS, NULL), "comm_send");
        }
        if (rank == 1) {
            if (comm_wait(&first, NULL) != COMM_MISMATCH || got[0] != 0) {
                fail("a message that does not fit was received, or something else happened");
            }
            must(comm_wait(&second, &received), "the message behind one that does not fit");
            if (next != way || received.count != 1 || received.source != 0) {
                fail("another message than that behind one that does not fit");
            }
        }
    }
}

/* A thread waits for receives of two communicators, and commd has one of them. */
static void wait_for_two(const char *name)
{
    enum { ROUNDS = 20, MOST_MS = 800 };
    comm_t *other = join_another(name, "other");
    char answer = 0;
    comm_request_t *late = NULL;
    struct timespec began, ended;
    if (rank == 0) {
        late = receive_from(other, &answer, 1, COMM_I8, 1);
        usleep(50000);
    }
    meet_on(comm);
    clock_gettime(CLOCK_MONOTONIC, &began);
    for (unsigned round = 0; round < ROUNDS && rank == 0; round++) {
        char byte = 0;
        size_t index = 1;
        comm_request_t *both[2] = {receive_from(comm, &byte, 1, COMM_I8, 1), late};
        must(comm_send(comm, &byte, 1, COMM_I8, 1, TAGS, NULL), "comm_send");
        must(comm_wait_any(both, 2, &index, NULL), "comm_wait_any");
        if (index != 0) {
            fail("another receive has ended");
        }
    }
    for (unsigned round = 0; round < ROUNDS && rank == 1; round++) {
        char byte = 1;
        comm_request_t *request = receive_from(comm, &byte, 1, COMM_I8, 0);
        must(comm_wait(&request, NULL), "comm_wait");
        usleep(round % 2 * 200);
        must(comm_send(comm, &byte, 1, COMM_I8, 0, TAGS, NULL), "comm_send");
    }
    clock_gettime(CLOCK_MONOTONIC, &ended);
    if ((ended.tv_sec - began.tv_sec) * 1000 + (ended.tv_nsec - began.tv_nsec) / 1000000 > MOST_MS) {
        fail("answers were seen late");
    }
    if (rank == 1) {
        must(comm_send(other, &answer, 1, COMM_I8, 0, TAGS, NULL), "comm_send");
    }
    if (rank == 0) {
        must(comm_wait(&late, NULL), "comm_wait");
    }
    meet_on(other);
    comm_destroy(other);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: cells_messages NAME RANK SIZE SEED ROUNDS\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    uint64_t seed = strtoull(argv[4], NULL, 10), chance = seed * 1000003 + rank;
    uint32_t rounds = (uint32_t)strtoul(argv[5], NULL, 10);
    for (uint32_t round = 0; round < rounds; round++) {
        plan(seed, round, rounds, &chance);
        post_all(&chance);
        wait_for_some(&chance, true);
        check();
        for (size_t i = 0; i < op_count; i++) {
            free(ops[i].data);
        }
        meet(seed, round);
    }
    send_misfits();
    wait_for_two(argv[1]);
    meet_on(comm); /* receives from any rank end when all others have left */
    leave();
    puts("checked");
    return 0;
}
