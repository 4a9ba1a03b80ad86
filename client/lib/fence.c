#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/internal.h"

#define AREA_LINES 1024u
#define LINE_BYTES 64u
#define AREAS_MAX 256u
#define TAKE_LOOKS 16 /* slots that are checked for reuse before a new area is made */

/* One slot's words, in a cache line of their own: writers in a shared line would slow each other down. */
struct fence_line {
    _Alignas(LINE_BYTES) _Atomic uint64_t words[FENCE_WORDS];
};
static_assert(sizeof(struct fence_line) == LINE_BYTES, "fence_line");

struct fence_area {
    struct fence_area *next;
    struct fence_line *lines;
    int fd;
    uint32_t memory_id;          /* of the client that has it */
    cuda_pointer device_address; /* 0: CUDA does not know it */
    struct fence_slot slots[AREA_LINES];
};

/* Areas of closed clients, for reuse by other clients of this process. fence.h says why they stay mapped. */
static struct {
    pthread_mutex_t lock;
    struct fence_area *areas;
    pid_t pid; /* the process that made them; a child of fork shares them and must not use them */
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Atomic uint64_t *word_of(const struct fence_slot *slot, enum fence_word word)
{
    return &slot->area->lines[slot - slot->area->slots].words[word];
}

_Atomic uint64_t *fence_word(const struct fence_slot *slot, enum fence_word word)
{
    return word_of(slot, word);
}

void fence_lend(const struct fence_slot *slot)
{
    atomic_store_explicit(word_of(slot, FENCE_READY), 0, memory_order_relaxed);
    atomic_store_explicit(word_of(slot, FENCE_ENDED), 0, memory_order_release);
}

void fence_take_back(const struct fence_slot *slot)
{
    atomic_store_explicit(word_of(slot, FENCE_READY), slot->values[FENCE_READY], memory_order_relaxed);
    atomic_store_explicit(word_of(slot, FENCE_ENDED), slot->values[FENCE_ENDED], memory_order_release);
}

static bool has_reached(uint64_t word, uint64_t value)
{
    return (int64_t)(word - value) >= 0;
}

static bool word_rests(const struct fence_slot *slot, enum fence_word word)
{
    return has_reached(atomic_load_explicit(word_of(slot, word), memory_order_acquire), slot->values[word]);
}

bool fence_slot_rests(const struct fence_slot *slot)
{
    return word_rests(slot, FENCE_READY) && word_rests(slot, FENCE_ENDED);
}

/* --- Areas --- */

static struct fence_area *kept_take(void)
{
    pthread_mutex_lock(&kept.lock);
    struct fence_area *area = kept.pid == getpid() ? kept.areas : NULL;
    if (area != NULL) {
        kept.areas = area->next;
    }
    pthread_mutex_unlock(&kept.lock);
    return area;
}

static void kept_give(struct fence_area *area)
{
    pthread_mutex_lock(&kept.lock);
    if (kept.pid != getpid()) {
        kept.areas = NULL;
        kept.pid = getpid();
    }
    area->next = kept.areas;
    kept.areas = area;
    pthread_mutex_unlock(&kept.lock);
}

static comm_result_t area_new(struct fence_area **out)
{
    size_t size_bytes = AREA_LINES * sizeof(struct fence_line);
    struct fence_area *area = calloc(1, sizeof *area);
    if (area == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for words that order streams");
    }
    comm_result_t result = pages_make_file(size_bytes, COMM_HUGE_PAGES_NONE, "commd-fences", &area->fd);
    if (result != COMM_OK) {
        free(area);
        return result;
    }
    area->lines = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, area->fd, 0);
    if (area->lines == MAP_FAILED) {
        result = error_report(COMM_NO_MEMORY, "%zu bytes to share with commd: mmap: %s", size_bytes,
                              strerror(errno));
        close(area->fd);
        free(area);
        return result;
    }
    result = pages_populate(area->lines, area->fd, 0, size_bytes);
    if (result != COMM_OK) {
        munmap(area->lines, size_bytes);
        close(area->fd);
        free(area);
        return result;
    }
    for (uint32_t i = 0; i < AREA_LINES; i++) {
        area->slots[i].area = area;
    }
    *out = area;
    return COMM_OK;
}

static comm_result_t area_map(struct fence_area *area, const struct cuda_driver *driver)
{
    size_t size_bytes = AREA_LINES * sizeof(struct fence_line);
    cuda_result result =
        driver->host_register(area->lines, size_bytes, CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
    /* ALREADY_REGISTERED: an area of a closed client, whose context was kept by others. */
    if (result != CUDA_RESULT_OK && result != CUDA_RESULT_HOST_MEMORY_ALREADY_REGISTERED) {
        return gpu_report(result, "cuMemHostRegister_v2");
    }
    result = driver->host_device_pointer(&area->device_address, area->lines, 0);
    return result == CUDA_RESULT_OK ? COMM_OK : gpu_report(result, "cuMemHostGetDevicePointer_v2");
}

/* Returns the first area that CUDA has not mapped, or null. With the fences' lock. */
static struct fence_area *find_unmapped(const struct client_fences *fences)
{
    struct fence_area *area = fences->areas;
    while (area != NULL && area->device_address != 0) {
        area = area->next;
    }
    return area;
}

comm_result_t fences_join_gpu(struct comm_client *client, struct client_gpu *gpu)
{
    struct client_fences *fences = &client->fences;
    struct gpu_scope scope;
    comm_result_t result = gpu_scope_enter(gpu, &scope);
    if (result != COMM_OK) {
        return result;
    }
    pthread_mutex_lock(&fences->lock);
    struct fence_area *area;
    while (result == COMM_OK && (area = find_unmapped(fences)) != NULL) {
        pthread_mutex_unlock(&fences->lock);
        result = area_map(area, gpu_driver());
        pthread_mutex_lock(&fences->lock);
    }
    if (result == COMM_OK) {
        struct client_gpu **last = &client->gpus;
        while (*last != NULL) {
            last = &(*last)->next;
        }
        *last = gpu;
    }
    pthread_mutex_unlock(&fences->lock);
    gpu_scope_leave(&scope);
    return result;
}

/* Returns false if the area must first be mapped on a GPU. */
static bool area_add(struct comm_client *client, struct fence_area *area)
{
    struct client_fences *fences = &client->fences;
    pthread_mutex_lock(&fences->lock);
    if (client->gpus != NULL && area->device_address == 0) {
        pthread_mutex_unlock(&fences->lock);
        return false;
    }
    area->next = fences->areas;
    fences->areas = area;
    fences->area_count++;
    for (uint32_t i = 0; i < AREA_LINES; i++) {
        struct fence_slot *slot = &area->slots[i];
        if (!slot->retired && fence_slot_rests(slot)) { /* a slot of a closed client may still be in use */
            slot->next = fences->first;                 /* before slots that may not be reusable yet */
            fences->last = slot->next == NULL ? &slot->next : fences->last;
            fences->first = slot;
        }
    }
    pthread_mutex_unlock(&fences->lock);
    return true;
}

/* Without the client's lock: the driver may wait. */
static comm_result_t area_join(struct comm_client *client, struct fence_area *area)
{
    comm_result_t result = COMM_OK;
    while (result == COMM_OK && !area_add(client, area)) {
        struct gpu_scope scope;
        result = gpu_scope_enter(client->gpus, &scope); /* the first one stays the first */
        if (result == COMM_OK) {
            result = area_map(area, gpu_driver());
            gpu_scope_leave(&scope);
        }
    }
    return result;
}

static comm_result_t area_announce(struct comm_client *client, struct fence_area *area)
{
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    struct client_memory memory = {.id = ++client->last_memory_id,
                                   .base = (unsigned char *)area->lines,
                                   .size_bytes = AREA_LINES * sizeof(struct fence_line)};
    area->memory_id = memory.id;
    area->device_address = 0;
    result = client->lost == COMM_OK ? memory_announce(client, &memory, area->fd)
                                     : error_repeat(client->lost, client->lost_text);
    client_leave(client);
    return result;
}

static comm_result_t area_get(struct comm_client *client)
{
    pthread_mutex_lock(&client->fences.lock);
    bool full = client->fences.area_count >= AREAS_MAX;
    pthread_mutex_unlock(&client->fences.lock);
    if (full) {
        return error_report(COMM_LIMIT,
                            "%s: all %u places for operations in streams and for events are taken",
                            client->path, AREAS_MAX * AREA_LINES);
    }
    struct fence_area *area = kept_take();
    comm_result_t result = area == NULL ? area_new(&area) : COMM_OK;
    if (result != COMM_OK) {
        return result;
    }
    result = area_announce(client, area);
    result = result == COMM_OK ? area_join(client, area) : result;
    if (result != COMM_OK) {
        kept_give(area);
    }
    return result;
}

/* --- Slots --- */

void fences_init(struct client_fences *fences)
{
    *fences = (struct client_fences){.watchdog_fd = -1};
    fences->last = &fences->first;
    pthread_mutex_init(&fences->lock, NULL);
}

void fences_close(struct client_fences *fences)
{
    watchdog_stop(fences);
    fences_release(fences);
    while (fences->areas != NULL) {
        struct fence_area *area = fences->areas;
        fences->areas = area->next;
        kept_give(area);
    }
    pthread_mutex_destroy(&fences->lock);
}

static struct fence_slot *take_resting(struct client_fences *fences)
{
    int looks = 0;
    for (struct fence_slot **link = &fences->first; *link != NULL && looks < TAKE_LOOKS;
         link = &(*link)->next, looks++) {
        struct fence_slot *slot = *link;
        if (fence_slot_rests(slot)) {
            *link = slot->next;
            fences->last = slot->next == NULL ? link : fences->last;
            slot->next = NULL;
            return slot;
        }
    }
    return NULL;
}

/* The connection has ended: reports that like a thread that reads the socket. */
static comm_result_t report_lost(struct comm_client *client)
{
    comm_result_t result = client_enter(client);
    if (result == COMM_OK) {
        client_take_all(client);
        if (client->lost == COMM_OK) {
            client_lose(client, COMM_DAEMON_LOST, "%s: commd closed the connection", client->path);
        }
        result = error_repeat(client->lost, client->lost_text);
        client_leave(client);
    }
    return result;
}

comm_result_t fence_take(struct comm_client *client, struct fence_slot **out)
{
    struct client_fences *fences = &client->fences;
    for (;;) {
        pthread_mutex_lock(&fences->lock);
        bool released = fences->released;
        *out = released ? NULL : take_resting(fences);
        pthread_mutex_unlock(&fences->lock);
        if (released) {
            return report_lost(client);
        }
        if (*out != NULL) {
            return COMM_OK;
        }
        comm_result_t result = area_get(client);
        if (result != COMM_OK) {
            return result;
        }
    }
}

void fence_give(struct client_fences *fences, struct fence_slot *slot, bool retire)
{
    if (slot == NULL) {
        return;
    }
    pthread_mutex_lock(&fences->lock);
    slot->retired = retire;
    if (!retire) {
        slot->next = NULL;
        *fences->last = slot;
        fences->last = &slot->next;
    }
    pthread_mutex_unlock(&fences->lock);
}

struct fence_mark fence_next(struct client_fences *fences, struct fence_slot *slot, enum fence_word word)
{
    pthread_mutex_lock(&fences->lock);
    struct fence_mark mark = {.slot = slot, .word = word, .value = ++slot->values[word]};
    bool released = fences->released;
    pthread_mutex_unlock(&fences->lock);
    if (released && word == FENCE_ENDED) {
        fence_reach(&mark);
    }
    return mark;
}

bool fence_is_reached(const struct fence_mark *mark)
{
    return has_reached(atomic_load_explicit(word_of(mark->slot, mark->word), memory_order_acquire),
                       mark->value);
}

void fence_reach(const struct fence_mark *mark)
{
    _Atomic uint64_t *word = word_of(mark->slot, mark->word);
    uint64_t now = atomic_load_explicit(word, memory_order_relaxed);
    while (!has_reached(now, mark->value) &&
           !atomic_compare_exchange_weak_explicit(word, &now, mark->value, memory_order_release,
                                                  memory_order_relaxed)) {
    }
}

cuda_pointer fence_address(const struct fence_mark *mark)
{
    const struct fence_area *area = mark->slot->area;
    uintptr_t offset = (uintptr_t)word_of(mark->slot, mark->word) - (uintptr_t)area->lines;
    return area->device_address + offset;
}

void fences_release(struct client_fences *fences)
{
    pthread_mutex_lock(&fences->lock);
    fences->released = true;
    for (struct fence_area *area = fences->areas; area != NULL; area = area->next) {
        for (uint32_t i = 0; i < AREA_LINES; i++) {
            struct fence_slot *slot = &area->slots[i];
            fence_reach(
                &(struct fence_mark){.slot = slot, .word = FENCE_ENDED, .value = slot->values[FENCE_ENDED]});
        }
    }
    pthread_mutex_unlock(&fences->lock);
    graphs_lose(fences);
}

/* --- Messages --- */

void fence_add(struct submit_record *record, enum record_what what, const struct fence_mark *mark)
{
    const struct fence_area *area = mark->slot->area;
    uintptr_t offset_bytes = (uintptr_t)word_of(mark->slot, mark->word) - (uintptr_t)area->lines;
    submit_record_add(record, what, area->memory_id, offset_bytes, mark->value);
}
