#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/dev/memory.h"

/* How much users get of what there is, and that all of it comes back. */

#define PAGE 4096u

static const uint64_t maxima[DEV_QUOTA_KINDS] = {1000, 100, 10};
static const uint64_t nothing[DEV_QUOTA_KINDS] = {0};

static struct dev_quota *quota_of(const uint64_t max[DEV_QUOTA_KINDS])
{
    struct dev_quota *quota = NULL;
    struct error error;
    assert_int_equal(dev_quota_new(max, &quota, &error), STATUS_OK);
    return quota;
}

static struct dev_quota_user *take(struct dev_quota *quota, uint32_t uid, uint64_t bytes)
{
    struct dev_quota_user *user = NULL;
    struct error error;
    if (dev_quota_take(quota, uid, (uint64_t[]){bytes, 1, 0}, &user, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return user;
}

static void refused(struct dev_quota *quota, uint32_t uid, const uint64_t amounts[DEV_QUOTA_KINDS],
                    const char *text)
{
    struct dev_quota_user *user = (struct dev_quota_user *)&user;
    struct error error = {0};
    assert_int_equal(dev_quota_take(quota, uid, amounts, &user, &error), STATUS_LIMIT);
    if (strstr(error.text, text) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", text, error.text);
    }
    assert_non_null(strstr(error.text, "commctl clients"));
    assert_ptr_equal(user, &user);
    assert_int_equal(dev_quota_take(quota, uid, amounts, &user, NULL), STATUS_LIMIT);
}

/* Alone, a user has half of it; each that comes finds some. */
static void test_shares(void **state)
{
    (void)state;
    struct dev_quota *quota = quota_of(maxima);
    struct dev_quota_user *first = take(quota, 1, 300);
    assert_ptr_equal(take(quota, 1, 200), first);
    refused(quota, 1, (uint64_t[]){1, 1, 0}, "1 bytes of addresses for user 1, who has 500");
    struct dev_quota_user *second = take(quota, 2, 250);
    refused(quota, 2, (uint64_t[]){1, 0, 0}, "of the 1000 of this commd 250 are left");
    struct dev_quota_user *third = take(quota, 3, 125);
    refused(quota, 3, (uint64_t[]){1, 0, 0}, "user 3, who has 125");
    /* Who has more than is left keeps it, and gets none. */
    refused(quota, 1, (uint64_t[]){1, 0, 0}, "user 1");
    dev_quota_give(first, (uint64_t[]){300, 1, 0});
    refused(quota, 2, (uint64_t[]){100, 0, 0}, "user 2");
    assert_ptr_equal(take(quota, 2, 50), second);
    dev_quota_give(first, (uint64_t[]){200, 1, 0});
    dev_quota_give(second, (uint64_t[]){300, 2, 0});
    dev_quota_give(third, (uint64_t[]){125, 1, 0});
    dev_quota_give(take(quota, 9, 500), (uint64_t[]){500, 1, 0});
    dev_quota_free(quota);
}

static void test_kinds(void **state)
{
    (void)state;
    struct dev_quota *quota = quota_of(maxima);
    struct error error;
    struct dev_quota_user *user = take(quota, 1, 1);
    for (unsigned i = 1; i < 50; i++) {
        (void)take(quota, 1, 1);
    }
    refused(quota, 1, (uint64_t[]){1, 1, 0}, "1 registered memories for user 1, who has 50");
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(dev_quota_take_more(user, (uint64_t[]){0, 0, 1}, &error), STATUS_OK);
    }
    assert_int_equal(dev_quota_take_more(user, (uint64_t[]){0, 0, 1}, &error), STATUS_LIMIT);
    assert_non_null(strstr(error.text, "parts of virtual memory on GPUs"));
    /* Nothing is asked of a kind of which there is none left. */
    struct dev_quota_user *other = take(quota, 2, 1);
    assert_int_equal(dev_quota_take_more(other, (uint64_t[]){0, 0, 2}, &error), STATUS_OK);
    assert_int_equal(dev_quota_take_more(user, (uint64_t[]){7, 0, 0}, &error), STATUS_OK);
    dev_quota_give(other, (uint64_t[]){1, 1, 2});
    dev_quota_give(user, (uint64_t[]){57, 50, 5});
    dev_quota_free(quota);
}

/* However large a number is, no sum of it is taken for a small one. */
static void test_large_numbers(void **state)
{
    (void)state;
    struct dev_quota *quota = quota_of(maxima);
    struct dev_quota_user *user = take(quota, 1, 10);
    static const uint64_t large[] = {501, 990, 991, 1000, 1001, INT64_MAX, UINT64_MAX - 10, UINT64_MAX};
    for (unsigned i = 0; i < sizeof large / sizeof *large; i++) {
        refused(quota, 1, (uint64_t[]){large[i], 0, 0}, "for user 1");
        refused(quota, 2, (uint64_t[]){0, large[i], 0}, "for user 2");
        refused(quota, 2, (uint64_t[]){0, 0, large[i]}, "for user 2, who has 0");
    }
    dev_quota_give(user, (uint64_t[]){10, 1, 0});
    dev_quota_free(quota);
    dev_quota_free(NULL);
}

static struct dev_memory *memory_of(uint64_t size_bytes)
{
    struct dev_memory *memory = NULL;
    struct error error;
    int fd = memfd_create("quota", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size_bytes), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    if (dev_memory_import(fd, size_bytes, &memory, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    close(fd);
    return memory;
}

/* Counted until the last reference has gone, that of an operation, say; which may be after the owner. */
static void test_memory_counts_while_it_is_mapped(void **state)
{
    (void)state;
    static const uint64_t max[DEV_QUOTA_KINDS] = {8 * PAGE, 100, 100};
    struct dev_quota *quota = quota_of(max);
    struct error error;
    struct dev_memory *memory = memory_of(4 * PAGE), *more = memory_of(PAGE);
    assert_int_equal(dev_memory_charge(memory, quota, 1, &error), STATUS_OK);
    (void)dev_memory_ref(memory);
    dev_memory_unref(memory);
    assert_int_equal(dev_memory_charge(more, quota, 1, &error), STATUS_LIMIT);
    dev_memory_unref(more); /* not charged: gives nothing back */
    refused(quota, 1, (uint64_t[]){1, 0, 0}, "user 1");
    dev_memory_unref(memory);
    memory = memory_of(4 * PAGE);
    assert_int_equal(dev_memory_charge(memory, quota, 1, &error), STATUS_OK);
    dev_quota_free(quota);
    dev_memory_unref(memory);
}

/* Of the limits of a real one: a process that has as many memories as it may leaves its user some. */
static void test_defaults(void **state)
{
    (void)state;
    struct dev_quota *quota = quota_of(NULL);
    struct dev_quota_user *user = NULL;
    struct error error;
    uint64_t half[DEV_QUOTA_KINDS] = {DEV_QUOTA_ADDRESSES_MAX_BYTES / 2, DEV_QUOTA_MEMORIES_MAX / 2,
                                      DEV_QUOTA_CHUNKS_MAX / 2};
    assert_int_equal(dev_quota_take(quota, 0, half, &user, &error), STATUS_OK);
    refused(quota, 0, (uint64_t[]){1, 0, 0}, "user 0");
    refused(quota, 0, (uint64_t[]){0, 0, 1}, "user 0");
    dev_quota_give(user, half);
    assert_int_equal(dev_quota_take(quota, 7, nothing, &user, &error), STATUS_OK);
    dev_quota_give(user, nothing);
    dev_quota_free(quota);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shares),        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_large_numbers), cmocka_unit_test(test_memory_counts_while_it_is_mapped),
        cmocka_unit_test(test_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
