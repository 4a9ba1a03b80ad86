#ifndef DAEMON_BASE_TURNS_H
#define DAEMON_BASE_TURNS_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Divides the loop's time: deficit round robin over lines (Shreedhar and Varghese 1996), with time as the
 * cost. Each line stands for one account and holds turns. They are served in order, one piece of work each. A
 * line that has used up its quantum waits until every other line has had its own. If a piece takes longer
 * than what is left of the quantum, the excess counts against the line's next quantum. So the size of one
 * piece does not matter in the long run.
 *
 * Reading the clock costs about as much as a small piece, so it is read once per TURNS_PIECES_PER_LOOK
 * pieces. An owner whose pieces may be long sets a smaller number.
 *
 * Turns and lines are embedded in their owners' structs, and are zero at first. One thread.
 */
#define TURNS_QUANTUM_NS 100000u /* of a line, each round */
#define TURNS_SERVE_NS 500000u   /* of one turns_serve: then the loop looks at the network */
#define TURNS_PIECES_PER_LOOK 4u

struct turn;
struct turn_line;

enum turn_result {
    TURN_NOTHING, /* there was nothing to do */
    TURN_DONE,    /* done for now; the turn may be freed */
    TURN_MORE     /* run the same turn again, after the others of its line */
};
/* Does one piece of work. now_ns may be as old as some pieces take. */
typedef enum turn_result turn_function(void *context, uint64_t now_ns);

struct turn {
    struct turn *prev, *next;
    struct turn_line *line; /* the line that pays; stays while the turn is queued */
    turn_function *function;
    void *context;
    bool queued;
};

struct turn_line {
    struct turn_line *prev, *next;
    struct turn *turns; /* the queued ones */
    bool queued;
    int64_t left_ns;   /* of its quantum; negative: owed */
    uint64_t spent_ns; /* since the line was made */
};

struct turns {
    unsigned pieces_per_look; /* 0: TURNS_PIECES_PER_LOOK */
    uint64_t serve_ns;        /* 0: TURNS_SERVE_NS */
    struct turn_line *lines;  /* that have turns; the first is served next */
    struct turn_line *served;
    uint64_t (*clock)(void); /* ns */
};

/* Queues the turn at the end of its line. Does nothing if it is queued already. */
void turn_queue(struct turns *turns, struct turn *turn);
/* Takes the turn out if it is queued. */
void turn_cancel(struct turns *turns, struct turn *turn);

/* Serves for about serve_ns, plus fewer than pieces_per_look pieces. Returns whether any piece
 * did something. */
bool turns_serve(struct turns *turns, uint64_t now_ns);
static inline bool turns_wait(const struct turns *turns)
{
    return turns->lines != 0;
}

#endif
