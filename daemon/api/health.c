#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/api/session.h"
#include "daemon/base/process.h"
#include "daemon/mesh/rail_links.h"

/* commctl health: checks of this node, for probes. */

#define LAG_MAX_NS (500 * TIME_MS)
#define CERTIFICATE_SOON_S (UINT64_C(7) * 86400) /* commd's log warns from 30 days on */
#define FULL_PERCENT 90
#define CHECK_TEXT_MAX_BYTES 256

/* Writes the text. Returns whether all is well. */
typedef bool check_function(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES]);

static bool check_drain(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    (void)now_ns;
    (void)snprintf(text, CHECK_TEXT_MAX_BYTES,
                   api->drain.draining ? "commd drains: it takes no new communicators"
                                       : "takes new communicators");
    return !api->drain.draining;
}

static bool check_loop(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    uint64_t lag_ns = loop_lag_ns(api->loop, now_ns);
    (void)snprintf(text, CHECK_TEXT_MAX_BYTES,
                   "at most %.1f ms late in the last seconds; less than %llu ms is allowed",
                   (double)lag_ns / (double)TIME_MS, (unsigned long long)(LAG_MAX_NS / TIME_MS));
    return lag_ns < LAG_MAX_NS;
}

static bool check_mesh(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    uint32_t up = 0, configured = mesh_configured_count(api->mesh);
    const char *first_down = NULL;
    (void)now_ns;
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        bool is_up = mesh_node_is_alive(api->mesh, node);
        up += is_up;
        if (!is_up && first_down == NULL && !mesh_node_is_removed(api->mesh, node)) {
            first_down = mesh_node_name(api->mesh, node);
        }
    }
    if (api->standalone) {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "this node is alone");
    } else {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "%u of %u other nodes are up%s%s%s", (unsigned)up,
                       (unsigned)configured, first_down != NULL ? "; " : "",
                       first_down != NULL ? first_down : "", first_down != NULL ? " is not" : "");
    }
    return first_down == NULL;
}

static bool check_rails(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    uint32_t needed = 0, connected = 0;
    (void)now_ns;
    for (uint32_t node = 0; node < mesh_node_count(api->mesh); node++) {
        struct mesh_rails_traffic traffic;
        mesh_rails_traffic(api->mesh, node, &traffic);
        needed += traffic.needed;
        connected += traffic.connected;
        if (traffic.missing[0] != '\0') {
            (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "node %s: %.180s", mesh_node_name(api->mesh, node),
                           traffic.missing);
            return false;
        }
    }
    (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "%u of %u needed connections are up, besides rail 0",
                   (unsigned)connected, (unsigned)needed);
    return true;
}

/* Whether the certificate ends soon; if so, writes the text. */
static bool ends_soon(const char *node, uint64_t ends_s, uint64_t now_s, char text[CHECK_TEXT_MAX_BYTES])
{
    if (ends_s == 0 || ends_s >= now_s + CERTIFICATE_SOON_S) {
        return false;
    }
    if (ends_s <= now_s) {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "the certificate of node %s has ended: renew it", node);
    } else {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "the certificate of node %s ends in %llu days: renew it",
                       node, (unsigned long long)((ends_s - now_s) / 86400u));
    }
    return true;
}

static bool check_certificates(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    struct net_statistics own;
    uint64_t now_s = (uint64_t)time(NULL);
    (void)now_ns;
    net_statistics(api->net, &own);
    bool soon = ends_soon(mesh_own_name(api->mesh), own.certificate_ends_s, now_s, text);
    for (uint32_t node = 0; node < mesh_node_count(api->mesh) && !soon; node++) {
        struct mesh_node_info info;
        mesh_node_info(api->mesh, node, &info);
        soon = info.state == MESH_NODE_UP && ends_soon(info.name, info.net.certificate_ends_s, now_s, text);
    }
    if (!soon && own.certificate_ends_s == 0) {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "this node has no certificate and needs none");
    } else if (!soon) {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "this node's certificate is valid for %llu days",
                       (unsigned long long)((own.certificate_ends_s - now_s) / 86400u));
    }
    return !soon;
}

static bool check_gpus(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    uint32_t count = gpu_devices_count(api->gpus);
    (void)now_ns;
    for (uint32_t gpu = 0; gpu < count; gpu++) {
        struct error error;
        if (gpu_devices_check(api->gpus, gpu, &error) != STATUS_OK) {
            (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "GPU %u: %.200s", (unsigned)gpu, error.text);
            return false;
        }
    }
    if (count == 0) {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "none: %.200s", api->gpus_absent);
    } else {
        (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "%u in use", (unsigned)count);
    }
    return true;
}

/* --- Budgets --- */

enum budget_sort { SORT_BYTES, SORT_DESCRIPTORS, SORT_OBJECTS };

static enum budget_sort sort_of(enum budget_kind kind)
{
    const char *key = budget_kind_key(kind);
    size_t length = strlen(key);
    if (kind == BUDGET_DESCRIPTORS) {
        return SORT_DESCRIPTORS;
    }
    return length > 6 && strcmp(key + length - 6, "_bytes") == 0 ? SORT_BYTES : SORT_OBJECTS;
}

static uint64_t percent_of(uint64_t used, uint64_t all)
{
    return all == 0 ? 0 : (uint64_t)(100.0 * (double)used / (double)all);
}

/* The fullest budget of a sort, all users together. */
static bool check_budgets(const struct api *api, enum budget_sort sort, char text[CHECK_TEXT_MAX_BYTES])
{
    struct budget_totals totals;
    uint64_t worst_percent = 0;
    const char *worst = NULL;
    budget_totals(api->budget, &totals);
    for (int kind = 0; kind < BUDGET_KINDS; kind++) {
        uint64_t percent = percent_of(totals.used[kind], totals.all[kind]);
        if (sort_of((enum budget_kind)kind) == sort && (worst == NULL || percent > worst_percent)) {
            worst = budget_kind_key((enum budget_kind)kind);
            worst_percent = percent;
        }
    }
    (void)snprintf(text, CHECK_TEXT_MAX_BYTES, "users hold %llu %% of %s%s",
                   (unsigned long long)worst_percent, worst != NULL ? worst : "nothing",
                   sort == SORT_DESCRIPTORS ? "" : ", the fullest of these budgets");
    return worst_percent < FULL_PERCENT;
}

static bool check_memory(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    (void)now_ns;
    return check_budgets(api, SORT_BYTES, text);
}

static bool check_objects(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    (void)now_ns;
    return check_budgets(api, SORT_OBJECTS, text);
}

static bool check_descriptors(const struct api *api, uint64_t now_ns, char text[CHECK_TEXT_MAX_BYTES])
{
    uint64_t percent = percent_of(process_open_descriptors(), process_descriptors_max());
    (void)now_ns;
    if (percent < FULL_PERCENT) {
        return check_budgets(api, SORT_DESCRIPTORS, text);
    }
    (void)snprintf(text, CHECK_TEXT_MAX_BYTES,
                   "commd has %llu %% of the descriptors open that it may open (LimitNOFILE=)",
                   (unsigned long long)percent);
    return false;
}

/* --- The request --- */

static const struct {
    const char *name;
    check_function *check;
} checks[] = {
    {"drain", check_drain},   {"loop", check_loop},       {"mesh", check_mesh},
    {"rails", check_rails},   {"gpus", check_gpus},       {"certificates", check_certificates},
    {"memory", check_memory}, {"objects", check_objects}, {"descriptors", check_descriptors},
};
#define CHECK_COUNT (sizeof checks / sizeof checks[0])

void api_health(struct api_session *session, uint64_t request_id, const char *name, uint64_t now_ns)
{
    Commd__Client__HealthCheck rows[CHECK_COUNT];
    Commd__Client__HealthCheck *pointers[CHECK_COUNT];
    char texts[CHECK_COUNT][CHECK_TEXT_MAX_BYTES];
    Commd__Client__HealthReply answer = COMMD__CLIENT__HEALTH_REPLY__INIT;
    answer.checks = pointers;
    for (size_t i = 0; i < CHECK_COUNT; i++) {
        if (name[0] != '\0' && strcmp(name, checks[i].name) != 0) {
            continue;
        }
        Commd__Client__HealthCheck *row = &rows[answer.n_checks];
        commd__client__health_check__init(row);
        row->name = (char *)(uintptr_t)checks[i].name;
        row->fine = checks[i].check(session->api, now_ns, texts[i]);
        row->text = texts[i];
        pointers[answer.n_checks++] = row;
    }
    if (answer.n_checks == 0) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND, "there is no check \"%s\"", name);
        return;
    }
    Commd__Client__Reply reply = API_REPLY(request_id, HEALTH, health, &answer);
    api_session_reply(session, &reply);
}
