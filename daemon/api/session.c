#include "daemon/api/session.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

void api_session_break(struct api_session *session)
{
    session->broken = true;
    turn_queue(&session->api->turns, &session->turn);
}

static bool packet_takes_ring(const struct api_session *session, const struct api_packet *packet)
{
    return session->rings != NULL && !packet->on_socket &&
           packet->size_bytes <= ring_packet_max_bytes(CLIENT_RING_BYTES);
}

void api_session_watch(struct api_session *session)
{
    unsigned events = 0;
    bool reads = api_session_reads(session) && session->list.bytes == NULL && !session->ending;
    if (session->broken) {
        return;
    }
    if (session->list.bytes != NULL && api_session_reads(session)) {
        turn_queue(&session->api->turns, &session->turn); /* it may have been paused */
    }
    if (reads || (session->rings != NULL && !session->unread_waits &&
                  !session->ending)) { /* the end of the socket must be noticed in any case */
        events |= LOOP_READ;
    }
    if (session->out_first != NULL && !packet_takes_ring(session, session->out_first)) {
        events |= LOOP_WRITE;
    }
    if (events != session->watched) {
        session->watched = events;
        loop_watch_set(session->watch, events);
    }
}

static void packet_free(struct api_session *session, struct api_packet *packet)
{
    if (packet->fd >= 0) {
        (void)close(packet->fd);
        budget_release(session->account, BUDGET_DESCRIPTORS, 1);
    }
    free(packet);
}

/* Sends the packet with its descriptor, or with those of rings and heartbeat. */
static ssize_t send_with_fds(struct api_session *session, const struct api_packet *packet)
{
    int fds[CLIENT_RING_FDS + CLIENT_HEARTBEAT_FDS];
    size_t count = 0;
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof fds)];
    } control = {0};
    bool is_hello = packet->fd < 0;
    if (!is_hello) {
        fds[count++] = packet->fd;
    }
    if (is_hello && session->rings != NULL) {
        api_rings_fds(session, fds);
        count += CLIENT_RING_FDS;
    }
    if (is_hello && session->listens) {
        api_heart_fds(session->api, fds + count);
        count += CLIENT_HEARTBEAT_FDS;
    }
    struct iovec part = {.iov_base = (void *)(uintptr_t)packet->bytes, .iov_len = packet->size_bytes};
    struct msghdr message = {.msg_iov = &part,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = CMSG_SPACE(count * sizeof fds[0])};
    control.header.cmsg_level = SOL_SOCKET;
    control.header.cmsg_type = SCM_RIGHTS;
    control.header.cmsg_len = CMSG_LEN(count * sizeof fds[0]);
    memcpy(CMSG_DATA(&control.header), fds, count * sizeof fds[0]);
    ssize_t sent = sendmsg(session->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0 && is_hello && session->rings != NULL) {
        api_rings_sent(session);
    }
    return sent;
}

/* Returns false if the packet has to wait. */
static bool session_send_on_socket(struct api_session *session, const struct api_packet *packet)
{
    for (;;) {
        ssize_t sent = packet->on_socket ? send_with_fds(session, packet)
                                         : send(session->fd, packet->bytes, packet->size_bytes,
                                                MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent >= 0) {
            return true;
        }
        if (errno != EINTR) {
            if (errno != EAGAIN && errno != EWOULDBLOCK) {
                api_session_break(session);
            }
            return false;
        }
    }
}

/* Returns false if the packet has to wait. */
static bool session_send_packet(struct api_session *session, const struct api_packet *packet)
{
    if (!packet_takes_ring(session, packet)) {
        return session_send_on_socket(session, packet);
    }
    switch (api_rings_put(session, packet->bytes, packet->size_bytes)) {
    case RING_OK:
        return true;
    case RING_FULL:
        return false;
    case RING_NOTHING:
    case RING_BROKEN:
        break;
    }
    api_session_log(session, LOG_LEVEL_WARNING, "dropped, its ring holds invalid data");
    api_session_break(session);
    return false;
}

/* Drops a client that does not read, or whose user's other processes do not. It is told so on its socket, if
 * there is room. */
static void session_drop_slow(struct api_session *session, const char *why)
{
    if (!session->broken) {
        struct error error;
        error_set(&error, STATUS_LIMIT, "dropped, it reads none of its %u answers (%llu bytes): %s",
                  session->out_count, (unsigned long long)session->out_bytes, why);
        api_session_log(session, LOG_LEVEL_WARNING, "%s", error.text);
        api_packet_send_error(session->fd, &error);
    }
    api_session_break(session);
}

/* Charges the packets that wait, and watches for room. */
static void session_flushed(struct api_session *session)
{
    struct error error;
    if (!api_session_charge_queued(session, &error)) {
        session_drop_slow(session, error.text);
    }
    api_session_watch(session);
}

void api_session_flush(struct api_session *session)
{
    uint32_t sends_left = API_SENDS_MAX;
    while (session->out_first != NULL && !session->broken && sends_left > 0) {
        struct api_packet *packet = session->out_first;
        sends_left -= !packet_takes_ring(session, packet);
        if (!session_send_packet(session, packet)) {
            break;
        }
        session->out_first = packet->next;
        if (session->out_first == NULL) {
            session->out_last = &session->out_first;
        }
        session->out_count--;
        session->out_bytes -= sizeof *packet + packet->size_bytes;
        packet_free(session, packet);
    }
    session_flushed(session);
    if (session->messages_wait && api_session_takes_messages(session)) {
        api_session_tell_messages(session);
    }
    if (session->closing && session->out_first == NULL) {
        api_session_break(session);
    }
}

/* A packet to be filled, for the caller to queue. Returns null if the session ends. */
static struct api_packet *packet_new(struct api_session *session, size_t size_bytes)
{
    struct api_packet *packet = NULL;
    if (session->broken) {
        return NULL;
    }
    if (session->out_count >= API_SESSION_PACKETS_MAX) {
        session_drop_slow(session, "no more can wait");
        return NULL;
    }
    if (size_bytes > CLIENT_PACKET_MAX_BYTES || (packet = malloc(sizeof *packet + size_bytes)) == NULL) {
        api_session_log(session, LOG_LEVEL_ERROR, "dropped, an answer of %zu bytes cannot be made",
                        size_bytes);
        api_session_break(session);
        return NULL;
    }
    packet->next = NULL;
    packet->fd = -1;
    packet->on_socket = session->offers_fds;
    packet->size_bytes = size_bytes;
    session->offers_fds = false;
    return packet;
}

/* Operations of many ranks end for all ranks at once. Packets beyond API_SENDS_MAX are sent when the loop
 * finds the socket writable. */
static void packet_queue(struct api_session *session, struct api_packet *packet)
{
    struct api *api = session->api;
    bool waits = session->rings == NULL && (session->out_first != NULL || api->sends_left == 0);
    *session->out_last = packet;
    session->out_last = &packet->next;
    session->out_count++;
    session->out_bytes += sizeof *packet + packet->size_bytes;
    if (waits) {
        session_flushed(session);
    } else {
        api->sends_left -= session->rings == NULL;
        api_session_flush(session);
    }
}

void api_session_send(struct api_session *session, const Commd__Client__Event *event)
{
    struct api_packet *packet = packet_new(session, commd__client__event__get_packed_size(event));
    if (packet != NULL) {
        commd__client__event__pack(event, packet->bytes);
        packet_queue(session, packet);
    }
}

void api_session_send_record(struct api_session *session, const struct completion_record *record,
                             size_t size_bytes)
{
    bool in_ring =
        session->rings != NULL && !session->broken && session->out_first == NULL && !session->offers_fds;
    if (in_ring && api_rings_put(session, record, size_bytes) == RING_OK) {
        return; /* otherwise it waits, or flushing finds the failure */
    }
    struct api_packet *packet = packet_new(session, size_bytes);
    if (packet != NULL) {
        memcpy(packet->bytes, record, size_bytes);
        packet_queue(session, packet);
    }
}

void api_session_reply(struct api_session *session, Commd__Client__Reply *reply)
{
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_REPLY;
    event.reply = reply;
    api_session_send(session, &event);
}

void api_session_reply_done(struct api_session *session, uint64_t request_id)
{
    Commd__Client__Done done = COMMD__CLIENT__DONE__INIT;
    Commd__Client__Reply reply = API_REPLY(request_id, DONE, done, &done);
    api_session_reply(session, &reply);
}

bool api_session_send_fd(struct api_session *session, const Commd__Client__Event *event, int fd)
{
    struct error error;
    struct api_packet *packet = packet_new(session, commd__client__event__get_packed_size(event));
    if (packet == NULL || budget_charge(session->account, BUDGET_DESCRIPTORS, 1, &error) != STATUS_OK) {
        (void)close(fd);
        free(packet);
        return false;
    }
    packet->fd = fd;
    packet->on_socket = true;
    commd__client__event__pack(event, packet->bytes);
    packet_queue(session, packet);
    return true;
}

void api_session_reply_error(struct api_session *session, uint64_t request_id, const struct error *error)
{
    api_session_reply_detailed(session, request_id, error, NULL);
}

void api_session_reply_detailed(struct api_session *session, uint64_t request_id, const struct error *error,
                                Commd__Client__Failure *failure)
{
    Commd__Client__Error message = COMMD__CLIENT__ERROR__INIT;
    message.failure = failure;
    message.status = error->status;
    message.text = (char *)error->text;
    Commd__Client__Reply reply = API_REPLY(request_id, ERROR, error, &message);
    api_session_reply(session, &reply);
}

__attribute__((format(printf, 5, 0))) static void reply_list(struct api_session *session, uint64_t request_id,
                                                             bool ends, enum status status,
                                                             const char *format, va_list arguments)
{
    struct error error;
    error_set_list(&error, status, format, arguments);
    api_session_reply_error(session, request_id, &error);
    if (ends) {
        api_session_end(session, error.text);
    }
}

void api_session_reply_failure(struct api_session *session, uint64_t request_id, enum status status,
                               const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    reply_list(session, request_id, false, status, format, arguments);
    va_end(arguments);
}

void api_session_reply_end(struct api_session *session, uint64_t request_id, enum status status,
                           const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    reply_list(session, request_id, true, status, format, arguments);
    va_end(arguments);
}

void api_session_end(struct api_session *session, const char *why)
{
    if (session->closing || session->broken) {
        return;
    }
    api_session_log(session, LOG_LEVEL_WARNING, "session ended: %s", why);
    session->closing = true;
    api_session_flush(session);
}

/*
 * Administrators must find a place even if clients' sockets use all that the fd_reaper takes. So an
 * administrator's socket may be closed in place, and the spare descriptor is opened again at once, before
 * clients take it.
 */
void api_session_close_socket(struct api *api, enum api_role role, uid_t uid, int fd)
{
    struct api_listener *listener = &api->listeners[role];
    bool in_place =
        role == API_ROLE_ADMIN && (!fd_reaper_takes_sockets(api->fd_reaper) || listener->spare_fd < 0);
    fd_reaper_put_socket(in_place ? NULL : api->fd_reaper, uid, fd);
    if (in_place) {
        api_listener_keep_spare(listener);
    }
}

void api_session_has_too_much(struct api_session *session, uint64_t request_id)
{
    api_session_reply_end(session, request_id, STATUS_LIMIT,
                          "%u file descriptors wait to be closed, too many of them of user %u: the server of "
                          "their files does not answer",
                          fd_reaper_count(session->api->fd_reaper), (unsigned)session->client.uid);
}

/* Whether the session may make this request now. If not, sends the reason, and the session ends. */
static bool session_may(struct api_session *session, uint64_t request_id, bool is_hello, bool admin_may)
{
    if (!session->greeted && !is_hello) {
        api_session_reply_end(session, request_id, STATUS_PROTOCOL, "the first request must be Hello");
        return false;
    }
    if (session->role == API_ROLE_ADMIN && !admin_may) {
        api_session_reply_end(
            session, request_id, STATUS_PERMISSION,
            "this is the administrators' socket: use the clients' socket for communicators and memory");
        return false;
    }
    return true;
}

/* One case of the switch. */
#define HANDLE(KIND, call)                                                                                   \
    case COMMD__CLIENT__REQUEST__BODY_##KIND:                                                                \
        call;                                                                                                \
        return

static void session_dispatch(struct api_session *session, const Commd__Client__Request *request, int fd,
                             uint64_t now_ns)
{
    uint64_t id = request->id;
    if (!session_may(session, id, request->body_case == COMMD__CLIENT__REQUEST__BODY_HELLO,
                     api_admin_may_ask(request->body_case))) {
        return;
    }
    switch (request->body_case) {
        HANDLE(HELLO, api_hello(session, id, request->hello, now_ns));
        HANDLE(COMM_INIT, api_comm_init(session, id, request->comm_init, now_ns));
        HANDLE(COMM_SHRINK, api_comm_shrink(session, id, request->comm_shrink, now_ns));
        HANDLE(COMM_TABLE, api_comm_table(session, id, request->comm_table));
        HANDLE(COMM_DESTROY, api_comm_destroy(session, id, request->comm_destroy, now_ns));
        HANDLE(MEM_REGISTER, api_memory_register(session, id, request->mem_register, fd));
        HANDLE(MEM_MAP, api_memory_map(session, id, request->mem_map, fd));
        HANDLE(GPUS, api_gpus(session, id, request->gpus));
        HANDLE(USERS, api_users(session, id, request->users->after));
        HANDLE(TRACE, api_trace(session, id, request->trace));
        HANDLE(METRICS, api_metrics(session, id, request->metrics, now_ns));
        HANDLE(EVENTS, api_events(session, id, request->events));
        HANDLE(HEALTH, api_health(session, id, request->health->name, now_ns));
        HANDLE(MEM_DEREGISTER, api_memory_deregister(session, id, request->mem_deregister));
        HANDLE(STATUS, api_admin_status(session, id, now_ns));
        HANDLE(NODES, api_admin_nodes(session, id, request->nodes->after, now_ns));
        HANDLE(COMMS, api_admin_comms(session, id, request->comms->after, now_ns));
        HANDLE(CLIENTS, api_admin_clients(session, id, request->clients->after, now_ns));
        HANDLE(OPS, api_admin_ops(session, id, request->ops->after, now_ns));
        HANDLE(PING, api_admin_ping(session, id, request->ping, now_ns));
        HANDLE(CONFIG, api_admin_config(session, id, request->config->after));
        HANDLE(RELOAD, api_reload(session, id, now_ns));
        HANDLE(LOG_LEVEL, api_log_level(session, id, request->log_level));
        HANDLE(CELLS_RETIRE, api_cells_retire(session, id, request->cells_retire));
        HANDLE(ABORT, api_abort(session, id, request->abort, now_ns));
        HANDLE(COMM_ABORT, api_comm_abort(session, id, request->comm_abort, now_ns));
        HANDLE(DISCONNECT, api_disconnect(session, id, request->disconnect));
        HANDLE(DRAIN, api_drain(session, id, request->drain, now_ns));
        HANDLE(UNDRAIN, api_undrain(session, id, now_ns));
        HANDLE(COMM_JOIN, api_join(session, id, request->comm_join, now_ns));
        HANDLE(COMM_GROW, api_grow(session, id, request->comm_grow, now_ns));
        HANDLE(COMM_SETTLE, api_settle(session, id, request->comm_settle));
        HANDLE(COMM_LEAVE, api_leave(session, id, request->comm_leave));
        HANDLE(STORE, api_store(session, id, request->store, now_ns));
        HANDLE(ALGORITHMS, api_algorithms(session, id, request->algorithms));
    case COMMD__CLIENT__REQUEST__BODY__NOT_SET:
    case _COMMD__CLIENT__REQUEST__BODY__CASE_IS_INT_SIZE:
        break;
    }
    api_session_reply_end(session, id, STATUS_PROTOCOL,
                          "a request of a kind that this commd (%s) does not know", COMMD_VERSION_TEXT);
}

/*
 * The control buffer has room for more descriptors than a packet can have. So one was dropped because this
 * process cannot open more. That is not the client's fault.
 */
static bool packet_lacks_fd(const struct api_packet_in *packet)
{
    return (packet->flags & MSG_CTRUNC) != 0 && packet->fds <= CLIENT_PACKET_FDS_MAX;
}

static void session_refuse_fd(struct api_session *session, uint64_t request_id)
{
    struct error error;
    api_lacks_fds(&error, "commd did not take the descriptor of this request");
    api_session_log(session, LOG_LEVEL_WARNING, "%s", error.text);
    api_session_reply_error(session, request_id, &error);
}

bool api_session_take(struct api_session *session, const uint8_t *bytes, const struct api_packet_in *packet,
                      uint64_t now_ns)
{
    struct error error;
    size_t size = (size_t)packet->size_bytes;
    Commd__Client__Request *request = NULL;
    if ((packet->flags & MSG_TRUNC) != 0) {
        error_set(&error, STATUS_PROTOCOL, "a packet larger than %d bytes", CLIENT_PACKET_MAX_BYTES);
    } else if (packet->fds > CLIENT_PACKET_FDS_MAX) {
        error_set(&error, STATUS_PROTOCOL, "more than %d file descriptor with a packet",
                  CLIENT_PACKET_FDS_MAX);
    } else if (packet_is_record(bytes, size)) {
        return session_may(session, 0, false, false);
    } else if ((request = commd__client__request__unpack(NULL, size, bytes)) == NULL) {
        error_set(&error, STATUS_PROTOCOL, "a packet of %zu bytes that is no request", size);
    } else {
        if (packet_lacks_fd(packet) && session->greeted) {
            session_refuse_fd(session, request->id);
        } else {
            session_dispatch(session, request, packet->fd, now_ns);
        }
        commd__client__request__free_unpacked(request, NULL);
        return false;
    }
    api_session_reply_error(session, 0, &error);
    api_session_end(session, error.text);
    return false;
}

/* For a session that is not read now: checks whether its client has disconnected. */
static void session_look_for_end(struct api_session *session)
{
    char byte;
    ssize_t size = recv(session->fd, &byte, sizeof byte, MSG_PEEK | MSG_DONTWAIT);
    if (size > 0) {
        session->unread_waits = true;
    } else if (size == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) {
        api_session_break(session);
    }
}

static void session_ready(void *context, unsigned events, uint64_t now_ns)
{
    struct api_session *session = context;
    if ((events & LOOP_WRITE) != 0) {
        api_session_flush(session);
    }
    if ((events & LOOP_READ) != 0 && api_session_reads(session) && session->list.bytes == NULL) {
        session->unread_waits = false;
        session->readable = true;
        turn_queue(&session->api->turns, &session->turn);
    } else if ((events & LOOP_READ) != 0) {
        session_look_for_end(session);
    }
    if (!session->broken && session->rings != NULL) {
        api_rings_awake(session, now_ns); /* it may have been paused */
    }
    if (!session->broken) {
        api_session_watch(session);
    }
}

enum status api_session_new(struct api *api, enum api_role role, int fd, uint64_t now_ns, struct error *error)
{
    struct ucred credentials;
    socklen_t size = sizeof credentials;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) < 0) {
        return error_set_errno(error, errno, "SO_PEERCRED");
    }
    struct api_session *session = calloc(1, sizeof *session);
    if (session == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a session");
    }
    session->api = api;
    session->role = role;
    session->fd = fd;
    session->death_fd = -1;
    session->client = (struct comms_client){.pid = credentials.pid, .uid = credentials.uid};
    session->gid = credentials.gid;
    session->connected_ns = now_ns;
    session->out_last = &session->out_first;
    session->watched = LOOP_READ;
    session->turn.function = api_session_turn;
    session->turn.context = session;
    snprintf(session->program, sizeof session->program, "?");
    enum status status = STATUS_OK;
    if (role == API_ROLE_CLIENT) { /* an administrator holds nothing */
        status = api_death_open(session, error);
    }
    if (status == STATUS_OK) {
        status = api_session_charge(session, error);
    }
    if (status != STATUS_OK) {
        api_death_forget(session);
        free(session);
        return status;
    }
    api_session_await_hello(session);
    session->id = ++api->last_session_id;
    HASH_ADD(hh, api->sessions, id, sizeof session->id, session);
    status = table_has(session, hh)
                 ? loop_watch_new(api->loop, fd, LOOP_READ, session_ready, session, &session->watch, error)
                 : error_set(error, STATUS_NO_MEMORY, "no memory for a session");
    if (status == STATUS_OK) {
        status = api_death_watch(session, error);
    }
    if (status != STATUS_OK) {
        if (table_has(session, hh)) {
            HASH_DEL(api->sessions, session);
        }
        api_death_forget(session);
        loop_watch_free(session->watch);
        api_session_discharge(session);
        free(session);
        return status;
    }
    api->listeners[role].session_count++;
    return STATUS_OK;
}

void api_session_drop_packets(struct api_session *session, unsigned count)
{
    for (; session->out_first != NULL && count > 0; count--) {
        struct api_packet *packet = session->out_first;
        session->out_first = packet->next;
        packet_free(session, packet);
    }
}
