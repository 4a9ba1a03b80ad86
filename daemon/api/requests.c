#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

struct api_comm *api_session_comm(struct api_session *session, uint32_t handle)
{
    struct api_comm *comm;
    HASH_FIND(hh, session->comms, &handle, sizeof handle, comm);
    return comm;
}

static void comm_forget(struct api_comm *comm)
{
    api_graph_free(comm);
    HASH_DEL(comm->session->comms, comm);
    free(comm);
}

/* The message points into the detail. */
static void failure_to_wire(const struct comms_detail *detail, Commd__Client__Failure *out)
{
    *out = (Commd__Client__Failure)COMMD__CLIENT__FAILURE__INIT;
    out->kind = detail->kind;
    out->seq = detail->seq;
    out->rank_count = detail->rank_count;
    out->n_ranks = out->n_pids = comms_detail_listed(detail);
    out->ranks = (uint32_t *)(uintptr_t)detail->ranks;
    out->pids = (int32_t *)(uintptr_t)detail->pids;
    out->node = (char *)(uintptr_t)detail->node;
}

/* Returns whether the rank gets the communicator's cells. */
static bool comm_send_cells(struct api_comm *comm, struct comms_member *member)
{
    struct error error;
    int fd;
    if (!comms_member_has_cells(member)) {
        return false;
    }
    if (comms_member_open_cells(member, &fd, &error) != STATUS_OK) {
        comms_member_retire_cells(member, false); /* the other ranks would wait for this one */
        return false;
    }
    Commd__Client__Cells cells = COMMD__CLIENT__CELLS__INIT;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    cells.handle = comm->handle;
    cells.local_ranks = comms_member_cell_ranks(member);
    event.body_case = COMMD__CLIENT__EVENT__BODY_CELLS;
    event.cells = &cells;
    if (!api_session_send_fd(comm->session, &event, fd)) {
        comms_member_retire_cells(member, false);
        return false;
    }
    return true;
}

static void comm_formed(void *context, struct comms_member *member, const struct error *result,
                        uint64_t now_ns)
{
    struct api_comm *comm = context;
    if (result->status != STATUS_OK) {
        Commd__Client__Failure failure;
        const struct comms_detail *detail = comms_member_detail(member);
        if (detail != NULL) {
            failure_to_wire(detail, &failure);
        }
        api_session_reply_detailed(comm->session, comm->init_request_id, result,
                                   detail != NULL ? &failure : NULL);
        comms_member_leave(member, COMMS_LEAVE_ORDERLY, now_ns);
        comm_forget(comm);
        return;
    }
    comm->formed = true;
    struct communicator_view view;
    comms_member_view(member, &view);
    Commd__Client__CommInitReply answer = COMMD__CLIENT__COMM_INIT_REPLY__INIT;
    answer.comm_id = view.comm_id;
    answer.generation = view.generation;
    answer.local_rank = view.local_rank;
    answer.local_size = view.local_size;
    answer.node_count = view.node_count;
    answer.rank = view.rank;
    answer.size = view.size;
    answer.has_cells = comm_send_cells(comm, member);
    Commd__Client__Reply reply = API_REPLY(comm->init_request_id, COMM_INIT, comm_init, &answer);
    api_session_reply(comm->session, &reply);
}

/* Tells more of a failure, before its completion. */
static void comm_send_failed(struct api_session *session, uint32_t handle,
                             const struct comms_completion *completion)
{
    Commd__Client__Failure failure;
    Commd__Client__Failed failed = COMMD__CLIENT__FAILED__INIT;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    failure_to_wire(completion->detail, &failure);
    failed.handle = handle;
    failed.ticket = completion->ticket;
    failed.failure = &failure;
    event.body_case = COMMD__CLIENT__EVENT__BODY_FAILED;
    event.failed = &failed;
    api_session_send(session, &event);
}

void api_comm_send_complete(struct api_session *session, uint32_t handle,
                            const struct comms_completion *completion)
{
    struct completion_record record;
    completion_record_begin(&record, handle, completion->ticket);
    record.source_rank = completion->source_rank;
    record.count_elements = completion->count_elements;
    if (completion->result->status != STATUS_OK) {
        completion_record_fail(&record, completion->result->status, completion->result->text);
        if (completion->detail != NULL && session->wants_failures) {
            comm_send_failed(session, handle, completion);
        }
    }
    api_session_send_record(session, &record, completion_record_bytes(&record));
}

static void comm_completed(void *context, struct comms_member *member,
                           const struct comms_completion *completion, uint64_t now_ns)
{
    (void)member;
    struct api_comm *comm = context;
    struct api_session *session = comm->session;
    if (completion->in_cells) {
        session->ops_submitted++;
        session->ops_completed++;
        session->api->ops_completed++;
        return;
    }
    if (api_graph_ended(comm, completion, now_ns)) {
        return;
    }
    session->ops_completed++;
    if (completion->result->status == STATUS_OK) {
        session->api->ops_completed++;
    } else {
        session->api->ops_failed++;
    }
    api_comm_send_complete(session, comm->handle, completion);
}

/* A graph's replays must not wait for the client: their messages are not answered, unless they fail. */
static bool comm_takes_messages(void *context)
{
    struct api_comm *comm = context;
    if (comm->graph != NULL || api_session_takes_messages(comm->session)) {
        return true;
    }
    comm->messages_wait = true;
    comm->session->messages_wait = true;
    return false;
}

void api_session_tell_messages(struct api_session *session)
{
    struct api_comm *comm, *next;
    session->messages_wait = false;
    HASH_ITER (hh, session->comms, comm, next) {
        if (comm->messages_wait) {
            comm->messages_wait = false;
            comms_member_tell_messages(comm->member);
        }
    }
}

static void comm_aborted(void *context, struct comms_member *member, const struct error *cause,
                         uint64_t now_ns)
{
    (void)now_ns;
    struct api_comm *comm = context;
    api_graph_failed(comm);
    const struct comms_detail *detail = comms_member_detail(member);
    Commd__Client__Failure failure;
    Commd__Client__Aborted aborted = COMMD__CLIENT__ABORTED__INIT;
    if (detail != NULL) {
        failure_to_wire(detail, &failure);
        aborted.failure = &failure;
    }
    Commd__Client__Verdict verdict = COMMD__CLIENT__VERDICT__INIT;
    struct comms_verdict_view view;
    if (comms_member_verdict(member, &view)) {
        verdict.lost.data = (uint8_t *)(uintptr_t)view.lost;
        verdict.lost.len = view.size / 8 + 1;
        verdict.last_seq = view.last_seq;
        verdict.generation = view.generation;
        verdict.minority = view.minority;
        aborted.verdict = &verdict;
    }
    aborted.handle = comm->handle;
    aborted.status = cause->status;
    aborted.text = (char *)cause->text;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_ABORTED;
    event.aborted = &aborted;
    api_session_send(comm->session, &event);
}

/* Adds a rank to the session; it is not in a communicator yet. */
static enum status comm_add(struct api_session *session, uint64_t request_id, uint32_t handle,
                            const char *name, struct api_comm **out, struct error *error)
{
    if (api_session_comm(session, handle) != NULL) {
        return error_set(error, STATUS_PROTOCOL, "handle %u is in use", handle);
    }
    if (HASH_COUNT(session->comms) >= API_SESSION_COMMS_MAX) {
        return error_set(error, STATUS_LIMIT, "a process can hold %d ranks at most", API_SESSION_COMMS_MAX);
    }
    struct api_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", name);
    }
    comm->handle = handle;
    comm->session = session;
    comm->init_request_id = request_id;
    snprintf(comm->name, sizeof comm->name, "%s", name);
    HASH_ADD(hh, session->comms, handle, sizeof comm->handle, comm);
    if (!table_has(comm, hh)) {
        free(comm);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", name);
    }
    api_death_foresee(session);
    *out = comm;
    return STATUS_OK;
}

static struct comms_member_handler comm_handler(struct api_comm *comm)
{
    return (struct comms_member_handler){.context = comm,
                                         .formed = comm_formed,
                                         .completed = comm_completed,
                                         .takes_messages = comm_takes_messages,
                                         .aborted = comm_aborted};
}

static enum status comm_join(struct api_session *session, uint64_t request_id,
                             const Commd__Client__CommInit *request, uint64_t now_ns, struct error *error)
{
    int gpu;
    struct api_comm *comm = NULL;
    enum status status = api_session_gpu(session, &request->device_uuid, request->device, &gpu, error);
    if (status == STATUS_OK && session->api->gathers != NULL) {
        status = gathers_check(session->api->gathers, session->client.uid, request->name, error);
    }
    if (status == STATUS_OK) {
        status = comm_add(session, request_id, request->handle, request->name, &comm, error);
    }
    if (status != STATUS_OK) {
        return status;
    }
    comm->gpu = gpu;
    comm->op_timeout_ms = request->op_timeout_ms;
    struct comms_terms terms = {.name = request->name,
                                .rank = request->rank,
                                .size = request->size,
                                .form_timeout_ms = request->form_timeout_ms,
                                .op_timeout_ms = request->op_timeout_ms,
                                .slice_bytes = request->slice_bytes,
                                .algorithms = request->algorithms,
                                .minority_continues = request->minority_continues,
                                .takes_cells = request->takes_cells,
                                .takes_node_cells = request->takes_node_cells && session->rings != NULL};
    struct comms_member_handler handler = comm_handler(comm);
    status = comms_member_join(session->api->comms, &session->client, &terms, &handler, now_ns, &comm->member,
                               error);
    if (status != STATUS_OK) {
        comm_forget(comm);
    }
    return status;
}

static enum status comm_shrink(struct api_session *session, uint64_t request_id,
                               const Commd__Client__CommShrink *request, uint64_t now_ns, struct error *error)
{
    struct api_comm *comm = NULL;
    const struct api_comm *failed = api_session_comm(session, request->handle);
    if (failed == NULL || !failed->formed) {
        return error_set(error, STATUS_NOT_FOUND, "no formed communicator has handle %u", request->handle);
    }
    enum status status = comm_add(session, request_id, request->next_handle, failed->name, &comm, error);
    if (status != STATUS_OK) {
        return status;
    }
    comm->gpu = failed->gpu;
    comm->op_timeout_ms = failed->op_timeout_ms;
    struct comms_shrink options = {.form_timeout_ms = request->form_timeout_ms,
                                   .takes_cells = request->takes_cells,
                                   .takes_node_cells = request->takes_node_cells && session->rings != NULL};
    struct comms_member_handler handler = comm_handler(comm);
    status = comms_member_shrink(failed->member, &options, &handler, now_ns, &comm->member, error);
    if (status != STATUS_OK) {
        comm_forget(comm);
    }
    return status;
}

void api_comm_shrink(struct api_session *session, uint64_t request_id,
                     const Commd__Client__CommShrink *request, uint64_t now_ns)
{
    struct error error;
    if (comm_shrink(session, request_id, request, now_ns, &error) != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    }
}

void api_comm_init(struct api_session *session, uint64_t request_id, const Commd__Client__CommInit *request,
                   uint64_t now_ns)
{
    struct error error;
    if (comm_join(session, request_id, request, now_ns, &error) != STATUS_OK) {
        api_session_log(session, LOG_LEVEL_INFO, "communicator \"%s\", rank %u of %u refused: %s",
                        request->name, request->rank, request->size, error.text);
        api_session_happened(session, HISTORY_REFUSED, "communicator \"%s\", rank %u of %u: %s",
                             request->name, request->rank, request->size, error.text);
        api_session_reply_error(session, request_id, &error);
    }
}

void api_comm_table(struct api_session *session, uint64_t request_id, const Commd__Client__CommTable *request)
{
    struct api_comm *comm = api_session_comm(session, request->handle);
    if (comm == NULL || !comm->formed) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND,
                                  "no formed communicator has handle %u", request->handle);
        return;
    }
    struct communicator_view view;
    comms_member_view(comm->member, &view);
    Commd__Client__CommTableReply answer = COMMD__CLIENT__COMM_TABLE_REPLY__INIT;
    if (request->first_rank < view.size) {
        answer.node_of_rank = (uint32_t *)&view.node_of_rank[request->first_rank];
        uint32_t left = view.size - request->first_rank;
        answer.n_node_of_rank = left < CLIENT_TABLE_RANKS_MAX ? left : CLIENT_TABLE_RANKS_MAX;
    }
    if (request->first_node < view.node_count) {
        answer.node_names = (char **)&view.node_names[request->first_node];
        uint32_t left = view.node_count - request->first_node;
        answer.n_node_names = left < CLIENT_TABLE_NODES_MAX ? left : CLIENT_TABLE_NODES_MAX;
    }
    answer.last_seq = view.last_seq;
    Commd__Client__Reply reply = API_REPLY(request_id, COMM_TABLE, comm_table, &answer);
    api_session_reply(session, &reply);
}

void api_comm_destroy(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CommDestroy *request, uint64_t now_ns)
{
    struct api_comm *comm = api_session_comm(session, request->handle);
    if (comm == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND, "no communicator has handle %u",
                                  request->handle);
        return;
    }
    if (!comm->formed) {
        api_session_reply_failure(session, comm->init_request_id, STATUS_ABORTED,
                                  "this rank left the communicator before it had formed");
    }
    uint64_t submitted, completed;
    comms_member_in_cells(comm->member, now_ns, &submitted, &completed);
    session->ops_submitted += submitted;
    session->ops_completed += completed;
    comms_member_leave(comm->member, COMMS_LEAVE_ORDERLY, now_ns);
    comm_forget(comm);
    api_session_reply_done(session, request_id);
}

void api_cells_retire(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CellsRetire *request)
{
    const struct api_comm *comm = api_session_comm(session, request->handle);
    if (comm == NULL || !comm->formed) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND,
                                  "no formed communicator has handle %u", request->handle);
        return;
    }
    comms_member_retire_cells(comm->member, request->late);
    api_session_reply_done(session, request_id);
}

/* The reason is any text of a client: it is checked before others get it. */
static enum status check_reason(const char *reason, struct error *error)
{
    size_t length = strnlen(reason, CLIENT_ABORT_REASON_MAX_BYTES + 1);
    if (length > CLIENT_ABORT_REASON_MAX_BYTES) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "a reason of more than %d bytes",
                         CLIENT_ABORT_REASON_MAX_BYTES);
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)reason[i];
        if (byte < ' ' || byte == 0x7f) {
            return error_set(error, STATUS_INVALID_ARGUMENT, "byte %zu of the reason is not printable", i);
        }
    }
    return STATUS_OK;
}

void api_abort(struct api_session *session, uint64_t request_id, const Commd__Client__Abort *request,
               uint64_t now_ns)
{
    struct error error;
    const struct api_comm *comm = api_session_comm(session, request->handle);
    if (comm == NULL || !comm->formed) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND,
                                  "no formed communicator has handle %u", request->handle);
        return;
    }
    if (check_reason(request->reason, &error) != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
        return;
    }
    struct communicator_view view;
    struct error cause;
    comms_member_view(comm->member, &view);
    error_set(&cause, STATUS_ABORTED, "communicator \"%s\": aborted by rank %u (pid %d) on node %s%s%s",
              comm->name, view.rank, (int)session->client.pid, mesh_own_name(session->api->mesh),
              request->reason[0] != '\0' ? ": " : "", request->reason);
    comms_member_abort(comm->member, &cause, now_ns);
    api_session_reply_done(session, request_id);
}

void api_session_forget(struct api_session *session)
{
    mesh_ping_forget(session->api->mesh, session);
    api_reload_forget(session);
    api_metrics_forget(session);
    api_trace_forget(session);
}

bool api_session_release_one(struct api_session *session, uint64_t now_ns)
{
    struct api_comm *comm = session->comms;
    api_lates_forget(session);
    if (comm != NULL) {
        if (session->expelled != NULL) {
            comms_member_expel(comm->member, session->expelled, now_ns);
        } else {
            comms_member_leave(comm->member, COMMS_LEAVE_LOST, now_ns);
        }
        comm_forget(comm);
        return true;
    }
    if (session->joins != NULL) {
        api_join_forget(session->joins);
        return true;
    }
    if (session->stores != NULL) {
        api_store_forget(session->stores, now_ns);
        return true;
    }
    if (session->memories != NULL) {
        api_memory_forget(session, session->memories);
        return true;
    }
    return false;
}
