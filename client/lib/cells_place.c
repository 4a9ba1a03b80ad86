#include <sched.h>
#include <string.h>

#include "client/lib/cells_internal.h"

/*
 * Where a node's ranks run. A rank that waits spins as long as each rank can have a processor. If they
 * cannot, they share processors and take turns. Launchers may bind each rank to processors of its own. So a
 * rank notes in the segment which processors it may use, and only ranks with the same ones share them.
 *
 * The kernel may leave ranks on one processor, or three on one and one on another, for a tenth of a second
 * and more. A rank that notices this while it waits moves. If a processor may be idle, it first sleeps: the
 * kernel wakes it there. If all are busy, as with commd for a moment, the kernel wakes it where it was. Then
 * it asks the kernel for another processor.
 */

/* After so many yields in a row on a processor with too many ranks, a rank moves; after two, if they are
 * long. Doubles each time. */
#define YIELDS_TO_MOVE_MIN 8u
#define YIELDS_TO_MOVE_MAX 4096u

/* Of processors that a thread may use; not 0. */
static uint64_t hash_of(const cpu_set_t *set)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof *set; i++) {
        hash = (hash ^ ((const unsigned char *)set)[i]) * 0x100000001b3u;
    }
    return hash | 1;
}

void cells_look_at_places(struct client_cells *cells)
{
    const struct cells_rank *ranks = cells->shared->ranks;
    uint64_t own = atomic_load_explicit(&ranks[cells->rank].processors, memory_order_relaxed);
    uint32_t same = 0, unknown = 0;
    if (cells->places_are_known) {
        return;
    }
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        uint64_t its = atomic_load_explicit(&ranks[rank].processors, memory_order_relaxed);
        same += its == own;
        unknown += its == 0;
    }
    cells->crowded = same + unknown > cells->processor_count;
    cells->places_are_known = unknown == 0;
}

void cells_take_place(struct client_cells *cells)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        cells->processor_count = cells->rank_count; /* more processors than the set has room for */
        memset(&set, 0xff, sizeof set);
    } else {
        cells->processor_count = (uint32_t)CPU_COUNT(&set);
    }
    atomic_store_explicit(&cells->shared->ranks[cells->rank].processors, hash_of(&set), memory_order_relaxed);
    cells_look_at_places(cells);
}

/* Notes on which processor the rank waits: 1 + its number; 0 if the kernel does not say. */
static uint32_t note_processor(struct client_cells *cells)
{
    _Atomic uint32_t *noted = &cells->shared->ranks[cells->rank].processor;
    uint32_t here = (uint32_t)(sched_getcpu() + 1);
    if (atomic_load_explicit(noted, memory_order_relaxed) != here) { /* others read this line */
        atomic_store_explicit(noted, here, memory_order_relaxed);
    }
    return here;
}

static uint32_t count_ranks_on(const struct client_cells *cells, uint32_t processor)
{
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        count +=
            atomic_load_explicit(&cells->shared->ranks[rank].processor, memory_order_relaxed) == processor;
    }
    return count;
}

/* Finds a processor in the set with at most `most` ranks. Returns false if there is none. */
static bool find_processor(const struct client_cells *cells, const cpu_set_t *set, uint32_t most, int *out)
{
    for (int i = 0, left = CPU_COUNT(set); left > 0 && i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, set)) {
            left--;
            if (count_ranks_on(cells, (uint32_t)i + 1) <= most) {
                *out = i;
                return true;
            }
        }
    }
    return false;
}

/*
 * Moves the calling thread, and then allows it all processors again that it was allowed. If these are all
 * that its control group has, the kernel is told "all": so the thread may also use what the group gets later.
 * If somebody else binds this thread in the same 50 us, that is lost. Moves are few, and only with more ranks
 * than processors.
 */
static void move_to(int processor, const cpu_set_t *allowed)
{
    cpu_set_t one, all, now;
    CPU_ZERO(&one);
    CPU_SET((size_t)processor, &one);
    memset(&all, 0xff, sizeof all);
    if (sched_setaffinity(0, sizeof one, &one) != 0) {
        return;
    }
    bool is_free = sched_setaffinity(0, sizeof all, &all) == 0 &&
                   sched_getaffinity(0, sizeof now, &now) == 0 && CPU_EQUAL(&now, allowed);
    if (!is_free) {
        (void)sched_setaffinity(0, sizeof *allowed, allowed);
    }
}

/* Moves to a processor with fewer ranks than here, where `count` of them are. */
static void leave_crowd(struct client_cells *cells, uint32_t count)
{
    cpu_set_t allowed;
    int processor;
    CPU_ZERO(&allowed);
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
        find_processor(cells, &allowed, count - 2, &processor)) {
        move_to(processor, &allowed);
        (void)note_processor(cells);
    }
}

bool cells_should_move(struct client_cells *cells, uint64_t yield_ns)
{
    if (cells_is_between_nodes(cells)) {
        return false;
    }
    uint32_t most = cells->yields_to_move > 0 ? cells->yields_to_move : YIELDS_TO_MOVE_MIN;
    uint32_t here = note_processor(cells);
    uint32_t share = cells->crowded ? (cells->rank_count - 1) / cells->processor_count + 1 : 1;
    uint32_t count = here != 0 ? count_ranks_on(cells, here) : 0;
    bool is_misplaced = yield_ns > CELLS_YIELD_SHARED_NS && count > share;
    uint32_t weight = yield_ns > CELLS_YIELD_LONG_NS ? most / 2 : 1;
    cells->yields_here = is_misplaced ? cells->yields_here + weight : 0;
    if (cells->yields_here < most) {
        return false;
    }
    cells->yields_here = 0;
    cells->yields_to_move = most < YIELDS_TO_MOVE_MAX ? 2 * most : most;
    if (!cells->crowded && most == YIELDS_TO_MOVE_MIN) {
        return true;
    }
    leave_crowd(cells, count);
    return false;
}
