#include "tests/unit/base/loop_fixture.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <time.h>

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

/* Two watches of ready fds; whichever is called first frees (or pauses) both. The other must not be called.
 */
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

/* --- tasks --- */

enum { POSTS = 10000 };

struct posts {
    struct loop *loop;
    pthread_t loop_thread;
    _Atomic unsigned run; /* the loop's thread writes it */
    bool in_order;
    unsigned char numbers[POSTS]; /* posted by address: its offset is the number */
};

static struct posts posts;

static void post_run(void *context, uint64_t now_ns)
{
    (void)now_ns;
    size_t number = (size_t)((unsigned char *)context - posts.numbers);
    posts.in_order &= number == posts.run && pthread_equal(pthread_self(), posts.loop_thread);
    posts.run++;
    if (posts.run == POSTS) {
        loop_stop(posts.loop);
    }
}

static void *post_all(void *context)
{
    (void)context;
    for (size_t i = 0; i < POSTS; i++) {
        while (loop_post(posts.loop, post_run, &posts.numbers[i]) != STATUS_OK) {
            sched_yield();
        }
        while (i % 1000 == 999 && posts.run <= i) {
            sched_yield(); /* now and then the loop has nothing to do */
        }
    }
    return NULL;
}

static void test_post_from_another_thread(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    memset(&posts, 0, sizeof(posts));
    posts.loop = fixture->loop;
    posts.loop_thread = pthread_self();
    posts.in_order = true;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, post_all, NULL), 0);
    assert_int_equal(loop_run(fixture->loop, &error), STATUS_OK);
    pthread_join(thread, NULL);
    assert_int_equal(posts.run, POSTS);
    assert_true(posts.in_order);
}

struct chain {
    struct loop *loop;
    unsigned left;
    unsigned depth; /* of calls within calls: must stay 1 */
    unsigned deepest;
};

static void chain_task(void *context, uint64_t now_ns)
{
    (void)now_ns;
    struct chain *chain = context;
    chain->depth++;
    chain->deepest = chain->depth > chain->deepest ? chain->depth : chain->deepest;
    if (chain->left > 0) {
        chain->left--;
        assert_int_equal(loop_post(chain->loop, chain_task, chain), STATUS_OK);
    }
    chain->depth--;
}

static void test_tasks_post_tasks_without_wait(void **state)
{
    struct fixture *fixture = *state;
    struct chain chain = {.loop = fixture->loop, .left = 5};
    struct watched watched = {.drain_fd = fixture->pair[0]};
    watch_new(fixture->loop, fixture->pair[0], LOOP_READ, &watched);
    assert_int_equal(loop_post(fixture->loop, chain_task, &chain), STATUS_OK);
    assert_int_equal(chain.left, 5);
    uint64_t before_ns = loop_now_ns();
    turn(fixture->loop, TURN_MS);
    assert_int_equal(chain.left, 4); /* one a turn, so that fds are looked at in between */
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
    while (chain.left > 0) {
        turn(fixture->loop, TURN_MS);
    }
    turn(fixture->loop, TURN_MS);
    assert_true(loop_now_ns() - before_ns < TURN_MS * TIME_MS / 2);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(chain.deepest, 1);
}

static void count_task(void *context, uint64_t now_ns)
{
    (void)now_ns;
    unsigned *count = context;
    (*count)++;
}

static void test_posts_are_bounded_and_dropped_at_the_end(void **state)
{
    struct fixture *fixture = *state;
    unsigned count = 0;
    for (int round = 0; round < 2; round++) {
        count = 0;
        for (unsigned i = 0; i < LOOP_TASKS_MAX; i++) {
            assert_int_equal(loop_post(fixture->loop, count_task, &count), STATUS_OK);
        }
        assert_int_equal(loop_post(fixture->loop, count_task, &count), STATUS_LIMIT);
        turn(fixture->loop, TURN_MS);
        assert_int_equal(count, LOOP_TASKS_MAX);
    }
    assert_int_equal(loop_post(fixture->loop, count_task, &count), STATUS_OK);
    loop_free(fixture->loop);
    fixture->loop = NULL;
    assert_int_equal(count, LOOP_TASKS_MAX);
    loop_free(NULL);
}

static _Atomic bool stops;

static void *stop_later(void *context)
{
    stops = true;
    loop_stop(context);
    return NULL;
}

static void test_stop_from_another_thread_and_before_run(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    loop_stop(fixture->loop);
    assert_int_equal(loop_run(fixture->loop, &error), STATUS_OK); /* at once */
    pthread_t thread;
    stops = false;
    assert_int_equal(pthread_create(&thread, NULL, stop_later, fixture->loop), 0);
    assert_int_equal(loop_run(fixture->loop, &error), STATUS_OK);
    assert_true(stops); /* the first stop was used up */
    pthread_join(thread, NULL);
}

/* --- signals --- */

struct signalled {
    struct loop *loop;
    unsigned calls;
    int number;
};

static void signal_arrived(void *context, int signal_number, uint64_t now_ns)
{
    struct signalled *signalled = context;
    assert_true(now_ns <= loop_now_ns());
    signalled->calls++;
    signalled->number = signal_number;
    loop_stop(signalled->loop);
}

static void test_signals_arrive_on_the_loop(void **state)
{
    struct fixture *fixture = *state;
    struct error error;
    struct signalled user = {.loop = fixture->loop};
    struct signalled terminate = {.loop = fixture->loop};
    assert_int_equal(loop_signal(fixture->loop, SIGUSR1, signal_arrived, &user, &error), STATUS_OK);
    assert_int_equal(loop_signal(fixture->loop, SIGTERM, signal_arrived, &terminate, &error), STATUS_OK);
    for (unsigned i = 1; i <= 3; i++) {
        assert_int_equal(kill(getpid(), SIGUSR1), 0);
        assert_int_equal(loop_run(fixture->loop, &error), STATUS_OK);
        assert_int_equal(user.calls, i);
        assert_int_equal(user.number, SIGUSR1);
    }
    assert_int_equal(terminate.calls, 0);
    assert_int_equal(kill(getpid(), SIGTERM), 0);
    assert_int_equal(loop_run(fixture->loop, &error), STATUS_OK);
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
        LOOP_TEST(test_post_from_another_thread),
        LOOP_TEST(test_tasks_post_tasks_without_wait),
        LOOP_TEST(test_posts_are_bounded_and_dropped_at_the_end),
        LOOP_TEST(test_stop_from_another_thread_and_before_run),
        LOOP_TEST(test_signals_arrive_on_the_loop),
        LOOP_TEST(test_bad_signal_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
