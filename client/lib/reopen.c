#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <utlist.h>

#include "client/lib/internal.h"

/*
 * A new connection in place of one that is lost, with the memory of the lost one: commclient/recovery.h.
 *
 * The library keeps no descriptor of memory that it has made, as a program may have more of it than it may
 * have descriptors. So the memory gets another file: piece by piece, its contents are copied there, its pages
 * in the old file are freed, and the new file's pages take their addresses. commd, which had the old file
 * mapped, is gone.
 */

#define PIECE_BYTES ((size_t)64 << 20)

/* --- Host memory --- */

static const char *name_of(const struct client_memory *memory)
{
    return memory->pooled ? "commd-pool" : "commd-memory";
}

/* Copies a piece to the file, and maps that in its place. If it fails, the contents stay where they were. */
static comm_result_t renew_piece(const struct client_memory *memory, int fd, size_t offset, size_t size)
{
    unsigned char *from = memory->base + offset;
    unsigned char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, (off_t)offset);
    if (to == MAP_FAILED) {
        return error_report(COMM_NO_MEMORY, "no addresses for %zu bytes of memory to share with commd", size);
    }
    comm_result_t result = pages_populate(to, fd, offset, size);
    if (result == COMM_OK) {
        memcpy(to, from, size);
        (void)madvise(from, size, MADV_REMOVE); /* otherwise there would be two of the whole memory */
        if (mmap(from, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset) ==
            MAP_FAILED) {
            memcpy(from, to, size);
            result =
                error_report(COMM_NO_MEMORY, "no mapping for %zu bytes of memory to share with commd", size);
        }
    }
    munmap(to, size);
    return result;
}

static comm_result_t renew(const struct client_memory *memory, int *fd)
{
    comm_result_t result = pages_make_file(memory->size_bytes, memory->pages, name_of(memory), fd);
    size_t unit = pages_unit_bytes(memory->pages, memory->size_bytes);
    size_t piece = unit > PIECE_BYTES ? unit : PIECE_BYTES;
    for (size_t offset = 0; offset < memory->size_bytes && result == COMM_OK; offset += piece) {
        size_t left = memory->size_bytes - offset;
        result = renew_piece(memory, *fd, offset, left < piece ? left : piece);
    }
    if (result == COMM_OK && memory->pages == COMM_HUGE_PAGES_AUTO) {
        (void)madvise(memory->base, memory->size_bytes, MADV_HUGEPAGE); /* it is a wish only */
    }
    return result;
}

static comm_result_t take_host_memory(struct comm_client *client, struct client_memory *memory)
{
    int fd = -1;
    comm_result_t result = COMM_OK;
    if (memory->owned) {
        client_leave(client);
        result = renew(memory, &fd);
        pthread_mutex_lock(&client->lock);
    } else if (memory->has_fd) {
        fd = memory->fd;
    } else {
        result = error_report(COMM_LIMIT,
                              "%zu bytes at %p: the library keeps the descriptors of the first %u registered "
                              "memories: deregister this one first, and register it again afterwards",
                              memory->size_bytes, (void *)memory->base, MEMORY_FDS_MAX);
    }
    result = result == COMM_OK ? memory_announce(client, memory, fd) : result;
    if (memory->owned && memory->has_fd) { /* the old file; the new one is not lent */
        close(memory->fd);
        memory->has_fd = memory->offered = false;
    }
    if (memory->owned && fd >= 0) {
        close(fd);
    }
    return result;
}

/* --- All memory --- */

/* Registers the memory with the new connection's commd; it is in the lists of neither client meanwhile. */
static comm_result_t take_memory(struct comm_client *client, struct client_memory *memory)
{
    uint32_t id = memory->id;
    memory->id = ++client->last_memory_id;
    memory->uses = 0;
    comm_result_t result = memory_insert(client, memory);
    if (result == COMM_OK) {
        result = memory->gpu != NULL ? gpu_memory_announce(client, memory) : take_host_memory(client, memory);
        if (result != COMM_OK) {
            memory_remove(client, memory);
        }
    }
    memory->ready = true; /* with one of the clients */
    memory->id = result == COMM_OK ? memory->id : id;
    return result;
}

/* Most memory on GPUs that the caller made is registered at its next use. */
static bool is_left_behind(const struct client_memory *memory)
{
    return memory->gpu != NULL && !memory->owned && !gpu_memory_is_kept(memory);
}

static comm_result_t take_memories(struct comm_client *client, struct comm_client *lost)
{
    comm_result_t result = COMM_OK;
    while (lost->memory_count > 0 && result == COMM_OK) {
        struct client_memory *memory = lost->memories[lost->memory_count - 1];
        memory_remove(lost, memory);
        if (is_left_behind(memory)) {
            memory_free(memory);
            continue;
        }
        result = take_memory(client, memory);
        if (result != COMM_OK) {
            (void)memory_insert(lost, memory); /* there is room: it was there before */
        }
    }
    return result;
}

/* The caller may try again, with what was registered before the failure, too. */
static void give_memories_back(struct comm_client *client, struct comm_client *lost)
{
    while (client->memory_count > 0) {
        struct client_memory *memory = client->memories[client->memory_count - 1];
        memory_remove(client, memory);
        (void)memory_insert(lost, memory); /* there is room: it was there before */
    }
    lost->gpus = client->gpus;
    client->gpus = NULL;
}

/* --- The call --- */

static comm_result_t check_lost(struct comm_client *client)
{
    pthread_mutex_lock(&client->fences.lock);
    bool has_events = client->events != NULL;
    pthread_mutex_unlock(&client->fences.lock);
    const char *held = client->comms != NULL    ? "communicators: comm_destroy"
                       : client->queues != NULL ? "completion queues: comm_queue_destroy"
                       : has_events             ? "events: comm_event_destroy"
                       : client->stores > 0     ? "stores: comm_store_close"
                                                : NULL;
    if (held != NULL) {
        return error_report(COMM_BUSY, "the lost connection still has %s comes first", held);
    }
    client_await_daemon_end(client, clock_after_ms(BUSY_TIMEOUT_MS));
    return client_daemon_may_write(client)
               ? error_report(COMM_BUSY,
                              "%s: commd's process stands still, and may still write to the memory",
                              client->path)
               : COMM_OK;
}

static bool has_hung_up(const struct comm_client *client)
{
    struct pollfd ready = {.fd = client->fd, .events = POLLIN};
    return poll(&ready, 1, 0) > 0 && (ready.revents & (POLLHUP | POLLERR)) != 0;
}

/* Returns COMM_OK, and is_lost false, while the connection lives. */
static comm_result_t begin(struct comm_client *client, bool *is_lost)
{
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        client_take_all(client);
        /* Another thread that reads notices the end in a moment. */
        while (client->lost == COMM_OK && client->reading && has_hung_up(client)) {
            pthread_cond_wait(&client->changed, &client->lock);
        }
        *is_lost = client->lost != COMM_OK;
        result = *is_lost ? check_lost(client) : COMM_OK;
        client_leave(client);
    }
    return result;
}

static comm_result_t move(struct comm_client *client, struct comm_client *lost)
{
    pthread_mutex_lock(&client->lock);
    client->gpus = lost->gpus;
    lost->gpus = NULL;
    comm_result_t result = take_memories(client, lost);
    if (result == COMM_OK) {
        pools_move(client, lost);
    } else {
        give_memories_back(client, lost);
    }
    client_leave(client);
    return result;
}

static comm_result_t open_and_move(struct comm_client **client, const comm_open_options_t *options)
{
    struct comm_client *opened = NULL;
    comm_result_t result = comm_client_open(options, &opened);
    if (result != COMM_OK) {
        return result;
    }
    result = move(opened, *client);
    if (result != COMM_OK) {
        comm_client_close(opened);
        return error_within(result, "comm_client_reopen");
    }
    comm_client_close(*client);
    *client = opened;
    return COMM_OK;
}

/* commd may also end while it takes the memory. Then there is the rest of the time for the next one. */
static bool may_wait(uint64_t deadline_ns, uint32_t *wait_ms)
{
    uint64_t now = clock_ns();
    *wait_ms = now < deadline_ns ? (uint32_t)((deadline_ns - now) / 1000000u) : 0;
    return *wait_ms > 0;
}

comm_result_t comm_client_reopen(comm_client_t **client, const comm_open_options_t *options)
{
    comm_open_options_t given = COMM_OPEN_OPTIONS_INIT;
    bool is_lost = false;
    if (client == NULL || *client == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_client_reopen: the client is a null pointer");
    }
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_client_reopen", "COMM_OPEN_OPTIONS_INIT");
    result = result == COMM_OK ? begin(*client, &is_lost) : result;
    if (result != COMM_OK || !is_lost) {
        return result == COMM_OK ? COMM_OK : error_within(result, "comm_client_reopen");
    }
    if (given.wait_ms == 0) {
        result = client_wait_from_environment(&given.wait_ms);
    }
    if (result != COMM_OK) {
        return result;
    }
    given.socket_path = given.socket_path != NULL ? given.socket_path : (*client)->path;
    uint64_t deadline_ns = clock_after_ms(given.wait_ms);
    do {
        result = open_and_move(client, &given);
    } while (result == COMM_DAEMON_LOST && may_wait(deadline_ns, &given.wait_ms));
    return result;
}
