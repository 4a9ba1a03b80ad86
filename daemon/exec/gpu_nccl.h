#ifndef DAEMON_EXEC_GPU_NCCL_H
#define DAEMON_EXEC_GPU_NCCL_H

#include "daemon/exec/exec_internal.h"

/* An operation of one node that NCCL carries out, from start to end. The main thread calls these functions.
 */
struct gpu_nccl;

bool gpu_nccl_serves(const struct exec_comm *comm, const struct exec_op *op);
/* Holds the group of these GPUs, ascending, for the communicator, which releases the one it held before. As
 * gpu_group_hold. */
enum status gpu_nccl_hold(struct exec_comm *comm, const uint32_t *gpus, uint32_t count, uint64_t now_ns,
                          struct error *error) COMM_MUST_USE;
#define NCCL_PATIENCE_NS (5 * TIME_S) /* of a group's forming; then others carry operations out meanwhile */

/* LIMIT, NO_MEMORY, UNSUPPORTED: then others must carry the operation out. */
enum status gpu_nccl_new(struct exec_comm *comm, struct exec_op *op, uint64_t now_ns, struct gpu_nccl **out,
                         struct error *error) COMM_MUST_USE;
/* The operation is over. Accepts null. */
void gpu_nccl_free(struct gpu_nccl *nccl);
enum gpu_nccl_step {
    GPU_NCCL_WAITS,
    GPU_NCCL_REFUSED, /* nothing has begun; others must carry the operation out */
    GPU_NCCL_DONE,    /* all work is in the queues */
    GPU_NCCL_FAILED
};
enum gpu_nccl_step gpu_nccl_step(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error);
bool gpu_nccl_has_begun(const struct gpu_nccl *nccl);
/* While its work runs: what NCCL has reported. Ends the group if that is an error. */
enum status gpu_nccl_check(struct gpu_nccl *nccl, uint64_t now_ns, struct error *error) COMM_MUST_USE;
/* For a cancelled operation: whether NCCL's calls, if any, are over, and the queues free again. */
bool gpu_nccl_let_go(const struct gpu_nccl *nccl);
/* Ends the group, with the work that it has on the GPUs. */
void gpu_nccl_give_up(struct gpu_nccl *nccl, const char *why, uint64_t now_ns);
void gpu_nccl_describe(const struct gpu_nccl *nccl, char *text, size_t size);

#endif
