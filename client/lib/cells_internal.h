#ifndef CLIENT_LIB_CELLS_INTERNAL_H
#define CLIENT_LIB_CELLS_INTERNAL_H

#include "client/lib/cells_trial.h"
#include "client/lib/internal.h"

/* Shared by cells.c, which publishes and takes results, and cells_wait.c, which waits for them. */

/* An operation that was published and has not ended. */
struct cells_slot {
    struct client_op *op;    /* null: it was dropped, or left behind */
    uint64_t seq;            /* of the step that is published now, if it has slices */
    uint64_t step_count;     /* of all slices; 0: it has none, or the ranks' tables are not known yet */
    uint64_t step;           /* that is published now */
    uint64_t began_ns;       /* when it was submitted, if it may be timed or has slices; otherwise 0 */
    bool attended;           /* the library's thread goes on with the slices at once */
    uint32_t window;         /* how many may be open beside it */
    bool let_go;             /* its handle has ended; its buffers belong to the caller again */
    bool left_behind;        /* let go within its call; its op is made if it is needed: see cells_early.c */
    bool ends_apart;         /* its last step is the number that it takes because a rank lends */
    bool may_fail;           /* a slice ends for a rank with the next number: reading it may fail */
    bool begins;             /* its deadline begins now: this rank was ahead of others until here */
    uint64_t ticket;         /* of an operation that was left behind, */
    uint64_t deadline_ns;    /* and its deadline; 0: its time has not begun */
    uint64_t elements;       /* of an operation with a count for each rank, in slices: those of the whole */
    struct client_call call; /* its counts for each rank are in `kept` */
};

/* A file of another rank, which this process has mapped. */
struct cells_loan {
    uint64_t stamp; /* of the offer, also if it could not be mapped */
    unsigned char *base;
    size_t size_bytes;
    pid_t pid; /* of the process, if that is what was offered, and this process may read it; otherwise 0 */
    uint64_t answer_at; /* there: this rank's challenge */
};

/* Operations in slices whose data are not copied: see proto/cells.h. At most one such operation is open. */
struct cells_lending {
    uint64_t last_stamp;
    uint64_t operations; /* that could have lent memory */
    uint32_t in_vain;    /* operations in a row that offered memory, and others had not mapped it */
    uint32_t refused;    /* the same of the process; and those that lent, and went to commd */
    uint32_t memory_ids[CELLS_FILES];  /* what this rank offers; 0: nothing */
    uint64_t used[CELLS_FILES];        /* the last of these operations on it */
    uint64_t answers[CELLS_RANKS_MAX]; /* all ranks' challenges; others read them here */
    struct cells_note note;            /* of this rank's operation */
    const unsigned char *lent[CELLS_RANKS_MAX];
    uint8_t lent_by[CELLS_RANKS_MAX]; /* the index of the offer */
    bool by_process;                  /* any rank of the operation lends in this way */
    bool by_all;                      /* no rank copies its data to a place, so slices may be longer */
    struct cells_remote remote;
    struct cells_trials trials;
    struct cells_loan loans[CELLS_RANKS_MAX][CELLS_OFFERS];
};

/* What follows from the terms of a small call: see cells_again.c. */
enum cells_needs { CELLS_NEEDS_ALL, CELLS_NEEDS_NOBODY, CELLS_NEEDS_ROOT }; /* whose data the rank needs */
struct cells_last {
    struct client_call call; /* a count of 0: there was none */
    enum cells_needs needs;
    uint32_t window;     /* as in cells_slot */
    uint64_t size_bytes; /* that commd counts, */
    struct cell_count *count;
    size_t input_bytes, output_bytes; /* of this rank; 0: it has none */
    size_t own_bytes;                 /* in place: where in the larger buffer the smaller one begins */
};

struct client_cells {
    struct cells_shared *shared;
    size_t size_bytes;
    uint32_t rank_count; /* of the segment; between nodes, commd is the last one */
    uint32_t rank;
    struct node_cells node; /* between nodes; its shared is null on one node */
    uint64_t seq;           /* the last number that was used */
    _Atomic uint64_t gone;  /* the last published operation that has ended; read without the lock */
    uint64_t asked_seq;     /* the last operation at whose deadline commd was told */
    uint32_t place;         /* where the next slice goes */
    bool writing;           /* a thread copies the first slice of an operation */
    bool uses_slices;       /* the last long operation went in slices */
    _Atomic bool crowded;   /* more ranks than processors: see cells_place.c. Read without the lock */
    bool places_are_known;  /* of all ranks */
    uint32_t processor_count;
    bool needs_fences;     /* see cells_publish */
    bool is_ahead;         /* the operation `seq` was published, and gets its slot now */
    uint32_t skips;        /* see cells_end_at_once: calls that do not look yet, */
    uint32_t skipped_last; /* and how many they were after the last look that found nothing */
    uint32_t turn_skips, turn_skipped_last; /* the same of turns that are given up: see cells_again.c */
    _Atomic uint64_t crowded_until_ns, crowded_ns; /* until then, and for so long, waiting threads sleep */
    /* See cells_place.c: yields in a row on a processor with too many ranks, and after how many a rank moves.
     */
    _Atomic uint32_t yields_here, yields_to_move;
    uint64_t idle_seq;               /* a thread has slept for its end in vain: nobody spins for it again */
    uint32_t first, count;           /* of the slots, a ring */
    uint32_t long_count;             /* of them: with CELLS_LONG_WINDOW, */
    uint32_t kept_count;             /* not let go, */
    uint32_t behind_count;           /* and left behind */
    struct cell_counts *counts;      /* this rank's */
    struct cells_messages *messages; /* null: all go through commd */
    struct cells_lending lending;
    struct cells_slot slots[CELLS_WINDOW];
    /* The counts of open operations that have one for each rank: the caller may change its own. */
    size_t kept[CELLS_LONG_WINDOW][4][CELLS_RANKS_MAX];
    struct cells_last last[OP_KIND_COUNT]; /* the last small call of each kind */
};

static inline bool cells_is_between_nodes(const struct client_cells *cells)
{
    return cells->node.shared != NULL;
}

/* Between two looks: the processor's other threads go on. */
static inline void cells_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    atomic_signal_fence(memory_order_seq_cst);
#endif
}

/* This processor is to own the line before it writes there. (Compilers' own function only reads the line, if
 * they know nothing of the processor.) */
static inline void cells_own_soon(const void *line)
{
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0" : : "m"(*(const unsigned char *)line));
#else
    __builtin_prefetch(line, 1);
#endif
}

/* The open operations, oldest first. */
static inline struct cells_slot *cells_slot_at(struct client_cells *cells, uint32_t index)
{
    return &cells->slots[(cells->first + index) % CELLS_WINDOW];
}

/* How many operations may be open, if one with that window is. */
static inline uint32_t cells_window_beside(const struct client_cells *cells, uint32_t window)
{
    return cells->long_count > 0 ? CELLS_LONG_WINDOW : window;
}

/* The size that commd counts: of the whole vector, or of all blocks; without a count for each rank. */
static inline uint64_t cells_size_bytes(const struct client_cells *cells, const struct op_terms *terms)
{
    uint32_t blocks = op_kind_has_blocks(terms->kind) ? cells->rank_count : 1;
    return terms->count_elements * blocks * dtype_size_bytes(terms->dtype);
}

/* Counts an operation that has ended. began_ns: when it began, or 0 if it is not timed. */
static inline void cells_count(struct cell_count *count, uint64_t size_bytes, uint64_t began_ns)
{
    if (began_ns != 0) {
        cell_counts_time(count, clock_ns() - began_ns);
    }
    cell_counts_add(count, size_bytes);
}

/* The terms that the rank's cell has now. */
static inline struct op_terms cells_said(const struct cells_slot *slot)
{
    struct op_terms said = slot->call.terms;
    if (said.has_layouts != 0) {
        said.count_elements = slot->step; /* of the tables: 0 */
    }
    return said;
}

/* cells_place.c: says which processors this rank may use, and learns whether ranks share them. */
void cells_take_place(struct client_cells *cells);
/* Learns it of ranks that have come since. */
void cells_look_at_places(struct client_cells *cells);
/* After a yield that took so long, without the lock. May move the calling thread. Returns whether it should
 * sleep to get another processor. */
bool cells_should_move(struct client_cells *cells, uint64_t yield_ns);
#define CELLS_YIELD_SHARED_NS 1500u /* a yield that takes so long let another thread run, perhaps commd */
#define CELLS_YIELD_LONG_NS 100000u /* one that takes so long gave the processor to another process */

/* cells_again.c: keeps what the next call with these terms needs. */
void cells_keep_last(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs);

/* cells.c: takes a place for an operation, which has no struct client_op yet, and its number or numbers. */
struct cells_slot *cells_reserve_slot(struct comm_comm *comm, const struct client_call *call);
uint32_t cells_timeout_ms(const struct comm_comm *comm, const struct cells_slot *slot);
/* How many operations may be open beside this one. */
uint32_t cells_window_of(const struct client_cells *cells, const struct client_call *call);
/* Whether the operation may be published now, if its size allows. waits: it waits for events or streams. */
bool cells_have_room(struct comm_comm *comm, const struct client_call *call, bool waits);

/* cells_lend.c: before the rank publishes anything. */
void cells_lend_open(struct client_cells *cells);
/* Whether this rank's data of an operation in slices could be read where they are. */
bool cells_may_lend(const struct comm_comm *comm, const struct client_call *call);
/* Decides whether this rank lends its data for an operation in slices, which begins. */
void cells_lend_begin(struct comm_comm *comm, const struct client_call *call);
static inline void cells_lend_write_note(const struct client_cells *cells, uint64_t seq)
{
    unsigned char *at = cells_header(cells->shared, cells->rank, seq)->data + CELLS_NOTE_AT;
    memcpy(at, &cells->lending.note, sizeof cells->lending.note);
}
static inline bool cells_lends(const struct client_cells *cells)
{
    return cells->lending.note.lent != 0;
}
/* All ranks have published the first slice: finds their data. Returns whether any rank lends. Sets `mixes` if
 * one lends by its process, and another one works in place. */
bool cells_lend_look(struct client_cells *cells, const struct cells_slot *slot, bool *mixes);
/* The same of an operation with a count for each rank, of which all tables are there. */
bool cells_lend_look_at_tables(struct client_cells *cells, const struct cells_slot *slot, bool *mixes);
/* Without the lock: whether all that was read of others' memory could be read, and was theirs until now. */
bool cells_lend_holds(struct client_cells *cells);
/* The operation, whose first slice has been taken, ends; or it goes to commd. */
void cells_lend_ended_well(struct client_cells *cells);
void cells_lend_returned(struct client_cells *cells);
/* Without the lock: maps what others offer. */
void cells_lend_map(struct comm_comm *comm, uint64_t seq);
void cells_lend_end(struct comm_comm *comm);

/* cells_slices.c: publishes the slice that was copied. */
void cells_put_slice(struct client_cells *cells, const struct cells_slot *slot);
/* All ranks have published the slice: takes its result, and publishes the next one. CELLS_DIRECT: it was the
 * last. CELLS_WAIT: it was not, or the operation has failed. CELLS_BY_COMMD: a lender has failed meanwhile,
 * and this rank has told the others that commd has the operation. Releases the lock meanwhile. */
enum cells_way cells_take_slice(struct comm_comm *comm, struct cells_slot *slot);
/* Of an operation with a count for each rank: all ranks have published their tables. CELLS_WAIT: slices
 * follow. CELLS_BY_COMMD: so they would, but the operation could not begin again, and this rank has told the
 * others that commd has it. CELLS_DIRECT: the result can be taken. */
enum cells_way cells_begin_slices(struct comm_comm *comm, struct cells_slot *slot);
/* The operation goes to commd, with what is left of it. All ranks see that at the same slice. Its number is
 * the operation's, and the numbers of the slices behind it are free again. */
void cells_return_slices(struct client_cells *cells, struct cells_slot *slot);

/* Whether all collectives before this ticket have ended. */
bool cells_is_oldest(const struct comm_comm *comm, uint64_t ticket);
/* Ends operations that are complete. Returns whether there were any. */
bool cells_take_ready(struct comm_comm *comm);
/* --- cells_early.c --- */

enum cells_needs cells_needs_of(const struct comm_comm *comm, const struct client_call *call, bool in_slices);
/* Publishes an operation that fits into a cell. ticket: between nodes, for traces. */
void cells_put_whole(struct comm_comm *comm, uint64_t seq, uint64_t ticket, const struct client_call *call,
                     enum cells_needs needs);
/* Whether the root's data come within a moment: of the next operation, with these terms. */
bool cells_root_comes(struct client_cells *cells, const struct op_terms *terms);
/* Leaves an operation behind that ends with its call. */
void cells_leave_behind(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs);
/* Publishes an operation. Returns whether all ranks take part within a moment, and it has ended. Otherwise it
 * waits for its slot. size_bytes: that commd counts. */
bool cells_end_with_all(struct comm_comm *comm, const struct client_call *call, enum cells_needs needs,
                        uint64_t size_bytes, struct cell_count *count);
/* Whether the deadline of the oldest operation, which was left behind, has not come. Its time begins when
 * this is asked first. */
bool cells_behind_is_early(const struct comm_comm *comm, struct cells_slot *slot, uint64_t now_ns);
/* Whether the root's data are there, of an operation of these terms. Without the lock. */
bool cells_has_root(const struct client_cells *cells, uint64_t seq, const struct op_terms *terms);
/* Whether an open operation before this call still uses memory that the call's result would overwrite. Then
 * the result is taken in order. */
bool cells_disturbs(const struct comm_comm *comm, const struct client_call *call);
/* The rank has what it needs: takes its result, and ends the handle. */
void cells_let_go(struct comm_comm *comm, struct cells_slot *slot);
/* The operation whose handle ends when the root's data are there, after all before it; null: none. */
struct cells_slot *cells_reader(struct comm_comm *comm);
/* Lets operations go of which the root's data are there. Returns whether there was any. */
bool cells_let_readers_go(struct comm_comm *comm);
/* The operation was let go, and goes to commd. The caller may have changed its buffers since. What the others
 * need of them is in the cell: commd gets a copy. Returns false if memory is short. */
bool cells_keep_data(const struct comm_comm *comm, struct cells_slot *slot);

#endif
