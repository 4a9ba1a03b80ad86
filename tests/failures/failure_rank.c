#include "tests/failures/failure_rank.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <commclient.h>

#include "tests/failures/fail_calls.h"

/* usage: failure_rank SOCKET NAME RANK FD COMMCTL. FD is the descriptor of the struct fail_state that arms
 * this process, or -1. */

enum { COUNT = 3000, TIMEOUT_MS = 6000, LARGE = 40000, VALUE_BYTES = 20000 };

struct rank {
    uint32_t number;
    comm_client_t *client;
    comm_t *comm, *part;
    const char *socket_path, *commctl, *name;
    int64_t *registered; /* LARGE elements from comm_mem_alloc */
    enum failure_rank_end end;
};

/* Returns whether the rank may go on. */
static bool went(struct rank *rank, comm_result_t result, const char *what)
{
    if (result == COMM_OK) {
        return true;
    }
    fprintf(stderr, "rank %u: %s: %s: %s\n", rank->number, what, comm_result_text(result), comm_last_error());
    rank->end = comm_last_error()[0] != '\0' ? RANK_TOLD : RANK_WRONG;
    return false;
}

static bool is_right(struct rank *rank, bool right, const char *what)
{
    if (!right) {
        fprintf(stderr, "rank %u: %s: wrong bytes\n", rank->number, what);
        rank->end = RANK_WRONG;
    }
    return right;
}

static bool all_reduce(struct rank *rank, comm_t *comm, int64_t *values, int count)
{
    for (int i = 0; i < count; i++) {
        values[i] = (int64_t)rank->number * 1000 + i;
    }
    if (!went(rank, comm_all_reduce(comm, values, values, (size_t)count, COMM_I64, COMM_SUM, NULL),
              "all_reduce") ||
        !went(rank, comm_sync(comm, 0), "sync after all_reduce")) {
        return false;
    }
    for (int i = 0; i < count; i++) {
        if (values[i] != 1000 + 2 * i) {
            return is_right(rank, false, "all_reduce");
        }
    }
    return true;
}

static bool messages(struct rank *rank)
{
    static int32_t sent[COUNT], received[COUNT];
    uint32_t other = 1 - rank->number;
    for (int32_t i = 0; i < COUNT; i++) {
        sent[i] = i * 3 + (int32_t)rank->number;
        received[i] = -1;
    }
    if (!went(rank, comm_send_recv(rank->comm, sent, COUNT, other, received, COUNT, other, COMM_I32, 5, NULL),
              "send_recv") ||
        !went(rank, comm_sync(rank->comm, 0), "sync after send_recv")) {
        return false;
    }
    for (int32_t i = 0; i < COUNT; i++) {
        if (received[i] != i * 3 + (int32_t)other) {
            return is_right(rank, false, "send_recv");
        }
    }
    return true;
}

/* Each rank stores a value under its number, and gets the other rank's. */
static bool exchange(struct rank *rank, comm_store_t *store)
{
    static unsigned char value[VALUE_BYTES];
    static const char *const keys[] = {"0", "1"};
    uint32_t other = 1 - rank->number;
    int64_t sum = 0;
    void *taken = NULL;
    size_t size = 0;
    for (size_t i = 0; i < sizeof value; i++) {
        value[i] = (unsigned char)(i * 7 + rank->number);
    }
    if (!went(rank, comm_store_set(store, keys[rank->number], value, sizeof value), "store_set") ||
        !went(rank, comm_store_get(store, keys[other], TIMEOUT_MS, &taken, &size), "store_get")) {
        return false;
    }
    bool right = size == sizeof value;
    for (size_t i = 0; i < sizeof value && right; i++) {
        right = ((unsigned char *)taken)[i] == (unsigned char)(i * 7 + other);
    }
    comm_store_free(taken);
    return is_right(rank, right, "store_get") &&
           went(rank, comm_store_wait(store, keys, 2, TIMEOUT_MS), "store_wait") &&
           went(rank, comm_store_add(store, "sum", 5, &sum), "store_add") &&
           is_right(rank, sum == 5 || sum == 10, "store_add");
}

static bool stores(struct rank *rank)
{
    comm_store_t *store = NULL;
    if (!went(rank, comm_store_open(rank->client, rank->name, TIMEOUT_MS, &store), "store_open")) {
        return false;
    }
    bool fine = exchange(rank, store);
    comm_store_close(store);
    return fine;
}

/* Runs commctl as an administrator would. At this moment there is something to show, and no other rank
 * waits for this one. */
static bool queries(struct rank *rank)
{
    static char *const verbs[] = {"status", "nodes", "comms", "clients", "ops", "users"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char *const arguments[] = {"commctl", "--socket", (char *)rank->socket_path, verbs[i], NULL};
        pid_t pid;
        int status;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
        int failure = posix_spawn(&pid, rank->commctl, &actions, NULL, arguments, environ);
        posix_spawn_file_actions_destroy(&actions);
        bool ended = failure == 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status);
        if (!ended || WEXITSTATUS(status) != EXIT_SUCCESS) {
            fprintf(stderr, "rank %u: commctl %s: %s %d\n", rank->number, verbs[i],
                    ended ? "exit code" : "did not end by itself", ended ? WEXITSTATUS(status) : failure);
            rank->end = ended ? RANK_TOLD : RANK_WRONG;
            return false;
        }
    }
    return true;
}

static bool open_all(struct rank *rank, const char *socket_path, const char *name)
{
    comm_open_options_t open = COMM_OPEN_OPTIONS_INIT;
    comm_init_options_t init = COMM_INIT_OPTIONS_INIT;
    open.socket_path = socket_path;
    open.timeout_ms = TIMEOUT_MS;
    init.timeout_ms = TIMEOUT_MS;
    init.op_timeout_ms = TIMEOUT_MS;
    void *memory = NULL;
    bool fine =
        went(rank, comm_client_open(&open, &rank->client), "open") &&
        went(rank, comm_init(rank->client, name, rank->number, 2, COMM_DEVICE_HOST, &init, &rank->comm),
             "init") &&
        went(rank, comm_mem_alloc(rank->client, LARGE * sizeof *rank->registered, COMM_DEVICE_HOST, &memory),
             "mem_alloc");
    rank->registered = memory;
    return fine;
}

static bool work(struct rank *rank)
{
    static int64_t small[COUNT];
    return all_reduce(rank, rank->comm, small, COUNT) &&
           all_reduce(rank, rank->comm, rank->registered, LARGE) && messages(rank) && stores(rank) &&
           went(rank, comm_split(rank->comm, 0, 0, &rank->part), "split") &&
           is_right(rank, comm_size(rank->part) == 2, "split") && all_reduce(rank, rank->part, small, 7) &&
           went(rank, comm_barrier(rank->comm, NULL), "barrier") &&
           went(rank, comm_sync(rank->comm, 0), "sync after barrier") &&
           (rank->number != 0 || queries(rank)) &&
           went(rank, comm_mem_free(rank->client, rank->registered), "mem_free");
}

static enum failure_rank_end run(const char *socket_path, const char *name, uint32_t number,
                                 const char *commctl)
{
    struct rank rank = {
        .number = number, .end = RANK_WELL, .socket_path = socket_path, .commctl = commctl, .name = name};
    if (open_all(&rank, socket_path, name)) {
        (void)work(&rank);
    }
    if (rank.part != NULL) {
        comm_destroy(rank.part);
    }
    if (rank.comm != NULL) {
        comm_destroy(rank.comm);
    }
    if (rank.client != NULL) {
        comm_client_close(rank.client);
    }
    return rank.end;
}

int main(int argc, char **argv)
{
    if (argc != 6) {
        return EXIT_FAILURE;
    }
    int fd = atoi(argv[4]);
    if (fd >= 0) {
        struct fail_state *state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (state == MAP_FAILED) {
            return EXIT_FAILURE;
        }
        fail_calls_arm(state);
    }
    enum failure_rank_end end = run(argv[1], argv[2], (uint32_t)atoi(argv[3]), argv[5]);
    fail_calls_arm(NULL);
    return (int)end;
}
