/*
 * One rank of a check of handles that end before all ranks have taken part: of roots that send, of those that
 * send to a root, and of those that have the root's data.
 *
 *   cells_roots NAME RANK SIZE FOLDER
 *
 * The folder is empty. Ranks make files there when they have come so far. A rank that waited for a later one
 * would wait for ever. Prints "checked", or what is wrong, and exits with 1.
 */
#include <commclient.h>

#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define COUNT 300u /* more than lie in a header, for blocks of 3 ranks */
#define EARLY 12u  /* operations of few bytes that a root is ahead: fewer than the window */
#define SIZES 2u
#define LONG_COUNT 16384u /* goes in slices, within one node */
#define RANKS 3u
#define POISON 0xA5
#define TIMEOUT_MS 20000u
#define KNOWN_MS 200u         /* then all nodes know of a verdict that one rank was told */
#define SLOW_TIMEOUT_MS 1000u /* of each operation while a rank takes SLOW_MS for each */
#define SLOW_MS 250u

enum kind { BROADCAST, SCATTER, REDUCE, GATHER, KINDS };
static const char *folder;

static void fail(const char *what, unsigned kind, unsigned long long number)
{
    fprintf(stderr, "rank %u: %s: kind %u, operation %llu: %s\n", rank, what, kind, number,
            comm_last_error());
    exit(EXIT_FAILURE);
}

static const char *path_of(const char *what, unsigned number, char path[512])
{
    (void)snprintf(path, 512, "%s/%s%u", folder, what, number);
    return path;
}

static void say(const char *what, unsigned number)
{
    char path[512];
    FILE *file = fopen(path_of(what, number, path), "w");
    if (file == NULL || fclose(file) != 0) {
        fail("no file", 0, number);
    }
}

static void await(const char *what, unsigned number)
{
    char path[512];
    for (unsigned waits = 0; access(path_of(what, number, path), F_OK) != 0; waits++) {
        if (waits > 10000) {
            fail(what, 0, number);
        }
        usleep(1000);
    }
}

static int32_t value(uint32_t of, size_t at, unsigned number)
{
    return (int32_t)(of * 1000003u + at * 31u + number * 7919u + 5u);
}

struct one {
    enum kind kind;
    unsigned number;
    size_t count;
    int32_t in[RANKS * COUNT], out[RANKS * COUNT];
};

static void fill(struct one *one)
{
    memset(one->out, POISON, sizeof one->out);
    for (size_t i = 0; i < RANKS * COUNT; i++) {
        one->in[i] = value(rank, i, one->number);
    }
    if (one->kind == BROADCAST && rank == 0) {
        memcpy(one->out, one->in, sizeof one->out);
    }
}

static comm_result_t post(struct one *one, const comm_call_options_t *options)
{
    size_t count = one->count;
    switch (one->kind) {
    case BROADCAST:
        return comm_broadcast(comm, one->out, count, COMM_I32, 0, options);
    case SCATTER:
        return comm_scatter(comm, one->in, one->out, count, COMM_I32, 0, options);
    case REDUCE:
        return comm_reduce(comm, one->in, one->out, count, COMM_I32, COMM_SUM, 0, options);
    case GATHER:
    case KINDS:
        break;
    }
    return comm_gather(comm, one->in, one->out, count, COMM_I32, 0, options);
}

static int32_t expected(const struct one *one, size_t at)
{
    switch (one->kind) {
    case BROADCAST:
        return value(0, at, one->number);
    case SCATTER:
        return value(0, rank * one->count + at, one->number);
    case REDUCE:
        return (int32_t)((uint32_t)value(0, at, one->number) + (uint32_t)value(1, at, one->number) +
                         (uint32_t)value(2, at, one->number));
    case GATHER:
    case KINDS:
        break;
    }
    return value((uint32_t)(at / one->count), at % one->count, one->number);
}

static void check(const struct one *one)
{
    bool to_root = one->kind == REDUCE || one->kind == GATHER;
    size_t count = one->kind == GATHER ? size * one->count : one->count;
    for (size_t i = 0; i < count && (!to_root || rank == 0); i++) {
        if (one->out[i] != expected(one, i)) {
            fail("wrong", one->kind, one->number);
        }
    }
}

/* Waits for its handle, checks the result, and then overwrites all buffers. */
static void run(struct one *one)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    fill(one);
    must(post(one, &options), "a call");
    must(comm_wait(&request, NULL), "comm_wait");
    check(one);
    memset(one->in, POISON, sizeof one->in);
    memset(one->out, POISON, sizeof one->out);
}

/* The last operation that all take part in, in order; then nobody is ahead. */
static void meet(void)
{
    int32_t sum = 1;
    must(comm_all_reduce(comm, &sum, &sum, 1, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    must(comm_sync(comm, 0), "comm_sync");
}

static struct one one;

/* With a queue, an operation is not for cells: this rank hands it to commd, and the others must, too. */
static void run_by_queue(void)
{
    comm_queue_t *queue = NULL;
    comm_completion_t completion;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    size_t taken = 0;
    must(comm_queue_create(client, &queue), "comm_queue_create");
    options.queue = queue;
    fill(&one);
    must(post(&one, &options), "a call with a queue");
    must(comm_queue_next(queue, &completion, 1, &taken, TIMEOUT_MS), "comm_queue_next");
    if (taken != 1 || completion.result != COMM_OK) {
        fail("no completion", one.kind, one.number);
    }
    check(&one);
    comm_queue_destroy(queue);
}

/* Those who need nobody are ahead; the one who comes last finds their data as they were. */
static void run_ahead(enum kind kind, size_t count, unsigned *number)
{
    bool to_root = kind == REDUCE || kind == GATHER;
    bool is_late = to_root == (rank == 0);
    unsigned ahead = count > 5 ? 3 : EARLY;
    one.kind = kind;
    one.count = count;
    for (uint32_t early = 0; is_late && early < size; early++) {
        if (to_root ? early != 0 : early < rank) { /* readers come one after the other */
            await("ahead", *number * RANKS + early);
        }
    }
    unsigned first = *number;
    for (unsigned i = 0; i < ahead; i++) {
        one.number = ++*number;
        run(&one);
    }
    say("ahead", first * RANKS + rank);
    meet();
}

/* One rank hands the operation over when all others have let theirs go. */
static void run_handed_over(enum kind kind, unsigned *number)
{
    one.kind = kind;
    one.count = 7;
    one.number = ++*number;
    if (rank == 2) {
        await("goes", one.number);
        run_by_queue();
    } else if (rank == 1) {
        run(&one);
        say("goes", one.number);
    } else {
        if (kind == REDUCE || kind == GATHER) { /* it needs all, and must not publish first */
            await("goes", one.number);
        }
        run(&one);
    }
    meet();
}

/* A rank contradicts. Who had ended already learns it when it waits for all. */
static void run_contradicted(enum kind kind, unsigned *number)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    one.kind = kind;
    one.count = rank == 2 ? 8 : 7;
    one.number = ++*number;
    if (rank == 2) {
        await("said", one.number);
    }
    fill(&one);
    must(post(&one, &options), "a call");
    comm_result_t own = rank == 0 ? comm_wait(&request, NULL) : COMM_OK;
    if (rank == 0) {
        if (own != COMM_OK) {
            fail("the root waited", kind, one.number);
        }
        memset(one.out, POISON, sizeof one.out);
        say("said", one.number);
        own = comm_sync(comm, 0);
    } else {
        own = comm_wait(&request, NULL);
        own = own == COMM_OK ? comm_sync(comm, 0) : own;
    }
    if (own != COMM_MISMATCH) {
        fail("not a mismatch", kind, one.number);
    }
    meet();
}

/* A root is so far ahead of a slow rank that the last operation begins much later than its call. */
static void run_slow(unsigned *number)
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.timeout_ms = SLOW_TIMEOUT_MS;
    one.kind = BROADCAST;
    one.count = 5;
    for (unsigned i = 0; i < EARLY; i++) {
        comm_request_t *request = NULL;
        options.request = &request;
        one.number = ++*number;
        usleep(rank == 2 ? SLOW_MS * 1000 : 0);
        fill(&one);
        must(post(&one, &options), "a call");
        must(comm_wait(&request, NULL), "comm_wait beside a slow rank");
        check(&one);
    }
    int32_t sum = 1;
    options.request = NULL;
    must(comm_all_reduce(comm, &sum, &sum, 1, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
    must(comm_sync(comm, 0), "comm_sync after a slow rank");
}

/* An operation in which all take part is open, and a root is ahead of it. */
static void run_amid_others(unsigned *number)
{
    comm_request_t *request[3] = {NULL};
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    int32_t in[3] = {1, 2, 3}, sums[3] = {0};
    unsigned first = *number;
    if (rank == 2) {
        await("amid", first);
    }
    for (unsigned i = 0; i < 3; i++) {
        options.request = &request[i];
        must(comm_all_reduce(comm, &in[i], &sums[i], 1, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
        for (unsigned j = 0; j < 2; j++) {
            one.kind = j == 0 ? BROADCAST : SCATTER;
            one.count = 5;
            one.number = ++*number;
            run(&one);
        }
    }
    if (rank == 0) {
        say("amid", first);
    }
    must(comm_wait_all(request, 3, NULL), "comm_wait_all");
    for (unsigned i = 0; i < 3; i++) {
        if (sums[i] != (int32_t)(size * (i + 1))) {
            fail("wrong sum", i, first);
        }
    }
    meet();
}

/* Data of a root are there, but an open operation still uses the memory for them: results come in order. */
static void run_over_open(unsigned *number)
{
    comm_request_t *requests[2] = {NULL};
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    for (unsigned i = 0; i < 3; i++) { /* the root's data go to the input, the output, and by a scatter */
        int32_t in[3] = {1, 1, 1}, sum[3] = {0, 0, 0}, root[9] = {7, 7, 7, 7, 7, 7, 7, 7, 7};
        int32_t *from_root = i == 0 ? in : sum;
        bool is_sender = rank == 0 && i < 2;
        ++*number;
        if (rank != 0) {
            await(rank == 1 ? "over" : "overwritten", *number);
        }
        options.request = &requests[0];
        must(comm_all_reduce(comm, in, sum, 3, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
        options.request = &requests[1];
        must(i < 2 ? comm_broadcast(comm, is_sender ? root : from_root, 3, COMM_I32, 0, &options)
                   : comm_scatter(comm, root, sum, 3, COMM_I32, 0, &options),
             "a root's operation");
        if (rank != 2) {
            say(rank == 0 ? "over" : "overwritten", *number);
        }
        must(comm_wait_all(requests, 2, NULL), "comm_wait_all");
        if (sum[0] != (is_sender || i == 0 ? 3 : 7) || (!is_sender && from_root[0] != 7)) {
            fail("an earlier operation disturbed, or its result came later", i, *number);
        }
        meet();
    }
}

/* Readers have begun a long operation in slices, and the root hands it to commd. What follows reads its
 * result in memory that commd has mapped. */
static void run_returned(unsigned *number)
{
    comm_request_t *requests[2] = {NULL};
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    comm_queue_t *queue = NULL;
    comm_completion_t completion;
    size_t taken = 0;
    int32_t *shared, sums[2] = {0};
    void *memory;
    must(comm_mem_alloc(client, LONG_COUNT * sizeof *shared, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    must(comm_queue_create(client, &queue), "comm_queue_create");
    shared = memory;
    ++*number;
    for (size_t i = 0; i < LONG_COUNT; i++) {
        shared[i] = rank == 0 ? 7 : POISON;
    }
    for (uint32_t reader = 1; rank == 0 && reader < size; reader++) {
        await("returned", *number * RANKS + reader);
    }
    options.queue = rank == 0 ? queue : NULL;
    options.request = rank == 0 ? NULL : &requests[0];
    must(comm_broadcast(comm, shared, LONG_COUNT, COMM_I32, 0, &options), "a long broadcast");
    options.queue = NULL;
    options.request = &requests[1];
    must(comm_all_reduce(comm, shared, sums, 2, COMM_I32, COMM_SUM, &options), "comm_all_reduce");
    if (rank != 0) {
        say("returned", *number * RANKS + rank);
    }
    must(comm_wait_all(requests, 2, NULL), "comm_wait_all");
    must(rank == 0 ? comm_queue_next(queue, &completion, 1, &taken, TIMEOUT_MS) : COMM_OK, "comm_queue_next");
    if (sums[0] != (int32_t)(7 * size) || sums[1] != sums[0] || shared[LONG_COUNT - 1] != 7) {
        fail("wrong sum of a long broadcast's result", 0, *number);
    }
    comm_queue_destroy(queue);
    must(comm_mem_free(client, memory), "comm_mem_free");
    meet();
}

/*
 * Nobody waits for the root's operation, and a reader comes after its deadline. All are told the same, unless
 * the reader's node does not know of the end yet: then it has succeeded there (daemon/comm/verdict.c).
 */
static void run_expired(unsigned *number)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.timeout_ms = SLOW_TIMEOUT_MS / 4;
    options.request = rank == 0 ? &request : NULL;
    one.kind = BROADCAST;
    one.count = 5;
    one.number = ++*number;
    fill(&one);
    if (rank == 2) {
        await("expired", one.number * RANKS);
        await("expired", one.number * RANKS + 1);
        usleep(KNOWN_MS * 1000);
    }
    must(post(&one, &options), "a call");
    must(comm_wait(&request, NULL), "comm_wait of a root");
    comm_result_t result = comm_sync(comm, 0);
    bool names_it = strstr(comm_last_error(), "rank 2") != NULL ||
                    strstr(comm_last_error(), "waiting for the agreement of node") != NULL;
    if (result != COMM_TIMED_OUT || !names_it) {
        fail("no deadline", one.kind, one.number);
    }
    if (rank != 2) {
        say("expired", one.number * RANKS + rank);
    }
    meet();
}

int main(int argc, char **argv)
{
    unsigned number = 0;
    if (argc != 5) {
        fprintf(stderr, "usage: cells_roots NAME RANK 3 FOLDER\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    folder = argv[4];
    meet();
    for (unsigned i = 0; i < SIZES * KINDS; i++) {
        run_ahead((enum kind)(i % KINDS), i < KINDS ? 5 : COUNT, &number);
        run_handed_over((enum kind)(i % KINDS), &number);
        if (i % KINDS <= SCATTER) {
            run_contradicted((enum kind)(i % KINDS), &number);
        }
    }
    run_amid_others(&number);
    run_over_open(&number);
    run_returned(&number);
    run_expired(&number);
    run_slow(&number);
    leave();
    puts("checked");
    return 0;
}
