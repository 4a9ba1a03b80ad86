#ifndef CLIENT_COMMCTL_BENCH_H
#define CLIENT_COMMCTL_BENCH_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/commctl/commctl.h"
#include "proto/types.h"

/*
 * What the files of `commctl bench` share. bench_options.c reads the options. bench.c starts the ranks'
 * processes and waits for them; bench_rank.c is what each of them runs. bench_data.c makes and checks the
 * data. bench_operation.c describes the operations. bench_times.h keeps their times. Sizes, algbw and busbw
 * are as nccl-tests define them.
 */

#define BENCH_RANKS_MAX 256

struct bench_options {
    const char *socket_path;
    const char *communicator;
    uint32_t connect_timeout_ms;
    uint32_t timeout_ms; /* of joining, and of each operation; 0: the library's */
    uint32_t size;
    uint32_t first_rank;
    uint32_t ranks; /* of this process */
    const char *operations;
    enum dtype dtype;
    enum reduce reduce;
    uint32_t root;
    uint64_t min_bytes, max_bytes;
    uint32_t step_factor;
    double seconds_per_size;
    uint32_t iterations; /* 0: as many as fit in seconds_per_size, at least 3 */
    bool in_place, out_of_place;
    bool registered;
    bool check;
    bool json;
};

/* bench_options.c. The caller sets the members that have no option. Wrong options are printed. */
void bench_options_default(struct bench_options *options);
enum exit_code bench_options_parse(int argc, char **argv, struct bench_options *options);
/* Returns the size after `bytes`, or 0 if that was the last. */
uint64_t bench_next_size(const struct bench_options *options, uint64_t bytes);

/* One run of an operation: buffers hold the larger of what it sends and receives. */
struct bench_call {
    const struct bench_options *options;
    comm_t *comm;
    uint32_t rank;
    size_t count; /* of the buffer, or of each rank's block */
    void *send, *receive;
};

struct bench_operation {
    const char *name;
    bool has_blocks; /* a block for each rank; the size is that of all blocks together */
    bool has_data;
    bool out_of_place, in_place;
    double (*bus_factor)(uint32_t size); /* busbw = algbw × this */
    comm_result_t (*submit)(const struct bench_call *call, const comm_call_options_t *options);
    /* Sets the buffers for a call in place. */
    void (*set_in_place)(struct bench_call *call);
    /* Number of blocks of count elements that this rank sends, and that it receives. */
    uint32_t (*sent_blocks)(const struct bench_call *call);
    uint32_t (*received_blocks)(const struct bench_call *call);
    /* What a received block must contain: the values of *source from index *first on. */
    void (*expected)(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first);
};

/* bench_operation.c: finds an operation by name, or returns null. At the index after the last: null. */
const struct bench_operation *bench_operation_find(const char *name);
const struct bench_operation *bench_operation_at(size_t index);
/* Returns the elements of the buffer, or of each block, for a size in bytes: at least one. */
size_t bench_count(const struct bench_operation *operation, uint64_t size_bytes, size_t element_bytes,
                   uint32_t size);
/* Returns the size of all blocks together: the size that is reported. */
size_t bench_bytes(const struct bench_operation *operation, size_t count, size_t element_bytes,
                   uint32_t size);
double bench_algbw_gbs(size_t size_bytes, double time_us);
/* Fills the send buffer, and overwrites the receive buffer. */
void bench_call_fill(const struct bench_call *call, const struct bench_operation *operation);
/* Returns how many received elements are wrong. */
size_t bench_call_wrong(const struct bench_call *call, const struct bench_operation *operation);

/*
 * bench_data.c: small whole numbers that differ by rank and element. Their sums are exact in every type and
 * order. source: a rank, or BENCH_REDUCED for the reduction over all ranks. index: index of a number; complex
 * elements have two numbers.
 */
#define BENCH_REDUCED UINT32_MAX
double bench_value(const struct bench_options *options, uint32_t source, size_t index);
void bench_fill(const struct bench_options *options, uint32_t source, size_t count, void *buffer);
/* Returns how many of the elements are wrong. */
size_t bench_wrong(const struct bench_options *options, uint32_t source, size_t first, size_t count,
                   const void *buffer);

/* bench_rank.c: runs one rank, in a process of its own. Returns the exit code. */
enum exit_code bench_rank(const struct bench_options *options, uint32_t rank);

#endif
