#ifndef TESTS_UNIT_NET_STREAM_SOURCES_H
#define TESTS_UNIT_NET_STREAM_SOURCES_H

#include "tests/unit/net/quic_nodes.h"

/* Several sources and sinks of quic_nodes.h at once. */

struct sources {
    struct quic_source **list;
    unsigned count;
};

static inline bool sources_done(const void *context)
{
    const struct sources *sources = context;
    for (unsigned i = 0; i < sources->count; i++) {
        if (!quic_source_done(sources->list[i])) {
            return false;
        }
    }
    return true;
}

static inline unsigned sinks_closed(const struct quic_node *node)
{
    unsigned count = 0;
    for (const struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        count += sink->closed;
    }
    return count;
}

struct closings {
    const struct quic_node *node;
    unsigned count;
};

static inline bool enough_closed(const void *context)
{
    const struct closings *closings = context;
    return sinks_closed(closings->node) >= closings->count;
}

static inline void assert_closed(const struct quic_node *node, unsigned count)
{
    struct closings closings = {node, count};
    assert_true(quic_run_until(loop, enough_closed, &closings, 20000));
}

static inline void assert_complete(const struct quic_node *node)
{
    for (const struct quic_sink *sink = node->sinks; sink != NULL; sink = sink->next) {
        assert_true(quic_sink_complete(sink));
    }
}

static inline void free_sources(struct quic_source **list, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(list[i]->failed, 0);
        quic_source_free(list[i]);
    }
}

#endif
