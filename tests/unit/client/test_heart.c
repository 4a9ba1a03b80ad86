#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "tests/unit/client/client_pair.h"

/* WAITS = True */

/* How the library checks commd's heartbeat, with the test's own clock. */

#define MS 1000000ull
#define LOOK_MS (HEART_LOOK_NS / MS)
#define STEP_MS (HEART_STEP_MAX_NS / MS)

static uint64_t ms(uint64_t value)
{
    return 1000000000ull + value * MS;
}

static void test_it_stands_still(void **state)
{
    (void)state;
    struct client_heartbeat page = {.beats = 7};
    struct client_heart heart = {.page = &page};
    struct heart_watch watch = {0};
    uint64_t now_ms = 0;
    for (unsigned turn = 0; turn < 3; turn++) { /* it beats: no number of looks finds it still */
        page.beats++;
        for (unsigned i = 0; i < 50; i++) {
            assert_false(heart_stands_still(&heart, &watch, ms(now_ms++)));
        }
    }
    page.beats++;
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
    unsigned looks = 0;
    uint64_t stopped_ms = now_ms;
    while (!heart_stands_still(&heart, &watch, ms(now_ms += 10))) {
        assert_true(++looks < 1000);
    }
    assert_int_equal(now_ms - stopped_ms, HEART_STILL_MS);
    page.beats++;
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
}

/* It never counts as lost while the other nodes still wait for it, whenever its last beat was. */
static void test_the_patience_of_the_nodes(void **state)
{
    (void)state;
    const uint32_t patiences_ms[] = {0, 50, 1000, 2400, 2401, 4000, 10000, 600000, UINT32_MAX};
    for (size_t i = 0; i < sizeof patiences_ms / sizeof *patiences_ms; i++) {
        struct client_heartbeat page = {.beats = 1};
        struct client_heart heart = {.page = &page};
        struct heart_watch watch = {0};
        uint64_t now_ms = 0;
        heart_set_patience(&heart, patiences_ms[i]);
        while (!heart_stands_still(&heart, &watch, ms(now_ms))) {
            now_ms += 50;
            assert_true(now_ms <= HEART_PATIENCE_MAX_MS + 2 * CLIENT_HEARTBEAT_MS);
        }
        uint32_t known_ms = patiences_ms[i] < HEART_PATIENCE_MAX_MS ? patiences_ms[i] : HEART_PATIENCE_MAX_MS;
        uint32_t least_ms = known_ms + CLIENT_HEARTBEAT_MS;
        least_ms = least_ms > HEART_STILL_MS ? least_ms : HEART_STILL_MS;
        assert_in_range(now_ms, least_ms, least_ms + 50);
        assert_int_equal(heart_still_ms(&heart), least_ms);
    }
}

/* The bar for a silent host is 4.5 s. commd stands still; its last beat was seen one look later. A waiting
 * thread looks once each HEART_LOOK_NS, and is a little late each time. */
static void test_the_bar_of_a_silent_host(void **state)
{
    (void)state;
    for (uint64_t late_ms = 0; late_ms <= 5; late_ms++) {
        struct client_heartbeat page = {.beats = 1};
        struct client_heart heart = {.page = &page};
        struct heart_watch watch = {0};
        uint64_t now_ms = LOOK_MS;
        heart_set_patience(&heart, 4000);
        while (!heart_stands_still(&heart, &watch, ms(now_ms))) {
            now_ms += LOOK_MS + late_ms;
        }
        assert_in_range(now_ms, 4000 + LOOK_MS, 4500);
    }
}

/* After a beat in between, the count of looks starts anew. */
static void test_a_slow_one_is_alive(void **state)
{
    (void)state;
    struct client_heartbeat page = {.beats = 0};
    struct client_heart heart = {.page = &page};
    struct heart_watch watch = {0};
    uint64_t now_ms = 0;
    for (unsigned turn = 0; turn < 100; turn++) {
        for (unsigned look = 0; look < HEART_STILL_MS / LOOK_MS; look++) {
            assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
            now_ms += LOOK_MS;
        }
        page.beats++;
    }
}

/* This process itself was stopped, for any length of time. That counts for a moment only. */
static void test_own_time_counts_alone(void **state)
{
    (void)state;
    struct client_heartbeat page = {.beats = 0};
    struct client_heart heart = {.page = &page};
    struct heart_watch watch = {0};
    uint64_t now_ms = 0;
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
    for (unsigned look = 0; look < HEART_STILL_MS / STEP_MS - 1; look++) {
        now_ms += 3600000;
        assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
    }
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms + STEP_MS - 1)));
    page.beats++;
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms + STEP_MS)));
    assert_int_equal(watch.still_ns, 0);
}

/* commd has said that a call may take long: to pin gigabytes, or to open a GPU's memory. */
static void test_a_long_call(void **state)
{
    (void)state;
    struct client_heartbeat page = {.beats = 5, .long_calls = 1};
    struct client_heart heart = {.page = &page};
    struct heart_watch watch = {0};
    uint64_t now_ms = 0;
    for (; now_ms < HEART_LONG_MS; now_ms += LOOK_MS) {
        assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
    }
    assert_true(heart_stands_still(&heart, &watch, ms(now_ms)));
    page.beats++;
    page.long_calls = 0;
    assert_false(heart_stands_still(&heart, &watch, ms(now_ms)));
}

static void test_none_never_stands_still(void **state)
{
    (void)state;
    struct client_heart none = {.page = NULL};
    struct heart_watch watch = {0};
    for (unsigned i = 0; i < 100; i++) {
        assert_false(heart_stands_still(&none, &watch, ms(i * 3600000ull)));
    }
    heart_close(&none);
}

static int make_file(size_t size, int seals)
{
    int fd = memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void test_what_commd_passes(void **state)
{
    (void)state;
    struct client_heart heart = {.page = NULL};
    int short_one[CLIENT_HEARTBEAT_FDS] = {make_file(4, F_SEAL_SHRINK), make_file(0, 0)};
    assert_false(heart_open(&heart, short_one));
    assert_null(heart.page);
    assert_int_equal(fcntl(short_one[0], F_GETFD), -1); /* taken over, and closed */
    assert_int_equal(fcntl(short_one[1], F_GETFD), -1);
    int unsealed[CLIENT_HEARTBEAT_FDS] = {make_file(4096, F_SEAL_GROW), make_file(0, 0)};
    /* commd could shorten it: the next look would end the process. */
    assert_false(heart_open(&heart, unsealed));
    assert_int_equal(fcntl(unsealed[0], F_GETFD), -1);
    assert_int_equal(fcntl(unsealed[1], F_GETFD), -1);
    int good[CLIENT_HEARTBEAT_FDS] = {make_file(4096, F_SEAL_SHRINK), make_file(0, 0)};
    uint64_t beats = 41;
    assert_int_equal(pwrite(good[0], &beats, sizeof beats, 0), sizeof beats);
    assert_true(heart_open(&heart, good));
    assert_int_equal(heart.page->beats, 41);
    heart_close(&heart);
    assert_int_equal(fcntl(good[1], F_GETFD), -1);
}

/* The caller's memory is safe once commd's process has ended, and not before. */
static void test_memory_of_a_frozen_commd(void **state)
{
    (void)state;
    struct pair pair = pair_start(NULL);
    struct client_heartbeat page = {.beats = 3};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    int fd = memfd_create("mine", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_int_equal(ftruncate(fd, 4096), 0);
    void *memory = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_int_equal(comm_mem_register(pair.client, memory, 4096, fd, 0), COMM_OK);
    comm_t *comm = pair_comm(&pair, "frozen", 0, 1);
    pair.client->heart =
        (struct client_heart){.page = &page, .daemon_fd = (int)syscall(SYS_pidfd_open, child, 0)};
    pthread_mutex_lock(&pair.client->lock);
    client_lose_frozen(pair.client);
    assert_true(client_daemon_may_write(pair.client));
    pthread_mutex_unlock(&pair.client->lock);
    assert_int_equal(comm_sync(comm, 0), COMM_DAEMON_LOST);
    assert_error_says("it may still write to registered buffers");
    assert_int_equal(comm_mem_deregister(pair.client, memory), COMM_BUSY);
    assert_error_says("commd's process has not ended");
    kill(child, SIGKILL);
    assert_int_equal(comm_mem_deregister(pair.client, memory), COMM_OK);
    assert_int_equal(comm_mem_deregister(pair.client, memory), COMM_NOT_FOUND);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(pair.client->heart.daemon_fd);
    pair.client->heart.page = NULL; /* the test's */
    munmap(memory, 4096);
    close(fd);
    comm_destroy(comm);
    pair_stop(&pair);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_stands_still),
        cmocka_unit_test(test_the_patience_of_the_nodes),
        cmocka_unit_test(test_the_bar_of_a_silent_host),
        cmocka_unit_test(test_a_slow_one_is_alive),
        cmocka_unit_test(test_a_long_call),
        cmocka_unit_test(test_own_time_counts_alone),
        cmocka_unit_test(test_none_never_stands_still),
        cmocka_unit_test(test_what_commd_passes),
        cmocka_unit_test(test_memory_of_a_frozen_commd),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
