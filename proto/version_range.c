#include "proto/version_range.h"

#include <stdio.h>

static uint32_t oldest_of(struct version_range range)
{
    return range.oldest == 0 ? range.newest : range.oldest;
}

uint32_t version_choose(struct version_range ours, struct version_range theirs)
{
    uint32_t newest = ours.newest < theirs.newest ? ours.newest : theirs.newest;
    return newest >= oldest_of(ours) && newest >= oldest_of(theirs) ? newest : 0;
}

const char *version_range_text(struct version_range range, char *text, size_t size)
{
    if (oldest_of(range) == range.newest) {
        (void)snprintf(text, size, "version %u", range.newest);
    } else {
        (void)snprintf(text, size, "versions %u to %u", oldest_of(range), range.newest);
    }
    return text;
}
