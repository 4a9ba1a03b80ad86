#include <string.h>

#include "client/lib/internal.h"

/* How another thread ends comm_init and comm_join while they wait: commclient/elastic.h. */

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
        member_tell_destroyed(client, comm->handle); /* commd answers its request with COMM_ABORTED */
    }
    joins_cancel(client, name);
    if (client->lost != COMM_OK) {
        result = error_repeat(client->lost, client->lost_text);
    }
    client_leave(client);
    return result;
}
