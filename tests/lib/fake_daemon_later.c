#include "tests/lib/fake_daemon_parts.h"

#include <stdlib.h>

/* Items that are sent later, first in, first out. Each is sent when its time has come and its words have
 * reached their values. */

void fake_delay(struct fake_session *session, const struct fake_delayed *what)
{
    fake_must(session->delayed_tail - session->delayed_head < FAKE_DELAYED_MAX, "too much is delayed");
    session->delayed[session->delayed_tail++ % FAKE_DELAYED_MAX] = *what;
}

/* Whether the item can be sent now. If its receiver has gone, the item does not wait for its words, but its
 * own word is still set. */
static bool is_due(struct fake_session *session, const struct fake_delayed *delayed)
{
    if (delayed->due_ns > fake_now_ns()) {
        return false;
    }
    if (delayed->record == NULL) {
        return true;
    }
    bool is_event = delayed->record->kind == RECORD_EVENT;
    bool nobody_waits = is_event ? fake_find_comm(session, delayed->handle) == NULL : delayed->ticket == 0;
    return nobody_waits || fake_words_are_reached(session, delayed->record);
}

void fake_free_delayed(struct fake_delayed *delayed)
{
    free(delayed->record);
}

void fake_say_delayed(struct fake_daemon *daemon, struct fake_session *session)
{
    while (session->delayed_head < session->delayed_tail) {
        struct fake_delayed *next = &session->delayed[session->delayed_head % FAKE_DELAYED_MAX];
        bool is_held = next->ticket != 0 && fake_current_script(daemon).holds_ops;
        if (is_held || !is_due(session, next)) {
            return;
        }
        if (next->init_request_id != 0) {
            struct fake_script script = fake_current_script(daemon);
            fake_send_formed(session, &script, next->init_request_id);
        } else if (next->record->kind == RECORD_EVENT) {
            fake_carry_out(daemon, session, next->record);
        } else if (next->ticket != 0) {
            bool done = next->state == FAKE_WAITS ? fake_perform(daemon, session, next->record)
                                                  : next->state == FAKE_DONE;
            fake_finish(daemon, session, next->record, done);
        } else {
            fake_set_word(session, next->record);
        }
        fake_free_delayed(next);
        session->delayed_head++;
    }
}
