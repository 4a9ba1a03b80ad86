#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/api/session.h"

/* What a session does in its turn: it handles one packet, or some submissions of a packet. After its client
 * disconnected, it gives back one of the objects that it held. */

/* --- Submissions --- */

static void list_end(struct api_session *session)
{
    if (session->list.bytes != NULL) {
        budget_release(session->account, BUDGET_QUEUED, session->list.size);
        free(session->list.bytes);
        session->list.bytes = NULL;
    }
}

static void list_refuse(struct api_session *session, const struct error *error)
{
    api_session_reply_error(session, 0, error);
    api_session_end(session, error->text);
}

/* Does some submissions from *at on. Returns false if the next one is malformed; then the session ends. */
static bool list_work(struct api_session *session, const uint8_t *list, size_t size, size_t *at,
                      uint64_t now_ns)
{
    struct submit_record record;
    const char *what;
    for (unsigned i = 0; i < API_LIST_PIECE && *at < size && api_session_reads(session); i++) {
        size_t record_bytes = submit_record_read(list + *at, size - *at, &record, &what);
        if (record_bytes == 0) {
            struct error error;
            error_set(&error, STATUS_PROTOCOL, "a submission with a wrong %s", what);
            list_refuse(session, &error);
            return false;
        }
        *at += record_bytes;
        api_submit(session, &record, now_ns);
    }
    return true;
}

/* Does the first of a packet's submissions, and keeps the others for later turns. */
static void list_begin(struct api_session *session, const uint8_t *list, size_t size, uint64_t now_ns)
{
    struct error error;
    size_t at = 0;
    if (!list_work(session, list, size, &at, now_ns)) {
        return;
    }
    if (at == size) {
        return;
    }
    size_t left = size - at;
    enum status status = budget_charge(session->account, BUDGET_QUEUED, left, &error);
    if (status == STATUS_OK) {
        session->list.bytes = malloc(left);
        if (session->list.bytes == NULL) {
            budget_release(session->account, BUDGET_QUEUED, left);
            status = error_set(&error, STATUS_NO_MEMORY, "no memory for a list of submissions");
        }
    }
    if (status != STATUS_OK) {
        list_refuse(session, &error);
        return;
    }
    memcpy(session->list.bytes, list + at, left);
    session->list.size = left;
    session->list.at = 0;
}

static enum turn_result list_turn(struct api_session *session, uint64_t now_ns)
{
    if (!list_work(session, session->list.bytes, session->list.size, &session->list.at, now_ns)) {
        list_end(session);
        return TURN_DONE;
    }
    if (session->list.at == session->list.size) {
        list_end(session);
        api_session_watch(session);
    }
    return TURN_MORE;
}

/* --- Packets --- */

/* Returns false if the next packet cannot be taken; the client is told so. */
static bool may_receive(struct api_session *session)
{
    if (api_packet_has_too_much(session->api, session->client.uid, session->fd)) {
        api_session_has_too_much(session, 0);
        return false;
    }
    return true;
}

/* Nothing more is read from the socket. */
static enum turn_result socket_ends(struct api_session *session)
{
    session->readable = false;
    session->ending = true;
    api_session_watch(session);
    return TURN_MORE;
}

static enum turn_result socket_turn(struct api_session *session, uint64_t now_ns)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES]; /* only the main thread reads sessions */
    if (!may_receive(session)) {
        return TURN_DONE;
    }
    struct api_packet_in packet =
        api_packet_receive(session->api, session->client.uid, session->fd, bytes, sizeof bytes);
    if (packet.size_bytes < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        session->readable = false;
        return session->dead ? socket_ends(session) : TURN_NOTHING;
    }
    if (packet.size_bytes > 0 && api_session_take(session, bytes, &packet, now_ns)) {
        list_begin(session, bytes, (size_t)packet.size_bytes, now_ns);
    }
    if (packet.fds > 0) {
        fd_reaper_put(session->api->fd_reaper, session->client.uid, packet.fd);
    }
    bool last = session->dead && ++session->last_packets >= API_LAST_PACKETS_MAX;
    return packet.size_bytes <= 0 || last ? socket_ends(session) : TURN_MORE;
}

static enum turn_result ring_turn(struct api_session *session, uint64_t now_ns)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES]; /* as above */
    size_t size;
    if (!api_rings_take(session, bytes, sizeof bytes, &size, now_ns)) {
        return TURN_NOTHING;
    }
    const struct api_packet_in packet = {.size_bytes = (ssize_t)size, .fd = -1};
    if (size > 0 && api_session_take(session, bytes, &packet, now_ns)) {
        list_begin(session, bytes, size, now_ns);
    }
    api_rings_taken(session);
    bool rests = api_session_reads(session) && session->list.bytes == NULL && !session->readable &&
                 !session->ending && !session->dead && !ring_has_packet(&session->rings->in);
    return rests ? TURN_DONE : TURN_MORE;
}

/* --- The end of a session --- */

/* A client that ends while it has communicators is lost to their other ranks. */
static void end_happened(const struct api_session *session)
{
    if (session->role != API_ROLE_CLIENT || !session->greeted || api_session_is_visitor(session) ||
        session->api->ending) {
        return;
    }
    if (session->expelled != NULL) {
        api_session_happened(session, HISTORY_CLIENT_DISCONNECTED, "it %s", session->expelled);
    } else if (session->comms != NULL) {
        api_session_happened(session, HISTORY_CLIENT_LOST, "%s; it had ranks in %u communicators",
                             session->dead ? "its process has ended" : "its connection has ended",
                             HASH_COUNT(session->comms));
    } else {
        api_session_happened(session, HISTORY_CLIENT_DISCONNECTED, "after %llu operations",
                             (unsigned long long)session->ops_submitted);
    }
}

/* Done at once: after this, other modules no longer report to the session. */
static void release_begin(struct api_session *session)
{
    struct api *api = session->api;
    session->releasing = true;
    log_debug("client %d (%s): gone", (int)session->client.pid, session->program);
    end_happened(session);
    loop_watch_free(session->watch);
    session->watch = NULL;
    api_death_forget(session);
    api_heart_forget(session);
    if (session->closing) {
        api_packets_discard(api, session->client.uid, session->fd);
    }
    api_session_close_socket(api, session->role, session->client.uid, session->fd);
    session->fd = -1;
    api_rings_free(session);
    list_end(session);
    api_session_forget(session);
}

/* Returns false if everything has been released. */
static bool release_some(struct api_session *session, uint64_t now_ns)
{
    if (session->out_first != NULL) {
        api_session_drop_packets(session, API_RELEASE_PIECE);
        return true;
    }
    return api_session_release_one(session, now_ns);
}

static enum turn_result release_turn(struct api_session *session, uint64_t now_ns)
{
    if (!session->releasing) {
        release_begin(session);
        return TURN_MORE;
    }
    bool tells_nodes = session->comms != NULL || session->stores != NULL;
    if (tells_nodes && !session->api->ending && comms_is_crowded(session->api->comms)) {
        loop_timer_set(session->api->crowd, time_after(now_ns, API_CROWD_WAIT_NS));
        return TURN_NOTHING; /* other nodes must be told, and have too much to read */
    }
    if (release_some(session, now_ns)) {
        return TURN_MORE;
    }
    HASH_DEL(session->api->sessions, session);
    session->api->listeners[session->role].session_count--;
    LL_PREPEND2(session->api->gone, session, awake_next);
    return TURN_DONE;
}

void api_sessions_free_gone(struct api *api)
{
    while (api->gone != NULL) {
        struct api_session *session = api->gone;
        LL_DELETE2(api->gone, session, awake_next);
        api_session_discharge(session);
        free(session->expelled);
        free(session);
    }
}

void api_crowd_due(void *context, uint64_t now_ns)
{
    struct api *api = context;
    struct api_session *session, *next;
    (void)now_ns;
    HASH_ITER (hh, api->sessions, session, next) {
        if (session->releasing) {
            turn_queue(&api->turns, &session->turn);
        }
    }
}

void api_session_free(struct api_session *session, uint64_t now_ns)
{
    turn_cancel(&session->api->turns, &session->turn);
    session->broken = true;
    struct api *api = session->api;
    while (release_turn(session, now_ns) == TURN_MORE) {
    }
    api_sessions_free_gone(api);
}

/* --- Turns --- */

static bool takes_socket_next(struct api_session *session)
{
    session->socket_first = !session->socket_first; /* socket and ring take turns */
    return session->readable && session->socket_first;
}

enum turn_result api_session_turn(void *context, uint64_t now_ns)
{
    struct api_session *session = context;
    if (session->broken) {
        return release_turn(session, now_ns);
    }
    if (!api_session_reads(session)) {
        if (session->ending || session->dead) {
            api_session_break(session); /* the client takes no more answers */
            return TURN_MORE;
        }
        return TURN_NOTHING;
    }
    if (session->list.bytes != NULL) {
        return list_turn(session, now_ns);
    }
    if (session->rings != NULL && !takes_socket_next(session)) {
        enum turn_result result = ring_turn(session, now_ns);
        if (result != TURN_NOTHING) {
            return result;
        }
    }
    if (session->ending) {
        api_session_break(session);
        return TURN_MORE;
    }
    return session->readable ? socket_turn(session, now_ns) : TURN_NOTHING;
}
