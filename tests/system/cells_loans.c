/*
 * One rank of a check of slices that are lent (proto/cells.h). It runs all-gathers until one fails, and
 * prints how many ended well, and the failure.
 *
 *   cells_loans NAME RANK SIZE STEP SIGNAL file|process
 *
 * The ranks lend memory of comm_mem_alloc, or ordinary memory, which is read from their processes. Rank 0
 * goes to a step of an operation that all lend to, and gets the signal there. If something is wrong, it
 * prints that on standard error, and exits with 1.
 */
#include <commclient.h>

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/cells.h"
#include "tests/system/cells_rank.h"

/* Elements of a block: more than a cell takes, and one slice. */
#define COUNT 40000u
#define WARM_UPS 50u
#define TIMEOUT_MS 1500u

/* What rank 0 has done when the signal comes. */
enum step {
    STEP_BEFORE,    /* nothing */
    STEP_PUBLISHED, /* the others have read its memory, and wait until it has read theirs */
    STEP_DONE,      /* it has said that it has read theirs */
    STEP_WITHDRAWN  /* the same, but it has said before that its memory is not lent any more */
};

static uint32_t *input, *output;

static uint32_t number_of(uint32_t of_rank, uint32_t operation, uint32_t index)
{
    return (index + 1) * 2654435761u ^ (of_rank + 1) * 40503u ^ operation * 69069u;
}

/* Publishes what the number of the operation before said. */
static void repeat(struct cells_shared *shared, uint64_t seq, uint64_t before)
{
    const struct cell_header *said = cells_header(shared, rank, before);
    struct cell_header *header = cells_header(shared, rank, seq);
    header->said = said->said;
    memcpy(header->data, said->data, sizeof header->data);
    cells_publish(shared, size, rank, seq, true);
}

static void go_to_step(enum step step, int signal_number)
{
    size_t bytes;
    struct cells_shared *shared = (struct cells_shared *)(void *)find_cells(&bytes);
    uint64_t last = cells_head(shared, rank);
    if (cells_note_of(shared, rank, last - 1).lent == 0) {
        fprintf(stderr, "rank 0 lends nothing\n");
        exit(EXIT_FAILURE);
    }
    for (uint32_t other = 1; other < size; other++) {
        while (cells_head(shared, other) < last + 1) {
            usleep(1000);
        }
    }
    if (step == STEP_WITHDRAWN) {
        uint32_t offer = cells_note_of(shared, rank, last - 1).lent - 1u;
        atomic_store(&shared->ranks[rank].offers[offer].stamp, 0);
    }
    if (step != STEP_BEFORE) {
        repeat(shared, last + 1, last - 1);
    }
    for (uint32_t other = 1; step != STEP_BEFORE && other < size; other++) {
        while (cells_head(shared, other) < last + 2) {
            usleep(1000);
        }
    }
    if (step >= STEP_DONE) {
        repeat(shared, last + 2, last);
    }
    usleep(30000);
    (void)raise(signal_number);
}

static void check(uint32_t operation)
{
    for (uint32_t i = 0; i < size * COUNT; i++) {
        if (output[i] != number_of(i / COUNT, operation, i % COUNT)) {
            fprintf(stderr, "rank %u, operation %u: element %u is %u\n", rank, operation, i, output[i]);
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
    uint32_t ended = 0;
    comm_result_t result = COMM_OK;
    join(argv, TIMEOUT_MS);
    if (strcmp(argv[6], "file") == 0) {
        must(comm_mem_alloc(client, COUNT * sizeof *input, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    } else {
        memory = calloc(COUNT, sizeof *input);
        must(memory != NULL ? COMM_OK : COMM_NO_MEMORY, "calloc");
    }
    input = memory;
    output = malloc(size * COUNT * sizeof *output);
    while (output != NULL && result == COMM_OK) {
        memset(output, 0xa5, size * COUNT * sizeof *output);
        for (uint32_t i = 0; i < COUNT; i++) {
            input[i] = number_of(rank, ended, i);
        }
        if (rank == 0 && ended == WARM_UPS) {
            go_to_step((enum step)atoi(argv[4]), atoi(argv[5]));
        }
        result = comm_all_gather(comm, input, output, COUNT, COMM_U32, NULL);
        result = result == COMM_OK ? comm_sync(comm, 0) : result;
        if (result == COMM_OK) {
            check(ended++);
        }
    }
    printf("%u %s %s\n", ended, comm_result_text(result), comm_last_error());
    leave();
    return 0;
}
