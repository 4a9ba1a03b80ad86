#ifndef TESTS_SYSTEM_CELLS_RANK_H
#define TESTS_SYSTEM_CELLS_RANK_H

#include <commclient.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What the programs cells, cells_faults and cells_loans share: one rank of one communicator. */
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

/* Another communicator of the same ranks. */
static inline comm_t *join_another(const char *name, const char *suffix)
{
    comm_t *another;
    char text[64];
    (void)snprintf(text, sizeof text, "%s-%s", name, suffix);
    must(comm_init(client, text, rank, size, COMM_DEVICE_HOST, NULL, &another), "comm_init");
    return another;
}

/* Waits for all ranks, and for nothing else that was submitted, as comm_barrier would. */
static inline void meet_on(comm_t *all)
{
    uint32_t one = 1, sum = 0;
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    must(comm_all_reduce(all, &one, &sum, 1, COMM_U32, COMM_SUM, &options), "comm_all_reduce");
    must(comm_wait(&request, NULL), "comm_wait");
}

/* This process's mapping of the cells. */
static inline unsigned char *find_cells(size_t *bytes)
{
    static unsigned char *from, *to;
    char line[512];
    FILE *maps = from == NULL ? fopen("/proc/self/maps", "re") : NULL;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        if (strstr(line, "memfd:commd-cells") != NULL) {
            char *rest;
            from = (unsigned char *)(uintptr_t)strtoull(line, &rest, 16); /* "begin-end ..." */
            to = (unsigned char *)(uintptr_t)strtoull(rest + 1, NULL, 16);
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
    if (from == NULL) {
        fprintf(stderr, "rank %u has no cells\n", rank);
        exit(EXIT_FAILURE);
    }
    *bytes = (size_t)(to - from);
    return from;
}

static inline void leave(void)
{
    comm_destroy(comm);
    comm_client_close(client);
}

#endif
