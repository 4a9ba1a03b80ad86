#include "tests/lib/fake_daemon_parts.h"
#include "tests/lib/send_fds.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* Sending. It blocks and reads nothing meanwhile, which is the worst that commd may do to a client. */

static void put_bytes(struct fake_session *session, const void *bytes, size_t size)
{
    while (!fake_rings_put(session->rings, bytes, size)) {
        if (!fake_rings_await_room(session->rings, size, session->fd)) {
            session->closing = true;
            return;
        }
    }
}

/* Sends a packet. If rings are to be offered, their descriptors go with it. */
static ssize_t send_on_socket(struct fake_session *session, const void *bytes, size_t size)
{
    int fds[CLIENT_RING_FDS];
    if (session->offers_rings) {
        fake_rings_client_fds(session->rings, fds);
    }
    return send_with_fds(session->fd, bytes, size, fds, session->offers_rings ? CLIENT_RING_FDS : 0, 0);
}

void fake_send_bytes(struct fake_session *session, const void *bytes, size_t size)
{
    if (session->closing) {
        return;
    }
    if (session->rings != NULL && !session->offers_rings &&
        size <= ring_packet_max_bytes(CLIENT_RING_BYTES)) {
        put_bytes(session, bytes, size);
    } else if (send_on_socket(session, bytes, size) < 0) {
        session->closing = true;
    }
    session->offers_rings = false;
}

void fake_send_event(struct fake_session *session, const Commd__Client__Event *event)
{
    size_t size = commd__client__event__get_packed_size(event);
    uint8_t *bytes = malloc(size + 1);
    fake_must(bytes != NULL, "malloc");
    commd__client__event__pack(event, bytes);
    fake_send_bytes(session, bytes, size);
    free(bytes);
}

void fake_send_reply(struct fake_session *session, Commd__Client__Reply *reply)
{
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_REPLY;
    event.reply = reply;
    fake_send_event(session, &event);
}

void fake_send_done(struct fake_session *session, uint64_t request_id)
{
    Commd__Client__Done done = COMMD__CLIENT__DONE__INIT;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_DONE;
    reply.done = &done;
    fake_send_reply(session, &reply);
}

void fake_send_error(struct fake_session *session, uint64_t request_id, enum status status, const char *text)
{
    Commd__Client__Error error = COMMD__CLIENT__ERROR__INIT;
    error.status = status;
    error.text = (char *)text;
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_ERROR;
    reply.error = &error;
    fake_send_reply(session, &reply);
}

void fake_send_complete(struct fake_session *session, uint32_t handle, uint64_t ticket, uint32_t status,
                        const char *text)
{
    struct completion_record completion;
    completion_record_begin(&completion, handle, ticket);
    if (status != STATUS_OK) {
        completion_record_fail(&completion, (enum status)status, text);
    }
    session->pending--;
    fake_send_bytes(session, &completion, completion_record_bytes(&completion));
}
