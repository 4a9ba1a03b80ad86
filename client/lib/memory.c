#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* --- The caller's memories, by address --- */

/* Returns the index of the first memory that begins after the address. */
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
    size_t index = upper_index(client, address);
    if (index == 0) {
        return NULL;
    }
    struct client_memory *memory = client->memories[index - 1];
    size_t offset = (size_t)((const unsigned char *)address - memory->base);
    bool within = offset <= memory->size_bytes && size_bytes <= memory->size_bytes - offset;
    return within && memory->ready ? memory : NULL;
}

uint64_t memory_offset_bytes(const struct client_memory *memory, const void *address)
{
    return memory->file_offset_bytes + (uint64_t)((const unsigned char *)address - memory->base);
}

struct client_memory *memory_overlapping(const struct comm_client *client, const void *address,
                                         size_t size_bytes)
{
    const unsigned char *base = address;
    size_t index = upper_index(client, base);
    if (index > 0) {
        struct client_memory *before = client->memories[index - 1];
        if ((size_t)(base - before->base) < before->size_bytes) {
            return before;
        }
    }
    bool next = index < client->memory_count && (size_t)(client->memories[index]->base - base) < size_bytes;
    return next ? client->memories[index] : NULL;
}

struct client_memory *memory_before(const struct comm_client *client, const void *address)
{
    size_t index = upper_index(client, address);
    return index > 0 ? client->memories[index - 1] : NULL;
}

comm_result_t memory_insert(struct comm_client *client, struct client_memory *memory)
{
    if (client->memory_count == client->memory_capacity) {
        size_t capacity = client->memory_capacity != 0 ? client->memory_capacity * 2 : 16;
        struct client_memory **grown =
            reallocarray(client->memories, capacity, sizeof(struct client_memory *));
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

unsigned memory_files_kept(const struct comm_client *client, bool owned)
{
    unsigned kept = 0;
    for (size_t i = 0; i < client->memory_count; i++) {
        kept += client->memories[i]->has_fd && client->memories[i]->owned == owned;
    }
    return kept;
}

void memory_remove(struct comm_client *client, const struct client_memory *memory)
{
    size_t index = upper_index(client, memory->base) - 1;
    client->memory_count--;
    memmove(&client->memories[index], &client->memories[index + 1],
            (client->memory_count - index) * sizeof(struct client_memory *));
}

/* --- commd's side --- */

#define BUSY_POLL_MIN_NS 200000u
#define BUSY_POLL_MAX_NS 20000000u
/* Freed memory that commd may still have mapped. */
#define WITHDRAWN_QUIETLY_MAX_BYTES ((uint64_t)256 << 10)

static void withdraw(struct comm_client *client, uint32_t id,
                     void (*tell)(struct comm_client *client, Commd__Client__Request *request))
{
    Commd__Client__MemDeregister body = COMMD__CLIENT__MEM_DEREGISTER__INIT;
    body.memory = id;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER;
    request.mem_deregister = &body;
    if (client->lost == COMM_OK) {
        tell(client, &request);
    }
}

void memory_withdraw(struct comm_client *client, uint32_t id)
{
    withdraw(client, id, client_tell);
}

/*
 * Withdraws memory that the library made. Waking commd takes longer than freeing a few pages, so commd is not
 * woken for each. The bytes withdrawn without waking it are bounded.
 */
static void withdraw_some(struct comm_client *client, uint32_t id, uint64_t size_bytes)
{
    bool is_little = size_bytes <= WITHDRAWN_QUIETLY_MAX_BYTES - client->withdrawn_quietly_bytes;
    client->withdrawn_quietly_bytes = is_little ? client->withdrawn_quietly_bytes + size_bytes : 0;
    withdraw(client, id, is_little ? client_tell_quietly : client_tell);
}

static bool gives_up(const Commd__Client__Request *request)
{
    return request->body_case == COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER;
}

static comm_result_t ask(struct comm_client *client, Commd__Client__Request *request, uint32_t id, int fd,
                         uint64_t deadline_ns)
{
    struct client_question question = {.what =
                                           gives_up(request) ? "deregistering memory" : "registering memory",
                                       .expected = COMMD__CLIENT__REPLY__BODY_DONE,
                                       .fd = fd,
                                       .deadline_ns = deadline_ns};
    Commd__Client__Event *event;
    bool unanswered;
    comm_result_t result = client_ask(client, request, &question, &event, &unanswered);
    if (result == COMM_OK) {
        commd__client__event__free_unpacked(event, NULL);
    } else if (unanswered) {
        memory_withdraw(client, id); /* in case commd registers it after all */
    }
    return result;
}

comm_result_t memory_ask(struct comm_client *client, Commd__Client__Request *request, uint32_t id, int fd)
{
    return ask(client, request, id, fd, clock_after_ms(REQUEST_TIMEOUT_MS));
}

/* Memory is freed without an answer, too; what is to be registered is of no use without. */
static uint64_t answer_ns(const Commd__Client__Request *request, uint64_t deadline_ns)
{
    return gives_up(request) ? deadline_ns : clock_after_ms(REQUEST_TIMEOUT_MS);
}

comm_result_t memory_ask_until(struct comm_client *client, Commd__Client__Request *request, uint32_t id,
                               int fd, uint64_t deadline_ns)
{
    uint64_t pause_ns = BUSY_POLL_MIN_NS;
    comm_result_t result = ask(client, request, id, fd, answer_ns(request, deadline_ns));
    while (result == COMM_BUSY && clock_ns() < deadline_ns) {
        uint64_t until_ns = clock_ns() + pause_ns;
        while (clock_ns() < until_ns && client->lost == COMM_OK) {
            client_progress(client, until_ns);
        }
        pause_ns = pause_ns < BUSY_POLL_MAX_NS ? pause_ns * 2 : pause_ns;
        result = ask(client, request, id, fd, answer_ns(request, deadline_ns));
    }
    return result;
}

/*
 * Waits until commd has closed the memory, or has ended, or the deadline. CUDA's manual says that the
 * behaviour is undefined if GPU memory is freed while another process has it open. May release the lock.
 */
static void withdraw_closed(struct comm_client *client, uint32_t id, uint64_t deadline_ns)
{
    Commd__Client__MemDeregister body = COMMD__CLIENT__MEM_DEREGISTER__INIT;
    body.memory = id;
    body.if_unused = true;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER;
    request.mem_deregister = &body;
    client_await_daemon_end(client, deadline_ns);
    if (client->lost == COMM_OK && memory_ask_until(client, &request, id, -1, deadline_ns) == COMM_BUSY) {
        memory_withdraw(client, id);
    }
}

void memory_withdraw_all(struct comm_client *client, uint64_t deadline_ns)
{
    for (size_t i = 0; i < client->memory_count && clock_ns() < deadline_ns; i++) {
        if (client->memories[i]->gpu != NULL) {
            withdraw_closed(client, client->memories[i]->id, deadline_ns);
        }
    }
}

/* commd maps the file from its start. */
comm_result_t memory_announce(struct comm_client *client, struct client_memory *memory, int fd)
{
    Commd__Client__MemRegister body = COMMD__CLIENT__MEM_REGISTER__INIT;
    body.memory = memory->id;
    body.size_bytes = memory->file_offset_bytes + memory->size_bytes;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request.mem_register = &body;
    comm_result_t result = memory_ask(client, &request, memory->id, fd);
    memory->ready = result == COMM_OK;
    return result;
}

#define UNMAP_ADVISED_MIN_BYTES ((uint64_t)16 << 10)

/*
 * Without this advice the kernel marks each page as recently used before it removes the page, which takes
 * longer than the rest of the unmapping (zap_pte_range and vma_has_recency in mm/).
 */
static void unmap(struct client_memory *memory)
{
    if (memory->size_bytes >= UNMAP_ADVISED_MIN_BYTES) {
        (void)madvise(memory->base, memory->size_bytes, MADV_RANDOM);
    }
    munmap(memory->base, memory->size_bytes);
}

/* The other ranks may have it mapped still. */
static void free_pages(const struct client_memory *memory)
{
    if (memory->offered && memory->has_fd) {
        (void)fallocate(memory->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)memory->size_bytes);
    }
}

void memory_free(struct client_memory *memory)
{
    if (memory->owned && memory->gpu != NULL) {
        gpu_memory_free(memory);
    } else if (memory->owned) {
        free_pages(memory);
        unmap(memory);
    }
    if (memory->has_fd) {
        close(memory->fd);
    }
    free(memory->chunks);
    free(memory);
}

void memory_free_all(struct comm_client *client)
{
    for (size_t i = 0; i < client->memory_count; i++) {
        struct client_memory *memory = client->memories[i];
        if (memory->owned && memory->gpu != NULL && gpu_memory_await(memory) != COMM_OK) {
            memory->owned = false; /* the memory stays: captured work may touch it */
        }
        memory_free(memory);
    }
    client->memory_count = 0;
    free(client->memories);
    client->memories = NULL;
}

#define YIELD_MIN_BYTES ((uint64_t)2 << 20)

/*
 * The lock is released meanwhile, because the kernel takes about 300 ms for a GiB. The yield lets a process
 * run first that needs the processor for microseconds only, such as another rank that got its answer.
 */
comm_result_t memory_populate(struct comm_client *client, void *base, int fd, uint64_t offset_bytes,
                              uint64_t size_bytes)
{
    client_leave(client);
    if (size_bytes >= YIELD_MIN_BYTES) {
        (void)sched_yield();
    }
    comm_result_t result = pages_populate(base, fd, offset_bytes, size_bytes);
    pthread_mutex_lock(&client->lock);
    return result;
}

/* Keeps the file of large memory, so that it can be lent (cells_lend.c). Half of the descriptors that the
 * program may have are left to it. */
static void keep_to_lend(const struct comm_client *client, struct client_memory *memory, int *fd)
{
    struct rlimit limit = {0};
    bool has_small_pages = memory->pages == COMM_HUGE_PAGES_NONE || memory->pages == COMM_HUGE_PAGES_AUTO;
    if (memory->size_bytes < MEMORY_LENT_MIN_BYTES || !has_small_pages ||
        getrlimit(RLIMIT_NOFILE, &limit) != 0 || (rlim_t)*fd >= limit.rlim_cur / 2) {
        return;
    }
    if (memory_files_kept(client, true) < MEMORY_LENT_FDS_MAX) {
        memory->has_fd = true;
        memory->fd = *fd;
        *fd = -1;
    }
}

comm_result_t memory_make(struct comm_client *client, size_t size_bytes, enum memory_kind kind,
                          enum comm_huge_pages pages, struct client_memory **out)
{
    static const char *const names[] = {[MEMORY_STAGING] = "commd-staging",
                                        [MEMORY_ALLOCATED] = "commd-memory",
                                        [MEMORY_POOLED] = "commd-pool"};
    bool staging = kind == MEMORY_STAGING;
    int fd = -1;
    struct client_memory *memory = calloc(1, sizeof *memory);
    if (memory == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for a registration");
    }
    comm_result_t result = pages_make_file(size_bytes, pages, names[kind], &fd);
    if (result == COMM_OK) {
        result = pages_map(fd, size_bytes, pages, &memory->base);
    }
    if (result != COMM_OK) {
        goto failed;
    }
    result = memory_populate(client, memory->base, fd, 0, size_bytes);
    if (result != COMM_OK) {
        munmap(memory->base, size_bytes);
        goto failed;
    }
    memory->owned = true;
    memory->pooled = kind == MEMORY_POOLED;
    memory->pages = pages;
    memory->id = ++client->last_memory_id;
    memory->size_bytes = size_bytes;
    if (!staging) {
        result = memory_insert(client, memory);
        if (result != COMM_OK) {
            goto failed;
        }
    }
    result = memory_announce(client, memory, fd);
    if (result != COMM_OK) {
        if (!staging) {
            memory_remove(client, memory);
        }
        goto failed;
    }
    if (!staging) {
        keep_to_lend(client, memory, &fd);
    }
    if (fd >= 0) {
        close(fd);
    }
    *out = memory;
    return COMM_OK;
failed:
    if (fd >= 0) {
        close(fd);
    }
    memory_free(memory);
    return result;
}

/* --- The API --- */

comm_result_t comm_mem_alloc(comm_client_t *client, size_t size, int device, void **memory)
{
    if (memory == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_alloc: the argument for the address is a null pointer");
    }
    *memory = NULL;
    if (size == 0 || size > PTRDIFF_MAX) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_mem_alloc: %zu bytes: expected 1 to %zu", size,
                            (size_t)PTRDIFF_MAX);
    }
    if (device < COMM_DEVICE_HOST) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_mem_alloc: device %d: expected a GPU's number, or COMM_DEVICE_HOST (%d)",
                            device, COMM_DEVICE_HOST);
    }
    comm_result_t result;
    if (device != COMM_DEVICE_HOST) {
        result = gpu_memory_make(client, size, device, memory);
        return result == COMM_OK ? COMM_OK : error_within(result, "comm_mem_alloc");
    }
    result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *made;
    result = memory_make(client, size, MEMORY_ALLOCATED, COMM_HUGE_PAGES_NONE, &made);
    if (result == COMM_OK) {
        *memory = made->base;
    }
    client_leave(client);
    return result;
}

/* Operations that work on it without a block of commd's do not count in its uses. */
static bool is_used(const struct comm_client *client, const struct client_memory *memory)
{
    return memory->uses > 0 || ops_use(client, memory);
}

/* Waits until no operation uses the memory. No new operation can, because it is not ready any more. */
static comm_result_t await_unused(struct comm_client *client, struct client_memory *memory, const char *call)
{
    uint64_t began_ns = clock_ns();
    while (is_used(client, memory)) {
        uint64_t deadline_ns = ops_deadline_ns(client, memory);
        uint64_t least_ns = began_ns + (uint64_t)DAEMON_MARGIN_MS * 1000000u;
        deadline_ns = deadline_ns > least_ns ? deadline_ns : least_ns;
        ops_await_user(client, memory, deadline_ns);
        if (is_used(client, memory) && clock_ns() >= deadline_ns) {
            return error_report(COMM_TIMED_OUT,
                                "%s: operations still use the memory, and commd does not answer: destroy "
                                "their communicators first",
                                call);
        }
    }
    return COMM_OK;
}

static enum memory_kind kind_of(const struct client_memory *memory)
{
    return !memory->owned ? MEMORY_REGISTERED : memory->pooled ? MEMORY_POOLED : MEMORY_ALLOCATED;
}

/* Finds the memory that was allocated or registered at the address. For registered GPU memory, the address
 * may be anywhere in it. */
static struct client_memory *find_droppable(const struct comm_client *client, const unsigned char *at,
                                            enum memory_kind kind)
{
    struct client_memory *memory = memory_find(client, at, 1);
    bool fits = memory != NULL && memory->ready && kind_of(memory) == kind &&
                (memory->base == at || (memory->gpu != NULL && kind == MEMORY_REGISTERED));
    return fits ? memory : NULL;
}

/* Waits for the GPU's work, without the lock: the work may wait for other threads. */
static comm_result_t await_gpu(struct comm_client *client, const struct client_memory *memory,
                               const char *call)
{
    if (!memory->owned || memory->gpu == NULL) {
        return COMM_OK;
    }
    client_leave(client);
    comm_result_t result = gpu_memory_await(memory);
    pthread_mutex_lock(&client->lock);
    return result == COMM_OK ? COMM_OK : error_within(result, "%s", call);
}

/* For memory that the caller keeps, after commd was lost because it stood still: waits until commd's process
 * has ended. */
static comm_result_t await_writes(struct comm_client *client, const char *call)
{
    client_await_daemon_end(client, clock_after_ms(BUSY_TIMEOUT_MS));
    return !client_daemon_may_write(client) ? COMM_OK
                                            : error_report(COMM_BUSY,
                                                           "%s: %s: commd's process has not ended, and may "
                                                           "still write to the memory when it runs again",
                                                           call, client->path);
}

/* Waits until nothing uses the memory. With the lock, which it may release. */
static comm_result_t await_rest(struct comm_client *client, struct client_memory *memory,
                                enum memory_kind kind, const char *call)
{
    memory->ready = false;
    comm_result_t result = await_unused(client, memory, call);
    result = result == COMM_OK ? await_gpu(client, memory, call) : result;
    result = result == COMM_OK && kind == MEMORY_REGISTERED ? await_writes(client, call) : result;
    memory->ready = result != COMM_OK;
    return result;
}

comm_result_t memory_drop(struct comm_client *client, void *base, enum memory_kind kind, bool wait,
                          const char *call)
{
    if (base == NULL) {
        return COMM_OK;
    }
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory *memory = find_droppable(client, base, kind);
    if (memory == NULL) {
        result = error_report(COMM_NOT_FOUND, "%s: %p is no memory of %s on this connection", call, base,
                              kind == MEMORY_REGISTERED ? "comm_mem_register" : "comm_mem_alloc");
    } else if (!wait && is_used(client, memory)) {
        result = error_report(COMM_BUSY, "%s: operations still use the memory", call);
    } else {
        result = await_rest(client, memory, kind, call);
    }
    if (result != COMM_OK) {
        client_leave(client);
        return result;
    }
    uint32_t id = memory->id;
    cells_lend_forget(client, memory);
    if (memory->gpu != NULL) { /* still in the list, so that no thread registers its addresses */
        withdraw_closed(client, id, clock_after_ms(BUSY_TIMEOUT_MS));
    }
    memory_remove(client, memory);
    if (memory->gpu == NULL && kind != MEMORY_REGISTERED) {
        withdraw_some(client, id, memory->size_bytes);
    } else if (memory->gpu == NULL) {
        memory_withdraw(client, id);
    }
    client_leave(client);
    memory_free(memory); /* without the lock: for a GPU it may wait for streams that other threads block */
    return COMM_OK;
}

comm_result_t comm_mem_free(comm_client_t *client, void *memory)
{
    return memory_drop(client, memory, MEMORY_ALLOCATED, true, "comm_mem_free");
}

comm_result_t comm_mem_deregister(comm_client_t *client, void *memory)
{
    return memory_drop(client, memory, MEMORY_REGISTERED, true, "comm_mem_deregister");
}

int comm_mem_is_shared(comm_client_t *client, const void *memory, size_t size)
{
    if (memory == NULL || client_enter(client) != COMM_OK) {
        return 0;
    }
    bool is_shared = memory_find(client, memory, size != 0 ? size : 1) != NULL;
    client_leave(client);
    return is_shared;
}
