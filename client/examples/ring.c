/*
 * Passes blocks around a ring until every rank has seen the blocks of all ranks, and adds them up. Sends and
 * receives overlap.
 *
 *   ring [--name NAME] [--rank R --size N]
 */
#include "client/examples/example.h"

enum { COUNT = 100000 };

int main(int argc, char **argv)
{
    struct example example = example_begin(argc, argv, "ring");
    uint32_t right = (example.rank + 1) % example.size;
    uint32_t left = (example.rank + example.size - 1) % example.size;
    int64_t *mine = example_allocate(COUNT, sizeof *mine);
    int64_t *next = example_allocate(COUNT, sizeof *next);
    int64_t *sum = example_allocate(COUNT, sizeof *sum);
    for (int64_t i = 0; i < COUNT; i++) {
        mine[i] = i * (example.rank + 1);
    }
    for (uint32_t step = 0; step < example.size; step++) {
        comm_request_t *requests[2];
        comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
        options.request = &requests[0];
        example_check(comm_recv(example.comm, next, COUNT, COMM_I64, left, step, &options), "receive");
        options.request = &requests[1];
        example_check(comm_send(example.comm, mine, COUNT, COMM_I64, right, step, &options), "send");
        for (int i = 0; i < COUNT; i++) { /* meanwhile */
            sum[i] += mine[i];
        }
        example_check(comm_wait_all(requests, 2, NULL), "exchange");
        int64_t *was = mine;
        mine = next;
        next = was;
    }
    int good = 1;
    int64_t ranks = example.size;
    for (int64_t i = 0; i < COUNT; i++) {
        good = good && sum[i] == i * ranks * (ranks + 1) / 2;
    }
    free(mine);
    free(next);
    free(sum);
    return example_end(&example, good, "sums around the ring");
}
