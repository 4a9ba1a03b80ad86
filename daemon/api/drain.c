#include <stdio.h>
#include <string.h>

#include "daemon/api/session.h"
#include "daemon/base/printable.h"

/* The end of the node's work: asked for by administrators, told to clients. */

#define DRAIN_TIMEOUT_MAX_MS UINT64_C(604800000) /* a week */

static void ask(struct api_session *session, uint64_t request_id, const struct api_drain *asked,
                uint64_t now_ns)
{
    struct api *api = session->api;
    struct error error;
    if (session->role != API_ROLE_ADMIN) {
        api_session_reply_failure(
            session, request_id, STATUS_PERMISSION,
            "only administrators drain a node (the administrators' socket, admin_group)");
    } else if (api->owner.ask_drain == NULL) {
        api_session_reply_failure(session, request_id, STATUS_UNSUPPORTED, "this commd cannot drain");
    } else if (api->owner.ask_drain(api->owner.drain_context, asked, now_ns, &error) != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    } else {
        api_session_reply_done(session, request_id);
    }
}

void api_drain(struct api_session *session, uint64_t request_id, const Commd__Client__Drain *request,
               uint64_t now_ns)
{
    struct api_drain asked = {.draining = true, .deadline_ns = TIME_NEVER};
    if (request->timeout_ms > DRAIN_TIMEOUT_MAX_MS) {
        api_session_reply_failure(
            session, request_id, STATUS_INVALID_ARGUMENT, "a drain of %llu ms; at most %llu, a week",
            (unsigned long long)request->timeout_ms, (unsigned long long)DRAIN_TIMEOUT_MAX_MS);
        return;
    }
    if (request->timeout_ms > 0) {
        asked.deadline_ns = time_after(now_ns, request->timeout_ms * TIME_MS);
    }
    printable_copy(request->reason, asked.reason, sizeof asked.reason);
    ask(session, request_id, &asked, now_ns);
}

void api_undrain(struct api_session *session, uint64_t request_id, uint64_t now_ns)
{
    struct api_drain asked = {.draining = false, .deadline_ns = TIME_NEVER};
    ask(session, request_id, &asked, now_ns);
}

bool api_drain_fill(const struct api_session *session, Commd__Client__Draining *out, uint64_t now_ns)
{
    const struct api_drain *drain = &session->api->drain;
    *out = (Commd__Client__Draining)COMMD__CLIENT__DRAINING__INIT;
    out->draining = drain->draining;
    out->reason = (char *)(uintptr_t)drain->reason;
    out->has_deadline = drain->draining && drain->deadline_ns != TIME_NEVER;
    out->left_ms =
        out->has_deadline && drain->deadline_ns > now_ns ? (drain->deadline_ns - now_ns) / TIME_MS : 0;
    return session->wants_draining;
}

void api_drain_tell_all(const struct api *api, uint64_t now_ns)
{
    struct api_session *session, *next;
    HASH_ITER (hh, api->sessions, session, next) {
        Commd__Client__Draining body;
        Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
        event.body_case = COMMD__CLIENT__EVENT__BODY_DRAINING;
        event.draining = &body;
        if (api_drain_fill(session, &body, now_ns) && !session->broken && !session->closing) {
            api_session_send(session, &event);
        }
    }
}

void api_say_goodbye(struct api *api, const char *text)
{
    struct error goodbye;
    struct api_session *session, *next;
    if (api == NULL) {
        return;
    }
    error_set(&goodbye, STATUS_DAEMON_LOST, "%s", text);
    api->sends_left = UINT32_MAX; /* the loop sends nothing any more */
    HASH_ITER (hh, api->sessions, session, next) {
        if (session->role == API_ROLE_CLIENT && !session->broken && !session->closing) {
            api_session_reply_error(session, 0, &goodbye);
        }
    }
    api_ring_bells(api);
}
