#ifndef TESTS_BENCH_PEERS_CONTEST_H
#define TESTS_BENCH_PEERS_CONTEST_H

#include <stdbool.h>
#include <stddef.h>

/*
 * The benchmark's program, which is built once for each contestant. contest.c, sweep.c and trace.c are the
 * same for all: which operations run, how often, what is timed, checked and printed. A contestant
 * (commd_contest.c, mpi_contest.c, gloo_contest.cc) implements the functions contestant_*. So all figures
 * come from the same code.
 *
 * A contestant ends the process with a message when a call fails. One thread calls its functions.
 */

#ifdef __cplusplus
extern "C" {
#endif

enum contest_kind {
    CONTEST_ALL_REDUCE,
    CONTEST_ALL_GATHER,
    CONTEST_REDUCE_SCATTER,
    CONTEST_BROADCAST,
    CONTEST_ALL_TO_ALL,
    CONTEST_ALL_TO_ALL_V,
    CONTEST_SEND_RECV,
    CONTEST_BARRIER,
    CONTEST_KINDS
};

#define CONTEST_RANKS_MAX 64
#define CONTEST_STARTED_MAX 64 /* operations of one rank that are started and not finished */

/*
 * One operation of one rank. Elements are f32, the operator is sum, the root is rank 0. A rank sends to the
 * next rank and receives from the one before it. Send and receive buffers are different; only a broadcast
 * uses the receive buffer alone.
 */
struct contest_call {
    enum contest_kind kind;
    const float *send;
    float *receive;
    size_t count;                 /* elements of the whole vector, with the blocks of all ranks */
    const size_t *send_counts;    /* all_to_all_v: elements to each rank, and from each rank. Kept by the */
    const size_t *receive_counts; /* caller until the operation is finished */
    bool goes_back;               /* all_to_all_v: every rank sends as much to each; else all send alike */
};

/* ---- contest.c ---- */

struct contest_options {
    const char *operations; /* names, separated by commas */
    size_t min_bytes, max_bytes, step_factor;
    double seconds_per_size;
    int iterations;     /* in place of seconds; 0: seconds count */
    double compute_us;  /* computing before each operation */
    bool overlap;       /* computing beside each operation, for as long as the operation takes alone */
    bool check;         /* compare the results with the expected ones */
    bool plain;         /* ordinary memory, where the contestant has another kind */
    const char *trace;  /* replay this file in place of the sweep; null: sweep */
    double trace_scale; /* multiplies the sizes and the computing of the trace */
    int trace_steps;    /* how often the trace is replayed */
};

struct contest {
    struct contest_options options;
    int rank, size;
};

double contest_now_s(void);
/* Processor time of this process without contest_compute, and of the service if this rank counts it. */
double contest_cpu_s(void);
/* Computes for that long, as a program does between operations. */
void contest_compute(double duration_us);
/* Computes until this thread has had that much processor time: time that others take from it does not count.
 */
void contest_work(double duration_us);
const char *contest_kind_name(enum contest_kind kind);
/* Returns CONTEST_KINDS for an unknown name. */
enum contest_kind contest_kind_find(const char *name, size_t length);
/* Small whole numbers: their sums are exact in every order of addition. They differ by rank and element. */
float contest_value(size_t index, int rank);
/* Returns how many elements of call->receive are wrong. Every rank's send[i] must be contest_value(i, rank).
 */
size_t contest_count_wrong(const struct contest *contest, const struct contest_call *call);
/* Sorts. Returns the median. */
double contest_median(double *values, int count);
double contest_mean(const double *values, int count);

/* ---- sweep.c, trace.c: return the exit code ---- */

int contest_sweep(const struct contest *contest);
int contest_replay(const struct contest *contest);
/* Prints what the trace file contains, for one rank of `size`. Needs no contestant. */
int contest_describe(const char *path, int size, double scale);

/* ---- what a contestant implements ---- */

/* Joins the others. The launcher tells the rank, or $CONTEST_RANK and $CONTEST_SIZE do. */
void contestant_begin(int *argc, char ***argv, int *rank, int *size);
void contestant_end(void);
/* Allocates elements for send or receive buffers. They live until contestant_end. */
float *contestant_memory(size_t count, bool plain);
/* Whether the contestant has calls that start an operation, beside those that wait for its end. */
bool contestant_has_two_ways(void);
/* Whether the contestant has this kind of operation. */
bool contestant_can(enum contest_kind kind);
void contestant_run(const struct contest_call *call);
/* Starts the operation number `index`, below CONTEST_STARTED_MAX. contestant_finish waits for its end. */
void contestant_start(const struct contest_call *call, int index);
void contestant_finish(int index);
double contestant_largest(double value); /* of all ranks */
double contestant_sum(double value);     /* of all ranks */
/* Processor time of a service that works for this node's ranks, on one rank of each node; 0 elsewhere. */
double contestant_service_cpu_s(void);

#ifdef __cplusplus
}
#endif

#endif
