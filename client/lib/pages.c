#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Files in memory that commd can map, and their pages. */

static comm_result_t make_failure(const char *what, size_t size_bytes)
{
    if (errno == EMFILE || errno == ENFILE) {
        return error_report(COMM_LIMIT, "%zu bytes to share with commd: %s: %s (ulimit -n)", size_bytes, what,
                            strerror(errno));
    }
    return error_report(COMM_NO_MEMORY, "%zu bytes to share with commd: %s: %s", size_bytes, what,
                        strerror(errno));
}

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
/* A signal makes the kernel take a step back: small ones get done between the ticks of a profiler. */
#define POPULATE_STEP_BYTES ((uint64_t)2 << 20)

static comm_result_t populate_file(int fd, uint64_t offset_bytes, uint64_t size_bytes)
{
    for (uint64_t done = 0; done < size_bytes;) {
        uint64_t left = size_bytes - done;
        uint64_t step = left < POPULATE_STEP_BYTES ? left : POPULATE_STEP_BYTES;
        if (fallocate(fd, 0, (off_t)(offset_bytes + done), (off_t)step) == 0) {
            done += step;
        } else if (errno == ENOMEM || errno == ENOSPC) {
            return make_failure("fallocate", size_bytes);
        } else if (errno != EINTR) {
            return COMM_OK; /* the file cannot be populated this way: commd reports what is wrong with it */
        }
    }
    return COMM_OK;
}

#define HUGETLBFS_TYPE 0x958458f6L /* statfs(2) */
/* Less is made without a look at what the machine has left: /proc takes some 20 us. */
#define POPULATE_UNCHECKED_MAX_BYTES ((uint64_t)64 << 20)
#define POPULATE_CHECKED_BYTES ((uint64_t)1 << 30) /* then it is looked at again */

/* What the machine can give without ending a process; UINT64_MAX if it does not say. */
static uint64_t machine_left_bytes(void)
{
    uint64_t left_kib = 0;
    bool is_known = false;
    char line[128];
    FILE *file = fopen("/proc/meminfo", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        unsigned long long kib;
        bool is_memory = sscanf(line, "MemAvailable: %llu kB", &kib) == 1;
        if (is_memory || sscanf(line, "SwapFree: %llu kB", &kib) == 1) {
            left_kib += kib;
            is_known = is_known || is_memory;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return is_known ? left_kib * 1024 : UINT64_MAX;
}

/*
 * The kernel refuses no size of a file in memory. It makes pages until the machine has none left, and then
 * ends processes, perhaps others'. Huge pages are reserved, so they are refused in time.
 */
static comm_result_t check_left(int fd, uint64_t size_bytes)
{
    struct stat file;
    struct statfs system;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0 || system.f_type == HUGETLBFS_TYPE) {
        return COMM_OK;
    }
    uint64_t has_bytes = (uint64_t)file.st_blocks * 512;
    uint64_t missing_bytes = size_bytes > has_bytes ? size_bytes - has_bytes : 0; /* at least */
    if (missing_bytes <= POPULATE_UNCHECKED_MAX_BYTES) {
        return COMM_OK;
    }
    uint64_t left_bytes = machine_left_bytes();
    return missing_bytes <= left_bytes
               ? COMM_OK
               : error_report(COMM_NO_MEMORY,
                              "%" PRIu64 " bytes to share with commd: the machine has %" PRIu64 " bytes left",
                              size_bytes, left_bytes);
}

comm_result_t pages_populate(void *base, int fd, uint64_t offset_bytes, uint64_t size_bytes)
{
    comm_result_t result = COMM_OK;
    for (uint64_t done = 0, step; done < size_bytes && result == COMM_OK; done += step) {
        uint64_t left = size_bytes - done;
        step = left < POPULATE_CHECKED_BYTES ? left : POPULATE_CHECKED_BYTES;
        if (size_bytes > POPULATE_UNCHECKED_MAX_BYTES) {
            result = check_left(fd, size_bytes);
        }
        if (result == COMM_OK && madvise((unsigned char *)base + done, step, MADV_POPULATE_WRITE) != 0) {
            result = populate_file(fd, offset_bytes + done, step);
        }
    }
    return result;
}

#define HUGE_2M_BYTES ((size_t)2 << 20)
#define HUGE_1G_BYTES ((size_t)1 << 30)

static unsigned file_flags(enum comm_huge_pages pages)
{
    if (pages == COMM_HUGE_PAGES_2M) {
        return MFD_HUGETLB | MFD_HUGE_2MB;
    }
    return pages == COMM_HUGE_PAGES_1G ? MFD_HUGETLB | MFD_HUGE_1GB : 0;
}

size_t pages_unit_bytes(enum comm_huge_pages pages, size_t size_bytes)
{
    bool wants_large = pages == COMM_HUGE_PAGES_AUTO && size_bytes >= HUGE_2M_BYTES;
    if (pages == COMM_HUGE_PAGES_1G) {
        return HUGE_1G_BYTES;
    }
    return pages == COMM_HUGE_PAGES_2M || wants_large ? HUGE_2M_BYTES : (size_t)sysconf(_SC_PAGESIZE);
}

static comm_result_t no_huge_pages(size_t size_bytes, enum comm_huge_pages pages)
{
    return error_report(COMM_NO_MEMORY,
                        "%zu bytes in huge pages of %s: %s: the system has too few of them in reserve "
                        "(vm.nr_hugepages, /sys/kernel/mm/hugepages)",
                        size_bytes, pages == COMM_HUGE_PAGES_2M ? "2 MiB" : "1 GiB", strerror(errno));
}

/* The signal of a file that is too large would end the program. */
static comm_result_t check_file_limit(size_t size_bytes)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        size_bytes <= limit.rlim_cur) {
        return COMM_OK;
    }
    return error_report(COMM_LIMIT,
                        "%zu bytes to share with commd: this process may make files of at most %llu bytes "
                        "(ulimit -f), also in memory",
                        size_bytes, (unsigned long long)limit.rlim_cur);
}

/* The seals ensure that the file cannot shrink while commd reads it. */
comm_result_t pages_make_file(size_t size_bytes, enum comm_huge_pages pages, const char *name, int *out)
{
    unsigned flags = file_flags(pages);
    comm_result_t allowed = check_file_limit(size_bytes);
    if (allowed != COMM_OK) {
        return allowed;
    }
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
    if (fd < 0) {
        return flags != 0 && errno != EMFILE && errno != ENFILE ? no_huge_pages(size_bytes, pages)
                                                                : make_failure("memfd_create", size_bytes);
    }
    if (ftruncate(fd, (off_t)size_bytes) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) {
        comm_result_t result = make_failure("memfd", size_bytes);
        close(fd);
        return result;
    }
    *out = fd;
    return COMM_OK;
}

/* Whether the kernel gives transparent huge pages to shared memory that asks for them, or to all of it. */
static bool has_transparent_pages(void)
{
    char text[128] = "";
    FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (file == NULL) {
        return false;
    }
    bool is_known = fgets(text, sizeof text, file) != NULL;
    fclose(file);
    return is_known && strstr(text, "[never]") == NULL && strstr(text, "[deny]") == NULL;
}

/* Maps the file at an address that is a multiple of a huge page. Returns null if there is none. */
static unsigned char *map_aligned(int fd, size_t size_bytes)
{
    size_t room_bytes = size_bytes + HUGE_2M_BYTES;
    unsigned char *room = mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) {
        return NULL;
    }
    size_t before = (size_t)(-(uintptr_t)room & (HUGE_2M_BYTES - 1));
    unsigned char *base = room + before;
    if (mmap(base, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        munmap(room, room_bytes);
        return NULL;
    }
    if (before > 0) {
        munmap(room, before);
    }
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t mapped = (size_bytes + page - 1) / page * page;
    if (room_bytes > before + mapped) {
        munmap(base + mapped, room_bytes - before - mapped);
    }
    (void)madvise(base, size_bytes, MADV_HUGEPAGE); /* it is a wish only */
    return base;
}

comm_result_t pages_map(int fd, size_t size_bytes, enum comm_huge_pages pages, unsigned char **out)
{
    unsigned char *base = NULL;
    if (pages == COMM_HUGE_PAGES_AUTO && size_bytes >= HUGE_2M_BYTES && has_transparent_pages()) {
        base = map_aligned(fd, size_bytes);
    }
    if (base == NULL) {
        base = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (base == MAP_FAILED) {
        return file_flags(pages) != 0 ? no_huge_pages(size_bytes, pages) : make_failure("mmap", size_bytes);
    }
    *out = base;
    return COMM_OK;
}
