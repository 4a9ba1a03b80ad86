#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/comm/cells_internal.h"
#include "daemon/comm/cells_tally.h"
#include "daemon/comm/comms_internal.h"
#include "daemon/comm/node_cells.h"
#include "proto/cells.h"

static bool all_take(const struct communicator *comm)
{
    const struct comms_member *member;
    bool between_nodes = comm->node_count > 1;
    bool all = between_nodes ? comm->local_count >= 1 && comm->local_count <= NODE_CELLS_RANKS_MAX
                             : comm->local_count == comm->terms.size && comm->local_count >= 2 &&
                                   comm->local_count <= CELLS_RANKS_MAX;
    DL_FOREACH(comm->members, member)
    {
        all = all && (member->refused || (between_nodes ? member->takes_node_cells : member->takes_cells));
    }
    return all;
}

static enum status cells_map(struct comms_cells *cells, struct error *error)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    size_t file_bytes =
        cells->between_nodes ? node_cells_bytes(cells->rank_count) : cells_bytes(cells->rank_count);
    size_t size_bytes = cells->between_nodes ? file_bytes : cells_control_bytes(cells->rank_count);
    cells->fd = memfd_create("commd-cells", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (cells->fd < 0 || ftruncate(cells->fd, (off_t)file_bytes) != 0 ||
        fcntl(cells->fd, F_ADD_SEALS, seals) != 0) {
        return error_set_errno(error, errno, "memory for cells");
    }
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cells->fd, 0);
    if (memory == MAP_FAILED) {
        return error_set_errno(error, errno, "memory for cells");
    }
    cells->shared = memory;
    cells_begin(cells->shared, !cells->between_nodes);
    cells->mapped_bytes = size_bytes;
    (void)madvise(memory, size_bytes, MADV_DONTDUMP); /* clients' data do not belong in a core dump */
    return STATUS_OK;
}

static void close_fd(struct communicator *comm)
{
    if (comm->cells->fd >= 0) {
        (void)close(comm->cells->fd);
        comm->cells->fd = -1;
        budget_release(comm->account, BUDGET_DESCRIPTORS, 1);
    }
}

/* What it costs commd. Between nodes these are inputs and outputs, too. */
static uint64_t memory_bytes(const struct communicator *comm)
{
    uint32_t rank_count = comm->local_count;
    return comm->node_count > 1 ? cells_control_bytes(rank_count + 1) +
                                      2 * (uint64_t)rank_count * CELLS_LONG_DEPTH * NODE_CELLS_DATA_MAX_BYTES
                                : cells_control_bytes(rank_count) + cells_tally_size_bytes(rank_count);
}

static enum status make_tally(struct communicator *comm, struct error *error)
{
    if (comm->cells->between_nodes) {
        return STATUS_OK;
    }
    comm->cells->tally = cells_tally_new(comm->local_count, comm->comms->now_ns);
    return comm->cells->tally != NULL ? STATUS_OK : error_set(error, STATUS_NO_MEMORY, "no memory");
}

void comms_cells_make(struct communicator *comm)
{
    struct error error;
    if (!all_take(comm) || communicator_charge(comm, memory_bytes(comm), &error) != STATUS_OK ||
        budget_charge(comm->account, BUDGET_DESCRIPTORS, 1, &error) != STATUS_OK) {
        return; /* it goes on without */
    }
    comm->cells = calloc(1, sizeof *comm->cells);
    if (comm->cells == NULL) {
        budget_release(comm->account, BUDGET_DESCRIPTORS, 1);
        return;
    }
    comm->cells->rank_count = comm->local_count;
    comm->cells->fd = -1;
    comm->cells->between_nodes = comm->node_count > 1;
    if (make_tally(comm, &error) != STATUS_OK || cells_map(comm->cells, &error) != STATUS_OK) {
        log_debug("communicator \"%s\" has no cells: %s", comm->name, error.text);
        if (comm->cells->fd < 0) {
            budget_release(comm->account, BUDGET_DESCRIPTORS, 1);
        }
        comms_cells_free(comm);
        return;
    }
    if (comm->cells->between_nodes) {
        comm->cells->node = (struct node_cells){
            .shared = comm->cells->shared, .local_count = comm->local_count, .rank_count = comm->terms.size};
        comms_node_cells_begin(comm, comm->comms->now_ns);
    }
}

static uint64_t sum_of_ends(const struct comms_cells *cells)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < cells->rank_count; i++) {
        sum += cells_tally_completed(cells->tally, i);
    }
    return sum;
}

/* Brings the totals up to date. */
static void read_counts(struct communicator *comm, uint64_t now_ns)
{
    struct comms_cells *cells = comm->cells;
    struct comms_totals *totals = &comm->comms->totals;
    if (cells == NULL || cells->tally == NULL || cells->shared == NULL || cells->read_ns == now_ns) {
        return;
    }
    uint64_t ops = cells_tally_ops(cells->tally), ends = sum_of_ends(cells);
    cells->read_ns = now_ns;
    cells_tally_read(cells->tally, cells->shared, now_ns, &totals->ops);
    totals->ops_in_cells += cells_tally_ops(cells->tally) - ops;
    totals->ends_in_cells += sum_of_ends(cells) - ends;
}

void comms_read_cells(struct comms *comms, uint64_t now_ns)
{
    struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        read_counts(comm, now_ns);
    }
}

void comms_cells_free(struct communicator *comm)
{
    if (comm->cells != NULL) {
        if (comm->cells->shared != NULL) {
            comms_cells_end(comm); /* whoever sleeps there learns that commd ends */
            comms_node_cells_free(comm);
        }
        comm->cells->read_ns = 0;
        read_counts(comm, comm->comms->now_ns);
        close_fd(comm);
        if (comm->cells->shared != NULL) {
            (void)munmap(comm->cells->shared, comm->cells->mapped_bytes);
        }
        free(comm->cells->tally);
        free(comm->cells);
        comm->cells = NULL;
    }
}

static void retire(struct communicator *comm)
{
    struct comms_cells *cells = comm->cells;
    if (!cells->retired && cells->between_nodes) {
        comms_node_cells_close(comm);
    } else if (!cells->retired) {
        cells_retire(cells->shared, cells->rank_count);
    }
    cells->retired = true;
}

void comms_cells_end(struct communicator *comm)
{
    if (comm->cells != NULL) {
        comm->cells->over = true;
        retire(comm);
    }
}

static uint64_t highest_head(const struct communicator *comm)
{
    uint64_t highest = 0;
    for (uint32_t i = 0; i < comm->local_count; i++) {
        uint64_t head = comm->locals[i] != NULL ? comms_cells_head(comm->locals[i]) : 0;
        highest = head > highest ? head : highest;
    }
    return highest;
}

void comms_cells_resume(struct communicator *comm)
{
    struct comms_cells *cells = comm->cells;
    bool all = cells != NULL && cells->retired && !cells->over;
    for (uint32_t i = 0; all && i < comm->local_count; i++) {
        all = comm->locals[i] != NULL && comm->locals[i]->posted_seq >= cells->resume_seq;
    }
    if (all) {
        /* A rank may be about to publish one more operation, because it saw the segment open. */
        cells->retired = false;
        cells_reopen(cells->shared, highest_head(comm) + CELLS_DEPTH);
    }
}

uint64_t comms_cells_head(const struct comms_member *member)
{
    const struct communicator *comm = member->comm;
    uint64_t head = comm->cells != NULL && member->local_index < comm->cells->rank_count
                        ? cells_head(comm->cells->shared, member->local_index)
                        : 0;
    bool makes_sense = head > member->posted_seq && head - member->posted_seq <= COMMS_SKIPPED_MAX;
    return makes_sense ? head : member->posted_seq;
}

bool comms_cells_are_pending(const struct comms_member *member)
{
    const struct communicator *comm = member->comm;
    bool used = comm->cells != NULL && !comm->cells->retired;
    uint64_t head = used ? comms_cells_head(member) : 0;
    if (used && comm->cells->between_nodes) {
        return head > member->posted_seq; /* commd has not taken it */
    }
    /* Operations that it gave to commd have ended, or are pending there. So have those before them. */
    used = used && head > member->posted_seq;
    for (uint32_t i = 0; used && i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comms_cells_head(comm->locals[i]) < head) {
            return true;
        }
    }
    return false;
}

bool comms_cells_any_pending(const struct communicator *comm)
{
    for (uint32_t i = 0; comm->cells != NULL && i < comm->local_count; i++) {
        if (comm->locals[i] != NULL && comms_cells_are_pending(comm->locals[i])) {
            return true;
        }
    }
    return false;
}

static bool has_not_come(const struct communicator_op *op, uint32_t local_index)
{
    const struct comms_member *member = op->comm->locals[local_index];
    return !op->posts[local_index].posted && (member == NULL || comms_cells_head(member) < op->seq);
}

bool comms_cells_is_missing(const struct communicator_op *op, uint32_t local_index)
{
    for (uint32_t i = 0; i < op->comm->local_count; i++) {
        if (has_not_come(op, i)) {
            return has_not_come(op, local_index);
        }
    }
    return !op->posts[local_index].posted;
}

/* Copies the terms of the operation from a rank that has published it. */
static bool find_terms(const struct communicator *comm, uint64_t seq, struct op_terms *out)
{
    const char *what;
    for (uint32_t i = 0; i < comm->cells->rank_count; i++) {
        struct cell_header *header = cells_header(comm->cells->shared, i, seq);
        if (atomic_load_explicit(&header->seq, memory_order_acquire) == seq) {
            memcpy(out, &header->said.terms, sizeof *out);
            return op_terms_are_valid(out, &what);
        }
    }
    return false;
}

bool comms_cells_waiting(const struct communicator *comm, uint64_t now_ns, struct comms_cells_wait *out)
{
    struct comms_cells *cells = comm->cells;
    uint64_t least = UINT64_MAX, most = 0;
    for (uint32_t i = 0; cells != NULL && !cells->retired && i < comm->local_count; i++) {
        uint64_t head = comm->locals[i] != NULL ? comms_cells_head(comm->locals[i]) : 0;
        least = head < least ? head : least;
        most = head > most ? head : most;
    }
    if (least >= most || comms_op_at(comm, least + 1) != NULL || !find_terms(comm, least + 1, &out->terms)) {
        return false;
    }
    out->seq = least + 1;
    cells->seen_ns = cells->seen_seq == out->seq ? cells->seen_ns : now_ns;
    cells->seen_seq = out->seq;
    out->age_ns = now_ns - cells->seen_ns;
    return true;
}

uint64_t comms_cells_count(const struct communicator *comm)
{
    return comm->cells != NULL && comm->cells->tally != NULL ? cells_tally_ops(comm->cells->tally) : 0;
}

uint64_t comms_cells_bytes(const struct communicator *comm)
{
    return comm->cells != NULL && comm->cells->tally != NULL ? cells_tally_bytes(comm->cells->tally) : 0;
}

void comms_member_in_cells(const struct comms_member *member, uint64_t now_ns, uint64_t *submitted,
                           uint64_t *completed)
{
    read_counts(member->comm, now_ns);
    const struct comms_cells *cells = member->comm->cells;
    bool has =
        cells != NULL && cells->tally != NULL && !member->refused && member->local_index < cells->rank_count;
    *submitted = has ? cells_tally_submitted(cells->tally, member->local_index) : 0;
    *completed = has ? cells_tally_completed(cells->tally, member->local_index) : 0;
}

bool comms_member_has_cells(const struct comms_member *member)
{
    return member->comm->cells != NULL;
}

uint32_t comms_member_cell_ranks(const struct comms_member *member)
{
    const struct comms_cells *cells = member->comm->cells;
    return cells != NULL && cells->between_nodes ? cells->rank_count : 0;
}

bool comms_cells_are_between_nodes(const struct communicator *comm)
{
    return comm->cells != NULL && comm->cells->between_nodes;
}

enum status comms_member_open_cells(struct comms_member *member, int *out, struct error *error)
{
    struct communicator *comm = member->comm;
    if (comm->cells == NULL || member->has_cells) {
        return error_set(error, STATUS_NOT_FOUND, "communicator \"%s\", rank %u: there are no cells to open",
                         comm->name, member->rank);
    }
    *out = fcntl(comm->cells->fd, F_DUPFD_CLOEXEC, 0);
    if (*out < 0) {
        return error_set_errno(error, errno, "a descriptor of cells");
    }
    member->has_cells = true;
    if (++comm->cells->given == comm->cells->rank_count) {
        close_fd(comm);
    }
    return STATUS_OK;
}

void comms_member_retire_cells(struct comms_member *member, bool late)
{
    struct comms_cells *cells = member->comm->cells;
    if (!late || (cells != NULL && cells->between_nodes)) {
        comms_cells_end(member->comm);
    } else if (cells != NULL && !cells->retired) {
        retire(member->comm);
        cells->resume_seq = highest_head(member->comm);
    }
}
