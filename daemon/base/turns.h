#ifndef DAEMON_BASE_TURNS_H
#define DAEMON_BASE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Who gets the loop's time: deficit round robin over lines (Shreedhar and Varghese 1996), with time as the
 * cost. Each line stands for one account and holds turns, which are served one after the other, a piece of
 * work each. A line that has used up its quantum waits until every other line had its own. What a piece takes
 * beyond the quantum is made up for later, so the size of one piece does not matter in the long run.
 *
 * A look at the clock costs about as much as a small piece: pieces are timed TURNS_PIECES_PER_LOOK at a time.
 *
 * Turns and lines are part of what their owners have, and are zero at first. One thread.
 */
#define TURNS_QUANTUM_NS 100000u /* of a line, each round */
#define TURNS_SERVE_NS 500000u   /* of one turns_serve: then the network is looked at */
#define TURNS_PIECES_PER_LOOK 4u

struct turn;
struct turn_line;

enum turn_result {
    TURN_NOTHING, /* there was nothing to do */
    TURN_DONE,    /* for now; the turn may be gone */
    TURN_MORE     /* the same turn again, after the others of its line */
};
/* Does one piece. now_ns may be some pieces old. */
typedef enum turn_result turn_function(void *context, uint64_t now_ns);

struct turn {
    struct turn *prev, *next;
    struct turn_line *line; /* whose time it takes; stays while the turn is queued */
    turn_function *function;
    void *context;
    bool queued;
};

struct turn_line {
    struct turn_line *prev, *next;
    struct turn *turns; /* that are queued */
    bool queued;
    int64_t left_ns;   /* of its quantum; below 0: owed */
    uint64_t spent_ns; /* ever */
};

struct turns {
    struct turn_line *lines; /* that have turns; the first is served next */
    struct turn_line *served;
    uint64_t (*clock)(void); /* ns */
};

/* At the end of its line; nothing when it is queued already. */
void turn_queue(struct turns *turns, struct turn *turn);
/* Takes it out, if it is queued. */
void turn_cancel(struct turns *turns, struct turn *turn);

/* Serves for about TURNS_SERVE_NS at most, and less than TURNS_PIECES_PER_LOOK pieces more. Returns whether
 * any piece did something. */
bool turns_serve(struct turns *turns, uint64_t now_ns);
static inline bool turns_wait(const struct turns *turns)
{
    return turns->lines != 0;
}

#endif
