#include "daemon/api/session.h"
#include "daemon/base/history.h"

/* What happened on this node lately, for commctl events. */

#define EVENTS_PAGE_MAX 64 /* of at most 600 bytes each */
#define EVENTS_LOOKED_AT_MAX 512

static bool sees(const struct api_session *session, const struct history_event *event)
{
    switch (event->audience) {
    case HISTORY_FOR_ALL:
        return true;
    case HISTORY_FOR_ADMINISTRATORS:
        return session->role == API_ROLE_ADMIN;
    case HISTORY_FOR_USER:
        return api_session_sees(session, event->uid);
    }
    return false;
}

static void fill_row(Commd__Client__EventInfo *row, const struct history_event *event)
{
    commd__client__event_info__init(row);
    row->sequence = event->number;
    row->time_ms = event->time_ms;
    row->kind = (char *)(uintptr_t)history_kind_text(event->kind);
    row->subject_kind =
        (char *)(uintptr_t)(event->subject[0] != '\0' ? history_subject_text(event->kind) : "");
    row->subject = (char *)(uintptr_t)event->subject;
    row->text = (char *)(uintptr_t)event->text;
    row->has_uid = event->audience == HISTORY_FOR_USER;
    row->uid = row->has_uid ? event->uid : 0;
    row->pid = event->pid;
    row->left_out = event->left_out;
}

void api_events(struct api_session *session, uint64_t request_id, const Commd__Client__EventsQuery *request)
{
    Commd__Client__EventInfo rows[EVENTS_PAGE_MAX];
    Commd__Client__EventInfo *pointers[EVENTS_PAGE_MAX];
    Commd__Client__EventsReply answer = COMMD__CLIENT__EVENTS_REPLY__INIT;
    const struct history_event *event;
    answer.events = pointers;
    answer.cursor = request->after;
    answer.missed = history_missed(request->after);
    for (unsigned i = 0; i < EVENTS_LOOKED_AT_MAX && answer.n_events < EVENTS_PAGE_MAX &&
                         (event = history_after(answer.cursor)) != NULL;
         i++) {
        answer.cursor = event->number;
        if (sees(session, event)) {
            fill_row(&rows[answer.n_events], event);
            pointers[answer.n_events] = &rows[answer.n_events];
            answer.n_events++;
        }
    }
    answer.more = history_after(answer.cursor) != NULL;
    Commd__Client__Reply reply = API_REPLY(request_id, EVENTS, events, &answer);
    api_session_reply(session, &reply);
}
