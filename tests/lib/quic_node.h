#ifndef TESTS_LIB_QUIC_NODE_H
#define TESTS_LIB_QUIC_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/loop.h"
#include "daemon/net/net.h"
#include "daemon/net/quic.h"
#include "tests/lib/test_pki.h"

/*
 * A node of a QUIC test: an endpoint on 127.0.0.1 that records what its handlers are told, with sinks, which
 * check what arrives on streams, and sources, which send. Several share one loop. Whatever cannot be had ends
 * the process.
 */
#define QUIC_NODE_PEERS_MAX 8
#define QUIC_NODE_HEADER_BYTES 16

/* One incoming data stream. It stays after `closed`, until the node is freed. */
struct quic_sink {
    struct quic_sink *next;
    struct quic_node *node;
    struct net_stream *stream; /* null once closed */
    uint32_t peer;
    uint8_t header[QUIC_NODE_HEADER_BYTES]; /* seed and size of what follows */
    uint64_t received;                      /* bytes consumed, the header among them */
    bool hold;                              /* consumes nothing */
    bool wrong;                             /* a byte was not what its offset and the seed say */
    bool ended;
    bool closed;
    enum status closed_status; /* OK: ended and consumed */
};

struct quic_node {
    struct loop *loop;
    struct net *net;
    char name[64];
    uint16_t port;
    unsigned up_calls[QUIC_NODE_PEERS_MAX];
    unsigned down_calls[QUIC_NODE_PEERS_MAX];
    unsigned failed_calls[QUIC_NODE_PEERS_MAX];
    unsigned suspect_calls[QUIC_NODE_PEERS_MAX];
    bool up[QUIC_NODE_PEERS_MAX];
    struct error down_cause;
    struct error failed_cause;
    struct quic_sink *sinks;
    unsigned sink_count;
    unsigned control_bytes; /* received on control streams */
    size_t consume_max;     /* bytes consumed at a time, then the rest is asked for again; 0: all */
    bool hold;              /* new sinks consume nothing */
    bool wrong_order;       /* a handler was called when it must not be */
    unsigned random;
};

/* `options` may be null: defaults, with certificate and key "<name>.pem", "<name>.key", and "ca.pem". */
struct quic_node *quic_node_new(struct loop *loop, struct test_pki *pki, const char *name,
                                const struct quic_options *options);
/* Fills options with what quic_node_new uses by default. */
void quic_node_options(struct test_pki *pki, const char *name, struct quic_options *out);
void quic_node_free(struct quic_node *node);

/* Makes `other` known by its name at a port of 127.0.0.1. Returns the index. */
uint32_t quic_node_add_peer(struct quic_node *node, const char *name, uint16_t port);
void quic_node_connect(struct quic_node *node, uint32_t peer);
/* Two nodes that know each other as peer 0 and are connected, dialled by the first. */
void quic_nodes_connect(struct quic_node *a, struct quic_node *b);

/* Lets a sink that held go on. */
void quic_sink_release(struct quic_sink *sink);
uint64_t quic_sink_size(const struct quic_sink *sink);
/* Everything that was announced came, as it was sent. */
bool quic_sink_complete(const struct quic_sink *sink);

/* One outgoing data stream with `size` bytes of a pattern after the header, in sends of piece_bytes. */
struct quic_source {
    struct net_stream *stream;
    uint8_t *data;
    size_t size;
    size_t piece_bytes;
    unsigned sends;
    unsigned done;      /* sends that were ended */
    unsigned failed;    /* not with OK */
    enum status result; /* of the last one that failed */
};

/*
 * Opens the stream, sends all, and finishes it if asked to. A piece is overwritten as soon as `sent` allows
 * that.
 */
struct quic_source *quic_source_new(struct quic_node *node, uint32_t peer, uint64_t seed, size_t size,
                                    size_t piece_bytes, bool finish);
bool quic_source_done(const struct quic_source *source);
/* After it is done. */
void quic_source_free(struct quic_source *source);

/* Turns the loop until the condition holds; false after timeout_ms. */
typedef bool quic_condition(const void *context);
bool quic_run_until(struct loop *loop, quic_condition *condition, const void *context, uint64_t timeout_ms);
/* The same until *count is at least so much. */
bool quic_run_until_count(struct loop *loop, const unsigned *count, unsigned least, uint64_t timeout_ms);
/* Turns it for so long. */
void quic_run_for(struct loop *loop, uint64_t duration_ms);

#endif
