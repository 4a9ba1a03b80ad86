#include <stdio.h>
#include <stdlib.h>

#include "daemon/api/metrics.h"

/* Metrics that only administrators may see, and the request that gets them: MetricsQuery. */

#define PAGE_BYTES (CLIENT_PACKET_MAX_BYTES - 4096)

/* --- Users --- */

static const struct metrics_family user_used = {
    "commd_user_used", "", "What an account holds, by kind; kinds in bytes are named so.", METRICS_GAUGE};
static const struct metrics_family user_refusals = {
    "commd_user_refusals", "", "Requests of an account that were refused because of a budget.",
    METRICS_COUNTER};
static const struct metrics_family user_time = {
    "commd_user_loop_seconds", "seconds", "Time that commd has worked for an account.", METRICS_COUNTER};

/* An account of the list: a user, or one of his control groups. */
struct account {
    char uid[12];
    char number[24];
    char group[BUDGET_GROUP_MAX_BYTES + 1];
    uint64_t used[BUDGET_KINDS];
    uint64_t refused, spent_ns;
};

struct accounts {
    size_t count;
    struct account rows[METRICS_USERS_MAX];
};

static bool keep_account(void *context, uint64_t number, const struct budget_info *info)
{
    struct accounts *accounts = context;
    struct account *row = &accounts->rows[accounts->count++];
    (void)snprintf(row->uid, sizeof row->uid, "%u", (unsigned)info->uid);
    (void)snprintf(row->number, sizeof row->number, "%llu", (unsigned long long)number);
    (void)snprintf(row->group, sizeof row->group, "%s", info->group);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        row->used[kind] = info->used[kind];
    }
    row->refused = info->refused;
    row->spent_ns = info->spent_ns;
    return accounts->count < METRICS_USERS_MAX;
}

static void write_accounts(const struct accounts *accounts, struct metrics_text *text)
{
    metrics_begin(text, &user_used);
    for (size_t i = 0; i < accounts->count; i++) {
        const struct account *row = &accounts->rows[i];
        for (int kind = 0; kind < BUDGET_KINDS; kind++) {
            const struct metrics_label labels[] = {{"uid", row->uid},
                                                   {"account", row->number},
                                                   {"group", row->group},
                                                   {"kind", budget_kind_key((enum budget_kind)kind)}};
            if (row->used[kind] > 0) {
                metrics_put(text, labels, 4, row->used[kind]);
            }
        }
    }
    metrics_begin(text, &user_refusals);
    for (size_t i = 0; i < accounts->count; i++) {
        const struct account *row = &accounts->rows[i];
        const struct metrics_label labels[] = {
            {"uid", row->uid}, {"account", row->number}, {"group", row->group}};
        metrics_put(text, labels, 3, row->refused);
    }
    metrics_begin(text, &user_time);
    for (size_t i = 0; i < accounts->count; i++) {
        const struct account *row = &accounts->rows[i];
        const struct metrics_label labels[] = {
            {"uid", row->uid}, {"account", row->number}, {"group", row->group}};
        metrics_put_ns(text, labels, 3, row->spent_ns);
    }
}

/* --- Communicators --- */

static const struct metrics_family comm_ops = {
    "commd_communicator_operations", "", "Operations of a communicator that succeeded.", METRICS_COUNTER};
static const struct metrics_family comm_bytes = {"commd_communicator_bytes", "bytes",
                                                 "Bytes of a communicator's operations that succeeded.",
                                                 METRICS_COUNTER};
/* What one family shows of each communicator. */
struct comm_visit {
    struct metrics_text *text;
    uint64_t (*value)(const struct communicator_info *info);
    unsigned count;
};

static uint64_t comm_completed(const struct communicator_info *info)
{
    return info->ops_completed;
}

static uint64_t comm_moved(const struct communicator_info *info)
{
    return info->bytes_reduced;
}

static bool put_comm(void *context, const struct communicator_info *info)
{
    struct comm_visit *visit = context;
    char uid[12], id[20];
    if (info->state != COMMS_COMM_FORMED) {
        return true;
    }
    (void)snprintf(uid, sizeof uid, "%u", (unsigned)info->owner_uid);
    (void)snprintf(id, sizeof id, "%016llx", (unsigned long long)info->comm_id);
    const struct metrics_label labels[] = {{"communicator", info->name}, {"uid", uid}, {"id", id}};
    metrics_put(visit->text, labels, 3, visit->value(info));
    return ++visit->count < METRICS_COMMS_MAX;
}

static void write_comms(const struct api *api, struct metrics_text *text, const struct metrics_family *family,
                        uint64_t (*value)(const struct communicator_info *info))
{
    struct comm_visit visit = {.text = text, .value = value};
    metrics_begin(text, family);
    comms_visit_comms(api->comms, put_comm, &visit);
}

/* Adds what only administrators may see: users and communicators by name. */
static void metrics_write_private(const struct api *api, struct metrics_text *text)
{
    struct accounts *accounts = calloc(1, sizeof *accounts);
    if (accounts == NULL) {
        text->failed = true;
        return;
    }
    budget_visit_accounts(api->budget, 0, keep_account, accounts);
    write_accounts(accounts, text);
    free(accounts);
    write_comms(api, text, &comm_ops, comm_completed);
    write_comms(api, text, &comm_bytes, comm_moved);
}

/* --- The request --- */

void api_metrics_forget(struct api_session *session)
{
    free(session->metrics.bytes);
    session->metrics.bytes = NULL;
}

/* Keeps the text of this moment until the last page is sent, or the session ends. */
static bool take_text(struct api_session *session, bool open_metrics, uint64_t now_ns)
{
    struct metrics_text text;
    metrics_text_begin(&text, open_metrics ? METRICS_OPENMETRICS : METRICS_PROMETHEUS,
                       METRICS_ADMIN_TEXT_MAX_BYTES);
    metrics_write(session->api, &text, now_ns);
    metrics_write_private(session->api, &text);
    metrics_text_end(&text);
    if (text.failed) {
        metrics_text_free(&text);
        return false;
    }
    api_metrics_forget(session);
    session->metrics.bytes = text.bytes;
    session->metrics.size_bytes = text.used_bytes;
    return true;
}

void api_metrics(struct api_session *session, uint64_t request_id, const Commd__Client__MetricsQuery *request,
                 uint64_t now_ns)
{
    if (session->role != API_ROLE_ADMIN) {
        api_session_reply_failure(session, request_id, STATUS_PERMISSION,
                                  "only administrators are shown all metrics; the setting `metrics` serves "
                                  "those that everybody may see");
        return;
    }
    if (request->offset == 0 && !take_text(session, request->open_metrics, now_ns)) {
        api_session_reply_failure(session, request_id, STATUS_NO_MEMORY, "no memory for the metrics");
        return;
    }
    if (session->metrics.bytes == NULL || request->offset > session->metrics.size_bytes) {
        api_session_reply_failure(session, request_id, STATUS_INVALID_ARGUMENT,
                                  "the metrics have no such page");
        return;
    }
    Commd__Client__MetricsReply answer = COMMD__CLIENT__METRICS_REPLY__INIT;
    size_t left = session->metrics.size_bytes - (size_t)request->offset;
    answer.text.data = (uint8_t *)session->metrics.bytes + request->offset;
    answer.text.len = left < PAGE_BYTES ? left : PAGE_BYTES;
    bool is_last = answer.text.len == left;
    answer.cursor = is_last ? 0 : request->offset + answer.text.len;
    Commd__Client__Reply reply = API_REPLY(request_id, METRICS, metrics, &answer);
    api_session_reply(session, &reply);
    if (is_last) {
        api_metrics_forget(session);
    }
}
