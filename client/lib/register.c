#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Memory that the caller made, and registers. */

static comm_result_t check_file(int memfd, size_t size, uint64_t offset)
{
    struct stat file;
    int seals = fcntl(memfd, F_GET_SEALS);
    if (seals < 0 || fstat(memfd, &file) < 0) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_mem_register: fd %d is no memfd: %s", memfd,
                            strerror(errno));
    }
    if ((fcntl(memfd, F_GETFL) & O_ACCMODE) != O_RDWR) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_register: fd %d is not open for reading and writing", memfd);
    }
    if (file.st_size < 0 || (uint64_t)file.st_size < offset || (uint64_t)file.st_size - offset < size) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_register: %zu bytes at offset %llu, but the memfd has %lld bytes", size,
                            (unsigned long long)offset, (long long)file.st_size);
    }
    if ((seals & F_SEAL_SHRINK) == 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_register: fd %d cannot be sealed against shrinking (make it with "
                            "MFD_ALLOW_SEALING): %s",
                            memfd, strerror(errno));
    }
    return COMM_OK;
}

static comm_result_t check_registration(const void *memory, size_t size, int memfd, uint64_t offset)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (memory == NULL || (uintptr_t)memory % page != 0 || offset % page != 0) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_mem_register: memory %p, offset %llu: expected multiples of the page size, %zu", memory,
            (unsigned long long)offset, page);
    }
    if (size == 0 || size > PTRDIFF_MAX || (uintptr_t)memory + size < size) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_mem_register: %zu bytes at %p: expected 1 or more",
                            size, memory);
    }
    return check_file(memfd, size, offset);
}

/* Keeps the file, to register it again after commd was lost. Without it, comm_client_reopen says so. */
static void keep_file(const struct comm_client *client, struct client_memory *memory, int memfd)
{
    bool has_room = memory_files_kept(client, false) < MEMORY_FDS_MAX;
    memory->fd = has_room ? fcntl(memfd, F_DUPFD_CLOEXEC, 0) : -1;
    memory->has_fd = memory->fd >= 0;
}

static comm_result_t memory_adopt(struct comm_client *client, void *base, size_t size, int memfd,
                                  uint64_t offset)
{
    comm_result_t result = memory_populate(client, base, memfd, offset, size);
    if (result != COMM_OK) {
        return result;
    }
    if (memory_overlapping(client, base, size) != NULL) {
        return error_report(COMM_ALREADY_EXISTS,
                            "comm_mem_register: %zu bytes at %p overlap memory that is registered", size,
                            base);
    }
    struct client_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a registration");
    }
    *memory = (struct client_memory){
        .id = ++client->last_memory_id, .base = base, .size_bytes = size, .file_offset_bytes = offset};
    result = memory_insert(client, memory);
    if (result == COMM_OK) {
        result = memory_announce(client, memory, memfd);
        if (result == COMM_OK) {
            keep_file(client, memory, memfd);
        } else {
            memory_remove(client, memory);
        }
    }
    if (result != COMM_OK) {
        memory_free(memory);
    }
    return result;
}

comm_result_t comm_mem_register(comm_client_t *client, void *memory, size_t size, int memfd, uint64_t offset)
{
    bool on_gpu = memfd == -1 && client != NULL && gpu_is_used(client);
    comm_result_t result = on_gpu ? COMM_OK : check_registration(memory, size, memfd, offset);
    if (result == COMM_OK) {
        result = client_enter(client);
    }
    if (result != COMM_OK) {
        return result;
    }
    result = on_gpu ? gpu_memory_register(client, memory, size)
                    : memory_adopt(client, memory, size, memfd, offset);
    client_leave(client);
    return result != COMM_OK && on_gpu ? error_within(result, "comm_mem_register") : result;
}
