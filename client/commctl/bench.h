#ifndef CLIENT_COMMCTL_BENCH_H
#define CLIENT_COMMCTL_BENCH_H

#include <commclient.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/commctl/commctl.h"
#include "proto/types.h"

/*
 * What the files of `commctl bench` share: bench_options.c reads the options, bench.c looks after the ranks'
 * processes, bench_rank.c is one of these, bench_data.c makes and checks what is sent, bench_operation.c
 * knows the operations. Sizes, algbw and busbw as nccl-tests define them.
 */

#define BENCH_RANKS_MAX 256
#define BENCH_ITERATIONS_MAX 20000

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
    uint32_t iterations; /* 0: as many as fit in that time */
    bool in_place, out_of_place;
    bool registered;
    bool check;
    bool json;
};

/* bench_options.c. What has no option here is the caller's to set; what is wrong is printed. */
void bench_options_default(struct bench_options *options);
enum exit_code bench_options_parse(int argc, char **argv, struct bench_options *options);
/* The size after that one; 0: that was the last. */
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
    bool has_blocks; /* a block for each rank: the size is that of all of them */
    bool has_data;
    bool out_of_place, in_place;
    double (*bus_factor)(uint32_t size); /* busbw = algbw × this */
    comm_result_t (*submit)(const struct bench_call *call, const comm_call_options_t *options);
    /* Where, in place, the one buffer is the other. */
    void (*set_in_place)(struct bench_call *call);
    /* Blocks of count elements that this rank sends, one after the other, and receives. */
    uint32_t (*sent_blocks)(const struct bench_call *call);
    uint32_t (*received_blocks)(const struct bench_call *call);
    /* What the block that it receives has to be: the values of `source` from index *first on. */
    void (*expected)(const struct bench_call *call, uint32_t block, uint32_t *source, size_t *first);
};

/* bench_operation.c: the one of that name, or null; the one after the last is null. */
const struct bench_operation *bench_operation_find(const char *name);
const struct bench_operation *bench_operation_at(size_t index);
/* Elements of the buffer, or of each block, for a size in bytes: at least one. */
size_t bench_count(const struct bench_operation *operation, uint64_t size_bytes, size_t element_bytes,
                   uint32_t size);
/* What all blocks of that count are together: the size that counts. */
size_t bench_bytes(const struct bench_operation *operation, size_t count, size_t element_bytes,
                   uint32_t size);
double bench_algbw_gbs(size_t size_bytes, double time_us);
/* Writes what this rank sends, and over what it is to receive. */
void bench_call_fill(const struct bench_call *call, const struct bench_operation *operation);
/* How many elements it received that are not what they have to be. */
size_t bench_call_wrong(const struct bench_call *call, const struct bench_operation *operation);

/*
 * bench_data.c: small whole numbers that differ by rank and element, exact in every type in any order.
 * source: a rank, or what the reduction of all ranks gives. index: of a number; complex elements have two.
 */
#define BENCH_REDUCED UINT32_MAX
double bench_value(const struct bench_options *options, uint32_t source, size_t index);
void bench_fill(const struct bench_options *options, uint32_t source, size_t count, void *buffer);
/* How many of the elements are not what they have to be. */
size_t bench_wrong(const struct bench_options *options, uint32_t source, size_t first, size_t count,
                   const void *buffer);

/* bench_rank.c: all of it, in a process of its own; returns its exit code. */
enum exit_code bench_rank(const struct bench_options *options, uint32_t rank);

#endif
