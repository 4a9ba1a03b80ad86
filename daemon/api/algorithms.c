#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"
#include "daemon/coll/forecast.h"
#include "daemon/coll/overrides.h"
#include "daemon/coll/slice.h"

/* commctl algorithms: shows what would be chosen, with the code that chooses. */

#define ALGORITHMS_ROWS_MAX 256
#define ALGORITHMS_SIZES_MAX 8

struct algorithms {
    Commd__Client__AlgorithmsReply answer;
    struct coll_network network;
    struct coll_overrides overrides;
    Commd__Client__AlgorithmInfo rows[ALGORITHMS_ROWS_MAX];
    Commd__Client__AlgorithmInfo *pointers[ALGORITHMS_ROWS_MAX];
    struct api_engines engines;
};

/* Converts to an integer. Returns UINT64_MAX for larger values: the prediction for a very large size may be
 * one. */
static uint64_t whole(double value)
{
    return value >= 0x1p64 ? UINT64_MAX : value > 0 ? (uint64_t)value : 0;
}

static void worsen(struct algorithms *all, uint64_t latency_ns, uint64_t bytes_per_s)
{
    Commd__Client__AlgorithmsReply *answer = &all->answer;
    answer->latency_ns = latency_ns > answer->latency_ns ? latency_ns : answer->latency_ns;
    if (bytes_per_s != 0 && (answer->bytes_per_s == 0 || bytes_per_s < answer->bytes_per_s)) {
        answer->bytes_per_s = bytes_per_s;
    }
}

/* Finds the worst of the requested links. */
static enum status algorithms_network(const struct api *api, const Commd__Client__AlgorithmsQuery *request,
                                      struct algorithms *all, struct error *error)
{
    Commd__Client__AlgorithmsReply *answer = &all->answer;
    uint64_t latency_ns, bytes_per_s;
    for (size_t i = 0; i < request->n_node_names; i++) {
        const char *name = request->node_names[i];
        uint32_t node;
        if (mesh_find_node(api->mesh, name, &node)) {
            mesh_link_to(api->mesh, node, &latency_ns, &bytes_per_s);
            worsen(all, latency_ns, bytes_per_s);
        } else if (strcmp(name, mesh_own_name(api->mesh)) != 0) {
            return error_set(error, STATUS_NOT_FOUND, "no node is called \"%s\"", name);
        }
    }
    if (request->n_node_names == 0) {
        mesh_link_estimate(api->mesh, &latency_ns, &bytes_per_s);
        worsen(all, latency_ns, bytes_per_s);
    }
    all->network = coll_network_default;
    answer->measured = answer->latency_ns != 0 && answer->bytes_per_s != 0;
    if (answer->latency_ns != 0) {
        all->network.latency_s = (double)answer->latency_ns * 1e-9;
    }
    if (answer->bytes_per_s != 0) {
        all->network.bandwidth_bytes_per_s = (double)answer->bytes_per_s;
    }
    answer->latency_ns = whole(all->network.latency_s * 1e9);
    answer->bytes_per_s = whole(all->network.bandwidth_bytes_per_s);
    answer->node_count = request->node_count != 0     ? request->node_count
                         : request->n_node_names != 0 ? (uint32_t)request->n_node_names
                                                      : mesh_configured_count(api->mesh) + 1;
    if (answer->node_count < 1 || answer->node_count > COLL_NODES_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%u nodes; expected 1 to %d", answer->node_count,
                         COLL_NODES_MAX);
    }
    return STATUS_OK;
}

static void add_row(struct algorithms *all, const struct coll_algorithm *algorithm,
                    const struct coll_choice *choice, uint64_t size_bytes)
{
    const struct coll_algorithm *picked = coll_select(choice, &all->network, &all->overrides);
    const struct coll_algorithm *best = coll_select(choice, &all->network, NULL);
    bool serves = coll_serves(algorithm, choice);
    struct coll_forecast forecast = {0};
    if (all->answer.n_algorithms == ALGORITHMS_ROWS_MAX) {
        return;
    }
    if (serves) {
        coll_forecast(algorithm, choice, &all->network, &forecast);
    }
    Commd__Client__AlgorithmInfo *row = &all->rows[all->answer.n_algorithms];
    commd__client__algorithm_info__init(row);
    row->kind = (char *)op_kind_text(algorithm->kind);
    row->name = (char *)algorithm->name;
    row->description = (char *)algorithm->description;
    row->size_bytes = size_bytes;
    row->serves = serves;
    row->predicted_ns = whole(forecast.seconds * 1e9);
    row->rounds = forecast.rounds;
    row->sent_bytes = whole(forecast.sent_bytes);
    row->picked = algorithm == picked;
    row->reason = (char *)(algorithm != picked ? "" : picked == best ? "lowest predicted time" : "override");
    all->pointers[all->answer.n_algorithms++] = row;
}

static void add_kind(const struct api *api, const Commd__Client__AlgorithmsQuery *request, enum op_kind kind,
                     struct algorithms *all)
{
    uint32_t count;
    const struct coll_algorithm *const *list = coll_registry(&count);
    uint32_t nodes = all->answer.node_count;
    uint64_t slice_bytes = comms_slice_bytes(api->comms);
    if (kind == OP_KIND_ALL_TO_ALL && nodes > 0) { /* as if each node had one rank */
        slice_bytes = coll_exchange_slice_bytes(slice_bytes, nodes, nodes);
    }
    size_t sizes = kind == OP_KIND_BARRIER ? 1 : request->n_size_bytes;
    for (size_t k = 0; k < sizes; k++) {
        uint64_t size_bytes = kind == OP_KIND_BARRIER ? 0 : request->size_bytes[k];
        struct coll_choice choice = {.kind = kind,
                                     .node_count = all->answer.node_count,
                                     .size_bytes = size_bytes,
                                     .element_bytes = 1,
                                     .slice_bytes = slice_bytes,
                                     .blocks_are_equal = true,
                                     .few_links = comms_makes_few_links(api->comms, nodes)};
        for (uint32_t i = 0; i < count; i++) {
            if (list[i]->kind == kind) {
                add_row(all, list[i], &choice, size_bytes);
            }
        }
    }
}

static enum status algorithms_fill(struct api *api, const Commd__Client__AlgorithmsQuery *request,
                                   struct algorithms *all, struct error *error)
{
    const char *overrides = request->overrides[0] != '\0' ? request->overrides : comms_algorithms(api->comms);
    commd__client__algorithms_reply__init(&all->answer);
    all->answer.algorithms = all->pointers;
    all->answer.overrides = (char *)overrides;
    if (request->n_size_bytes < 1 || request->n_size_bytes > ALGORITHMS_SIZES_MAX) {
        return error_set(error, STATUS_INVALID_ARGUMENT, "%zu sizes; expected 1 to %d", request->n_size_bytes,
                         ALGORITHMS_SIZES_MAX);
    }
    enum status status = coll_overrides_parse(overrides, &all->overrides, error);
    if (status == STATUS_OK) {
        status = algorithms_network(api, request, all, error);
    }
    for (uint32_t kind = 0; kind < OP_KIND_COUNT && status == STATUS_OK; kind++) {
        if (request->kind[0] == '\0' || strcmp(request->kind, op_kind_text((enum op_kind)kind)) == 0) {
            add_kind(api, request, (enum op_kind)kind, all);
        }
    }
    if (status == STATUS_OK) {
        api_engines_fill(api, request, &all->engines, &all->answer);
    }
    if (status == STATUS_OK && all->answer.n_algorithms == 0) {
        status = error_set(error, STATUS_NOT_FOUND, "no operation is called \"%s\"", request->kind);
    }
    return status;
}

void api_algorithms(struct api_session *session, uint64_t request_id,
                    const Commd__Client__AlgorithmsQuery *request)
{
    struct error error;
    struct algorithms *all = calloc(1, sizeof *all);
    enum status status = all != NULL ? algorithms_fill(session->api, request, all, &error)
                                     : error_set(&error, STATUS_NO_MEMORY, "no memory for an answer");
    if (status == STATUS_OK) {
        Commd__Client__Reply reply = API_REPLY(request_id, ALGORITHMS, algorithms, &all->answer);
        api_session_reply(session, &reply);
    } else {
        api_session_reply_error(session, request_id, &error);
    }
    free(all);
}
