#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "proto/status.h"
#include "proto/version.h"

uint64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t clock_after_ms(uint64_t ms)
{
    return clock_ns() + ms * 1000000u;
}

comm_result_t client_enter(struct comm_client *client)
{
    if (client == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "the client is a null pointer");
    }
    if (client->pid != getpid()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "this connection was opened by process %d before a fork: open another",
                            (int)client->pid);
    }
    pthread_mutex_lock(&client->lock);
    return COMM_OK;
}

void client_leave(struct comm_client *client)
{
    pthread_mutex_unlock(&client->lock);
}

void client_lose(struct comm_client *client, comm_result_t result, const char *format, ...)
{
    if (client->lost != COMM_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(client->lost_text, sizeof client->lost_text, format, arguments);
    va_end(arguments);
    client->lost = result;
    shutdown(client->fd, SHUT_RDWR);
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        if (comm->failure == COMM_OK) {
            comm->failure = result;
            memcpy(comm->failure_text, client->lost_text, sizeof comm->failure_text);
        }
        ops_forget(comm);
    }
    pthread_cond_broadcast(&client->changed);
}

static void dispatch(struct comm_client *client, const uint8_t *bytes, size_t size)
{
    Commd__Client__Event *event = commd__client__event__unpack(NULL, size, bytes);
    if (event == NULL) {
        client_lose(client, COMM_PROTOCOL, "%s: commd sent %zu bytes that are no event", client->path, size);
        return;
    }
    switch (event->body_case) {
    case COMMD__CLIENT__EVENT__BODY_REPLY:
        for (struct client_request *request = client->requests; request != NULL; request = request->next) {
            if (request->id == event->reply->id && request->event == NULL) {
                request->event = event;
                return;
            }
        }
        if (event->reply->id == 0 && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR) {
            client_lose(client, (comm_result_t)status_from_wire(event->reply->error->status),
                        "%s: commd says: %s", client->path, event->reply->error->text);
        }
        break; /* otherwise the answer to somebody who no longer waits */
    case COMMD__CLIENT__EVENT__BODY_COMPLETE:
        ops_handle_complete(client, event->complete);
        break;
    case COMMD__CLIENT__EVENT__BODY_ABORTED:
        ops_handle_aborted(client, event->aborted);
        break;
    case COMMD__CLIENT__EVENT__BODY__NOT_SET:
    case _COMMD__CLIENT__EVENT__BODY__CASE_IS_INT_SIZE:
        client_lose(client, COMM_PROTOCOL, "%s: commd sent an event of an unknown kind", client->path);
        break;
    }
    commd__client__event__free_unpacked(event, NULL);
}

/* Reads everything that is there. */
static void drain(struct comm_client *client)
{
    while (client->lost == COMM_OK) {
        ssize_t size = recv(client->fd, client->packet, sizeof client->packet, MSG_DONTWAIT | MSG_TRUNC);
        if (size > (ssize_t)sizeof client->packet) {
            client_lose(client, COMM_PROTOCOL, "%s: commd sent a packet of %zd bytes", client->path, size);
        } else if (size > 0) {
            dispatch(client, client->packet, (size_t)size);
        } else if (size < 0 && errno == EINTR) {
            continue;
        } else if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            return;
        } else {
            client_lose(client, COMM_DAEMON_LOST, "%s: commd closed the connection%s%s", client->path,
                        size < 0 ? ": " : "", size < 0 ? strerror(errno) : "");
        }
    }
}

static int poll_timeout_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_ns();
    if (deadline_ns <= now_ns) {
        return 0;
    }
    uint64_t ms = (deadline_ns - now_ns + 999999u) / 1000000u;
    return ms > 60000u ? 60000 : (int)ms;
}

static bool progress(struct comm_client *client, uint64_t deadline_ns, short events)
{
    if (client->lost != COMM_OK) {
        return true;
    }
    if (client->reading) {
        struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                 .tv_nsec = (long)(deadline_ns % 1000000000u)};
        pthread_cond_timedwait(&client->changed, &client->lock, &until);
        return clock_ns() < deadline_ns;
    }
    client->reading = true;
    pthread_mutex_unlock(&client->lock);
    struct pollfd ready = {.fd = client->fd, .events = events};
    int count = poll(&ready, 1, poll_timeout_ms(deadline_ns));
    pthread_mutex_lock(&client->lock);
    drain(client);
    client->reading = false;
    pthread_cond_broadcast(&client->changed);
    return count > 0 || clock_ns() < deadline_ns;
}

bool client_progress(struct comm_client *client, uint64_t deadline_ns)
{
    return progress(client, deadline_ns, POLLIN);
}

comm_result_t client_send(struct comm_client *client, const Commd__Client__Request *request, int fd)
{
    uint8_t packet[8192];
    size_t size = commd__client__request__get_packed_size(request);
    if (size > sizeof packet) {
        return error_report(COMM_INVALID_ARGUMENT, "a request of %zu bytes is too large", size);
    }
    commd__client__request__pack(request, packet);
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = packet, .iov_len = size};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = &control;
        message.msg_controllen = sizeof control;
        memset(&control, 0, sizeof control);
        control.header.cmsg_level = SOL_SOCKET;
        control.header.cmsg_type = SCM_RIGHTS;
        control.header.cmsg_len = CMSG_LEN(sizeof fd);
        memcpy(CMSG_DATA(&control.header), &fd, sizeof fd);
    }
    uint64_t deadline_ns = clock_after_ms(OP_TIMEOUT_DEFAULT_MS);
    while (client->lost == COMM_OK) {
        if (sendmsg(client->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return COMM_OK;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            /* commd reads no more until we read what it has sent: never wait for the one without doing the
             * other. */
            uint64_t soon_ns = clock_after_ms(10);
            (void)progress(client, soon_ns, POLLIN | POLLOUT);
            if (clock_ns() >= deadline_ns) {
                client_lose(client, COMM_DAEMON_LOST, "%s: commd does not read its socket", client->path);
            }
        } else if (errno != EINTR) {
            drain(client); /* it may have said why */
            client_lose(client, COMM_DAEMON_LOST, "%s: %s", client->path, strerror(errno));
        }
    }
    return error_repeat(client->lost, client->lost_text);
}

static void forget_request(struct comm_client *client, struct client_request *request)
{
    for (struct client_request **link = &client->requests; *link != NULL; link = &(*link)->next) {
        if (*link == request) {
            *link = request->next;
            return;
        }
    }
}

comm_result_t client_ask(struct comm_client *client, Commd__Client__Request *request, int fd,
                         Commd__Client__Reply__BodyCase expected, uint64_t timeout_ms,
                         Commd__Client__Event **event)
{
    struct client_request waiting = {.next = client->requests, .id = ++client->last_request_id};
    *event = NULL;
    request->id = waiting.id;
    client->requests = &waiting;
    uint64_t deadline_ns = clock_after_ms(timeout_ms);
    comm_result_t result = client_send(client, request, fd);
    while (result == COMM_OK && waiting.event == NULL && client->lost == COMM_OK) {
        if (!client_progress(client, deadline_ns) && waiting.event == NULL) {
            result = error_report(COMM_TIMED_OUT, "%s: commd did not answer within %llu ms", client->path,
                                  (unsigned long long)timeout_ms);
        }
    }
    forget_request(client, &waiting);
    if (waiting.event == NULL) {
        return result != COMM_OK ? result : error_repeat(client->lost, client->lost_text);
    }
    const Commd__Client__Reply *reply = waiting.event->reply;
    if (reply->body_case == expected) {
        *event = waiting.event;
        return COMM_OK;
    }
    if (reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR) {
        result = (comm_result_t)status_from_wire(reply->error->status);
        result = error_repeat(result == COMM_OK ? COMM_PROTOCOL : result, reply->error->text);
    } else {
        result = error_report(COMM_PROTOCOL, "%s: commd gave an answer to another question", client->path);
    }
    commd__client__event__free_unpacked(waiting.event, NULL);
    return result;
}
