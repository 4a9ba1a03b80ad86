#ifndef TESTS_LIB_LATEST_EVENT_H
#define TESTS_LIB_LATEST_EVENT_H

#include "daemon/base/history.h"

/* The number of the latest event; 0: none. */
static inline uint64_t latest_event(void)
{
    uint64_t last = 0;
    for (const struct history_event *event; (event = history_after(last)) != NULL; last = event->number) {
    }
    return last;
}

#endif
