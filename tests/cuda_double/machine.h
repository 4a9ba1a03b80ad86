#ifndef TESTS_CUDA_DOUBLE_MACHINE_H
#define TESTS_CUDA_DOUBLE_MACHINE_H

#include "tests/cuda_double/double.h"

/*
 * What the processes of one machine share, in a folder: a table, and a file for each block. The table has the
 * processes, the blocks of device memory, and the allocations that can be exported. A process lives as long
 * as it holds its lock in the table's file. The kernel takes that lock away however the process ends. The
 * next process that comes removes what it left. Callers hold the process's lock, or there are no other
 * threads yet.
 */

#define MACHINE_PROCESSES_MAX 256

/* Attaches this process. Returns false if the folder cannot be used. */
bool machine_attach(void);
/* Removes all that this process has in the folder. */
void machine_detach(void);
/* Returns a number that identifies this process among all that ever attached. */
uint64_t machine_process(void);

/* A block of device memory, charged to its device until the last process leaves it. */
struct machine_block {
    uint64_t id;
    uint64_t bytes;
    int physical;
    int handle_types; /* virtual memory: the types of handles that may be exported */
    int fd;           /* belongs to the caller */
};
/* Makes a block, filled with poison. named: others may open it by its id. Returns OUT_OF_MEMORY if it
 * fails. */
cuda_result machine_create(struct machine_block *block, bool named);
/* Opens the block to which an export or a descriptor leads. Returns INVALID_VALUE if there is none;
 * machine_open_fd also OUT_OF_MEMORY. */
cuda_result machine_open_id(uint64_t id, struct machine_block *block);
cuda_result machine_open_fd(int fd, struct machine_block *block);
/* This process holds the block no longer. If this process made the block, the block loses its name. */
void machine_leave(uint64_t id);

uint64_t machine_used_bytes(int physical);

/* An allocation that other processes may open, found by its address in its own process. */
struct machine_export {
    uint64_t process; /* 0: an empty row */
    uint64_t address;
    uint64_t bytes;
    uint64_t block_id;
    uint64_t offset;                                /* offset in the block */
    uint64_t serial;                                /* of an allocation of a pool; 0: it is of cuMemAlloc */
    bool ready;                                     /* of a pool: its stream has come to it */
    uint64_t importers[MACHINE_PROCESSES_MAX / 64]; /* of a pool: a bit for each process that has it open */
};
/* `process` of the row is filled in. */
bool machine_publish(const struct machine_export *row);
/* Returns whether other processes have it open, if it is of a pool. */
bool machine_retract(uint64_t address);
void machine_set_ready(uint64_t address);
/* Whether it is ready. What is freed already counts as ready. */
bool machine_is_ready(uint64_t process, uint64_t address, uint64_t serial);
/* Says whether this process has that allocation of a pool open. */
void machine_set_imported(uint64_t process, uint64_t address, uint64_t serial, bool imported);
/* Returns false if there is no such allocation, or its process has ended. */
bool machine_find(uint64_t process, uint64_t address, struct machine_export *out);

/* A pool, as a descriptor names it. */
struct machine_pool {
    uint64_t id; /* 0: it gets one */
    uint64_t process;
    int physical;
};
/* Makes a descriptor for a pool of this process. Returns -1 if it fails. */
int machine_export_pool(struct machine_pool *pool);
bool machine_open_pool(int fd, struct machine_pool *out);

#endif
