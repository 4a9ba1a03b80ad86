#include "daemon/host/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "daemon/base/checked.h"
#include "daemon/host/memory_internal.h"

static void memory_leave(struct memory *memory)
{
    (void)memory;
}

enum status memory_new(void *base, uint64_t size_bytes, void (*release)(struct memory *memory),
                       struct memory **out, struct error *error)
{
    struct memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    *memory = (struct memory){.base = base,
                              .size_bytes = size_bytes,
                              .mapped_bytes = size_bytes,
                              .address_bytes = size_bytes,
                              .references = 1,
                              .gpu = MEMORY_OF_HOST,
                              .release = release};
    *out = memory;
    return STATUS_OK;
}

/* *huge_page_bytes: 0 for a memfd of usual pages. */
static enum status check_seals(int fd, uint64_t *huge_page_bytes, struct error *error)
{
    struct statfs file_system;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstatfs(fd, &file_system) < 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the file descriptor is no memfd");
    }
    *huge_page_bytes = file_system.f_type == HUGETLBFS_MAGIC ? (uint64_t)file_system.f_bsize : 0;
    if ((seals & F_SEAL_SHRINK) == 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "the memfd is not sealed against shrinking (F_SEAL_SHRINK)");
    }
    if ((seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memfd is sealed against writing");
    }
    if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "the memfd is not open for reading and writing");
    }
    return STATUS_OK;
}

static enum status check_size(int fd, uint64_t size_bytes, struct error *error)
{
    struct stat file;
    if (size_bytes == 0 || size_bytes > MEMORY_MAX_BYTES) {
        return error_set(error, size_bytes == 0 ? STATUS_INVALID_ARGUMENT : STATUS_LIMIT,
                         "%llu bytes; expected 1 to %llu", (unsigned long long)size_bytes,
                         (unsigned long long)MEMORY_MAX_BYTES);
    }
    if (fstat(fd, &file) < 0) {
        return error_set_errno(error, errno, "fstat");
    }
    if (file.st_size < 0 || (uint64_t)file.st_size < size_bytes) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%llu bytes, but the memfd has %lld",
                         (unsigned long long)size_bytes, (long long)file.st_size);
    }
    return STATUS_OK;
}

/* Uses a file description of its own, because the position of the client's belongs to the client. */
static enum status check_holes(int fd, uint64_t size_bytes, struct error *error)
{
    char path[40];
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int own = open(path, O_RDONLY | O_CLOEXEC);
    if (own < 0) {
        return error_set_errno(error, errno, "looking for holes in the memfd");
    }
    off_t hole = lseek(own, 0, SEEK_HOLE);
    (void)close(own);
    if (hole >= 0 && (uint64_t)hole < size_bytes) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "the memfd has no page at offset %lld: write to all of it before it is registered",
                         (long long)hole);
    }
    return STATUS_OK;
}

/* Checks what the guard cannot watch later. */
static enum status check_pages(int fd, uint64_t size_bytes, uint64_t huge_page_bytes, struct error *error)
{
    if (huge_page_bytes != 0 && !guard_watches_huge_pages()) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "the memfd is of huge pages (MFD_HUGETLB), and this commd has no userfaultfd that "
                         "watches them");
    }
    return guard_start() ? STATUS_OK : check_holes(fd, size_bytes, error);
}

/*
 * Takes the file's size rounded to whole pages. Without MAP_NORESERVE, the kernel could reserve huge pages
 * for holes of the file.
 */
static enum status map_memfd(int fd, uint64_t size_bytes, uint64_t huge_page_bytes, void **out,
                             struct error *error)
{
    int flags = MAP_SHARED | (huge_page_bytes != 0 ? MAP_NORESERVE : 0);
    void *base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (base == MAP_FAILED && errno == ENOMEM) {
        return error_set(error, STATUS_NO_MEMORY,
                         "commd cannot map %llu bytes of a client more (LimitAS= of its unit, or "
                         "vm.max_map_count)",
                         (unsigned long long)size_bytes);
    }
    if (base == MAP_FAILED) {
        return error_set_errno(error, errno, "mapping %llu bytes of a client",
                               (unsigned long long)size_bytes);
    }
    (void)madvise(base, size_bytes, MADV_DONTDUMP);
    *out = base;
    return STATUS_OK;
}

enum status memory_open_memfd(int fd, uint64_t size_bytes, struct memory **out, struct error *error)
{
    uint64_t huge_page_bytes = 0;
    void *base = NULL;
    enum status status = check_seals(fd, &huge_page_bytes, error);
    if (status == STATUS_OK) {
        status = check_size(fd, size_bytes, error);
    }
    if (status == STATUS_OK) {
        status = check_pages(fd, size_bytes, huge_page_bytes, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    uint64_t unit = huge_page_bytes != 0 ? huge_page_bytes : 1; /* sizes are at most MEMORY_MAX_BYTES */
    uint64_t address_bytes = (size_bytes + unit - 1) / unit * unit;
    status = map_memfd(fd, address_bytes, huge_page_bytes, &base, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct memory *memory = NULL;
    status = memory_new(base, size_bytes, NULL, &memory, error);
    if (status == STATUS_OK) {
        status = guard_add(&memory->guard, base, address_bytes, huge_page_bytes, error);
    }
    if (status != STATUS_OK) {
        free(memory);
        (void)munmap(base, address_bytes);
        return status;
    }
    memory->address_bytes = address_bytes;
    memory->huge_page_bytes = huge_page_bytes;
    memory->guarded = true;
    *out = memory;
    return STATUS_OK;
}

enum status memory_wrap(void *base, uint64_t size_bytes, struct memory **out, struct error *error)
{
    return memory_new(base, size_bytes, memory_leave, out, error);
}

struct memory *memory_ref(struct memory *memory)
{
    memory->references++;
    return memory;
}

static void memory_discharge(struct budget_account *account, uint64_t address_bytes, uint64_t chunk_count)
{
    budget_release(account, BUDGET_ADDRESSES, address_bytes);
    budget_release(account, BUDGET_MEMORIES, 1);
    budget_release(account, BUDGET_CHUNKS, chunk_count);
    budget_close(account);
}

void memory_say_ended(struct memory *memory)
{
    if (memory->ended != NULL) {
        memory->ended(memory->ended_context);
        memory->ended = NULL;
    }
}

void memory_end(void *context)
{
    struct memory *memory = context;
    if (memory->charged != NULL) {
        memory_discharge(memory->charged, memory->address_bytes, memory->chunk_count);
    }
    memory_say_ended(memory);
    free(memory);
}

static void unmap_later(struct memory *memory)
{
    guard_remove(&memory->guard);
    memory->unmapping = (struct unmapping){.base = memory->base,
                                           .size_bytes = memory->address_bytes,
                                           .unit_bytes = memory->huge_page_bytes,
                                           .done = memory_end,
                                           .context = memory};
    unmapper_put(memory->unmapper, &memory->unmapping);
}

void memory_finish(struct memory *memory)
{
    if (memory->guarded) {
        unmap_later(memory);
        return;
    }
    if (memory->release_later != NULL) {
        memory->release_later(memory);
        return;
    }
    memory->release(memory);
    memory_end(memory);
}

void memory_when_ended(struct memory *memory, void (*ended)(void *context), void *context)
{
    memory->ended = ended;
    memory->ended_context = context;
}

void memory_unref(struct memory *memory)
{
    if (memory == NULL || --memory->references > 0) {
        return;
    }
    if (memory->stays == NULL || !memory->stays(memory)) {
        memory_finish(memory);
    }
}

enum status memory_charge(struct memory *memory, struct budget_account *account, struct error *error)
{
    enum status status = budget_charge(account, BUDGET_ADDRESSES, memory->address_bytes, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = budget_charge(account, BUDGET_MEMORIES, 1, error);
    if (status != STATUS_OK) {
        budget_release(account, BUDGET_ADDRESSES, memory->address_bytes);
        return status;
    }
    memory->charged = budget_ref(account); /* no chunk is mapped yet */
    return STATUS_OK;
}

void memory_set_unmapper(struct memory *memory, struct unmapper *unmapper)
{
    memory->unmapper = unmapper;
}

void memory_set_owner(struct memory *memory, pid_t process, uint32_t id)
{
    memory->owner_process = process;
    memory->owner_id = id;
}

enum status memory_check(const struct memory *memory, struct error *error)
{
    uint64_t offset_bytes;
    if (!memory->guarded || !guard_is_broken(&memory->guard, &offset_bytes)) {
        return STATUS_OK;
    }
    return error_set(error, STATUS_INVALID_ARGUMENT,
                     "memory %u of process %d had no page at offset %llu: the process never wrote to it, or "
                     "took it out (fallocate, madvise); fill the memory and register it anew",
                     memory->owner_id, (int)memory->owner_process, (unsigned long long)offset_bytes);
}

bool memory_is_used(const struct memory *memory)
{
    return memory->references > 1;
}

bool memory_by_ipc(const struct memory *memory)
{
    return memory->by_ipc;
}

int memory_gpu(const struct memory *memory)
{
    return memory->gpu;
}

uint64_t memory_size_bytes(const struct memory *memory)
{
    return memory->mapped_bytes;
}

uint64_t memory_reserved_bytes(const struct memory *memory)
{
    return memory->size_bytes;
}

void *memory_range(const struct memory *memory, uint64_t offset_bytes, uint64_t size_bytes)
{
    return checked_range(offset_bytes, size_bytes, memory->mapped_bytes) ? memory->base + offset_bytes : NULL;
}
