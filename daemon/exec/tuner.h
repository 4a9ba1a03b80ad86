#ifndef DAEMON_EXEC_TUNER_H
#define DAEMON_EXEC_TUNER_H

#include "daemon/exec/exec_internal.h"
#include "daemon/gpu/tuning.h"

/*
 * Measures NCCL against what commd does without it among the GPUs of a set, when operations have used the set
 * for the first time, and both could have carried them out. It runs operations of its own through the same
 * code as users' operations, so the times contain what commd itself costs. It begins one of them only while
 * this exec runs no other operation, so it delays nobody by more than one operation of its own. Until the
 * table is complete, operations go on by the rule without a table. A measurement that fails is repeated
 * later.
 *
 * Only the choice between two engines depends on times. All ranks of an operation whose local stage is chosen
 * here are on this node, so one choice holds for all of them.
 */
struct tuner;

/* table: belongs to the caller, and must outlive the tuner. NO_MEMORY. */
enum status tuner_new(struct exec *exec, struct gpu_tuning *table, struct tuner **out,
                      struct error *error) COMM_MUST_USE;
/* Ends a measurement under way. Waits at most a second for GPUs. Accepts null. */
void tuner_free(struct tuner *tuner);

/* Whether the operation is to use NCCL: by the table, or `otherwise`. If its GPUs were not measured,
 * they are to be measured. */
bool tuner_prefers_nccl(struct tuner *tuner, const struct exec_op *op, bool otherwise, uint64_t now_ns);

/* The same for slices of slice_bytes of an operation between nodes, among GPUs that reach each other;
 * otherwise not. */
bool tuner_prefers_nccl_for_slices(struct tuner *tuner, const struct exec_op *op, uint64_t slice_bytes,
                                   uint64_t now_ns);

/*
 * The same for a message between two GPUs. A broadcast among the two takes as long. The times of one pair
 * hold for all pairs whose GPUs reach each other's memory alike, because measuring each pair would take long.
 */
bool tuner_prefers_nccl_for_message(struct tuner *tuner, uint32_t from_gpu, uint32_t to_gpu, uint64_t bytes,
                                    bool otherwise, uint64_t now_ns);

/* Goes on. Call it at the end of each exec_run, and at the deadline. */
void tuner_step(struct tuner *tuner, uint64_t now_ns);
uint64_t tuner_deadline_ns(const struct tuner *tuner);

/* How many sets of GPUs wait to be measured, or are being measured. */
uint32_t tuner_count(const struct tuner *tuner);

#endif
