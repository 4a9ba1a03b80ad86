/*
 * Records which functions a program enters and leaves. It is preloaded into programs of `make VARIANT=hops`,
 * whose functions call the two hooks below. It writes a file that tests/hops/count_hops.py reads.
 *
 *   COMMD_HOPS_FOLDER=/tmp/x LD_PRELOAD=build/hops/tests/hops/tracer.so build/hops/commd ...
 *
 * Each process has its own file, named by its process number. A child of fork records nothing.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define RECORDS_MAX (1u << 21) /* 48 MiB; beyond, nothing more is recorded */

/* One record has 24 bytes. `function` is an address in the running program: positive when the function is
 * entered, negative when it is left. */
struct hop_record {
    uint64_t time_ns; /* CLOCK_MONOTONIC, which all processes of a machine share */
    int64_t function;
    uint64_t thread;
};

struct hop_file {
    _Atomic uint64_t count; /* how many records were begun; if more than RECORDS_MAX, some are missing */
    /* the address of the program's entry point, which tells by how much the program's addresses are moved */
    uint64_t entry;
    uint64_t unused;
    struct hop_record records[RECORDS_MAX];
};

static struct hop_file *file;

void __cyg_profile_func_enter(void *function, void *caller);
void __cyg_profile_func_exit(void *function, void *caller);

static void forget(void)
{
    file = NULL;
}

__attribute__((constructor)) static void begin(void)
{
    char path[4096];
    const char *folder = getenv("COMMD_HOPS_FOLDER");
    if (folder == NULL ||
        (size_t)snprintf(path, sizeof path, "%s/%d", folder, (int)getpid()) >= sizeof path) {
        return;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *file) != 0) {
        perror(path);
        abort();
    }
    struct hop_file *mapped = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)close(fd);
    if (mapped == MAP_FAILED) {
        perror(path);
        abort();
    }
    mapped->entry = getauxval(AT_ENTRY);
    (void)pthread_atfork(NULL, NULL, forget);
    file = mapped;
}

static void record(int64_t function)
{
    if (file == NULL) {
        return;
    }
    uint64_t number = atomic_fetch_add_explicit(&file->count, 1, memory_order_relaxed);
    if (number < RECORDS_MAX) {
        struct timespec now;
        (void)clock_gettime(CLOCK_MONOTONIC, &now);
        file->records[number] =
            (struct hop_record){.time_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec,
                                .function = function,
                                .thread = (uint64_t)pthread_self()};
    }
}

void __cyg_profile_func_enter(void *function, void *caller)
{
    (void)caller;
    record((int64_t)(intptr_t)function);
}

void __cyg_profile_func_exit(void *function, void *caller)
{
    (void)caller;
    record(-(int64_t)(intptr_t)function);
}
