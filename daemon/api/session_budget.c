#include <utlist.h>

#include "daemon/api/session.h"

/* What a session itself costs its user: its place, its descriptors, and packets that wait for the client to
 * read. Also the time limit for Hello. */

#define QUEUED_STEP_BYTES 4096u /* charged in steps, because most packets leave at once */

enum status api_session_charge(struct api_session *session, struct error *error)
{
    static const enum budget_kind kinds[] = {BUDGET_SESSIONS, BUDGET_GREETINGS, BUDGET_DESCRIPTORS};
    static const uint64_t amounts[] = {1, 1, API_SESSION_FDS};
    if (session->role == API_ROLE_ADMIN) { /* turns and places of its own, independent of root's clients */
        enum status opened = budget_open(session->api->budget, session->client.uid, "administration",
                                         &session->account, error);
        if (opened == STATUS_OK) {
            session->turn.line = budget_line(session->account);
        }
        return opened;
    }
    const char *group =
        control_group_find(&session->api->control_groups, session->client.pid, session->death_fd);
    enum status status =
        budget_open(session->api->budget, session->client.uid, group, &session->account, error);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && status == STATUS_OK; i++) {
        status = budget_charge(session->account, kinds[i], amounts[i], error);
        for (size_t taken = i; status != STATUS_OK && taken > 0; taken--) {
            budget_release(session->account, kinds[taken - 1], amounts[taken - 1]);
        }
    }
    if (status != STATUS_OK) {
        budget_close(session->account);
        session->account = NULL;
        return status;
    }
    session->turn.line = budget_line(session->account);
    session->client.account = session->account;
    session->charged = true;
    return STATUS_OK;
}

void api_session_discharge(struct api_session *session)
{
    api_session_heard(session);
    budget_release(session->account, BUDGET_QUEUED, session->out_charged_bytes);
    if (session->charged) {
        budget_release(session->account, BUDGET_DESCRIPTORS, API_SESSION_FDS);
        budget_release(session->account, BUDGET_SESSIONS, 1);
    }
    budget_close(session->account);
}

bool api_session_charge_queued(struct api_session *session, struct error *error)
{
    uint64_t wanted = (session->out_bytes + QUEUED_STEP_BYTES - 1) / QUEUED_STEP_BYTES * QUEUED_STEP_BYTES;
    uint64_t has = session->out_charged_bytes;
    if (wanted > has) {
        if (budget_charge(session->account, BUDGET_QUEUED, wanted - has, error) != STATUS_OK) {
            return false;
        }
    } else if (wanted < has) {
        budget_release(session->account, BUDGET_QUEUED, has - wanted);
    }
    session->out_charged_bytes = wanted;
    return true;
}

/* --- Hello --- */

static void greetings_arm(struct api *api)
{
    const struct api_session *oldest = api->unheard;
    loop_timer_set(api->greetings,
                   oldest != NULL ? time_after(oldest->connected_ns, API_HELLO_WAIT_NS) : TIME_NEVER);
}

void api_session_await_hello(struct api_session *session)
{
    struct api *api = session->api;
    session->unheard = true;
    DL_APPEND2(api->unheard, session, unheard_prev, unheard_next);
    if (api->unheard == session) {
        greetings_arm(api);
    }
}

void api_session_heard(struct api_session *session)
{
    struct api *api = session->api;
    if (session->unheard) {
        session->unheard = false;
        DL_DELETE2(api->unheard, session, unheard_prev, unheard_next);
        if (session->charged) {
            budget_release(session->account, BUDGET_GREETINGS, 1);
        }
    }
}

void api_greetings_due(void *context, uint64_t now_ns)
{
    struct api *api = context;
    struct api_session *session, *next;
    DL_FOREACH_SAFE2(api->unheard, session, next, unheard_next)
    {
        struct error error;
        if (now_ns < time_after(session->connected_ns, API_HELLO_WAIT_NS)) {
            break;
        }
        error_set(&error, STATUS_TIMED_OUT, "no Hello within %d s", (int)(API_HELLO_WAIT_NS / TIME_S));
        api_session_heard(session);
        api_session_reply_error(session, 0, &error);
        api_session_end(session, error.text);
    }
    greetings_arm(api);
}
