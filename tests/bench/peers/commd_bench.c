/* Stand-in for `commctl bench`: commd_bench SOCKET NAME SIZE FIRST_RANK LOCAL_RANKS ARGUMENTS */
#include "commclient.h"
#include "sweep.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

struct peer {
    comm_client_t *client;
    comm_t *comm;
    double *value;
    unsigned rank, ranks;
};

static void must(comm_result_t result)
{
    if (result != COMM_OK) {
        fprintf(stderr, "commd_bench: %s\n", comm_last_error());
        exit(1);
    }
}

static void *allocate(void *context, size_t bytes)
{
    struct peer *peer = context;
    void *memory;
    must(comm_mem_alloc(peer->client, bytes, COMM_DEVICE_HOST, &memory));
    return memory;
}

static void operate(void *context, enum sweep_operation operation, const float *send, float *receive,
                    size_t count)
{
    struct peer *peer = context;
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    size_t block = count / peer->ranks;
    switch (operation) {
    case SWEEP_ALL_REDUCE:
        must(comm_all_reduce(peer->comm, send, receive, count, COMM_F32, COMM_SUM, &options));
        break;
    case SWEEP_ALL_GATHER:
        must(comm_all_gather(peer->comm, send, receive, block, COMM_F32, &options));
        break;
    case SWEEP_REDUCE_SCATTER:
        must(comm_reduce_scatter(peer->comm, send, receive, block, COMM_F32, COMM_SUM, &options));
        break;
    case SWEEP_BROADCAST:
        must(comm_broadcast(peer->comm, peer->rank == 0 ? (float *)send : receive, count, COMM_F32, 0,
                            &options));
        break;
    case SWEEP_ALL_TO_ALL:
        must(comm_all_to_all(peer->comm, send, receive, block, COMM_F32, &options));
        break;
    case SWEEP_SEND_RECV:
        must(comm_send_recv(peer->comm, send, count, (peer->rank + 1) % peer->ranks, receive, count,
                            (peer->rank + peer->ranks - 1) % peer->ranks, COMM_F32, 0, NULL));
        break;
    case SWEEP_BARRIER:
    case SWEEP_OPERATIONS:
        must(comm_barrier(peer->comm, NULL));
        break;
    }
    must(comm_wait(&request, NULL));
}

static double maximum(void *context, double value)
{
    struct peer *peer = context;
    *peer->value = value;
    must(comm_all_reduce(peer->comm, peer->value, peer->value, 1, COMM_F64, COMM_MAX, NULL));
    must(comm_sync(peer->comm, 0));
    return *peer->value;
}

static int run(const char *socket, const char *name, unsigned rank, unsigned ranks, int argc, char **argv)
{
    struct peer peer = {.rank = rank, .ranks = ranks};
    comm_open_options_t open = COMM_OPEN_OPTIONS_INIT;
    open.socket_path = socket;
    must(comm_client_open(&open, &peer.client));
    must(comm_init(peer.client, name, rank, ranks, COMM_DEVICE_HOST, NULL, &peer.comm));
    peer.value = allocate(&peer, 4096);
    struct sweep_library library = {&peer, rank, ranks, allocate, NULL, operate, maximum};
    int status = sweep_run(&library, argc, argv);
    must(comm_barrier(peer.comm, NULL));
    comm_destroy(peer.comm);
    comm_client_close(peer.client);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        return 2;
    }
    unsigned ranks = (unsigned)atoi(argv[3]);
    unsigned first = (unsigned)atoi(argv[4]);
    unsigned local = (unsigned)atoi(argv[5]);
    for (unsigned i = 1; i < local; i++) {
        if (fork() == 0) {
            _exit(run(argv[1], argv[2], first + i, ranks, argc - 5, argv + 5));
        }
    }
    int status = run(argv[1], argv[2], first, ranks, argc - 5, argv + 5);
    for (unsigned i = 1; i < local; i++) {
        int ended = 0;
        wait(&ended);
        status |= ended;
    }
    return status != 0;
}
