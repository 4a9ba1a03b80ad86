/*
 * One of two ranks, for count_hops.py. It runs all-reduces of 8 bytes, one after the other.
 *
 *   hops_rank NAME RANK COUNT MEMORY     MEMORY: shared (comm_mem_alloc) or plain (the stack's)
 *
 * Rank 1 calls a little after rank 0, so commd begins when rank 1 calls. Each rank asks for the end of an
 * operation only after it has ended. So no rank waits, and each operation takes the same path.
 */
#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LATER_NS 100000u /* how long rank 1 calls after rank 0 */
/* enough time for commd to answer both; shorter than the time for which commd polls for the next request */
#define DONE_NS 200000u

static uint32_t rank;

static void expect_ok(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

/* Spins, because the kernel may wake a sleeping process late. */
static void pass_time(uint64_t time_ns)
{
    struct timespec began, now;
    (void)clock_gettime(CLOCK_MONOTONIC, &began);
    do {
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((uint64_t)(now.tv_sec - began.tv_sec) * 1000000000u + (uint64_t)now.tv_nsec -
                 (uint64_t)began.tv_nsec <
             time_ns);
}

int main(int argc, char **argv)
{
    comm_client_t *client;
    comm_t *comm;
    double own = 0, *value = &own;
    if (argc != 5) {
        fprintf(stderr, "usage: hops_rank NAME RANK COUNT shared|plain\n");
        return 2;
    }
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    unsigned long count = strtoul(argv[3], NULL, 10);
    expect_ok(comm_client_open(NULL, &client), "comm_client_open");
    expect_ok(comm_init(client, argv[1], rank, 2, COMM_DEVICE_HOST, NULL, &comm), "comm_init");
    if (strcmp(argv[4], "shared") == 0) {
        void *memory;
        expect_ok(comm_mem_alloc(client, sizeof *value, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
        value = memory;
    }
    for (unsigned long i = 0; i < count; i++) {
        *value = rank + 1.0;
        expect_ok(comm_barrier(comm, NULL), "comm_barrier");
        pass_time(rank * LATER_NS);
        expect_ok(comm_all_reduce(comm, value, value, 1, COMM_F64, COMM_SUM, NULL), "comm_all_reduce");
        pass_time(DONE_NS);
        expect_ok(comm_sync(comm, 0), "comm_sync");
        if (*value != 3.0) {
            fprintf(stderr, "rank %u: the sum is %g, not 3\n", rank, *value);
            return EXIT_FAILURE;
        }
    }
    comm_destroy(comm);
    comm_client_close(client);
    return EXIT_SUCCESS;
}
