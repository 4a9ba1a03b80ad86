#ifndef TESTS_SYSTEM_NCCL_PROGRAM_H
#define TESTS_SYSTEM_NCCL_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "proto/cuda_driver.h"
#include "tests/system/nccl_header.h"

/* What the cases of nccl_cases.c share. If something is wrong, the case ends the process. */

#define LOCAL_MAX 8
#define BUFFER_BYTES ((size_t)1 << 18)
#define AT(pointer) ((void *)(uintptr_t)(pointer))
#define EACH(one) for (struct local *one = locals; one < locals + local_count; (one)++)
#define STREAM(local) ((cudaStream_t)(void *)(local)->stream)

struct graphs;
struct local {
    ncclComm_t comm;
    cuda_context context;
    cuda_stream stream;
    cuda_pointer send, receive;
    int rank;
    int device;
    struct graphs *graphs; /* nccl_graph.c */
};

extern const struct cuda_driver *driver;
extern struct local locals[LOCAL_MAX];
extern int local_count, size;
extern ncclUniqueId program_id;

/* Ends the process if the result is another one. Returns it. */
ncclResult_t expect(ncclResult_t result, ncclResult_t wanted, const char *what);
void expect_true(bool holds, const char *what);
/* Ends the process if the text of this thread's last error lacks the word. */
void expect_text(const char *word);
void cuda(cuda_result result, const char *what);

/* The process's ranks begin at `first`, one for each device. The process of rank 0 makes the id, and writes
 * it to the file. */
void program_open(const char *id_file, int first, int device_count, char **devices);
/* Makes this rank's GPU current. */
void enter(const struct local *local);
/* One group for all local ranks, blocking. */
void init_all(void);
void destroy_all(void);

void write_gpu(const struct local *local, cuda_pointer to, const void *from, size_t bytes);
void read_gpu(const struct local *local, cuda_pointer from, void *to, size_t bytes);
/* Fills both buffers of the rank with garbage. */
void poison(const struct local *local);
/* Waits until the stream is done. */
void wait_stream(const struct local *local);

/* Polls until it is something else than ncclInProgress. */
ncclResult_t await_state(ncclComm_t comm);
/* Polls until it is an error, for ten seconds. */
ncclResult_t await_error(ncclComm_t comm);

/* Prints the word on standard output at once. */
void say(const char *word);
/* Replaces program_id by another id of all processes. */
void next_id(void);
/* Gives the other processes the next id, which this one has made otherwise. */
void give_id(const ncclUniqueId *id);
/* Leaves a mark beside the id's file, or waits for one. */
void mark(const char *name);
void await_mark(const char *name);

/* A checked all-reduce of all local ranks in one group, on their own communicators. */
void check_all_work(void);

/* nccl_recovery.c */
void case_shrink(void);
void case_grow(void);
/* nccl_types.c */
void case_types(void);
/* nccl_arguments.c */
void case_arguments(void);
/* nccl_calls.c */
void case_kinds(void);
void case_groups(void);
void case_messages(void);
void case_splits(void);
void case_memory(void);
void case_pools(void);
void case_configs(void);
void case_operators(void);
void case_life(void);
/* nccl_graph.c */
void case_graph(void);
void case_graph_devices(void);
void case_graph_spread(void);
void case_graph_threads(void);
void case_graph_refused(void);
/* nccl_examples.c */
void case_loops(void);
void case_children(void);
void case_abort_in_group(void);
void case_polling(void);
void case_factors(void);
void case_watchdog(void);
void case_shrink_group(void);
/* nccl_mixes.c */
void case_mixes(void);
void case_one_device(void);
void case_half_captured(void);
/* nccl_threads.c */
void case_threads(void);
/* nccl_ends.c */
void case_abort(void);
void case_survive(void);
void case_non_blocking(void);
void case_non_blocking_group(void);
void case_abandon(void);
void case_init_all(void);
void case_restart(void);

#endif
