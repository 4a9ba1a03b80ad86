#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/base/time.h"
#include "daemon/base/turns.h"

/* How much of the loop's time each line (queue of turns) gets. Each piece of work moves the clock by a given
 * time. */

static uint64_t clock_ns;

static uint64_t clock_now(void)
{
    return clock_ns;
}

struct worker {
    struct turn turn;
    uint64_t piece_ns;
    uint64_t pieces_left;
    uint64_t pieces_done;
    struct turns *turns;
    struct worker *cancels; /* after its piece */
};

static enum turn_result work(void *context, uint64_t now_ns)
{
    struct worker *worker = context;
    assert_true(now_ns <= clock_ns);
    if (worker->pieces_left == 0) {
        return TURN_NOTHING;
    }
    clock_ns += worker->piece_ns;
    worker->pieces_left--;
    worker->pieces_done++;
    if (worker->cancels != NULL) {
        turn_cancel(worker->turns, &worker->cancels->turn);
    }
    return worker->pieces_left > 0 ? TURN_MORE : TURN_DONE;
}

static void worker_new(struct worker *worker, struct turns *turns, struct turn_line *line, uint64_t piece_ns,
                       uint64_t pieces)
{
    *worker = (struct worker){.turn = {.line = line, .function = work, .context = worker},
                              .piece_ns = piece_ns,
                              .pieces_left = pieces,
                              .turns = turns};
    turn_queue(turns, &worker->turn);
    turn_queue(turns, &worker->turn);
}

static void test_one_piece(void **state)
{
    (void)state;
    struct turns turns = {.clock = clock_now};
    struct turn_line line = {0};
    struct worker worker;
    clock_ns = TIME_S;
    assert_false(turns_serve(&turns, clock_ns));
    worker_new(&worker, &turns, &line, 10, 1);
    assert_true(turns_wait(&turns));
    assert_true(turns_serve(&turns, clock_ns));
    assert_false(turns_wait(&turns));
    assert_int_equal(worker.pieces_done, 1);
    assert_int_equal(line.spent_ns, 10);
    worker_new(&worker, &turns, &line, 10, 0);
    assert_false(turns_serve(&turns, clock_ns)); /* nothing was done */
    assert_false(turns_wait(&turns));
}

/* A line with 400 endless turns gets no more time than other lines, and no call takes long. */
static void test_shares(void **state)
{
    (void)state;
    enum { MANY = 400 };
    static struct worker many[MANY];
    struct turns turns = {.clock = clock_now};
    struct turn_line lines[3] = {{0}};
    struct worker one, slow;
    clock_ns = TIME_S;
    for (int i = 0; i < MANY; i++) {
        worker_new(&many[i], &turns, &lines[0], 5 * TIME_US, UINT64_MAX);
    }
    worker_new(&one, &turns, &lines[1], TIME_US, UINT64_MAX);
    worker_new(&slow, &turns, &lines[2], 2 * TIME_MS, UINT64_MAX); /* far beyond a quantum */
    for (int i = 0; i < 10000; i++) {
        uint64_t before_ns = clock_ns;
        assert_true(turns_serve(&turns, clock_ns));
        assert_true(clock_ns - before_ns <=
                    TURNS_SERVE_NS + TURNS_PIECES_PER_LOOK * (2 * TIME_MS)); /* its pieces, at most */
    }
    uint64_t fair_ns = (lines[0].spent_ns + lines[1].spent_ns + lines[2].spent_ns) / 3;
    for (int i = 0; i < 3; i++) {
        assert_in_range(lines[i].spent_ns, fair_ns * 9 / 10, fair_ns * 11 / 10);
    }
    for (int i = 1; i < MANY; i++) { /* the turns of a line follow each other */
        assert_in_range(many[i].pieces_done, many[0].pieces_done - 1, many[0].pieces_done + 1);
    }
}

/* A new line waits for at most one quantum of each other line. A line does not save up time. */
static void test_newcomer(void **state)
{
    (void)state;
    struct turns turns = {.clock = clock_now};
    struct turn_line busy = {0}, idle = {0};
    struct worker endless, single;
    clock_ns = TIME_S;
    worker_new(&endless, &turns, &busy, TIME_US, UINT64_MAX);
    for (int i = 0; i < 1000; i++) {
        (void)turns_serve(&turns, clock_ns);
    }
    uint64_t before = endless.pieces_done;
    worker_new(&single, &turns, &idle, TIME_US, 1);
    (void)turns_serve(&turns, clock_ns);
    assert_int_equal(single.pieces_done, 1);
    assert_true(endless.pieces_done - before <= TURNS_SERVE_NS / TIME_US + TURNS_PIECES_PER_LOOK);
    assert_true(idle.left_ns <= 0);
}

static void test_cancel(void **state)
{
    (void)state;
    struct turns turns = {.clock = clock_now};
    struct turn_line line = {0}, other = {0};
    struct worker first, second, third;
    worker_new(&first, &turns, &line, 1, 1);
    worker_new(&second, &turns, &line, 1, 1);
    worker_new(&third, &turns, &other, 1, 1);
    first.cancels = &second; /* second is the last turn of the line that is being served */
    third.cancels = &third;
    turn_cancel(&turns, &third.turn);
    turn_cancel(&turns, &third.turn);
    assert_true(turns_serve(&turns, clock_ns));
    assert_false(turns_wait(&turns));
    assert_int_equal(first.pieces_done, 1);
    assert_int_equal(second.pieces_done + third.pieces_done, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_piece),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_newcomer),
        cmocka_unit_test(test_cancel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
