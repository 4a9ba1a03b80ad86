#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <linux/memfd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/host/guard.h"
#include "daemon/host/memory.h"
#include "tests/lib/own_process.h"

#define PAGE 4096u
#define IMPORTS 1000

static unsigned char pattern(uint64_t index)
{
    return (unsigned char)(index * 131 + (index >> 8) * 7 + 3);
}

/* A memfd of size bytes that hold the pattern. */
static int make_memfd(uint64_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    for (uint64_t i = 0; i < size && size <= 1u << 20; i++) {
        unsigned char byte = pattern(i);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)i), 1);
    }
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void assert_refused(int fd, uint64_t size, enum status status, const char *text)
{
    struct memory *memory = (struct memory *)&memory;
    struct error error = {0};
    assert_int_equal(memory_open_memfd(fd, size, &memory, &error), status);
    assert_int_equal(error.status, status);
    if (strstr(error.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, error.text);
    }
    assert_ptr_equal(memory, &memory);
    /* It works without a struct error, too. */
    assert_int_equal(memory_open_memfd(fd, size, &memory, NULL), status);
}

static struct memory *import(int fd, uint64_t size)
{
    struct memory *memory = NULL;
    struct error error;
    if (memory_open_memfd(fd, size, &memory, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return memory;
}

static void test_sealed(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 7, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17};
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int fd = make_memfd(sizes[k], F_SEAL_SHRINK);
        struct memory *memory = import(fd, sizes[k]);
        assert_int_equal(memory_size_bytes(memory), sizes[k]);
        unsigned char *bytes = memory_range(memory, 0, sizes[k]);
        assert_non_null(bytes);
        for (uint64_t i = 0; i < sizes[k]; i++) {
            assert_int_equal(bytes[i], pattern(i));
        }
        /* Shared in both directions, and the fd stays the caller's. */
        bytes[sizes[k] - 1] = 0xa5;
        unsigned char seen = 0;
        assert_int_equal(pread(fd, &seen, 1, (off_t)sizes[k] - 1), 1);
        assert_int_equal(seen, 0xa5);
        seen = 0x5a;
        assert_int_equal(pwrite(fd, &seen, 1, 0), 1);
        assert_int_equal(bytes[0], 0x5a);
        assert_int_equal(close(fd), 0);
        bytes[0] = 0x17;
        assert_int_equal(bytes[0], 0x17);
        memory_unref(memory);
        assert_int_equal(count_mappings("test"), 0);
    }
}

static void test_part_of_a_larger_file(void **state)
{
    (void)state;
    int fd = make_memfd(5 * PAGE, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    struct memory *memory = import(fd, 2 * PAGE + 5);
    assert_int_equal(memory_size_bytes(memory), 2 * PAGE + 5);
    assert_non_null(memory_range(memory, 2 * PAGE, 5));
    assert_null(memory_range(memory, 2 * PAGE, 6));
    memory_unref(memory);
    close(fd);
}

static void test_seals(void **state)
{
    (void)state;
    int fd = make_memfd(PAGE, 0);
    assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "not sealed against shrinking (F_SEAL_SHRINK)");
    close(fd);
    fd = make_memfd(PAGE, F_SEAL_GROW);
    assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "F_SEAL_SHRINK");
    close(fd);
    fd = make_memfd(PAGE, F_SEAL_SHRINK | F_SEAL_WRITE);
    assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "sealed against writing");
    close(fd);
    fd = memfd_create("test", MFD_CLOEXEC); /* cannot be sealed at all */
    assert_int_equal(ftruncate(fd, PAGE), 0);
    assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "F_SEAL_SHRINK");
    close(fd);
}

static void test_read_only(void **state)
{
    (void)state;
    int fd = make_memfd(PAGE, F_SEAL_SHRINK);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int modes[] = {O_RDONLY, O_WRONLY};
    for (size_t i = 0; i < 2; i++) {
        int narrow = open(path, modes[i] | O_CLOEXEC);
        assert_true(narrow >= 0);
        assert_refused(narrow, PAGE, STATUS_INVALID_ARGUMENT, "not open for reading and writing");
        close(narrow);
    }
    int nameless = open(path, O_PATH | O_CLOEXEC);
    assert_true(nameless >= 0);
    assert_refused(nameless, PAGE, STATUS_INVALID_ARGUMENT, "no memfd");
    close(nameless);
    close(fd);
}

static void test_other_kinds(void **state)
{
    (void)state;
    int pipes[2];
    int sockets[2];
    assert_int_equal(pipe2(pipes, O_CLOEXEC), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets), 0);
    char name[] = "/tmp/commd-test-memory-XXXXXX";
    int file = mkostemp(name, O_CLOEXEC);
    assert_true(file >= 0);
    unlink(name);
    assert_int_equal(ftruncate(file, PAGE), 0);
    int fds[] = {pipes[0], pipes[1], sockets[0], open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC),
                 open("/dev/zero", O_RDWR | O_CLOEXEC)};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        assert_true(fds[i] >= 0);
        assert_refused(fds[i], PAGE, STATUS_INVALID_ARGUMENT, "no memfd");
        close(fds[i]);
    }
    close(sockets[1]);
    /* A file on tmpfs answers which seals it has, but no seal can be added. */
    struct error error;
    struct memory *memory;
    assert_int_equal(memory_open_memfd(file, PAGE, &memory, &error), STATUS_INVALID_ARGUMENT);
    close(file);
    assert_refused(-1, PAGE, STATUS_INVALID_ARGUMENT, "no memfd");
    assert_refused(file, PAGE, STATUS_INVALID_ARGUMENT, "no memfd"); /* closed */
}

/* A memfd of huge pages needs none of them in reserve, as long as nobody touches it. */
static void test_huge_pages(void **state)
{
    (void)state;
    enum { HUGE = 2 << 20 };
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB);
    if (fd < 0) {
        print_message("SKIP: this kernel has no huge pages of 2 MiB\n");
        skip();
    }
    assert_int_equal(ftruncate(fd, 3 * HUGE), 0);
    assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "not sealed against shrinking (F_SEAL_SHRINK)");
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    if (!guard_watches_huge_pages()) {
        assert_refused(fd, PAGE, STATUS_INVALID_ARGUMENT, "huge pages");
        close(fd);
        return;
    }
    assert_refused(fd, 3 * HUGE + 1, STATUS_INVALID_ARGUMENT, "6291457 bytes, but the memfd has 6291456");
    static const uint64_t sizes[] = {1, PAGE + 1, HUGE - 1, HUGE, HUGE + 1, 3 * HUGE};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct memory *memory = import(fd, sizes[i]);
        assert_int_equal(memory_size_bytes(memory), sizes[i]);
        assert_non_null(memory_range(memory, sizes[i] - 1, 1));
        assert_null(memory_range(memory, sizes[i], 1));
        memory_unref(memory);
        assert_int_equal(count_mappings("test"), 0);
    }
    close(fd);
}

static void test_sizes(void **state)
{
    (void)state;
    int fd = make_memfd(PAGE, F_SEAL_SHRINK);
    assert_refused(fd, 0, STATUS_INVALID_ARGUMENT, "0 bytes; expected 1 to 17592186044416");
    assert_refused(fd, PAGE + 1, STATUS_INVALID_ARGUMENT, "4097 bytes, but the memfd has 4096");
    assert_refused(fd, MEMORY_MAX_BYTES, STATUS_INVALID_ARGUMENT, "but the memfd has 4096");
    assert_refused(fd, MEMORY_MAX_BYTES + 1, STATUS_LIMIT, "17592186044417 bytes; expected 1 to");
    assert_refused(fd, UINT64_MAX, STATUS_LIMIT, "18446744073709551615 bytes");
    close(fd);
    fd = make_memfd(0, F_SEAL_SHRINK);
    assert_refused(fd, 1, STATUS_INVALID_ARGUMENT, "1 bytes, but the memfd has 0");
    close(fd);
    /* The memfd was truncated before it was sealed: its present size counts. */
    fd = make_memfd(3 * PAGE, 0);
    assert_int_equal(ftruncate(fd, PAGE), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_refused(fd, 3 * PAGE, STATUS_INVALID_ARGUMENT, "12288 bytes, but the memfd has 4096");
    close(fd);
    /* The memfd is larger than the limit. A part within the limit can be mapped, if the address space has
     * room. */
    fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, (off_t)(MEMORY_MAX_BYTES + PAGE)), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    assert_refused(fd, MEMORY_MAX_BYTES + PAGE, STATUS_LIMIT, "expected 1 to");
    struct memory *memory = import(fd, PAGE);
    memory_unref(memory);
    close(fd);
}

/* A client that asks for too much learns that memory is short, as its own mmap would say. */
static void test_no_more_addresses(void **state)
{
    (void)state;
    struct rlimit before, limit = {.rlim_cur = PAGE, .rlim_max = RLIM_INFINITY};
    struct memory *memory = NULL;
    struct error error = {0};
    int fd = make_memfd(3 * PAGE, F_SEAL_SHRINK);
    struct memory *first = import(fd, PAGE); /* what is made once is made */
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limit.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
    enum status status = memory_open_memfd(fd, 3 * PAGE, &memory, &error);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(status, STATUS_NO_MEMORY);
    assert_non_null(strstr(error.text, "commd cannot map 12288 bytes of a client more"));
    assert_null(memory);
    memory = import(fd, 3 * PAGE);
    memory_unref(memory);
    memory_unref(first);
    close(fd);
}

static void test_range(void **state)
{
    (void)state;
    enum { SIZE = 2 * PAGE + 3 };
    int fd = make_memfd(SIZE, F_SEAL_SHRINK);
    struct memory *memory = import(fd, SIZE);
    close(fd);
    unsigned char *base = memory_range(memory, 0, 0);
    assert_non_null(base);
    assert_ptr_equal(memory_range(memory, 0, SIZE), base);
    assert_ptr_equal(memory_range(memory, 1, SIZE - 1), base + 1);
    assert_ptr_equal(memory_range(memory, SIZE - 1, 1), base + SIZE - 1);
    assert_ptr_equal(memory_range(memory, SIZE, 0), base + SIZE); /* empty, at the end */
    assert_null(memory_range(memory, 0, SIZE + 1));
    assert_null(memory_range(memory, 1, SIZE));
    assert_null(memory_range(memory, SIZE, 1));
    assert_null(memory_range(memory, SIZE + 1, 0));
    /* Sums that wrap round. */
    assert_null(memory_range(memory, UINT64_MAX, 1));
    assert_null(memory_range(memory, UINT64_MAX, UINT64_MAX));
    assert_null(memory_range(memory, 1, UINT64_MAX));
    assert_null(memory_range(memory, UINT64_MAX - 7, 16));
    assert_null(memory_range(memory, SIZE - 8, UINT64_MAX - 4));
    memory_unref(memory);
}

static void test_client_cannot_truncate(void **state)
{
    (void)state;
    enum { SIZE = 4 * PAGE };
    int fd = make_memfd(SIZE, F_SEAL_SHRINK);
    struct memory *memory = import(fd, SIZE);
    /* Everything that the client may still try with its descriptor. */
    assert_int_equal(ftruncate(fd, 0), -1);
    assert_int_equal(ftruncate(fd, SIZE - 1), -1);
    char path[64];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    assert_int_equal(open(path, O_RDWR | O_TRUNC | O_CLOEXEC), -1);
    assert_int_equal(fallocate(fd, FALLOC_FL_COLLAPSE_RANGE, 0, PAGE), -1);
    assert_int_equal(ftruncate(fd, 8 * PAGE), 0); /* growth is harmless */
    unsigned char *bytes = memory_range(memory, 0, SIZE);
    for (uint64_t i = 0; i < SIZE; i++) {
        assert_int_equal(bytes[i], pattern(i));
        bytes[i] = (unsigned char)~pattern(i);
    }
    close(fd);
    for (uint64_t i = 0; i < SIZE; i++) {
        assert_int_equal(bytes[i], (unsigned char)~pattern(i));
    }
    assert_int_equal(memory_check(memory, NULL), STATUS_OK);
    memory_unref(memory);
}

static void test_left_out_of_core_dumps(void **state)
{
    (void)state;
    char line[1024];
    bool ours = false, left_out = false;
    int fd = make_memfd(PAGE, F_SEAL_SHRINK);
    struct memory *memory = import(fd, PAGE);
    FILE *file = fopen("/proc/self/smaps", "re");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL && !left_out) {
        ours = (ours && strstr(line, "/memfd:") == NULL) || strstr(line, "/memfd:test") != NULL;
        left_out = ours && strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " dd") != NULL;
    }
    fclose(file);
    assert_true(left_out);
    memory_unref(memory);
    close(fd);
}

static void test_references(void **state)
{
    (void)state;
    int fd = make_memfd(PAGE, F_SEAL_SHRINK);
    struct memory *memory = import(fd, PAGE);
    close(fd);
    assert_ptr_equal(memory_ref(memory), memory);
    assert_ptr_equal(memory_ref(memory), memory);
    memory_unref(memory);
    memory_unref(memory);
    assert_int_equal(count_mappings("test"), 1);
    assert_int_equal(*(unsigned char *)memory_range(memory, 9, 1), pattern(9));
    memory_unref(memory);
    assert_int_equal(count_mappings("test"), 0);
    memory_unref(NULL);
}

static void test_wrap(void **state)
{
    (void)state;
    unsigned char bytes[33];
    memset(bytes, 0xee, sizeof bytes);
    struct memory *memory;
    struct error error;
    assert_int_equal(memory_wrap(bytes, sizeof bytes, &memory, &error), STATUS_OK);
    assert_int_equal(memory_size_bytes(memory), sizeof bytes);
    assert_ptr_equal(memory_range(memory, 32, 1), bytes + 32);
    assert_null(memory_range(memory, 32, 2));
    memory_unref(memory);
    for (size_t i = 0; i < sizeof bytes; i++) {
        assert_int_equal(bytes[i], 0xee); /* still ours */
    }
}

static void test_nothing_leaks(void **state)
{
    (void)state;
    int sealed = make_memfd(3 * PAGE + 1, F_SEAL_SHRINK);
    int unsealed = make_memfd(PAGE, 0);
    unsigned fds = count_fds();
    assert_int_equal(count_mappings("test"), 0);
    for (unsigned i = 0; i < IMPORTS; i++) {
        struct memory *memory = import(sealed, 1 + (i * 37) % (3 * PAGE + 1));
        struct memory *refused;
        assert_int_equal(memory_open_memfd(unsealed, PAGE, &refused, NULL), STATUS_INVALID_ARGUMENT);
        assert_int_equal(memory_open_memfd(sealed, 4 * PAGE, &refused, NULL), STATUS_INVALID_ARGUMENT);
        memory_unref(memory);
    }
    assert_int_equal(count_fds(), fds);
    assert_int_equal(count_mappings("test"), 0);
    /* All at once. */
    static struct memory *memories[IMPORTS];
    for (unsigned i = 0; i < IMPORTS; i++) {
        memories[i] = import(sealed, 3 * PAGE + 1);
    }
    assert_int_equal(count_fds(), fds);
    assert_true(count_mappings("test") > 0);
    for (unsigned i = 0; i < IMPORTS; i++) {
        memory_unref(memories[i]);
    }
    assert_int_equal(count_mappings("test"), 0);
    close(unsealed);
    close(sealed);
}

/* The memory is charged until its last reference is gone, such as that of an operation. That may be after the
 * account was closed. */
static void test_charged_while_it_is_mapped(void **state)
{
    (void)state;
    uint64_t all[BUDGET_KINDS];
    struct budget *budget = NULL;
    struct budget_account *account = NULL;
    struct budget_info info;
    struct error error;
    int fd = make_memfd(4 * PAGE, F_SEAL_SHRINK);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        all[kind] = 6 * PAGE;
    }
    assert_int_equal(budget_new(all, &budget, &error), STATUS_OK);
    assert_int_equal(budget_open(budget, 1, NULL, &account, &error), STATUS_OK);
    struct memory *memory = import(fd, 4 * PAGE), *more = import(fd, 4 * PAGE);
    assert_int_equal(memory_charge(memory, account, &error), STATUS_OK);
    (void)memory_ref(memory);
    memory_unref(memory);
    assert_int_equal(memory_charge(more, account, &error), STATUS_LIMIT);
    memory_unref(more); /* not charged: gives nothing back */
    budget_account_info(account, &info);
    assert_int_equal(info.used[BUDGET_ADDRESSES], 4 * PAGE);
    assert_int_equal(info.used[BUDGET_MEMORIES], 1);
    memory_unref(memory);
    memory = import(fd, 4 * PAGE);
    assert_int_equal(memory_charge(memory, account, &error), STATUS_OK);
    budget_close(account);
    budget_free(budget);
    memory_unref(memory);
    close(fd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sealed),
        cmocka_unit_test(test_part_of_a_larger_file),
        cmocka_unit_test(test_seals),
        cmocka_unit_test(test_read_only),
        cmocka_unit_test(test_other_kinds),
        cmocka_unit_test(test_huge_pages),
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_no_more_addresses),
        cmocka_unit_test(test_range),
        cmocka_unit_test(test_client_cannot_truncate),
        cmocka_unit_test(test_left_out_of_core_dumps),
        cmocka_unit_test(test_references),
        cmocka_unit_test(test_wrap),
        cmocka_unit_test(test_nothing_leaks),
        cmocka_unit_test(test_charged_while_it_is_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
