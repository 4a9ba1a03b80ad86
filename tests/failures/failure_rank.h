#ifndef TESTS_FAILURES_FAILURE_RANK_H
#define TESTS_FAILURES_FAILURE_RANK_H

/* How the program failure_rank ends: one of two ranks that do a little of everything. */
enum failure_rank_end {
    RANK_WELL = 0,
    RANK_TOLD = 3, /* a call failed, with a text */
    RANK_WRONG = 4 /* bytes are wrong though the call said OK, or a failure has no text */
};

#endif
