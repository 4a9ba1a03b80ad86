#include "daemon/host/guard.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/log.h"

/* From Linux 5.11; older headers lack it. */
#ifndef UFFD_USER_MODE_ONLY
#define UFFD_USER_MODE_ONLY 1
#endif

/* Memory of commd that replaces a hole. */
struct patch {
    struct guard *guard; /* null: none */
    uint64_t offset_bytes, size_bytes;
};

/*
 * What the signal handler uses, protected by `lock`. A thread that holds the lock touches no guarded memory
 * and makes no call that can block. So a handler never waits for its own thread, and never for long.
 */
static atomic_flag lock = ATOMIC_FLAG_INIT;
static struct guard **guards; /* by base, highest first: mmap goes downwards, so most are added at the end */
static size_t guard_count, guard_capacity;
static struct patch patches[GUARD_PATCHES_MAX]; /* a ring; the oldest goes first */
static uint32_t oldest_patch, patch_count;
static uint64_t patched_bytes;
static uint32_t split_count; /* of all mappings */

_Atomic uint64_t guard_holes;
static int userfault_fd = -1;
static bool watches_huge_pages;
static uint64_t page_bytes;
static struct sigaction previous_bus, previous_segv;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void take_lock(void)
{
    for (unsigned turns = 0; atomic_flag_test_and_set_explicit(&lock, memory_order_acquire); turns++) {
        if (turns % 64 == 63) {
            (void)sched_yield();
        }
    }
}

static void release_lock(void)
{
    atomic_flag_clear_explicit(&lock, memory_order_release);
}

/* --- The handler; all of it holds the lock --- */

/* Index of the first mapping that begins at or below the address. */
static size_t find_index(const unsigned char *address)
{
    size_t low = 0, high = guard_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (guards[middle]->base > address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static struct guard *find_guard(const unsigned char *address)
{
    size_t index = find_index(address);
    bool within =
        index < guard_count && (uint64_t)(address - guards[index]->base) < guards[index]->size_bytes;
    return within ? guards[index] : NULL;
}

static bool map_own(const struct patch *patch, int protection)
{
    return mmap(patch->guard->base + patch->offset_bytes, patch->size_bytes, protection,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) != MAP_FAILED;
}

/* Another thread may have touched the same hole. */
static bool is_patched(const struct guard *guard, uint64_t offset_bytes)
{
    for (uint32_t i = 0; i < patch_count; i++) {
        const struct patch *patch = &patches[(oldest_patch + i) % GUARD_PATCHES_MAX];
        if (patch->guard == guard && offset_bytes - patch->offset_bytes < patch->size_bytes) {
            return true;
        }
    }
    return false;
}

/* A page that is removed here raises SIGSEGV when it is touched again. */
static bool drop_oldest_patch(void)
{
    struct patch *patch = &patches[oldest_patch];
    bool dropped = patch->guard == NULL || map_own(patch, PROT_NONE);
    patched_bytes -= patch->guard == NULL ? 0 : patch->size_bytes;
    patch->guard = NULL;
    oldest_patch = (oldest_patch + 1) % GUARD_PATCHES_MAX;
    patch_count--;
    return dropped;
}

/*
 * The first patches are one page, so that pages which exist keep their content. A mapping with many holes
 * gets larger and larger patches, because the kernel limits the number of mappings of a process.
 */
static uint64_t patch_bytes(const struct guard *guard)
{
    uint64_t bytes = page_bytes;
    for (uint32_t i = guard->patch_count / GUARD_PATCHES_EACH_SIZE; i > 0 && bytes < GUARD_PATCH_MAX_BYTES;
         i--) {
        bytes *= 2;
    }
    return bytes;
}

/* A larger patch replaces smaller ones. If these were dropped later, that would remove parts of the larger
 * one. */
static void forget_patches_within(const struct patch *larger)
{
    for (uint32_t i = 0; i < GUARD_PATCHES_MAX; i++) {
        if (patches[i].guard == larger->guard &&
            patches[i].offset_bytes - larger->offset_bytes < larger->size_bytes) {
            patched_bytes -= patches[i].size_bytes;
            patches[i].guard = NULL;
        }
    }
}

static void forget_patches(struct guard *guard)
{
    for (uint32_t i = 0; i < GUARD_PATCHES_MAX; i++) {
        if (patches[i].guard == guard) {
            patched_bytes -= patches[i].size_bytes;
            patches[i].guard = NULL;
        }
    }
    split_count -= guard->split_count;
    guard->split_count = 0;
}

/* Replaces the many pieces of this mapping by one mapping. */
static bool give_up_whole(struct guard *guard)
{
    struct patch whole = {.guard = guard, .size_bytes = guard->size_bytes};
    forget_patches(guard);
    return map_own(&whole, PROT_NONE);
}

static bool put_patch(struct guard *guard, uint64_t offset_bytes)
{
    if (guard->is_huge) {
        if (!give_up_whole(guard)) {
            return false;
        }
        guard->is_huge = false;
    }
    uint64_t bytes = patch_bytes(guard);
    struct patch patch = {.guard = guard, .offset_bytes = offset_bytes / bytes * bytes};
    patch.size_bytes =
        guard->size_bytes - patch.offset_bytes < bytes ? guard->size_bytes - patch.offset_bytes : bytes;
    forget_patches_within(&patch);
    while (patch_count == GUARD_PATCHES_MAX ||
           (patch_count > 0 && patched_bytes + patch.size_bytes > GUARD_PATCHED_MAX_BYTES)) {
        if (!drop_oldest_patch()) {
            return false;
        }
    }
    if (split_count >= GUARD_SPLITS_MAX && guard->split_count >= GUARD_SPLITS_LEAST &&
        !give_up_whole(guard)) {
        return false;
    }
    if (!map_own(&patch, PROT_READ | PROT_WRITE) &&
        !(give_up_whole(guard) && map_own(&patch, PROT_READ | PROT_WRITE))) {
        return false;
    }
    (void)madvise(guard->base + patch.offset_bytes, patch.size_bytes, MADV_DONTDUMP);
    patches[(oldest_patch + patch_count) % GUARD_PATCHES_MAX] = patch;
    patch_count++;
    patched_bytes += patch.size_bytes;
    guard->patch_count++;
    guard->split_count++;
    split_count++;
    return true;
}

/* Returns whether the thread can continue. */
static bool patch_hole(const unsigned char *address, bool is_bus)
{
    take_lock();
    struct guard *guard = find_guard(address);
    bool known = guard != NULL && (is_bus || atomic_load(&guard->broken) != 0);
    if (known) {
        uint64_t offset_bytes = (uint64_t)(address - guard->base), none = 0;
        known = is_patched(guard, offset_bytes) || put_patch(guard, offset_bytes);
        (void)atomic_compare_exchange_strong(&guard->broken, &none,
                                             offset_bytes / page_bytes * page_bytes + 1);
        (void)atomic_fetch_add(&guard_holes, 1);
    }
    release_lock();
    return known;
}

static void on_fault(int signal_number, siginfo_t *info, void *context)
{
    (void)context;
    int saved = errno;
    bool is_fault = info->si_code > 0; /* otherwise a process sent the signal */
    bool is_bus = signal_number == SIGBUS;
    if (!is_fault || !patch_hole(info->si_addr, is_bus)) {
        (void)sigaction(signal_number, is_bus ? &previous_bus : &previous_segv, NULL);
        if (!is_fault) {
            (void)raise(signal_number);
        } /* otherwise the same instruction raises the fault again */
    }
    errno = saved;
}

/* --- Starting --- */

static int open_userfault(uint64_t features)
{
    struct uffdio_api api = {.api = UFFD_API, .features = UFFD_FEATURE_SIGBUS | features};
    /* Faults in the kernel end in EFAULT anyway, so every user may open it. */
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
    if (fd >= 0 && ioctl(fd, UFFDIO_API, &api) != 0) {
        int why = errno;
        (void)close(fd);
        errno = why;
        fd = -1;
    }
    return fd;
}

static void start(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    page_bytes = (uint64_t)sysconf(_SC_PAGESIZE);
    (void)sigemptyset(&action.sa_mask);
    (void)sigaction(SIGBUS, &action, &previous_bus);
    (void)sigaction(SIGSEGV, &action, &previous_segv);
    userfault_fd = open_userfault(UFFD_FEATURE_MISSING_SHMEM | UFFD_FEATURE_MISSING_HUGETLBFS);
    watches_huge_pages = userfault_fd >= 0;
    if (userfault_fd < 0) { /* a kernel without huge pages may not know the feature */
        userfault_fd = open_userfault(UFFD_FEATURE_MISSING_SHMEM);
    }
    if (userfault_fd < 0) {
        log_warning("userfaultfd: %s: if a client takes a page out of registered memory, commd makes the "
                    "page anew, and the page is charged to commd's memory cgroup instead of the client's",
                    strerror(errno));
    }
}

bool guard_start(void)
{
    (void)pthread_once(&once, start);
    return userfault_fd >= 0;
}

bool guard_watches_huge_pages(void)
{
    return guard_start() && watches_huge_pages;
}

/* --- Mappings --- */

static enum status make_room(struct error *error)
{
    if (guard_count < guard_capacity) {
        return STATUS_OK;
    }
    size_t capacity = guard_capacity == 0 ? 64 : 2 * guard_capacity;
    struct guard **grown = calloc(capacity, sizeof *grown);
    if (grown == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a registration");
    }
    take_lock();
    struct guard **before = guards;
    if (guard_count > 0) {
        memcpy(grown, before, guard_count * sizeof *grown);
    }
    guards = grown;
    guard_capacity = capacity;
    release_lock();
    free(before);
    return STATUS_OK;
}

enum status guard_add(struct guard *guard, void *base, uint64_t size_bytes, uint64_t huge_page_bytes,
                      struct error *error)
{
    bool guarded = guard_start();
    *guard = (struct guard){.base = base,
                            .size_bytes = (size_bytes + page_bytes - 1) / page_bytes * page_bytes,
                            .is_huge = huge_page_bytes != 0};
    enum status status = make_room(error);
    if (status != STATUS_OK) {
        return status;
    }
    if (guarded) {
        struct uffdio_register registration = {.range = {.start = (uintptr_t)base, .len = guard->size_bytes},
                                               .mode = UFFDIO_REGISTER_MODE_MISSING};
        if (ioctl(userfault_fd, UFFDIO_REGISTER, &registration) != 0) {
            return error_set_errno(error, errno, "userfaultfd for %llu bytes of a client",
                                   (unsigned long long)guard->size_bytes);
        }
    }
    take_lock();
    size_t index = find_index(guard->base);
    memmove(&guards[index + 1], &guards[index], (guard_count - index) * sizeof(struct guard *));
    guards[index] = guard;
    guard_count++;
    release_lock();
    return STATUS_OK;
}

void guard_remove(struct guard *guard)
{
    take_lock();
    size_t index = find_index(guard->base);
    if (index < guard_count && guards[index] == guard) {
        guard_count--;
        memmove(&guards[index], &guards[index + 1], (guard_count - index) * sizeof(struct guard *));
        forget_patches(guard);
    }
    release_lock();
}
