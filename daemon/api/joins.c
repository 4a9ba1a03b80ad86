#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

/* A session's processes of elastic jobs: their requests for ranks, and the answers. */

#define TIMEOUT_MAX_MS (GATHERS_TIMEOUT_MAX_NS / TIME_MS)

static struct api_join *session_join(struct api_session *session, uint32_t handle)
{
    struct api_join *join;
    HASH_FIND(hh, session->joins, &handle, sizeof handle, join);
    return join;
}

void api_join_forget(struct api_join *join)
{
    HASH_DEL(join->session->joins, join);
    if (join->entry != NULL) {
        gathers_leave(join->entry);
    }
    free(join);
}

/* --- Answers --- */

static void reply_seat(struct api_join *join, const struct error *result, const struct gathers_seat *seat)
{
    uint64_t request_id = join->request_id;
    join->request_id = 0;
    if (result->status != STATUS_OK) {
        api_session_reply_error(join->session, request_id, result);
        return;
    }
    Commd__Client__CommSeat body = COMMD__CLIENT__COMM_SEAT__INIT;
    body.comm_name = (char *)(uintptr_t)seat->comm_name;
    body.generation = seat->generation;
    body.rank = seat->rank;
    body.size = seat->size;
    Commd__Client__Reply reply = API_REPLY(request_id, COMM_SEAT, comm_seat, &body);
    api_session_reply(join->session, &reply);
}

static void join_seated(void *context, const struct error *result, const struct gathers_seat *seat,
                        uint64_t now_ns)
{
    (void)now_ns;
    reply_seat(context, result, seat);
}

static void join_grown(void *context, const struct error *result, const struct gathers_seat *seat,
                       uint64_t now_ns)
{
    (void)now_ns;
    reply_seat(context, result, seat);
}

static void join_waiting(void *context, uint32_t waiting)
{
    const struct api_join *join = context;
    Commd__Client__Waiting body = COMMD__CLIENT__WAITING__INIT;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    body.join = join->handle;
    body.waiting = waiting;
    event.body_case = COMMD__CLIENT__EVENT__BODY_WAITING;
    event.waiting = &body;
    api_session_send(join->session, &event);
}

/* --- Requests --- */

static uint64_t timeout_ns(uint64_t timeout_ms)
{
    return (timeout_ms < TIMEOUT_MAX_MS ? timeout_ms : TIMEOUT_MAX_MS) * TIME_MS;
}

static enum status join_new(struct api_session *session, uint32_t handle, struct api_join **out,
                            struct error *error)
{
    if (HASH_COUNT(session->joins) >= API_SESSION_JOINS_MAX) {
        return error_set(error, STATUS_LIMIT, "a process can join %d times at most", API_SESSION_JOINS_MAX);
    }
    struct api_join *join = calloc(1, sizeof *join);
    if (join != NULL) {
        join->session = session;
        join->handle = handle;
        HASH_ADD(hh, session->joins, handle, sizeof join->handle, join);
    }
    if (join == NULL || !table_has(join, hh)) {
        free(join);
        return error_set(error, STATUS_NO_MEMORY, "no memory for a process that joins");
    }
    *out = join;
    return STATUS_OK;
}

static enum status join_ask(struct api_session *session, uint64_t request_id,
                            const Commd__Client__CommJoin *request, uint64_t now_ns, struct error *error)
{
    struct gathers_wish wish = {.least = request->least,
                                .most = request->most,
                                .last_call_ns = timeout_ns(request->last_call_ms),
                                .timeout_ns = timeout_ns(request->timeout_ms),
                                .minority_continues = request->minority_continues};
    struct api_join *join = session_join(session, request->join);
    if (join != NULL) {
        enum status status = gathers_join_again(join->entry, &wish, now_ns, error);
        join->request_id = status == STATUS_OK ? request_id : join->request_id;
        return status;
    }
    enum status status = join_new(session, request->join, &join, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct gathers_handler handler = {
        .context = join, .seated = join_seated, .grown = join_grown, .waiting = join_waiting};
    join->request_id = request_id;
    status = gathers_join(session->api->gathers, session->client.uid, session->account, request->name, &wish,
                          &handler, now_ns, &join->entry, error);
    if (status != STATUS_OK) {
        join->entry = NULL;
        api_join_forget(join);
    }
    return status;
}

void api_join(struct api_session *session, uint64_t request_id, const Commd__Client__CommJoin *request,
              uint64_t now_ns)
{
    struct error error;
    enum status status = STATUS_OK;
    if (session->api->gathers == NULL) {
        status = error_set(&error, STATUS_UNSUPPORTED, "this commd gathers no elastic jobs");
    } else {
        status = join_ask(session, request_id, request, now_ns, &error);
    }
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    }
}

void api_grow(struct api_session *session, uint64_t request_id, const Commd__Client__CommGrow *request,
              uint64_t now_ns)
{
    struct error error;
    struct api_join *join = session_join(session, request->join);
    if (join == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND, "no process has joined as %u",
                                  request->join);
        return;
    }
    if (gathers_grow(join->entry, request->from, request->to, timeout_ns(request->timeout_ms), now_ns,
                     &error) != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
        return;
    }
    join->request_id = request_id;
}

void api_settle(struct api_session *session, uint64_t request_id, const Commd__Client__CommSettle *request)
{
    const struct api_join *join = session_join(session, request->join);
    if (join != NULL) {
        gathers_settle(join->entry, request->generation);
    }
    api_session_reply_done(session, request_id);
}

void api_leave(struct api_session *session, uint64_t request_id, const Commd__Client__CommLeave *request)
{
    struct api_join *join = session_join(session, request->join);
    if (join != NULL && join->request_id != 0) {
        api_session_reply_failure(session, join->request_id, STATUS_ABORTED, "the process has left");
    }
    if (join != NULL) {
        api_join_forget(join);
    }
    api_session_reply_done(session, request_id);
}
