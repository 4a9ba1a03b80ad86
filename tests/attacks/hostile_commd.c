#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/net/net.h"
#include "proto/data_header.h"
#include "proto/frame.h"
#include "proto/mesh.pb-c.h"
#include "proto/message_header.h"
#include "proto/version.h"
#include "tests/attacks/hostile.h"

/*
 * A commd that lies to other nodes. It is a complete commd with a valid certificate, but all that it sends
 * passes through this file (the linker's --wrap). The file that $COMMD_HOSTILE names says how it lies: one
 * word, or nothing to be honest. This program reads that file again at every message of the mesh.
 */
#define PEERS_MAX 16
#define FLOOD_MESSAGES 2000
#define FLOOD_STREAMS 4000
#define HALVES_MAX 64
#define MODE_MAX_BYTES 64

static char mode[MODE_MAX_BYTES];
static struct net_stream *control_streams[PEERS_MAX]; /* outgoing, by peer */
static uint64_t lot = 88172645463325252u;

enum status __real_net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                                   const void *payload, size_t payload_bytes, net_sent_function *sent,
                                   void *context);
enum status __wrap_net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                                   const void *payload, size_t payload_bytes, net_sent_function *sent,
                                   void *context);
void __real_net_stream_reset(struct net_stream *stream);
void __wrap_net_stream_reset(struct net_stream *stream);
enum status __real_frame_decoder_next(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size,
                                      const uint8_t **message, size_t *message_bytes);
enum status __wrap_frame_decoder_next(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size,
                                      const uint8_t **message, size_t *message_bytes);

uint64_t hostile_draw(void)
{
    lot ^= lot << 13;
    lot ^= lot >> 7;
    lot ^= lot << 17;
    return lot;
}

bool hostile_mode_is(const char *name)
{
    return strcmp(mode, name) == 0;
}

static void mode_read(void)
{
    const char *path = getenv("COMMD_HOSTILE");
    FILE *file = path == NULL ? NULL : fopen(path, "re");
    mode[0] = '\0';
    if (file != NULL) {
        if (fgets(mode, sizeof mode, file) == NULL) {
            mode[0] = '\0';
        }
        fclose(file);
        mode[strcspn(mode, "\n")] = '\0';
    }
}

/* --- Headers with one wrong field --- */

enum change { SET, ADD };

struct header_lie {
    const char *name;
    enum net_stream_kind kind;
    /* place of the field: proto/data_header.h, proto/message_header.h, proto/frame.h */
    unsigned offset, bytes;
    enum change change;
    uint64_t value;
};

static const struct header_lie header_lies[] = {
    {"data_magic", NET_STREAM_DATA, 0, 4, SET, 0xdeadbeef},
    {"data_version", NET_STREAM_DATA, 4, 1, SET, 200},
    {"data_comm", NET_STREAM_DATA, 8, 8, ADD, 1},
    {"data_seq", NET_STREAM_DATA, 16, 8, ADD, 1ull << 40},
    {"data_slice", NET_STREAM_DATA, 28, 4, ADD, 5000},
    {"data_round", NET_STREAM_DATA, 32, 4, ADD, 5000},
    {"data_zero", NET_STREAM_DATA, 5, 1, SET, 1},
    {"data_algorithm", NET_STREAM_DATA, 36, 4, ADD, 7},
    {"data_payload_more", NET_STREAM_DATA, 40, 8, ADD, 4096},
    {"data_payload_less", NET_STREAM_DATA, 40, 8, ADD, (uint64_t)-64},
    {"data_payload_giant", NET_STREAM_DATA, 40, 8, SET, 1ull << 62},
    {"data_kind", NET_STREAM_DATA, 48, 1, SET, 99},
    {"data_dtype", NET_STREAM_DATA, 49, 1, SET, 99},
    {"data_reduce", NET_STREAM_DATA, 50, 1, SET, 99},
    {"data_layouts", NET_STREAM_DATA, 52, 1, SET, 2},
    {"data_bucket", NET_STREAM_DATA, 62, 2, SET, 7},
    {"data_count", NET_STREAM_DATA, 64, 8, ADD, 1ull << 40},
    {"data_hash", NET_STREAM_DATA, 72, 8, ADD, 1},
    {"message_magic", NET_STREAM_MESSAGE, 0, 4, SET, 0xdeadbeef},
    {"message_kind", NET_STREAM_MESSAGE, 5, 1, SET, 77},
    {"message_comm", NET_STREAM_MESSAGE, 8, 8, ADD, 1},
    {"message_id", NET_STREAM_MESSAGE, 16, 8, ADD, 1ull << 50},
    {"message_source", NET_STREAM_MESSAGE, 24, 4, SET, 4000000000u},
    {"message_to", NET_STREAM_MESSAGE, 28, 4, SET, 4000000000u},
    {"message_giant", NET_STREAM_MESSAGE, 48, 8, SET, 1ull << 60},
    {"message_zero", NET_STREAM_MESSAGE, 56, 8, SET, 1},
    {"control_length", NET_STREAM_CONTROL, 0, 4, SET, 0xffffffff},
    {"control_zero", NET_STREAM_CONTROL, 0, 4, SET, 0},
};

static void lie_in_header(enum net_stream_kind kind, uint8_t *header, size_t header_bytes)
{
    for (size_t i = 0; i < sizeof header_lies / sizeof header_lies[0]; i++) {
        const struct header_lie *lie = &header_lies[i];
        if (lie->kind == kind && hostile_mode_is(lie->name) && lie->offset + lie->bytes <= header_bytes) {
            uint64_t value = 0;
            memcpy(&value, header + lie->offset, lie->bytes); /* the wire is little-endian, as this machine */
            value = lie->change == SET ? lie->value : value + lie->value;
            memcpy(header + lie->offset, &value, lie->bytes);
        }
    }
}

/* --- Streams --- */

static void send_copy(struct net_stream *stream, const void *bytes, size_t size)
{
    enum status status = __real_net_stream_send(stream, NULL, 0, bytes, size, NULL, NULL);
    (void)status; /* ignored: the other side may have closed the connection */
}

/* Opens a second stream with the same header and half of its payload. The other half comes with the next
 * header that is sent. */
static struct {
    struct net_stream *stream;
    size_t bytes;
} halves[HALVES_MAX];
static unsigned half_count;

static void second_stream(struct net_stream *stream, const uint8_t *header, size_t header_bytes,
                          size_t payload_bytes)
{
    static const uint8_t chosen[1 << 20] = {[0 ... sizeof chosen - 1] = 0x66};
    struct error error;
    for (unsigned i = 0; i < half_count; i++) {
        send_copy(halves[i].stream, chosen, halves[i].bytes);
        net_stream_finish(halves[i].stream);
    }
    half_count = 0;
    size_t half = payload_bytes / 2 < sizeof chosen ? payload_bytes / 2 : sizeof chosen;
    if (payload_bytes == 0 || half == 0 || half_count == HALVES_MAX ||
        net_stream_open(stream->net, stream->peer, stream->kind, &halves[half_count].stream, &error) !=
            STATUS_OK) {
        return;
    }
    halves[half_count].bytes = payload_bytes - half < sizeof chosen ? payload_bytes - half : sizeof chosen;
    send_copy(halves[half_count].stream, header, header_bytes);
    send_copy(halves[half_count].stream, chosen, half);
    half_count++;
}

static void flood_streams(struct net_stream *stream, enum net_stream_kind kind, size_t bytes)
{
    uint8_t garbage[256];
    struct error error;
    for (size_t i = 0; i < sizeof garbage; i++) {
        garbage[i] = (uint8_t)hostile_draw();
    }
    for (unsigned i = 0; i < FLOOD_STREAMS; i++) {
        struct net_stream *another;
        if (net_stream_open(stream->net, stream->peer, kind, &another, &error) != STATUS_OK) {
            return;
        }
        send_copy(another, garbage, bytes);
    }
}

/* Opens many streams, and resets each at once. */
static void reset_streams(struct net_stream *stream)
{
    struct error error;
    for (unsigned i = 0; i < FLOOD_STREAMS; i++) {
        struct net_stream *another;
        enum net_stream_kind kind = i % 2 == 0 ? NET_STREAM_DATA : NET_STREAM_MESSAGE;
        if (net_stream_open(stream->net, stream->peer, kind, &another, &error) != STATUS_OK) {
            return;
        }
        send_copy(another, "half a header", 13);
        __real_net_stream_reset(another);
    }
}

/* --- Messages of the mesh --- */

static void send_control(struct net_stream *stream, const Commd__Mesh__Message *message)
{
    uint8_t packed[FRAME_HEADER_BYTES + FRAME_MAX_BYTES];
    size_t size = commd__mesh__message__get_packed_size(message);
    if (stream != NULL && size > 0 && size <= FRAME_MAX_BYTES) {
        frame_put_header(packed, size);
        commd__mesh__message__pack(message, packed + FRAME_HEADER_BYTES);
        send_copy(stream, packed, FRAME_HEADER_BYTES + size);
    }
}

static void send_garbage(struct net_stream *stream)
{
    uint8_t bytes[FRAME_HEADER_BYTES + 64];
    frame_put_header(bytes, sizeof bytes - FRAME_HEADER_BYTES);
    for (size_t i = FRAME_HEADER_BYTES; i < sizeof bytes; i++) {
        bytes[i] = (uint8_t)hostile_draw();
    }
    send_copy(stream, bytes, sizeof bytes);
}

static void send_hello(struct net_stream *stream)
{
    Commd__Mesh__Hello hello = COMMD__MESH__HELLO__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    hello.protocol_version = MESH_PROTOCOL_VERSION;
    hello.node_name = "b";
    hello.cluster_name = "test";
    message.body_case = COMMD__MESH__MESSAGE__BODY_HELLO;
    message.hello = &hello;
    send_control(stream, &message);
}

static void flood_echoes(struct net_stream *stream)
{
    Commd__Mesh__Echo echo = COMMD__MESH__ECHO__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ECHO;
    message.echo = &echo;
    for (unsigned i = 0; i < FLOOD_MESSAGES; i++) {
        echo.token = hostile_draw();
        send_control(stream, &message);
    }
}

static void flood_announcements(struct net_stream *stream)
{
    char name[32];
    uint32_t rank = 1;
    Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
    Commd__Mesh__Announce announce = COMMD__MESH__ANNOUNCE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
    message.announce = &announce;
    announce.name = name;
    announce.terms = &terms;
    announce.n_ranks = 1;
    announce.ranks = &rank;
    terms.size = 2;
    for (unsigned i = 0; i < FLOOD_MESSAGES; i++) {
        (void)snprintf(name, sizeof name, "flood-%llx", (unsigned long long)hostile_draw());
        announce.nonce = hostile_draw();
        announce.owner_uid = terms.owner_uid = (uint32_t)hostile_draw();
        send_control(stream, &message);
    }
}

/* Sends a dispute in a communicator that may still be forming at the other node. */
static void send_dispute(struct net_stream *stream, uint64_t comm_id)
{
    Commd__Mesh__Dispute dispute = COMMD__MESH__DISPUTE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_DISPUTE;
    message.dispute = &dispute;
    dispute.comm_id = comm_id;
    dispute.seq = 1;
    dispute.ops = 1;
    dispute.call = "rank 1: all_reduce of nothing";
    dispute.how = "";
    send_control(stream, &message);
}

/* Sends verdicts on operations of a communicator, although this node is not its first node. */
static void send_verdict(struct net_stream *stream, uint64_t comm_id)
{
    Commd__Mesh__Verdict verdict = COMMD__MESH__VERDICT__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_VERDICT;
    message.verdict = &verdict;
    verdict.comm_id = comm_id;
    verdict.seq = hostile_draw() % 100;
    verdict.ops = 1000;
    verdict.status = STATUS_MISMATCH;
    verdict.text = "a verdict of nobody";
    verdict.final = true;
    send_control(stream, &message);
}

/* Refuses communicators that others form, whether or not this node belongs to them. */
static void refuse_everywhere(const Commd__Mesh__Announce *announce)
{
    Commd__Mesh__Refuse refuse = COMMD__MESH__REFUSE__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    message.body_case = COMMD__MESH__MESSAGE__BODY_REFUSE;
    message.refuse = &refuse;
    refuse.name = announce->name;
    refuse.owner_uid = announce->owner_uid;
    refuse.nonce = announce->nonce;
    refuse.status = STATUS_PERMISSION;
    refuse.text = "refused by a node that has nothing to do with it";
    for (unsigned peer = 0; peer < PEERS_MAX; peer++) {
        send_control(control_streams[peer], &message);
    }
}

/* Before a message of any kind, sends a flood or messages that are out of order. */
static void lie_before_message(struct net_stream *stream)
{
    if (hostile_mode_is("control_garbage")) {
        send_garbage(stream);
    } else if (hostile_mode_is("hello_again")) {
        send_hello(stream);
    } else if (hostile_mode_is("echo_flood")) {
        flood_echoes(stream);
    } else if (hostile_mode_is("announce_flood")) {
        flood_announcements(stream);
    } else if (hostile_mode_is("second_control")) {
        flood_streams(stream, NET_STREAM_CONTROL, 9);
    } else if (hostile_mode_is("stream_flood")) {
        flood_streams(stream, NET_STREAM_DATA, 9);
        flood_streams(stream, NET_STREAM_MESSAGE, 9);
    } else if (hostile_mode_is("stream_holes")) {
        flood_streams(stream, NET_STREAM_DATA, 200);
    } else if (hostile_mode_is("stream_garbage")) {
        flood_streams(stream, NET_STREAM_DATA, 200);
    } else if (hostile_mode_is("rapid_reset")) {
        reset_streams(stream);
    }
}

/* Lies only after this node's hello: without a hello, the peer closes the connection at once. */
static void lie_beside_control(struct net_stream *stream, const void *payload, size_t payload_bytes)
{
    Commd__Mesh__Message *message = commd__mesh__message__unpack(NULL, payload_bytes, payload);
    if (message == NULL) {
        return;
    }
    if (message->body_case != COMMD__MESH__MESSAGE__BODY_HELLO) {
        lie_before_message(stream);
    }
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE && message->announce->comm_id != 0) {
        if (hostile_mode_is("dispute_forming")) {
            send_dispute(stream, message->announce->comm_id);
        } else if (hostile_mode_is("verdict_false")) {
            send_verdict(stream, message->announce->comm_id);
        }
    }
    commd__mesh__message__free_unpacked(message, NULL);
}

/* --- Wrappers between commd and its network --- */

enum status __wrap_net_stream_send(struct net_stream *stream, const void *header, size_t header_bytes,
                                   const void *payload, size_t payload_bytes, net_sent_function *sent,
                                   void *context)
{
    uint8_t copy[NET_STREAM_HEADER_MAX_BYTES];
    if (stream->kind == NET_STREAM_CONTROL) {
        if (stream->peer < PEERS_MAX) {
            control_streams[stream->peer] = stream;
        }
        mode_read();
        lie_beside_control(stream, payload, payload_bytes);
    }
    if (header_bytes == 0 || header_bytes > sizeof copy || mode[0] == '\0') {
        return __real_net_stream_send(stream, header, header_bytes, payload, payload_bytes, sent, context);
    }
    memcpy(copy, header, header_bytes);
    lie_in_header(stream->kind, copy, header_bytes);
    if (stream->kind == NET_STREAM_DATA && hostile_mode_is("second_stream")) {
        second_stream(stream, copy, header_bytes, payload_bytes);
    }
    return __real_net_stream_send(stream, copy, header_bytes, payload, payload_bytes, sent, context);
}

void __wrap_net_stream_reset(struct net_stream *stream)
{
    for (unsigned peer = 0; peer < PEERS_MAX; peer++) {
        control_streams[peer] = control_streams[peer] == stream ? NULL : control_streams[peer];
    }
    __real_net_stream_reset(stream);
}

enum status __wrap_frame_decoder_next(struct frame_decoder *decoder, const uint8_t **bytes, size_t *size,
                                      const uint8_t **message, size_t *message_bytes)
{
    enum status status = __real_frame_decoder_next(decoder, bytes, size, message, message_bytes);
    if (status == STATUS_OK && hostile_mode_is("refuse_all")) {
        Commd__Mesh__Message *unpacked = commd__mesh__message__unpack(NULL, *message_bytes, *message);
        if (unpacked != NULL && unpacked->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE) {
            refuse_everywhere(unpacked->announce);
        }
        if (unpacked != NULL) {
            commd__mesh__message__free_unpacked(unpacked, NULL);
        }
    }
    return status;
}
