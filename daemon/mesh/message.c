#include "daemon/mesh/mesh_internal.h"

#include <stdio.h>
#include <string.h>

#include "daemon/base/log.h"
#include "proto/version.h"
#include "proto/version_range.h"

/* Copies a text of a peer that is shown to people: made printable and cut. */
static void text_copy(const char *from, char *out, size_t size)
{
    size_t length = 0;
    for (; from != NULL && from[length] != '\0' && length + 1 < size; length++) {
        out[length] = from[length] >= ' ' && from[length] <= '~' ? from[length] : '?';
    }
    out[length] = '\0';
}

/* What this commd offers, by name and bit. */
static const struct {
    const char *name;
    unsigned bit;
} features[] = {{MESH_FEATURE_STORE, MESH_OFFERS_STORE}, {MESH_FEATURE_GATHER, MESH_OFFERS_GATHER},
                {MESH_FEATURE_BULK, MESH_OFFERS_BULK},   {MESH_FEATURE_RELAYS, MESH_OFFERS_RELAYS},
                {MESH_FEATURE_ENDS, MESH_OFFERS_ENDS},   {MESH_FEATURE_WITNESS, MESH_OFFERS_WITNESS}};
/* Those that an older commd does not offer: mesh_options.hides_relays. */
#define NEWER_FEATURES (MESH_OFFERS_RELAYS | MESH_OFFERS_ENDS | MESH_OFFERS_WITNESS)
#define FEATURE_COUNT (sizeof features / sizeof features[0])

static unsigned features_from_wire(const Commd__Mesh__Hello *hello)
{
    unsigned bits = 0;
    for (size_t i = 0; i < hello->n_features; i++) {
        for (size_t known = 0; known < FEATURE_COUNT; known++) {
            bits |= strcmp(hello->features[i], features[known].name) == 0 ? features[known].bit : 0;
        }
    }
    return bits;
}

void mesh_send_hello(struct mesh_peer *peer)
{
    const struct mesh_options *options = &peer->mesh->options;
    char *names[FEATURE_COUNT];
    Commd__Mesh__Hello hello = COMMD__MESH__HELLO__INIT;
    hello.protocol_version = MESH_PROTOCOL_VERSION;
    hello.oldest_version = MESH_PROTOCOL_OLDEST;
    hello.node_name = (char *)options->node_name;
    hello.cluster_name = (char *)options->cluster_name;
    hello.instance = options->instance;
    hello.incarnation = members_own_incarnation(peer->mesh->members);
    hello.version_text = (char *)options->version_text;
    for (size_t i = 0; i < FEATURE_COUNT; i++) {
        bool hidden = (features[i].bit == MESH_OFFERS_BULK && !options->takes_bulk) ||
                      ((features[i].bit & NEWER_FEATURES) != 0 && options->hides_relays);
        if (!hidden) {
            names[hello.n_features++] = (char *)features[i].name;
        }
    }
    hello.features = names;
    hello.slice_bytes = options->slice_bytes;
    hello.algorithms = (char *)options->algorithms;
    Commd__Mesh__Message message = MESH_MESSAGE(HELLO, hello, &hello);
    if (mesh_peer_send(peer, &message) != STATUS_OK && !peer->closing) {
        struct error cause;
        error_set(&cause, STATUS_NO_MEMORY, "node %s: no greeting could be sent", peer->name);
        mesh_peer_disconnect(peer, &cause);
    }
}

static enum status hello_check(const struct mesh_peer *peer, const Commd__Mesh__Hello *hello, uint64_t now_ns,
                               struct error *cause)
{
    const struct mesh_options *options = &peer->mesh->options;
    const struct version_range ours = {MESH_PROTOCOL_OLDEST, MESH_PROTOCOL_VERSION};
    const struct version_range theirs = {hello->oldest_version, hello->protocol_version};
    char text[64], text_ours[VERSION_RANGE_TEXT_BYTES], text_theirs[VERSION_RANGE_TEXT_BYTES];
    if (version_choose(ours, theirs) == 0) {
        return error_set(cause, STATUS_VERSION, "node %s speaks %s of the mesh protocol, node %s %s",
                         peer->name, version_range_text(theirs, text_theirs, sizeof text_theirs),
                         options->node_name, version_range_text(ours, text_ours, sizeof text_ours));
    }
    if (strcmp(hello->cluster_name, options->cluster_name) != 0) {
        text_copy(hello->cluster_name, text, sizeof text);
        return error_set(cause, STATUS_CONFIG, "node %s is of cluster \"%s\", node %s of cluster \"%.63s\"",
                         peer->name, text, options->node_name, options->cluster_name);
    }
    if (strcmp(hello->node_name, peer->name) != 0) {
        text_copy(hello->node_name, text, sizeof text);
        return error_set(cause, STATUS_CERTIFICATE,
                         "node %s has a certificate of that name, but calls itself \"%s\"", peer->name, text);
    }
    if (hello->incarnation != 0 && !members_accepts(peer->mesh->members, hello->incarnation, now_ns)) {
        return error_set(cause, STATUS_CONFIG,
                         "node %s was started more than a day from now, by the clock of node %s", peer->name,
                         options->node_name);
    }
    if (hello->instance == 0) {
        return error_set(cause, STATUS_PROTOCOL, "node %s greets with instance 0", peer->name);
    }
    return STATUS_OK;
}

/* Keeps its version, and which of the settings that nodes must agree on differ. */
static void note_texts(struct mesh_peer *peer, const Commd__Mesh__Hello *hello)
{
    const struct mesh_options *options = &peer->mesh->options;
    struct mesh_texts *texts = &peer->contact->texts;
    char before[MESH_DIFFERS_MAX_BYTES], theirs[64];
    char *differs = texts->differs;
    (void)snprintf(before, sizeof before, "%s", differs);
    differs[0] = '\0';
    text_copy(hello->version_text, texts->version_text, sizeof texts->version_text);
    if (hello->slice_bytes == 0 || options->slice_bytes == 0) {
        return;
    }
    if (hello->slice_bytes != options->slice_bytes) {
        (void)snprintf(differs, sizeof texts->differs, "slice_bytes is %llu there, %llu here",
                       (unsigned long long)hello->slice_bytes, (unsigned long long)options->slice_bytes);
    } else if (strcmp(hello->algorithms, options->algorithms) != 0) {
        text_copy(hello->algorithms, theirs, sizeof theirs);
        (void)snprintf(differs, sizeof texts->differs, "algorithms is \"%s\" there, \"%.64s\" here", theirs,
                       options->algorithms);
    }
    if (differs[0] != '\0' && strcmp(before, differs) != 0) {
        log_warning("node %s: %s: no communicator forms between the two, unless its program sets that itself",
                    peer->name, differs);
    }
}

static void on_hello(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    const Commd__Mesh__Hello *hello = message->hello;
    struct error cause;
    if (peer->state == MESH_NODE_UP) {
        error_set(&cause, STATUS_PROTOCOL, "node %s greets a second time", peer->name);
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    if (hello_check(peer, hello, now_ns, &cause) != STATUS_OK) {
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    peer->contact->instance = hello->instance;
    peer->contact->incarnation = hello->incarnation > 0 ? hello->incarnation : 1;
    peer->contact->offers = features_from_wire(hello);
    note_texts(peer, hello);
    mesh_peer_greeted(peer, now_ns);
}

/* Sends an answer. If that fails, the connection has been dropped already. */
static void answer(struct mesh_peer *peer, const Commd__Mesh__Message *message)
{
    enum status status = mesh_peer_send(peer, message);
    (void)status;
}

static void on_heartbeat(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    Commd__Mesh__HeartbeatAnswer body = COMMD__MESH__HEARTBEAT_ANSWER__INIT;
    body.number = message->heartbeat->number;
    body.sent_ns = message->heartbeat->sent_ns;
    body.draining = peer->mesh->drains;
    struct mesh_coordinates coordinates;
    mesh_estimate_fill(peer, &coordinates, now_ns);
    body.coordinates = coordinates.list;
    body.n_coordinates = coordinates.count;
    Commd__Mesh__Message reply = MESH_MESSAGE(HEARTBEAT_ANSWER, heartbeat_answer, &body);
    if (mesh_peer_send(peer, &reply) == STATUS_OK) {
        mesh_heartbeat_join(peer, now_ns);
        mesh_peer_arm(peer);
    }
}

static void on_heartbeat_answer(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    mesh_heartbeat_answered(peer, message->heartbeat_answer, now_ns);
    mesh_peer_arm(peer);
}

static void on_echo(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)now_ns;
    Commd__Mesh__EchoAnswer body = COMMD__MESH__ECHO_ANSWER__INIT;
    body.token = message->echo->token;
    Commd__Mesh__Message reply = MESH_MESSAGE(ECHO_ANSWER, echo_answer, &body);
    answer(peer, &reply);
}

static void on_echo_answer(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    if (!mesh_link_answered(peer, message->echo_answer->token, now_ns)) {
        mesh_ping_answered(peer, message->echo_answer->token, now_ns);
    }
}

static void on_link_need(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    (void)now_ns;
    mesh_need_received(peer, message->link_need);
}

static void on_members(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    const ProtobufCBinaryData *records = &message->members->records;
    const char *why = NULL;
    if (!members_receive(peer->mesh->members, peer->index, records->data, records->len, now_ns, &why)) {
        mesh_violation(peer->mesh, peer->index, why);
    }
}

static void pass_on(struct mesh_peer *peer, enum mesh_room room, const Commd__Mesh__Message *message,
                    uint64_t now_ns)
{
    const struct mesh_handler *handler = &peer->mesh->handlers[room];
    if (handler->message != NULL) {
        handler->message(handler->context, peer->index, message, now_ns);
    }
}

static void on_other(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    pass_on(peer, MESH_ROOM_COMM, message, now_ns);
}

static void on_store(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    pass_on(peer, MESH_ROOM_STORE, message, now_ns);
}

static void on_gather(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns)
{
    pass_on(peer, MESH_ROOM_GATHER, message, now_ns);
}

typedef void message_function(struct mesh_peer *peer, const Commd__Mesh__Message *message, uint64_t now_ns);

static message_function *const message_functions[] = {
    [COMMD__MESH__MESSAGE__BODY_HELLO] = on_hello,
    [COMMD__MESH__MESSAGE__BODY_HEARTBEAT] = on_heartbeat,
    [COMMD__MESH__MESSAGE__BODY_HEARTBEAT_ANSWER] = on_heartbeat_answer,
    [COMMD__MESH__MESSAGE__BODY_ECHO] = on_echo,
    [COMMD__MESH__MESSAGE__BODY_ECHO_ANSWER] = on_echo_answer,
    [COMMD__MESH__MESSAGE__BODY_ANNOUNCE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_REFUSE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_WITHDRAW] = on_other,
    [COMMD__MESH__MESSAGE__BODY_ABORT] = on_other,
    [COMMD__MESH__MESSAGE__BODY_LEAVE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_DISPUTE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_VERDICT] = on_other,
    [COMMD__MESH__MESSAGE__BODY_MISSING] = on_other,
    [COMMD__MESH__MESSAGE__BODY_REACH] = on_other,
    [COMMD__MESH__MESSAGE__BODY_AGREE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_NEXT_READY] = on_other,
    [COMMD__MESH__MESSAGE__BODY_SILENCE] = on_other,
    [COMMD__MESH__MESSAGE__BODY_LINK_NEED] = on_link_need,
    [COMMD__MESH__MESSAGE__BODY_MEMBERS] = on_members,
    [COMMD__MESH__MESSAGE__BODY_MEET] = on_other,
    [COMMD__MESH__MESSAGE__BODY_MET] = on_other,
    [COMMD__MESH__MESSAGE__BODY_MEET_MANY] = on_other,
    [COMMD__MESH__MESSAGE__BODY_MET_MANY] = on_other,
    [COMMD__MESH__MESSAGE__BODY_END_ASK] = on_other,
    [COMMD__MESH__MESSAGE__BODY_END_ANSWER] = on_other,
    [COMMD__MESH__MESSAGE__BODY_ROSTER] = on_other,
    [COMMD__MESH__MESSAGE__BODY_RELAY] = on_other,
    [COMMD__MESH__MESSAGE__BODY_STORE_ASK] = on_store,
    [COMMD__MESH__MESSAGE__BODY_STORE_ANSWER] = on_store,
    [COMMD__MESH__MESSAGE__BODY_GATHER] = on_gather,
    [COMMD__MESH__MESSAGE__BODY_GATHERED] = on_gather,
};

static void message_received(struct mesh_peer *peer, const uint8_t *bytes, size_t size, uint64_t now_ns)
{
    struct error cause;
    Commd__Mesh__Message *message = commd__mesh__message__unpack(NULL, size, bytes);
    if (message == NULL) {
        error_set(&cause, STATUS_PROTOCOL, "node %s sent a message of %zu bytes that cannot be understood",
                  peer->name, size);
        mesh_peer_disconnect(peer, &cause);
        return;
    }
    unsigned body = (unsigned)message->body_case;
    bool known =
        body < sizeof message_functions / sizeof message_functions[0] && message_functions[body] != NULL;
    if (peer->state != MESH_NODE_UP && body != COMMD__MESH__MESSAGE__BODY_HELLO) {
        error_set(&cause, STATUS_PROTOCOL, "node %s did not greet first", peer->name);
        mesh_peer_disconnect(peer, &cause);
    } else if (known) {
        message_functions[body](peer, message, now_ns);
    } else {
        log_debug("node %s: commd ignores a message of a kind that it does not know", peer->name);
    }
    commd__mesh__message__free_unpacked(message, NULL);
}

size_t mesh_stream_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    (void)end; /* the net calls `closed` next */
    struct mesh_peer *peer = mesh_peer_at(context, stream->peer);
    struct error cause;
    if (peer->closing) { /* without memory for it, it has no contact */
        return size;
    }
    if (peer->contact->incoming == NULL) {
        peer->contact->incoming = stream;
    }
    if (peer->contact->incoming != stream) {
        error_set(&cause, STATUS_PROTOCOL, "node %s opened a second control stream", peer->name);
        mesh_peer_disconnect(peer, &cause);
    }
    size_t left = size;
    while (!peer->closing) {
        const uint8_t *message;
        size_t message_bytes;
        enum status status =
            frame_decoder_next(&peer->contact->decoder, &bytes, &left, &message, &message_bytes);
        if (status == STATUS_IN_PROGRESS) {
            break;
        }
        if (status == STATUS_OK) {
            message_received(peer, message, message_bytes, now_ns);
        } else {
            error_set(&cause, status, "node %s: control stream: %s", peer->name,
                      status == STATUS_PROTOCOL ? "a message of 0 bytes or more than the maximum"
                                                : status_text(status));
            mesh_peer_disconnect(peer, &cause);
        }
    }
    return size;
}

void mesh_stream_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)now_ns;
    struct mesh_peer *peer = mesh_peer_at(context, stream->peer);
    if (mesh_peer_contact(peer)->incoming != stream) {
        return;
    }
    peer->contact->incoming = NULL;
    /* With any other cause the connection itself is lost, and peer_down reports it. */
    if (cause == NULL || cause->status == STATUS_ABORTED) {
        struct error reason;
        error_set(&reason, STATUS_PROTOCOL, "node %s closed its control stream%s", peer->name,
                  frame_decoder_at_boundary(&peer->contact->decoder) ? "" : " within a message");
        mesh_peer_disconnect(peer, &reason);
    }
}

/* --- Sending --- */

enum status mesh_send(struct mesh *mesh, uint32_t node, const Commd__Mesh__Message *message)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return peer->state == MESH_NODE_UP ? mesh_peer_send(peer, message) : STATUS_UNREACHABLE;
}

enum status mesh_send_packed(struct mesh *mesh, uint32_t node, const uint8_t *bytes, size_t size)
{
    struct mesh_peer *peer = mesh_peer_at(mesh, node);
    return peer->state == MESH_NODE_UP && size > 0 && size <= FRAME_MAX_BYTES
               ? mesh_peer_send_packed(peer, bytes, size)
               : STATUS_UNREACHABLE;
}

void mesh_tell(struct mesh *mesh, uint32_t node, const Commd__Mesh__Message *message)
{
    enum status status = mesh_send(mesh, node, message);
    (void)status;
}

void mesh_broadcast(struct mesh *mesh, uint32_t uid, const Commd__Mesh__Message *message)
{
    for (uint32_t i = 0; i < mesh->peer_count; i++) {
        if (mesh->peers[i]->state == MESH_NODE_UP && mesh_user_may(mesh, uid, i)) {
            mesh_tell(mesh, i, message);
        }
    }
}
