/*
 * One rank of a check of small operations on memory of comm_mem_register, which goes through cells although
 * commd has mapped it.
 *
 *   cells_memory NAME RANK 2 FOLDER
 *
 * The folder is empty. Ranks make files there when they have come so far. Prints "checked", or what is wrong,
 * and exits with 1.
 */
#include <commclient.h>

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/system/cells_rank.h"

#define MEMORY_BYTES ((size_t)4 << 20)
#define TIMEOUT_MS 20000u
#define LATE_US 200000u
#define AHEAD 20u /* more operations of few bytes than a rank may have published */
#define LET_GO 6u /* whose handles end early; so many are published together */
#define COUNT 5u
#define POISON 0xA5

static int32_t *memory;
static const char *folder;
static int memfd;

static void fail(const char *what, unsigned long long number)
{
    fprintf(stderr, "rank %u: %s: %llu: %s\n", rank, what, number, comm_last_error());
    exit(EXIT_FAILURE);
}

static void say(const char *what)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, what);
    FILE *file = fopen(path, "w");
    if (file == NULL || fclose(file) != 0) {
        fail("no file", 0);
    }
}

static void await(const char *what)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, what);
    for (unsigned waits = 0; access(path, F_OK) != 0; waits++) {
        if (waits > 10000) {
            fail(what, 0);
        }
        usleep(1000);
    }
}

static int32_t value(uint32_t of, size_t at)
{
    return (int32_t)(of * 1000003u + (uint32_t)at * 31u + 5u);
}

/* The first call after the operation withdraws its memory: it returns when the result is there. */
static void run_withdrawn(size_t count)
{
    must(comm_mem_register(client, memory, MEMORY_BYTES, memfd, 0), "comm_mem_register");
    for (size_t i = 0; i < count; i++) {
        memory[i] = value(rank, i);
    }
    if (rank == 1) {
        usleep(LATE_US);
    }
    must(comm_all_reduce(comm, memory, memory, count, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    must(comm_mem_deregister(client, memory), "comm_mem_deregister");
    for (size_t i = 0; i < count; i++) {
        if (memory[i] != value(0, i) + value(1, i)) {
            fail("the memory was withdrawn before the operation ended", count);
        }
    }
    must(comm_sync(comm, 0), "comm_sync");
}

/* The same of an operation that is held, because the rank may publish no more. */
static void run_held_withdrawn(void)
{
    static int32_t sums[AHEAD];
    must(comm_mem_register(client, memory, MEMORY_BYTES, memfd, 0), "comm_mem_register");
    if (rank == 1) {
        usleep(LATE_US);
    }
    for (unsigned i = 0; i < AHEAD; i++) {
        must(comm_all_reduce(comm, &sums[i], &sums[i], 1, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    }
    memory[0] = value(rank, 0);
    must(comm_all_reduce(comm, memory, memory, 1, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    must(comm_mem_deregister(client, memory), "comm_mem_deregister");
    if (memory[0] != value(0, 0) + value(1, 0)) {
        fail("the memory was withdrawn before the held operation ended", 0);
    }
    must(comm_sync(comm, 0), "comm_sync");
}

static void run_freed(size_t count)
{
    void *freed;
    must(comm_mem_alloc(client, MEMORY_BYTES, COMM_DEVICE_HOST, &freed), "comm_mem_alloc");
    memset(freed, 1, MEMORY_BYTES);
    if (rank == 1) {
        usleep(LATE_US);
    }
    must(comm_all_reduce(comm, freed, freed, count, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    must(comm_mem_free(client, freed), "comm_mem_free");
    must(comm_sync(comm, 0), "comm_sync");
}

/* With a queue, an operation is not for cells: rank 1 hands it to commd. */
static void reduce_by_queue(void)
{
    comm_queue_t *queue = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    static int32_t in[LET_GO][COUNT], out[LET_GO][COUNT];
    must(comm_queue_create(client, &queue), "comm_queue_create");
    options.queue = queue;
    for (unsigned number = 0; number < LET_GO; number++) {
        for (unsigned i = 0; i < COUNT; i++) {
            in[number][i] = value(1, number * COUNT + i);
        }
        must(comm_reduce(comm, in[number], out[number], COUNT, COMM_I32, COMM_SUM, 1, &options),
             "comm_reduce");
    }
    for (size_t ended = 0, taken = 0; ended < LET_GO; ended += taken) {
        comm_completion_t completions[LET_GO];
        must(comm_queue_next(queue, completions, LET_GO, &taken, TIMEOUT_MS), "comm_queue_next");
        for (size_t i = 0; i < taken; i++) {
            if (completions[i].result != COMM_OK) {
                fail(completions[i].failure->text, i);
            }
        }
    }
    for (unsigned at = 0; at < LET_GO * COUNT; at++) {
        if (out[at / COUNT][at % COUNT] != value(0, at) + value(1, at)) {
            fail("a wrong sum", at);
        }
    }
    comm_queue_destroy(queue);
}

/*
 * Rank 0 submits more than it may publish, so the last ones wait. They are on registered memory. When they
 * are published, their handles end, and rank 0 uses their memory for something else. But rank 1 has handed
 * them to commd.
 */
static void run_let_go(void)
{
    static int32_t sums[AHEAD];
    comm_request_t *requests[LET_GO];
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    must(comm_mem_register(client, memory, MEMORY_BYTES, memfd, 0), "comm_mem_register");
    if (rank == 1) {
        await("submitted");
    }
    for (unsigned i = 0; i < AHEAD; i++) {
        sums[i] = (int32_t)i;
        must(comm_all_reduce(comm, &sums[i], &sums[i], 1, COMM_I32, COMM_SUM, NULL), "comm_all_reduce");
    }
    if (rank == 1) {
        reduce_by_queue();
    }
    for (unsigned i = 0; rank == 0 && i < LET_GO * COUNT; i++) {
        memory[i] = value(0, i);
    }
    for (unsigned i = 0; rank == 0 && i < LET_GO; i++) {
        options.request = &requests[i];
        must(comm_reduce(comm, memory + i * COUNT, NULL, COUNT, COMM_I32, COMM_SUM, 1, &options),
             "comm_reduce");
    }
    if (rank == 0) {
        say("submitted");
        for (unsigned i = 0; i < LET_GO; i++) {
            must(comm_wait(&requests[i], NULL), "comm_wait");
            memset(memory + i * COUNT, POISON, COUNT * sizeof *memory);
        }
    }
    must(comm_sync(comm, 0), "comm_sync");
    for (unsigned i = 0; i < AHEAD; i++) {
        if (sums[i] != (int32_t)(2 * i)) {
            fail("a wrong sum before", i);
        }
    }
    must(comm_mem_deregister(client, memory), "comm_mem_deregister");
}

int main(int argc, char **argv)
{
    static const size_t counts[] = {2, 1000, 5000, 8192, 100000, 1000000};
    if (argc != 5) {
        fprintf(stderr, "usage: cells_memory NAME RANK 2 FOLDER\n");
        return 2;
    }
    join(argv, TIMEOUT_MS);
    folder = argv[4];
    memfd = memfd_create("cells_memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memfd < 0 || ftruncate(memfd, (off_t)MEMORY_BYTES) != 0) {
        fail("no memory", 0);
    }
    memory = mmap(NULL, MEMORY_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memfd, 0);
    if (memory == MAP_FAILED) {
        fail("no memory", 1);
    }
    run_let_go();
    run_held_withdrawn();
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        run_withdrawn(counts[i]);
        run_freed(counts[i]);
    }
    leave();
    puts("checked");
    return 0;
}
