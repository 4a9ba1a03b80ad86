#ifndef CLIENT_LIB_CELLS_TRIAL_H
#define CLIENT_LIB_CELLS_TRIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/cells.h"

/*
 * Ranks read each other's ordinary memory from the processes, or from copies in places (proto/cells.h). Which
 * way takes less work depends on the machine: on what its kernel does for each page, and on how fast a line
 * goes from one processor's cache to another one's. So the ranks of a communicator try both.
 *
 * For each kind and size of operations, first some go by processes, then some by places. Each rank measures
 * the processor time that its copies and sums take, and tells the others with the next operation. From then
 * on, the way is used for which the slowest rank needs less: it may have most of the data. If ranks share
 * processors, it is the way for which all of them together need less. After CELLS_TRIAL_PERIOD operations the
 * ranks try again. All ranks count the same operations and hear the same times, so they choose the same way.
 *
 * One operation is open at a time. The caller protects it.
 */
#define CELLS_TRIAL_OPERATIONS 4u /* in each way; the least time counts */
#define CELLS_TRIAL_PERIOD 1024u
#define CELLS_TRIAL_SIZES 9u /* up to 128 KiB, and then by powers of two; the last one has no end */

enum cells_way_of_data { CELLS_BY_PROCESS, CELLS_BY_PLACE };
#define CELLS_WAYS_OF_DATA 2u

struct cells_trial {
    uint32_t operations;               /* whose first slices all ranks have published */
    uint16_t own[CELLS_WAYS_OF_DATA];  /* ns for each KiB; 0: not known */
    uint32_t all[CELLS_WAYS_OF_DATA];  /* of the slowest rank, or of all together, as far as they know */
    bool is_known[CELLS_WAYS_OF_DATA]; /* by all ranks */
};

struct cells_trials {
    struct cells_trial of[OP_KIND_COUNT][2]
                         [CELLS_TRIAL_SIZES]; /* also: whether it has a count for each rank */
    struct cells_trial *open;
    uint64_t open_bytes;
    uint64_t busy_ns; /* what this rank's work for the open operation has taken */
    bool share_processors;
};

/* An operation begins, in which data of so many bytes go from rank to rank. With a count for each rank, all
 * sizes are one. Sets the times in the note. Returns whether this rank may lend its process. */
bool cells_trial_begin(struct cells_trials *trials, const struct op_terms *terms, uint64_t size_bytes,
                       struct cells_note *note);
/* Work for the open operation begins and ends, in the same thread. Its time is 0 if nobody measures it. */
uint64_t cells_trial_start(const struct cells_trials *trials);
void cells_trial_stop(struct cells_trials *trials, uint64_t started_ns);
/* The notes of all ranks are there: call listen, and then hear for each of them. */
void cells_trial_listen(struct cells_trials *trials, bool share_processors);
void cells_trial_hear(struct cells_trials *trials, const struct cells_note *note);
/* The open operation goes in slices: it counts, on all ranks. */
void cells_trial_count(struct cells_trials *trials);
/* The open operation has gone this way, and has ended well. */
void cells_trial_end(struct cells_trials *trials, enum cells_way_of_data way);

#endif
