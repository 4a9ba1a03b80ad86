#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/internal.h"

static void comm_release(struct comm_comm *comm)
{
    if (comm->node_names != NULL) {
        for (uint32_t i = 0; i < comm->node_count; i++) {
            free(comm->node_names[i]);
        }
    }
    free(comm->node_names);
    free(comm->node_of_rank);
    free(comm->name);
    free(comm);
}

static void comm_unlink(struct comm_comm *comm)
{
    for (struct comm_comm **link = &comm->client->comms; *link != NULL; link = &(*link)->next) {
        if (*link == comm) {
            *link = comm->next;
            return;
        }
    }
}

static comm_result_t check_arguments(const char *name, uint32_t rank, uint32_t size, int device, comm_t **out)
{
    if (out == NULL || name == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_init: %s",
                            out == NULL ? "no place for the communicator" : "no name");
    }
    if (size == 0 || size > RANKS_MAX || rank >= size) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_init: \"%s\": rank %u of %u: expected a rank below the size, and a size of 1 to %u", name,
            rank, size, RANKS_MAX);
    }
    if (device != COMM_DEVICE_HOST) {
        return error_report(
            COMM_UNSUPPORTED,
            "comm_init: \"%s\": device %d: this version has the host (COMM_DEVICE_HOST) alone", name, device);
    }
    return COMM_OK;
}

/* Asks for the communicator, and waits until it has formed. */
static comm_result_t comm_form(struct comm_comm *comm, const comm_init_options_t *options)
{
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = comm->handle;
    body.name = comm->name;
    body.rank = comm->rank;
    body.size = comm->size;
    body.device = -1;
    body.form_timeout_ms = options->timeout_ms;
    body.op_timeout_ms = options->op_timeout_ms;
    body.slice_bytes = options->slice_bytes;
    body.algorithms = (char *)(options->algorithms != NULL ? options->algorithms : "");
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    Commd__Client__Event *event;
    uint64_t timeout_ms = (uint64_t)options->timeout_ms + DAEMON_MARGIN_MS;
    comm_result_t result =
        client_ask(comm->client, &request, -1, COMMD__CLIENT__REPLY__BODY_COMM_INIT, timeout_ms, &event);
    if (result != COMM_OK) {
        return result;
    }
    const Commd__Client__CommInitReply *reply = event->reply->comm_init;
    comm->local_rank = reply->local_rank;
    comm->local_size = reply->local_size;
    comm->node_count = reply->node_count;
    if (comm->node_count == 0 || comm->node_count > NODES_MAX) {
        comm->node_count = 0;
        result =
            error_report(COMM_PROTOCOL, "\"%s\": commd tells of %u nodes", comm->name, reply->node_count);
    }
    commd__client__event__free_unpacked(event, NULL);
    return result;
}

static comm_result_t take_table_page(struct comm_comm *comm, const Commd__Client__CommTableReply *page,
                                     uint32_t *ranks, uint32_t *nodes)
{
    size_t new_ranks = page->n_node_of_rank;
    size_t new_nodes = page->n_node_names;
    if (new_ranks > comm->size - *ranks || new_nodes > comm->node_count - *nodes ||
        new_ranks + new_nodes == 0) {
        return error_report(COMM_PROTOCOL, "\"%s\": commd's table of ranks makes no sense", comm->name);
    }
    for (size_t i = 0; i < new_ranks; i++) {
        if (page->node_of_rank[i] >= comm->node_count) {
            return error_report(COMM_PROTOCOL, "\"%s\": commd's table of ranks names node %u", comm->name,
                                page->node_of_rank[i]);
        }
        comm->node_of_rank[(*ranks)++] = page->node_of_rank[i];
    }
    for (size_t i = 0; i < new_nodes; i++) {
        comm->node_names[*nodes] = strdup(page->node_names[i]);
        if (comm->node_names[*nodes] == NULL) {
            return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", comm->name);
        }
        (*nodes)++;
    }
    return COMM_OK;
}

static comm_result_t comm_fetch_table(struct comm_comm *comm)
{
    uint32_t ranks = 0, nodes = 0;
    comm->node_of_rank = calloc(comm->size, sizeof *comm->node_of_rank);
    comm->node_names = calloc(comm->node_count, sizeof *comm->node_names);
    if (comm->node_of_rank == NULL || comm->node_names == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", comm->name);
    }
    while (ranks < comm->size || nodes < comm->node_count) {
        Commd__Client__CommTable body = COMMD__CLIENT__COMM_TABLE__INIT;
        body.handle = comm->handle;
        body.first_rank = ranks;
        body.first_node = nodes;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_TABLE;
        request.comm_table = &body;
        Commd__Client__Event *event;
        comm_result_t result = client_ask(comm->client, &request, -1, COMMD__CLIENT__REPLY__BODY_COMM_TABLE,
                                          REQUEST_TIMEOUT_MS, &event);
        if (result == COMM_OK) {
            result = take_table_page(comm, event->reply->comm_table, &ranks, &nodes);
            commd__client__event__free_unpacked(event, NULL);
        }
        if (result != COMM_OK) {
            return result;
        }
    }
    return COMM_OK;
}

static void comm_tell_destroyed(struct comm_comm *comm)
{
    Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
    body.handle = comm->handle;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    request.comm_destroy = &body;
    Commd__Client__Event *event;
    if (client_ask(comm->client, &request, -1, COMMD__CLIENT__REPLY__BODY_DONE, REQUEST_TIMEOUT_MS, &event) ==
        COMM_OK) {
        commd__client__event__free_unpacked(event, NULL);
    }
}

comm_result_t comm_init(comm_client_t *client, const char *name, uint32_t rank, uint32_t size, int device,
                        const comm_init_options_t *options, comm_t **out)
{
    comm_init_options_t given = COMM_INIT_OPTIONS_INIT;
    comm_result_t result = check_arguments(name, rank, size, device, out);
    if (result == COMM_OK && !options_copy(&given, sizeof given, options)) {
        result = error_report(COMM_INVALID_ARGUMENT, "comm_init: options of an unknown size");
    }
    if (result != COMM_OK || (result = client_enter(client)) != COMM_OK) {
        return result;
    }
    *out = NULL;
    given.timeout_ms = given.timeout_ms != 0 ? given.timeout_ms : FORM_TIMEOUT_DEFAULT_MS;
    given.op_timeout_ms = given.op_timeout_ms != 0 ? given.op_timeout_ms : OP_TIMEOUT_DEFAULT_MS;
    struct comm_comm *comm = calloc(1, sizeof *comm);
    char *name_copy = strdup(name);
    if (comm == NULL || name_copy == NULL) {
        free(comm);
        free(name_copy);
        client_leave(client);
        return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", name);
    }
    comm->client = client;
    comm->handle = ++client->last_handle;
    comm->rank = rank;
    comm->size = size;
    comm->name = name_copy;
    comm->op_timeout_ms = given.op_timeout_ms;
    comm->last_op = &comm->first_op;
    comm->next = client->comms; /* from the start: an abort may come right after the reply */
    client->comms = comm;
    result = comm_form(comm, &given);
    if (result == COMM_OK && (result = comm_fetch_table(comm)) != COMM_OK && client->lost == COMM_OK) {
        char text[ERROR_TEXT_BYTES];
        snprintf(text, sizeof text, "%s", comm_last_error());
        comm_tell_destroyed(comm);
        error_repeat(result, text);
    }
    if (result == COMM_OK) {
        *out = comm;
    } else {
        comm_unlink(comm);
        comm_release(comm);
    }
    client_leave(client);
    return result;
}

void comm_destroy(comm_t *comm)
{
    if (comm == NULL || client_enter(comm->client) != COMM_OK) {
        return;
    }
    struct comm_client *client = comm->client;
    if (comm->failure == COMM_OK) {
        (void)ops_finish(comm, comm->last_ticket, FINISH_TIMEOUT_MS);
    }
    if (client->lost == COMM_OK) {
        comm_tell_destroyed(comm);
    }
    /* commd answers the destruction after it has let go of what was still in flight. */
    ops_forget(comm);
    comm_unlink(comm);
    comm_release(comm);
    client_leave(client);
}

uint32_t comm_rank(const comm_t *comm)
{
    return comm->rank;
}

uint32_t comm_size(const comm_t *comm)
{
    return comm->size;
}

uint32_t comm_local_rank(const comm_t *comm)
{
    return comm->local_rank;
}

uint32_t comm_local_size(const comm_t *comm)
{
    return comm->local_size;
}

const char *comm_node_of(const comm_t *comm, uint32_t rank)
{
    return rank < comm->size ? comm->node_names[comm->node_of_rank[rank]] : NULL;
}
