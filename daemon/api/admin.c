#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/api/session.h"
#include "daemon/base/log_writer.h"
#include "daemon/base/process.h"
#include "daemon/host/reduce.h"
#include "daemon/mesh/rail_links.h"

/*
 * Lists are copied into pages of at most CLIENT_LIST_PAGE_MAX rows and PAGE_BYTES_MAX bytes. `after` counts
 * the earlier rows. So a list that changes between pages may repeat or miss a row, but no worse.
 */
#define PAGE_BYTES_MAX (CLIENT_PACKET_MAX_BYTES - 4096)
#define COMM_NODE_NAMES_MAX 64 /* of one row; node_count has the full number */

bool api_session_sees(const struct api_session *session, uid_t owner_uid)
{
    return session->role == API_ROLE_ADMIN || session->client.uid == owner_uid;
}

bool api_admin_may_ask(Commd__Client__Request__BodyCase kind)
{
    switch (kind) {
    case COMMD__CLIENT__REQUEST__BODY_HELLO:
    case COMMD__CLIENT__REQUEST__BODY_STATUS:
    case COMMD__CLIENT__REQUEST__BODY_NODES:
    case COMMD__CLIENT__REQUEST__BODY_COMMS:
    case COMMD__CLIENT__REQUEST__BODY_CLIENTS:
    case COMMD__CLIENT__REQUEST__BODY_OPS:
    case COMMD__CLIENT__REQUEST__BODY_PING:
    case COMMD__CLIENT__REQUEST__BODY_CONFIG:
    case COMMD__CLIENT__REQUEST__BODY_RELOAD:
    case COMMD__CLIENT__REQUEST__BODY_LOG_LEVEL:
    case COMMD__CLIENT__REQUEST__BODY_ALGORITHMS:
    case COMMD__CLIENT__REQUEST__BODY_GPUS:
    case COMMD__CLIENT__REQUEST__BODY_USERS:
    case COMMD__CLIENT__REQUEST__BODY_TRACE:
    case COMMD__CLIENT__REQUEST__BODY_METRICS:
    case COMMD__CLIENT__REQUEST__BODY_EVENTS:
    case COMMD__CLIENT__REQUEST__BODY_HEALTH:
    case COMMD__CLIENT__REQUEST__BODY_COMM_ABORT:
    case COMMD__CLIENT__REQUEST__BODY_DISCONNECT:
    case COMMD__CLIENT__REQUEST__BODY_DRAIN:
    case COMMD__CLIENT__REQUEST__BODY_UNDRAIN:
        return true;
    case COMMD__CLIENT__REQUEST__BODY_STORE:
    case COMMD__CLIENT__REQUEST__BODY_COMM_INIT:
    case COMMD__CLIENT__REQUEST__BODY_COMM_SHRINK:
    case COMMD__CLIENT__REQUEST__BODY_COMM_JOIN:
    case COMMD__CLIENT__REQUEST__BODY_COMM_GROW:
    case COMMD__CLIENT__REQUEST__BODY_COMM_SETTLE:
    case COMMD__CLIENT__REQUEST__BODY_COMM_LEAVE:
    case COMMD__CLIENT__REQUEST__BODY_COMM_TABLE:
    case COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY:
    case COMMD__CLIENT__REQUEST__BODY_ABORT:
    case COMMD__CLIENT__REQUEST__BODY_CELLS_RETIRE:
    case COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER:
    case COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER:
    case COMMD__CLIENT__REQUEST__BODY_MEM_MAP:
    case COMMD__CLIENT__REQUEST__BODY__NOT_SET:
    case _COMMD__CLIENT__REQUEST__BODY__CASE_IS_INT_SIZE:
        break;
    }
    return false;
}

static bool count_comm(void *context, const struct communicator_info *info)
{
    Commd__Client__StatusReply *answer = context;
    switch (info->state) {
    case COMMS_COMM_FORMING:
        answer->comms_forming++;
        break;
    case COMMS_COMM_FORMED:
        answer->comms_formed++;
        break;
    case COMMS_COMM_FAILED:
        answer->comms_failed++;
        break;
    }
    return true;
}

static bool count_op(void *context, const struct comms_op_info *info)
{
    ((Commd__Client__StatusReply *)context)->ops_pending += !op_kind_is_message(info->terms.kind);
    return true;
}

void api_admin_status(struct api_session *session, uint64_t request_id, uint64_t now_ns)
{
    const struct api *api = session->api;
    Commd__Client__StatusReply answer = COMMD__CLIENT__STATUS_REPLY__INIT;
    answer.node_name = (char *)mesh_own_name(api->mesh);
    answer.cluster_name = api->cluster_name;
    answer.version_text = (char *)COMMD_VERSION_TEXT;
    answer.instance = mesh_own_instance(api->mesh);
    answer.uptime_ms = (now_ns - api->started_ns) / TIME_MS;
    answer.pid = (uint32_t)getpid();
    answer.standalone = api->standalone;
    answer.draining = api->drain.draining;
    answer.drain_reason = (char *)api->drain.reason;
    answer.drain_left_ms = api->drain.deadline_ns != TIME_NEVER && api->drain.deadline_ns > now_ns
                               ? (api->drain.deadline_ns - now_ns) / TIME_MS
                               : 0;
    answer.network_address = api->network_address;
    answer.nodes_configured = mesh_configured_count(api->mesh);
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        struct mesh_node_info info;
        mesh_node_info(api->mesh, node, &info);
        answer.nodes_up += mesh_node_is_alive(api->mesh, node);
        answer.nodes_unresolved += info.state == MESH_NODE_UNRESOLVED;
        answer.nodes_differ += info.state == MESH_NODE_UP && info.differs[0] != '\0';
    }
    answer.settings_waiting = api_settings_waiting(api);
    answer.clients = HASH_COUNT(api->sessions);
    comms_visit_comms(api->comms, count_comm, &answer);
    comms_visit_ops(api->comms, now_ns, count_op, &answer);
    comms_read_cells(api->comms, now_ns);
    answer.ops_completed = api->ops_completed + comms_totals(api->comms)->ends_in_cells;
    answer.ops_failed = api->ops_failed;
    answer.reduce_level = (char *)host_reduce_level_text();
    struct net_statistics statistics;
    net_statistics(api->net, &statistics);
    answer.received_datagrams = statistics.received_datagrams;
    answer.dropped_datagrams = statistics.dropped_datagrams;
    answer.refused_handshakes = statistics.refused_handshakes;
    answer.certificate_ends_s = statistics.certificate_ends_s;
    for (const struct api_session *each = api->sessions; each != NULL; each = each->hh.next) {
        answer.memory_registered_bytes += each->memory_bytes;
    }
    answer.resident_bytes = process_resident_bytes();
    answer.log_lines_lost = log_lines_lost();
    Commd__Client__Reply reply = API_REPLY(request_id, STATUS, status, &answer);
    api_session_reply(session, &reply);
}

static uint64_t nodes_total(const struct api *api)
{
    return (uint64_t)mesh_node_count(api->mesh) + 1; /* row 0 is this node */
}

/* What a row shows of a node besides mesh_node_info. It must outlive the row. */
struct node_links {
    struct mesh_rails_traffic traffic;      /* of all rails except the first */
    struct net_bulk_statistics bulk_of_net; /* of the first rail */
};

/* Bulk links: the sums of all rails. */
static void fill_bulk(const struct api *api, uint32_t node, struct node_links *links,
                      Commd__Client__NodeInfo *row)
{
    bool chosen = false;
    for (uint32_t rail = 0; rail < mesh_rail_count(api->mesh); rail++) {
        struct mesh_rail_statistics seen;
        mesh_rail_statistics(api->mesh, node, rail, &seen);
        const struct net_bulk_statistics bulk = seen.bulk;
        links->bulk_of_net = rail == 0 ? bulk : links->bulk_of_net;
        chosen |= bulk.chosen;
        row->bulk_connected |= bulk.connected;
        row->bulk_quic_rate += bulk.ways[0].rate;
        row->bulk_tls_rate += bulk.ways[1].rate;
        row->bulk_quic_bytes += bulk.ways[0].bytes;
        row->bulk_tls_bytes += bulk.ways[1].bytes;
        row->bulk_lost_count += bulk.lost_count;
    }
    row->bulk_link = (char *)(!links->bulk_of_net.allowed ? "" : chosen ? "tls" : "quic");
    row->bulk_quic_cost_ns = links->bulk_of_net.ways[0].cost_ns;
    row->bulk_tls_cost_ns = links->bulk_of_net.ways[1].cost_ns;
    row->bulk_why = links->bulk_of_net.why;
}

static void fill_node(const struct api *api, uint32_t node, struct node_links *links, uint64_t now_ns,
                      Commd__Client__NodeInfo *row)
{
    const struct mesh_rails_traffic *traffic = &links->traffic;
    struct mesh_node_info info;
    mesh_node_info(api->mesh, node, &info);
    row->name = (char *)info.name;
    row->address = (char *)info.address;
    row->state = (char *)mesh_node_state_text(info.state);
    /* A node that was never reached is down since the start. */
    uint64_t since_ns = info.since_ns > api->started_ns ? info.since_ns : api->started_ns;
    row->since_ms = now_ns > since_ns ? (now_ns - since_ns) / TIME_MS : 0;
    row->instance = info.instance;
    row->version_text = (char *)info.version_text;
    row->heartbeat_round_trip_ns = info.heartbeat_round_trip_ns;
    row->round_trip_ns = info.net.round_trip_ns;
    row->estimated_round_trip_ns = info.estimated_round_trip_ns;
    row->sent_bytes = info.net.sent_bytes + traffic->sent_bytes;
    row->received_bytes = info.net.received_bytes + traffic->received_bytes;
    row->lost_packets = info.net.lost_packets + traffic->lost_packets;
    row->datagram_bytes = info.net.datagram_bytes;
    row->connected_count = info.net.connected_count;
    row->resumed_count = info.net.resumed_count + traffic->resumed_count;
    row->certificate_ends_s = info.net.certificate_ends_s;
    row->rails_needed = 1 + traffic->needed;
    row->rail_addresses = (char *)mesh_rail_addresses(api->mesh, node);
    row->rails_connected = info.net.up + traffic->connected;
    row->settings_differ = (char *)info.differs;
    row->draining = info.draining;
    row->resolved_address = (char *)info.resolved_address;
    /* An error that is cured is an event: commctl events has it. */
    const char *last_error = info.state == MESH_NODE_UP ? "" : info.last_error;
    fill_bulk(api, node, links, row);
    row->last_error = (char *)(traffic->missing[0] != '\0' ? traffic->missing : last_error);
}

static uint64_t own_certificate_ends_s(const struct api *api)
{
    struct net_statistics statistics;
    net_statistics(api->net, &statistics);
    return statistics.certificate_ends_s;
}

void api_admin_nodes(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns)
{
    const struct api *api = session->api;
    Commd__Client__NodeInfo rows[CLIENT_LIST_PAGE_MAX];
    Commd__Client__NodeInfo *pointers[CLIENT_LIST_PAGE_MAX];
    struct node_links links[CLIENT_LIST_PAGE_MAX] = {0};
    Commd__Client__NodesReply answer = COMMD__CLIENT__NODES_REPLY__INIT;
    uint64_t total = nodes_total(api);
    answer.nodes = pointers;
    size_t page_bytes = 0;
    uint64_t next = after;
    while (next < total && answer.n_nodes < CLIENT_LIST_PAGE_MAX) {
        if (next > 0 && mesh_node_is_removed(api->mesh, (uint32_t)(next - 1))) {
            next++;
            continue;
        }
        Commd__Client__NodeInfo *row = &rows[answer.n_nodes];
        commd__client__node_info__init(row);
        if (next == 0) {
            row->self = true;
            row->name = (char *)mesh_own_name(api->mesh);
            row->address = api->network_address;
            row->rail_addresses = api->rail_addresses;
            row->state = (char *)"up";
            row->since_ms = (now_ns - api->started_ns) / TIME_MS;
            row->draining = api->drain.draining;
            row->instance = mesh_own_instance(api->mesh);
            row->version_text = (char *)COMMD_VERSION_TEXT;
            row->certificate_ends_s = own_certificate_ends_s(api);
        } else {
            struct node_links *of_node = &links[answer.n_nodes];
            mesh_rails_traffic(api->mesh, (uint32_t)(next - 1), &of_node->traffic);
            fill_node(api, (uint32_t)(next - 1), of_node, now_ns, row);
        }
        page_bytes += commd__client__node_info__get_packed_size(row) + 8;
        if (page_bytes > PAGE_BYTES_MAX) {
            break;
        }
        pointers[answer.n_nodes++] = row;
        next++;
    }
    answer.cursor = next < total ? next : 0;
    Commd__Client__Reply reply = API_REPLY(request_id, NODES, nodes, &answer);
    api_session_reply(session, &reply);
}

/*
 * A page of packed rows. A visit gives texts that are valid only during the call, so rows are packed at once.
 */
struct page {
    uint64_t skip;
    uint64_t next; /* 0: the list ended */
    uint64_t now_ns;
    size_t bytes;
    size_t count;
    void *rows[CLIENT_LIST_PAGE_MAX];
};

struct list_visit {
    const struct api_session *session; /* the session that asks */
    struct page page;
    uint64_t seen;
    uint64_t others; /* rows that it may not see */
};

/* Adds a row that the session may see. Returns false to stop the visit. */
static bool page_add(struct list_visit *visit, const ProtobufCMessage *row)
{
    struct page *page = &visit->page;
    if (visit->seen++ < page->skip) {
        return true;
    }
    size_t size = protobuf_c_message_get_packed_size(row);
    if (page->count == CLIENT_LIST_PAGE_MAX || page->bytes + size > PAGE_BYTES_MAX) {
        page->next = visit->seen - 1;
        return false;
    }
    page->bytes += size + 8;
    uint8_t *packed = malloc(size + 1);
    if (packed == NULL) {
        return false;
    }
    protobuf_c_message_pack(row, packed);
    ProtobufCMessage *copy = protobuf_c_message_unpack(row->descriptor, NULL, size, packed);
    free(packed);
    if (copy == NULL) {
        return false;
    }
    page->rows[page->count++] = copy;
    return true;
}

static void page_free(struct page *page)
{
    for (size_t i = 0; i < page->count; i++) {
        protobuf_c_message_free_unpacked(page->rows[i], NULL);
    }
}

static bool visit_comm(void *context, const struct communicator_info *info)
{
    struct list_visit *visit = context;
    if (!api_session_sees(visit->session, info->owner_uid)) {
        visit->others++;
        return true;
    }
    Commd__Client__CommInfo row = COMMD__CLIENT__COMM_INFO__INIT;
    row.name = (char *)info->name;
    row.comm_id = info->comm_id;
    row.generation = info->generation;
    row.owner_uid = info->owner_uid;
    row.state = (char *)communicator_state_text(info->state);
    row.size = info->size;
    row.local_size = info->local_size;
    row.known_ranks = info->known_ranks;
    row.missing_ranks = (char *)(info->missing_ranks != NULL ? info->missing_ranks : "");
    row.node_count = info->node_count;
    row.node_names = (char **)info->node_names;
    row.n_node_names = info->node_count < COMM_NODE_NAMES_MAX ? info->node_count : COMM_NODE_NAMES_MAX;
    row.since_ms = visit->page.now_ns > info->since_ns ? (visit->page.now_ns - info->since_ns) / TIME_MS : 0;
    row.ops_posted = info->ops_posted;
    row.ops_completed = info->ops_completed;
    row.bytes_reduced = info->bytes_reduced;
    row.error = (char *)(info->error != NULL ? info->error : "");
    api_graphs_counts(visit->session->api, info, &row.captured_ops, &row.replays);
    return page_add(visit, &row.base);
}

/* An elastic job with processes that wait on this node. */
static bool visit_job(void *context, const struct gathers_view *job)
{
    struct list_visit *visit = context;
    char text[400];
    if (job->here_waiting == 0) {
        return true;
    }
    if (!api_session_sees(visit->session, job->owner_uid)) {
        visit->others++;
        return true;
    }
    Commd__Client__CommInfo row = COMMD__CLIENT__COMM_INFO__INIT;
    (void)snprintf(text, sizeof text, "%u processes wait%s%.250s (node %.64s gathers them)", job->waiting,
                   job->text[0] != '\0' ? ": " : " for ranks to grow", job->text, job->place);
    row.name = (char *)job->name;
    row.owner_uid = job->owner_uid;
    row.state = (char *)"waiting";
    row.local_size = job->here_waiting;
    row.known_ranks = job->waiting;
    row.error = text;
    return page_add(visit, &row.base);
}

void api_admin_comms(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns)
{
    struct list_visit visit = {.session = session, .page = {.skip = after, .now_ns = now_ns}};
    comms_read_cells(session->api->comms, now_ns);
    comms_visit_comms(session->api->comms, visit_comm, &visit);
    if (visit.page.next == 0 && session->api->gathers != NULL) {
        gathers_list(session->api->gathers, visit_job, &visit);
    }
    Commd__Client__CommsReply answer = COMMD__CLIENT__COMMS_REPLY__INIT;
    answer.comms = (Commd__Client__CommInfo **)visit.page.rows;
    answer.n_comms = visit.page.count;
    answer.cursor = visit.page.next;
    answer.others = visit.others;
    Commd__Client__Reply reply = API_REPLY(request_id, COMMS, comms, &answer);
    api_session_reply(session, &reply);
    page_free(&visit.page);
}

static bool visit_op(void *context, const struct comms_op_info *info)
{
    struct list_visit *visit = context;
    if (!api_session_sees(visit->session, info->owner_uid)) {
        visit->others++;
        return true;
    }
    Commd__Client__OpInfo row = COMMD__CLIENT__OP_INFO__INIT;
    row.comm_name = (char *)info->comm_name;
    row.owner_uid = info->owner_uid;
    row.seq = info->seq;
    row.kind = (char *)op_kind_text(info->terms.kind);
    row.dtype = (char *)dtype_text(info->terms.dtype);
    row.reduce = (char *)reduce_text(info->terms.reduce);
    row.count_elements = info->terms.count_elements;
    row.root_rank = info->terms.root_rank;
    row.age_ms = info->age_ns / TIME_MS;
    row.deadline_in_ms = info->deadline_in_ns / TIME_MS;
    row.running = info->running;
    row.arrived_ranks = (char *)info->arrived_ranks;
    row.missing_ranks = (char *)info->missing_ranks;
    row.waiting_for = (char *)(info->waiting_for != NULL ? info->waiting_for : "");
    return page_add(visit, &row.base);
}

void api_admin_ops(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns)
{
    struct list_visit visit = {.session = session, .page = {.skip = after, .now_ns = now_ns}};
    comms_visit_ops(session->api->comms, now_ns, visit_op, &visit);
    Commd__Client__OpsReply answer = COMMD__CLIENT__OPS_REPLY__INIT;
    answer.ops = (Commd__Client__OpInfo **)visit.page.rows;
    answer.n_ops = visit.page.count;
    answer.cursor = visit.page.next;
    answer.others = visit.others;
    Commd__Client__Reply reply = API_REPLY(request_id, OPS, ops, &answer);
    api_session_reply(session, &reply);
    page_free(&visit.page);
}

/* With those that went through cells. */
static void fill_ops(const struct api_session *session, uint64_t now_ns, Commd__Client__ClientInfo *row)
{
    row->ops_submitted = session->ops_submitted;
    row->ops_completed = session->ops_completed;
    for (const struct api_comm *comm = session->comms; comm != NULL; comm = comm->hh.next) {
        uint64_t submitted, completed;
        comms_member_in_cells(comm->member, now_ns, &submitted, &completed);
        row->ops_submitted += submitted;
        row->ops_completed += completed;
    }
}

void api_admin_clients(struct api_session *session, uint64_t request_id, uint64_t after, uint64_t now_ns)
{
    Commd__Client__ClientInfo rows[CLIENT_LIST_PAGE_MAX];
    Commd__Client__ClientInfo *pointers[CLIENT_LIST_PAGE_MAX];
    Commd__Client__ClientsReply answer = COMMD__CLIENT__CLIENTS_REPLY__INIT;
    answer.clients = pointers;
    for (struct api_session *each = session->api->sessions; each != NULL; each = each->hh.next) {
        if (!api_session_sees(session, each->client.uid)) {
            answer.others++;
            continue;
        }
        if (each->id <= after) { /* the list is in ascending order of ids */
            continue;
        }
        if (answer.n_clients == CLIENT_LIST_PAGE_MAX) {
            answer.cursor = rows[CLIENT_LIST_PAGE_MAX - 1].id;
            break;
        }
        Commd__Client__ClientInfo *row = &rows[answer.n_clients];
        commd__client__client_info__init(row);
        row->id = each->id;
        row->pid = (uint32_t)each->client.pid;
        row->uid = each->client.uid;
        row->gid = each->gid;
        row->program = each->program;
        row->connected_ms = (now_ns - each->connected_ns) / TIME_MS;
        row->comms = HASH_COUNT(each->comms);
        row->memories = HASH_COUNT(each->memories);
        row->memory_bytes = each->memory_bytes;
        fill_ops(each, now_ns, row);
        pointers[answer.n_clients++] = row;
    }
    Commd__Client__Reply reply = API_REPLY(request_id, CLIENTS, clients, &answer);
    api_session_reply(session, &reply);
}

/*
 * mesh_ping_forget finds a ping by its context. So the context is the session, which has one ping at a time.
 */
static void ping_done(void *context, enum status result, uint64_t round_trip_ns, uint64_t now_ns)
{
    (void)now_ns;
    struct api_session *session = context;
    uint64_t request_id = session->ping_request_id;
    session->ping_request_id = 0;
    if (result != STATUS_OK) {
        api_session_reply_failure(session, request_id, result, "no answer: %s", status_text(result));
        return;
    }
    Commd__Client__PingReply answer = COMMD__CLIENT__PING_REPLY__INIT;
    answer.round_trip_ns = round_trip_ns;
    Commd__Client__Reply reply = API_REPLY(request_id, PING, ping, &answer);
    api_session_reply(session, &reply);
}

#define PING_TIMEOUT_MAX_MS 60000u

void api_admin_ping(struct api_session *session, uint64_t request_id, const Commd__Client__Ping *request,
                    uint64_t now_ns)
{
    struct error error;
    uint32_t node;
    uint32_t timeout_ms =
        request->timeout_ms < PING_TIMEOUT_MAX_MS ? request->timeout_ms : PING_TIMEOUT_MAX_MS;
    if (!mesh_find_node(session->api->mesh, request->node, &node)) {
        error_set(&error, STATUS_NOT_FOUND, "no other node is called \"%s\"", request->node);
    } else if (session->ping_request_id != 0 || request_id == 0) {
        error_set(&error, STATUS_LIMIT, "a connection can have only one ping at a time");
    } else {
        session->ping_request_id = request_id;
        if (mesh_ping(session->api->mesh, node, timeout_ms * TIME_MS, ping_done, session, now_ns, &error) ==
            STATUS_OK) {
            return;
        }
        session->ping_request_id = 0;
    }
    api_session_reply_error(session, request_id, &error);
}
