#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "client/lib/cells_internal.h"

/* Operations in slices whose data the other ranks read where they are (proto/cells.h). */

/* Operations in a row whose memory the others do not map. After so many, they probably cannot. */
#define IN_VAIN_MAX 4u

/* Mappings of a client. The kernel gives a process 65,530. */
#define LOANS_MAX 1024u

/* Memory that was not used in so many operations gives its place to other memory. */
#define UNUSED_OPERATIONS 256u

/* Memory that is used once and freed is not worth the others' mappings. */
#define OFFERED_USES 2u

/* Of all blocks together. */
#define BY_PROCESS_MAX_BYTES (16u << 20)
/* The same if each rank reduces its part. */
#define BY_PROCESS_REDUCED_MAX_BYTES (4u << 20)
/* If two ranks read the whole vector, or one of them does. */
#define BY_PROCESS_WHOLE_MAX_BYTES (1u << 20)

void cells_lend_open(struct client_cells *cells)
{
    uint64_t challenge;
    if (!cells_is_between_nodes(cells) && cells_remote_is_allowed() &&
        getrandom(&challenge, sizeof challenge, GRND_NONBLOCK) == sizeof challenge) {
        cells->lending.remote.challenge = challenge;
        atomic_store_explicit(&cells->shared->ranks[cells->rank].challenge, challenge, memory_order_relaxed);
    }
}

/* --- The owner --- */

/* Whether the only part of the rank's input that is written to is its own part of the result, which is the
 * same: nobody copies it. */
static bool is_own_part(const struct client_cells *cells, const struct client_call *call)
{
    enum op_kind kind = call->terms.kind;
    size_t block_bytes = (size_t)call->terms.count_elements * dtype_size_bytes(call->terms.dtype);
    size_t in = op_kind_has_input_blocks(kind) ? cells->rank * block_bytes : 0;
    size_t out = op_kind_has_output_blocks(kind) ? cells->rank * block_bytes : 0;
    return !op_kind_reduces(kind) && kind != OP_KIND_ALL_TO_ALL && call->output.at != NULL &&
           (unsigned char *)call->input.at + in == (unsigned char *)call->output.at + out;
}

/* Whether others need data of this rank that are not in a cell. */
static bool has_data(const struct client_cells *cells, const struct client_call *call)
{
    bool are_long = call->terms.has_layouts != 0
                        ? !cells_blocks_fit(call, cells->rank_count)
                        : cells_published_bytes(&call->terms, cells->rank_count, cells->rank) > 0;
    return call->input.at != NULL && are_long;
}

/* Whether nobody writes to this rank's input before all ranks have read it. */
static bool keeps_its_input(const struct client_cells *cells, const struct client_call *call)
{
    bool has_counts = call->terms.has_layouts != 0;
    bool in_two_steps = !has_counts && cells_cut(&call->terms, cells->rank_count).steps > 1;
    bool is_same = !has_counts && is_own_part(cells, call);
    return !has_data(cells, call) || in_two_steps || is_same || !call_reads_output_of(call, call);
}

/* Its memory, if it may be lent as a file; otherwise null. */
static struct client_memory *find_lendable(const struct comm_comm *comm, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    if (call->terms.has_layouts != 0 || !has_data(cells, call) || !keeps_its_input(cells, call)) {
        return NULL;
    }
    struct client_memory *memory =
        memory_find(comm->client, call->input.at, call_buffer_bytes(call, &call->input));
    return memory != NULL && memory->owned && memory->gpu == NULL && memory->has_fd ? memory : NULL;
}

bool cells_may_lend(const struct comm_comm *comm, const struct client_call *call)
{
    return comm->cells->lending.in_vain < IN_VAIN_MAX && find_lendable(comm, call) != NULL;
}

static uint32_t offer_of(const struct client_cells *cells, const struct client_memory *memory)
{
    uint32_t offer = 0;
    while (offer < CELLS_FILES && cells->lending.memory_ids[offer] != memory->id) {
        offer++;
    }
    return offer;
}

/* One that is free, or whose memory was not used for long; otherwise CELLS_FILES. */
static uint32_t find_room(const struct cells_lending *lending)
{
    uint32_t offer = 0;
    while (offer < CELLS_FILES && lending->memory_ids[offer] != 0 &&
           lending->operations - lending->used[offer] < UNUSED_OPERATIONS) {
        offer++;
    }
    return offer;
}

/* Returns CELLS_FILES if it cannot. */
static uint32_t make_offer(struct client_cells *cells, struct client_memory *memory)
{
    struct cells_lending *lending = &cells->lending;
    uint32_t offer = find_room(lending);
    struct stat file;
    if (offer == CELLS_FILES || fstat(memory->fd, &file) != 0) {
        return CELLS_FILES;
    }
    struct cells_offer *said = &cells->shared->ranks[cells->rank].offers[offer];
    atomic_store_explicit(&said->stamp, 0, memory_order_seq_cst);
    said->device = file.st_dev;
    said->inode = file.st_ino;
    said->size_bytes = memory->size_bytes;
    said->pid = (int32_t)getpid();
    said->fd = memory->fd;
    atomic_store_explicit(&said->stamp, ++lending->last_stamp, memory_order_release);
    lending->memory_ids[offer] = memory->id;
    memory->offered = true;
    return offer;
}

static bool have_all_mapped(const struct client_cells *cells, uint32_t offer)
{
    uint64_t stamp =
        atomic_load_explicit(&cells->shared->ranks[cells->rank].offers[offer].stamp, memory_order_relaxed);
    bool all = true;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        _Atomic uint64_t *mapped = &cells->shared->ranks[rank].mapped[cells->rank][offer];
        all = all && (rank == cells->rank || atomic_load_explicit(mapped, memory_order_acquire) == stamp);
    }
    return all;
}

/* Offers the process. Returns false if it cannot: at first, other ranks may have no challenges yet. */
static bool offer_process(struct client_cells *cells)
{
    struct cells_lending *lending = &cells->lending;
    struct cells_offer *said = &cells->shared->ranks[cells->rank].offers[CELLS_OFFER_SELF];
    if (atomic_load_explicit(&said->stamp, memory_order_relaxed) != 0) {
        return true;
    }
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        lending->answers[rank] =
            atomic_load_explicit(&cells->shared->ranks[rank].challenge, memory_order_relaxed);
        if (lending->answers[rank] == 0) {
            return false;
        }
    }
    said->answers_at = (uint64_t)(uintptr_t)lending->answers;
    said->pid = (int32_t)getpid();
    atomic_store_explicit(&said->stamp, ++lending->last_stamp, memory_order_release);
    return true;
}

/* Of all ranks' data; with a count for each rank, of this rank's. */
static uint64_t size_of(const struct client_cells *cells, const struct client_call *call)
{
    return call->terms.has_layouts != 0 ? call_buffer_bytes(call, &call->input)
                                        : cells_size_bytes(cells, &call->terms);
}

/*
 * Whether reading from the process may pay. The kernel counts references of each page. So it does not pay if
 * all ranks read the same data, or one rank reads all of them: copies to a place are shared work, and the
 * slices overlap. The limits are measured, on one machine with two processors. Within them, the ranks try
 * both ways (cells_trial.h).
 */
static bool may_pay_by_process(const struct client_cells *cells, const struct client_call *call)
{
    const struct op_terms *terms = &call->terms;
    bool has_parts = op_kind_has_input_blocks(terms->kind) || terms->kind == OP_KIND_ALL_GATHER;
    uint64_t size_bytes = size_of(cells, call);
    uint64_t most = !has_parts                     ? BY_PROCESS_WHOLE_MAX_BYTES
                    : op_kind_reduces(terms->kind) ? BY_PROCESS_REDUCED_MAX_BYTES
                                                   : BY_PROCESS_MAX_BYTES;
    return (has_parts || cells->rank_count == 2) && size_bytes <= most;
}

/* Whether all pages are in memory. Otherwise a reader would wait for a page in the kernel, past its deadline:
 * for swap, a file system, or a program that provides pages (userfaultfd). */
static bool is_resident(const void *at, size_t size_bytes)
{
    unsigned char pages[BY_PROCESS_MAX_BYTES / CELLS_PAGE_BYTES + 2];
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)at % page_bytes;
    size_t count = (before + size_bytes + page_bytes - 1) / page_bytes;
    bool known = count <= sizeof pages &&
                 mincore((unsigned char *)(uintptr_t)at - before, count * page_bytes, pages) == 0;
    size_t i = 0;
    while (known && i < count && (pages[i] & 1) != 0) {
        i++;
    }
    return known && i == count;
}

/* The input has no file. pays: or the way is on trial. */
static void begin_by_process(struct comm_comm *comm, const struct client_call *call, bool pays)
{
    struct cells_lending *lending = &comm->cells->lending;
    if (lending->refused >= IN_VAIN_MAX || !has_data(comm->cells, call) || lending->note.keeps == 0 ||
        !may_pay_by_process(comm->cells, call) || !offer_process(comm->cells)) {
        return;
    }
    if (!have_all_mapped(comm->cells, CELLS_OFFER_SELF)) {
        lending->refused++;
        lending->note.offered = CELLS_OFFER_SELF + 1u;
    } else if (pays && is_resident(call->input.at, call_buffer_bytes(call, &call->input))) {
        lending->note.lent = CELLS_OFFER_SELF + 1u;
        lending->note.offset_bytes = (uint64_t)(uintptr_t)call->input.at;
    }
}

void cells_lend_begin(struct comm_comm *comm, const struct client_call *call)
{
    struct cells_lending *lending = &comm->cells->lending;
    struct cells_note *note = &lending->note;
    memset(note, 0, sizeof *note);
    lending->by_all = false;
    note->keeps = keeps_its_input(comm->cells, call) ? 1 : 0;
    bool pays = cells_trial_begin(&lending->trials, &call->terms, size_of(comm->cells, call), note);
    struct client_memory *memory = find_lendable(comm, call);
    if (memory == NULL) {
        begin_by_process(comm, call, pays);
        return;
    }
    uint32_t offer = offer_of(comm->cells, memory);
    bool is_known = offer < CELLS_FILES;
    lending->operations++;
    if (!is_known && ++memory->lendable_uses >= OFFERED_USES) {
        offer = make_offer(comm->cells, memory);
    }
    if (offer == CELLS_FILES) {
        return;
    }
    lending->used[offer] = lending->operations;
    if (is_known && have_all_mapped(comm->cells, offer)) {
        lending->in_vain = 0;
        note->lent = (uint8_t)(offer + 1);
        note->offset_bytes = memory_offset_bytes(memory, call->input.at);
    } else {
        lending->in_vain += is_known ? 1 : 0;
        note->offered = (uint8_t)(offer + 1);
    }
}

static void withdraw(struct client_cells *cells, uint32_t offer)
{
    cells_withdraw_offer(cells->shared, cells->rank, offer);
    if (offer < CELLS_FILES) {
        cells->lending.memory_ids[offer] = 0;
    }
}

void cells_lend_withdraw(struct comm_comm *comm, const struct cells_slot *slot)
{
    bool may_lend = slot->step_count > 0 || slot->call.terms.has_layouts != 0;
    bool lends = may_lend && cells_lends(comm->cells);
    if (lends) {
        withdraw(comm->cells, comm->cells->lending.note.lent - 1u);
    }
}

void cells_lend_forget(struct comm_client *client, const struct client_memory *memory)
{
    for (struct comm_comm *comm = client->comms; comm != NULL && memory->offered; comm = comm->next) {
        uint32_t offer =
            comm->cells != NULL && comm->cells->shared != NULL ? offer_of(comm->cells, memory) : CELLS_FILES;
        if (offer < CELLS_FILES) {
            withdraw(comm->cells, offer);
        }
    }
}

/* --- The others --- */

/* If there is no huge page left for a page that its owner has removed, the kernel ends whoever reads it. */
static bool is_of_small_pages(int fd)
{
    struct statfs system;
    return fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
}

/* Opens the file that the offer means, and no other one. Returns -1 if it cannot. */
static int open_file(const struct cells_offer *offer)
{
    char path[64];
    struct stat file;
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", offer->pid, offer->fd);
    int found = open(path, O_PATH | O_CLOEXEC); /* does nothing to it, whatever it is */
    if (found < 0) {
        return -1;
    }
    int fd = -1;
    if (fstat(found, &file) == 0 && S_ISREG(file.st_mode) && file.st_dev == offer->device &&
        file.st_ino == offer->inode && is_of_small_pages(found)) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", found);
        fd = open(path, O_RDONLY | O_CLOEXEC);
    }
    (void)close(found);
    return fd;
}

static unsigned char *map(const struct cells_offer *offer)
{
    int fd = open_file(offer);
    void *memory = MAP_FAILED;
    if (fd >= 0 && memory_is_fixed(fd, (size_t)offer->size_bytes)) {
        memory = mmap(NULL, (size_t)offer->size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    if (memory == MAP_FAILED) {
        return NULL;
    }
    (void)madvise(memory, (size_t)offer->size_bytes, MADV_DONTFORK);
    (void)madvise(memory, (size_t)offer->size_bytes, MADV_DONTDUMP);
    return memory;
}

static void end_loan(struct comm_client *client, struct cells_loan *loan)
{
    if (loan->base != NULL) {
        (void)munmap(loan->base, loan->size_bytes);
        client->cells.loans--;
    }
    *loan = (struct cells_loan){.stamp = 0};
}

static void begin_loan(struct comm_client *client, struct cells_loan *loan, const struct cells_offer *offer,
                       uint64_t stamp)
{
    end_loan(client, loan);
    loan->stamp = stamp;
    loan->size_bytes = (size_t)offer->size_bytes;
    if (++client->cells.loans <= LOANS_MAX) {
        loan->base = map(offer);
    }
    client->cells.loans -= loan->base == NULL ? 1 : 0;
}

/* Whether this process can read the one that is offered. */
static bool try_process(struct client_cells *cells, struct cells_loan *loan, const struct cells_offer *offer)
{
    uint64_t answer_at = offer->answers_at + cells->rank * sizeof(uint64_t);
    bool may = cells->lending.remote.challenge != 0 &&
               cells_remote_prepare(&cells->lending.remote, cells->rank_count) &&
               cells_remote_has(offer->pid, cells->lending.remote.challenge, answer_at);
    loan->pid = may ? offer->pid : 0;
    loan->answer_at = answer_at;
    return may;
}

/* Tries each offer once. */
static void take_offer(struct comm_comm *comm, uint32_t rank, uint32_t index)
{
    struct client_cells *cells = comm->cells;
    struct cells_loan *loan = &cells->lending.loans[rank][index];
    struct cells_offer offer;
    bool is_file = index < CELLS_FILES, can_read;
    uint64_t stamp = cells_read_offer(cells->shared, rank, index, &offer);
    if (stamp == 0 || stamp == loan->stamp ||
        (is_file && (offer.size_bytes == 0 || offer.size_bytes > STAGING_MAX_BYTES))) {
        return;
    }
    if (is_file) {
        begin_loan(comm->client, loan, &offer, stamp);
        can_read = loan->base != NULL;
    } else {
        loan->stamp = stamp;
        can_read = try_process(cells, loan, &offer);
    }
    DEBUG("rank %u %s %s of rank %u", cells->rank, can_read ? "reads" : "cannot read",
          is_file ? "memory" : "the process", rank);
    if (can_read) {
        atomic_store_explicit(&cells->shared->ranks[cells->rank].mapped[rank][index], stamp,
                              memory_order_release);
    }
}

/* Whether the rank's data are read where they are. */
static bool is_read(const struct client_cells *cells, uint32_t rank)
{
    return cells->lending.lent[rank] != NULL || cells->lending.remote.pids[rank] != 0;
}

void cells_lend_map(struct comm_comm *comm, uint64_t seq)
{
    const struct client_cells *cells = comm->cells;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        struct cells_note note = cells_note_of(cells->shared, rank, seq);
        bool is_free = rank != cells->rank && !is_read(cells, rank); /* or it is read still */
        if (is_free && note.offered > 0 && note.offered <= CELLS_OFFERS) {
            take_offer(comm, rank, note.offered - 1u);
        }
    }
}

/* Null if it lends no file, or the note makes no sense. */
static const unsigned char *find(const struct client_cells *cells, uint32_t rank,
                                 const struct cells_note *note, uint64_t size_bytes)
{
    if (note->lent == 0 || note->lent > CELLS_FILES) {
        return NULL;
    }
    const struct cells_loan *loan = &cells->lending.loans[rank][note->lent - 1u];
    bool fits = loan->base != NULL && note->offset_bytes <= loan->size_bytes &&
                size_bytes <= loan->size_bytes - note->offset_bytes;
    return fits ? loan->base + note->offset_bytes : NULL;
}

/* The same of data that are in the rank's process. */
static void find_in_process(struct client_cells *cells, uint32_t rank, const struct cells_note *note)
{
    struct cells_remote *remote = &cells->lending.remote;
    const struct cells_loan *loan = &cells->lending.loans[rank][CELLS_OFFER_SELF];
    bool lends = note->lent == CELLS_OFFER_SELF + 1u;
    remote->pids[rank] = lends ? loan->pid : 0;
    remote->answers_at[rank] = loan->answer_at;
    remote->at[rank] = note->offset_bytes;
    remote->any = remote->any || remote->pids[rank] != 0;
}

/* If the rank lends what this process cannot find, nothing is read: its place has no data, and slices may be
 * longer than that. */
static void find_data(struct client_cells *cells, uint32_t rank, const struct cells_note *note,
                      uint64_t size_bytes)
{
    struct cells_lending *lending = &cells->lending;
    lending->lent[rank] = find(cells, rank, note, size_bytes);
    lending->lent_by[rank] = note->lent != 0 ? (uint8_t)(note->lent - 1u) : 0;
    find_in_process(cells, rank, note);
    lending->remote.failed = lending->remote.failed || (note->lent != 0 && !is_read(cells, rank));
}

static void begin_look(struct client_cells *cells)
{
    struct cells_lending *lending = &cells->lending;
    lending->by_process = lending->remote.any = lending->remote.failed = false;
    lending->by_all = true;
    cells_trial_listen(&lending->trials, cells->crowded);
}

bool cells_lend_look(struct client_cells *cells, const struct cells_slot *slot, bool *mixes)
{
    struct cells_lending *lending = &cells->lending;
    const struct op_terms *terms = &slot->call.terms;
    uint32_t blocks = op_kind_has_input_blocks(terms->kind) ? cells->rank_count : 1;
    uint64_t size_bytes = terms->count_elements * dtype_size_bytes(terms->dtype) * blocks;
    bool any = false, all_keep = true;
    begin_look(cells);
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        bool is_own = rank == cells->rank;
        struct cells_note note = is_own ? lending->note : cells_note_of(cells->shared, rank, slot->seq);
        cells_trial_hear(&lending->trials, &note);
        any = any || note.lent != 0;
        lending->by_process = lending->by_process || note.lent == CELLS_OFFER_SELF + 1u;
        all_keep = all_keep && note.keeps == 1;
        bool has_none = cells_published_bytes(terms, cells->rank_count, rank) == 0;
        lending->by_all = lending->by_all && (has_none || note.lent != 0);
        note.lent = is_own ? 0 : note.lent;
        find_data(cells, rank, &note, size_bytes);
    }
    cells_trial_count(&lending->trials);
    *mixes = lending->by_process && !all_keep;
    return any;
}

bool cells_lend_look_at_tables(struct client_cells *cells, const struct cells_slot *slot, bool *mixes)
{
    struct cells_lending *lending = &cells->lending;
    bool all_keep = true;
    begin_look(cells);
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        bool is_own = rank == cells->rank;
        struct cells_note note = is_own ? lending->note : cells_note_of(cells->shared, rank, slot->seq);
        bool lends = note.lent == CELLS_OFFER_SELF + 1u;
        cells_trial_hear(&lending->trials, &note);
        lending->by_process = lending->by_process || lends;
        all_keep = all_keep && note.keeps == 1;
        lending->by_all =
            lending->by_all && (lends || cells_blocks_of_fit(cells->shared, cells->rank_count, slot->seq,
                                                             &slot->call.terms, rank));
        note.lent = is_own ? 0 : note.lent;
        note.offset_bytes = cells_block_at(cells->shared, cells->rank_count, slot->seq, rank, cells->rank);
        lending->lent[rank] = NULL;
        lending->lent_by[rank] = CELLS_OFFER_SELF;
        find_in_process(cells, rank, &note);
        bool is_missing = lends && !is_own && !is_read(cells, rank);
        lending->remote.failed = lending->remote.failed || is_missing;
    }
    *mixes = lending->by_process && !all_keep;
    return lending->by_process;
}

bool cells_lend_holds(struct client_cells *cells)
{
    bool holds = !cells->lending.remote.failed;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        if (is_read(cells, rank)) {
            uint32_t index = cells->lending.lent_by[rank];
            holds = holds &&
                    cells_offer_holds(cells->shared, rank, index, cells->lending.loans[rank][index].stamp);
        }
    }
    return holds;
}

void cells_lend_ended_well(struct client_cells *cells)
{
    struct cells_lending *lending = &cells->lending;
    lending->refused = lending->note.lent == CELLS_OFFER_SELF + 1u ? 0 : lending->refused;
    if (lending->by_process || !lending->by_all) {
        cells_trial_end(&lending->trials, lending->by_process ? CELLS_BY_PROCESS : CELLS_BY_PLACE);
    }
}

void cells_lend_returned(struct client_cells *cells)
{
    struct cells_lending *lending = &cells->lending;
    lending->refused += lending->note.lent == CELLS_OFFER_SELF + 1u ? 1 : 0;
    for (uint32_t rank = 0; lending->remote.failed && rank < cells->rank_count; rank++) {
        if (lending->remote.pids[rank] != 0) {
            DEBUG("rank %u could not read the process of rank %u, or of another one: no more", cells->rank,
                  rank);
            lending->loans[rank][CELLS_OFFER_SELF].pid = 0;
            atomic_store_explicit(&cells->shared->ranks[cells->rank].mapped[rank][CELLS_OFFER_SELF], 0,
                                  memory_order_release);
        }
    }
}

void cells_lend_end(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        for (uint32_t i = 0; i < CELLS_OFFERS; i++) {
            end_loan(comm->client, &cells->lending.loans[rank][i]);
        }
    }
    cells_remote_free(&cells->lending.remote);
}
