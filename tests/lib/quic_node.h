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
 * A node of a QUIC test: an endpoint on 127.0.0.1. It records the calls of its handlers. It has sinks, which
 * check what arrives on streams, and sources, which send. Several nodes share one loop. Any failure ends the
 * process.
 */
#define QUIC_NODE_PEERS_MAX 32
#define QUIC_NODE_HEADER_BYTES 16

/* One incoming data stream. The struct stays after `closed`, until the node is freed. */
struct quic_sink {
    struct quic_sink *next;
    struct quic_node *node;
    struct net_stream *stream; /* null once closed */
    uint32_t peer;
    uint8_t header[QUIC_NODE_HEADER_BYTES]; /* seed and size of the bytes that follow */
    uint64_t received;                      /* bytes consumed, header included */
    bool hold;                              /* it consumes nothing */
    bool wrong;                             /* some byte differs from what its offset and the seed say */
    bool ended;
    bool closed;
    enum status closed_status; /* OK: the stream ended, and all of it was consumed */
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
    unsigned answer_calls[QUIC_NODE_PEERS_MAX];
    unsigned refuse_calls[QUIC_NODE_PEERS_MAX];
    bool up[QUIC_NODE_PEERS_MAX];
    struct error down_cause;
    struct error failed_cause;
    struct quic_sink *sinks;
    unsigned sink_count;
    unsigned control_bytes; /* bytes received on control streams */
    /* consumes at most this many bytes at a time, then asks for the rest again; 0: no limit */
    size_t consume_max;
    bool hold;        /* new sinks consume nothing */
    bool no_more;     /* sinks expect no data in advance */
    bool bulk;        /* sources open their streams on the bulk link */
    bool wrong_order; /* a handler was called when it must not be called */
    unsigned random;
};

/* `options` may be null. The defaults use the certificate "<name>.pem", the key "<name>.key", and the
 * authority "ca.pem". */
struct quic_node *quic_node_new(struct loop *loop, struct test_pki *pki, const char *name,
                                const struct quic_options *options);
/* Fills `out` with the defaults of quic_node_new. */
void quic_node_options(struct test_pki *pki, const char *name, struct quic_options *out);
void quic_node_free(struct quic_node *node);

/* Tells the node about another node, by name and port of 127.0.0.1. Returns the peer's index. */
uint32_t quic_node_add_peer(struct quic_node *node, const char *name, uint16_t port);
void quic_node_connect(struct quic_node *node, uint32_t peer);
/* Makes two nodes known to each other as peer 0, and connects them. The first one dials. */
void quic_nodes_connect(struct quic_node *a, struct quic_node *b);

/* Lets a sink go on that consumed nothing. */
void quic_sink_release(struct quic_sink *sink);
uint64_t quic_sink_size(const struct quic_sink *sink);
/* Whether everything that was announced has arrived as it was sent. */
bool quic_sink_complete(const struct quic_sink *sink);

/* One outgoing data stream: a header and `size` bytes of the pattern, in sends of piece_bytes. */
struct quic_source {
    struct net_stream *stream;
    uint8_t *data;
    size_t size;
    size_t piece_bytes;
    unsigned sends;
    unsigned done;      /* how many sends have ended */
    unsigned failed;    /* how many of them did not end with OK */
    enum status result; /* result of the last one that failed */
};

/*
 * Opens the stream, sends everything, and finishes the stream if `finish`. A piece is overwritten as soon as
 * `sent` allows that.
 */
struct quic_source *quic_source_new(struct quic_node *node, uint32_t peer, uint64_t seed, size_t size,
                                    size_t piece_bytes, bool finish);
bool quic_source_done(const struct quic_source *source);
/* Call it after the source is done. */
void quic_source_free(struct quic_source *source);

/* Runs the loop until the condition holds. Returns false after timeout_ms. */
typedef bool quic_condition(const void *context);
bool quic_run_until(struct loop *loop, quic_condition *condition, const void *context, uint64_t timeout_ms);
/* The same, until *count is at least `least`. */
bool quic_run_until_count(struct loop *loop, const unsigned *count, unsigned least, uint64_t timeout_ms);
/* Runs the loop for that time. */
void quic_run_for(struct loop *loop, uint64_t duration_ms);

#endif
