#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Memory that the caller made, and registers. */

/* A line of /proc/self/maps. */
struct mapping {
    uint64_t begin, end; /* addresses */
    uint64_t offset_bytes, inode;
    bool is_shared;
};

static bool mapping_read(FILE *maps, struct mapping *out)
{
    char access[5];
    int fields = fscanf(maps, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %*x:%*x %" SCNu64 "%*[^\n]",
                        &out->begin, &out->end, access, &out->offset_bytes, &out->inode);
    out->is_shared = fields == 5 && access[3] == 's';
    return fields == 5;
}

/* Returns what is wrong with a mapping that holds the address, or null. offset_bytes: of the address. */
static const char *mapping_fault(const struct mapping *mapping, uint64_t address, uint64_t inode,
                                 uint64_t offset_bytes)
{
    if (mapping->begin > address) {
        return "is not mapped";
    }
    if (mapping->inode != inode || mapping->offset_bytes + (address - mapping->begin) != offset_bytes) {
        return "is not mapped from this place of the file";
    }
    return mapping->is_shared ? NULL : "is mapped with MAP_PRIVATE, so commd cannot see it: use MAP_SHARED";
}

/*
 * commd maps the file, and never sees the caller's addresses. If these were other memory, operations would
 * take wrong data. Without /proc nothing is checked.
 */
static comm_result_t check_mapping(const void *memory, size_t size, int memfd, uint64_t inode,
                                   uint64_t offset)
{
    uint64_t begin = (uintptr_t)memory, address = begin;
    const char *fault = NULL;
    struct mapping mapping;
    FILE *maps = fopen("/proc/self/maps", "re");
    if (maps == NULL) {
        return COMM_OK;
    }
    while (fault == NULL && address - begin < size) {
        if (!mapping_read(maps, &mapping)) {
            fault = "is not mapped";
        } else if (mapping.end > address) {
            fault = mapping_fault(&mapping, address, inode, offset + (address - begin));
            address = fault == NULL ? mapping.end : address;
        }
    }
    fclose(maps);
    return fault == NULL ? COMM_OK
                         : error_report(COMM_INVALID_ARGUMENT,
                                        "comm_mem_register: %zu bytes at %p, fd %d, offset %" PRIu64
                                        ": the memory at 0x%" PRIx64 " %s",
                                        size, memory, memfd, offset, address, fault);
}

static comm_result_t check_file(const void *memory, int memfd, size_t size, uint64_t offset)
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
    comm_result_t result = check_mapping(memory, size, memfd, (uint64_t)file.st_ino, offset);
    if (result != COMM_OK) {
        return result;
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
    return check_file(memory, memfd, size, offset);
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
