/*
 * One rank of a check of slices that are lent (proto/cells.h). It runs all-gathers until one fails, and
 * prints how many ended well after the warm-ups, and the failure.
 *
 *   cells_loans NAME RANK SIZE STEP SIGNAL file|process
 *
 * The ranks lend memory of comm_mem_alloc, or ordinary memory, which is read from their processes. Rank 0, or
 * the last one if it lies, goes to a step of an operation that all lend to, and gets the signal there. If
 * something is wrong, it prints that on standard error, and exits with 1.
 */
#include <commclient.h>

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/cells_trial.h"
#include "proto/cells.h"
#include "tests/system/cells_rank.h"

/* Elements of a block: more than a cell takes, and one slice. */
#define COUNT 40000u
/* The same, and more than all places behind those of the last rank. */
#define COUNT_OF_LIES 1000000u
#define WARM_UPS 50u
/* Of these, the last ones lend processes, and so does the operation that fails: all are a trial of that. */
#define WARM_UPS_BY_PROCESS (CELLS_TRIAL_OPERATIONS - 1)
#define LARGE_WARM_UPS 3u /* the last of them, if the operation that fails is larger */
#define TIMEOUT_MS 1500u

/* What the rank has done when the signal comes. */
enum step {
    STEP_BEFORE,    /* nothing */
    STEP_PUBLISHED, /* the others have read its memory, and wait until it has read theirs */
    STEP_DONE,      /* it has said that it has read theirs */
    STEP_WITHDRAWN, /* the same, but it has said before that its memory is not lent any more */
    STEP_LIES,      /* it has said that it lends, but not what */
    STEP_REPLACED   /* as STEP_DONE, but its process does not know the challenges any more */
};

static uint32_t *input, *output;
static uint32_t count = COUNT;

static uint32_t number_of(uint32_t of_rank, uint32_t operation, uint32_t index)
{
    return (index + 1) * 2654435761u ^ (of_rank + 1) * 40503u ^ operation * 69069u;
}

/* Publishes what the number of the operation before said, or that it lends by an offer that cannot be. */
static void repeat(struct cells_shared *shared, uint64_t seq, uint64_t before, bool lies)
{
    const uint8_t none = UINT8_MAX;
    const struct cell_header *said = cells_header(shared, rank, before);
    struct cell_header *header = cells_header(shared, rank, seq);
    header->said = said->said;
    memcpy(header->data, said->data, sizeof header->data);
    if (lies) {
        memcpy(header->data + CELLS_NOTE_AT + offsetof(struct cells_note, lent), &none, sizeof none);
    }
    cells_publish(shared, size, rank, seq, true);
}

static void await_others(struct cells_shared *shared, uint64_t head)
{
    for (uint32_t other = 0; other < size; other++) {
        while (other != rank && cells_head(shared, other) < head) {
            usleep(1000);
        }
    }
}

static void go_to_step(enum step step, int signal_number)
{
    size_t bytes;
    struct cells_shared *shared = (struct cells_shared *)(void *)find_cells(&bytes);
    uint64_t last = cells_head(shared, rank);
    if (cells_note_of(shared, rank, last - 1).lent == 0) {
        fprintf(stderr, "rank %u lends nothing\n", rank);
        exit(EXIT_FAILURE);
    }
    await_others(shared, last + 1);
    if (step == STEP_WITHDRAWN) {
        uint32_t offer = cells_note_of(shared, rank, last - 1).lent - 1u;
        atomic_store(&shared->ranks[rank].offers[offer].stamp, 0);
    }
    if (step == STEP_REPLACED) { /* as if another program ran under its pid */
        uint64_t at = shared->ranks[rank].offers[CELLS_OFFER_SELF].answers_at;
        memset((void *)(uintptr_t)at, 0, size * sizeof(uint64_t));
    }
    if (step != STEP_BEFORE) {
        repeat(shared, last + 1, last - 1, step == STEP_LIES);
        await_others(shared, last + 2);
    }
    if (step != STEP_BEFORE && step != STEP_PUBLISHED && step != STEP_LIES) {
        repeat(shared, last + 2, last, false);
    }
    usleep(30000);
    (void)raise(signal_number);
}

static void check(uint32_t operation)
{
    for (uint32_t from = 0; from < size; from++) {
        const uint32_t *block = output + from * count;
        for (uint32_t i = 0; i < count; i++) {
            if (block[i] != number_of(from, operation, i)) {
                fprintf(stderr, "rank %u, operation %u: element %u of rank %u is %u\n", rank, operation, i,
                        from, block[i]);
                exit(EXIT_FAILURE);
            }
        }
    }
}

/* What the last rank lends is nowhere. */
static void check_nothing_was_read(void)
{
    for (uint32_t i = (size - 1) * count; i < size * count; i++) {
        if (output[i] != 0xa5a5a5a5u) {
            fprintf(stderr, "rank %u: element %u is %u, from nowhere\n", rank, i, output[i]);
            exit(EXIT_FAILURE);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc != 7 || (strcmp(argv[6], "file") != 0 && strcmp(argv[6], "process") != 0)) {
        fprintf(stderr, "usage: cells_loans NAME RANK SIZE STEP SIGNAL file|process\n");
        return 2;
    }
    void *memory;
    enum step step = (enum step)atoi(argv[4]);
    uint32_t most = step == STEP_LIES ? COUNT_OF_LIES : COUNT;
    uint32_t warm_ups = strcmp(argv[6], "process") == 0 ? WARM_UPS_BY_PROCESS : WARM_UPS, ended = 0;
    comm_result_t result = COMM_OK;
    join(argv, TIMEOUT_MS);
    if (strcmp(argv[6], "file") == 0) {
        must(comm_mem_alloc(client, most * sizeof *input, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    } else {
        memory = calloc(most, sizeof *input);
        must(memory != NULL ? COMM_OK : COMM_NO_MEMORY, "calloc");
    }
    input = memory;
    output = malloc(size * most * sizeof *output);
    while (output != NULL && result == COMM_OK) {
        count = ended + LARGE_WARM_UPS < warm_ups ? COUNT : most;
        memset(output, 0xa5, size * count * sizeof *output);
        for (uint32_t i = 0; i < count; i++) {
            input[i] = number_of(rank, ended, i);
        }
        if (rank == (step == STEP_LIES ? size - 1 : 0) && ended == warm_ups) {
            go_to_step(step, atoi(argv[5]));
        }
        result = comm_all_gather(comm, input, output, count, COMM_U32, NULL);
        result = result == COMM_OK ? comm_sync(comm, 0) : result;
        if (result == COMM_OK) {
            check(ended++);
        }
    }
    if (step == STEP_LIES && output != NULL) {
        check_nothing_was_read();
    }
    printf("%d %s %s\n", (int)ended - (int)warm_ups, comm_result_text(result), comm_last_error());
    leave();
    return 0;
}
