#include "tests/unit/base/loop_fixture.h"

struct watched {
    int fd;
    unsigned calls;
};

static void watched_ready(void *context, unsigned events, uint64_t now_ns)
{
    (void)now_ns;
    struct watched *watched = context;
    assert_int_equal(events, LOOP_READ);
    char byte;
    assert_int_equal(read(watched->fd, &byte, 1), 1);
    watched->calls++;
}

/* Watches one end and writes a byte into the other, so that the next turn has something to read. */
static void watch_ready_fd(struct fixture *fixture, struct watched *watched)
{
    struct error error;
    struct loop_watch *watch;
    *watched = (struct watched){.fd = fixture->pair[0]};
    assert_int_equal(
        loop_watch_new(fixture->loop, fixture->pair[0], LOOP_READ, watched_ready, watched, &watch, &error),
        STATUS_OK);
    assert_int_equal(write(fixture->pair[1], "x", 1), 1);
}

enum { RECORD_MAX = 64 };

struct record {
    unsigned count;
    int ids[RECORD_MAX];
};

struct timed {
    struct loop_timer *timer;
    struct record *record;
    int id;
    uint64_t deadline_ns;
    uint64_t now_ns;
    unsigned calls;
    unsigned rearm_count; /* how often to set itself again */
    uint64_t rearm_ns;    /* after now; TIME_NEVER: in the past, at 0 */
    struct timed *frees[2];
};

static void timed_fire(void *context, uint64_t now_ns)
{
    struct timed *timed = context;
    timed->calls++;
    timed->now_ns = now_ns;
    if (timed->record != NULL) {
        assert_true(timed->record->count < RECORD_MAX);
        timed->record->ids[timed->record->count++] = timed->id;
    }
    if (timed->rearm_count > 0) {
        timed->rearm_count--;
        timed->deadline_ns = timed->rearm_ns == TIME_NEVER ? 0 : now_ns + timed->rearm_ns;
        loop_timer_set(timed->timer, timed->deadline_ns);
    }
    for (int i = 0; i < 2; i++) {
        if (timed->frees[i] != NULL) {
            loop_timer_free(timed->frees[i]->timer);
            timed->frees[i]->timer = NULL;
        }
    }
}

static void timer_new(struct loop *loop, struct timed *timed)
{
    struct error error;
    assert_int_equal(loop_timer_new(loop, timed_fire, timed, &timed->timer, &error), STATUS_OK);
}

static void timer_at(struct timed *timed, uint64_t deadline_ns)
{
    timed->deadline_ns = deadline_ns;
    loop_timer_set(timed->timer, deadline_ns);
}

static void turn_until_calls(struct loop *loop, const struct timed *timed, unsigned calls)
{
    for (int i = 0; i < 100 && timed->calls < calls; i++) {
        turn(loop, TURN_MS);
    }
    assert_int_equal(timed->calls, calls);
}

static void test_timer_fires_once_and_never_early(void **state)
{
    struct fixture *fixture = *state;
    struct timed timed = {0};
    timer_new(fixture->loop, &timed);
    static const uint64_t delays_ns[] = {1, 999, 1001, 50 * TIME_US, 3 * TIME_MS + 1, 20 * TIME_MS};
    for (size_t i = 0; i < sizeof(delays_ns) / sizeof(delays_ns[0]); i++) {
        timer_at(&timed, loop_now_ns() + delays_ns[i]);
        turn_until_calls(fixture->loop, &timed, (unsigned)i + 1);
        assert_true(timed.now_ns >= timed.deadline_ns);
        assert_true(timed.now_ns < timed.deadline_ns + TURN_MS * TIME_MS / 2);
        turn(fixture->loop, 1);
        assert_int_equal(timed.calls, i + 1);
    }
    /* Turns that do not wait look at the timers just before they are due. */
    for (int i = 0; i < 100; i++) {
        timed.calls = 0;
        timer_at(&timed, loop_now_ns() + 30 * TIME_US);
        while (timed.calls == 0) {
            turn(fixture->loop, 0);
        }
        assert_true(timed.now_ns >= timed.deadline_ns);
    }
    loop_timer_free(timed.timer);
    loop_timer_free(NULL);
}

static void test_timer_in_the_past_fires_without_wait(void **state)
{
    struct fixture *fixture = *state;
    struct timed timed = {0};
    timer_new(fixture->loop, &timed);
    static const uint64_t deadlines_ns[] = {0, 1};
    for (unsigned i = 0; i < 2; i++) {
        timer_at(&timed, deadlines_ns[i]);
        uint64_t before_ns = loop_now_ns();
        turn(fixture->loop, TURN_MS);
        assert_int_equal(timed.calls, i + 1);
        assert_true(loop_now_ns() - before_ns < TURN_MS * TIME_MS / 2);
    }
    timer_at(&timed, loop_now_ns() - 1);
    turn(fixture->loop, 0);
    assert_int_equal(timed.calls, 3);
}

/* Many timers with unordered deadlines, several of them equal. They fire by deadline. Timers with equal
 * deadlines fire in the order in which they were set. */
static void test_timers_fire_in_order(void **state)
{
    struct fixture *fixture = *state;
    enum { COUNT = 40 };
    struct record record = {0};
    struct timed timed[COUNT] = {0};
    uint64_t base_ns = loop_now_ns() + 20 * TIME_MS;
    for (int i = 0; i < COUNT; i++) {
        timed[i] = (struct timed){.record = &record, .id = i};
        timer_new(fixture->loop, &timed[i]);
        timer_at(&timed[i], base_ns + TIME_MS); /* replaced below */
    }
    for (int i = 0; i < COUNT; i++) {
        timer_at(&timed[i], base_ns + (uint64_t)(i * 17 % 10) * 10); /* ten deadlines, 10 ns apart */
    }
    while (record.count < COUNT) {
        turn(fixture->loop, TURN_MS);
    }
    for (int i = 1; i < COUNT; i++) {
        const struct timed *before = &timed[record.ids[i - 1]];
        const struct timed *after = &timed[record.ids[i]];
        assert_true(before->deadline_ns < after->deadline_ns ||
                    (before->deadline_ns == after->deadline_ns && before->id < after->id));
        assert_true(before->now_ns <= after->now_ns);
    }
    for (int i = 0; i < COUNT; i++) {
        assert_int_equal(timed[i].calls, 1);
        assert_true(timed[i].now_ns >= timed[i].deadline_ns);
    }
}

static void test_setting_replaces_and_never_disarms(void **state)
{
    struct fixture *fixture = *state;
    struct timed early = {0};
    struct timed late = {0};
    timer_new(fixture->loop, &early);
    timer_new(fixture->loop, &late);
    uint64_t now_ns = loop_now_ns();
    timer_at(&early, now_ns + TIME_MS);
    timer_at(&late, now_ns + 10 * TIME_MS);
    timer_at(&early, TIME_NEVER);
    timer_at(&early, TIME_NEVER);
    turn_until_calls(fixture->loop, &late, 1);
    assert_int_equal(early.calls, 0);

    now_ns = loop_now_ns();
    timer_at(&early, now_ns + 30000 * TIME_S);
    timer_at(&early, now_ns + TIME_MS); /* earlier than before */
    turn_until_calls(fixture->loop, &early, 1);
    assert_true(early.now_ns < now_ns + TURN_MS * TIME_MS / 2);

    timer_at(&early, loop_now_ns() + TIME_MS);
    timer_at(&early,
             loop_now_ns() + 15 * TIME_MS); /* later than before: the turn does not end early for nothing */
    turn(fixture->loop, TURN_MS);
    assert_int_equal(early.calls, 2);
    assert_true(early.now_ns >= early.deadline_ns);

    timer_at(&early, TIME_NEVER - 1); /* beyond any clock */
    turn(fixture->loop, 1);
    assert_int_equal(early.calls, 2);
}

static void test_timer_sets_itself_again(void **state)
{
    struct fixture *fixture = *state;
    struct timed timed = {.rearm_count = 4, .rearm_ns = 200 * TIME_US};
    timer_new(fixture->loop, &timed);
    uint64_t before_ns = loop_now_ns();
    timer_at(&timed, before_ns + TIME_MS);
    turn_until_calls(fixture->loop, &timed, 5);
    assert_true(loop_now_ns() >= before_ns + TIME_MS + 4 * 200 * TIME_US);
    turn(fixture->loop, 1);
    assert_int_equal(timed.calls, 5);
}

/* A timer that always asks for the past gets one call a turn, and starves neither fds nor other timers. */
static void test_greedy_timer_leaves_room(void **state)
{
    struct fixture *fixture = *state;
    struct timed greedy = {.rearm_count = 1000000, .rearm_ns = TIME_NEVER};
    struct timed modest = {0};
    struct watched watched;
    timer_new(fixture->loop, &greedy);
    timer_new(fixture->loop, &modest);
    timer_at(&greedy, 0);
    turn(fixture->loop, 0);
    turn(fixture->loop, 0);
    assert_int_equal(greedy.calls, 2);
    watch_ready_fd(fixture, &watched);
    timer_at(&modest, loop_now_ns());
    turn(fixture->loop, TURN_MS);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(watched.calls, 1);
    assert_int_equal(modest.calls, 1);
    assert_in_range(greedy.calls, 3, 4);
}

static void test_timers_free_themselves_and_each_other(void **state)
{
    struct fixture *fixture = *state;
    struct timed a = {0};
    struct timed b = {0};
    struct timed c = {0};
    timer_new(fixture->loop, &a);
    timer_new(fixture->loop, &b);
    timer_new(fixture->loop, &c);
    a.frees[0] = &a;
    a.frees[1] = &b; /* due as well */
    uint64_t now_ns = loop_now_ns();
    timer_at(&a, now_ns - 3);
    timer_at(&b, now_ns - 2);
    timer_at(&c, now_ns - 1);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(a.calls, 1);
    assert_int_equal(b.calls, 0);
    assert_int_equal(c.calls, 1);
    assert_null(a.timer);
    assert_null(b.timer);
}

/* A wake-up that an earlier turn left behind does not end a later turn before its time. */
static void test_run_once_does_not_end_for_nothing(void **state)
{
    struct fixture *fixture = *state;
    struct watched watched;
    struct timed timed = {0};
    watch_ready_fd(fixture, &watched);
    turn(fixture->loop, 20);
    assert_int_equal(watched.calls, 1);
    timer_new(fixture->loop, &timed);
    timer_at(&timed, loop_now_ns() + 40 * TIME_MS);
    turn(fixture->loop, TURN_MS);
    assert_int_equal(timed.calls, 1);
}

static void test_run_once_waits_no_longer_than_told(void **state)
{
    struct fixture *fixture = *state;
    struct timed timed = {0};
    timer_new(fixture->loop, &timed);
    timer_at(&timed, loop_now_ns() + 1000 * TIME_S);
    uint64_t before_ns = loop_now_ns();
    turn(fixture->loop, 10);
    uint64_t waited_ns = loop_now_ns() - before_ns;
    assert_true(waited_ns >= 10 * TIME_MS);
    assert_true(waited_ns < TURN_MS * TIME_MS / 2);
    assert_int_equal(timed.calls, 0);
    timer_at(&timed, loop_now_ns() + TIME_MS);
    turn(fixture->loop, UINT64_MAX); /* saturates; the timer ends the wait */
    assert_int_equal(timed.calls, 1);
}

int main(void)
{
#define LOOP_TEST(function) cmocka_unit_test_setup_teardown(function, fixture_make, fixture_free)
    const struct CMUnitTest tests[] = {
        LOOP_TEST(test_timer_fires_once_and_never_early),
        LOOP_TEST(test_timer_in_the_past_fires_without_wait),
        LOOP_TEST(test_timers_fire_in_order),
        LOOP_TEST(test_setting_replaces_and_never_disarms),
        LOOP_TEST(test_timer_sets_itself_again),
        LOOP_TEST(test_greedy_timer_leaves_room),
        LOOP_TEST(test_timers_free_themselves_and_each_other),
        LOOP_TEST(test_run_once_does_not_end_for_nothing),
        LOOP_TEST(test_run_once_waits_no_longer_than_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
