#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "client/lib/policy.h"

#define POLL_MAX_MS (HEART_LOOK_NS / 1000000u) /* Then commd's heartbeat is checked. */
#define SEND_RETRY_MS 10u                      /* if another thread reads, and the socket is full */
#define SOCKET_LOOKS 64u /* looks at the ring for each look at the socket, which shows the end of commd */

uint64_t clock_after_ms(uint64_t ms)
{
    return clock_ns() + ms * 1000000u;
}

comm_result_t client_check(const struct comm_client *client)
{
    if (client == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "the client is a null pointer");
    }
    bool is_same =
        client->process != NULL && atomic_load_explicit(client->process, memory_order_relaxed) == client->pid;
    if (!is_same && client->pid != getpid()) { /* the system call costs more than a small operation */
        return error_report(
            COMM_INVALID_ARGUMENT,
            "%s: this connection was opened by process %d, before a fork: process %d must open its own",
            client->path, (int)client->pid, (int)getpid());
    }
    return COMM_OK;
}

comm_result_t client_enter(struct comm_client *client)
{
    comm_result_t result = client_check(client);
    if (result == COMM_OK) {
        pthread_mutex_lock(&client->lock);
    }
    return result;
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
    DEBUG("lost: %s", client->lost_text);
    shutdown(client->fd, SHUT_RDWR); /* wakes the thread that waits at it */
    for (struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        member_fail(comm, result, "%s", client->lost_text);
        policy_lost(comm, result, client->lost_text);
        ops_forget(comm);
    }
    fences_release(&client->fences);
    pthread_cond_broadcast(&client->changed);
}

/* --- Events --- */

/* Returns whether a waiting thread got the event; that thread frees it. */
static bool hand_out_reply(struct comm_client *client, Commd__Client__Event *event)
{
    const Commd__Client__Reply *reply = event->reply;
    for (struct client_request *request = client->requests; request != NULL; request = request->next) {
        if (request->id == reply->id && request->event == NULL) {
            request->event = event;
            return true;
        }
    }
    if (reply->id == 0 && reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR) {
        /* commd says goodbye: its process ends, but has not ended yet. */
        client->frozen = client->frozen || (client->heart.page != NULL &&
                                            failure_from_wire(reply->error->status) == COMM_DAEMON_LOST);
        client_lose(client, failure_from_wire(reply->error->status), "%s: commd says: %s", client->path,
                    reply->error->text);
    } else if (reply->id == 0 || reply->id > client->last_request_id) {
        client_lose(client, COMM_PROTOCOL, "%s: commd answered request %llu, which was not made",
                    client->path, (unsigned long long)reply->id);
    }
    return false; /* no thread waits for this reply, or not any more */
}

static void dispatch_record(struct comm_client *client, const uint8_t *bytes, size_t size)
{
    struct completion_record completion;
    const char *what;
    if (completion_record_read(bytes, size, &completion, &what)) {
        ops_handle_completion(client, &completion);
    } else {
        client_lose(client, COMM_PROTOCOL, "%s: commd sent a completion with a wrong %s", client->path, what);
    }
}

static void dispatch(struct comm_client *client, const uint8_t *bytes, size_t size)
{
    if (packet_is_record(bytes, size)) {
        dispatch_record(client, bytes, size);
        return;
    }
    Commd__Client__Event *event = commd__client__event__unpack(NULL, size, bytes);
    if (event == NULL) {
        client_lose(client, COMM_PROTOCOL, "%s: commd sent %zu bytes that are no event", client->path, size);
        return;
    }
    switch (event->body_case) {
    case COMMD__CLIENT__EVENT__BODY_REPLY:
        if (hand_out_reply(client, event)) {
            return;
        }
        break;
    case COMMD__CLIENT__EVENT__BODY_ABORTED:
        ops_handle_aborted(client, event->aborted);
        break;
    case COMMD__CLIENT__EVENT__BODY_FAILED:
        ops_handle_failed(client, event->failed);
        break;
    case COMMD__CLIENT__EVENT__BODY_CELLS:
        cells_handle(client, event->cells->handle, event->cells->local_ranks);
        break;
    case COMMD__CLIENT__EVENT__BODY_WAITING:
        join_handle_waiting(client, event->waiting);
        break;
    case COMMD__CLIENT__EVENT__BODY_DRAINING:
        draining_handle(client, event->draining);
        break;
    case COMMD__CLIENT__EVENT__BODY__NOT_SET:
    case _COMMD__CLIENT__EVENT__BODY__CASE_IS_INT_SIZE:
        client_lose(client, COMM_PROTOCOL, "%s: commd sent an event of an unknown kind", client->path);
        break;
    }
    commd__client__event__free_unpacked(event, NULL);
}

/* Handles all packets in the ring. */
static void drain_ring(struct comm_client *client)
{
    bool any = false;
    while (client->rings != NULL && client->lost == COMM_OK) {
        size_t size;
        enum ring_result result = ring_take(&client->rings->in, client->packet, sizeof client->packet, &size);
        if (result == RING_NOTHING) {
            break;
        }
        if (result != RING_OK) {
            client_lose(client, COMM_PROTOCOL, "%s: commd's ring holds invalid data", client->path);
            return;
        }
        any = true;
        dispatch(client, client->packet, size);
    }
    if (any) {
        rings_taken(client->rings);
    }
}

/*
 * Keeps descriptors until the Hello's reply is handled, and afterwards one while its packet is handled.
 * Closes all others. One more may arrive than there is room for, because the kernel fills the control data up
 * to its alignment.
 */
static void take_fds(struct comm_client *client, const struct cmsghdr *item)
{
    size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    bool keeps = client->hello_fd_count == 0 && client->pending_ops_max == 0;
    for (size_t i = 0; i < count; i++) {
        int fd;
        memcpy(&fd, CMSG_DATA(item) + i * sizeof fd, sizeof fd);
        if (keeps && client->hello_fd_count < CLIENT_HELLO_FDS) {
            client->hello_fds[client->hello_fd_count++] = fd;
        } else if (client->cells.offered && client->cells.fd < 0) {
            client->cells.fd = fd;
        } else {
            close(fd);
        }
    }
}

/* Receives one packet and its descriptors. */
static ssize_t receive_packet(struct comm_client *client)
{
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof client->hello_fds)];
    } control;
    struct iovec part = {.iov_base = client->packet, .iov_len = sizeof client->packet};
    struct msghdr message = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    ssize_t size = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
    if (size < 0) {
        return size;
    }
    for (struct cmsghdr *item = CMSG_FIRSTHDR(&message); item != NULL; item = CMSG_NXTHDR(&message, item)) {
        if (item->cmsg_level == SOL_SOCKET && item->cmsg_type == SCM_RIGHTS) {
            take_fds(client, item);
        }
    }
    return size;
}

/* Handles all packets in the ring and the socket. */
static void drain(struct comm_client *client)
{
    bool reset = false;
    drain_ring(client);
    while (client->lost == COMM_OK) {
        ssize_t size = receive_packet(client);
        if (size > (ssize_t)sizeof client->packet) {
            client_lose(client, COMM_PROTOCOL,
                        "%s: commd sent a packet of %zd bytes; at most %zu are allowed", client->path, size,
                        sizeof client->packet);
        } else if (size > 0) {
            dispatch(client, client->packet, (size_t)size);
            if (client->cells.fd >= 0) {
                close(client->cells.fd);
                client->cells.fd = -1;
            }
        } else if (size == 0) {
            drain_ring(client); /* commd's last packets */
            client_lose(client, COMM_DAEMON_LOST,
                        "%s: commd closed the connection: it ended or was restarted", client->path);
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (heart_stands_still(&client->heart, &client->heart_watch, clock_ns())) {
                client_lose_frozen(client);
            }
            return;
        } else if (errno == ECONNRESET && !reset) {
            reset = true; /* commd closed without reading our last packet; its own last packets come next */
        } else if (errno != EINTR) {
            client_lose(client, COMM_DAEMON_LOST, "%s: the connection to commd is lost: %s", client->path,
                        strerror(errno));
        }
    }
}

void client_take_events(struct comm_client *client)
{
    if (!client->reading) {
        if (client->rings != NULL && ++client->looks % SOCKET_LOOKS != 0) {
            drain_ring(client); /* the socket can wait */
        } else {
            drain(client);
        }
        pthread_cond_broadcast(&client->changed);
    }
}

void client_take_all(struct comm_client *client)
{
    if (!client->reading) {
        drain(client);
        pthread_cond_broadcast(&client->changed);
    }
}

int poll_timeout_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_ns();
    if (deadline_ns <= now_ns) {
        return 0;
    }
    uint64_t ms = (deadline_ns - now_ns + 999999u) / 1000000u;
    return ms > POLL_MAX_MS ? (int)POLL_MAX_MS : (int)ms;
}

/* other: null, or one more descriptor to wait for. */
static void wait_at_socket(struct comm_client *client, uint64_t deadline_ns, short events,
                           struct pollfd *other)
{
    struct pollfd ready[] = {{.fd = client->fd, .events = events},
                             {.fd = other != NULL ? other->fd : -1, .events = POLLIN}};
    pthread_mutex_unlock(&client->lock);
    (void)poll(ready, 2, poll_timeout_ms(deadline_ns)); /* in any case the socket is read next */
    pthread_mutex_lock(&client->lock);
    if (other != NULL) {
        other->revents = ready[1].revents;
    }
}

/* As wait_at_socket, for a client with rings. Returns whether the socket may be ready, too. */
static bool wait_at_rings(struct comm_client *client, uint64_t deadline_ns, short events,
                          struct pollfd *other)
{
    pthread_mutex_unlock(&client->lock);
    bool polled = rings_wait(client->rings, client->fd, events, other, deadline_ns);
    pthread_mutex_lock(&client->lock);
    return polled || ++client->looks % SOCKET_LOOKS == 0;
}

/* Makes this thread the only reader: waits, handles the packets that arrive, and wakes the other threads.
 * queue: null, or the queue that the thread waits for. */
static void read_socket(struct comm_client *client, uint64_t deadline_ns, short events,
                        struct comm_queue *queue)
{
    struct pollfd other = {.fd = queue != NULL ? queue->event_fd : -1};
    bool all = true;
    client->reading = true;
    if (queue != NULL) {
        queue->sleepers++;
    }
    if (client->rings != NULL) {
        all = wait_at_rings(client, deadline_ns, events, &other);
    } else {
        wait_at_socket(client, deadline_ns, events, &other);
    }
    if (queue != NULL) {
        queue->sleepers--;
    }
    if (other.revents != 0) {
        queue_quiet(queue);
    }
    client->served = queue;
    if (all) {
        drain(client);
    } else {
        drain_ring(client);
    }
    client->served = NULL;
    client->reading = false;
    queues_reading_ended(client);
    pthread_cond_broadcast(&client->changed);
}

/* Releases the lock meanwhile. */
static void await_change(struct comm_client *client, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                             .tv_nsec = (long)(deadline_ns % 1000000000u)};
    (void)pthread_cond_timedwait(&client->changed, &client->lock, &until);
}

/* After the connection is lost, operations that another thread stages end soon. It needs the lock for that.
 */
static void await_staged(struct comm_client *client, uint64_t deadline_ns)
{
    uint64_t soon_ns = clock_after_ms(SEND_RETRY_MS);
    await_change(client, soon_ns < deadline_ns ? soon_ns : deadline_ns);
}

void client_progress(struct comm_client *client, uint64_t deadline_ns)
{
    if (client->lost != COMM_OK) {
        await_staged(client, deadline_ns);
        return;
    }
    if (client->reading) {
        await_change(client, deadline_ns);
    } else {
        read_socket(client, deadline_ns, POLLIN, NULL);
    }
    held_feed(client);
}

/* For a thread at a queue while another thread reads. */
static void await_queue(struct comm_client *client, struct comm_queue *queue, uint64_t deadline_ns)
{
    struct pollfd ready = {.fd = queue->event_fd, .events = POLLIN};
    queue->sleepers++;
    pthread_mutex_unlock(&client->lock);
    (void)poll(&ready, 1, poll_timeout_ms(deadline_ns));
    pthread_mutex_lock(&client->lock);
    queue->sleepers--;
    if (ready.revents != 0) {
        queue_quiet(queue);
    }
}

void client_progress_queue(struct comm_client *client, struct comm_queue *queue, uint64_t deadline_ns)
{
    if (client->lost != COMM_OK) {
        await_staged(client, deadline_ns);
        return;
    }
    if (client->reading) {
        await_queue(client, queue, deadline_ns);
    } else {
        read_socket(client, deadline_ns, POLLIN, queue);
    }
    held_feed(client);
}

void client_arm(struct comm_client *client)
{
    while (client->rings != NULL && !client->reading && client->lost == COMM_OK &&
           !rings_arm(client->rings)) {
        drain_ring(client);
    }
}

/* --- Sending --- */

/*
 * commd stops reading from a client that does not read. So a thread that waits to send must also make sure
 * that events are read.
 */
static void wait_to_send(struct comm_client *client, uint64_t deadline_ns)
{
    if (!client->reading && client->rings != NULL) {
        uint64_t soon_ns = clock_after_ms(SEND_RETRY_MS); /* another thread may have taken the doorbell */
        read_socket(client, soon_ns < deadline_ns ? soon_ns : deadline_ns, POLLIN, NULL);
    } else if (client->rings != NULL) {
        await_change(client, clock_after_ms(SEND_RETRY_MS));
    } else if (!client->reading) {
        read_socket(client, deadline_ns, POLLIN | POLLOUT, NULL);
    } else {
        uint64_t soon_ns = clock_after_ms(SEND_RETRY_MS);
        wait_at_socket(client, soon_ns < deadline_ns ? soon_ns : deadline_ns, POLLOUT, NULL);
    }
}

static comm_result_t send_in_ring(struct comm_client *client, const void *packet, size_t size,
                                  uint64_t deadline_ns)
{
    while (client->lost == COMM_OK) {
        switch (rings_send(client->rings, packet, size)) {
        case RING_OK:
            return COMM_OK;
        case RING_FULL:
            if (clock_ns() >= deadline_ns) {
                return COMM_TIMED_OUT;
            }
            wait_to_send(client, deadline_ns);
            break;
        case RING_NOTHING:
        case RING_BROKEN:
            client_lose(client, COMM_PROTOCOL, "%s: commd's ring holds invalid data", client->path);
            break;
        }
    }
    return client->lost;
}

comm_result_t client_send_packet(struct comm_client *client, const void *packet, size_t size_bytes, int fd,
                                 uint64_t deadline_ns)
{
    bool fits = size_bytes <= ring_packet_max_bytes(CLIENT_RING_BYTES);
    if (client->rings != NULL && fd < 0 && fits) {
        return send_in_ring(client, packet, size_bytes, deadline_ns);
    }
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct iovec part = {.iov_base = (void *)(uintptr_t)packet, .iov_len = size_bytes};
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
    while (client->lost == COMM_OK) {
        if (sendmsg(client->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
            return COMM_OK;
        }
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            if (clock_ns() >= deadline_ns) {
                return COMM_TIMED_OUT;
            }
            wait_to_send(client, deadline_ns);
        } else if (errno != EINTR) {
            int reason = errno;
            drain(client); /* commd may have sent the reason; client_lose wakes all threads */
            client_lose(client, COMM_DAEMON_LOST, "%s: the connection to commd is lost: %s", client->path,
                        strerror(reason));
        }
    }
    return client->lost;
}
