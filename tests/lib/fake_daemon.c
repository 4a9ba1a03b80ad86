#include "tests/lib/fake_daemon.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "proto/client.pb-c.h"
#include "proto/status.h"
#include "proto/types.h"
#include "proto/version.h"

#define SESSIONS_MAX 16
#define COMMS_MAX 64
#define MEMORIES_MAX 4096
#define DELAYED_MAX 8192
#define NODE_NAMES_MAX 600
#define SEND_TIMEOUT_S 20 /* a client that reads nothing for so long is lost */

struct fake_comm {
    uint32_t handle; /* 0: free */
    uint32_t rank;
    uint32_t size;
};

struct fake_memory {
    uint32_t id;         /* 0: free */
    unsigned char *base; /* null: on a GPU */
    uint64_t size_bytes;
    uint64_t mapped_bytes;
};

/* Something to be said later; first in, first out. */
struct fake_delayed {
    uint64_t due_ns;
    uint32_t handle;
    uint64_t ticket;                                    /* of a Complete */
    uint64_t init_request_id;                           /* or of a CommInitReply */
    Commd__Client__Submit *submit;                      /* a copy */
    enum { FAKE_WAITS, FAKE_DONE, FAKE_REFUSED } state; /* done when its words are reached */
    Commd__Client__Record *record;                      /* a copy */
};

struct fake_session {
    int fd; /* -1: free */
    bool closing;
    struct fake_rings *rings; /* null: the socket alone */
    bool offers_rings;        /* with the next packet */
    uint64_t pending;
    struct fake_comm comms[COMMS_MAX];
    struct fake_memory memories[MEMORIES_MAX];
    struct fake_delayed delayed[DELAYED_MAX];
    uint64_t delayed_head, delayed_tail;
};

struct fake_daemon {
    pthread_t thread;
    pthread_mutex_t lock; /* of script, op_count, counts, stopping, goes_on */
    struct fake_script script;
    uint64_t op_count;
    struct fake_counts counts;
    bool stopping;
    bool goes_on;
    bool stopped_reading; /* the thread's alone */
    int wake_fd;
    int listen_fd;
    char folder[64];
    char path[96];
    char node_names[NODE_NAMES_MAX][FAKE_DAEMON_NODE_NAME_BYTES];
    struct fake_session sessions[SESSIONS_MAX];
};

static void must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fake_daemon: %s: %s\n", what, strerror(errno));
        abort();
    }
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static struct fake_script current_script(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    struct fake_script script = daemon->script;
    pthread_mutex_unlock(&daemon->lock);
    return script;
}

/* --- Sending: it blocks, as nastily as it may, and reads nothing meanwhile --- */

static bool client_is_gone(const struct fake_session *session)
{
    char byte;
    return recv(session->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT) == 0;
}

static void put_bytes(struct fake_session *session, const void *bytes, size_t size)
{
    while (!fake_rings_put(session->rings, bytes, size)) {
        if (client_is_gone(session)) {
            session->closing = true;
            return;
        }
        usleep(100);
    }
}

/* Where rings are offered, their descriptors go along. */
static ssize_t send_on_socket(struct fake_session *session, const void *bytes, size_t size)
{
    int fds[CLIENT_RING_FDS];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } control = {0};
    struct iovec part = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (session->offers_rings) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        fake_rings_client_fds(session->rings, fds);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fds);
        memcpy(CMSG_DATA(&control.header), fds, sizeof fds);
    }
    return sendmsg(session->fd, &message, MSG_NOSIGNAL);
}

static void send_bytes(struct fake_session *session, const void *bytes, size_t size)
{
    if (session->closing) {
        return;
    }
    if (session->rings != NULL && !session->offers_rings &&
        size <= ring_packet_max_bytes(CLIENT_RING_BYTES)) {
        put_bytes(session, bytes, size);
    } else if (send_on_socket(session, bytes, size) < 0) {
        session->closing = true;
    }
    session->offers_rings = false;
}

static void send_event(struct fake_session *session, const Commd__Client__Event *event)
{
    size_t size = commd__client__event__get_packed_size(event);
    uint8_t *bytes = malloc(size + 1);
    must(bytes != NULL, "malloc");
    commd__client__event__pack(event, bytes);
    send_bytes(session, bytes, size);
    free(bytes);
}

static void send_reply(struct fake_session *session, Commd__Client__Reply *reply)
{
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_REPLY;
    event.reply = reply;
    send_event(session, &event);
}

static void send_done(struct fake_session *session, uint64_t request_id)
{
    Commd__Client__Done done = COMMD__CLIENT__DONE__INIT;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_DONE;
    reply.done = &done;
    send_reply(session, &reply);
}

static void send_error(struct fake_session *session, uint64_t request_id, enum status status,
                       const char *text)
{
    Commd__Client__Error error = COMMD__CLIENT__ERROR__INIT;
    error.status = status;
    error.text = (char *)text;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_ERROR;
    reply.error = &error;
    send_reply(session, &reply);
}

static void send_complete(struct fake_session *session, uint32_t handle, uint64_t ticket, uint32_t status,
                          const char *text)
{
    Commd__Client__Complete complete = COMMD__CLIENT__COMPLETE__INIT;
    complete.handle = handle;
    complete.ticket = ticket;
    complete.status = status;
    complete.text = (char *)(text != NULL ? text : "");
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_COMPLETE;
    event.complete = &complete;
    session->pending--;
    send_event(session, &event);
}

/* --- Communicators --- */

static struct fake_comm *find_comm(struct fake_session *session, uint32_t handle)
{
    for (size_t i = 0; i < COMMS_MAX; i++) {
        if (session->comms[i].handle == handle) {
            return &session->comms[i];
        }
    }
    return NULL;
}

static void delay(struct fake_session *session, const struct fake_delayed *what)
{
    must(session->delayed_tail - session->delayed_head < DELAYED_MAX, "too much is delayed");
    session->delayed[session->delayed_tail++ % DELAYED_MAX] = *what;
}

static void send_formed(struct fake_session *session, const struct fake_script *script, uint64_t request_id)
{
    Commd__Client__CommInitReply formed = COMMD__CLIENT__COMM_INIT_REPLY__INIT;
    formed.comm_id = request_id + 1000;
    formed.generation = 1;
    formed.local_rank = 0;
    formed.local_size = 1;
    formed.node_count = script->node_count != 0 ? script->node_count : 1;
    if (script->form == FAKE_FORM_NO_NODES) {
        formed.node_count = 0;
    }
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_INIT;
    reply.comm_init = &formed;
    send_reply(session, &reply);
}

static void handle_init(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                        const Commd__Client__CommInit *request)
{
    struct fake_script script = current_script(daemon);
    if (script.form == FAKE_FORM_REFUSE) {
        send_error(session, request_id, STATUS_MISMATCH, script.form_text);
        return;
    }
    if (script.form == FAKE_FORM_OTHER_QUESTION) {
        send_done(session, request_id);
        return;
    }
    struct fake_comm *comm = find_comm(session, 0);
    must(comm != NULL && find_comm(session, request->handle) == NULL, "a handle that is in use");
    *comm = (struct fake_comm){.handle = request->handle, .rank = request->rank, .size = request->size};
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.comms++;
    daemon->counts.device = request->device;
    daemon->counts.device_uuid_bytes = request->device_uuid.len;
    if (request->device_uuid.len == sizeof daemon->counts.device_uuid) {
        memcpy(daemon->counts.device_uuid, request->device_uuid.data, request->device_uuid.len);
    }
    pthread_mutex_unlock(&daemon->lock);
    if (script.form == FAKE_FORM_SILENT) {
        return;
    }
    if (script.form_delay_ms == 0) {
        send_formed(session, &script, request_id);
    } else {
        delay(session, &(struct fake_delayed){.due_ns = now_ns() + script.form_delay_ms * UINT64_C(1000000),
                                              .init_request_id = request_id});
    }
}

static void handle_table(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                         const Commd__Client__CommTable *request)
{
    struct fake_script script = current_script(daemon);
    const struct fake_comm *comm = find_comm(session, request->handle);
    must(comm != NULL, "a table of no communicator");
    uint32_t nodes = script.node_count != 0 ? script.node_count : 1;
    uint32_t page_ranks = script.page_ranks != 0 ? script.page_ranks : CLIENT_TABLE_RANKS_MAX;
    uint32_t page_nodes = script.page_nodes != 0 ? script.page_nodes : CLIENT_TABLE_NODES_MAX;
    static uint32_t node_of_rank[CLIENT_TABLE_RANKS_MAX + 1];
    static char *names[CLIENT_TABLE_NODES_MAX];
    Commd__Client__CommTableReply table = COMMD__CLIENT__COMM_TABLE_REPLY__INIT;
    table.node_of_rank = node_of_rank;
    table.node_names = names;
    for (uint32_t rank = request->first_rank; rank < comm->size && table.n_node_of_rank < page_ranks;
         rank++) {
        node_of_rank[table.n_node_of_rank++] = script.table == FAKE_TABLE_WRONG_NODE ? nodes : rank % nodes;
    }
    for (uint32_t node = request->first_node; node < nodes && table.n_node_names < page_nodes; node++) {
        names[table.n_node_names++] = daemon->node_names[node];
    }
    if (script.table == FAKE_TABLE_EMPTY) {
        table.n_node_of_rank = 0;
        table.n_node_names = 0;
    } else if (script.table == FAKE_TABLE_TOO_MANY) {
        node_of_rank[table.n_node_of_rank++] = 0;
    }
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.tables++;
    pthread_mutex_unlock(&daemon->lock);
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_TABLE;
    reply.comm_table = &table;
    send_reply(session, &reply);
}

static void handle_destroy(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                           uint32_t handle)
{
    struct fake_comm *comm = find_comm(session, handle);
    if (comm == NULL) {
        send_error(session, request_id, STATUS_NOT_FOUND, "no such communicator");
        return;
    }
    comm->handle = 0;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.comms--;
    daemon->counts.destroyed++;
    pthread_mutex_unlock(&daemon->lock);
    for (uint64_t i = session->delayed_head; i < session->delayed_tail; i++) {
        struct fake_delayed *delayed = &session->delayed[i % DELAYED_MAX];
        if (delayed->handle == handle && delayed->init_request_id == 0) {
            delayed->ticket = 0; /* nobody is told any more */
            delayed->due_ns = 0;
        }
    }
    send_done(session, request_id);
}

/* --- Memory --- */

static struct fake_memory *find_memory(struct fake_session *session, uint32_t id)
{
    for (size_t i = 0; i < MEMORIES_MAX; i++) {
        if (session->memories[i].id == id) {
            return &session->memories[i];
        }
    }
    return NULL;
}

static void register_on_gpu(struct fake_daemon *daemon, struct fake_memory *memory,
                            const Commd__Client__MemRegister *request)
{
    bool by_handle = request->ipc_handle.len == sizeof daemon->counts.memory_handle;
    must(request->device_uuid.len == sizeof daemon->counts.memory_uuid && request->size_bytes > 0 &&
             by_handle != (bool)request->virtual_memory && (by_handle || request->ipc_handle.len == 0),
         "memory on a GPU that is not well described");
    *memory = (struct fake_memory){.id = request->memory, .size_bytes = request->size_bytes};
    memory->mapped_bytes = by_handle ? request->size_bytes : 0;
    pthread_mutex_lock(&daemon->lock);
    struct fake_counts *counts = &daemon->counts;
    counts->memories++;
    counts->registered++;
    counts->handles += by_handle;
    counts->virtuals += !by_handle;
    counts->memory_bytes = request->size_bytes;
    memcpy(counts->memory_uuid, request->device_uuid.data, request->device_uuid.len);
    if (by_handle) {
        memcpy(counts->memory_handle, request->ipc_handle.data, request->ipc_handle.len);
    }
    pthread_mutex_unlock(&daemon->lock);
}

static void handle_register(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                            const Commd__Client__MemRegister *request, int fd)
{
    uint32_t memories_max = current_script(daemon).memories_max;
    must(request->memory != 0 && find_memory(session, request->memory) == NULL,
         "a memory that is registered");
    if (memories_max != 0 && fake_daemon_counts(daemon).memories >= memories_max) {
        send_error(session, request_id, STATUS_LIMIT, "too many memories");
        return;
    }
    struct fake_memory *memory = find_memory(session, 0);
    must(memory != NULL, "a place for a memory");
    if (request->device_uuid.len > 0) {
        if (current_script(daemon).refuses_gpu_memory) {
            send_error(session, request_id, STATUS_DEVICE, "fake: the GPU does not open it");
            return;
        }
        register_on_gpu(daemon, memory, request);
        send_done(session, request_id);
        return;
    }
    must(fd >= 0, "a registration without a descriptor");
    void *base = mmap(NULL, request->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(base != MAP_FAILED, "mmap");
    *memory = (struct fake_memory){.id = request->memory, .base = base, .size_bytes = request->size_bytes};
    memory->mapped_bytes = request->size_bytes;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.memories++;
    daemon->counts.registered++;
    pthread_mutex_unlock(&daemon->lock);
    send_done(session, request_id);
}

static void handle_map(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                       const Commd__Client__MemMap *request, int fd)
{
    struct fake_memory *memory = find_memory(session, request->memory);
    must(request->memory != 0 && memory != NULL && memory->base == NULL, "a part of no virtual memory");
    must(fd >= 0, "a part without a descriptor");
    must(request->size_bytes <= memory->size_bytes - memory->mapped_bytes, "parts beyond the memory");
    memory->mapped_bytes += request->size_bytes;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.maps++;
    pthread_mutex_unlock(&daemon->lock);
    send_done(session, request_id);
}

static void forget_memory(struct fake_daemon *daemon, struct fake_memory *memory)
{
    if (memory->base != NULL) {
        munmap(memory->base, memory->size_bytes);
    }
    memory->id = 0;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.memories--;
    daemon->counts.withdrawn++;
    pthread_mutex_unlock(&daemon->lock);
}

static void handle_deregister(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                              uint32_t id)
{
    struct fake_memory *memory = id != 0 ? find_memory(session, id) : NULL;
    if (memory == NULL) {
        send_error(session, request_id, STATUS_NOT_FOUND, "no such memory");
        return;
    }
    forget_memory(daemon, memory);
    send_done(session, request_id);
}

/* --- Operations --- */

/* --- Words --- */

static _Atomic uint64_t *word_of(struct fake_session *session, const Commd__Client__Fence *fence)
{
    const Commd__Client__Range *range = fence->word;
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? find_memory(session, range->memory) : NULL;
    must(memory != NULL && memory->base != NULL && range->offset_bytes % 8 == 0 &&
             range->offset_bytes <= memory->size_bytes - 8,
         "a word that is none");
    return (_Atomic uint64_t *)(void *)(memory->base + range->offset_bytes);
}

static bool are_reached(struct fake_session *session, Commd__Client__Fence *const *fences, size_t count)
{
    must(count <= CLIENT_FENCES_MAX, "more words than there may be");
    for (size_t i = 0; i < count; i++) {
        if ((int64_t)(atomic_load(word_of(session, fences[i])) - fences[i]->value) < 0) {
            return false;
        }
    }
    return true;
}

static void set_word(struct fake_session *session, const Commd__Client__Fence *fence)
{
    if (fence != NULL) {
        atomic_store(word_of(session, fence), fence->value);
    }
}

/* Messages have no copy of their own: through bytes and back. */
static Commd__Client__Submit *copy_submit(const Commd__Client__Submit *submit)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    return commd__client__submit__unpack(NULL, commd__client__submit__pack(submit, bytes), bytes);
}

static Commd__Client__Record *copy_record(const Commd__Client__Record *record)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    return commd__client__record__unpack(NULL, commd__client__record__pack(record, bytes), bytes);
}

/* --- Doing them --- */

static bool is_on_gpu(struct fake_daemon *daemon, struct fake_session *session,
                      const Commd__Client__Range *range)
{
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? find_memory(session, range->memory) : NULL;
    if (memory != NULL && memory->mapped_bytes < memory->size_bytes) {
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.unmapped++;
        pthread_mutex_unlock(&daemon->lock);
    }
    return memory != NULL && memory->base == NULL;
}

static unsigned char *range_address(struct fake_session *session, const Commd__Client__Range *range,
                                    uint64_t size)
{
    const struct fake_memory *memory =
        range != NULL && range->memory != 0 ? find_memory(session, range->memory) : NULL;
    if (memory == NULL || range->offset_bytes > memory->size_bytes ||
        size > memory->size_bytes - range->offset_bytes) {
        return NULL;
    }
    return memory->base + range->offset_bytes;
}

/* Does it; false where commd would refuse. */
static bool perform(struct fake_daemon *daemon, struct fake_session *session,
                    const Commd__Client__Submit *submit)
{
    const struct fake_comm *comm = submit->handle != 0 ? find_comm(session, submit->handle) : NULL;
    enum dtype dtype;
    enum reduce reduce;
    if (comm == NULL || !dtype_from_wire(submit->dtype, &dtype) ||
        !reduce_from_wire(submit->reduce, &reduce)) {
        return false;
    }
    uint64_t size = submit->count_elements * dtype_size_bytes(dtype);
    if (size == 0) {
        return submit->input == NULL && submit->output == NULL;
    }
    if (is_on_gpu(daemon, session, submit->input) || is_on_gpu(daemon, session, submit->output)) {
        return true;
    }
    const unsigned char *input = range_address(session, submit->input, size);
    unsigned char *output = range_address(session, submit->output, size);
    bool is_root = submit->root_rank == comm->rank;
    if (submit->kind == OP_KIND_ALL_REDUCE && input != NULL && output != NULL) {
        for (uint64_t i = 0; i < size; i++) {
            output[i] = fake_daemon_byte(input[i]);
        }
        return true;
    }
    if (submit->kind == OP_KIND_BARRIER) {
        return true;
    }
    if (submit->kind != OP_KIND_BROADCAST || output == NULL ||
        (is_root ? input != output : submit->input != NULL)) {
        return false;
    }
    for (uint64_t i = 0; i < size && !is_root; i++) {
        output[i] = fake_daemon_fill(i);
    }
    return true;
}

static void note_submit(struct fake_counts *counts, const Commd__Client__Submit *submit)
{
    counts->submits++;
    counts->input_present = submit->input != NULL;
    counts->output_present = submit->output != NULL;
    counts->input_memory = submit->input != NULL ? submit->input->memory : 0;
    counts->output_memory = submit->output != NULL ? submit->output->memory : 0;
    counts->input_offset_bytes = submit->input != NULL ? submit->input->offset_bytes : 0;
    counts->output_offset_bytes = submit->output != NULL ? submit->output->offset_bytes : 0;
    counts->timeout_ms = submit->timeout_ms;
    counts->factor = submit->factor;
    counts->fences = (uint32_t)submit->n_waits;
    counts->ended_present = submit->ended != NULL;
}

static void finish(struct fake_daemon *daemon, struct fake_session *session,
                   const Commd__Client__Submit *submit, bool done)
{
    set_word(session, submit->ended);
    if (!done) {
        pthread_mutex_lock(&daemon->lock);
        daemon->counts.refused++;
        pthread_mutex_unlock(&daemon->lock);
    }
    send_complete(session, submit->handle, submit->ticket, done ? STATUS_OK : STATUS_INVALID_ARGUMENT,
                  done ? NULL : "fake: refused");
}

static void complete(struct fake_daemon *daemon, struct fake_session *session,
                     const Commd__Client__Submit *submit, uint32_t delay_ms)
{
    struct fake_delayed delayed = {.due_ns = now_ns() + delay_ms * UINT64_C(1000000),
                                   .handle = submit->handle,
                                   .ticket = submit->ticket};
    if (are_reached(session, submit->waits, submit->n_waits)) {
        delayed.state = perform(daemon, session, submit) ? FAKE_DONE : FAKE_REFUSED;
        if (delay_ms == 0 && session->delayed_head == session->delayed_tail) {
            finish(daemon, session, submit, delayed.state == FAKE_DONE);
            return;
        }
    }
    delayed.submit = copy_submit(submit);
    delay(session, &delayed);
}

static void carry_out(struct fake_daemon *daemon, struct fake_session *session,
                      const Commd__Client__Record *record)
{
    set_word(session, record->word);
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.records++;
    daemon->counts.record_waits = record->n_waits;
    pthread_mutex_unlock(&daemon->lock);
}

static void handle_record(struct fake_daemon *daemon, struct fake_session *session,
                          const Commd__Client__Record *record)
{
    must(record->handle != 0 && find_comm(session, record->handle) != NULL, "a record of no communicator");
    if (session->delayed_head == session->delayed_tail &&
        are_reached(session, record->waits, record->n_waits)) {
        carry_out(daemon, session, record);
        return;
    }
    delay(session, &(struct fake_delayed){
                       .due_ns = now_ns(), .handle = record->handle, .record = copy_record(record)});
}

static void abort_comm(struct fake_session *session, uint32_t handle, uint32_t status)
{
    Commd__Client__Aborted aborted = COMMD__CLIENT__ABORTED__INIT;
    aborted.handle = handle;
    aborted.status = status;
    aborted.text = (char *)"aborted after it";
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_ABORTED;
    event.aborted = &aborted;
    send_event(session, &event);
}

static void act(struct fake_daemon *daemon, struct fake_session *session, const Commd__Client__Submit *submit,
                const struct fake_script *script)
{
    static const uint8_t oversize[CLIENT_PACKET_MAX_BYTES + 1];
    static const uint8_t unknown_field[] = {0xf8, 0x07, 0x01}; /* number 127, which no event has */
    switch (script->action) {
    case FAKE_COMPLETE:
        complete(daemon, session, submit, script->op_delay_ms);
        return;
    case FAKE_FAIL:
        set_word(session, submit->ended);
        send_complete(session, submit->handle, submit->ticket, script->op_status, script->op_text);
        return;
    case FAKE_ABORT:
        set_word(session, submit->ended);
        send_complete(session, submit->handle, submit->ticket, script->op_status, script->op_text);
        abort_comm(session, submit->handle, script->op_status);
        return;
    case FAKE_NO_WORD:
        return;
    case FAKE_CLOSE:
        session->closing = true;
        return;
    case FAKE_GARBAGE:
        send_bytes(session, "\xff\xfe\xfd\xfc garbage", 12);
        return;
    case FAKE_EMPTY_EVENT:
        send_bytes(session, unknown_field,
                   sizeof unknown_field); /* one of no bytes would be an end of file */
        return;
    case FAKE_OVERSIZE:
        send_bytes(session, oversize, sizeof oversize);
        return;
    case FAKE_OTHER_TICKET:
        send_complete(session, submit->handle, submit->ticket + 77, STATUS_OK, NULL);
        return;
    case FAKE_OTHER_HANDLE:
        send_complete(session, submit->handle + 77, submit->ticket, STATUS_OK, NULL);
        return;
    case FAKE_OTHER_REQUEST:
        send_done(session, 1u << 30);
        return;
    case FAKE_SESSION_ERROR:
        send_error(session, 0, STATUS_SHUTTING_DOWN, "commd is being upgraded");
        session->closing = true;
        return;
    case FAKE_STOP_READING:
        complete(daemon, session, submit, 1); /* later: when it goes on */
        daemon->stopped_reading = true;
        return;
    case FAKE_ABUSE_RINGS:
        fake_rings_abuse(session->rings, script->abuse);
        return;
    }
}

static void handle_submit(struct fake_daemon *daemon, struct fake_session *session,
                          const Commd__Client__Submit *submit)
{
    session->pending++;
    pthread_mutex_lock(&daemon->lock);
    struct fake_script script = daemon->script;
    note_submit(&daemon->counts, submit);
    if (session->pending > daemon->counts.pending_max) {
        daemon->counts.pending_max = session->pending;
    }
    if (++daemon->op_count != script.action_at_op) {
        script.action = FAKE_COMPLETE;
    }
    pthread_mutex_unlock(&daemon->lock);
    act(daemon, session, submit, &script);
}

/* --- Sessions --- */

static void handle_hello(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                         const Commd__Client__Hello *request)
{
    struct fake_script script = current_script(daemon);
    bool wants_rings = request->n_features == 1 && strcmp(request->features[0], CLIENT_FEATURE_RINGS) == 0;
    pthread_mutex_lock(&daemon->lock);
    snprintf(daemon->counts.program, sizeof daemon->counts.program, "%s", request->program);
    daemon->counts.wants_rings = wants_rings;
    pthread_mutex_unlock(&daemon->lock);
    Commd__Client__HelloReply hello = COMMD__CLIENT__HELLO_REPLY__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION + (script.hello == FAKE_HELLO_OTHER_VERSION ? 8 : 0);
    hello.version_text = (char *)"9.8.7";
    hello.node_name = daemon->node_names[0];
    hello.pending_ops_max = script.pending_ops_max != 0 ? script.pending_ops_max : 1024;
    hello.packet_max_bytes = CLIENT_PACKET_MAX_BYTES;
    if (wants_rings && script.rings) {
        session->rings = fake_rings_new();
        session->offers_rings = true;
        hello.features = request->features;
        hello.n_features = 1;
    }
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_HELLO;
    reply.hello = &hello;
    switch (script.hello) {
    case FAKE_HELLO_ANSWER:
    case FAKE_HELLO_OTHER_VERSION:
        send_reply(session, &reply);
        return;
    case FAKE_HELLO_SILENT:
        return;
    case FAKE_HELLO_REFUSE:
        send_error(session, request_id, STATUS_VERSION, "this commd speaks version 9");
        break;
    case FAKE_HELLO_FULL:
        send_error(session, 0, STATUS_LIMIT, "4096 clients are the most");
        break;
    case FAKE_HELLO_CLOSE:
        break;
    }
    session->closing = true;
}

static void handle_request(struct fake_daemon *daemon, struct fake_session *session,
                           const Commd__Client__Request *request, int fd)
{
    int body = (int)request->body_case;
    if (body == COMMD__CLIENT__REQUEST__BODY_HELLO) {
        handle_hello(daemon, session, request->id, request->hello);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_COMM_INIT) {
        handle_init(daemon, session, request->id, request->comm_init);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_COMM_TABLE) {
        handle_table(daemon, session, request->id, request->comm_table);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY) {
        handle_destroy(daemon, session, request->id, request->comm_destroy->handle);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER) {
        handle_register(daemon, session, request->id, request->mem_register, fd);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER) {
        handle_deregister(daemon, session, request->id, request->mem_deregister->memory);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_MAP) {
        handle_map(daemon, session, request->id, request->mem_map, fd);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_SUBMIT) {
        handle_submit(daemon, session, request->submit);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_SUBMIT_LIST) {
        for (size_t i = 0; i < request->submit_list->n_submits; i++) {
            handle_submit(daemon, session, request->submit_list->submits[i]);
        }
    } else if (body == COMMD__CLIENT__REQUEST__BODY_RECORD) {
        handle_record(daemon, session, request->record);
    } else {
        must(false, "a request of another kind");
    }
}

static void read_session(struct fake_daemon *daemon, struct fake_session *session)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(session->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
        return;
    }
    if (size <= 0) {
        session->closing = true;
        return;
    }
    int fd = -1;
    const struct cmsghdr *first = CMSG_FIRSTHDR(&message);
    if (first != NULL && first->cmsg_type == SCM_RIGHTS) {
        memcpy(&fd, CMSG_DATA(first), sizeof fd);
    }
    Commd__Client__Request *request = commd__client__request__unpack(NULL, (size_t)size, bytes);
    must(request != NULL, "a packet that is no request");
    handle_request(daemon, session, request, fd);
    commd__client__request__free_unpacked(request, NULL);
    if (fd >= 0) {
        close(fd);
    }
}

/* Whether it may be said; ticket 0 and no reply: nobody is told any more, but words are set. */
static bool is_due(struct fake_session *session, const struct fake_delayed *delayed)
{
    if (delayed->due_ns > now_ns()) {
        return false;
    }
    if (delayed->submit != NULL && delayed->ticket != 0) {
        return are_reached(session, delayed->submit->waits, delayed->submit->n_waits);
    }
    return delayed->record == NULL || find_comm(session, delayed->handle) == NULL ||
           are_reached(session, delayed->record->waits, delayed->record->n_waits);
}

static void free_delayed(struct fake_delayed *delayed)
{
    if (delayed->submit != NULL) {
        commd__client__submit__free_unpacked(delayed->submit, NULL);
    }
    if (delayed->record != NULL) {
        commd__client__record__free_unpacked(delayed->record, NULL);
    }
}

static void read_rings(struct fake_daemon *daemon, struct fake_session *session)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    size_t size;
    (void)fake_rings_heard(session->rings);
    while (!session->closing && !daemon->stopped_reading &&
           (size = fake_rings_take(session->rings, bytes, sizeof bytes)) > 0) {
        Commd__Client__Request *request = commd__client__request__unpack(NULL, size, bytes);
        must(request != NULL, "a packet that is no request");
        handle_request(daemon, session, request, -1);
        commd__client__request__free_unpacked(request, NULL);
    }
}

static void say_delayed(struct fake_daemon *daemon, struct fake_session *session)
{
    while (session->delayed_head < session->delayed_tail) {
        struct fake_delayed *next = &session->delayed[session->delayed_head % DELAYED_MAX];
        if (!is_due(session, next)) {
            return;
        }
        if (next->init_request_id != 0) {
            struct fake_script script = current_script(daemon);
            send_formed(session, &script, next->init_request_id);
        } else if (next->record != NULL) {
            carry_out(daemon, session, next->record);
        } else if (next->ticket != 0) {
            bool done =
                next->state == FAKE_WAITS ? perform(daemon, session, next->submit) : next->state == FAKE_DONE;
            finish(daemon, session, next->submit, done);
        } else {
            set_word(session, next->submit->ended);
        }
        free_delayed(next);
        session->delayed_head++;
    }
}

static void accept_session(struct fake_daemon *daemon)
{
    int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
    for (size_t i = 0; fd >= 0 && i < SESSIONS_MAX; i++) {
        struct fake_session *session = &daemon->sessions[i];
        if (session->fd < 0) {
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
            memset(session, 0, sizeof *session);
            session->fd = fd;
            pthread_mutex_lock(&daemon->lock);
            daemon->counts.sessions++;
            pthread_mutex_unlock(&daemon->lock);
            return;
        }
    }
    must(fd < 0, "a place for a session");
}

static void end_session(struct fake_daemon *daemon, struct fake_session *session)
{
    uint32_t comms = 0;
    for (; session->delayed_head < session->delayed_tail; session->delayed_head++) {
        free_delayed(&session->delayed[session->delayed_head % DELAYED_MAX]);
    }
    for (size_t i = 0; i < MEMORIES_MAX; i++) {
        if (session->memories[i].id != 0) {
            forget_memory(daemon, &session->memories[i]);
        }
    }
    for (size_t i = 0; i < COMMS_MAX; i++) {
        comms += session->comms[i].handle != 0;
    }
    close(session->fd);
    session->fd = -1;
    fake_rings_free(session->rings);
    session->rings = NULL;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.sessions--;
    daemon->counts.comms -= comms;
    pthread_mutex_unlock(&daemon->lock);
}

/* What wakes the thread: two places a session, its socket and its bell. Returns for how long to wait. */
static int watch_sessions(struct fake_daemon *daemon, struct pollfd *ready)
{
    int timeout_ms = -1;
    bool waits = false;
    for (size_t i = 0; i < SESSIONS_MAX; i++) {
        struct fake_session *session = &daemon->sessions[i];
        bool has_rings = session->fd >= 0 && session->rings != NULL;
        bool reads_rings = has_rings && !daemon->stopped_reading;
        ready[2 * i] = (struct pollfd){.fd = daemon->stopped_reading ? -1 : session->fd, .events = POLLIN};
        ready[2 * i + 1] =
            (struct pollfd){.fd = reads_rings ? session->rings->bell[0] : -1, .events = POLLIN};
        if (session->fd >= 0 && session->delayed_head < session->delayed_tail) {
            timeout_ms = 1;
        }
        if (reads_rings && !ring_consumer_sleep(&session->rings->in)) {
            timeout_ms = 0;
        }
        waits |= has_rings && atomic_load(&session->rings->in.shared->producer_sleeps) != 0;
    }
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.waits = waits;
    pthread_mutex_unlock(&daemon->lock);
    return timeout_ms < 0 && daemon->stopped_reading ? 1
                                                     : timeout_ms; /* whether a client waits is to be seen */
}

static void serve_session(struct fake_daemon *daemon, struct fake_session *session,
                          const struct pollfd *ready)
{
    if (ready[0].fd >= 0 && ready[0].revents != 0) {
        read_session(daemon, session);
    }
    if (session->rings != NULL && !daemon->stopped_reading) {
        read_rings(daemon, session);
    }
    if (!daemon->stopped_reading) {
        say_delayed(daemon, session);
    }
}

static void *run(void *argument)
{
    struct fake_daemon *daemon = argument;
    for (;;) {
        struct pollfd ready[2 * SESSIONS_MAX + 2];
        struct pollfd *listening = &ready[2 * SESSIONS_MAX], *woken = listening + 1;
        *listening = (struct pollfd){.fd = daemon->listen_fd, .events = POLLIN};
        *woken = (struct pollfd){.fd = daemon->wake_fd, .events = POLLIN};
        (void)poll(ready, 2 * SESSIONS_MAX + 2, watch_sessions(daemon, ready));
        pthread_mutex_lock(&daemon->lock);
        bool stopping = daemon->stopping;
        daemon->stopped_reading &= !daemon->goes_on;
        daemon->goes_on = false;
        pthread_mutex_unlock(&daemon->lock);
        if (woken->revents != 0 && !stopping) {
            uint64_t count;
            must(read(daemon->wake_fd, &count, sizeof count) == sizeof count, "woken");
        }
        for (size_t i = 0; i < SESSIONS_MAX; i++) {
            struct fake_session *session = &daemon->sessions[i];
            if (session->fd >= 0) {
                serve_session(daemon, session, &ready[2 * i]);
            }
            if (session->fd >= 0 && (session->closing || stopping)) {
                end_session(daemon, session);
            }
        }
        if (stopping) {
            return NULL;
        }
        if (listening->revents != 0) {
            accept_session(daemon);
        }
    }
}

/* --- The test's side --- */

struct fake_daemon *fake_daemon_start(const struct fake_script *script)
{
    struct fake_daemon *daemon = calloc(1, sizeof *daemon);
    must(daemon != NULL, "calloc");
    snprintf(daemon->folder, sizeof daemon->folder, "/tmp/fake-daemon-XXXXXX");
    must(mkdtemp(daemon->folder) != NULL, daemon->folder);
    snprintf(daemon->path, sizeof daemon->path, "%s/commd.sock", daemon->folder);
    for (unsigned i = 0; i < NODE_NAMES_MAX; i++) {
        snprintf(daemon->node_names[i], sizeof daemon->node_names[i], "node-%u", i);
    }
    for (size_t i = 0; i < SESSIONS_MAX; i++) {
        daemon->sessions[i].fd = -1;
    }
    if (script != NULL) {
        daemon->script = *script;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, daemon->path, strlen(daemon->path) + 1);
    daemon->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    daemon->wake_fd = eventfd(0, EFD_CLOEXEC);
    must(daemon->listen_fd >= 0 && daemon->wake_fd >= 0, "socket");
    must(bind(daemon->listen_fd, (struct sockaddr *)&address, sizeof address) == 0, daemon->path);
    must(listen(daemon->listen_fd, 16) == 0, "listen");
    pthread_mutex_init(&daemon->lock, NULL);
    must(pthread_create(&daemon->thread, NULL, run, daemon) == 0, "pthread_create");
    return daemon;
}

void fake_daemon_set(struct fake_daemon *daemon, const struct fake_script *script)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->script = *script;
    daemon->op_count = 0;
    pthread_mutex_unlock(&daemon->lock);
}

const char *fake_daemon_path(const struct fake_daemon *daemon)
{
    return daemon->path;
}

struct fake_counts fake_daemon_counts(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    struct fake_counts counts = daemon->counts;
    pthread_mutex_unlock(&daemon->lock);
    return counts;
}

static void wake(struct fake_daemon *daemon, bool *why)
{
    uint64_t one = 1;
    pthread_mutex_lock(&daemon->lock);
    *why = true;
    pthread_mutex_unlock(&daemon->lock);
    must(write(daemon->wake_fd, &one, sizeof one) == sizeof one, "wake");
}

void fake_daemon_go_on(struct fake_daemon *daemon)
{
    wake(daemon, &daemon->goes_on);
}

void fake_daemon_stop(struct fake_daemon *daemon)
{
    wake(daemon, &daemon->stopping);
    pthread_join(daemon->thread, NULL);
    close(daemon->wake_fd);
    close(daemon->listen_fd);
    unlink(daemon->path);
    rmdir(daemon->folder);
    pthread_mutex_destroy(&daemon->lock);
    free(daemon);
}
