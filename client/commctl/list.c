#include <stdio.h>
#include <string.h>
#include <time.h>

#include "client/commctl/commctl.h"

#define CERTIFICATE_WARN_S (UINT64_C(30) * 86400) /* as for the warnings in commd's log */

static void print_field(const json_t *object, const char *title, const char *key, enum column_format format)
{
    char text[256];
    table_format(json_object_get(object, key), format, text, sizeof text);
    printf("%-14s%s\n", title, text);
}

static long long number(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static bool certificate_has_ended(uint64_t ends_s)
{
    return ends_s != 0 && (uint64_t)time(NULL) >= ends_s;
}

static void print_certificate(const json_t *status)
{
    uint64_t ends_s = (uint64_t)number(status, "certificate_ends_s");
    uint64_t now_s = (uint64_t)time(NULL);
    char date[32];
    if (ends_s == 0) {
        return;
    }
    table_format(json_object_get(status, "certificate_ends_s"), COLUMN_DATE, date, sizeof date);
    if (certificate_has_ended(ends_s)) {
        printf("%-14sended on %s: no new connection is possible; renew it\n", "certificate", date);
    } else if (ends_s - now_s < CERTIFICATE_WARN_S) {
        printf("%-14suntil %s, %llu days: renew it\n", "certificate", date,
               (unsigned long long)((ends_s - now_s) / 86400u));
    } else {
        printf("%-14suntil %s\n", "certificate", date);
    }
}

static void print_trouble(const json_t *status, const char *key, const char *what)
{
    if (number(status, key) > 0) {
        printf("%-14s%lld %s\n", "", number(status, key), what);
    }
}

static void print_drain(const json_t *status)
{
    const char *reason = json_string_value(json_object_get(status, "drain_reason"));
    long long left_ms = number(status, "drain_left_ms");
    char left[32];
    if (!json_is_true(json_object_get(status, "draining"))) {
        return;
    }
    table_format(json_object_get(status, "drain_left_ms"), COLUMN_MS, left, sizeof left);
    printf("%-14s%s%s%s%s\n", "draining", reason != NULL && reason[0] != '\0' ? reason : "no reason given",
           left_ms > 0 ? "; existing communicators end in " : "", left_ms > 0 ? left : "",
           left_ms > 0 ? "" : "; existing communicators may go on, or have been ended");
}

static void print_status(const json_t *status)
{
    bool standalone = json_is_true(json_object_get(status, "standalone"));
    printf("%-14s%s%s%s\n", "node", json_string_value(json_object_get(status, "node_name")),
           standalone ? " (standalone)" : "",
           json_is_true(json_object_get(status, "draining")) ? " (draining)" : "");
    print_drain(status);
    if (!standalone) {
        print_field(status, "cluster", "cluster_name", COLUMN_TEXT);
        print_field(status, "address", "network_address", COLUMN_TEXT);
        printf("%-14s%lld of %lld up\n", "other nodes", number(status, "nodes_up"),
               number(status, "nodes_configured"));
        print_trouble(status, "nodes_unresolved", "unresolved: their names have no address (commctl nodes)");
        print_trouble(status, "nodes_differ", "with other settings than this node (commctl nodes)");
    }
    print_trouble(status, "settings_waiting", "settings wait for a restart (commctl config show)");
    print_certificate(status);
    print_field(status, "version", "version_text", COLUMN_TEXT);
    print_field(status, "pid", "pid", COLUMN_NUMBER);
    print_field(status, "uptime", "uptime_ms", COLUMN_MS);
    print_field(status, "clients", "clients", COLUMN_NUMBER);
    printf("%-14s%lld formed, %lld forming, %lld failed\n", "communicators", number(status, "comms_formed"),
           number(status, "comms_forming"), number(status, "comms_failed"));
    printf("%-14s%lld completed, %lld failed, %lld pending\n", "operations", number(status, "ops_completed"),
           number(status, "ops_failed"), number(status, "ops_pending"));
    print_field(status, "registered", "memory_registered_bytes", COLUMN_BYTES);
    print_field(status, "resident", "resident_bytes", COLUMN_BYTES);
    print_field(status, "reductions", "reduce_level", COLUMN_TEXT);
    if (number(status, "log_lines_lost") > 0) {
        printf("%-14s%lld lines lost: the log's reader is too slow\n", "log",
               number(status, "log_lines_lost"));
    }
}

enum exit_code status_fetch(struct commctl *commctl, json_t **status)
{
    *status = NULL;
    Commd__Client__StatusQuery query = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
    request.status = &query;
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    if (event->reply->body_case != COMMD__CLIENT__REPLY__BODY_STATUS) {
        fprintf(commctl->messages, "commctl: commd answered another request\n");
        code = EXIT_CODE_FAILURE;
    } else {
        *status = json_of_message(&event->reply->status->base);
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

enum exit_code verb_status(struct commctl *commctl, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    json_t *status;
    enum exit_code code = status_fetch(commctl, &status);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    bool degraded = number(status, "nodes_up") < number(status, "nodes_configured") ||
                    number(status, "nodes_differ") > 0 || json_is_true(json_object_get(status, "draining")) ||
                    certificate_has_ended((uint64_t)number(status, "certificate_ends_s"));
    output_object(commctl, status, print_status);
    return degraded ? EXIT_CODE_DEGRADED : EXIT_CODE_OK;
}

const struct list list_nodes = {"nodes", "node", "nodes", COMMD__CLIENT__REQUEST__BODY_NODES,
                                COMMD__CLIENT__REPLY__BODY_NODES};
const struct list list_comms = {"comms", "communicator", "communicators", COMMD__CLIENT__REQUEST__BODY_COMMS,
                                COMMD__CLIENT__REPLY__BODY_COMMS};
const struct list list_clients = {"clients", "client", "clients", COMMD__CLIENT__REQUEST__BODY_CLIENTS,
                                  COMMD__CLIENT__REPLY__BODY_CLIENTS};
const struct list list_ops = {"ops", "operation", "operations", COMMD__CLIENT__REQUEST__BODY_OPS,
                              COMMD__CLIENT__REPLY__BODY_OPS};

#define PAGES_MAX 4096

void print_others(long long count, const char *singular, const char *plural)
{
    if (count > 0) {
        printf("and %lld %s of other users\n", count, count == 1 ? singular : plural);
    }
}

enum exit_code list_fetch(struct commctl *commctl, const struct list *list, json_t *rows, long long *others)
{
    *others = 0;
    uint64_t after = 0;
    for (int page = 0; page < PAGES_MAX; page++) {
        /* The queries have the same one field. */
        Commd__Client__NodesQuery nodes = COMMD__CLIENT__NODES_QUERY__INIT;
        Commd__Client__CommsQuery comms = COMMD__CLIENT__COMMS_QUERY__INIT;
        Commd__Client__ClientsQuery clients = COMMD__CLIENT__CLIENTS_QUERY__INIT;
        Commd__Client__OpsQuery ops = COMMD__CLIENT__OPS_QUERY__INIT;
        Commd__Client__UsersQuery users = COMMD__CLIENT__USERS_QUERY__INIT;
        nodes.after = comms.after = clients.after = ops.after = users.after = after;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.body_case = list->question;
        if (list == &list_nodes) {
            request.nodes = &nodes;
        } else if (list == &list_comms) {
            request.comms = &comms;
        } else if (list == &list_clients) {
            request.clients = &clients;
        } else if (list->question == COMMD__CLIENT__REQUEST__BODY_USERS) {
            request.users = &users;
        } else {
            request.ops = &ops;
        }
        Commd__Client__Event *event;
        enum exit_code code = connection_request(commctl, &request, &event);
        if (code != EXIT_CODE_OK) {
            return code;
        }
        json_t *object = NULL;
        if (event->reply->body_case == list->answer) {
            object = json_of_message((const ProtobufCMessage *)event->reply->nodes);
        }
        commd__client__event__free_unpacked(event, NULL);
        json_array_extend(rows, json_object_get(object, list->name));
        after = (uint64_t)json_integer_value(json_object_get(object, "cursor"));
        *others = json_integer_value(json_object_get(object, "others")); /* the last page's value counts */
        json_decref(object);
        if (after == 0) {
            return EXIT_CODE_OK;
        }
    }
    return EXIT_CODE_OK;
}

static enum exit_code show_list(struct commctl *commctl, int argc, char **argv, const struct list *list,
                                const struct column *columns, size_t column_count)
{
    (void)argc;
    (void)argv;
    json_t *rows = json_array();
    long long others;
    enum exit_code code = list_fetch(commctl, list, rows, &others);
    if (code == EXIT_CODE_OK && commctl->json) {
        output_object(commctl, json_pack("{sO,sI}", list->name, rows, "others", (json_int_t)others), NULL);
    } else if (code == EXIT_CODE_OK) {
        table_print(rows, columns, column_count);
        print_others(others, list->singular, list->plural);
    }
    json_decref(rows);
    return code;
}

#define COLUMN_COUNT(columns) (sizeof(columns) / sizeof(columns)[0])

enum exit_code verb_comms(struct commctl *commctl, int argc, char **argv)
{
    static const struct column columns[] = {
        {"name", "COMMUNICATOR", COLUMN_TEXT},
        {"state", "STATE", COLUMN_TEXT},
        {"since_ms", "SINCE", COLUMN_MS},
        {"owner_uid", "UID", COLUMN_NUMBER},
        {"size", "SIZE", COLUMN_NUMBER},
        {"local_size", "LOCAL", COLUMN_NUMBER},
        {"node_names", "NODES", COLUMN_LIST},
        {"ops_posted", "POSTED", COLUMN_NUMBER},
        {"ops_completed", "DONE", COLUMN_NUMBER},
        {"bytes_reduced", "BYTES", COLUMN_BYTES},
        {"captured_ops", "CAPTURED", COLUMN_NUMBER},
        {"replays", "REPLAYS", COLUMN_NUMBER},
        {"missing_ranks", "MISSING", COLUMN_TEXT},
        {"error", "ERROR", COLUMN_TEXT},
    };
    return show_list(commctl, argc, argv, &list_comms, columns, COLUMN_COUNT(columns));
}

enum exit_code verb_clients(struct commctl *commctl, int argc, char **argv)
{
    static const struct column columns[] = {
        {"pid", "PID", COLUMN_NUMBER},
        {"uid", "UID", COLUMN_NUMBER},
        {"program", "PROGRAM", COLUMN_TEXT},
        {"connected_ms", "SINCE", COLUMN_MS},
        {"comms", "RANKS", COLUMN_NUMBER},
        {"memories", "MEMORIES", COLUMN_NUMBER},
        {"memory_bytes", "REGISTERED", COLUMN_BYTES},
        {"ops_submitted", "SUBMITTED", COLUMN_NUMBER},
        {"ops_completed", "DONE", COLUMN_NUMBER},
    };
    return show_list(commctl, argc, argv, &list_clients, columns, COLUMN_COUNT(columns));
}

enum exit_code verb_ops(struct commctl *commctl, int argc, char **argv)
{
    static const struct column columns[] = {
        {"comm_name", "COMMUNICATOR", COLUMN_TEXT},   {"seq", "SEQ", COLUMN_NUMBER},
        {"kind", "OPERATION", COLUMN_TEXT},           {"dtype", "TYPE", COLUMN_TEXT},
        {"count_elements", "COUNT", COLUMN_NUMBER},   {"age_ms", "AGE", COLUMN_MS},
        {"deadline_in_ms", "DEADLINE IN", COLUMN_MS}, {"arrived_ranks", "ARRIVED", COLUMN_TEXT},
        {"missing_ranks", "MISSING", COLUMN_TEXT},    {"waiting_for", "WAITING FOR", COLUMN_TEXT},
    };
    return show_list(commctl, argc, argv, &list_ops, columns, COLUMN_COUNT(columns));
}
