#include <string.h>

#include "client/lib/internal.h"

/* How another thread ends comm_init and comm_join while they wait: commclient/elastic.h. */

/* commd answers the request of a communicator that is forming with COMM_ABORTED. */
static void cancel_forming(struct comm_client *client, const struct comm_comm *comm)
{
    Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    body.handle = comm->handle;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    request.comm_destroy = &body;
    client_tell(client, &request);
}

static bool is_meant(const char *name, const char *given)
{
    return given == NULL || strcmp(name, given) == 0;
}

/* Telling may release the lock, so the list is read again after each. */
static struct comm_comm *next_forming(const struct comm_client *client, const char *name)
{
    struct comm_comm *comm = client->comms;
    while (comm != NULL && (comm->comm_id != 0 || comm->cancelled || !is_meant(comm->name, name))) {
        comm = comm->next;
    }
    return comm;
}

comm_result_t comm_cancel(comm_client_t *client, const char *name)
{
    struct comm_comm *comm;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    while (client->lost == COMM_OK && (comm = next_forming(client, name)) != NULL) {
        comm->cancelled = true;
        cancel_forming(client, comm);
    }
    joins_cancel(client, name);
    if (client->lost != COMM_OK) {
        result = error_repeat(client->lost, client->lost_text);
    }
    client_leave(client);
    return result;
}
