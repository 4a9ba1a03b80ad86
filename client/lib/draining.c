#include <stdio.h>
#include <string.h>

#include "client/lib/internal.h"

/* What commd has told of its node's end: commclient/elastic.h. */

#define NS_PER_MS 1000000u

void draining_handle(struct comm_client *client, const Commd__Client__Draining *event)
{
    struct client_draining *draining = &client->draining;
    draining->active = event->draining;
    draining->has_deadline = event->has_deadline;
    draining->deadline_ns = clock_after_ms(event->left_ms);
    (void)snprintf(draining->reason, sizeof draining->reason, "%s", event->reason);
}

comm_result_t comm_draining(comm_client_t *client, comm_draining_t *out)
{
    comm_draining_t found = COMM_DRAINING_INIT;
    if (out == NULL || out->struct_size > sizeof found || out->struct_size < sizeof out->struct_size) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_draining: %s",
                            out == NULL ? "the argument is a null pointer"
                                        : "the argument is not initialised with COMM_DRAINING_INIT");
    }
    found.struct_size = out->struct_size;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    client_take_all(client);
    if (client->lost != COMM_OK) {
        result = error_repeat(client->lost, client->lost_text);
    } else if (client->draining.active) {
        uint64_t now_ns = clock_ns(), deadline_ns = client->draining.deadline_ns;
        uint64_t left_ms = deadline_ns > now_ns ? (deadline_ns - now_ns) / NS_PER_MS : 0;
        found.draining = 1;
        found.left_ms = !client->draining.has_deadline ? COMM_NO_TIMEOUT
                        : left_ms < COMM_NO_TIMEOUT    ? (uint32_t)left_ms
                                                       : COMM_NO_TIMEOUT - 1;
        (void)snprintf(found.reason, sizeof found.reason, "%s", client->draining.reason);
    }
    client_leave(client);
    if (result == COMM_OK) {
        memcpy(out, &found, out->struct_size);
    }
    return result;
}
