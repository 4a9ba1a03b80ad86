#ifndef PROTO_CELLS_H
#define PROTO_CELLS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "proto/cell_counts.h"
#include "proto/cell_messages.h"
#include "proto/op_terms.h"

/*
 * Small operations of a communicator whose ranks are all on one node, without commd in the way. commd makes
 * one sealed segment for the communicator. Each rank has a ring of cells there, which it alone writes. A rank
 * publishes its part of an operation in a cell; every rank reads the cells of all ranks, and takes its result
 * itself.
 *
 * Every operation takes a number, from 1 on. A rank takes part in it in one of two ways: it publishes a cell,
 * or it hands the operation to commd and notes that in `by_commd`. If any rank hands it to commd, or the
 * terms differ, every rank does the same. All ranks see the same cells, so all of them decide alike. commd
 * then carries the operation out, or says what contradicts.
 *
 * An operation ends for a rank when all ranks have taken part. A rank publishes at most CELLS_WINDOW
 * operations that have not ended for it. So when it publishes operation s, operation s - CELLS_WINDOW has
 * ended for it, all ranks have taken part in that, and s - 2 * CELLS_WINDOW has ended for all of them. The
 * cell of the latter can be used again.
 *
 * The segment is open until commd retires it: because a rank is gone or left, a deadline has passed, or the
 * communicator failed. commd copies how far each rank has come, once, after it has said that it decides. An
 * operation in which all ranks take part according to that copy ends as in an open segment. All later
 * operations go to commd. A rank that sees a segment that is not open waits for the copy. So all ranks agree.
 *
 * After a deadline commd opens the segment again, for operations from a number on. Before, each rank must
 * have handed over an operation that no rank had reached at the retirement, or the last of those. Then every
 * rank knows how all earlier operations ended. An operation between them and that number goes to commd,
 * whenever a rank looks.
 *
 * Nobody trusts the segment: each word is read once, headers are copied before they are looked at, and sizes
 * are the reader's own. A rank that writes nonsense harms its own communicator.
 */
#define CELLS_RANKS_MAX 32u /* with more ranks, a rank reads too many cells for each operation */
/* Cells of a rank. Ranks that share processors take turns; the more operations each turn has, the better. */
#define CELLS_DEPTH 128u
#define CELLS_WINDOW 64u /* operations that a rank has published and that have not ended for it */
/*
 * The same if one of them, or the next one, has long data. When a rank publishes operation s, such an
 * operation s - LONG_DEPTH has ended for all: no rank publishes s - LONG_WINDOW before.
 */
#define CELLS_LONG_WINDOW 4u
#define CELLS_LONG_DEPTH 8u /* places of a rank for such data: fewer, so that they stay in the caches */
#define CELLS_DATA_MAX_BYTES 32768u
/*
 * The same of an all-reduce whose slices take two steps (see below). In one cell, each rank sums all that all
 * ranks have published. Measured with 4 ranks on 2 processors: slices take 0.55 of the time for 32 KiB, 0.8
 * for 24 KiB, and as long for 16 KiB.
 */
#define CELLS_SUMMED_MAX_BYTES 16384u
#define CELLS_SHORT_MAX_BYTES 80u    /* data that lie in the header */
#define CELLS_MIDDLE_MAX_BYTES 2048u /* data with a place for each cell; longer ones are long */
/*
 * Longer data are published slice by slice, so that they stay in the processors' caches. Each slice takes a
 * number, like an operation of its own. A rank publishes a slice when the one before it has ended for it, and
 * meanwhile publishes nothing else. So when it publishes a slice, the last but one has ended for all ranks:
 * two places for each rank are enough. The header says in which the slice lies.
 */
#define CELLS_PLACES 2u
#define CELLS_SLICE_MAX_BYTES (1u << 20) /* of one rank's data, or of all ranks' blocks together */
/* With more than two ranks: their places together would not stay in the caches. */
#define CELLS_SLICE_OF_MANY_BYTES (CELLS_SLICE_MAX_BYTES / 4u)
/*
 * With so many ranks or more, a slice of an all-reduce takes two steps, and two numbers. First each rank
 * publishes its data, and reduces its part of all ranks' data. Then it publishes its part, and copies the
 * others'. With fewer ranks, each rank reduces all data.
 */
#define CELLS_TWO_STEPS_RANKS 3u
/*
 * Longer data of registered memory go to commd, which reads and writes them where they are. Ranks with a
 * processor each take more, except an all-reduce: each of two ranks reduces all data, and commd's threads
 * half of them.
 */
#define CELLS_REGISTERED_MAX_BYTES (1u << 20)
#define CELLS_REGISTERED_SPREAD_MAX_BYTES (2u << 20)
/* The same if nothing is copied to a place first, except a broadcast: commd's threads share its copies. */
#define CELLS_LENT_MAX_BYTES (16u << 20)
/* Ranks that share processors: of all blocks together. Measured with 4 ranks on 2 processors: 2 and 4 MiB
 * take 0.4 to 0.65 of the time, 8 MiB 0.65 to 0.8, 16 MiB 1.25. */
#define CELLS_LENT_SHARED_MAX_BYTES (8u << 20)
#define CELLS_LINE_BYTES ((size_t)64)
#define CELLS_PAGE_BYTES 4096u

_Static_assert(CELLS_DEPTH == 2 * CELLS_WINDOW, "a cell is used again after two windows");
_Static_assert(CELLS_LONG_DEPTH == 2 * CELLS_LONG_WINDOW, "so is a place for its data");

/* Values of open_from that are no number of an operation. */
#define CELLS_DECIDING UINT64_MAX     /* commd copies how far each rank has come */
#define CELLS_FINAL (UINT64_MAX - 1u) /* `heads` are that copy */

/*
 * A rank need not copy a slice if the others can read its memory. It offers files of its memory, and says so
 * with its slices. Another rank opens such a file through /proc, read-only, and says that it has mapped it.
 * Once all have, the rank lends: its slices have no data, but say where the data are. The kernel decides
 * whether a process may open another one's files: a container or another user may not, and then all is
 * copied.
 *
 * If any rank lends in the first slice, the operation takes one more number after the last slice. A rank that
 * publishes it has read everything, so nobody's data change before. If each slice takes two steps, the second
 * step says the same.
 *
 * Memory that has no file is lent in the same way. The others read it from the rank's process
 * (process_vm_readv), if the kernel lets them. The process has copied their challenges, so no rank can make
 * another one read a process that does not belong here. Such a read may fail. Then the reader hands the next
 * number to commd, and commd carries out the slice again that was not read. So nobody's input may change
 * until all have read: if any rank works in place, all ranks hand the operation over before they read
 * anything.
 */
#define CELLS_FILES 8u               /* files of a rank */
#define CELLS_OFFER_SELF CELLS_FILES /* the offer behind them: the rank's process */
#define CELLS_OFFERS (CELLS_FILES + 1u)
struct cells_offer {
    _Atomic uint64_t stamp; /* another one for each file that is offered here; 0: none */
    uint64_t device, inode; /* so that nobody takes another process's file for it */
    uint64_t size_bytes;
    uint64_t answers_at; /* of the process: the address of all ranks' challenges there */
    int32_t pid, fd;
};

/* With a slice: behind its place in the header's data. */
struct cells_note {
    uint8_t lent;    /* in all slices: 1 + the index of the offer in which the data are; 0: they are copied */
    uint8_t offered; /* 1 + the index of the offer that the others should map; 0: none */
    uint8_t keeps;   /* 1: nobody writes to the rank's input before all ranks have read it */
    /* What the rank's work for such operations takes, in ns for each KiB: if data are copied to places, and
     * if they are read from processes. 0: not known. See client/lib/cells_trial.h. */
    uint16_t place_time, process_time;
    uint64_t offset_bytes; /* lent: of the rank's whole input, in the file; in the process: its address */
};

#define CELLS_NOTE_AT 8u
_Static_assert(CELLS_NOTE_AT + sizeof(struct cells_note) <= CELLS_SHORT_MAX_BYTES,
               "a header has room for it");

/* What all ranks must agree on, and what a rank adds. */
struct cell_terms {
    struct op_terms terms;
    double factor; /* premul_sum */
};

struct cell_header {
    _Alignas(2 * CELLS_LINE_BYTES) _Atomic uint64_t seq; /* written last */
    struct cell_terms said;
    unsigned char data[CELLS_SHORT_MAX_BYTES];
};

_Static_assert(sizeof(struct cell_header) == 2 * CELLS_LINE_BYTES, "the layout is fixed");

/* One rank's part. Others write only to bell. */
struct cells_rank {
    _Alignas(2 * CELLS_LINE_BYTES) _Atomic uint64_t by_commd; /* the last operation that it handed to commd */
    _Atomic uint32_t sleepers;                                /* its threads that sleep at the bell */
    _Atomic uint32_t bell;                                    /* a futex */
    _Atomic uint32_t processor;    /* 1 + that on which it last waited. 0: it did not */
    _Atomic uint64_t processors;   /* a hash of all that it may use. 0: not known */
    uint64_t tickets[CELLS_DEPTH]; /* between nodes, of each cell: for traces (node_cells.h) */
    _Atomic uint64_t awaits;       /* between nodes: the operation whose answer wakes its only sleeper */
    struct cell_header headers[CELLS_DEPTH];
    struct cell_counts counts;  /* for statistics; nobody decides by them */
    _Atomic uint64_t challenge; /* random. A process that others read knows it, and no other process does. */
    struct cells_offer offers[CELLS_OFFERS];
    _Atomic uint64_t mapped[CELLS_RANKS_MAX][CELLS_OFFERS]; /* of each rank's offers: the stamp */
};

/* The start of the segment. The longer data follow, from a page boundary on. */
struct cells_shared {
    _Alignas(2 * CELLS_LINE_BYTES) _Atomic uint64_t open_from; /* the first operation; at first 0 */
    _Atomic uint64_t opened_from;                              /* when it was opened last */
    _Atomic uint64_t heads[CELLS_RANKS_MAX];
    _Atomic uint32_t has_barriers; /* 1: who sleeps calls process_barrier: ranks that joined need no fences */
    struct cells_rank ranks[];
};

/* The part that commd maps: without the longer data. A multiple of CELLS_PAGE_BYTES. */
static inline size_t cells_control_bytes(uint32_t rank_count)
{
    size_t bytes = sizeof(struct cells_shared) + rank_count * sizeof(struct cells_rank);
    return (bytes + CELLS_PAGE_BYTES - 1) / CELLS_PAGE_BYTES * CELLS_PAGE_BYTES;
}

/* The segment without the places for slices. */
static inline size_t cells_short_bytes(uint32_t rank_count)
{
    return cells_control_bytes(rank_count) + (size_t)rank_count * CELLS_LONG_DEPTH * CELLS_DATA_MAX_BYTES;
}

/* The segment without the places for middle data. */
static inline size_t cells_sliced_bytes(uint32_t rank_count)
{
    return cells_short_bytes(rank_count) + (size_t)rank_count * CELLS_PLACES * CELLS_SLICE_MAX_BYTES;
}

/* The segment without the rings of messages. */
static inline size_t cells_middle_bytes(uint32_t rank_count)
{
    return cells_sliced_bytes(rank_count) + (size_t)rank_count * CELLS_DEPTH * CELLS_MIDDLE_MAX_BYTES;
}

/* The whole segment for 2 to CELLS_RANKS_MAX ranks, a multiple of CELLS_PAGE_BYTES. Most of it takes no
 * memory before it is used. */
static inline size_t cells_bytes(uint32_t rank_count)
{
    size_t bytes =
        cells_middle_bytes(rank_count) + (size_t)rank_count * rank_count * cell_messages_bytes(rank_count);
    return (bytes + CELLS_PAGE_BYTES - 1) / CELLS_PAGE_BYTES * CELLS_PAGE_BYTES;
}

/* Short messages from one rank to another one. */
static inline struct cell_messages *cells_messages(struct cells_shared *shared, uint32_t rank_count,
                                                   uint32_t from, uint32_t to)
{
    unsigned char *first = (unsigned char *)shared + cells_middle_bytes(rank_count);
    return (struct cell_messages *)(void *)(first + ((size_t)from * rank_count + to) *
                                                        cell_messages_bytes(rank_count));
}

static inline struct cell_header *cells_header(struct cells_shared *shared, uint32_t rank, uint64_t seq)
{
    return &shared->ranks[rank].headers[seq % CELLS_DEPTH];
}

/* A place for slices. */
static inline unsigned char *cells_place(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                         uint32_t place)
{
    return (unsigned char *)shared + cells_short_bytes(rank_count) +
           ((size_t)rank * CELLS_PLACES + place % CELLS_PLACES) * CELLS_SLICE_MAX_BYTES;
}

/* Where the data of a rank's operation lie, unless they are published in slices. */
static inline unsigned char *cells_data(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                        uint64_t seq, size_t size_bytes)
{
    if (size_bytes <= CELLS_SHORT_MAX_BYTES) {
        return cells_header(shared, rank, seq)->data;
    }
    if (size_bytes <= CELLS_MIDDLE_MAX_BYTES) {
        return (unsigned char *)shared + cells_sliced_bytes(rank_count) +
               ((size_t)rank * CELLS_DEPTH + seq % CELLS_DEPTH) * CELLS_MIDDLE_MAX_BYTES;
    }
    return (unsigned char *)shared + cells_control_bytes(rank_count) +
           ((size_t)rank * CELLS_LONG_DEPTH + seq % CELLS_LONG_DEPTH) * CELLS_DATA_MAX_BYTES;
}

/*
 * Operations with a count for each rank: the _v forms. Their terms in the cell have no count. A rank's data
 * begin with a table: how many elements it sends to each rank, then how many it expects of each, then where
 * each rank's block lies in its process. The ranks agree if each sends what the other expects. The blocks
 * follow, without gaps.
 *
 * If any rank's blocks do not fit, the cells are tables alone, and all ranks' blocks follow in slices, with
 * numbers of their own. Nobody publishes anything between them, so nobody publishes anything before all
 * tables are there. Each slice has a part of every block. It begins with a uint32_t for each rank: how many
 * bytes behind those numbers that rank's part begins. Its terms have the slice's number, from 1 on, as count.
 *
 * If such a rank lends its process, the note is in the cell of its table, and its slices are empty. If all
 * ranks lend whose blocks do not fit, slices may be longer than a place: the other ranks' blocks are short.
 */
#define CELLS_OFFSETS_BYTES (CELLS_RANKS_MAX * sizeof(uint32_t))

_Static_assert(CELLS_OFFSETS_BYTES % CELLS_LINE_BYTES == 0, "the parts begin at a line");
static inline size_t cells_table_bytes(uint32_t rank_count)
{
    return 3 * (size_t)rank_count * sizeof(uint64_t);
}

static inline uint64_t *cells_table(struct cells_shared *shared, uint32_t rank_count, uint32_t rank,
                                    uint64_t seq)
{
    return (uint64_t *)(void *)cells_data(shared, rank_count, rank, seq, CELLS_DATA_MAX_BYTES);
}

/* The operation may go through cells, by the terms alone: then so says every rank that has the same terms.
 * With a count for each rank, it may if the data fit, too, or in slices. */
/* An operation on one buffer, as it is: no message, bucket or compression. */
bool cells_are_plain(const struct op_terms *terms);
bool cells_take(const struct op_terms *terms, uint32_t rank_count);
/* The same of an operation in slices, without a count for each rank. */
bool cells_take_slices(const struct op_terms *terms, uint32_t rank_count);

/* How the vector, or each block, is cut. The last slice may be shorter. */
struct cells_cut {
    uint64_t slice_elements;
    uint64_t slice_count;
    uint32_t steps; /* of each slice: the numbers that it takes */
};
struct cells_cut cells_cut(const struct op_terms *terms, uint32_t rank_count);
/* The same with slices of so many bytes: of the vector, or of all blocks together. */
struct cells_cut cells_cut_into(const struct op_terms *terms, uint32_t rank_count, uint64_t slice_bytes);
/* Where the rank's slice of this number lies; its header is there. */
static inline const unsigned char *cells_slice_at(struct cells_shared *shared, uint32_t rank_count,
                                                  uint32_t rank, uint64_t seq)
{
    return cells_place(shared, rank_count, rank, cells_header(shared, rank, seq)->data[0]);
}

/* Takes an offer of this rank back, before its program changes the memory. */
void cells_withdraw_offer(struct cells_shared *shared, uint32_t rank, uint32_t index);
/* Copies an offer, and returns its stamp. Returns 0 if there is none, or if it changes meanwhile. */
uint64_t cells_read_offer(struct cells_shared *shared, uint32_t rank, uint32_t index,
                          struct cells_offer *out);
/* Whether the offer is the same still: then what was read of its memory was the rank's. */
bool cells_offer_holds(struct cells_shared *shared, uint32_t rank, uint32_t index, uint64_t stamp);

/* What the rank noted with its slice. */
static inline struct cells_note cells_note_of(struct cells_shared *shared, uint32_t rank, uint64_t seq)
{
    struct cells_note note;
    memcpy(&note, cells_header(shared, rank, seq)->data + CELLS_NOTE_AT, sizeof note);
    return note;
}

/* The most that any rank publishes; without a count for each rank. */
uint64_t cells_most_published_bytes(const struct op_terms *terms, uint32_t rank_count);
/* How many operations may be open beside one with these terms: CELLS_WINDOW, or fewer if its data are long.
 * For all ranks alike. */
uint32_t cells_window(const struct op_terms *terms, uint32_t rank_count);
/* The data that a rank publishes for it; without a count for each rank. */
size_t cells_published_bytes(const struct op_terms *terms, uint32_t rank_count, uint32_t rank);

/* --- A rank --- */

/* Whether cells_publish needs a fence in this process (proto/process_barrier.h). It joins if it can. */
bool cells_need_fences(struct cells_shared *shared);
/* Tell the other ranks that this rank takes part: the cell is complete, or commd has the operation. */
void cells_publish(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                   bool needs_fence);
void cells_hand_over(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq);

enum cells_way {
    CELLS_WAIT,    /* a rank has not taken part yet, or commd decides */
    CELLS_DIRECT,  /* all ranks have published it alike: the result can be taken */
    CELLS_BY_COMMD /* commd must carry it out */
};
/* Whether cells_look may say something else than CELLS_WAIT. Reads only words that are atomic, so a thread
 * may call it while another one of its rank goes on. */
bool cells_have_news(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq);
/* Whether the root has published the operation with these terms. */
bool cells_root_is_there(struct cells_shared *shared, uint64_t seq, const struct op_terms *terms);
/* What becomes of an operation that the rank has published with these terms, and that has not ended for it.
 * It does not read the rank's own cell: another rank's look has taken that line out of this processor's
 * cache. */
enum cells_way cells_look(struct cells_shared *shared, uint32_t rank_count, uint32_t rank, uint64_t seq,
                          const struct op_terms *own);

/* Of an operation with a count for each rank, which is CELLS_DIRECT: how many slices of at most so many bytes
 * of each rank follow. 0: the blocks are in the cells. */
uint64_t cells_slices_of_blocks(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                                const struct op_terms *terms, uint64_t slice_bytes);
/* The same: whether this rank's blocks fit into its cell. */
bool cells_blocks_of_fit(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                         const struct op_terms *terms, uint32_t rank);
/* The same: where the rank's block for `to` lies in its process. */
static inline uint64_t cells_block_at(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                                      uint32_t rank, uint32_t to)
{
    return *(const volatile uint64_t *)&cells_table(shared, rank_count, rank, seq)[2 * rank_count + to];
}
/* Of a block of so many elements: where its part in the slice `index`, from 0 on, of `count` begins. */
static inline uint64_t cells_part_begin(uint64_t elements, uint64_t index, uint64_t count)
{
    uint64_t left = elements % count;
    return elements / count * index + (index < left ? index : left);
}
/* The same: the elements of the whole, as commd counts them. */
uint64_t cells_elements(struct cells_shared *shared, uint32_t rank_count, uint64_t seq,
                        const struct op_terms *terms);

/* Before sleeping: from here on others ring this rank's bell. Returns the bell's value, for cells_sleep. Look
 * again after it. */
uint32_t cells_lie_down(struct cells_shared *shared, uint32_t rank);
/* Sleeps until the bell rings, at most so long. */
void cells_sleep(struct cells_shared *shared, uint32_t rank, uint32_t bell, uint64_t timeout_ns);
void cells_get_up(struct cells_shared *shared, uint32_t rank);
/* Rings the rank's bell if it sleeps. Call it after a fence. */
void cells_wake(struct cells_shared *shared, uint32_t rank);
/* The same after a message was put into its ring. */
void cells_wake_receiver(struct cells_shared *shared, uint32_t rank);

/* --- commd --- */

/*
 * Says whether ranks may do without fences, before any rank has the segment: with_barriers, and the kernel
 * has them. Between nodes they may not: ranks and commd sleep in every operation there, and a barrier costs
 * each sleeper some microseconds.
 */
void cells_begin(struct cells_shared *shared, bool with_barriers);
/* The last operation in which the rank has taken part. */
uint64_t cells_head(struct cells_shared *shared, uint32_t rank);
/* The steps of cells_retire: it decides, copies how far a rank has come, and lets all go on. */
void cells_decide(struct cells_shared *shared);
void cells_copy_head(struct cells_shared *shared, uint32_t rank);
void cells_end(struct cells_shared *shared, uint32_t rank_count);
/* Ends the use of the segment, and wakes all who sleep. To be called while it is open. */
void cells_retire(struct cells_shared *shared, uint32_t rank_count);
/* Opens it again, for operations from this number on. No rank has published one of them, nor waits for one of
 * those in `heads`. */
void cells_reopen(struct cells_shared *shared, uint64_t from);

#endif
