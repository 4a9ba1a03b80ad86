#include "contest.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <commclient.h>

/*
 * commd. $CONTEST_NAME names the communicator; $CONTEST_SERVICE is the process number of this node's commd,
 * whose processor time is counted. All calls return at once, so there is one way to call.
 */

#define MEMORIES_MAX 4

static comm_client_t *client;
static comm_t *comm;
static comm_request_t *requests[CONTEST_STARTED_MAX][2]; /* a message has two: the send and the receive */
static void *memories[MEMORIES_MAX];
static bool is_plain[MEMORIES_MAX];

static void must(comm_result_t result, const char *what)
{
    if (result != COMM_OK) {
        fprintf(stderr, "commd_contest: %s: %s\n", what, comm_last_error());
        exit(1);
    }
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    if (value == NULL) {
        fprintf(stderr, "commd_contest: %s is not set\n", name);
        exit(2);
    }
    return value;
}

void contestant_begin(int *argc, char ***argv, int *rank, int *size)
{
    (void)argc;
    (void)argv;
    *rank = atoi(environment("CONTEST_RANK"));
    *size = atoi(environment("CONTEST_SIZE"));
    must(comm_client_open(NULL, &client), "comm_client_open");
    must(comm_init(client, environment("CONTEST_NAME"), (uint32_t)*rank, (uint32_t)*size, COMM_DEVICE_HOST,
                   NULL, &comm),
         "comm_init");
}

void contestant_end(void)
{
    for (int i = 0; i < MEMORIES_MAX; i++) {
        if (is_plain[i]) {
            free(memories[i]);
        } else if (memories[i] != NULL) {
            must(comm_mem_free(client, memories[i]), "comm_mem_free");
        }
    }
    comm_destroy(comm);
    comm_client_close(client);
}

float *contestant_memory(size_t count, bool plain)
{
    int i = 0;
    while (i < MEMORIES_MAX - 1 && memories[i] != NULL) {
        i++;
    }
    is_plain[i] = plain;
    if (plain) {
        memories[i] = malloc(count * sizeof(float));
    } else {
        must(comm_mem_alloc(client, count * sizeof(float), COMM_DEVICE_HOST, &memories[i]), "comm_mem_alloc");
    }
    if (memories[i] == NULL) {
        fprintf(stderr, "commd_contest: no memory\n");
        exit(1);
    }
    return memories[i];
}

bool contestant_has_two_ways(void)
{
    return false;
}

bool contestant_can(enum contest_kind kind)
{
    return kind != CONTEST_KINDS;
}

static comm_result_t start_message(const struct contest_call *call, comm_request_t *pair[2])
{
    uint32_t rank = comm_rank(comm), size = comm_size(comm);
    comm_call_options_t sends = COMM_CALL_OPTIONS_INIT, receives = COMM_CALL_OPTIONS_INIT;
    sends.request = &pair[0];
    receives.request = &pair[1];
    comm_result_t result =
        comm_recv(comm, call->receive, call->count, COMM_F32, (rank + size - 1) % size, 0, &receives);
    return result == COMM_OK
               ? comm_send(comm, call->send, call->count, COMM_F32, (rank + 1) % size, 0, &sends)
               : result;
}

static comm_result_t submit(const struct contest_call *call, comm_request_t *pair[2])
{
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    size_t each = call->count / comm_size(comm);
    options.request = &pair[0];
    switch (call->kind) {
    case CONTEST_ALL_REDUCE:
        return comm_all_reduce(comm, call->send, call->receive, call->count, COMM_F32, COMM_SUM, &options);
    case CONTEST_ALL_GATHER:
        return comm_all_gather(comm, call->send, call->receive, each, COMM_F32, &options);
    case CONTEST_REDUCE_SCATTER:
        return comm_reduce_scatter(comm, call->send, call->receive, each, COMM_F32, COMM_SUM, &options);
    case CONTEST_BROADCAST:
        return comm_broadcast(comm, call->receive, call->count, COMM_F32, 0, &options);
    case CONTEST_ALL_TO_ALL:
        return comm_all_to_all(comm, call->send, call->receive, each, COMM_F32, &options);
    case CONTEST_ALL_TO_ALL_V:
        return comm_all_to_all_v(comm, call->send, call->send_counts, NULL, call->receive,
                                 call->receive_counts, NULL, COMM_F32, &options);
    case CONTEST_SEND_RECV:
        return start_message(call, pair);
    case CONTEST_BARRIER:
    case CONTEST_KINDS:
        break;
    }
    return comm_barrier(comm, &options);
}

void contestant_start(const struct contest_call *call, int index)
{
    must(submit(call, requests[index]), contest_kind_name(call->kind));
}

void contestant_finish(int index)
{
    must(comm_wait(&requests[index][0], NULL), "comm_wait");
    must(comm_wait(&requests[index][1], NULL), "comm_wait");
}

void contestant_run(const struct contest_call *call)
{
    comm_request_t *pair[2] = {NULL, NULL};
    uint32_t rank = comm_rank(comm), size = comm_size(comm);
    if (call->kind == CONTEST_SEND_RECV) {
        must(comm_send_recv(comm, call->send, call->count, (rank + 1) % size, call->receive, call->count,
                            (rank + size - 1) % size, COMM_F32, 0, NULL),
             "comm_send_recv");
        return;
    }
    must(submit(call, pair), contest_kind_name(call->kind));
    must(comm_wait(&pair[0], NULL), "comm_wait");
    must(comm_wait(&pair[1], NULL), "comm_wait");
}

static double agree(double value, comm_op_t op)
{
    must(comm_all_reduce(comm, &value, &value, 1, COMM_F64, op, NULL), "agreeing on figures");
    must(comm_sync(comm, 0), "agreeing on figures");
    return value;
}

double contestant_largest(double value)
{
    return agree(value, COMM_MAX);
}

double contestant_sum(double value)
{
    return agree(value, COMM_SUM);
}

/* schedstat counts nanoseconds, for each thread. */
double contestant_service_cpu_s(void)
{
    const char *pid = getenv("CONTEST_SERVICE");
    char path[512];
    double sum_ns = 0, thread_ns;
    if (pid == NULL || comm_local_rank(comm) != 0) {
        return 0;
    }
    snprintf(path, sizeof path, "/proc/%.20s/task", pid);
    DIR *threads = opendir(path);
    for (const struct dirent *entry; threads != NULL && (entry = readdir(threads)) != NULL;) {
        snprintf(path, sizeof path, "/proc/%.20s/task/%s/schedstat", pid, entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file != NULL) {
            sum_ns += fscanf(file, "%lf", &thread_ns) == 1 ? thread_ns : 0;
            fclose(file);
        }
    }
    if (threads != NULL) {
        closedir(threads);
    }
    return sum_ns * 1e-9;
}
