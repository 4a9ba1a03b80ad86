#ifndef BENCH_SWEEP_H
#define BENCH_SWEEP_H
/*
 * What every contestant of the benchmark measures, and how: the same sizes, inputs, checks and clock around
 * another library's blocking calls. Only the calls differ.
 */
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sweep_operation {
    SWEEP_ALL_REDUCE,
    SWEEP_ALL_GATHER,
    SWEEP_REDUCE_SCATTER,
    SWEEP_BROADCAST,
    SWEEP_ALL_TO_ALL,
    SWEEP_SEND_RECV, /* to the next rank, from the one before */
    SWEEP_BARRIER,
    SWEEP_OPERATIONS
};

/* A library under test, as seen by one rank. Its calls end the process when they fail. */
struct sweep_library {
    void *context;
    unsigned rank;
    unsigned ranks;
    /* `bytes` of memory that the library likes best; null: plain memory. */
    void *(*allocate)(void *context, size_t bytes);
    /* Before an operation of another kind or size, and before one that is checked; may be null. */
    void (*prepare)(void *context, enum sweep_operation operation, const float *send, float *receive,
                    size_t count);
    /*
     * One operation, until it is complete for this rank. count: elements of the size as nccl-tests define it:
     * of the whole vector, not of a rank's block. Rank 0 broadcasts `send`; the others get it in `receive`.
     */
    void (*operate)(void *context, enum sweep_operation operation, const float *send, float *receive,
                    size_t count);
    /* The largest of all ranks' values, to all. */
    double (*maximum)(void *context, double value);
};

/*
 * Arguments: --operation NAME[,...] --min-bytes N --max-bytes N --step-factor N --seconds-per-size S. Rank 0
 * prints one line of JSON for each operation and size. Returns the exit status.
 */
int sweep_run(const struct sweep_library *library, int argc, char **argv);

#ifdef __cplusplus
}
#endif

#endif
