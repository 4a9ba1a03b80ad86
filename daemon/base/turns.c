#include "daemon/base/turns.h"

#include <stddef.h>

#include <utlist.h>

void turn_queue(struct turns *turns, struct turn *turn)
{
    struct turn_line *line = turn->line;
    if (turn->queued) {
        return;
    }
    turn->queued = true;
    DL_APPEND(line->turns, turn);
    if (!line->queued) {
        line->queued = true;
        DL_APPEND(turns->lines, line);
    }
}

static void line_leave(struct turns *turns, struct turn_line *line)
{
    line->queued = false;
    line->left_ns = line->left_ns < 0 ? line->left_ns : 0; /* unused time is not saved up */
    DL_DELETE(turns->lines, line);
}

void turn_cancel(struct turns *turns, struct turn *turn)
{
    struct turn_line *line = turn->line;
    if (!turn->queued) {
        return;
    }
    turn->queued = false;
    DL_DELETE(line->turns, turn);
    if (line->turns == NULL && line != turns->served) {
        line_leave(turns, line);
    }
}

/* Does some pieces of one line, until it is time to read the clock. Returns whether any did something. */
static bool line_serve(const struct turns *turns, struct turn_line *line, uint64_t now_ns)
{
    bool any = false;
    unsigned pieces = turns->pieces_per_look != 0 ? turns->pieces_per_look : TURNS_PIECES_PER_LOOK;
    for (unsigned piece = 0; piece < pieces && line->turns != NULL; piece++) {
        struct turn *turn = line->turns;
        turn->queued = false;
        DL_DELETE(line->turns, turn);
        enum turn_result result = turn->function(turn->context, now_ns);
        any |= result != TURN_NOTHING;
        if (result == TURN_MORE && !turn->queued) {
            turn->queued = true;
            DL_APPEND(line->turns, turn);
        }
    }
    return any;
}

bool turns_serve(struct turns *turns, uint64_t now_ns)
{
    uint64_t last_ns = now_ns;
    uint64_t serve_ns = turns->serve_ns != 0 ? turns->serve_ns : TURNS_SERVE_NS;
    bool any = false;
    while (turns->lines != NULL && last_ns - now_ns < serve_ns) {
        struct turn_line *line = turns->lines;
        if (line->left_ns <= 0) {
            line->left_ns += TURNS_QUANTUM_NS;
        }
        while (line->left_ns > 0 && line->turns != NULL && last_ns - now_ns < serve_ns) {
            turns->served = line; /* the line stays queued even if its pieces cancel all its turns */
            bool did = line_serve(turns, line, last_ns);
            turns->served = NULL;
            if (did) {
                uint64_t looked_ns = turns->clock();
                line->left_ns -= (int64_t)(looked_ns - last_ns);
                line->spent_ns += looked_ns - last_ns;
                last_ns = looked_ns;
                any = true;
            }
        }
        if (line->turns == NULL) {
            line_leave(turns, line);
        } else if (line->left_ns <= 0) { /* the next line's turn */
            DL_DELETE(turns->lines, line);
            DL_APPEND(turns->lines, line);
        }
    }
    return any;
}
