#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/bench/timing.h"

/*
 * Measures comm_pool_alloc with comm_pool_free, and for comparison comm_mem_alloc with comm_mem_free, in one
 * thread, with the daemon at $COMMD_SOCKET. Prints one JSON object: medians over the rounds, in nanoseconds
 * for one pair of calls.
 *
 *   same   the same size again and again
 *   mixed  sizes from 64 bytes to 256 KiB; each frees the oldest of 1,000 allocations
 */

#define ROUNDS 201
#define PAIRS 2000
#define LIVE 1000

static double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

static double same_ns(comm_pool_t *pool, size_t size)
{
    double began_ns = now_ns();
    for (int i = 0; i < PAIRS; i++) {
        void *memory;
        must(comm_pool_alloc(pool, size, &memory), "comm_pool_alloc");
        must(comm_pool_free(pool, memory), "comm_pool_free");
    }
    return (now_ns() - began_ns) / PAIRS;
}

static double mixed_ns(comm_pool_t *pool, void *live[LIVE], const size_t sizes[PAIRS])
{
    double began_ns = now_ns();
    for (int i = 0; i < PAIRS; i++) {
        must(comm_pool_free(pool, live[i % LIVE]), "comm_pool_free");
        must(comm_pool_alloc(pool, sizes[i], &live[i % LIVE]), "comm_pool_alloc");
    }
    return (now_ns() - began_ns) / PAIRS;
}

static double direct_ns(comm_client_t *client)
{
    double began_ns = now_ns();
    for (int i = 0; i < PAIRS / 100; i++) {
        void *memory;
        must(comm_mem_alloc(client, 4096, COMM_DEVICE_HOST, &memory), "comm_mem_alloc");
        must(comm_mem_free(client, memory), "comm_mem_free");
    }
    return (now_ns() - began_ns) / (PAIRS / 100.0);
}

static double median(double values[ROUNDS])
{
    sort_doubles(values, ROUNDS);
    return values[ROUNDS / 2];
}

int main(void)
{
    static double small[ROUNDS], page[ROUNDS], mixed[ROUNDS], direct[ROUNDS];
    static void *live[LIVE];
    static size_t sizes[PAIRS];
    comm_client_t *client;
    comm_pool_t *pool;
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_pool_create(client, NULL, &pool), "comm_pool_create");
    must(comm_pool_reserve(pool, (size_t)128 << 20), "comm_pool_reserve");
    srand(1);
    for (int i = 0; i < PAIRS; i++) {
        size_t most = (size_t)64 << rand() % 13;
        sizes[i] = (size_t)rand() % most + 1;
    }
    for (int i = 0; i < LIVE; i++) {
        must(comm_pool_alloc(pool, sizes[i], &live[i]), "comm_pool_alloc");
    }
    for (int i = 0; i < ROUNDS; i++) {
        small[i] = same_ns(pool, 256);
        page[i] = same_ns(pool, 65536);
        mixed[i] = mixed_ns(pool, live, sizes);
        direct[i] = direct_ns(client);
    }
    printf(
        "{\"same, 256 B\": %.1f, \"same, 64 KiB\": %.1f, \"mixed\": %.1f, \"comm_mem_alloc, 4 KiB\": %.1f}\n",
        median(small), median(page), median(mixed), median(direct));
    comm_client_close(client);
    return 0;
}
