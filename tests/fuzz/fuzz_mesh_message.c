#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "daemon/gather/gathers.h"
#include "daemon/mesh/mesh.h"
#include "daemon/store/stores.h"
#include "proto/frame.h"
#include "proto/version.h"
#include "tests/network/network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/*
 * A node with the cluster's certificate sends anything to another node. That node has a communicator that is
 * being formed with the first one, and one of its own. It has two stores open: it keeps one itself, and the
 * lying node keeps the other. It has processes of four elastic jobs, for some of which the lying node
 * decides.
 *
 * Bit 0 of the first byte is 0: the rest are the bytes of the control stream, greeting included. Bit 0 is 1:
 * after a correct greeting come messages, each a length (u16, little-endian) and the packed message. In these
 * messages, some numbers stand for what the node under test announced last. A nonce, id or revision of 1
 * stands for its nonce, 2 for its comm_id, 3 for its revision. A uid of 0 stands for that of the node's
 * client. If bit 1 of the first byte is set as well, the communicator is formed first. After a length of 0
 * comes one byte. It says what a rank of the node under test does, or that time passes.
 */
#define CLIENT_UID 1000
#define JOBS 4
#define MESSAGES_MAX 64
#define STEPS_MAX 100000
#define SENT_BYTES 1024

struct target {
    struct network *network;
    struct net *net, *liar;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct comms *comms;
    struct stores *stores;
    struct stores_handle *handles[2]; /* numbers 1 and 2: kept here, and by the lying node */
    struct gathers *gathers;
    struct gathers_entry *entries[JOBS];
    struct net_stream *stream; /* the control stream of the lying node */
    struct frame_decoder decoder;
    struct comms_member *members[3];
    uint64_t now_ns;
    uint64_t nonce, comm_id, revision;
    struct memory *memory; /* the memory from which ranks send */
    unsigned ups, downs;
};

static void require(bool truth)
{
    if (!truth) {
        abort();
    }
}

static void on_formed(void *context, struct comms_member *member, const struct error *result, uint64_t now_ns)
{
    struct target *target = context;
    (void)now_ns;
    (void)result;
    require(member == target->members[0] || member == target->members[1] || member == target->members[2]);
}

static void on_completed(void *context, struct comms_member *member,
                         const struct comms_completion *completion, uint64_t now_ns)
{
    on_formed(context, member, completion->result, now_ns);
    require(completion->ticket == 7);
}

static void on_answered(void *context, uint64_t request, enum store_kind kind,
                        const struct stores_answer *answer)
{
    struct stores_handle **handle = context;
    require(answer->value.size <= STORE_VALUE_MAX_BYTES);
    if (kind == STORE_KIND_OPEN && answer->result->status != STATUS_OK) {
        require(request == 7);
        stores_close(*handle, 0);
        *handle = NULL;
    }
}

/* Opens both stores. */
static void open_stores(struct target *target)
{
    static const char *const names[] = {"near@a", "far@b"};
    for (unsigned i = 0; i < 2; i++) {
        struct stores_client client = {.uid = CLIENT_UID};
        struct stores_handler handler = {.context = &target->handles[i], .answered = on_answered};
        require(stores_open(target->stores, &client, names[i], 7, 4 * TIME_S, &handler, target->now_ns,
                            &target->handles[i], NULL) == STATUS_OK);
    }
}

/* Waits for a key in a store. */
static void ask_store(struct target *target, unsigned which)
{
    struct store_bytes key = {.data = (const uint8_t *)"k", .size = 1};
    struct stores_ask ask = {
        .request = 8, .kind = STORE_KIND_GET, .keys = &key, .key_count = 1, .timeout_ns = TIME_S};
    if (target->handles[which] != NULL) {
        enum status status = stores_request(target->handles[which], &ask, target->now_ns, NULL);
        (void)status; /* it may be lost, or not open yet */
    }
}

static void on_seated(void *context, const struct error *result, const struct gathers_seat *seat,
                      uint64_t now_ns)
{
    struct gathers_entry **entry = context;
    (void)now_ns;
    if (result->status == STATUS_OK) {
        require(seat->generation != 0 && seat->rank < seat->size && seat->comm_name[0] != '\0');
        gathers_settle(*entry, seat->generation);
    }
}

static void on_grown(void *context, const struct error *result, const struct gathers_seat *seat,
                     uint64_t now_ns)
{
    (void)context;
    (void)now_ns;
    require(result->status != STATUS_OK || seat->size > 0);
}

static void on_waiting(void *context, uint32_t waiting)
{
    (void)context;
    (void)waiting;
}

static void join_jobs(struct target *target)
{
    static const char *const names[JOBS] = {"job-0", "job-1", "job-2", "job-3"};
    for (unsigned i = 0; i < JOBS; i++) {
        struct gathers_wish wish = {
            .least = 1 + i / 2, .most = 8, .last_call_ns = TIME_MS, .timeout_ns = 4 * TIME_S};
        struct gathers_handler handler = {&target->entries[i], on_seated, on_grown, on_waiting};
        require(gathers_join(target->gathers, CLIENT_UID, NULL, names[i], &wish, &handler, target->now_ns,
                             &target->entries[i], NULL) == STATUS_OK);
    }
}

/* Those that have a rank take in others. */
static void grow_jobs(struct target *target)
{
    for (unsigned i = 0; i < JOBS; i++) {
        enum status status = gathers_grow(target->entries[i], 1, 8, TIME_S, target->now_ns, NULL);
        (void)status; /* it may have no rank */
    }
}

static void liar_up(void *context, uint32_t peer, uint64_t now_ns)
{
    struct target *target = context;
    (void)now_ns;
    target->ups++;
    require(net_stream_open(target->liar, peer, NET_STREAM_CONTROL, &target->stream, NULL) == STATUS_OK);
}

static void liar_down(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    struct target *target = context;
    (void)peer;
    (void)now_ns;
    require(cause->status != STATUS_OK && cause->text[0] != '\0');
    target->downs++;
    if (target->stream != NULL) {
        net_stream_reset(target->stream);
        target->stream = NULL;
    }
    frame_decoder_free(&target->decoder);
}

static void liar_failed(void *context, uint32_t peer, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)peer;
    (void)cause;
    (void)now_ns;
}

/* Checks that whatever the node sends is well-formed. Keeps what it announces. */
static size_t liar_receive(void *context, struct net_stream *stream, const uint8_t *bytes, size_t size,
                           bool end, uint64_t now_ns)
{
    struct target *target = context;
    size_t left = size;
    const uint8_t *packed;
    size_t packed_bytes;
    (void)stream;
    (void)end;
    (void)now_ns;
    while (frame_decoder_next(&target->decoder, &bytes, &left, &packed, &packed_bytes) == STATUS_OK) {
        Commd__Mesh__Message *message = commd__mesh__message__unpack(NULL, packed_bytes, packed);
        require(message != NULL);
        if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE && message->announce->nonce != 0) {
            target->nonce = message->announce->nonce;
            target->comm_id = message->announce->comm_id;
            target->revision = message->announce->revision;
        }
        commd__mesh__message__free_unpacked(message, NULL);
    }
    return size;
}

static void liar_closed(void *context, struct net_stream *stream, const struct error *cause, uint64_t now_ns)
{
    (void)context;
    (void)stream;
    (void)cause;
    (void)now_ns;
}

static void run(struct target *target, uint64_t span_ns)
{
    uint64_t until_ns = target->now_ns + span_ns;
    for (unsigned step = 0;; step++) {
        require(step < STEPS_MAX);
        network_advance(target->network, target->now_ns);
        mesh_tick(target->mesh, target->now_ns);
        exec_tick(target->exec, target->now_ns);
        p2p_tick(target->p2p, target->now_ns);
        bool has_more = true;
        while (has_more) {
            bool exec_has_more = exec_run(target->exec, target->now_ns);
            has_more = p2p_run(target->p2p, target->now_ns) || exec_has_more;
        }
        comms_tick(target->comms, target->now_ns);
        stores_tick(target->stores, target->now_ns);
        gathers_tick(target->gathers, target->now_ns);
        uint64_t next_ns = time_min(network_next_ns(target->network), mesh_next_deadline_ns(target->mesh));
        next_ns = time_min(next_ns, comms_next_deadline_ns(target->comms));
        next_ns = time_min(next_ns, stores_next_deadline_ns(target->stores));
        next_ns = time_min(next_ns, gathers_next_deadline_ns(target->gathers));
        next_ns = time_min(next_ns, exec_next_deadline_ns(target->exec));
        next_ns = time_min(next_ns, p2p_next_deadline_ns(target->p2p));
        if (next_ns > until_ns) {
            break;
        }
        target->now_ns = next_ns > target->now_ns ? next_ns : target->now_ns;
    }
    target->now_ns = until_ns;
    network_advance(target->network, until_ns);
}

static struct comms_member *join(struct target *target, const char *name, uint32_t rank, uint32_t size)
{
    struct comms_client client = {.pid = 7, .uid = CLIENT_UID};
    struct comms_terms terms = {
        .name = name, .rank = rank, .size = size, .form_timeout_ms = 2000, .op_timeout_ms = 1000};
    struct comms_member_handler handler = {
        .context = target, .formed = on_formed, .completed = on_completed, .aborted = on_formed};
    struct comms_member *member = NULL;
    require(comms_member_join(target->comms, &client, &terms, &handler, target->now_ns, &member, NULL) ==
            STATUS_OK);
    return member;
}

static void start(struct target *target)
{
    struct network_conditions conditions = {.delay_ns = 10 * TIME_US};
    struct mesh_options options;
    uint32_t peer;
    target->network = network_new_pipes(1, &conditions);
    target->net = network_add(target->network, "a");
    target->liar = network_add(target->network, "b");
    mesh_options_default(&options);
    options.node_name = "a";
    options.instance = 1;
    /* long, so that there is only one connection */
    options.reconnect_min_ns = options.reconnect_max_ns = 100 * TIME_S;
    require(mesh_new(target->net, &options, &target->mesh, NULL) == STATUS_OK);
    require(exec_new(target->net, &target->exec, NULL) == STATUS_OK);
    require(p2p_new(target->net, &target->p2p, NULL) == STATUS_OK);
    struct comms_options comms_options = {
        .mesh = target->mesh, .exec = target->exec, .p2p = target->p2p, .seed_secure = 1};
    require(comms_new(&comms_options, &target->comms, NULL) == STATUS_OK);
    struct stores_options stores_options = {.mesh = target->mesh, .seed_secure = 1};
    require(stores_new(&stores_options, &target->stores, NULL) == STATUS_OK);
    struct gathers_options gathers_options = {.mesh = target->mesh, .seed_secure = 1};
    require(gathers_new(&gathers_options, &target->gathers, NULL) == STATUS_OK);
    require(mesh_add_node(target->mesh, "b", "", &peer, NULL) == STATUS_OK);
    net_set_peer_handler(
        target->liar, &(struct net_peer_handler){target, liar_up, liar_down, liar_failed, NULL, NULL, NULL});
    net_set_stream_handler(target->liar, NET_STREAM_CONTROL,
                           &(struct net_stream_handler){target, liar_receive, liar_closed, NULL});
    require(net_add_peer(target->liar, "a", "", &peer, NULL) == STATUS_OK);
    static unsigned char sent[SENT_BYTES];
    require(memory_wrap(sent, sizeof sent, &target->memory, NULL) == STATUS_OK);
    target->members[0] = join(target, "comm", 0, 4);
    target->members[1] = join(target, "comm", 2, 4);
    target->members[2] = join(target, "own", 0, 1);
    open_stores(target);
    join_jobs(target);
    run(target, TIME_MS);
    require(target->stream != NULL);
}

static void stop(struct target *target)
{
    struct comms_op barrier = {.ticket = 7, .terms.kind = OP_KIND_BARRIER};
    for (unsigned i = 0; i < 3; i++) {
        enum status status = STATUS_OK;
        if (target->members[i] != NULL) {
            status = comms_submit(target->members[i], &barrier, target->now_ns, NULL);
        }
        /* nobody else may harm the communicator that is on this node alone */
        require(i < 2 || status == STATUS_OK);
    }
    run(target, 5 * TIME_S);
    require(comms_idle(target->comms));
    for (unsigned i = 0; i < 3; i++) {
        if (target->members[i] != NULL) {
            comms_member_leave(target->members[i], i == 1 ? COMMS_LEAVE_LOST : COMMS_LEAVE_ORDERLY,
                               target->now_ns);
        }
    }
    for (unsigned i = 0; i < 2; i++) {
        if (target->handles[i] != NULL) {
            stores_close(target->handles[i], target->now_ns);
        }
    }
    for (unsigned i = 0; i < JOBS; i++) {
        gathers_leave(target->entries[i]);
    }
    run(target, TIME_MS);
    frame_decoder_free(&target->decoder);
    gathers_free(target->gathers);
    stores_free(target->stores);
    comms_free(target->comms);
    exec_free(target->exec);
    p2p_free(target->p2p);
    mesh_free(target->mesh);
    net_free(target->net);
    net_free(target->liar);
    network_free(target->network);
    memory_unref(target->memory);
}

static void say(struct target *target, const uint8_t *bytes, size_t size)
{
    if (target->stream != NULL && size > 0) {
        enum status status = net_stream_send(target->stream, NULL, 0, bytes, size, NULL, NULL);
        require(status == STATUS_OK || status == STATUS_LIMIT || status == STATUS_UNREACHABLE);
    }
    run(target, TIME_MS);
}

static void say_message(struct target *target, const Commd__Mesh__Message *message)
{
    static uint8_t frame[FRAME_HEADER_BYTES + FRAME_MAX_BYTES];
    size_t size = commd__mesh__message__get_packed_size(message);
    if (size >= 1 && size <= FRAME_MAX_BYTES) {
        frame_put_header(frame, size);
        commd__mesh__message__pack(message, frame + FRAME_HEADER_BYTES);
        say(target, frame, FRAME_HEADER_BYTES + size);
    }
}

static void greet(struct target *target)
{
    Commd__Mesh__Hello hello = COMMD__MESH__HELLO__INIT;
    Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
    hello.protocol_version = MESH_PROTOCOL_VERSION;
    hello.node_name = "b";
    hello.instance = 2;
    char *features[] = {(char *)(uintptr_t)MESH_FEATURE_STORE};
    hello.features = features;
    hello.n_features = 1;
    message.body_case = COMMD__MESH__MESSAGE__BODY_HELLO;
    message.hello = &hello;
    say_message(target, &message);
}

/* Forms the communicator as a correct node would. The liar's ranks are 1 and 3, and it promises what the
 * other node promised. */
static void form(struct target *target)
{
    uint32_t ranks[] = {1, 3};
    for (int promised = 0; promised < 2; promised++) {
        Commd__Mesh__CommTerms terms = COMMD__MESH__COMM_TERMS__INIT;
        Commd__Mesh__Announce body = COMMD__MESH__ANNOUNCE__INIT;
        Commd__Mesh__Message message = COMMD__MESH__MESSAGE__INIT;
        terms.size = 4;
        terms.owner_uid = CLIENT_UID;
        terms.op_timeout_ms = 1000;
        terms.slice_bytes = EXEC_SLICE_BYTES_DEFAULT;
        body.owner_uid = CLIENT_UID;
        body.name = "comm";
        body.terms = &terms;
        body.nonce = 77;
        body.ranks = ranks;
        body.n_ranks = 2;
        body.revision = 1;
        body.answer = true;
        body.comm_id = promised ? target->comm_id : 0;
        message.body_case = COMMD__MESH__MESSAGE__BODY_ANNOUNCE;
        message.announce = &body;
        say_message(target, &message);
    }
    require(target->comm_id != 0);
}

enum act { ACT_BARRIER, ACT_SEND, ACT_LEAVE, ACT_TIME, ACT_COUNT };

/* Lets one of the ranks of the shared communicator act, or lets time pass. */
static void act(struct target *target, uint8_t byte)
{
    enum act what = (enum act)(byte % ACT_COUNT);
    unsigned which = byte / ACT_COUNT % 2;
    struct comms_op op = {.ticket = 7, .terms.kind = OP_KIND_BARRIER};
    if (what == ACT_SEND) {
        op.terms.kind = OP_KIND_SEND;
        op.terms.dtype = DTYPE_U8;
        op.terms.count_elements = SENT_BYTES;
        op.peer_rank = 1;
        op.input.memory = target->memory;
    }
    if (byte == 248 || byte == 249) {
        grow_jobs(target);
    } else if (byte >= 250) {
        ask_store(target, byte % 2);
    } else if (what == ACT_TIME) {
        run(target, byte / ACT_COUNT * 50 * TIME_MS);
    } else if (what == ACT_LEAVE && target->members[which] != NULL) {
        comms_member_leave(target->members[which],
                           byte / ACT_COUNT / 2 % 2 == 0 ? COMMS_LEAVE_ORDERLY : COMMS_LEAVE_LOST,
                           target->now_ns);
        target->members[which] = NULL;
    } else if (what != ACT_LEAVE && target->members[which] != NULL) {
        enum status status = comms_submit(target->members[which], &op, target->now_ns, NULL);
        (void)status; /* it may fail: the communicator may not be formed yet, or may have failed */
    }
    run(target, TIME_MS);
}

static void replace(const struct target *target, uint64_t *number)
{
    *number = *number == 1   ? target->nonce
              : *number == 2 ? target->comm_id
              : *number == 3 ? target->revision
                             : *number;
}

static void replace_uid(uint32_t *uid)
{
    *uid = *uid == 0 ? CLIENT_UID : *uid;
}

static void say_replaced(struct target *target, const uint8_t *packed, size_t size)
{
    Commd__Mesh__Message *message = commd__mesh__message__unpack(NULL, size, packed);
    if (message == NULL) {
        return;
    }
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_ANNOUNCE) {
        replace(target, &message->announce->comm_id);
        replace(target, &message->announce->answered_nonce);
        replace(target, &message->announce->answered_revision);
        replace_uid(&message->announce->owner_uid);
        if (message->announce->terms != NULL) {
            replace_uid(&message->announce->terms->owner_uid);
        }
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_REFUSE) {
        replace(target, &message->refuse->nonce);
        replace_uid(&message->refuse->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_WITHDRAW) {
        replace_uid(&message->withdraw->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_ABORT) {
        replace(target, &message->abort->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_LEAVE) {
        replace(target, &message->leave->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_DISPUTE) {
        replace(target, &message->dispute->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_VERDICT) {
        replace(target, &message->verdict->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_MISSING) {
        replace(target, &message->missing->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_REACH) {
        replace(target, &message->reach->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_SILENCE) {
        replace(target, &message->silence->comm_id);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ASK) {
        replace_uid(&message->end_ask->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_END_ANSWER) {
        replace_uid(&message->end_answer->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_STORE_ASK) {
        replace_uid(&message->store_ask->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_GATHER) {
        replace_uid(&message->gather->owner_uid);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_GATHERED) {
        replace_uid(&message->gathered->owner_uid);
    }
    say_message(target, message);
    commd__mesh__message__free_unpacked(message, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct target target;
    if (size < 1) {
        return 0;
    }
    log_set_level(LOG_LEVEL_ERROR);
    memset(&target, 0, sizeof target);
    start(&target);
    if ((data[0] & 1) == 0) {
        say(&target, data + 1, size - 1 < FRAME_MAX_BYTES ? size - 1 : FRAME_MAX_BYTES);
    } else {
        greet(&target);
        if ((data[0] & 2) != 0) {
            form(&target);
        }
        size_t at = 1;
        for (unsigned i = 0; i < MESSAGES_MAX && size - at >= 2; i++) {
            size_t length = data[at] | (size_t)data[at + 1] << 8;
            at += 2;
            length = length < size - at ? length : size - at;
            if (length == 0 && at < size) {
                act(&target, data[at++]);
                continue;
            }
            say_replaced(&target, data + at, length);
            at += length;
        }
    }
    stop(&target);
    return 0;
}
