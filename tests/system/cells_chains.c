/*
 * One rank: random operations that share few buffers, and of which most are not waited for. Most of them read
 * what an earlier one wrote, or write what it reads. Operations of a communicator run in the order of the
 * calls, so a model of all ranks' buffers tells what each of them must hold in the end.
 */

#include <stdbool.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define BUFFERS 4u
#define RANKS_MAX 6u
#define CALLS_MAX 24u
#define ELEMENTS_MAX 9000u /* of one rank: 36,000 bytes go in slices within one node */
#define BUFFER_ELEMENTS (ELEMENTS_MAX * RANKS_MAX)
#define PAUSE_MAX_US 2000u
#define TIMEOUT_MS 20000u

enum kind { BROADCAST, SCATTER, REDUCE, GATHER, ALL_REDUCE, IN_PLACE, ALL_GATHER, ALL_TO_ALL, KINDS };

struct chained {
    enum kind kind;
    uint32_t root;
    unsigned in, out;
    size_t count;
};

static uint32_t *buffers[BUFFERS];
static uint32_t model[RANKS_MAX][BUFFERS][BUFFER_ELEMENTS];
static uint32_t parts[RANKS_MAX][BUFFER_ELEMENTS];

/* Every other operation has the terms of the last one. */
static struct chained draw(uint64_t *random)
{
    static struct chained last;
    static const size_t counts[] = {1, 3, 20, 100, 700, 2500, ELEMENTS_MAX};
    uint64_t drawn = next_random(random);
    struct chained call = {.kind = (enum kind)(drawn % KINDS),
                           .root = (uint32_t)(drawn >> 8) % size,
                           .in = (unsigned)(drawn >> 24) % BUFFERS,
                           .out = (unsigned)(drawn >> 32) % BUFFERS,
                           .count = counts[(drawn >> 40) % (sizeof counts / sizeof counts[0])]};
    if (drawn >> 63 != 0 && last.count != 0) {
        call.kind = last.kind;
        call.root = last.root;
        call.count = last.count;
    }
    last = call;
    call.out = call.in == call.out ? (call.in + 1) % BUFFERS : call.out;
    call.out = call.kind == IN_PLACE ? call.in : call.out;
    return call;
}

static comm_result_t post(const struct chained *call, const comm_call_options_t *options)
{
    uint32_t *in = buffers[call->in], *out = buffers[call->out];
    bool is_root = rank == call->root;
    switch (call->kind) {
    case BROADCAST:
        return comm_broadcast(comm, is_root ? in : out, call->count, COMM_U32, call->root, options);
    case SCATTER:
        return comm_scatter(comm, in, out, call->count, COMM_U32, call->root, options);
    case REDUCE:
        return comm_reduce(comm, in, is_root ? out : NULL, call->count, COMM_U32, COMM_SUM, call->root,
                           options);
    case GATHER:
        return comm_gather(comm, in, is_root ? out : NULL, call->count, COMM_U32, call->root, options);
    case ALL_REDUCE:
    case IN_PLACE:
        return comm_all_reduce(comm, in, out, call->count, COMM_U32, COMM_SUM, options);
    case ALL_GATHER:
        return comm_all_gather(comm, in, out, call->count, COMM_U32, options);
    case ALL_TO_ALL:
        return comm_all_to_all(comm, in, out, call->count, COMM_U32, options);
    case KINDS:
        break;
    }
    return COMM_INVALID_ARGUMENT;
}

/* What each rank gets, in `parts`. Returns how many elements each gets. */
static size_t compute(const struct chained *call)
{
    size_t count = call->count;
    bool sums = call->kind == REDUCE || call->kind == ALL_REDUCE || call->kind == IN_PLACE;
    for (uint32_t to = 0; to < size; to++) {
        for (uint32_t from = 0; from < size; from++) {
            const uint32_t *input = model[from][call->in];
            for (size_t i = 0; i < count; i++) {
                if (sums) {
                    parts[to][i] = (from == 0 ? 0 : parts[to][i]) + input[i];
                } else if (call->kind == ALL_TO_ALL) {
                    parts[to][from * count + i] = input[to * count + i];
                } else if (call->kind == GATHER || call->kind == ALL_GATHER) {
                    parts[to][from * count + i] = input[i];
                } else if (from == call->root) {
                    parts[to][i] = input[call->kind == SCATTER ? to * count + i : i];
                }
            }
        }
    }
    return sums || call->kind == BROADCAST || call->kind == SCATTER ? count : size * count;
}

static void follow(const struct chained *call)
{
    size_t elements = compute(call);
    bool root_alone = call->kind == REDUCE || call->kind == GATHER;
    for (uint32_t to = 0; to < size; to++) {
        bool is_root = to == call->root;
        if ((root_alone && !is_root) || (call->kind == BROADCAST && is_root)) {
            continue;
        }
        memcpy(model[to][call->out], parts[to], elements * sizeof(uint32_t));
    }
}

static void fill(uint64_t *random)
{
    for (uint32_t each = 0; each < size; each++) {
        for (unsigned i = 0; i < BUFFERS; i++) {
            for (size_t j = 0; j < BUFFER_ELEMENTS; j++) {
                model[each][i][j] = (uint32_t)next_random(random);
            }
        }
    }
    for (unsigned i = 0; i < BUFFERS; i++) {
        memcpy(buffers[i], model[rank][i], sizeof model[rank][i]);
    }
}

static void check(unsigned round, const struct chained *calls, unsigned count)
{
    for (unsigned i = 0; i < BUFFERS; i++) {
        size_t j = 0;
        while (j < BUFFER_ELEMENTS && buffers[i][j] == model[rank][i][j]) {
            j++;
        }
        if (j == BUFFER_ELEMENTS) {
            continue;
        }
        fprintf(stderr, "rank %u, round %u: buffer %u is wrong from element %zu on:", rank, round, i, j);
        for (unsigned k = 0; k < count; k++) {
            fprintf(stderr, " %u: kind %u root %u %u>%u count %zu;", k, calls[k].kind, calls[k].root,
                    calls[k].in, calls[k].out, calls[k].count);
        }
        fprintf(stderr, "\n");
        exit(EXIT_FAILURE);
    }
}

/* random: the same on all ranks. own: another one for each. */
static void run_round(unsigned round, uint64_t *random, uint64_t *own)
{
    struct chained calls[CALLS_MAX];
    comm_request_t *requests[CALLS_MAX] = {NULL};
    unsigned count = 2 + (unsigned)(next_random(random) % (CALLS_MAX - 2));
    fill(random);
    must(comm_barrier(comm, NULL), "comm_barrier");
    for (unsigned i = 0; i < count; i++) {
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        calls[i] = draw(random);
        options.request = next_random(own) % 4 != 0 ? &requests[i] : NULL;
        usleep(next_random(own) % 16 == 0 ? (useconds_t)(next_random(own) % PAUSE_MAX_US) : 0);
        must(post(&calls[i], &options), "a call");
        follow(&calls[i]);
        if (next_random(own) % 6 == 0) {
            must(comm_wait(&requests[next_random(own) % (i + 1)], NULL), "comm_wait");
        }
    }
    for (unsigned i = count; i-- > 0 && next_random(own) % 8 != 0;) {
        must(comm_wait(&requests[i], NULL), "comm_wait, from the last on");
    }
    must(comm_wait_all(requests, count, NULL), "comm_wait_all");
    must(comm_sync(comm, 0), "comm_sync");
    check(round, calls, count);
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        fprintf(stderr, "usage: cells_chains NAME RANK SIZE SEED ROUNDS\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    for (unsigned i = 0; i < BUFFERS; i++) {
        void *memory;
        must(comm_mem_alloc(client, sizeof model[0][0], COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
        buffers[i] = memory;
    }
    uint64_t random = strtoull(argv[4], NULL, 10), own = random + 1 + rank;
    unsigned rounds = (unsigned)strtoul(argv[5], NULL, 10);
    for (unsigned i = 0; i < rounds; i++) {
        run_round(i, &random, &own);
    }
    leave();
    puts("checked");
    return 0;
}
