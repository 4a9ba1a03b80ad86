#include "tests/lib/fake_daemon_parts.h"

#include <string.h>

/* Communicators: they form at once or later, give their tables page by page, and are destroyed. */

struct fake_comm *fake_find_comm(struct fake_session *session, uint32_t handle)
{
    for (size_t i = 0; i < FAKE_COMMS_MAX; i++) {
        if (session->comms[i].handle == handle) {
            return &session->comms[i];
        }
    }
    return NULL;
}

void fake_send_formed(struct fake_session *session, const struct fake_script *script, uint64_t request_id)
{
    Commd__Client__CommInitReply formed = COMMD__CLIENT__COMM_INIT_REPLY__INIT;
    formed.comm_id = request_id + 1000;
    formed.generation = 1;
    formed.local_rank = 0;
    formed.local_size = 1;
    formed.node_count = script->node_count != 0 ? script->node_count : 1;
    if (script->form == FAKE_FORM_NO_NODES) {
        formed.node_count = 0;
    }
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_INIT;
    reply.comm_init = &formed;
    fake_send_reply(session, &reply);
}

void fake_handle_init(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                      const Commd__Client__CommInit *request)
{
    struct fake_script script = fake_current_script(daemon);
    if (script.form == FAKE_FORM_REFUSE) {
        fake_send_error(session, request_id, STATUS_MISMATCH, script.form_text);
        return;
    }
    if (script.form == FAKE_FORM_OTHER_QUESTION) {
        fake_send_done(session, request_id);
        return;
    }
    struct fake_comm *comm = fake_find_comm(session, 0);
    fake_must(comm != NULL && fake_find_comm(session, request->handle) == NULL, "a handle that is in use");
    *comm = (struct fake_comm){.handle = request->handle, .rank = request->rank, .size = request->size};
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.comms++;
    daemon->counts.device = request->device;
    daemon->counts.device_uuid_bytes = request->device_uuid.len;
    if (request->device_uuid.len == sizeof daemon->counts.device_uuid) {
        memcpy(daemon->counts.device_uuid, request->device_uuid.data, request->device_uuid.len);
    }
    fake_unlock(daemon);
    if (script.form == FAKE_FORM_SILENT) {
        return;
    }
    if (script.form_delay_ms == 0) {
        fake_send_formed(session, &script, request_id);
    } else {
        fake_delay(session,
                   &(struct fake_delayed){.due_ns = fake_now_ns() + script.form_delay_ms * UINT64_C(1000000),
                                          .init_request_id = request_id});
    }
}

void fake_handle_table(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                       const Commd__Client__CommTable *request)
{
    struct fake_script script = fake_current_script(daemon);
    const struct fake_comm *comm = fake_find_comm(session, request->handle);
    fake_must(comm != NULL, "a table of no communicator");
    uint32_t nodes = script.node_count != 0 ? script.node_count : 1;
    uint32_t page_ranks = script.page_ranks != 0 ? script.page_ranks : CLIENT_TABLE_RANKS_MAX;
    uint32_t page_nodes = script.page_nodes != 0 ? script.page_nodes : CLIENT_TABLE_NODES_MAX;
    static uint32_t node_of_rank[CLIENT_TABLE_RANKS_MAX + 1];
    static char *names[CLIENT_TABLE_NODES_MAX];
    Commd__Client__CommTableReply table = COMMD__CLIENT__COMM_TABLE_REPLY__INIT;
    table.node_of_rank = node_of_rank;
    table.node_names = names;
    for (uint32_t rank = request->first_rank; rank < comm->size && table.n_node_of_rank < page_ranks;
         rank++) {
        node_of_rank[table.n_node_of_rank++] = script.table == FAKE_TABLE_WRONG_NODE ? nodes : rank % nodes;
    }
    for (uint32_t node = request->first_node; node < nodes && table.n_node_names < page_nodes; node++) {
        names[table.n_node_names++] = daemon->node_names[node];
    }
    if (script.table == FAKE_TABLE_EMPTY) {
        table.n_node_of_rank = 0;
        table.n_node_names = 0;
    } else if (script.table == FAKE_TABLE_TOO_MANY) {
        node_of_rank[table.n_node_of_rank++] = 0;
    }
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.tables++;
    fake_unlock(daemon);
    Commd__Client__Reply reply = COMMD__CLIENT__REPLY__INIT;
    reply.id = request_id;
    reply.body_case = COMMD__CLIENT__REPLY__BODY_COMM_TABLE;
    reply.comm_table = &table;
    fake_send_reply(session, &reply);
}

void fake_handle_destroy(struct fake_daemon *daemon, struct fake_session *session, uint64_t request_id,
                         uint32_t handle)
{
    struct fake_comm *comm = fake_find_comm(session, handle);
    if (comm == NULL) {
        fake_send_error(session, request_id, STATUS_NOT_FOUND, "no such communicator");
        return;
    }
    comm->handle = 0;
    pthread_mutex_lock(&daemon->lock);
    daemon->counts.comms--;
    daemon->counts.destroyed++;
    fake_unlock(daemon);
    for (uint64_t i = session->delayed_head; i < session->delayed_tail; i++) {
        struct fake_delayed *delayed = &session->delayed[i % FAKE_DELAYED_MAX];
        if (delayed->handle == handle && delayed->init_request_id == 0) {
            delayed->ticket = 0; /* its completions have no receiver any more */
            delayed->due_ns = 0;
        }
    }
    fake_send_done(session, request_id);
}
