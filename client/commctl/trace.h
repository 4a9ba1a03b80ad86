#ifndef CLIENT_COMMCTL_TRACE_H
#define CLIENT_COMMCTL_TRACE_H

#include <stdio.h>

#include "client/commctl/commctl.h"
#include "proto/trace_event.h"

/* What commctl trace fetched from a commd. */
struct trace_name {
    uint64_t comm_id;
    char *name;
};
struct trace_fetched {
    char *node_name;
    struct trace_record *records;
    size_t count, capacity;
    struct trace_name *names;
    size_t name_count, name_capacity;
    uint64_t end_ns; /* unfinished bars are drawn up to here */
    bool cut;        /* newer records have overwritten the first ones */
};

/*
 * trace_draw.c: writes the records as events of Chrome's trace format, one event a line, each with a comma
 * before it. Returns false if memory is short.
 */
bool trace_draw(const struct trace_fetched *fetched, FILE *out);

#endif
