#ifndef TESTS_BENCH_PEERS_TRACE_H
#define TESTS_BENCH_PEERS_TRACE_H

#include "contest.h"

/*
 * One step of a training run, as a file of lines. `#` begins a comment.
 *
 *   KIND BYTES                      runs the operation, and waits for its end
 *   start KIND BYTES                starts the operation
 *   all_to_all_v BYTES WEIGHT...    every rank sends BYTES in all, to rank j a part of weight j modulo their
 * number all_to_all_v BYTES back WEIGHT...   the way back: rank j sends that part to every rank wait waits
 * for all that was started compute US                      computes for that many microseconds repeat N ...
 * end                the lines between, N times; not nested
 *
 * BYTES is the whole vector, with the blocks of all ranks. What is started must be waited for within the
 * step.
 */

#define TRACE_STEPS_MAX 8192
#define TRACE_WEIGHTS_MAX 16

enum trace_action { TRACE_RUN, TRACE_START, TRACE_WAIT, TRACE_COMPUTE };

struct trace_step {
    enum trace_action action;
    enum contest_kind kind;
    double compute_us;
    size_t count; /* elements, a multiple of the number of ranks where each has a block */
    size_t at;    /* the operation's place in the buffers, in elements */
    int index;    /* of what is started: its number since the last wait */
    double weights[TRACE_WEIGHTS_MAX];
    int weight_count;
    size_t parts[CONTEST_RANKS_MAX]; /* all_to_all_v: elements by weight */
    bool goes_back;                  /* a rank sends its own part to every rank */
};

struct trace {
    struct trace_step *steps; /* freed by trace_free */
    unsigned step_count;
    size_t elements; /* of each buffer */
};

/* Reads a trace for `size` ranks. Returns false after a message that names the file and the line. */
bool trace_read(const char *path, int size, double scale, struct trace *trace);
void trace_free(struct trace *trace);

#endif
