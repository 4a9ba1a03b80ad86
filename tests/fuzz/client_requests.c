#include "proto/store.h"
#include "proto/types.h"
#include "proto/version.h"
#include "tests/fuzz/client_node.h"

/* Requests whose fields come from the input. Most are such as a real client sends; some are not. */

#define LIST_MAX 300
#define SIZES_MAX 8
#define MUTATIONS_MAX 4

static char *take_text(struct fuzz_input *input, const char *const *texts, size_t count, char own[160])
{
    uint8_t which = fuzz_u8(input);
    if (which < 250) {
        return (char *)(uintptr_t)texts[which % count];
    }
    size_t taken;
    const uint8_t *bytes = fuzz_bytes(input, which == 255 ? 150 : 8, &taken);
    memcpy(own, bytes, taken);
    own[taken] = '\0';
    return own;
}

static char *take_name(struct fuzz_input *input, char own[160])
{
    static const char *const names[] = {"a", "b", "a", "", "x y", "victim"};
    return take_text(input, names, sizeof names / sizeof *names, own);
}

static uint64_t take_timeout_ms(struct fuzz_input *input)
{
    static const uint64_t timeouts[] = {0, 0, 1, 50, 1000, 60000};
    return timeouts[fuzz_below(input, sizeof timeouts / sizeof *timeouts)];
}

/* Returns a number below `usual`, and now and then any number. */
static uint32_t take_small(struct fuzz_input *input, uint32_t usual)
{
    uint8_t byte = fuzz_u8(input);
    return byte < 240 ? byte % usual : (uint32_t)fuzz_number(input);
}

static void take_range(struct fuzz_input *input, enum record_what what, struct record_entry *range)
{
    *range = (struct record_entry){.what = (uint8_t)what, .memory = take_small(input, FUZZ_FILES)};
    range->offset_bytes = fuzz_number(input);
    if (fuzz_below(input, 4) != 0) {
        range->offset_bytes = range->offset_bytes % 64 * 16;
    }
}

/* Returns false if there is to be no fence. */
static bool take_fence(struct fuzz_input *input, enum record_what what, struct record_entry *fence)
{
    take_range(input, what, fence);
    bool is_one = fuzz_below(input, 16) != 0;
    fence->value = fuzz_below(input, 4) == 0 ? fuzz_number(input) : 0;
    return is_one;
}

static void add_entry(struct submit_record *record, const struct record_entry *entry)
{
    if (record->entry_count < RECORD_ENTRIES_MAX) {
        record->entries[record->entry_count++] = *entry;
    }
}

static void take_ranges(struct fuzz_input *input, struct submit_record *submit)
{
    uint8_t which = fuzz_u8(input);
    for (unsigned i = 0; i < RECORD_RESIDUAL; i++) {
        if ((which >> i & 1) != 0) {
            struct record_entry range;
            take_range(input, (enum record_what)(RECORD_INPUT + i), &range);
            add_entry(submit, &range);
        }
    }
    submit->terms.has_layouts = (which & 32) != 0;
}

static void take_fences(struct fuzz_input *input, struct submit_record *record)
{
    struct record_entry waits[CLIENT_FENCES_MAX + 1], ended;
    uint8_t which = fuzz_u8(input);
    if (which < 160) {
        return;
    }
    size_t count = which < 250 ? which % 4u : CLIENT_FENCES_MAX + which % 2u, taken = 0;
    for (size_t i = 0; i < count; i++) {
        taken += take_fence(input, RECORD_WAIT, &waits[taken]);
    }
    if ((which & 8) != 0 && take_fence(input, RECORD_ENDED, &ended)) {
        add_entry(record, &ended);
    }
    for (size_t i = 0; i < taken; i++) {
        add_entry(record, &waits[i]);
    }
}

static void take_submit(struct fuzz_input *input, struct submit_record *submit)
{
    submit_record_begin(submit, RECORD_OPERATION, take_small(input, 4));
    submit->ticket = fuzz_u8(input);
    submit->terms.kind = (enum op_kind)(uint8_t)take_small(input, OP_KIND_COUNT);
    submit->terms.dtype = (enum dtype)(uint8_t)take_small(input, DTYPE_COUNT);
    submit->terms.reduce = (enum reduce)(uint8_t)take_small(input, REDUCE_COUNT);
    submit->terms.count_elements = fuzz_number(input);
    submit->terms.root_rank = take_small(input, 4);
    submit->factor = fuzz_below(input, 8) == 0 ? 1.5 : 1;
    submit->timeout_ms = take_timeout_ms(input);
    submit->peer_rank = fuzz_below(input, 8) == 0 ? COMM_ANY_SOURCE_RANK : take_small(input, 4);
    submit->tag = take_small(input, 3);
    if (fuzz_below(input, 4) == 0) {
        submit->terms.bucket_ops = (uint16_t)take_small(input, 4);
        submit->terms.bucket_index = (uint16_t)take_small(input, 4);
        submit->terms.compression = (enum compression)(uint8_t)take_small(input, COMPRESSION_COUNT);
        submit->terms.top_k_permille = (uint16_t)fuzz_number(input);
    }
    take_ranges(input, submit);
    take_fences(input, submit);
}

/* --- Sending --- */

/* Sends a packet as it is, with changed bytes, or cut. */
static void send_packet(struct fuzz_session *session, struct fuzz_input *input, uint8_t *packet, size_t size,
                        int fd)
{
    uint8_t mutations = fuzz_u8(input);
    for (unsigned i = 0; mutations >= 240 && i <= mutations % MUTATIONS_MAX; i++) {
        size_t at = (size_t)fuzz_u8(input) % size;
        packet[at] = fuzz_u8(input);
    }
    if (mutations == 239) {
        size = fuzz_u8(input) % size;
    }
    (void)fuzz_client_send(&session->client, packet, size, &fd, fd >= 0 ? 1 : 0);
}

static void send_request(struct fuzz_session *session, struct fuzz_input *input,
                         const Commd__Client__Request *request, int fd)
{
    static uint8_t packet[2 * CLIENT_PACKET_MAX_BYTES];
    size_t size = commd__client__request__get_packed_size(request);
    if (size <= sizeof packet) {
        commd__client__request__pack(request, packet);
        send_packet(session, input, packet, size, fd);
    }
}

static int take_file(struct fuzz_session *session, struct fuzz_input *input)
{
    uint32_t which = fuzz_below(input, FUZZ_FILES);
    struct fuzz_file *file = &session->all->files[which];
    if (file->fd < 0) {
        fuzz_file_make(file, input);
    }
    session->sent_file = (int)which;
    return file->fd;
}

static void send_hello(struct fuzz_session *session, struct fuzz_input *input,
                       Commd__Client__Request *request)
{
    char own[160];
    static const char *const programs[] = {"train", "\x1b[31m\n", "", "%s%n"};
    char *features[] = {(char *)CLIENT_FEATURE_RINGS, (char *)"else"};
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version =
        fuzz_below(input, 16) == 0 ? (uint32_t)fuzz_number(input) : CLIENT_PROTOCOL_VERSION;
    hello.program = take_text(input, programs, sizeof programs / sizeof *programs, own);
    hello.features = features;
    hello.n_features = fuzz_below(input, 3);
    request->body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request->hello = &hello;
    send_request(session, input, request, -1);
}

static void send_comm_init(struct fuzz_session *session, struct fuzz_input *input,
                           Commd__Client__Request *request)
{
    static const char *const overrides[] = {
        "", "", "", "all_reduce=ring", "all_reduce:0-4k=tree,4k-=ring", "broadcast=nothing", "=,,:"};
    char own[160], own_overrides[160];
    uint8_t uuid[16] = {0};
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = take_small(input, 4);
    body.name = take_name(input, own);
    body.size = 1 + take_small(input, 4);
    body.rank = take_small(input, 4);
    body.device = fuzz_below(input, 32) == 0 ? (int32_t)fuzz_number(input) : -1;
    body.device_uuid = (ProtobufCBinaryData){.len = fuzz_below(input, 32) == 0 ? 16 : 0, .data = uuid};
    body.form_timeout_ms = take_timeout_ms(input);
    body.op_timeout_ms = take_timeout_ms(input);
    body.slice_bytes = fuzz_below(input, 4) == 0 ? fuzz_number(input) : 0;
    body.algorithms = take_text(input, overrides, sizeof overrides / sizeof *overrides, own_overrides);
    request->body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request->comm_init = &body;
    send_request(session, input, request, -1);
}

static void send_register(struct fuzz_session *session, struct fuzz_input *input,
                          Commd__Client__Request *request)
{
    uint8_t handle[64] = {0}, uuid[16] = {0};
    Commd__Client__MemRegister body = COMMD__CLIENT__MEM_REGISTER__INIT;
    int fd = fuzz_below(input, 32) == 0 ? -1 : take_file(session, input);
    body.memory = take_small(input, FUZZ_FILES);
    uint8_t which = fuzz_u8(input);
    body.size_bytes =
        which < 192 && fd >= 0 ? session->all->files[session->sent_file].size : fuzz_number(input);
    if (which >= 250) {
        body.device_uuid = (ProtobufCBinaryData){.len = sizeof uuid, .data = uuid};
        body.ipc_handle = (ProtobufCBinaryData){.len = sizeof handle, .data = handle};
        body.virtual_memory = which == 255;
        body.address = fuzz_number(input);
    }
    if (which == 254) {
        body.pool_pointer = (ProtobufCBinaryData){.len = sizeof handle, .data = handle};
        body.pool_of = take_small(input, FUZZ_FILES);
    }
    request->body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request->mem_register = &body;
    send_request(session, input, request, fd);
}

static void send_map(struct fuzz_session *session, struct fuzz_input *input, Commd__Client__Request *request)
{
    Commd__Client__MemMap body = COMMD__CLIENT__MEM_MAP__INIT;
    int fd = fuzz_below(input, 4) == 0 ? -1 : take_file(session, input);
    body.memory = take_small(input, FUZZ_FILES);
    body.size_bytes = fuzz_number(input);
    request->body_case = COMMD__CLIENT__REQUEST__BODY_MEM_MAP;
    request->mem_map = &body;
    send_request(session, input, request, fd);
}

static void send_submit(struct fuzz_session *session, struct fuzz_input *input)
{
    struct submit_record submit;
    take_submit(input, &submit);
    send_packet(session, input, (uint8_t *)&submit, submit_record_bytes(&submit), -1);
}

/* Sends up to four different submits in one packet, and sometimes repeats the last one many times. */
static void send_list(struct fuzz_session *session, struct fuzz_input *input)
{
    static uint8_t packet[2 * CLIENT_PACKET_MAX_BYTES];
    struct submit_record submit;
    uint8_t count = fuzz_u8(input);
    size_t different = count % 5u, size = 0;
    size_t all = count < 240 || different == 0 ? different : LIST_MAX;
    for (size_t i = 0; i < all && size + sizeof submit <= sizeof packet; i++) {
        if (i < different) {
            take_submit(input, &submit);
            submit.kind = count >= 224 && count < 240 ? RECORD_CAPTURED : RECORD_OPERATION;
        }
        memcpy(packet + size, &submit, submit_record_bytes(&submit));
        size += submit_record_bytes(&submit);
    }
    if (size > 0) {
        send_packet(session, input, packet, size, -1);
    }
}

static void send_event(struct fuzz_session *session, struct fuzz_input *input)
{
    struct submit_record event, fences;
    struct record_entry word;
    submit_record_begin(&event, RECORD_EVENT, take_small(input, 4));
    submit_record_begin(&fences, RECORD_EVENT, 0);
    take_fences(input, &fences);
    if (take_fence(input, RECORD_ENDED, &word)) {
        add_entry(&event, &word);
    }
    for (unsigned i = 0; i < fences.entry_count; i++) { /* these may include a second word to set */
        add_entry(&event, &fences.entries[i]);
    }
    send_packet(session, input, (uint8_t *)&event, submit_record_bytes(&event), -1);
}

static void send_algorithms(struct fuzz_session *session, struct fuzz_input *input,
                            Commd__Client__Request *request)
{
    static const char *const kinds[] = {"", "all_reduce", "broadcast", "all_to_all", "nothing"};
    static const char *const overrides[] = {"", "all_reduce=ring", "scan=x"};
    char own[160], own_overrides[160], own_node[160];
    uint64_t sizes[SIZES_MAX];
    char *names[] = {(char *)"a", take_name(input, own_node)};
    Commd__Client__AlgorithmsQuery query = COMMD__CLIENT__ALGORITHMS_QUERY__INIT;
    query.kind = take_text(input, kinds, sizeof kinds / sizeof *kinds, own);
    query.overrides = take_text(input, overrides, sizeof overrides / sizeof *overrides, own_overrides);
    query.n_size_bytes = fuzz_below(input, SIZES_MAX + 1);
    for (size_t i = 0; i < query.n_size_bytes; i++) {
        sizes[i] = fuzz_number(input);
    }
    query.size_bytes = sizes;
    query.node_count = take_small(input, 9);
    query.node_names = names;
    query.n_node_names = fuzz_below(input, 3);
    request->body_case = COMMD__CLIENT__REQUEST__BODY_ALGORITHMS;
    request->algorithms = &query;
    send_request(session, input, request, -1);
}

/* Sends requests that have few fields. */
static void send_small(struct fuzz_session *session, struct fuzz_input *input,
                       Commd__Client__Request *request, uint32_t kind)
{
    char own[160];
    Commd__Client__MemDeregister deregister = COMMD__CLIENT__MEM_DEREGISTER__INIT;
    Commd__Client__CommDestroy destroy = COMMD__CLIENT__COMM_DESTROY__INIT;
    Commd__Client__CommTable table = COMMD__CLIENT__COMM_TABLE__INIT;
    Commd__Client__Ping ping = COMMD__CLIENT__PING__INIT;
    request->body_case = (Commd__Client__Request__BodyCase)kind;
    if (kind == COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER) {
        deregister.memory = take_small(input, FUZZ_FILES);
        deregister.if_unused = fuzz_below(input, 2) != 0;
        request->mem_deregister = &deregister;
    } else if (kind == COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY) {
        destroy.handle = take_small(input, 4);
        request->comm_destroy = &destroy;
    } else if (kind == COMMD__CLIENT__REQUEST__BODY_COMM_TABLE) {
        table.handle = take_small(input, 4);
        table.first_rank = (uint32_t)fuzz_number(input);
        table.first_node = (uint32_t)fuzz_number(input);
        request->comm_table = &table;
    } else {
        ping.node = take_name(input, own);
        ping.timeout_ms = (uint32_t)take_timeout_ms(input);
        request->body_case = COMMD__CLIENT__REQUEST__BODY_PING;
        request->ping = &ping;
    }
    send_request(session, input, request, -1);
}

/* Sends what commctl asks. The message is empty, or `after` is its first field. */
static void send_query(struct fuzz_session *session, struct fuzz_input *input,
                       Commd__Client__Request *request)
{
    Commd__Client__StatusQuery status = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__ConfigQuery config = COMMD__CLIENT__CONFIG_QUERY__INIT;
    Commd__Client__GpusQuery gpus = COMMD__CLIENT__GPUS_QUERY__INIT;
    Commd__Client__NodesQuery nodes = COMMD__CLIENT__NODES_QUERY__INIT;
    Commd__Client__CommsQuery comms = COMMD__CLIENT__COMMS_QUERY__INIT;
    Commd__Client__ClientsQuery clients = COMMD__CLIENT__CLIENTS_QUERY__INIT;
    Commd__Client__OpsQuery ops = COMMD__CLIENT__OPS_QUERY__INIT;
    Commd__Client__UsersQuery users = COMMD__CLIENT__USERS_QUERY__INIT;
    Commd__Client__TraceQuery trace = COMMD__CLIENT__TRACE_QUERY__INIT;
    uint32_t which = fuzz_below(input, 9);
    nodes.after = comms.after = clients.after = ops.after = users.after = fuzz_number(input);
    trace.next = nodes.after;
    switch (which) {
    case 0:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
        request->status = &status;
        break;
    case 1:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_CONFIG;
        request->config = &config;
        break;
    case 2:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_GPUS;
        request->gpus = &gpus;
        break;
    case 8:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_TRACE;
        trace.end = trace.next >> 1;
        trace.record = (trace.next & 1) != 0;
        request->trace = &trace;
        break;
    case 7:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_USERS;
        request->users = &users;
        break;
    case 3:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_NODES;
        request->nodes = &nodes;
        break;
    case 4:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_COMMS;
        request->comms = &comms;
        break;
    case 5:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_CLIENTS;
        request->clients = &clients;
        break;
    default:
        request->body_case = COMMD__CLIENT__REQUEST__BODY_OPS;
        request->ops = &ops;
        break;
    }
    send_request(session, input, request, -1);
}

/* Sends a request to a store, of the right form or not. */
static void send_store(struct fuzz_session *session, struct fuzz_input *input,
                       Commd__Client__Request *request)
{
    static uint8_t large[STORE_VALUE_MAX_BYTES + 1];
    static const size_t sizes[] = {0, 1, 20, 300, STORE_VALUE_MAX_BYTES, STORE_VALUE_MAX_BYTES + 1};
    static ProtobufCBinaryData keys[2 * STORE_ASK_KEYS_MAX];
    char own[160];
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    body.handle = take_small(input, 3);
    body.kind = take_small(input, STORE_KIND_COUNT + 2);
    body.name = take_name(input, own);
    body.delta = (int64_t)fuzz_number(input);
    body.timeout_ms = take_timeout_ms(input);
    body.n_keys = fuzz_below(input, 4);
    body.n_keys = body.n_keys == 3 ? take_small(input, 8) * 256 % (2 * STORE_ASK_KEYS_MAX) : body.n_keys;
    body.keys = keys;
    for (size_t i = 0; i < body.n_keys; i++) {
        size_t taken;
        keys[i].data = (uint8_t *)(uintptr_t)fuzz_bytes(input, i < 3 ? 1 : 0, &taken);
        keys[i].len = taken;
    }
    body.value = (ProtobufCBinaryData){.data = large, .len = sizes[fuzz_below(input, 6)]};
    body.expected = (ProtobufCBinaryData){.data = large, .len = sizes[fuzz_below(input, 6)]};
    request->body_case = COMMD__CLIENT__REQUEST__BODY_STORE;
    request->store = &body;
    send_request(session, input, request, -1);
}

void fuzz_request_send(struct fuzz_session *session, struct fuzz_input *input)
{
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    uint8_t which = fuzz_u8(input);
    request.id = which >> 4;
    session->sent_file = -1;
    switch (which & 15) {
    case 0:
        send_hello(session, input, &request);
        return;
    case 1:
    case 2:
        send_comm_init(session, input, &request);
        return;
    case 3:
    case 4:
        send_register(session, input, &request);
        return;
    case 5:
        send_small(session, input, &request, COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER);
        return;
    case 6:
        send_small(session, input, &request, COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY);
        return;
    case 7:
        send_list(session, input);
        return;
    case 8:
        send_event(session, input);
        return;
    case 9:
        send_query(session, input, &request);
        return;
    case 10:
        send_algorithms(session, input, &request);
        return;
    case 11:
        send_small(session, input, &request, COMMD__CLIENT__REQUEST__BODY_COMM_TABLE);
        return;
    case 12:
        send_small(session, input, &request, COMMD__CLIENT__REQUEST__BODY_PING);
        return;
    case 13:
        send_map(session, input, &request);
        return;
    case 14:
        send_store(session, input, &request);
        return;
    default:
        send_submit(session, input);
        return;
    }
}
