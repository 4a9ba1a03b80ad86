#include <mpi.h>

#include "sweep.h"

/* Runs the work of `commctl bench` with Open MPI. */

static int rank, size;
static float *input, *output;

/* size_bytes: size of the larger buffer, as nccl-tests counts it. */
static int run(const char *operation, size_t size_bytes)
{
    int count = (int)(size_bytes / sizeof(float));
    int each = count / size;
    if (strcmp(operation, "all_reduce") == 0) {
        return MPI_Allreduce(input, output, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (strcmp(operation, "all_gather") == 0) {
        return MPI_Allgather(input, each, MPI_FLOAT, output, each, MPI_FLOAT, MPI_COMM_WORLD);
    }
    if (strcmp(operation, "reduce_scatter") == 0) {
        return MPI_Reduce_scatter_block(input, output, each, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
    if (strcmp(operation, "broadcast") == 0) {
        return MPI_Bcast(rank == 0 ? input : output, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
    if (strcmp(operation, "all_to_all") == 0) {
        return MPI_Alltoall(input, each, MPI_FLOAT, output, each, MPI_FLOAT, MPI_COMM_WORLD);
    }
    if (strcmp(operation, "send_recv") == 0) {
        return MPI_Sendrecv(input, count, MPI_FLOAT, (rank + 1) % size, 0, output, count, MPI_FLOAT,
                            (rank + size - 1) % size, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    return MPI_Barrier(MPI_COMM_WORLD);
}

static size_t count_wrong(const char *operation, size_t size_bytes)
{
    size_t wrong = 0;
    for (size_t i = 0; i < size_bytes / sizeof(float) && strcmp(operation, "all_reduce") == 0; i++) {
        wrong += output[i] != sweep_sum(i, size);
    }
    return wrong;
}

static void measure(const struct sweep *sweep, const char *operation, size_t size_bytes)
{
    static double times_s[SWEEP_ITERATIONS_MAX];
    double once_s = 0, median_s;
    unsigned long long wrong, all_wrong;
    for (int i = 0; i < 3; i++) {
        double began_s = sweep_now_s();
        run(operation, size_bytes);
        once_s = sweep_now_s() - began_s;
    }
    wrong = count_wrong(operation, size_bytes);
    int iterations = sweep_iterations(sweep, once_s);
    MPI_Bcast(&iterations, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < iterations; i++) {
        double began_s = sweep_now_s();
        run(operation, size_bytes);
        times_s[i] = sweep_now_s() - began_s;
    }
    double own_s = sweep_median(times_s, iterations);
    MPI_Reduce(&own_s, &median_s, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        sweep_print(operation, size_bytes, median_s, iterations, all_wrong);
    }
}

int main(int argc, char **argv)
{
    struct sweep sweep;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (sweep_parse(&sweep, argc, argv) != 0) {
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    input = malloc(sweep.max_bytes + 64);
    output = malloc(sweep.max_bytes + 64);
    for (size_t i = 0; i < sweep.max_bytes / sizeof(float); i++) {
        input[i] = sweep_value(i, rank);
        output[i] = -1;
    }
    char operation[64];
    while (sweep_next(&sweep.operations, operation, sizeof operation) != NULL) {
        if (strcmp(operation, "barrier") == 0) {
            measure(&sweep, operation, 0);
            continue;
        }
        for (size_t bytes = sweep.min_bytes; bytes <= sweep.max_bytes; bytes *= sweep.step_factor) {
            if (bytes >= sizeof(float) * (size_t)size || strcmp(operation, "all_reduce") == 0) {
                measure(&sweep, operation, bytes);
            }
        }
    }
    MPI_Finalize();
    return 0;
}
