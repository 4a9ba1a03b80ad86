/* The benchmark's calls by MPI: mpirun -n N mpi_bench ARGUMENTS (sweep.h). */
#include "sweep.h"

#include <mpi.h>

static void operate(void *context, enum sweep_operation operation, const float *send, float *receive,
                    size_t count)
{
    const struct sweep_library *library = context;
    int all = (int)count;
    int block = (int)(count / library->ranks);
    int next = (int)((library->rank + 1) % library->ranks);
    int previous = (int)((library->rank + library->ranks - 1) % library->ranks);
    switch (operation) {
    case SWEEP_ALL_REDUCE:
        MPI_Allreduce(send, receive, all, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case SWEEP_ALL_GATHER:
        MPI_Allgather(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case SWEEP_REDUCE_SCATTER:
        MPI_Reduce_scatter_block(send, receive, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case SWEEP_BROADCAST:
        MPI_Bcast(library->rank == 0 ? (float *)send : receive, all, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    case SWEEP_ALL_TO_ALL:
        MPI_Alltoall(send, block, MPI_FLOAT, receive, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case SWEEP_SEND_RECV:
        MPI_Sendrecv(send, all, MPI_FLOAT, next, 0, receive, all, MPI_FLOAT, previous, 0, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        break;
    case SWEEP_BARRIER:
    case SWEEP_OPERATIONS:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
}

static double maximum(void *context, double value)
{
    (void)context;
    double largest = 0;
    MPI_Allreduce(&value, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return largest;
}

int main(int argc, char **argv)
{
    int rank = 0;
    int ranks = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    struct sweep_library library = {
        .rank = (unsigned)rank, .ranks = (unsigned)ranks, .operate = operate, .maximum = maximum};
    library.context = &library;
    int status = sweep_run(&library, argc, argv);
    MPI_Finalize();
    return status;
}
