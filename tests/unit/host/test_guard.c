#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/memfd.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/host/guard.h"
#include "daemon/host/memory.h"
#include "daemon/host/reduce.h"
#include "tests/lib/own_process.h"

#define PAGE 4096u

static struct sigaction guard_bus, guard_segv; /* cmocka sets its own handlers in each test */

/* Returns whether the guard can notice holes. It cannot where a filter forbids userfaultfd, as the default
 * filters of containers do. Tests that need it are then skipped. */
static bool guard_again(void)
{
    (void)sigaction(SIGBUS, &guard_bus, NULL);
    (void)sigaction(SIGSEGV, &guard_segv, NULL);
    return guard_start();
}

#define NEEDS_USERFAULTFD()                                                                                  \
    do {                                                                                                     \
        if (!guard_again()) {                                                                                \
            print_message("SKIP: userfaultfd is not allowed here\n");                                        \
            skip();                                                                                          \
        }                                                                                                    \
    } while (0)

static int sparse_memfd(uint64_t size)
{
    int fd = memfd_create("guarded", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

static int full_memfd(uint64_t size, unsigned char value)
{
    int fd = sparse_memfd(size);
    unsigned char page[PAGE];
    memset(page, value, sizeof page);
    for (uint64_t at = 0; at < size; at += PAGE) {
        assert_int_equal(pwrite(fd, page, PAGE, (off_t)at), PAGE);
    }
    return fd;
}

static void punch(int fd, uint64_t offset, uint64_t size)
{
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    assert_int_equal(fallocate(fd, mode, (off_t)offset, (off_t)size), 0);
}

static uint64_t pages_of(int fd)
{
    struct stat file;
    assert_int_equal(fstat(fd, &file), 0);
    return (uint64_t)file.st_blocks * 512 / PAGE;
}

static struct memory *import(int fd, uint64_t size, unsigned char **bytes)
{
    struct memory *memory = NULL;
    struct error error;
    if (memory_open_memfd(fd, size, &memory, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    *bytes = memory_range(memory, 0, size);
    return memory;
}

static void assert_broken(const struct memory *memory, const char *text)
{
    struct error error;
    assert_int_equal(memory_check(memory, &error), STATUS_INVALID_ARGUMENT);
    if (strstr(error.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, error.text);
    }
}

struct costs {
    unsigned mappings;
    uint64_t anonymous_bytes;
};

/* Counts this range alone: elsewhere, ThreadSanitizer maps memory of its own for what the process touches. */
static struct costs costs_of(const unsigned char *begin, const unsigned char *end)
{
    struct costs costs = {0};
    unsigned long long from, to, kib;
    bool is_within = false;
    char line[1024];
    FILE *file = fopen("/proc/self/smaps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%llx-%llx ", &from, &to) == 2) {
            is_within = from < (uintptr_t)end && to > (uintptr_t)begin;
            costs.mappings += is_within;
        } else if (is_within && sscanf(line, "Anonymous: %llu", &kib) == 1) {
            costs.anonymous_bytes += kib * 1024;
        }
    }
    fclose(file);
    return costs;
}

/* --- Holes --- */

static void test_whole_memory_stays_whole(void **state)
{
    (void)state;
    unsigned char *bytes;
    int fd = full_memfd(4 * PAGE, 7);
    uint64_t holes = guard_hole_count();
    struct memory *memory = import(fd, 4 * PAGE, &bytes);
    memset(bytes, 8, 4 * PAGE);
    assert_int_equal(bytes[4 * PAGE - 1], 8);
    assert_int_equal(memory_check(memory, NULL), STATUS_OK);
    assert_int_equal(guard_hole_count(), holes);
    memory_unref(memory);
    close(fd);
}

static void test_a_hole_reads_as_zero_and_makes_no_page(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    unsigned char *bytes;
    int fd = full_memfd(8 * PAGE, 7);
    struct memory *memory = import(fd, 8 * PAGE, &bytes);
    memory_set_owner(memory, 4711, 42);
    uint64_t holes = guard_hole_count();
    punch(fd, 3 * PAGE, PAGE);
    assert_int_equal(bytes[3 * PAGE + 5], 0);
    assert_int_equal(pages_of(fd), 7);
    assert_true(guard_hole_count() > holes);
    assert_broken(memory, "memory 42 of process 4711 had no page at offset 12288");
    for (uint64_t i = 0; i < 8 * PAGE; i++) { /* the neighbouring pages keep their bytes */
        assert_int_equal(bytes[i], i / PAGE == 3 ? 0 : 7);
    }
    memory_unref(memory);
    assert_int_equal(count_mappings("guarded"), 0);
    close(fd);
}

static void test_what_is_written_to_a_hole_is_lost(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    unsigned char *bytes;
    int fd = sparse_memfd(4 * PAGE);
    struct memory *memory = import(fd, 4 * PAGE, &bytes);
    memset(bytes + PAGE - 8, 9, 16);  /* over the border of two holes */
    assert_int_equal(bytes[PAGE], 9); /* later reads see what was written */
    assert_int_equal(pages_of(fd), 0);
    assert_broken(memory, "no page at offset");
    memory_unref(memory);
    close(fd);
}

static void test_a_system_call_gets_efault(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    unsigned char *bytes;
    int pipes[2];
    int fd = sparse_memfd(PAGE);
    struct memory *memory = import(fd, PAGE, &bytes);
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(write(pipes[1], bytes, 16), -1);
    assert_int_equal(errno, EFAULT);
    assert_int_equal(pages_of(fd), 0);
    close(pipes[0]);
    close(pipes[1]);
    memory_unref(memory);
    close(fd);
}

/*
 * No part of a huge page can be replaced. So all of the memory is given up at the first hole. However large
 * the pages are, that costs no more than usual pages do. No huge page is in reserve here, or few.
 */
static void check_huge_hole(unsigned flags, uint64_t size)
{
    int fd = memfd_create("guarded", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | flags);
    if (fd < 0) {
        return; /* this machine has no pages of this size */
    }
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    unsigned char *bytes;
    struct memory *memory = import(fd, size - PAGE - 1, &bytes);
    memory_set_owner(memory, 4711, 42);
    assert_int_equal(bytes[size / 2 + 5 * PAGE], 0);
    bytes[17] = 9;
    assert_int_equal(bytes[17], 9);
    char text[128];
    (void)snprintf(text, sizeof text, "memory 42 of process 4711 had no page at offset %llu",
                   (unsigned long long)(size / 2 + 5 * PAGE));
    assert_broken(memory, text);
    for (uint64_t at = 0; at < 64u << 20 && at < size - PAGE - 1; at += 64) {
        bytes[at] = 1;
    }
    assert_in_range(costs_of(bytes, bytes + size).anonymous_bytes, 1, GUARD_PATCHED_MAX_BYTES);
    assert_int_equal(pages_of(fd), 0);
    memory_unref(memory);
    assert_int_equal(count_mappings("guarded"), 0);
    close(fd);
}

static void test_holes_of_huge_pages(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    if (!guard_watches_huge_pages()) {
        print_message("SKIP: this kernel does not watch huge pages\n");
        skip();
    }
    check_huge_hole(MFD_HUGE_2MB, 8u << 20);
    check_huge_hole(MFD_HUGE_1GB, (uint64_t)1 << 30);
}

/* However large the hole, commd's own memory and mappings in its place are bounded. */
static void test_large_holes_cost_little(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    enum { SIZE = 256 << 20 };
    unsigned char *bytes;
    int fd = sparse_memfd(SIZE);
    struct memory *memory = import(fd, SIZE, &bytes);
    for (uint64_t at = 0; at < SIZE; at += 64) {
        bytes[at] = 1;
    }
    struct costs costs = costs_of(bytes, bytes + SIZE);
    assert_in_range(costs.anonymous_bytes, 1, GUARD_PATCHED_MAX_BYTES);
    assert_in_range(costs.mappings, 2, 2000);
    assert_int_equal(pages_of(fd), 0);
    assert_int_equal(bytes[0], 0); /* the guard took its page away; the new one is empty */
    memory_unref(memory);
    close(fd);
}

/* Every other page of many memories is a hole. The number of mappings stays far below the kernel's limit. */
static void test_many_small_holes(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    enum { COUNT = 64, PAGES = 2048 };
    static struct memory *memories[COUNT];
    static unsigned char *bytes[COUNT];
    int fd = full_memfd(PAGES * PAGE, 3);
    const unsigned char *begin = NULL, *end = NULL;
    for (uint64_t i = 0; i < PAGES; i += 2) {
        punch(fd, i * PAGE, PAGE);
    }
    for (int i = 0; i < COUNT; i++) {
        memories[i] = import(fd, PAGES * PAGE, &bytes[i]);
        memset(bytes[i], i, PAGES * PAGE);
        begin = begin == NULL || bytes[i] < begin ? bytes[i] : begin;
        end = bytes[i] + PAGES * PAGE > end ? bytes[i] + PAGES * PAGE : end;
    }
    assert_in_range(costs_of(begin, end).mappings, COUNT,
                    2 * GUARD_SPLITS_MAX + COUNT * (2 * GUARD_SPLITS_LEAST + 3));
    for (int i = 0; i < COUNT; i++) {
        assert_broken(memories[i], "at offset 0");
        memory_unref(memories[i]);
    }
    assert_int_equal(pages_of(fd), PAGES / 2);
    assert_in_range(costs_of(begin, end).mappings, 0, 2);
    close(fd);
}

/* A larger piece of commd's own memory replaces a smaller one. It stays complete when the guard drops the
 * smaller one. */
static void test_small_pieces_within_larger_ones(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    enum { SIZE = 64 << 20 };
    unsigned char *bytes, *other_bytes;
    int fd = sparse_memfd(SIZE), other_fd = sparse_memfd(SIZE);
    struct memory *memory = import(fd, SIZE, &bytes), *other = import(other_fd, SIZE, &other_bytes);
    for (uint64_t i = 0; i < GUARD_PATCHES_EACH_SIZE; i++) {
        bytes[2 * i * PAGE] = 1;
    }
    bytes[PAGE] = 2; /* fills two pages at once; the first was there already */
    uint64_t touched = 0;
    for (uint64_t at = 0; touched < GUARD_PATCHES_MAX - GUARD_PATCHES_EACH_SIZE; at += 32 * PAGE) {
        other_bytes[at] = 3;
        touched++;
    }
    assert_in_range(bytes[0], 0, 1);
    assert_int_equal(bytes[PAGE], 2);
    memory_unref(memory);
    memory_unref(other);
    close(fd);
    close(other_fd);
}

struct puncher {
    int fd;
    uint64_t size;
    atomic_bool stop;
};

static void *punch_again_and_again(void *context)
{
    struct puncher *puncher = context;
    int mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    for (uint64_t i = 0; !atomic_load(&puncher->stop); i++) {
        (void)fallocate(puncher->fd, mode, (off_t)(i * 7 * PAGE % puncher->size), PAGE);
    }
    return NULL;
}

static void test_punched_while_it_is_reduced(void **state)
{
    (void)state;
    NEEDS_USERFAULTFD();
    enum { SIZE = 4 << 20, ROUNDS = 50 };
    static float other[SIZE / sizeof(float)];
    struct puncher puncher = {.fd = full_memfd(SIZE, 0), .size = SIZE};
    unsigned char *bytes;
    pthread_t thread;
    struct memory *memory = import(puncher.fd, SIZE, &bytes);
    assert_int_equal(pthread_create(&thread, NULL, punch_again_and_again, &puncher), 0);
    for (int round = 0; round < ROUNDS || memory_check(memory, NULL) == STATUS_OK; round++) {
        const void *inputs[] = {other, bytes};
        struct host_reduction reduction = {.dtype = DTYPE_F32,
                                           .reduce = REDUCE_SUM,
                                           .inputs = inputs,
                                           .input_count = 2,
                                           .outputs = (void *[]){bytes},
                                           .output_count = 1,
                                           .count_elements = SIZE / sizeof(float)};
        host_reduce(&reduction);
    }
    atomic_store(&puncher.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(pages_of(puncher.fd) < SIZE / PAGE); /* the reductions made no page again */
    memory_unref(memory);
    close(puncher.fd);
}

/* --- What is no hole --- */

__attribute__((no_sanitize("undefined"))) static void crash_by_a_null_pointer(void)
{
    volatile int *volatile nowhere = NULL;
    *nowhere = 1;
}

static void crash_beyond_a_file(void)
{
    int fd = memfd_create("short", MFD_CLOEXEC);
    volatile char *bytes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    bytes[0] = 1;
}

static void crash_by_a_sent_signal(void)
{
    (void)kill(getpid(), SIGBUS);
}

static unsigned char *whole_bytes;

/* The fault is in guarded memory without a hole, so it is a fault of commd's own. */
static void crash_in_whole_memory(void)
{
    (void)mprotect(whole_bytes, PAGE, PROT_READ);
    *(volatile unsigned char *)whole_bytes = 1;
}

static void test_faults_of_ours_end_the_process(void **state)
{
    (void)state;
    static const struct {
        void (*crash)(void);
        int signal_number;
    } cases[] = {{crash_by_a_null_pointer, SIGSEGV},
                 {crash_beyond_a_file, SIGBUS},
                 {crash_by_a_sent_signal, SIGBUS},
                 {crash_in_whole_memory, SIGSEGV}};
    int fd = full_memfd(2 * PAGE, 1);
    struct memory *memory = import(fd, 2 * PAGE, &whole_bytes);
    close(fd);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pid_t child = fork();
        if (child == 0) {
            struct rlimit no_core = {0, 0};
            (void)setrlimit(RLIMIT_CORE, &no_core);
            (void)guard_again();
            cases[i].crash();
            _exit(0);
        }
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (!WIFSIGNALED(status)) {
            fail_msg("case %zu: it lives", i);
        }
        assert_int_equal(WTERMSIG(status), cases[i].signal_number);
    }
    memory_unref(memory);
}

/* --- Without a userfaultfd --- */

static unsigned warnings;

static void count_warnings(void *context, enum log_level level, const char *line)
{
    (void)context;
    warnings += level == LOG_LEVEL_WARNING && strstr(line, "userfaultfd: Operation not permitted") != NULL;
}

static bool forbid_userfaultfd(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof code / sizeof code[0], .filter = code};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/* Returns 0 if everything is as it should be. */
static int run_without_userfaultfd(void)
{
    struct memory *memory;
    struct error error;
    log_set_sink(count_warnings, NULL);
    if (!forbid_userfaultfd() || guard_start() || guard_start() || warnings != 1) {
        return 1;
    }
    int fd = full_memfd(4 * PAGE, 1);
    if (memory_open_memfd(fd, 4 * PAGE, &memory, &error) != STATUS_OK) {
        return 2;
    }
    memory_unref(memory);
    punch(fd, 2 * PAGE, PAGE);
    if (memory_open_memfd(fd, 4 * PAGE, &memory, &error) != STATUS_INVALID_ARGUMENT ||
        strstr(error.text, "no page at offset 8192") == NULL) {
        return 3;
    }
    return memory_open_memfd(fd, 2 * PAGE, &memory, &error) == STATUS_OK ? 0 : 4;
}

static int without_userfaultfd; /* exit status of a process without userfaultfd */

static void test_without_userfaultfd_holes_are_refused(void **state)
{
    (void)state;
    assert_true(WIFEXITED(without_userfaultfd));
    assert_int_equal(WEXITSTATUS(without_userfaultfd), 0);
}

int main(void)
{
    pid_t child = fork(); /* before this process has a userfaultfd */
    if (child == 0) {
        _exit(run_without_userfaultfd());
    }
    if (child < 0 || waitpid(child, &without_userfaultfd, 0) != child) {
        perror("fork");
        return 1;
    }
    (void)signal(SIGBUS, SIG_DFL); /* removes the handlers of sanitizers */
    (void)signal(SIGSEGV, SIG_DFL);
    (void)guard_start();
    (void)sigaction(SIGBUS, NULL, &guard_bus);
    (void)sigaction(SIGSEGV, NULL, &guard_segv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_userfaultfd_holes_are_refused),
        cmocka_unit_test(test_faults_of_ours_end_the_process),
        cmocka_unit_test(test_whole_memory_stays_whole),
        cmocka_unit_test(test_a_hole_reads_as_zero_and_makes_no_page),
        cmocka_unit_test(test_what_is_written_to_a_hole_is_lost),
        cmocka_unit_test(test_a_system_call_gets_efault),
        cmocka_unit_test(test_holes_of_huge_pages),
        cmocka_unit_test(test_large_holes_cost_little),
        cmocka_unit_test(test_many_small_holes),
        cmocka_unit_test(test_small_pieces_within_larger_ones),
        cmocka_unit_test(test_punched_while_it_is_reduced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
