#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

/* commctl health: a line for each check, for probes. commd makes all checks but the first: whether it
 * answers. */

#define ANSWERS "answers"

static const char usage[] = "usage: commctl health [CHECK]\n";

static void add_check(json_t *checks, const char *name, bool fine, const char *text)
{
    json_array_append_new(checks, json_pack("{sssbss}", "name", name, "fine", fine, "text", text));
}

static void print_checks(const json_t *object)
{
    size_t index;
    json_t *check;
    json_array_foreach(json_object_get(object, "checks"), index, check)
    {
        printf("%-14s%-8s%s\n", json_string_value(json_object_get(check, "name")),
               json_is_true(json_object_get(check, "fine")) ? "ok" : "failed",
               json_string_value(json_object_get(check, "text")));
    }
}

/* Adds commd's checks; only the one of that name unless it is "". Prints failures. */
static enum exit_code ask(struct commctl *commctl, const char *name, json_t *checks, bool *all_fine)
{
    Commd__Client__HealthQuery query = COMMD__CLIENT__HEALTH_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    Commd__Client__Event *event;
    char text[64];
    bool only_answers = strcmp(name, ANSWERS) == 0;
    query.name = (char *)(uintptr_t)(only_answers ? "" : name);
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HEALTH;
    request.health = &query;
    double began_s = now_s();
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code != EXIT_CODE_OK || event->reply->body_case != COMMD__CLIENT__REPLY__BODY_HEALTH) {
        commd__client__event__free_unpacked(event, NULL);
        if (code == EXIT_CODE_NOT_RUNNING || code == EXIT_CODE_TIMED_OUT) {
            add_check(checks, ANSWERS, false, "no");
        }
        return code != EXIT_CODE_OK ? code : EXIT_CODE_FAILURE;
    }
    (void)snprintf(text, sizeof text, "in %.1f ms", (now_s() - began_s) * 1e3);
    if (only_answers || name[0] == '\0') {
        add_check(checks, ANSWERS, true, text);
    }
    const Commd__Client__HealthReply *reply = event->reply->health;
    for (size_t i = 0; i < reply->n_checks && !only_answers; i++) {
        add_check(checks, reply->checks[i]->name, reply->checks[i]->fine, reply->checks[i]->text);
        *all_fine = *all_fine && reply->checks[i]->fine;
    }
    commd__client__event__free_unpacked(event, NULL);
    return EXIT_CODE_OK;
}

enum exit_code verb_health(struct commctl *commctl, int argc, char **argv)
{
    if (argc > 2) {
        return usage_wrong("health", argv[2], NULL, "the name of one check at most", usage);
    }
    json_t *checks = json_array();
    bool all_fine = true;
    enum exit_code code = ask(commctl, argc == 2 ? argv[1] : "", checks, &all_fine);
    if (code != EXIT_CODE_OK && json_array_size(checks) == 0) {
        json_decref(checks);
        return code;
    }
    bool fine = code == EXIT_CODE_OK && all_fine;
    output_object(commctl, json_pack("{sbso}", "fine", fine, "checks", checks), print_checks);
    return code != EXIT_CODE_OK ? code : fine ? EXIT_CODE_OK : EXIT_CODE_DEGRADED;
}
