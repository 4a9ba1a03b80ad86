/*
 * One rank of a check of small operations on one node. It runs all-reduces until one fails, and prints how
 * many ended well, and the failure.
 *
 *   cells_faults NAME RANK SIZE MODE ...
 *
 * MODE is one of:
 *   - until [TIMEOUT_MS]: nothing else happens
 *   - beside: the same, but slowly, so that others have the processors
 *   - scribble SEED: rank 0 also writes anywhere into the cells
 *   - step STEP SIGNAL: rank 0 gets the signal at a step of a cell's life
 *
 * If something is wrong, it prints that on standard error, and exits with 1.
 */
#include <commclient.h>

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cells.h"
#include "tests/system/cells_rank.h"

#define SCRIBBLED_MAX 8000u /* operations; if the ranks no longer use the cells, all of them end well */
#define TIMEOUT_MS 20000u
#define RANKS_MAX 3u
#define TIMEOUT_SCRIBBLED_MS 1000u
#define TIMEOUT_STEP_MS 1500u

/* Writes words anywhere, mostly where the ranks say how far they have come. Some values are possible there,
 * others are not. */
static void scribble(uint64_t *state, uint64_t seq)
{
    size_t bytes, control_bytes = cells_control_bytes(size);
    unsigned char *from = find_cells(&bytes);
    for (int i = 0; i < 12; i++) {
        uint64_t chance = next_random(state) % 8;
        size_t range_bytes = chance < 4 ? control_bytes : chance < 6 ? sizeof(struct cells_shared) : bytes;
        size_t at = next_random(state) % range_bytes / sizeof(uint64_t) * sizeof(uint64_t);
        const uint64_t words[] = {next_random(state), 0,   1,       UINT64_MAX,
                                  UINT64_MAX - 1,     seq, seq + 1, seq - 1};
        memcpy(from + at, &words[next_random(state) % 8], chance % 2 == 0 ? 1 + next_random(state) % 8 : 8);
    }
}

/* Steps of a cell's life at which rank 0 stops or dies. */
enum step_of_life {
    STEP_BEFORE,     /* before its next operation */
    STEP_WRITING,    /* the cell is half written */
    STEP_WRITTEN,    /* the number is not there yet */
    STEP_NUMBERED,   /* the number is there, but nobody was rung */
    STEP_PUBLISHED,  /* published; the rank has taken no result */
    STEP_ASLEEP,     /* the same; the rank sleeps at its bell */
    STEP_LAIN_DOWN,  /* the rank sleeps at its bell, and has not published */
    STEP_HANDED_OVER /* the others were told that commd has the operation, but it does not */
};

static void write_cell(struct cells_shared *shared, uint64_t seq, int64_t value)
{
    struct cell_header *header = cells_header(shared, rank, seq);
    header->said = (struct cell_terms){.terms = {.kind = OP_KIND_ALL_REDUCE,
                                                 .dtype = DTYPE_I64,
                                                 .reduce = REDUCE_SUM,
                                                 .count_elements = 1,
                                                 .bucket_ops = 1}};
    memcpy(cells_data(shared, size, rank, seq, sizeof value), &value, sizeof value);
}

/* Goes as far as the step, and gets the signal there. The others have published then, and mostly sleep. */
static void go_to_step(enum step_of_life step, int number, uint64_t seq, int64_t value)
{
    size_t bytes;
    struct cells_shared *shared = (struct cells_shared *)(void *)find_cells(&bytes);
    int64_t half = value ^ 0x5555;
    for (uint32_t other = 0; other < size; other++) {
        while (other != rank && cells_head(shared, other) < seq) {
            usleep(1000);
        }
    }
    usleep(30000);
    switch (step) {
    case STEP_BEFORE:
        break;
    case STEP_WRITING:
        write_cell(shared, seq, half);
        cells_header(shared, rank, seq)->said.terms.count_elements = 3;
        break;
    case STEP_WRITTEN:
        write_cell(shared, seq, value);
        break;
    case STEP_NUMBERED:
        write_cell(shared, seq, value);
        atomic_store_explicit(&cells_header(shared, rank, seq)->seq, seq, memory_order_release);
        break;
    case STEP_PUBLISHED:
        write_cell(shared, seq, value);
        cells_publish(shared, size, rank, seq, true);
        break;
    case STEP_ASLEEP:
        write_cell(shared, seq, value);
        cells_publish(shared, size, rank, seq, true);
        (void)cells_lie_down(shared, rank);
        break;
    case STEP_LAIN_DOWN:
        (void)cells_lie_down(shared, rank);
        break;
    case STEP_HANDED_OVER:
        cells_hand_over(shared, size, rank, seq);
        break;
    }
    (void)raise(number);
}

/* The tables of such an operation are scribbled on, too. */
static comm_result_t exchange_counted(void)
{
    static int32_t in[300], out[300];
    size_t counts[RANKS_MAX];
    for (uint32_t other = 0; other < size; other++) {
        counts[other] = 100;
    }
    comm_result_t result = comm_all_to_all_v(comm, in, counts, NULL, out, counts, NULL, COMM_I32, NULL);
    return result == COMM_OK ? comm_sync(comm, 0) : result;
}

static bool is_slow;
static int step_signal;
static enum step_of_life step_of_life;

static void run_until(bool scribbles, uint64_t seed)
{
    uint64_t ended = 0, state = seed;
    comm_result_t result = COMM_OK;
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (result == COMM_OK && !(scribbles && ended == SCRIBBLED_MAX)) {
        int64_t value = (int64_t)(ended * size + rank);
        if (ended == 1000) {
            puts("READY");
        }
        if (scribbles && rank == 0 && ended > 1000) {
            scribble(&state, ended + 1);
        }
        if (step_signal != 0 && rank == 0 && ended == 1000) {
            go_to_step(step_of_life, step_signal, ended + 1, value);
        }
        if (scribbles && ended % 3 == 2 && (result = exchange_counted()) != COMM_OK) {
            break;
        }
        comm_request_t *request = NULL;
        comm_call_options_t call = COMM_CALL_OPTIONS_INIT;
        call.request = &request;
        result = comm_all_reduce(comm, &value, &value, 1, COMM_I64, COMM_SUM, &call);
        result = result == COMM_OK ? comm_wait(&request, NULL) : result;
        int64_t expected = (int64_t)(ended * size * size + (uint64_t)size * (size - 1) / 2);
        if (result == COMM_OK && value != expected && !scribbles) {
            fprintf(stderr, "rank %u: operation %llu: %lld, expected %lld\n", rank, (unsigned long long)ended,
                    (long long)value, (long long)expected);
            exit(EXIT_FAILURE);
        }
        ended += result == COMM_OK;
        if (is_slow && ended > 1000) {
            usleep(2000);
        }
    }
    printf("%llu %s %s\n", (unsigned long long)ended, comm_result_text(result), comm_last_error());
}

int main(int argc, char **argv)
{
    if (argc < 5) {
        fprintf(stderr, "usage: cells_faults NAME RANK SIZE until|beside|scribble|step [NUMBER [SIGNAL]]\n");
        return 2;
    }
    const char *mode = argv[4];
    bool scribbles = strcmp(mode, "scribble") == 0;
    uint64_t number = argc > 5 ? strtoull(argv[5], NULL, 10) : TIMEOUT_MS;
    if (strcmp(mode, "step") == 0 && argc > 6) {
        step_of_life = (enum step_of_life)number;
        step_signal = atoi(argv[6]);
        number = TIMEOUT_STEP_MS;
    }
    is_slow = strcmp(mode, "beside") == 0;
    join(argv, scribbles ? TIMEOUT_SCRIBBLED_MS : (uint32_t)number);
    run_until(scribbles, number);
    leave();
    return 0;
}
