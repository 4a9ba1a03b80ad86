#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
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

/* --- The owner --- */

/* Whether nobody writes to this rank's input before all ranks have read it. */
static bool keeps_its_input(const struct client_cells *cells, const struct client_call *call)
{
    size_t block_bytes = (size_t)call->terms.count_elements * dtype_size_bytes(call->terms.dtype);
    bool in_two_steps = cells_cut(&call->terms, cells->rank_count).steps > 1;
    bool is_own_block = call->terms.kind == OP_KIND_ALL_GATHER &&
                        call->input.at == (unsigned char *)call->output.at + cells->rank * block_bytes;
    return in_two_steps || is_own_block || !call_reads_output_of(call, call);
}

/* Its memory, if it may be lent; otherwise null. */
static struct client_memory *find_lendable(const struct comm_comm *comm, const struct client_call *call)
{
    const struct client_cells *cells = comm->cells;
    bool has_data = call->terms.has_layouts == 0 && call->input.at != NULL &&
                    cells_published_bytes(&call->terms, cells->rank_count, cells->rank) > 0;
    if (!has_data || !keeps_its_input(cells, call)) {
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
    while (offer < CELLS_OFFERS && cells->lending.memory_ids[offer] != memory->id) {
        offer++;
    }
    return offer;
}

/* One that is free, or whose memory was not used for long; otherwise CELLS_OFFERS. */
static uint32_t find_room(const struct cells_lending *lending)
{
    uint32_t offer = 0;
    while (offer < CELLS_OFFERS && lending->memory_ids[offer] != 0 &&
           lending->operations - lending->used[offer] < UNUSED_OPERATIONS) {
        offer++;
    }
    return offer;
}

/* Returns CELLS_OFFERS if it cannot. */
static uint32_t make_offer(struct client_cells *cells, struct client_memory *memory)
{
    struct cells_lending *lending = &cells->lending;
    uint32_t offer = find_room(lending);
    struct stat file;
    if (offer == CELLS_OFFERS || fstat(memory->fd, &file) != 0) {
        return CELLS_OFFERS;
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

void cells_lend_begin(struct comm_comm *comm, const struct client_call *call)
{
    struct cells_lending *lending = &comm->cells->lending;
    struct cells_note *note = &lending->note;
    memset(note, 0, sizeof *note);
    struct client_memory *memory = find_lendable(comm, call);
    if (memory == NULL) {
        return;
    }
    uint32_t offer = offer_of(comm->cells, memory);
    bool is_known = offer < CELLS_OFFERS;
    lending->operations++;
    if (!is_known && ++memory->lendable_uses >= OFFERED_USES) {
        offer = make_offer(comm->cells, memory);
    }
    if (offer == CELLS_OFFERS) {
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
    cells->lending.memory_ids[offer] = 0;
}

void cells_lend_withdraw(struct comm_comm *comm, const struct cells_slot *slot)
{
    bool lends = slot->step_count > 0 && slot->call.terms.has_layouts == 0 && cells_lends(comm->cells);
    if (lends) {
        withdraw(comm->cells, comm->cells->lending.note.lent - 1u);
    }
}

void cells_lend_forget(struct comm_client *client, const struct client_memory *memory)
{
    for (struct comm_comm *comm = client->comms; comm != NULL && memory->offered; comm = comm->next) {
        uint32_t offer =
            comm->cells != NULL && comm->cells->shared != NULL ? offer_of(comm->cells, memory) : CELLS_OFFERS;
        if (offer < CELLS_OFFERS) {
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

/* Tries each offer once. */
static void take_offer(struct comm_comm *comm, uint32_t rank, uint32_t index)
{
    struct client_cells *cells = comm->cells;
    struct cells_loan *loan = &cells->lending.loans[rank][index];
    struct cells_offer offer;
    uint64_t stamp = cells_read_offer(cells->shared, rank, index, &offer);
    if (stamp == 0 || stamp == loan->stamp || offer.size_bytes == 0 || offer.size_bytes > STAGING_MAX_BYTES) {
        return;
    }
    begin_loan(comm->client, loan, &offer, stamp);
    DEBUG("rank %u %s memory of rank %u where it is", cells->rank,
          loan->base != NULL ? "reads" : "cannot read", rank);
    if (loan->base != NULL) {
        atomic_store_explicit(&cells->shared->ranks[cells->rank].mapped[rank][index], stamp,
                              memory_order_release);
    }
}

void cells_lend_map(struct comm_comm *comm, uint64_t seq)
{
    const struct client_cells *cells = comm->cells;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        struct cells_note note = cells_note_of(cells->shared, rank, seq);
        bool is_free = rank != cells->rank && cells->lending.lent[rank] == NULL; /* or it is read still */
        if (is_free && note.offered > 0 && note.offered <= CELLS_OFFERS) {
            take_offer(comm, rank, note.offered - 1u);
        }
    }
}

/* Null if the note makes no sense: then what lies in the cell is taken for the rank's data. */
static const unsigned char *find(const struct client_cells *cells, uint32_t rank,
                                 const struct cells_note *note, uint64_t size_bytes)
{
    if (note->lent > CELLS_OFFERS) {
        return NULL;
    }
    const struct cells_loan *loan = &cells->lending.loans[rank][note->lent - 1u];
    bool fits = loan->base != NULL && note->offset_bytes <= loan->size_bytes &&
                size_bytes <= loan->size_bytes - note->offset_bytes;
    return fits ? loan->base + note->offset_bytes : NULL;
}

bool cells_lend_look(struct client_cells *cells, const struct cells_slot *slot)
{
    const struct op_terms *terms = &slot->call.terms;
    uint32_t blocks = op_kind_has_input_blocks(terms->kind) ? cells->rank_count : 1;
    uint64_t size_bytes = terms->count_elements * dtype_size_bytes(terms->dtype) * blocks;
    bool any = cells_lends(cells);
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        struct cells_note note = cells_note_of(cells->shared, rank, slot->seq);
        bool lends = rank != cells->rank && note.lent != 0;
        cells->lending.lent[rank] = lends ? find(cells, rank, &note, size_bytes) : NULL;
        cells->lending.lent_by[rank] = lends ? (uint8_t)(note.lent - 1u) : 0;
        any = any || lends;
    }
    return any;
}

bool cells_lend_holds(struct client_cells *cells)
{
    bool holds = true;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        if (cells->lending.lent[rank] != NULL) {
            uint32_t index = cells->lending.lent_by[rank];
            holds = holds &&
                    cells_offer_holds(cells->shared, rank, index, cells->lending.loans[rank][index].stamp);
        }
    }
    return holds;
}

void cells_lend_end(struct comm_comm *comm)
{
    struct client_cells *cells = comm->cells;
    for (uint32_t rank = 0; rank < cells->rank_count; rank++) {
        for (uint32_t i = 0; i < CELLS_OFFERS; i++) {
            end_loan(comm->client, &cells->lending.loans[rank][i]);
        }
    }
}
