#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

#include "daemon/api/session.h"
#include "daemon/base/descriptor.h"

/*
 * A session's doorbells. A client that puts a packet rings only if commd sleeps, so a ring means a packet. If
 * a client rings repeatedly without a packet, commd reads its bell less and less often, until there is a
 * packet.
 */

#define BELL_READ_BYTES 4096
#define BELL_TRIES 3
#define BELLS_FOR_NOTHING_MAX 16u /* in a row; an honest client that commd overtook rings fewer */
#define BELL_REST_NS (1 * TIME_MS)
#define BELL_REST_DOUBLINGS_MAX 10u

void api_bell_ring(const struct api_rings *rings)
{
    char byte = 1;
    /* A ring that is lost leaves the client asleep, so a failure is tried again. A full socket wakes it, too.
     */
    for (int tries = 0; tries < BELL_TRIES; tries++) {
        if (send(rings->client_bell[1], &byte, sizeof byte, MSG_DONTWAIT | MSG_NOSIGNAL) > 0 ||
            errno == EAGAIN) {
            return;
        }
    }
}

/* Reads the bell. Returns false if the client can ring no more; then its session ends. Closes descriptors
 * that come with a ring. */
static bool bell_hear(struct api_session *session)
{
    char bytes[BELL_READ_BYTES];
    struct api *api = session->api;
    int bell = session->rings->bell[0];
    if (api_packet_has_too_much(api, session->client.uid, bell)) {
        api_session_has_too_much(session, 0);
        return false;
    }
    struct api_packet_in packet = api_packet_receive(api, session->client.uid, bell, bytes, sizeof bytes);
    bool is_over = packet.size_bytes == 0 || (packet.size_bytes < 0 && errno != EAGAIN && errno != EINTR);
    if (packet.fds > 0) {
        fd_reaper_put(api->fd_reaper, session->client.uid, packet.fd);
    }
    if (is_over) {
        api_session_end(session, "it has shut down its doorbell");
    }
    return !is_over;
}

static void bell_rested(void *context, uint64_t now_ns)
{
    const struct api_session *session = context;
    (void)now_ns;
    loop_watch_set(session->rings->bell_watch, LOOP_READ);
}

static void bell_rang_for_nothing(struct api_session *session, uint64_t now_ns)
{
    struct api_rings *rings = session->rings;
    if (++rings->bells_for_nothing <= BELLS_FOR_NOTHING_MAX) {
        return;
    }
    struct error error;
    if (rings->bell_rest == NULL) {
        api_session_log(session, LOG_LEVEL_WARNING,
                        "it rings its doorbell without need: commd now listens to it less often");
        if (loop_timer_new(session->api->loop, bell_rested, session, &rings->bell_rest, &error) !=
            STATUS_OK) {
            loop_watch_set(rings->bell_watch, 0);
            api_session_end(session, error.text);
            return;
        }
    }
    uint32_t doublings = rings->bells_for_nothing - BELLS_FOR_NOTHING_MAX - 1;
    doublings = doublings < BELL_REST_DOUBLINGS_MAX ? doublings : BELL_REST_DOUBLINGS_MAX;
    loop_watch_set(rings->bell_watch, 0);
    loop_timer_set(rings->bell_rest, time_after(now_ns, BELL_REST_NS << doublings));
}

/* Returns whether an operation waits in the cells of one of its communicators. */
static bool comms_rang(struct api_session *session, uint64_t now_ns)
{
    const struct api_comm *comm, *next;
    bool any = false;
    HASH_ITER (hh, session->comms, comm, next) {
        any |= comm->formed && comms_member_wake_cells(comm->member, now_ns);
    }
    return any;
}

static void on_bell(void *context, unsigned events, uint64_t now_ns)
{
    struct api_session *session = context;
    struct api_rings *rings = session->rings;
    (void)events;
    if (!bell_hear(session)) {
        loop_watch_set(rings->bell_watch, 0);
        return;
    }
    uint32_t unsent = session->out_count;
    /* A client that rang has cleared commd's sleep flag. */
    bool has_packet = ring_has_packet(&rings->in) || (!rings->awake && !ring_consumer_sleep(&rings->in));
    if (has_packet) {
        api_rings_awake(session, now_ns);
    }
    bool has_operation = comms_rang(session, now_ns);
    api_session_flush(session); /* the client may ring because it has made room */
    if (!has_packet && !has_operation && session->out_count == unsent) {
        bell_rang_for_nothing(session, now_ns);
    }
}

enum status api_bells_new(struct api_session *session, struct error *error)
{
    const int type = SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK;
    struct api_rings *rings = session->rings;
    if (socketpair(AF_UNIX, type, 0, rings->bell) != 0 ||
        socketpair(AF_UNIX, type, 0, rings->client_bell) != 0 ||
        shutdown(rings->client_bell[1], SHUT_RD) != 0) { /* so it has no unread data that a close waits for */
        return error_set_errno(error, errno, "doorbells of rings");
    }
    api_pass_fds(rings->bell[0], false);
    return loop_watch_new(session->api->loop, rings->bell[0], LOOP_READ, on_bell, session, &rings->bell_watch,
                          error);
}

void api_bells_free(struct api_session *session)
{
    struct api_rings *rings = session->rings;
    loop_timer_free(rings->bell_rest);
    loop_watch_free(rings->bell_watch);
    if (rings->bell[0] >= 0) {
        api_packets_discard(session->api, session->client.uid, rings->bell[0]);
        api_session_close_socket(session->api, session->role, session->client.uid, rings->bell[0]);
    }
    const int fds[] = {rings->bell[1], rings->client_bell[0], rings->client_bell[1]};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        descriptor_close(fds[i]);
    }
}
