#include "tests/lib/fake_daemon_parts.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define SEND_TIMEOUT_S 20 /* a client that reads nothing for this long is lost */

/* Sessions: accepting them, reading from their sockets and rings, ending them; and the thread that does
 * this. */

static void handle_hello(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                         const Commd__Client__Hello *request)
{
    struct fake_script script = fake_current_script(daemon);
    bool wants_rings = request->n_features > 0 && strcmp(request->features[0], CLIENT_FEATURE_RINGS) == 0;
    pthread_mutex_lock(&daemon->lock);
    snprintf(daemon->counts.program, sizeof daemon->counts.program, "%s", request->program);
    daemon->counts.wants_rings = wants_rings;
    fake_unlock(daemon);
    Commd__Client__HelloReply hello = COMMD__CLIENT__HELLO_REPLY__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION + (script.hello == FAKE_HELLO_OTHER_VERSION ? 8 : 0);
    hello.version_text = (char *)"9.8.7";
    hello.node_name = daemon->node_names[0];
    hello.pending_ops_max = script.pending_ops_max != 0 ? script.pending_ops_max : 1024;
    hello.packet_max_bytes = CLIENT_PACKET_MAX_BYTES;
    char *features[3] = {NULL};
    if (wants_rings && script.rings) {
        session->rings = fake_rings_new();
        if (script.rings_not_sealed) {
            fake_rings_unseal(session->rings);
        }
        session->offers_rings = true;
        features[hello.n_features++] = (char *)CLIENT_FEATURE_RINGS;
    }
    if (script.graphs) {
        features[hello.n_features++] = (char *)CLIENT_FEATURE_GRAPHS;
    }
    if (script.memory_pools) {
        features[hello.n_features++] = (char *)CLIENT_FEATURE_MEMORY_POOLS;
    }
    hello.features = features;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_HELLO;
    reply.hello = &hello;
    switch (script.hello) {
    case FAKE_HELLO_ANSWER:
    case FAKE_HELLO_OTHER_VERSION:
        fake_send_reply(session, &reply);
        return;
    case FAKE_HELLO_SILENT:
        return;
    case FAKE_HELLO_REFUSE:
        fake_send_error(session, request_id, STATUS_VERSION, "this commd speaks version 9");
        break;
    case FAKE_HELLO_FULL:
        fake_send_error(session, 0, STATUS_LIMIT, "4096 clients are the most");
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
        fake_handle_init(daemon, session, request->id, request->comm_init);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_COMM_TABLE) {
        fake_handle_table(daemon, session, request->id, request->comm_table);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY) {
        fake_handle_destroy(daemon, session, request->id, request->comm_destroy->handle);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER) {
        fake_handle_register(daemon, session, request->id, request->mem_register, fd);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER) {
        fake_handle_deregister(daemon, session, request->id, request->mem_deregister);
    } else if (body == COMMD__CLIENT__REQUEST__BODY_MEM_MAP) {
        fake_handle_map(daemon, session, request->id, request->mem_map, fd);
    } else {
        fake_must(false, "a request of another kind");
    }
}

static void handle_packet(struct fake_daemon *daemon, struct fake_session *session, const uint8_t *bytes,
                          size_t size, int fd)
{
    if (!packet_is_record(bytes, size)) {
        Commd__Client__Request *request = commd__client__request__unpack(NULL, size, bytes);
        fake_must(request != NULL, "a packet that is no request");
        handle_request(daemon, session, request, fd);
        commd__client__request__free_unpacked(request, NULL);
        return;
    }
    for (size_t at = 0; at < size;) {
        struct submit_record record;
        const char *what;
        size_t record_bytes = submit_record_read(bytes + at, size - at, &record, &what);
        fake_must(record_bytes > 0, "a packet that holds no submission");
        fake_handle_record(daemon, session, &record);
        at += record_bytes;
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
    handle_packet(daemon, session, bytes, (size_t)size, fd);
    if (fd >= 0) {
        close(fd);
    }
}

static void read_rings(struct fake_daemon *daemon, struct fake_session *session)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES];
    size_t size;
    (void)fake_rings_heard(session->rings);
    while (!session->closing && !daemon->stopped_reading &&
           (size = fake_rings_take(session->rings, bytes, sizeof bytes)) > 0) {
        handle_packet(daemon, session, bytes, size, -1);
    }
}

static void accept_session(struct fake_daemon *daemon)
{
    int fd = accept4(daemon->listen_fd, NULL, NULL, SOCK_CLOEXEC);
    struct timeval timeout = {.tv_sec = SEND_TIMEOUT_S};
    for (size_t i = 0; fd >= 0 && i < FAKE_SESSIONS_MAX; i++) {
        struct fake_session *session = &daemon->sessions[i];
        if (session->fd < 0) {
            setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
            memset(session, 0, sizeof *session);
            session->fd = fd;
            pthread_mutex_lock(&daemon->lock);
            daemon->counts.sessions++;
            fake_unlock(daemon);
            return;
        }
    }
    fake_must(fd < 0, "a place for a session");
}

static void end_session(struct fake_daemon *daemon, struct fake_session *session)
{
    uint32_t comms = 0;
    for (; session->delayed_head < session->delayed_tail; session->delayed_head++) {
        fake_free_delayed(&session->delayed[session->delayed_head % FAKE_DELAYED_MAX]);
    }
    for (size_t i = 0; i < FAKE_MEMORIES_MAX; i++) {
        if (session->memories[i].id != 0) {
            fake_forget_memory(daemon, &session->memories[i]);
        }
    }
    for (size_t i = 0; i < FAKE_COMMS_MAX; i++) {
        comms += session->comms[i].handle != 0;
    }
    close(session->fd);
    session->fd = -1;
    fake_rings_free(session->rings);
    session->rings = NULL;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.sessions--;
    daemon->counts.comms -= comms;
    fake_unlock(daemon);
}

/* Lists what wakes the thread: for each session its socket and its bell. Returns how long to wait. */
static int watch_sessions(struct fake_daemon *daemon, struct pollfd *ready)
{
    int timeout_ms = -1;
    bool waits = false;
    for (size_t i = 0; i < FAKE_SESSIONS_MAX; i++) {
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
    fake_unlock(daemon);
    return timeout_ms < 0 && daemon->stopped_reading ? 1
                                                     /* short, so that `waits` shows soon whether a client
                                                      * waits */
                                                     : timeout_ms;
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
        fake_say_delayed(daemon, session);
    }
}

void *fake_serve(void *argument)
{
    struct fake_daemon *daemon = argument;
    for (;;) {
        struct pollfd ready[2 * FAKE_SESSIONS_MAX + 2];
        struct pollfd *listening = &ready[2 * FAKE_SESSIONS_MAX], *woken = listening + 1;
        *listening = (struct pollfd){.fd = daemon->listen_fd, .events = POLLIN};
        *woken = (struct pollfd){.fd = daemon->wake_fd, .events = POLLIN};
        (void)poll(ready, 2 * FAKE_SESSIONS_MAX + 2, watch_sessions(daemon, ready));
        pthread_mutex_lock(&daemon->lock);
        bool stopping = daemon->stopping;
        daemon->stopped_reading &= !daemon->goes_on;
        daemon->goes_on = false;
        fake_unlock(daemon);
        if (woken->revents != 0 && !stopping) {
            uint64_t count;
            fake_must(read(daemon->wake_fd, &count, sizeof count) == sizeof count, "woken");
        }
        for (size_t i = 0; i < FAKE_SESSIONS_MAX; i++) {
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
