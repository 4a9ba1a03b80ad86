#ifndef TESTS_UNIT_NET_QUIC_LOGGED_H
#define TESTS_UNIT_NET_QUIC_LOGGED_H

#include "tests/unit/net/quic_nodes.h"

/* Two endpoints, and the lines that they log. */

#define DAY_S (24 * 3600L)

static char log_lines[16384];

static inline void keep_line(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    size_t used = strlen(log_lines);
    snprintf(log_lines + used, sizeof log_lines - used, "%s\n", line);
}

static inline int setup(void **state)
{
    log_lines[0] = '\0';
    log_set_sink(keep_line, NULL);
    return setup_loop(state);
}

static inline int teardown(void **state)
{
    (void)teardown_nodes(state);
    log_set_sink(NULL, NULL);
    return 0;
}

static inline bool a_failed(const void *context)
{
    (void)context;
    return a->failed_calls[0] > 0;
}

static inline bool b_failed(const void *context)
{
    (void)context;
    return b->failed_calls[0] > 0;
}

#endif
