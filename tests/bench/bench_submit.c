#include <stdio.h>
#include <stdlib.h>

#include "tests/bench/timing.h"

/*
 * Measures the time from a call to its execution, in the daemon at $COMMD_SOCKET. The communicator has one
 * rank, so an all_reduce copies 8 bytes. The caller does not wait for the operation; it looks at the output
 * until the bytes arrive. So the time includes the copy and the transfer of its cache line. Prints one JSON
 * object: medians and 99th percentiles in microseconds, of this time and of the call with comm_wait.
 */

#define ROUNDS 20000

int main(void)
{
    static double started_us[ROUNDS], ended_us[ROUNDS];
    comm_client_t *client;
    comm_t *comm;
    void *memory;
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_init(client, "bench-submit", 0, 1, COMM_DEVICE_HOST, NULL, &comm), "comm_init");
    must(comm_mem_alloc(client, 4096, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
    volatile uint64_t *input = memory;
    volatile uint64_t *output = input + 256;
    for (int i = -1000; i < ROUNDS; i++) {
        comm_request_t *request = NULL;
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &request;
        *input = (uint64_t)(i + 2000);
        double began_us = now_us();
        must(comm_all_reduce(comm, memory, (void *)(uintptr_t)output, 1, COMM_U64, COMM_SUM, &options),
             "all_reduce");
        while (*output != (uint64_t)(i + 2000)) {
        }
        double seen_us = now_us();
        must(comm_wait(&request, NULL), "comm_wait");
        if (i >= 0) {
            started_us[i] = seen_us - began_us;
            ended_us[i] = now_us() - began_us;
        }
    }
    sort_doubles(started_us, ROUNDS);
    sort_doubles(ended_us, ROUNDS);
    printf("{\"started_us\": %.3f, \"started_p99_us\": %.3f, \"ended_us\": %.3f, \"ended_p99_us\": %.3f}\n",
           started_us[ROUNDS / 2], started_us[ROUNDS * 99 / 100], ended_us[ROUNDS / 2],
           ended_us[ROUNDS * 99 / 100]);
    comm_client_close(client);
    return 0;
}
