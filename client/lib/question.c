#include <stdlib.h>

#include "client/lib/internal.h"

/* Requests to commd, and their answers. */

/* Returns the packed size, or 0 if it is too large. Texts in requests are checked for their length before. */
static size_t pack(const Commd__Client__Request *request, uint8_t packet[REQUEST_MAX_BYTES])
{
    size_t size = commd__client__request__get_packed_size(request);
    return size <= REQUEST_MAX_BYTES ? commd__client__request__pack(request, packet) : 0;
}

/* For the few requests that carry a program's data. */
static comm_result_t send_large(struct comm_client *client, const Commd__Client__Request *request,
                                size_t size, int fd, uint64_t deadline_ns)
{
    uint8_t *packet = size <= CLIENT_PACKET_MAX_BYTES ? malloc(size) : NULL;
    if (packet == NULL) {
        return size <= CLIENT_PACKET_MAX_BYTES ? COMM_NO_MEMORY : COMM_INTERNAL;
    }
    (void)commd__client__request__pack(request, packet);
    comm_result_t result = client_send_packet(client, packet, size, fd, deadline_ns);
    free(packet);
    return result;
}

/* As client_send_packet, for a request. */
static comm_result_t client_send(struct comm_client *client, const Commd__Client__Request *request, int fd,
                                 uint64_t deadline_ns)
{
    size_t packed_bytes = commd__client__request__get_packed_size(request);
    if (packed_bytes > REQUEST_MAX_BYTES) {
        return send_large(client, request, packed_bytes, fd, deadline_ns);
    }
    uint8_t packet[REQUEST_MAX_BYTES];
    size_t size = pack(request, packet);
    return size > 0 ? client_send_packet(client, packet, size, fd, deadline_ns) : COMM_INTERNAL;
}

static void forget_request(struct comm_client *client, const struct client_request *request)
{
    for (struct client_request **link = &client->requests; *link != NULL; link = &(*link)->next) {
        if (*link == request) {
            *link = request->next;
            return;
        }
    }
}

/* Checks the reply. Frees the event unless it is the expected one. */
static comm_result_t take_answer(struct comm_client *client, const struct client_question *question,
                                 Commd__Client__Event *event, Commd__Client__Event **out)
{
    const Commd__Client__Reply *reply = event->reply;
    comm_result_t result;
    if (reply->body_case == question->expected) {
        *out = event;
        return COMM_OK;
    }
    if (reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR) {
        const Commd__Client__Error *error = reply->error;
        comm_failure_t data =
            error->failure != NULL ? failure_from_message(error->failure) : failure_data(COMM_OK, "");
        data.result = failure_from_wire(error->status);
        result = error_repeat_failure(&data, error->text);
    } else {
        client_lose(client, COMM_PROTOCOL, "%s: %s: commd sent the answer to another request", client->path,
                    question->what);
        result = error_repeat(client->lost, client->lost_text);
    }
    commd__client__event__free_unpacked(event, NULL);
    return result;
}

/* Whether an answer is of no use any more, because the communicator that it belongs to has failed. */
static bool is_in_vain(const struct client_question *question)
{
    return question->needs != NULL && question->needs->failure != COMM_OK;
}

void client_ask_begin(struct comm_client *client, Commd__Client__Request *request,
                      const struct client_question *question, struct client_request *waiting)
{
    *waiting = (struct client_request){
        .next = client->requests, .id = ++client->last_request_id, .began_ns = clock_ns()};
    request->id = waiting->id;
    client->requests = waiting;
    waiting->sent = client_send(client, request, question->fd, question->deadline_ns);
}

comm_result_t client_ask_end(struct comm_client *client, const struct client_question *question,
                             struct client_request *waiting, Commd__Client__Event **event, bool *unanswered)
{
    comm_result_t result = waiting->sent;
    *event = NULL;
    if (unanswered != NULL) {
        *unanswered = false;
    }
    while (result == COMM_OK && waiting->event == NULL && client->lost == COMM_OK && !is_in_vain(question)) {
        client_progress(client, question->deadline_ns);
        if (waiting->event == NULL && client->lost == COMM_OK && clock_ns() >= question->deadline_ns) {
            result = COMM_TIMED_OUT;
        }
    }
    forget_request(client, waiting);
    if (waiting->event != NULL) {
        return take_answer(client, question, waiting->event, event);
    }
    if (unanswered != NULL) {
        *unanswered = true;
    }
    if (client->lost != COMM_OK) {
        return error_repeat(client->lost, client->lost_text);
    }
    if (is_in_vain(question)) {
        return member_check(question->needs);
    }
    return error_report(result, "%s: %s: commd did not answer within %llu ms", client->path, question->what,
                        (unsigned long long)((clock_ns() - waiting->began_ns) / 1000000u));
}

comm_result_t client_ask(struct comm_client *client, Commd__Client__Request *request,
                         const struct client_question *question, Commd__Client__Event **event,
                         bool *unanswered)
{
    struct client_request waiting;
    client_ask_begin(client, request, question, &waiting);
    return client_ask_end(client, question, &waiting, event, unanswered);
}

void client_tell(struct comm_client *client, Commd__Client__Request *request)
{
    request->id = ++client->last_request_id;
    (void)client_send(client, request, -1, clock_after_ms(FINISH_TIMEOUT_MS));
}

void client_tell_quietly(struct comm_client *client, Commd__Client__Request *request)
{
    uint8_t packet[REQUEST_MAX_BYTES];
    request->id = ++client->last_request_id;
    size_t size = pack(request, packet);
    if (client->rings == NULL || size == 0 || rings_send_quietly(client->rings, packet, size) != RING_OK) {
        client_tell(client, request);
    }
}
