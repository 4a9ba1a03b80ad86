#ifndef DAEMON_NODE_SOURCE_H
#define DAEMON_NODE_SOURCE_H

#include "daemon/base/loop.h"
#include "daemon/configuration.h"
#include "daemon/net/resolver.h"
#include "daemon/nodes.h"

/*
 * Follows the nodes while commd runs, if they come from a file (nodes_file) or from DNS (nodes_dns). What is
 * new there applies as a reload of `nodes` does. If the file is broken, or DNS has no answer, the nodes stay
 * as they are, and the log says so once. Only the main thread calls these functions.
 */
struct node_source;

/* DNS is asked again when the TTL of its answer ends, within these bounds. */
#define NODE_SOURCE_ASK_MIN_NS (5 * TIME_S)
#define NODE_SOURCE_ASK_MAX_NS (300 * TIME_S)
/* Sooner if an answer misses a node. After a failure, twice as late each time, up to the maximum. */
#define NODE_SOURCE_RETRY_NS (2 * TIME_S)
#define NODE_SOURCE_RETRY_MAX_NS (60 * TIME_S)
/* The same complaint is said again after this time. */
#define NODE_SOURCE_SAY_NS (600 * TIME_S)

struct node_source_options {
    struct loop *loop;
    struct configuration *configuration; /* in force; outlives the source */
    struct nodes *nodes;
    resolver_lookup_services *lookup; /* null: the system's */
    uint64_t seed;                    /* for jitter */
};

enum status node_source_new(const struct node_source_options *options, struct node_source **out,
                            struct error *error) COMM_MUST_USE;
/* Null is accepted. */
void node_source_free(struct node_source *source);

/* Follows what the configuration now says: at the start, and after a reload. The file is read, or DNS is
 * asked, at once. A failure is logged, and the nodes stay as they are. */
void node_source_follow(struct node_source *source, uint64_t now_ns);

/* By when node_source_tick must be called again. */
uint64_t node_source_next_deadline_ns(const struct node_source *source);
void node_source_tick(struct node_source *source, uint64_t now_ns);

#endif
