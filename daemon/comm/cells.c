#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/comm/comms_internal.h"
#include "proto/cells.h"

struct comms_cells {
    struct cells_shared *shared; /* without the longer data */
    uint32_t rank_count;
    int fd; /* -1 once every rank has it */
    uint32_t given;
    bool retired;
    uint64_t seen_seq, seen_ns; /* the operation for which ranks waited at the last look, and since when */
};

static bool all_take(const struct communicator *comm)
{
    const struct comms_member *member;
    bool all = comm->node_count == 1 && comm->local_count == comm->terms.size && comm->local_count >= 2 &&
               comm->local_count <= CELLS_RANKS_MAX;
    DL_FOREACH(comm->members, member)
    {
        all = all && (member->refused || member->takes_cells);
    }
    return all;
}

static enum status cells_map(struct comms_cells *cells, struct error *error)
{
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
    cells->fd = memfd_create("commd-cells", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (cells->fd < 0 || ftruncate(cells->fd, (off_t)cells_bytes(cells->rank_count)) != 0 ||
        fcntl(cells->fd, F_ADD_SEALS, seals) != 0) {
        return error_set_errno(error, errno, "memory for cells");
    }
    size_t size_bytes = cells_control_bytes(cells->rank_count);
    void *memory = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, cells->fd, 0);
    if (memory == MAP_FAILED) {
        return error_set_errno(error, errno, "memory for cells");
    }
    cells->shared = memory;
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

void comms_cells_make(struct communicator *comm)
{
    struct error error;
    if (!all_take(comm) ||
        communicator_charge(comm, cells_control_bytes(comm->local_count), &error) != STATUS_OK ||
        budget_charge(comm->account, BUDGET_DESCRIPTORS, 1, &error) != STATUS_OK) {
        return; /* it goes on without */
    }
    comm->cells = calloc(1, sizeof *comm->cells);
    if (comm->cells == NULL) {
        budget_release(comm->account, BUDGET_DESCRIPTORS, 1);
        return;
    }
    comm->cells->rank_count = comm->local_count;
    if (cells_map(comm->cells, &error) != STATUS_OK) {
        log_debug("communicator \"%s\" has no cells: %s", comm->name, error.text);
        if (comm->cells->fd < 0) {
            budget_release(comm->account, BUDGET_DESCRIPTORS, 1);
        }
        comms_cells_free(comm);
    }
}

void comms_cells_free(struct communicator *comm)
{
    if (comm->cells != NULL) {
        comm->comms->totals.ops_in_cells += comm->cells->shared != NULL ? comms_cells_count(comm) : 0;
        close_fd(comm);
        if (comm->cells->shared != NULL) {
            (void)munmap(comm->cells->shared, cells_control_bytes(comm->cells->rank_count));
        }
        free(comm->cells);
        comm->cells = NULL;
    }
}

void comms_cells_end(struct communicator *comm)
{
    if (comm->cells != NULL && !comm->cells->retired) {
        comm->cells->retired = true;
        cells_retire(comm->cells->shared, comm->cells->rank_count);
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

bool comms_cells_is_missing(const struct communicator_op *op, uint32_t local_index)
{
    const struct comms_member *member = op->comm->locals[local_index];
    return !op->posts[local_index].posted && (member == NULL || comms_cells_head(member) < op->seq);
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
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; comm->cells != NULL && i < comm->cells->rank_count; i++) {
        uint64_t published = cells_published(comm->cells->shared, i);
        least = published < least ? published : least;
    }
    return comm->cells != NULL ? least : 0;
}

uint64_t comms_ops_in_cells(const struct comms *comms)
{
    uint64_t sum = comms->totals.ops_in_cells;
    const struct communicator *comm;
    DL_FOREACH(comms->comms, comm)
    {
        sum += comms_cells_count(comm);
    }
    return sum;
}

bool comms_member_has_cells(const struct comms_member *member)
{
    return member->comm->cells != NULL;
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

void comms_member_retire_cells(struct comms_member *member)
{
    comms_cells_end(member->comm);
}
