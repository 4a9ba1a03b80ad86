#ifndef DAEMON_COMM_CELLS_TALLY_H
#define DAEMON_COMM_CELLS_TALLY_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/comm/op_counts.h"
#include "proto/cells.h"

/*
 * What the ranks of one communicator have carried out through cells, as far as commd believes their counts
 * (proto/cell_counts.h). Each word is read once. A count that falls, or that grows faster than any processor
 * could count, is left as it was. So a rank that writes nonsense spoils the counts of its own communicator,
 * and adds a bounded amount to the node's. Private to daemon/comm. Main thread.
 */
#define CELLS_TALLY_OP_LEAST_NS 50u /* no operation takes less: the fastest measured took 100 ns */

struct cells_tally;

/* Returns null without memory. now_ns: no operation has ended before it. */
struct cells_tally *cells_tally_new(uint32_t rank_count, uint64_t now_ns);
size_t cells_tally_size_bytes(uint32_t rank_count);
/* Reads the counts. What all ranks have counted since the last call is added to `out`. */
void cells_tally_read(struct cells_tally *tally, struct cells_shared *shared, uint64_t now_ns,
                      struct op_counts *out);

/* As of the last read: operations that all ranks have ended, and their bytes as struct communicator has them.
 */
uint64_t cells_tally_ops(const struct cells_tally *tally);
uint64_t cells_tally_bytes(const struct cells_tally *tally);
/* Operations that one rank has submitted and not handed to commd, and those that have ended. */
uint64_t cells_tally_submitted(const struct cells_tally *tally, uint32_t rank);
uint64_t cells_tally_completed(const struct cells_tally *tally, uint32_t rank);

#endif
