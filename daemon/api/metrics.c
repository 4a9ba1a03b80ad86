#include "daemon/api/metrics.h"

#include <string.h>

#include "daemon/base/history.h"
#include "daemon/base/log_writer.h"
#include "daemon/base/process.h"
#include "daemon/host/reduce.h"

/* Metrics of commd itself; other files write those of operations, links and GPUs. */

void metrics_put_one(struct metrics_text *text, const struct metrics_family *family, uint64_t value)
{
    metrics_begin(text, family);
    metrics_put(text, NULL, 0, value);
}

static void put_one_ns(struct metrics_text *text, const struct metrics_family *family, uint64_t value_ns)
{
    metrics_begin(text, family);
    metrics_put_ns(text, NULL, 0, value_ns);
}

/* --- The process --- */

static const struct metrics_family build = {"commd_build", "", "The version that runs.", METRICS_INFO};
static const struct metrics_family uptime = {"commd_uptime_seconds", "seconds", "Time since the start.",
                                             METRICS_GAUGE};
static const struct metrics_family draining = {"commd_draining", "", "1 while commd drains, else 0.",
                                               METRICS_GAUGE};
static const struct metrics_family lag = {
    "commd_loop_lag_seconds", "seconds",
    "How late the main loop came to its work: the worst of the last 10 to 20 seconds.", METRICS_GAUGE};
static const struct metrics_family cpu = {"process_cpu_seconds", "seconds", "Processor time of all threads.",
                                          METRICS_COUNTER};
static const struct metrics_family resident = {"process_resident_memory_bytes", "bytes", "Resident memory.",
                                               METRICS_GAUGE};
static const struct metrics_family open_fds = {"process_open_fds", "", "Open file descriptors.",
                                               METRICS_GAUGE};
static const struct metrics_family max_fds = {"process_max_fds", "", "The most descriptors that may be open.",
                                              METRICS_GAUGE};
static const struct metrics_family lines_lost = {
    "commd_log_lines_lost", "", "Log lines that were lost because nobody read standard error.",
    METRICS_COUNTER};
static const struct metrics_family events = {"commd_events", "", "Events, as commctl events shows them.",
                                             METRICS_COUNTER};

static void write_process(const struct api *api, struct metrics_text *text, uint64_t now_ns)
{
    const struct metrics_label versions[] = {{"version", COMMD_VERSION_TEXT},
                                             {"reductions", host_reduce_level_text()},
                                             {"node", mesh_own_name(api->mesh)}};
    uint64_t open_count = process_open_descriptors();
    metrics_begin(text, &build);
    metrics_put(text, versions, 3, 1);
    put_one_ns(text, &uptime, now_ns > api->started_ns ? now_ns - api->started_ns : 0);
    metrics_put_one(text, &draining, api->drain.draining);
    put_one_ns(text, &lag, loop_lag_ns(api->loop, now_ns));
    put_one_ns(text, &cpu, process_cpu_ns());
    metrics_put_one(text, &resident, process_resident_bytes());
    if (open_count > 0) {
        metrics_put_one(text, &open_fds, open_count);
    }
    metrics_put_one(text, &max_fds, process_descriptors_max());
    metrics_put_one(text, &lines_lost, log_lines_lost());
    metrics_begin(text, &events);
    for (unsigned kind = 0; kind < HISTORY_KINDS; kind++) {
        const struct metrics_label label = {"event", history_kind_text((enum history_kind)kind)};
        metrics_put(text, &label, 1, history_count((enum history_kind)kind));
    }
}

/* --- Clients and what they wait for --- */

static const struct metrics_family clients = {
    "commd_clients", "", "Connections, by the socket that accepted them.", METRICS_GAUGE};
static const struct metrics_family refused = {"commd_connections_refused", "",
                                              "Connections that were refused, by socket.", METRICS_COUNTER};
static const struct metrics_family communicators = {
    "commd_communicators", "", "Communicators with ranks on this node, by state.", METRICS_GAUGE};
static const struct metrics_family formed = {"commd_communicators_formed", "",
                                             "Communicators that have formed here.", METRICS_COUNTER};
static const struct metrics_family failed = {"commd_communicators_failed", "",
                                             "Communicators that failed here, before or after they formed.",
                                             METRICS_COUNTER};
static const struct metrics_family ops_pending = {"commd_operations_pending", "",
                                                  "Operations that have not ended.", METRICS_GAUGE};
static const struct metrics_family messages_pending = {
    "commd_messages_pending", "", "Sends and receives whose end was not reported yet.", METRICS_GAUGE};
static const struct metrics_family replies = {"commd_replies_queued", "",
                                              "Answers that clients have not read.", METRICS_GAUGE};
static const struct metrics_family reply_bytes = {
    "commd_replies_queued_bytes", "bytes", "Bytes of answers that clients have not read.", METRICS_GAUGE};
static const struct metrics_family closing = {
    "commd_descriptors_closing", "", "Descriptors of clients that wait to be closed.", METRICS_GAUGE};
static const struct metrics_family registered = {"commd_registered_memory_bytes", "bytes",
                                                 "Memory that clients have registered.", METRICS_GAUGE};

static const char *const role_texts[API_ROLE_COUNT] = {"clients", "administrators"};

static void write_communicators(const struct api *api, struct metrics_text *text)
{
    const struct comms_totals *totals = comms_totals(api->comms);
    metrics_begin(text, &communicators);
    for (unsigned state = 0; state < COMMS_COMM_STATES; state++) {
        const struct metrics_label label = {"state", communicator_state_text((enum communicator_state)state)};
        metrics_put(text, &label, 1, totals->communicators[state]);
    }
    metrics_put_one(text, &formed, totals->formed);
    metrics_put_one(text, &failed, totals->failed);
    metrics_put_one(text, &ops_pending, totals->ops_pending);
    metrics_put_one(text, &messages_pending, totals->messages_pending);
}

static void write_clients(const struct api *api, struct metrics_text *text)
{
    uint64_t out_count = 0, out_bytes = 0, memory_bytes = 0;
    for (const struct api_session *each = api->sessions; each != NULL; each = each->hh.next) {
        out_count += each->out_count;
        out_bytes += each->out_bytes;
        memory_bytes += each->memory_bytes;
    }
    metrics_begin(text, &clients);
    for (unsigned role = 0; role < API_ROLE_COUNT; role++) {
        const struct metrics_label label = {"socket", role_texts[role]};
        metrics_put(text, &label, 1, api->listeners[role].session_count);
    }
    metrics_begin(text, &refused);
    for (unsigned role = 0; role < API_ROLE_COUNT; role++) {
        const struct metrics_label label = {"socket", role_texts[role]};
        metrics_put(text, &label, 1, api->listeners[role].refused_count);
    }
    metrics_put_one(text, &replies, out_count);
    metrics_put_one(text, &reply_bytes, out_bytes);
    metrics_put_one(text, &registered, memory_bytes);
    if (api->fd_reaper != NULL) {
        metrics_put_one(text, &closing, fd_reaper_count(api->fd_reaper));
    }
}

/* --- Budgets --- */

/* Kinds that are counted in bytes have families of their own: a sum over all kinds of one family has a
 * meaning. */
static const struct metrics_family budget_used = {
    "commd_budget_used", "", "Objects that all users together hold, by kind.", METRICS_GAUGE};
static const struct metrics_family budget_limit = {
    "commd_budget_limit", "", "Objects that all users together may hold, by kind.", METRICS_GAUGE};
static const struct metrics_family budget_used_bytes = {
    "commd_budget_used_bytes", "bytes", "Bytes that all users together hold, by kind.", METRICS_GAUGE};
static const struct metrics_family budget_limit_bytes = {
    "commd_budget_limit_bytes", "bytes", "Bytes that all users together may hold, by kind.", METRICS_GAUGE};
static const struct metrics_family budget_refusals = {
    "commd_budget_refusals", "", "Requests that were refused because of a budget, by kind.", METRICS_COUNTER};
static const struct metrics_family users = {"commd_users", "", "Users who hold anything.", METRICS_GAUGE};

static bool kind_is_bytes(int kind)
{
    const char *key = budget_kind_key((enum budget_kind)kind);
    size_t length = strlen(key);
    return length > strlen("_bytes") && strcmp(key + length - strlen("_bytes"), "_bytes") == 0;
}

static void write_kinds(struct metrics_text *text, const struct metrics_family *family, bool bytes,
                        const uint64_t values[BUDGET_KINDS])
{
    metrics_begin(text, family);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        if (kind_is_bytes(kind) == bytes) {
            const struct metrics_label label = {"kind", budget_kind_key((enum budget_kind)kind)};
            metrics_put(text, &label, 1, values[kind]);
        }
    }
}

static void write_budgets(const struct api *api, struct metrics_text *text)
{
    struct budget_totals totals;
    budget_totals(api->budget, &totals);
    metrics_put_one(text, &users, totals.users);
    write_kinds(text, &budget_used, false, totals.used);
    write_kinds(text, &budget_limit, false, totals.all);
    write_kinds(text, &budget_used_bytes, true, totals.used);
    write_kinds(text, &budget_limit_bytes, true, totals.all);
    metrics_begin(text, &budget_refusals);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        const struct metrics_label label = {"kind", budget_kind_key((enum budget_kind)kind)};
        metrics_put(text, &label, 1, totals.refused[kind]);
    }
}

/* --- The network --- */

static const struct metrics_family datagrams = {"commd_datagrams_received", "",
                                                "UDP datagrams received on rail 0.", METRICS_COUNTER};
static const struct metrics_family dropped = {
    "commd_datagrams_dropped", "",
    "UDP datagrams dropped on rail 0: not QUIC, of no connection, or too many.", METRICS_COUNTER};
static const struct metrics_family handshakes = {"commd_handshakes_refused", "",
                                                 "Connections of other machines that were refused on rail 0.",
                                                 METRICS_COUNTER};

static void write_network(const struct api *api, struct metrics_text *text)
{
    struct net_statistics statistics;
    if (api->net == NULL) {
        return;
    }
    net_statistics(api->net, &statistics);
    metrics_put_one(text, &datagrams, statistics.received_datagrams);
    metrics_put_one(text, &dropped, statistics.dropped_datagrams);
    metrics_put_one(text, &handshakes, statistics.refused_handshakes);
}

void metrics_write(const struct api *api, struct metrics_text *text, uint64_t now_ns)
{
    comms_read_cells(api->comms, now_ns);
    write_process(api, text, now_ns);
    write_clients(api, text);
    write_communicators(api, text);
    write_budgets(api, text);
    write_network(api, text);
    metrics_write_links(api, text);
    metrics_write_gpus(api, text);
    metrics_write_ops(api, text);
}
