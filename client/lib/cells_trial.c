#include "client/lib/cells_trial.h"

#include <time.h>

/* Of both ways. */
#define TRIAL_OPERATIONS (CELLS_WAYS_OF_DATA * CELLS_TRIAL_OPERATIONS)

#define FIRST_SIZE_BITS 17u /* 128 KiB */

_Static_assert(CELLS_TRIAL_PERIOD > TRIAL_OPERATIONS, "there is a choice after the trial");

static uint32_t size_index(uint64_t size_bytes)
{
    uint32_t index = 0;
    while (index + 1 < CELLS_TRIAL_SIZES && size_bytes > UINT64_C(1) << (FIRST_SIZE_BITS + index)) {
        index++;
    }
    return index;
}

/* The place in the period of an operation that so many were before. */
static uint32_t turn_of(uint32_t operations)
{
    return operations % CELLS_TRIAL_PERIOD;
}

bool cells_trial_begin(struct cells_trials *trials, const struct op_terms *terms, uint64_t size_bytes,
                       struct cells_note *note)
{
    bool has_counts = terms->has_layouts != 0;
    struct cells_trial *trial = &trials->of[terms->kind][has_counts][has_counts ? 0 : size_index(size_bytes)];
    uint32_t turn = turn_of(trial->operations);
    trials->open = trial;
    trials->open_bytes = size_bytes;
    trials->busy_ns = 0;
    note->place_time = trial->own[CELLS_BY_PLACE];
    note->process_time = trial->own[CELLS_BY_PROCESS];
    if (turn < TRIAL_OPERATIONS) {
        return turn < CELLS_TRIAL_OPERATIONS;
    }
    bool are_known = trial->is_known[CELLS_BY_PLACE] && trial->is_known[CELLS_BY_PROCESS];
    return !are_known || trial->all[CELLS_BY_PROCESS] <= trial->all[CELLS_BY_PLACE];
}

static uint64_t thread_time_ns(void)
{
    struct timespec time;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0
               ? (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec
               : 0;
}

uint64_t cells_trial_start(const struct cells_trials *trials)
{
    /* Once all ranks have published the first slice, the operation is counted already. */
    bool measures = trials->open != NULL && turn_of(trials->open->operations) <= TRIAL_OPERATIONS;
    return measures ? thread_time_ns() : 0;
}

void cells_trial_stop(struct cells_trials *trials, uint64_t started_ns)
{
    if (started_ns != 0) {
        trials->busy_ns += thread_time_ns() - started_ns;
    }
}

void cells_trial_listen(struct cells_trials *trials, bool share_processors)
{
    trials->share_processors = share_processors;
    if (trials->open != NULL) {
        for (uint32_t way = 0; way < CELLS_WAYS_OF_DATA; way++) {
            trials->open->all[way] = 0;
            trials->open->is_known[way] = true;
        }
    }
}

void cells_trial_count(struct cells_trials *trials)
{
    if (trials->open != NULL) {
        trials->open->operations++;
    }
}

void cells_trial_hear(struct cells_trials *trials, const struct cells_note *note)
{
    const uint16_t said[CELLS_WAYS_OF_DATA] = {
        [CELLS_BY_PLACE] = note->place_time, [CELLS_BY_PROCESS] = note->process_time};
    struct cells_trial *trial = trials->open;
    for (uint32_t way = 0; trial != NULL && way < CELLS_WAYS_OF_DATA; way++) {
        uint32_t longest = said[way] > trial->all[way] ? said[way] : trial->all[way];
        trial->all[way] = trials->share_processors ? trial->all[way] + said[way] : longest;
        trial->is_known[way] = trial->is_known[way] && said[way] != 0;
    }
}

/* In ns for each KiB. */
static uint16_t time_of(const struct cells_trials *trials)
{
    uint64_t each = trials->busy_ns / (trials->open_bytes / 1024 + 1) + 1;
    return each < UINT16_MAX ? (uint16_t)each : UINT16_MAX;
}

void cells_trial_end(struct cells_trials *trials, enum cells_way_of_data way)
{
    struct cells_trial *trial = trials->open;
    uint32_t turn = trial != NULL ? turn_of(trial->operations - 1) : TRIAL_OPERATIONS;
    uint32_t first = way == CELLS_BY_PLACE ? CELLS_TRIAL_OPERATIONS : 0;
    if (trial == NULL || trials->busy_ns == 0 || turn < first || turn >= first + CELLS_TRIAL_OPERATIONS) {
        return;
    }
    uint16_t time = time_of(trials);
    bool is_first = turn == first || trial->own[way] == 0;
    trial->own[way] = is_first || time < trial->own[way] ? time : trial->own[way];
}
