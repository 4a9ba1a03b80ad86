#ifndef TESTS_FAILURES_FAILURE_RANK_H
#define TESTS_FAILURES_FAILURE_RANK_H

/* The exit codes of the program failure_rank, which is one of two ranks that do a little of everything. */
enum failure_rank_end {
    RANK_WELL = 0,
    RANK_TOLD = 3, /* a call failed, and the library had an error text */
    RANK_WRONG = 4 /* bytes are wrong though the calls reported success, or a failure has no text */
};

#endif
