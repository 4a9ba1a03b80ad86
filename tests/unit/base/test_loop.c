#include "tests/unit/base/loop_fixture.h"

#include <fcntl.h>
#include <signal.h>

#include "daemon/base/lag.h"

/* --- watches --- */

struct watched {
    struct loop_watch *watch;
    unsigned calls;
    unsigned events;
    uint64_t now_ns;
    int drain_fd; /* read when readable; -1: left readable */
};

static void watched_ready(void *context, unsigned events, uint64_t now_ns)
{
    struct watched *watched = context;
    watched->calls++;
    watched->events = events;
    watched->now_ns = now_ns;
    if ((events & LOOP_READ) != 0 && watched->drain_fd >= 0) {
        char bytes[16];
        while (read(watched->drain_fd, bytes, sizeof(bytes)) > 0) {
        }
    }
}

static void watch_new(struct loop *loop, int fd, unsigned events, struct watched *watched)
{
    struct error error;
    assert_int_equal(loop_watch_new(loop, fd, events, watched_ready, watched, &watched->watch, &error),
                     STATUS_OK);
}

static void test_watch_reports_what_is_ready(void **state)
{
    struct fixture *fixture = *state;
    struct watched watched = {.drain_fd = -1};
    watch_new(fixture->loop, fixture->pair[0], LOOP_READ, &watched);
    turn(fixture->loop, 0);
    assert_int_equal(watched.calls, 0);

    uint64_t before_ns = loop_now_ns();
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(watched.events, LOOP_READ);
    assert_true(watched.now_ns >= before_ns && watched.now_ns <= loop_now_ns());
    turn(fixture->loop, TURN_MS); /* level-triggered: still readable */
    assert_int_equal(watched.calls, 2);

    loop_watch_set(watched.watch, LOOP_READ | LOOP_WRITE);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 3);
    assert_int_equal(watched.events, LOOP_READ | LOOP_WRITE);

    loop_watch_set(watched.watch, LOOP_WRITE);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 4);
    assert_int_equal(watched.events, LOOP_WRITE);

    loop_watch_set(watched.watch, 0);
    turn(fixture->loop, 0);
    assert_int_equal(watched.calls, 4);

    loop_watch_set(watched.watch, LOOP_READ);
    watched.drain_fd = fixture->pair[0];
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 5);
    turn(fixture->loop, 0);
    assert_int_equal(watched.calls, 5);

    loop_watch_free(watched.watch);
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
    turn(fixture->loop, 0);
    assert_int_equal(watched.calls, 5);
    loop_watch_free(NULL);
}

static void test_watch_made_paused_then_set(void **state)
{
    struct fixture *fixture = *state;
    struct watched watched = {.drain_fd = fixture->pair[0]};
    watch_new(fixture->loop, fixture->pair[0], 0, &watched);
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
    turn(fixture->loop, 0);
    assert_int_equal(watched.calls, 0);
    loop_watch_set(watched.watch, LOOP_READ);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 1);
    loop_watch_free(watched.watch);
}

static void test_hang_up_is_ready(void **state)
{
    struct fixture *fixture = *state;
    struct watched watched = {.drain_fd = -1};
    watch_new(fixture->loop, fixture->pair[0], LOOP_READ, &watched);
    shutdown(fixture->pair[1], SHUT_RDWR);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(watched.events, LOOP_READ);
}

static void test_watch_of_a_bad_fd_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    struct loop_watch *watch = NULL;
    int closed = dup(fixture->pair[0]);
    close(closed);
    memset(&error, 0xa5, sizeof(error));
    assert_int_equal(loop_watch_new(fixture->loop, closed, LOOP_READ, watched_ready, NULL, &watch, &error),
                     STATUS_SYSTEM);
    assert_int_equal(error.status, STATUS_SYSTEM);
    assert_non_null(strstr(error.text, "Bad file descriptor"));

    int regular = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    assert_true(regular >= 0);
    assert_int_equal(loop_watch_new(fixture->loop, regular, LOOP_READ, watched_ready, NULL, &watch, &error),
                     STATUS_SYSTEM);
    assert_non_null(strstr(error.text, "Operation not permitted"));
    close(regular);
    assert_null(watch);
    turn(fixture->loop, 0);
}

/* Two watches of ready fds. The one that is called first frees (or pauses) both. The other must not be
 * called. */
struct rivals {
    struct loop_watch *watches[2];
    unsigned calls;
    bool pause;
};

static void rival_ready(void *context, unsigned events, uint64_t now_ns)
{
    (void)events;
    (void)now_ns;
    struct rivals *rivals = context;
    rivals->calls++;
    for (int i = 0; i < 2; i++) {
        if (rivals->pause) {
            loop_watch_set(rivals->watches[i], 0);
        } else {
            loop_watch_free(rivals->watches[i]);
        }
    }
}

static void check_rivals(struct fixture *fixture, bool pause)
{
    struct error error;
    struct rivals rivals = {.pause = pause};
    assert_int_equal(write(fixture->pair[0], "x", 1), 1);
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(loop_watch_new(fixture->loop, fixture->pair[i], LOOP_READ, rival_ready, &rivals,
                                        &rivals.watches[i], &error),
                         STATUS_OK);
    }
    turn(fixture->loop, TURN_MS);
    assert_int_equal(rivals.calls, 1);
    turn(fixture->loop, 0);
    assert_int_equal(rivals.calls, 1);
    for (int i = 0; pause && i < 2; i++) {
        loop_watch_free(rivals.watches[i]);
    }
}

static void test_watches_free_each_other_when_ready(void **state)
{
    check_rivals(*state, false);
}

static void test_watches_pause_each_other_when_ready(void **state)
{
    check_rivals(*state, true);
}

/* --- signals --- */

struct signalled {
    unsigned calls;
    int number;
};

static void signal_arrived(void *context, int signal_number, uint64_t now_ns)
{
    struct signalled *signalled = context;
    assert_true(now_ns <= loop_now_ns());
    signalled->calls++;
    signalled->number = signal_number;
}

static void test_signals_arrive_on_the_loop(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    struct signalled user = {0};
    struct signalled terminate = {0};
    assert_int_equal(loop_signal(fixture->loop, SIGUSR1, signal_arrived, &user, &error), STATUS_OK);
    assert_int_equal(loop_signal(fixture->loop, SIGTERM, signal_arrived, &terminate, &error), STATUS_OK);
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        turn(fixture->loop, TURN_MS);
        assert_int_equal(user.calls, i);
        assert_int_equal(user.number, SIGUSR1);
    }
    assert_int_equal(terminate.calls, 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(terminate.calls, 1);
    assert_int_equal(terminate.number, SIGTERM);

    loop_free(fixture->loop); /* gives the signals back */
    fixture->loop = NULL;
    struct sigaction action;
    assert_int_equal(sigaction(SIGUSR1, NULL, &action), 0);
    assert_true(action.sa_handler == SIG_DFL);
}

static void test_bad_signal_is_an_error(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    memset(&error, 0xa5, sizeof(error));
    assert_int_equal(loop_signal(fixture->loop, SIGKILL, signal_arrived, NULL, &error), STATUS_SYSTEM);
    assert_non_null(strstr(error.text, "signal 9"));
}

/* --- lag --- */

static void count_call(void *context, uint64_t now_ns)
{
    (void)now_ns;
    ++*(unsigned *)context;
}

/* A timer that was due before the loop's first turn. The clock only moves on meanwhile, so the lag lies
 * between two times that the test knows. test_lag.c has the rest. */
static void test_lag(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    struct loop_timer *timer;
    unsigned calls = 0;
    assert_int_equal(loop_lag_ns(fixture->loop, loop_now_ns()), 0);
    assert_int_equal(loop_timer_new(fixture->loop, count_call, &calls, &timer, &error), STATUS_OK);
    uint64_t due_ns = loop_now_ns() - 30 * TIME_MS;
    loop_timer_set(timer, due_ns);
    turn(fixture->loop, TURN_MS);
    uint64_t after_ns = loop_now_ns();
    assert_int_equal(calls, 1);
    assert_in_range(loop_lag_ns(fixture->loop, after_ns), 30 * TIME_MS, after_ns - due_ns);
    assert_int_equal(loop_lag_ns(fixture->loop, after_ns + 2ull * LAG_WINDOW_NS), 0);
    loop_timer_free(timer);
}

int main(void)
{
#define LOOP_TEST(function) cmocka_unit_test_setup_teardown(function, fixture_make, fixture_free)
    const struct CMUnitTest tests[] = {
        LOOP_TEST(test_watch_reports_what_is_ready),
        LOOP_TEST(test_watch_made_paused_then_set),
        LOOP_TEST(test_hang_up_is_ready),
        LOOP_TEST(test_watch_of_a_bad_fd_is_an_error),
        LOOP_TEST(test_watches_free_each_other_when_ready),
        LOOP_TEST(test_watches_pause_each_other_when_ready),
        LOOP_TEST(test_signals_arrive_on_the_loop),
        LOOP_TEST(test_bad_signal_is_an_error),
        LOOP_TEST(test_lag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
