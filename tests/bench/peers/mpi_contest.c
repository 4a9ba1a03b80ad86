#include "contest.h"

#include <stdio.h>
#include <stdlib.h>

#include <mpi.h>

/* Any MPI. Blocking and non-blocking calls are measured, and the better ones count. */

#define MEMORIES_MAX 4

static int rank, size;
static void *memories[MEMORIES_MAX];
static int memory_count;
static MPI_Request requests[CONTEST_STARTED_MAX][2];
/* The arrays of an all_to_all_v live until it is finished. */
static struct counts {
    int send[CONTEST_RANKS_MAX], send_at[CONTEST_RANKS_MAX];
    int receive[CONTEST_RANKS_MAX], receive_at[CONTEST_RANKS_MAX];
} counts_of[CONTEST_STARTED_MAX + 1];

static void must(int result, const char *what)
{
    if (result != MPI_SUCCESS) {
        fprintf(stderr, "mpi_contest: %s failed with %d\n", what, result);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

void contestant_begin(int *argc, char ***argv, int *out_rank, int *out_size)
{
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    *out_rank = rank;
    *out_size = size;
}

void contestant_end(void)
{
    MPI_Finalize();
    for (int i = 0; i < memory_count; i++) {
        free(memories[i]);
    }
}

float *contestant_memory(size_t count, bool plain)
{
    (void)plain; /* an MPI has no other memory that is faster here */
    void *memory = memory_count < MEMORIES_MAX ? malloc(count * sizeof(float)) : NULL;
    if (memory == NULL) {
        fprintf(stderr, "mpi_contest: no memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    memories[memory_count++] = memory;
    return memory;
}

bool contestant_has_two_ways(void)
{
    return true;
}

bool contestant_can(enum contest_kind kind)
{
    return kind != CONTEST_KINDS;
}

static const struct counts *counts_for(const struct contest_call *call, struct counts *counts)
{
    int send_at = 0, receive_at = 0;
    for (int i = 0; i < size; i++) {
        counts->send[i] = (int)call->send_counts[i];
        counts->receive[i] = (int)call->receive_counts[i];
        counts->send_at[i] = send_at;
        counts->receive_at[i] = receive_at;
        send_at += counts->send[i];
        receive_at += counts->receive[i];
    }
    return counts;
}

void contestant_run(const struct contest_call *call)
{
    int count = (int)call->count, each = count / size, result = MPI_SUCCESS;
    const struct counts *v;
    switch (call->kind) {
    case CONTEST_ALL_REDUCE:
        result = MPI_Allreduce(call->send, call->receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case CONTEST_ALL_GATHER:
        result = MPI_Allgather(call->send, each, MPI_FLOAT, call->receive, each, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case CONTEST_REDUCE_SCATTER:
        result =
            MPI_Reduce_scatter_block(call->send, call->receive, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case CONTEST_BROADCAST:
        result = MPI_Bcast(call->receive, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case CONTEST_ALL_TO_ALL:
        result = MPI_Alltoall(call->send, each, MPI_FLOAT, call->receive, each, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case CONTEST_ALL_TO_ALL_V:
        v = counts_for(call, &counts_of[CONTEST_STARTED_MAX]);
        result = MPI_Alltoallv(call->send, v->send, v->send_at, MPI_FLOAT, call->receive, v->receive,
                               v->receive_at, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case CONTEST_SEND_RECV:
        result = MPI_Sendrecv(call->send, count, MPI_FLOAT, (rank + 1) % size, 0, call->receive, count,
                              MPI_FLOAT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        break;
    case CONTEST_BARRIER:
    case CONTEST_KINDS:
        result = MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
    must(result, contest_kind_name(call->kind));
}

static int start(const struct contest_call *call, MPI_Request *pair, struct counts *counts)
{
    int count = (int)call->count, each = count / size, result;
    const struct counts *v;
    switch (call->kind) {
    case CONTEST_ALL_REDUCE:
        return MPI_Iallreduce(call->send, call->receive, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD, &pair[0]);
    case CONTEST_ALL_GATHER:
        return MPI_Iallgather(call->send, each, MPI_FLOAT, call->receive, each, MPI_FLOAT, MPI_COMM_WORLD,
                              &pair[0]);
    case CONTEST_REDUCE_SCATTER:
        return MPI_Ireduce_scatter_block(call->send, call->receive, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                                         &pair[0]);
    case CONTEST_BROADCAST:
        return MPI_Ibcast(call->receive, count, MPI_FLOAT, 0, MPI_COMM_WORLD, &pair[0]);
    case CONTEST_ALL_TO_ALL:
        return MPI_Ialltoall(call->send, each, MPI_FLOAT, call->receive, each, MPI_FLOAT, MPI_COMM_WORLD,
                             &pair[0]);
    case CONTEST_ALL_TO_ALL_V:
        v = counts_for(call, counts);
        return MPI_Ialltoallv(call->send, v->send, v->send_at, MPI_FLOAT, call->receive, v->receive,
                              v->receive_at, MPI_FLOAT, MPI_COMM_WORLD, &pair[0]);
    case CONTEST_SEND_RECV:
        result =
            MPI_Irecv(call->receive, count, MPI_FLOAT, (rank + size - 1) % size, 0, MPI_COMM_WORLD, &pair[1]);
        return result == MPI_SUCCESS
                   ? MPI_Isend(call->send, count, MPI_FLOAT, (rank + 1) % size, 0, MPI_COMM_WORLD, &pair[0])
                   : result;
    case CONTEST_BARRIER:
    case CONTEST_KINDS:
        break;
    }
    return MPI_Ibarrier(MPI_COMM_WORLD, &pair[0]);
}

void contestant_start(const struct contest_call *call, int index)
{
    requests[index][0] = MPI_REQUEST_NULL;
    requests[index][1] = MPI_REQUEST_NULL;
    must(start(call, requests[index], &counts_of[index]), contest_kind_name(call->kind));
}

void contestant_finish(int index)
{
    must(MPI_Waitall(2, requests[index], MPI_STATUSES_IGNORE), "MPI_Waitall");
}

double contestant_largest(double value)
{
    must(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD), "agreeing on figures");
    return value;
}

double contestant_sum(double value)
{
    must(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD), "agreeing on figures");
    return value;
}

double contestant_service_cpu_s(void)
{
    return 0; /* an MPI's daemons only start its processes */
}
