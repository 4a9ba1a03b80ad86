#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

static struct api_comm *session_comm(struct api_session *session, uint32_t handle)
{
    struct api_comm *comm;
    HASH_FIND(hh, session->comms, &handle, sizeof handle, comm);
    return comm;
}

static void comm_forget(struct api_comm *comm)
{
    HASH_DEL(comm->session->comms, comm);
    free(comm);
}

static void comm_formed(void *context, struct comms_member *member, const struct error *result,
                        uint64_t now_ns)
{
    struct api_comm *comm = context;
    if (result->status != STATUS_OK) {
        api_session_reply_error(comm->session, comm->init_request_id, result);
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
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = comm->init_request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_INIT;
    reply.comm_init = &answer;
    api_session_reply(comm->session, &reply);
}

static void comm_send_complete(struct api_session *session, uint32_t handle,
                               const struct comms_completion *completion)
{
    Commd__Client__Complete complete = COMMD__CLIENT__COMPLETE__INIT;
    complete.handle = handle;
    complete.ticket = completion->ticket;
    complete.status = completion->result->status;
    complete.source_rank = completion->source_rank;
    complete.count_elements = completion->count_elements;
    if (completion->result->status != STATUS_OK) {
        complete.text = (char *)completion->result->text;
    }
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_COMPLETE;
    event.complete = &complete;
    api_session_send(session, &event);
}

static void comm_completed(void *context, struct comms_member *member,
                           const struct comms_completion *completion, uint64_t now_ns)
{
    (void)member;
    (void)now_ns;
    struct api_comm *comm = context;
    struct api_session *session = comm->session;
    session->ops_completed++;
    if (completion->result->status == STATUS_OK) {
        session->api->ops_completed++;
    } else {
        session->api->ops_failed++;
    }
    comm_send_complete(session, comm->handle, completion);
}

static void comm_aborted(void *context, struct comms_member *member, const struct error *cause,
                         uint64_t now_ns)
{
    (void)member;
    (void)now_ns;
    struct api_comm *comm = context;
    Commd__Client__Aborted aborted = COMMD__CLIENT__ABORTED__INIT;
    aborted.handle = comm->handle;
    aborted.status = cause->status;
    aborted.text = (char *)cause->text;
    Commd__Client__Event event = COMMD__CLIENT__EVENT__INIT;
    event.body_case = COMMD__CLIENT__EVENT__BODY_ABORTED;
    event.aborted = &aborted;
    api_session_send(comm->session, &event);
}

static enum status comm_join(struct api_session *session, uint64_t request_id,
                             const Commd__Client__CommInit *request, uint64_t now_ns, struct error *error)
{
    int gpu;
    enum status status = api_session_gpu(session, &request->device_uuid, request->device, &gpu, error);
    if (status != STATUS_OK) {
        return status;
    }
    if (session_comm(session, request->handle) != NULL) {
        return error_set(error, STATUS_PROTOCOL, "handle %u is in use", request->handle);
    }
    if (HASH_COUNT(session->comms) >= API_SESSION_COMMS_MAX) {
        return error_set(error, STATUS_LIMIT, "a process can hold %d ranks at most", API_SESSION_COMMS_MAX);
    }
    struct api_comm *comm = calloc(1, sizeof *comm);
    if (comm == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", request->name);
    }
    comm->handle = request->handle;
    comm->session = session;
    comm->init_request_id = request_id;
    comm->gpu = gpu;
    snprintf(comm->name, sizeof comm->name, "%s", request->name);
    struct comms_terms terms = {.name = request->name,
                                .rank = request->rank,
                                .size = request->size,
                                .form_timeout_ms = request->form_timeout_ms,
                                .op_timeout_ms = request->op_timeout_ms,
                                .slice_bytes = request->slice_bytes,
                                .algorithms = request->algorithms};
    struct comms_member_handler handler = {
        .context = comm, .formed = comm_formed, .completed = comm_completed, .aborted = comm_aborted};
    HASH_ADD(hh, session->comms, handle, sizeof comm->handle, comm);
    if (!table_has(comm, hh)) {
        free(comm);
        return error_set(error, STATUS_NO_MEMORY, "no memory for communicator \"%s\"", request->name);
    }
    status = comms_member_join(session->api->comms, &session->client, &terms, &handler, now_ns, &comm->member,
                               error);
    if (status != STATUS_OK) {
        comm_forget(comm);
        return status;
    }
    return STATUS_OK;
}

void api_comm_init(struct api_session *session, uint64_t request_id, const Commd__Client__CommInit *request,
                   uint64_t now_ns)
{
    struct error error;
    if (comm_join(session, request_id, request, now_ns, &error) != STATUS_OK) {
        api_session_log(session, LOG_LEVEL_INFO, "communicator \"%s\", rank %u of %u refused: %s",
                        request->name, request->rank, request->size, error.text);
        api_session_reply_error(session, request_id, &error);
    }
}

void api_comm_table(struct api_session *session, uint64_t request_id, const Commd__Client__CommTable *request)
{
    struct error error;
    struct api_comm *comm = session_comm(session, request->handle);
    if (comm == NULL || !comm->formed) {
        error_set(&error, STATUS_NOT_FOUND, "no formed communicator has handle %u", request->handle);
        api_session_reply_error(session, request_id, &error);
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
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_TABLE;
    reply.comm_table = &answer;
    api_session_reply(session, &reply);
}

void api_comm_destroy(struct api_session *session, uint64_t request_id,
                      const Commd__Client__CommDestroy *request, uint64_t now_ns)
{
    struct api_comm *comm = session_comm(session, request->handle);
    if (comm == NULL) {
        struct error error;
        error_set(&error, STATUS_NOT_FOUND, "no communicator has handle %u", request->handle);
        api_session_reply_error(session, request_id, &error);
        return;
    }
    if (!comm->formed) {
        struct error error;
        error_set(&error, STATUS_ABORTED, "the communicator was left before it had formed");
        api_session_reply_error(session, comm->init_request_id, &error);
    }
    comms_member_leave(comm->member, COMMS_LEAVE_ORDERLY, now_ns);
    comm_forget(comm);
    api_session_reply_done(session, request_id);
}

static enum status submit_range(struct api_session *session, const Commd__Client__Range *range,
                                const char *which, struct comms_op_range *out, struct error *error)
{
    if (range == NULL) {
        return STATUS_OK;
    }
    struct api_memory *registered = api_session_memory(session, range->memory);
    if (registered == NULL) {
        return error_set(error, STATUS_NOT_FOUND, "%s: memory %u is not registered", which, range->memory);
    }
    out->memory = registered->memory;
    out->offset_bytes = range->offset_bytes;
    return STATUS_OK;
}

static enum status submit_ranges(struct api_session *session, const Commd__Client__Submit *request,
                                 struct comms_op *op, struct error *error)
{
    const struct {
        const Commd__Client__Range *range;
        const char *which;
        struct comms_op_range *out;
    } ranges[] = {
        {request->input, "input", &op->input},
        {request->output, "output", &op->output},
        {request->input_layout, "counts for the input", &op->input_layout},
        {request->output_layout, "counts for the output", &op->output_layout},
        {request->residual, "residual", &op->residual},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        enum status status = submit_range(session, ranges[i].range, ranges[i].which, ranges[i].out, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    return STATUS_OK;
}

/* A word that cannot be is left without memory: comms refuses that, or has nobody to tell. */
static void submit_fence(struct api_session *session, const Commd__Client__Fence *fence,
                         struct comms_fence *out)
{
    struct api_memory *memory =
        fence != NULL && fence->word != NULL ? api_session_memory(session, fence->word->memory) : NULL;
    *out = (struct comms_fence){0};
    if (memory != NULL) {
        out->word =
            (struct comms_op_range){.memory = memory->memory, .offset_bytes = fence->word->offset_bytes};
        out->value = fence->value;
    }
}

static uint32_t submit_waits(struct api_session *session, Commd__Client__Fence *const *fences, size_t count,
                             struct comms_fence out[COMMS_FENCES_MAX])
{
    for (size_t i = 0; i < count && i < COMMS_FENCES_MAX; i++) {
        submit_fence(session, fences[i], &out[i]);
    }
    return count > COMMS_FENCES_MAX ? COMMS_FENCES_MAX + 1 : (uint32_t)count; /* one more: comms refuses it */
}

void api_record(struct api_session *session, const Commd__Client__Record *request)
{
    struct error error;
    struct comms_fence waits[COMMS_FENCES_MAX], word;
    const struct api_comm *comm = session_comm(session, request->handle);
    uint32_t wait_count = submit_waits(session, request->waits, request->n_waits, waits);
    submit_fence(session, request->word, &word);
    if (comm == NULL) {
        comms_fence_set(&word);
    } else if (comms_record(comm->member, waits, wait_count, &word, &error) != STATUS_OK) {
        api_session_log(session, LOG_LEVEL_INFO, "a record refused: %s", error.text);
    }
}

static enum status submit_op(struct api_session *session, struct api_comm *comm,
                             const Commd__Client__Submit *request, uint64_t now_ns, struct error *error)
{
    struct comms_op op = {.ticket = request->ticket,
                          .terms = {.count_elements = request->count_elements,
                                    .root_rank = request->root_rank,
                                    .has_layouts = request->has_layouts != 0},
                          .factor = request->factor,
                          .timeout_ms = request->timeout_ms,
                          .peer_rank = request->peer_rank,
                          .tag = request->tag};
    if (!op_kind_from_wire(request->kind, &op.terms.kind)) {
        return error_set(error, STATUS_UNSUPPORTED, "operation kind %u is not known here", request->kind);
    }
    if (!dtype_from_wire(request->dtype, &op.terms.dtype)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "element type %u is not known", request->dtype);
    }
    if (!reduce_from_wire(request->reduce, &op.terms.reduce)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "operator %u is not known", request->reduce);
    }
    if (!compression_from_wire(request->compression, &op.terms.compression)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "compression %u is not known", request->compression);
    }
    if (request->bucket_ops > OP_BUCKET_OPS_MAX || request->bucket_index >= OP_BUCKET_OPS_MAX ||
        request->top_k_permille > OP_TOP_K_MAX_PERMILLE) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "%u operations in a bucket, or %u of a thousand elements", request->bucket_ops,
                         request->top_k_permille);
    }
    op.terms.top_k_permille = (uint16_t)request->top_k_permille;
    op.terms.bucket_ops = request->bucket_ops > 1 ? (uint16_t)request->bucket_ops : 1;
    op.terms.bucket_index = request->bucket_ops > 1 ? (uint16_t)request->bucket_index : 0;
    const char *what;
    if (!op_terms_are_valid(&op.terms, &what)) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%s: its %s is not valid",
                         op_kind_text(op.terms.kind), what);
    }
    struct comms_fence waits[COMMS_FENCES_MAX];
    op.waits = waits;
    op.wait_count = submit_waits(session, request->waits, request->n_waits, waits);
    submit_fence(session, request->ended, &op.ended);
    enum status status = submit_ranges(session, request, &op, error);
    return status == STATUS_OK ? comms_submit(comm->member, &op, now_ns, error) : status;
}

void api_submit(struct api_session *session, const Commd__Client__Submit *request, uint64_t now_ns)
{
    struct error error;
    struct api_comm *comm = session_comm(session, request->handle);
    if (comm == NULL) {
        error_set(&error, STATUS_NOT_FOUND, "no communicator has handle %u", request->handle);
    } else if (submit_op(session, comm, request, now_ns, &error) == STATUS_OK) {
        session->ops_submitted++;
        return;
    }
    struct comms_fence ended;
    submit_fence(session, request->ended, &ended);
    comms_fence_set(&ended);
    struct comms_completion refused = {.ticket = request->ticket, .result = &error};
    comm_send_complete(session, request->handle, &refused);
}

void api_session_forget(struct api_session *session)
{
    mesh_ping_forget(session->api->mesh, session);
    api_trace_forget(session);
    if (session->nodes.asked) {
        rails_forget_traffic(session->api->rails, session);
    }
}

bool api_session_release_one(struct api_session *session, uint64_t now_ns)
{
    struct api_comm *comm = session->comms;
    if (comm != NULL) {
        if (session->expelled != NULL) {
            comms_member_expel(comm->member, session->expelled, now_ns);
        } else {
            comms_member_leave(comm->member, COMMS_LEAVE_LOST, now_ns);
        }
        comm_forget(comm);
        return true;
    }
    if (session->memories != NULL) {
        api_memory_forget(session, session->memories);
        return true;
    }
    return false;
}
