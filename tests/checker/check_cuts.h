#ifndef TESTS_CHECKER_CHECK_CUTS_H
#define TESTS_CHECKER_CHECK_CUTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* An ascending set of the places where a range is cut into parts, for coll_check. All zeros: an empty set. */
struct coll_cuts {
    uint64_t *list; /* the settled cuts in order, then the new ones, which may repeat */
    size_t settled;
    size_t count;
    size_t capacity;
};

/* Returns false if there is no memory. */
bool coll_cuts_add(struct coll_cuts *cuts, uint64_t place) __attribute__((warn_unused_result));

/* Sorts what was added; returns whether there were new ones. */
bool coll_cuts_settle(struct coll_cuts *cuts);

/* Returns the index of the first settled cut at `place` or after it; cuts->settled if there is none. */
size_t coll_cuts_at(const struct coll_cuts *cuts, uint64_t place);

void coll_cuts_free(struct coll_cuts *cuts);

#endif
