#ifndef DAEMON_GPU_TRANSFERS_H
#define DAEMON_GPU_TRANSFERS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/error.h"
#include "proto/types.h"

/*
 * What NCCL is to do among the GPUs of a group, as data: a list of transfers, which together are one NCCL
 * group. They may run in any order, at the same time. GPUs are numbered by their place in the group. Only one
 * thread at a time may use a list.
 */
enum gpu_transfer_kind {
    GPU_TRANSFER_ALL_REDUCE,
    GPU_TRANSFER_REDUCE, /* to the GPU `root` */
    GPU_TRANSFER_BROADCAST,
    GPU_TRANSFER_SEND,           /* from the GPU `root` to the GPU `to` */
    GPU_TRANSFER_REDUCE_SCATTER, /* made by gpu_transfers_join alone, like ALL_GATHER */
    GPU_TRANSFER_ALL_GATHER
};

struct gpu_transfer {
    enum gpu_transfer_kind kind;
    uint32_t root, to;
    /* Elements of a reduction, otherwise bytes. REDUCE_SCATTER and ALL_GATHER: of one GPU's block. */
    uint64_t count;
    /* One address for each GPU of the group; null where the transfer has none there. Both lie in the list. */
    const void **inputs;
    void **outputs;
};

struct gpu_transfers {
    uint32_t gpu_count;
    uint32_t count, capacity;
    enum dtype dtype; /* of all reductions */
    enum reduce reduce;
    struct gpu_transfer *list;
    void **addresses;
};

/* `capacity` transfers at most. NO_MEMORY. */
enum status gpu_transfers_init(struct gpu_transfers *transfers, uint32_t gpu_count, uint32_t capacity,
                               struct error *error) COMM_MUST_USE;
void gpu_transfers_release(struct gpu_transfers *transfers);
void gpu_transfers_clear(struct gpu_transfers *transfers);

/* Makes room for `more` transfers. NO_MEMORY: the list is as before. */
enum status gpu_transfers_reserve(struct gpu_transfers *transfers, uint32_t more,
                                  struct error *error) COMM_MUST_USE;
/* Adds a transfer without addresses. Returns null if the list is full. */
struct gpu_transfer *gpu_transfers_add(struct gpu_transfers *transfers, enum gpu_transfer_kind kind,
                                       uint32_t root, uint64_t count) COMM_MUST_USE;

/*
 * Replaces runs of transfers by one that does the same: a reduction to each GPU in turn, from consecutive
 * addresses, by a reduce-scatter; a broadcast from each GPU in turn, to consecutive addresses, by an
 * all-gather. NCCL has faster algorithms for these. Call it when the list is complete.
 */
void gpu_transfers_join(struct gpu_transfers *transfers);

#endif
