#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Index of the first memory that begins beyond address. */
static size_t upper_index(const struct comm_client *client, const unsigned char *address)
{
    size_t low = 0, high = client->memory_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (client->memories[middle]->base <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct client_memory *memory_find(const struct comm_client *client, const void *address, size_t size_bytes)
{
    const unsigned char *first = address;
    size_t index = upper_index(client, first);
    if (index == 0) {
        return NULL;
    }
    struct client_memory *memory = client->memories[index - 1];
    size_t offset = (size_t)(first - memory->base);
    return offset <= memory->size_bytes && size_bytes <= memory->size_bytes - offset ? memory : NULL;
}

static struct client_memory *memory_at(const struct comm_client *client, const void *base)
{
    size_t index = upper_index(client, base);
    return index > 0 && client->memories[index - 1]->base == base ? client->memories[index - 1] : NULL;
}

static bool overlaps(const struct comm_client *client, const unsigned char *base, size_t size_bytes)
{
    size_t index = upper_index(client, base);
    if (index < client->memory_count && client->memories[index]->base < base + size_bytes) {
        return true;
    }
    return index > 0 && client->memories[index - 1]->base + client->memories[index - 1]->size_bytes > base;
}

static comm_result_t memory_insert(struct comm_client *client, struct client_memory *memory)
{
    if (client->memory_count == client->memory_capacity) {
        size_t capacity = client->memory_capacity != 0 ? client->memory_capacity * 2 : 16;
        struct client_memory **grown = realloc(client->memories, capacity * sizeof(struct client_memory *));
        if (grown == NULL) {
            return error_report(COMM_NO_MEMORY, "no memory for a registration");
        }
        client->memories = grown;
        client->memory_capacity = capacity;
    }
    size_t index = upper_index(client, memory->base);
    memmove(&client->memories[index + 1], &client->memories[index],
            (client->memory_count - index) * sizeof(struct client_memory *));
    client->memories[index] = memory;
    client->memory_count++;
    return COMM_OK;
}

static void memory_remove(struct comm_client *client, struct client_memory *memory)
{
    for (size_t i = 0; i < client->memory_count; i++) {
        if (client->memories[i] == memory) {
            client->memory_count--;
            memmove(&client->memories[i], &client->memories[i + 1],
                    (client->memory_count - i) * sizeof(struct client_memory *));
            return;
        }
    }
}

/* Tells commd. It maps the whole of what is registered, from the file's start: `memory` begins there. */
static comm_result_t memory_announce(struct comm_client *client, struct client_memory *memory, int fd)
{
    Commd__Client__MemRegister body = COMMD__CLIENT__MEM_REGISTER__INIT;
    body.memory = memory->id;
    body.size_bytes = memory->size_bytes;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request.mem_register = &body;
    Commd__Client__Event *event;
    comm_result_t result =
        client_ask(client, &request, fd, COMMD__CLIENT__REPLY__BODY_DONE, REQUEST_TIMEOUT_MS, &event);
    commd__client__event__free_unpacked(event, NULL);
    return result;
}

static void memory_withdraw(struct comm_client *client, const struct client_memory *memory)
{
    Commd__Client__MemDeregister body = COMMD__CLIENT__MEM_DEREGISTER__INIT;
    body.memory = memory->id;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER;
    request.mem_deregister = &body;
    Commd__Client__Event *event;
    if (client_ask(client, &request, -1, COMMD__CLIENT__REPLY__BODY_DONE, REQUEST_TIMEOUT_MS, &event) ==
        COMM_OK) {
        commd__client__event__free_unpacked(event, NULL);
    }
}

static void memory_free(struct client_memory *memory)
{
    if (memory->owned) {
        munmap(memory->base, memory->size_bytes);
    }
    free(memory);
}

comm_result_t memory_make(struct comm_client *client, size_t size_bytes, bool staging,
                          struct client_memory **out)
{
    comm_result_t result;
    struct client_memory *memory = calloc(1, sizeof *memory);
    int fd = memfd_create(staging ? "commd-staging" : "commd-memory", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (memory == NULL || fd < 0 || ftruncate(fd, (off_t)size_bytes) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        result =
            error_report(COMM_NO_MEMORY, "no memory of %zu bytes to share: %s", size_bytes, strerror(errno));
        goto failed;
    }
    memory->base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory->base == MAP_FAILED) {
        result =
            error_report(COMM_NO_MEMORY, "no address space for %zu bytes: %s", size_bytes, strerror(errno));
        goto failed;
    }
    memory->owned = true;
    memory->id = ++client->last_memory_id;
    memory->size_bytes = size_bytes;
    memory->staging = staging;
    result = memory_announce(client, memory, fd);
    if (result == COMM_OK && !staging) { /* staging blocks are not addresses that a caller may name */
        result = memory_insert(client, memory);
    }
    if (result != COMM_OK) {
        memory_free(memory);
        memory = NULL;
        goto failed;
    }
    close(fd);
    *out = memory;
    return COMM_OK;
failed:
    if (fd >= 0) {
        close(fd);
    }
    free(memory);
    return result;
}

void memory_release_all(struct comm_client *client)
{
    for (size_t i = 0; i < client->memory_count; i++) {
        memory_free(client->memories[i]);
    }
    client->memory_count = 0;
    while (client->free_staging != NULL) {
        struct client_memory *memory = client->free_staging;
        client->free_staging = memory->next_free;
        memory_free(memory);
    }
}

comm_result_t staging_take(struct comm_client *client, size_t size_bytes, struct client_memory **out)
{
    size_t rounded = STAGING_MIN_BYTES;
    while (rounded < size_bytes && rounded <= SIZE_MAX / 4) {
        rounded *= 2;
    }
    for (struct client_memory **link = &client->free_staging; *link != NULL; link = &(*link)->next_free) {
        if ((*link)->size_bytes == rounded) {
            *out = *link;
            *link = (*out)->next_free;
            client->free_staging_bytes -= rounded;
            return COMM_OK;
        }
    }
    return memory_make(client, rounded < size_bytes ? size_bytes : rounded, true, out);
}

void staging_give(struct comm_client *client, struct client_memory *memory)
{
    /* Beyond the bound, the oldest are let go; not now, in the middle of whatever is at hand, but at the next
     * allocation. */
    memory->next_free = client->free_staging;
    client->free_staging = memory;
    client->free_staging_bytes += memory->size_bytes;
}

static void staging_trim(struct comm_client *client)
{
    while (client->free_staging_bytes > STAGING_CACHED_MAX_BYTES && client->free_staging != NULL) {
        struct client_memory *memory = client->free_staging;
        client->free_staging = memory->next_free;
        client->free_staging_bytes -= memory->size_bytes;
        memory_withdraw(client, memory);
        memory_free(memory);
    }
}

comm_result_t comm_mem_alloc(comm_client_t *client, size_t size, int device, void **memory)
{
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    if (memory == NULL || size == 0 || size > SIZE_MAX / 2) {
        result = error_report(COMM_INVALID_ARGUMENT, "comm_mem_alloc: %s",
                              memory == NULL ? "no place for the address"
                                             : "a size of 0 or beyond the address space");
    } else if (device != COMM_DEVICE_HOST) {
        result = error_report(COMM_UNSUPPORTED,
                              "comm_mem_alloc: device %d: this version has the host (COMM_DEVICE_HOST) alone",
                              device);
    } else {
        struct client_memory *made;
        *memory = NULL;
        staging_trim(client);
        result = memory_make(client, size, false, &made);
        if (result == COMM_OK) {
            *memory = made->base;
        }
    }
    client_leave(client);
    return result;
}

/* Forgets a memory once no operation uses it any more. */
static comm_result_t memory_drop(comm_client_t *client, void *base, bool owned, const char *call)
{
    if (base == NULL) {
        return COMM_OK;
    }
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *memory = memory_at(client, base);
    if (memory == NULL || memory->owned != owned) {
        result = error_report(COMM_NOT_FOUND, "%s: %p is not from %s", call, base,
                              owned ? "comm_mem_alloc" : "comm_mem_register");
    } else {
        while (memory->uses > 0 && client->lost == COMM_OK) {
            (void)client_progress(client, clock_after_ms(REQUEST_TIMEOUT_MS));
        }
        memory_remove(client, memory);
        if (client->lost == COMM_OK) {
            memory_withdraw(client, memory);
        }
        memory_free(memory);
    }
    client_leave(client);
    return result;
}

comm_result_t comm_mem_free(comm_client_t *client, void *memory)
{
    return memory_drop(client, memory, true, "comm_mem_free");
}

comm_result_t comm_mem_deregister(comm_client_t *client, void *memory)
{
    return memory_drop(client, memory, false, "comm_mem_deregister");
}

static comm_result_t check_registration(const void *memory, size_t size, int memfd, uint64_t offset)
{
    struct stat file;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (memory == NULL || size == 0 || (uintptr_t)memory % page != 0 || offset % page != 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_register: memory and offset must be page-aligned, size not 0");
    }
    if (offset != 0) {
        return error_report(COMM_UNSUPPORTED,
                            "comm_mem_register: memory must begin at the file's start in this version");
    }
    int seals = fcntl(memfd, F_GET_SEALS);
    if (seals < 0 || fstat(memfd, &file) < 0) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_mem_register: fd %d is no memfd: %s", memfd,
                            strerror(errno));
    }
    if ((seals & F_SEAL_SHRINK) == 0 && fcntl(memfd, F_ADD_SEALS, F_SEAL_SHRINK) < 0) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_register: fd %d cannot be sealed against shrinking (make it with "
                            "MFD_ALLOW_SEALING): %s",
                            memfd, strerror(errno));
    }
    if (file.st_size < 0 || (uint64_t)file.st_size < size) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_mem_register: %zu bytes, but the file has %lld",
                            size, (long long)file.st_size);
    }
    return COMM_OK;
}

comm_result_t comm_mem_register(comm_client_t *client, void *memory, size_t size, int memfd, uint64_t offset)
{
    comm_result_t result = check_registration(memory, size, memfd, offset);
    if (result == COMM_OK) {
        result = client_enter(client);
    }
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *made = calloc(1, sizeof *made);
    if (made == NULL) {
        result = error_report(COMM_NO_MEMORY, "no memory for a registration");
    } else if (overlaps(client, memory, size)) {
        result = error_report(COMM_ALREADY_EXISTS,
                              "comm_mem_register: %zu bytes at %p overlap memory that is registered", size,
                              memory);
    } else {
        *made = (struct client_memory){.id = ++client->last_memory_id, .base = memory, .size_bytes = size};
        result = memory_announce(client, made, memfd);
        if (result == COMM_OK) {
            result = memory_insert(client, made);
        }
    }
    if (result != COMM_OK) {
        free(made);
    }
    client_leave(client);
    return result;
}
