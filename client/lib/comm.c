#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"
#include "client/lib/policy.h"

static struct comm_comm *member_new(struct comm_client *client, const char *name, uint32_t rank,
                                    uint32_t size, int device, struct client_gpu *gpu)
{
    struct comm_comm *comm = calloc(1, sizeof *comm);
    char *name_copy = strdup(name);
    if (comm == NULL || name_copy == NULL || !ops_init(comm)) {
        free(comm);
        free(name_copy);
        return NULL;
    }
    comm->client = client;
    comm->gpu = gpu;
    comm->device = device;
    comm->handle = ++client->last_handle;
    comm->rank = rank;
    comm->size = size;
    comm->name = name_copy;
    comm->next = client->comms; /* added before joining: an abort may follow right after the reply */
    client->comms = comm;
    return comm;
}

static void member_free(struct comm_comm *comm)
{
    if (comm->graph != NULL) {
        graph_part_left(comm->graph);
    }
    for (struct comm_comm **link = &comm->client->comms; *link != NULL; link = &(*link)->next) {
        if (*link == comm) {
            *link = comm->next;
            break;
        }
    }
    for (uint32_t i = 0; comm->node_names != NULL && i < comm->node_count; i++) {
        free(comm->node_names[i]);
    }
    records_forget(comm);
    cells_close(comm);
    free(comm->node_names);
    free(comm->node_of_rank);
    free(comm->verdict);
    free(comm->algorithms);
    free(comm->name);
    free(comm->buckets);
    free(comm->spare);
    struct client_join *join = comm->join;
    free(comm);
    join_release(join); /* last: it may release the lock */
}

struct comm_comm *member_by_handle(const struct comm_client *client, uint32_t handle)
{
    struct comm_comm *comm = client->comms;
    while (comm != NULL && comm->handle != handle) {
        comm = comm->next;
    }
    return comm;
}

void member_fail(struct comm_comm *comm, comm_result_t failure, const char *format, ...)
{
    if (comm->failure != COMM_OK) {
        return;
    }
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(comm->failure_text, sizeof comm->failure_text, format, arguments);
    va_end(arguments);
    comm->failure = failure;
    comm->failure_data = failure_data(failure, "");
    for (const struct comm_comm *part = comm->client->comms; part != NULL; part = part->next) {
        if (part->parent == comm && part->graph != NULL) {
            graph_part_lost(part->graph);
        }
    }
    DEBUG("communicator \"%s\", rank %u: failed: %s", comm->name, comm->rank, comm->failure_text);
}

/* --- Joining --- */

static bool name_is_good(const char *name)
{
    size_t length = 0;
    while (name[length] > ' ' && name[length] <= '~' && length <= COMM_NAME_MAX_BYTES) {
        length++;
    }
    return name[length] == '\0' && length > 0 && length <= COMM_NAME_MAX_BYTES;
}

static comm_result_t check_arguments(const char *name, uint32_t rank, uint32_t size, int device)
{
    if (name == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_init: the name is a null pointer");
    }
    if (!name_is_good(name)) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_init: \"%.160s\": a name has 1 to %d printable ASCII characters without space", name,
            COMM_NAME_MAX_BYTES);
    }
    if (size == 0 || size > COMM_SIZE_MAX || rank >= size) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_init: \"%s\": rank %u of %u: expected a size of 1 to %d, and a rank below it", name, rank,
            size, COMM_SIZE_MAX);
    }
    if (device < COMM_DEVICE_HOST) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_init: \"%s\": device %d: expected a GPU's number, or COMM_DEVICE_HOST (%d)",
                            name, device, COMM_DEVICE_HOST);
    }
    return COMM_OK;
}

static comm_result_t take_formed(struct comm_comm *comm, const Commd__Client__CommInitReply *reply)
{
    if (reply->node_count == 0 || reply->node_count > comm->size || reply->local_size > comm->size ||
        reply->local_rank >= reply->local_size) {
        client_lose(comm->client, COMM_PROTOCOL,
                    "%s: commd's answer makes no sense: \"%s\", of %u ranks, has %u nodes, and this is rank "
                    "%u of %u here",
                    comm->client->path, comm->name, comm->size, reply->node_count, reply->local_rank,
                    reply->local_size);
        return member_check(comm);
    }
    comm->comm_id = reply->comm_id;
    comm->local_rank = reply->local_rank;
    comm->local_size = reply->local_size;
    comm->node_count = reply->node_count;
    if (comm->node_count > 1 && comm->client->rings != NULL) {
        atomic_store_explicit(&comm->client->rings->between_nodes, true, memory_order_relaxed);
    }
    bool alone = comm->local_size == comm->size && comm->local_rank == comm->rank;
    comm->offers_cells = reply->has_cells && (comm->node_count > 1 ? comm->local_size <= NODE_CELLS_RANKS_MAX
                                                                   : alone && comm->size <= CELLS_RANKS_MAX);
    return COMM_OK;
}

void member_tell_destroyed(struct comm_client *client, uint32_t handle)
{
    Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
    body.handle = handle;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    request.comm_destroy = &body;
    client_tell(client, &request);
}

/* Asks for the communicator. `whole`: null, or a communicator that it is a part of. */
static void member_form_begin(struct comm_comm *comm, const comm_init_options_t *options,
                              const struct comm_comm *whole, struct member_forming *forming)
{
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = comm->handle;
    body.name = comm->name;
    body.rank = comm->rank;
    body.size = comm->size;
    body.device = comm->device;
    if (comm->gpu != NULL) {
        body.device_uuid.data = comm->gpu->uuid.bytes;
        body.device_uuid.len = CUDA_UUID_BYTES;
    }
    body.form_timeout_ms = options->timeout_ms;
    body.op_timeout_ms = options->op_timeout_ms;
    body.takes_cells = comm->client->cells.offered && comm->gpu == NULL && comm->parent == NULL;
    body.takes_node_cells = body.takes_cells && comm->client->rings != NULL;
    body.slice_bytes = options->slice_bytes;
    body.minority_continues = options->minority_continues != 0;
    body.algorithms = (char *)(options->algorithms != NULL ? options->algorithms : "");
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    snprintf(forming->what, sizeof forming->what, "joining \"%s\" as rank %u of %u", comm->name, comm->rank,
             comm->size);
    forming->question = (struct client_question){
        .what = forming->what,
        .expected = COMMD__CLIENT__REPLY__BODY_COMM_INIT,
        .fd = -1,
        .deadline_ns = clock_after_ms((uint64_t)options->timeout_ms + DAEMON_MARGIN_MS),
        .needs = whole};
    client_ask_begin(comm->client, &request, &forming->question, &forming->request);
}

/* Waits until it has formed, or what it is a part of has failed. */
static comm_result_t member_form_end(struct comm_comm *comm, struct member_forming *forming)
{
    Commd__Client__Event *event;
    bool unanswered;
    comm_result_t result =
        client_ask_end(comm->client, &forming->question, &forming->request, &event, &unanswered);
    if (result == COMM_OK) {
        result = take_formed(comm, event->reply->comm_init);
        commd__client__event__free_unpacked(event, NULL);
    } else if (unanswered) {
        member_tell_destroyed(comm->client, comm->handle); /* in case it forms after all */
    }
    return result;
}

static comm_result_t table_failure(struct comm_comm *comm, const char *what, uint32_t value)
{
    client_lose(comm->client, COMM_PROTOCOL, "%s: commd's table of the ranks of \"%s\" makes no sense: %s %u",
                comm->client->path, comm->name, what, value);
    return member_check(comm);
}

static comm_result_t take_table_page(struct comm_comm *comm, const Commd__Client__CommTableReply *page,
                                     uint32_t *ranks, uint32_t *nodes)
{
    if (page->n_node_of_rank + page->n_node_names == 0) {
        return table_failure(comm, "no entries from rank", *ranks);
    }
    if (page->n_node_of_rank > comm->size - *ranks) {
        return table_failure(comm, "more ranks than", comm->size);
    }
    if (page->n_node_names > comm->node_count - *nodes) {
        return table_failure(comm, "more nodes than", comm->node_count);
    }
    for (size_t i = 0; i < page->n_node_of_rank; i++) {
        if (page->node_of_rank[i] >= comm->node_count) {
            return table_failure(comm, "node", page->node_of_rank[i]);
        }
        comm->node_of_rank[(*ranks)++] = page->node_of_rank[i];
    }
    for (size_t i = 0; i < page->n_node_names; i++) {
        comm->node_names[*nodes] = strdup(page->node_names[i]);
        if (comm->node_names[*nodes] == NULL) {
            return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", comm->name);
        }
        (*nodes)++;
    }
    return COMM_OK;
}

static comm_result_t fetch_table_page(struct comm_comm *comm, uint32_t *ranks, uint32_t *nodes)
{
    Commd__Client__CommTable body = COMMD__CLIENT__COMM_TABLE__INIT;
    body.handle = comm->handle;
    body.first_rank = *ranks;
    body.first_node = *nodes;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_TABLE;
    request.comm_table = &body;
    struct client_question question = {.what = "asking for a communicator's ranks",
                                       .expected = COMMD__CLIENT__REPLY__BODY_COMM_TABLE,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(REQUEST_TIMEOUT_MS)};
    Commd__Client__Event *event;
    comm_result_t result = client_ask(comm->client, &request, &question, &event, NULL);
    if (result == COMM_OK) {
        result = take_table_page(comm, event->reply->comm_table, ranks, nodes);
        commd__client__event__free_unpacked(event, NULL);
    }
    return result;
}

static comm_result_t fetch_table(struct comm_comm *comm)
{
    uint32_t ranks = 0, nodes = 0;
    comm_result_t result = COMM_OK;
    comm->node_of_rank = calloc(comm->size, sizeof *comm->node_of_rank);
    comm->node_names = calloc(comm->node_count, sizeof *comm->node_names);
    if (comm->node_of_rank == NULL || comm->node_names == NULL) {
        result = error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", comm->name);
    }
    while (result == COMM_OK && (ranks < comm->size || nodes < comm->node_count)) {
        result = fetch_table_page(comm, &ranks, &nodes);
    }
    if (result != COMM_OK) {
        member_tell_destroyed(comm->client, comm->handle);
    }
    return result;
}

/* For those that are split off. */
static comm_result_t member_keep_options(struct comm_comm *comm, const comm_init_options_t *options)
{
    const char *environment = getenv(CLIENT_ALGORITHMS_ENVIRONMENT);
    comm_result_t result = policy_check(options, "comm_init", comm->name);
    if (result != COMM_OK) {
        return result;
    }
    const char *algorithms = options->algorithms != NULL ? options->algorithms : environment;
    comm->algorithms = strdup(algorithms != NULL ? algorithms : "");
    if (comm->algorithms == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", comm->name);
    }
    if (strlen(comm->algorithms) > ALGORITHMS_MAX_BYTES) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_init: \"%s\": algorithms of more than %d bytes",
                            comm->name, ALGORITHMS_MAX_BYTES);
    }
    comm->options = *options;
    comm->options.algorithms = comm->algorithms;
    return COMM_OK;
}

/* The end of joining, with the result so far. Frees it if that failed. */
static comm_result_t member_joined(struct comm_comm *comm, comm_result_t result)
{
    if (result == COMM_OK) {
        result = fetch_table(comm);
    }
    if (result == COMM_OK && comm->offers_cells) {
        cells_open(comm);
    } else if (result == COMM_OK) {
        cells_close(comm); /* commd says that there are none */
    }
    if (result != COMM_OK) {
        member_free(comm);
    } else {
        DEBUG("communicator \"%s\": rank %u of %u, local rank %u of %u, %u nodes", comm->name, comm->rank,
              comm->size, comm->local_rank, comm->local_size, comm->node_count);
    }
    return result;
}

/* Frees it where it cannot. whole: null, or the communicator that it is a part of. */
static comm_result_t member_join(struct comm_comm *comm, const comm_init_options_t *options,
                                 const struct comm_comm *whole)
{
    struct member_forming forming;
    comm->op_timeout_ms = options->op_timeout_ms;
    comm_result_t result = member_keep_options(comm, options);
    if (result == COMM_OK) {
        member_form_begin(comm, &comm->options, whole, &forming);
        result = member_form_end(comm, &forming);
    }
    return member_joined(comm, result);
}

static comm_result_t member_init(struct comm_client *client, const char *name, uint32_t rank, uint32_t size,
                                 int device, const comm_init_options_t *options,
                                 const struct comm_comm *whole, struct comm_comm **out)
{
    comm_init_options_t given = COMM_INIT_OPTIONS_INIT;
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_init: the argument for the communicator is a null pointer");
    }
    *out = NULL;
    comm_result_t result = options_copy(&given, sizeof given, options, "comm_init", "COMM_INIT_OPTIONS_INIT");
    if (result == COMM_OK) {
        result = check_arguments(name, rank, size, device);
    }
    if (result == COMM_OK) {
        result = client_enter(client);
    }
    if (result != COMM_OK) {
        return result;
    }
    given.timeout_ms = given.timeout_ms != 0 ? given.timeout_ms : FORM_TIMEOUT_DEFAULT_MS;
    given.op_timeout_ms = given.op_timeout_ms != 0 ? given.op_timeout_ms : OP_TIMEOUT_DEFAULT_MS;
    struct client_gpu *gpu = NULL;
    if (device != COMM_DEVICE_HOST) {
        result = gpu_open(client, device, &gpu);
    }
    if (result == COMM_OK) {
        struct comm_comm *comm = member_new(client, name, rank, size, device, gpu);
        result = comm != NULL ? member_join(comm, &given, whole)
                              : error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", name);
        *out = result == COMM_OK ? comm : NULL;
    } else {
        result = error_within(result, "comm_init: \"%s\"", name);
    }
    client_leave(client);
    return result;
}

comm_result_t comm_init(comm_client_t *client, const char *name, uint32_t rank, uint32_t size, int device,
                        const comm_init_options_t *options, comm_t **out)
{
    return member_init(client, name, rank, size, device, options, NULL, out);
}

comm_result_t member_split_off(struct comm_comm *comm, const char *name, uint32_t rank, uint32_t size,
                               const comm_init_options_t *options, struct comm_comm **out)
{
    return member_init(comm->client, name, rank, size, comm->device, options, comm, out);
}

comm_result_t member_join_part_begin(struct comm_comm *comm, const char *name, struct client_graph *graph,
                                     struct member_forming *forming, struct comm_comm **out)
{
    struct comm_comm *part = member_new(comm->client, name, comm->rank, comm->size, comm->device, comm->gpu);
    *out = NULL;
    if (part == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", name);
    }
    part->parent = comm;
    part->op_timeout_ms = comm->options.op_timeout_ms;
    comm_result_t result = member_keep_options(part, &comm->options);
    if (result != COMM_OK) {
        member_free(part);
        return result;
    }
    part->graph = graph;
    *out = part;
    member_form_begin(part, &part->options, comm, forming);
    return COMM_OK;
}

comm_result_t member_join_part_end(struct comm_comm *part, struct member_forming *forming)
{
    return member_joined(part, member_form_end(part, forming));
}

/* --- Shrinking --- */

/* Asks for the next generation, and waits until it has formed. Rank and size come with the answer. */
static comm_result_t member_form_next(struct comm_comm *next, const struct comm_comm *failed,
                                      uint64_t timeout_ms)
{
    Commd__Client__CommShrink body = COMMD__CLIENT__COMM_SHRINK__INIT;
    body.handle = failed->handle;
    body.next_handle = next->handle;
    body.form_timeout_ms = timeout_ms;
    body.takes_cells = next->client->cells.offered && next->gpu == NULL;
    body.takes_node_cells = body.takes_cells && next->client->rings != NULL;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_SHRINK;
    request.comm_shrink = &body;
    struct client_question question = {.what = "shrinking a communicator",
                                       .expected = COMMD__CLIENT__REPLY__BODY_COMM_INIT,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(timeout_ms + DAEMON_MARGIN_MS)};
    Commd__Client__Event *event;
    bool unanswered;
    comm_result_t result = client_ask(next->client, &request, &question, &event, &unanswered);
    if (result == COMM_OK) {
        const Commd__Client__CommInitReply *reply = event->reply->comm_init;
        bool fits = reply->size > 0 && reply->size <= next->size && reply->rank < reply->size;
        next->rank = fits ? reply->rank : next->rank;
        next->size = fits ? reply->size : 0; /* take_formed refuses 0 */
        result = take_formed(next, reply);
        commd__client__event__free_unpacked(event, NULL);
    } else if (unanswered) {
        member_tell_destroyed(next->client, next->handle); /* in case it forms after all */
    }
    return result;
}

comm_result_t member_next(struct comm_comm *failed, uint64_t timeout_ms, struct comm_comm **out)
{
    struct comm_comm *next =
        member_new(failed->client, failed->name, failed->rank, failed->size, failed->device, failed->gpu);
    if (next == NULL) {
        return error_report(COMM_NO_MEMORY, "no memory for communicator \"%s\"", failed->name);
    }
    next->op_timeout_ms = failed->op_timeout_ms;
    comm_result_t result = member_keep_options(next, &failed->options);
    if (result == COMM_OK) {
        result = member_form_next(next, failed, timeout_ms);
    }
    result = member_joined(next, result);
    *out = result == COMM_OK ? next : NULL;
    if (result == COMM_OK) {
        next->join = join_hold(failed->join);
    }
    return result;
}

/* --- Leaving --- */

void member_leave_part(struct comm_comm *part)
{
    struct comm_client *client = part->client;
    uint32_t handle = part->handle;
    ops_forget(part);
    member_free(part); /* first: what follows may release the lock */
    if (client->lost == COMM_OK) {
        member_tell_destroyed(client, handle);
    }
}

/* Returns a part of the communicator, or null. */
static struct comm_comm *part_of(const struct comm_comm *comm)
{
    struct comm_comm *part = comm->client->comms;
    while (part != NULL && part->parent != comm) {
        part = part->next;
    }
    return part;
}

void member_drop(struct comm_comm *comm, uint64_t deadline_ns)
{
    struct comm_client *client = comm->client;
    struct comm_comm *part;
    if (comm->graph != NULL) { /* so that no other thread leaves it as well */
        graph_part_left(comm->graph);
        comm->graph = NULL;
    }
    group_forget(comm);
    if (comm->successor != NULL) {
        struct comm_comm *successor = comm->successor;
        comm->successor = NULL;
        member_drop(successor, deadline_ns);
    }
    while ((part = part_of(comm)) != NULL) {
        member_drop(part, deadline_ns);
    }
    if (comm->failure == COMM_OK) {
        (void)ops_finish(comm, comm->last_ticket, deadline_ns);
    }
    held_leave(comm);
    cells_messages_end(comm);
    if (client->lost == COMM_OK) {
        Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
        body.handle = comm->handle;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
        request.comm_destroy = &body;
        struct client_question question = {.what = "leaving a communicator",
                                           .expected = COMMD__CLIENT__REPLY__BODY_DONE,
                                           .fd = -1,
                                           .deadline_ns = deadline_ns};
        Commd__Client__Event *event;
        if (client_ask(client, &request, &question, &event, NULL) == COMM_OK) {
            commd__client__event__free_unpacked(event, NULL);
        }
    }
    ops_forget(comm);
    member_free(comm);
}

void comm_destroy(comm_t *comm)
{
    if (comm == NULL || client_enter(comm->client) != COMM_OK) {
        return;
    }
    struct comm_client *client = comm->client;
    DEBUG("communicator \"%s\": rank %u leaves", comm->name, comm->rank);
    member_drop(comm, clock_after_ms(FINISH_TIMEOUT_MS));
    client_leave(client);
}

/* --- Properties. They never change after the communicator has formed, so no lock is needed. --- */

uint32_t comm_rank(const comm_t *comm)
{
    return comm != NULL ? comm->rank : 0;
}

uint32_t comm_size(const comm_t *comm)
{
    return comm != NULL ? comm->size : 0;
}

uint32_t comm_local_rank(const comm_t *comm)
{
    return comm != NULL ? comm->local_rank : 0;
}

uint32_t comm_local_size(const comm_t *comm)
{
    return comm != NULL ? comm->local_size : 0;
}

const char *comm_node_of(const comm_t *comm, uint32_t rank)
{
    return comm != NULL && rank < comm->size ? comm->node_names[comm->node_of_rank[rank]] : NULL;
}
