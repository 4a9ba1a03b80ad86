#ifndef TESTS_CUDA_DOUBLE_MACHINE_H
#define TESTS_CUDA_DOUBLE_MACHINE_H

#include "tests/cuda_double/double.h"

/*
 * What the processes of one machine share, in a folder: a table of processes, of blocks of device memory and
 * of the allocations that can be exported; and a file for each block. A process lives as long as it holds its
 * lock in the table's file, which the kernel takes from it whatever its end: whoever comes next removes what
 * it left. All calls are made with the process's lock held, or before there are threads.
 */

/* Attaches this process. False: the folder cannot be used. */
bool machine_attach(void);
/* Removes what this process has there. */
void machine_detach(void);
/* Identifies this process among all that ever attached. */
uint64_t machine_process(void);

/* A block of device memory, charged to its device until the last process leaves it. */
struct machine_block {
    uint64_t id;
    uint64_t bytes;
    int physical;
    int handle_types; /* of virtual memory */
    int fd;           /* the caller's */
};
/* named: others may open it by its id. The memory is poisoned. OUT_OF_MEMORY; UNKNOWN. */
cuda_result machine_create(struct machine_block *block, bool named);
/* Opens the block that an export or a descriptor leads to. INVALID_VALUE. */
cuda_result machine_open_id(uint64_t id, struct machine_block *block);
cuda_result machine_open_fd(int fd, struct machine_block *block);
/* This process has no more of it; if it made it, its name goes. */
void machine_leave(uint64_t id);

uint64_t machine_used_bytes(int physical);

/* Allocations of this process that others may open, by their address here. */
struct machine_export {
    uint64_t process; /* 0: an empty row */
    uint64_t address;
    uint64_t bytes;
    uint64_t block_id;
    uint64_t offset; /* in the block */
};
bool machine_publish(uint64_t address, uint64_t bytes, uint64_t block_id, uint64_t offset);
void machine_retract(uint64_t address);
/* False: there is no such one, or its process has ended. */
bool machine_find(uint64_t process, uint64_t address, struct machine_export *out);

#endif
