#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/timing.h"

/*
 * Measures an all_reduce of 8 bytes of ordinary memory, which is started and then waited for. The time of the
 * same in another language, less this time, is the cost of that language's binding.
 *
 *   bench_small NAME RANK SIZE ROUNDS
 *
 * Prints the median in microseconds.
 */

static double measure(comm_t *comm, size_t rounds, double *times_us)
{
    double value = 1;
    for (size_t i = 0; i < rounds; i++) {
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &request;
        value = 1;
        double began_us = now_us();
        must(comm_all_reduce(comm, &value, &value, 1, COMM_F64, COMM_SUM, &options), "all_reduce");
        must(comm_wait(&request, NULL), "comm_wait");
        times_us[i] = now_us() - began_us;
    }
    sort_doubles(times_us, rounds);
    return times_us[rounds / 2];
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: bench_small NAME RANK SIZE ROUNDS\n");
        return 2;
    }
    uint32_t rank = (uint32_t)strtoul(argv[2], NULL, 10), size = (uint32_t)strtoul(argv[3], NULL, 10);
    size_t rounds = strtoul(argv[4], NULL, 10);
    double *times_us = rounds > 0 ? calloc(rounds, sizeof *times_us) : NULL;
    comm_client_t *client;
    comm_t *comm;
    if (times_us == NULL) {
        return 1;
    }
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_init(client, argv[1], rank, size, COMM_DEVICE_HOST, NULL, &comm), "comm_init");
    (void)measure(comm, rounds, times_us);
    printf("%.3f\n", measure(comm, rounds, times_us));
    comm_destroy(comm);
    comm_client_close(client);
    free(times_us);
    return 0;
}
