#ifndef TESTS_SIM_SIM_BUFFERS_H
#define TESTS_SIM_SIM_BUFFERS_H

#include "tests/sim/sim_comm.h"

/* The buffers of simulated operations, and what they must hold at the end. The meaning of each operation
 * is written here anew, independent of the daemon. */

/* Returns the count that the rank passes. With layouts, this is the count of its own block. */
uint64_t sim_own_count(const struct sim_op *op, uint32_t rank);
/* Fills the inputs, poisons the outputs. */
void sim_part_prepare(struct sim_op *op, uint32_t rank);
void sim_part_release(struct sim_part *part);

#endif
