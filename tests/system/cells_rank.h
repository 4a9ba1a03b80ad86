#ifndef TESTS_SYSTEM_CELLS_RANK_H
#define TESTS_SYSTEM_CELLS_RANK_H

#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What the programs cells and cells_faults share: one rank of one communicator. */
static comm_client_t *client;
static comm_t *comm;
static uint32_t rank, size;

static inline void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "rank %u: %s: %s: %s\n", rank, what, comm_result_text(result), comm_last_error());
        exit(EXIT_FAILURE);
    }
}

static inline uint64_t next_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t value = *state;
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
    value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
    return value ^ (value >> 31);
}

/* argv: PROGRAM NAME RANK SIZE ... */
static inline void join(char **argv, uint32_t op_timeout_ms)
{
    comm_init_options_t options = COMM_INIT_OPTIONS_INIT;
    options.op_timeout_ms = op_timeout_ms;
    rank = (uint32_t)strtoul(argv[2], NULL, 10);
    size = (uint32_t)strtoul(argv[3], NULL, 10);
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_init(client, argv[1], rank, size, COMM_DEVICE_HOST, &options, &comm), "comm_init");
}

static inline void leave(void)
{
    comm_destroy(comm);
    comm_client_close(client);
}

#endif
