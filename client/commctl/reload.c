#include <stdio.h>

#include "client/commctl/commctl.h"

/* The verbs that change the configuration in force. */

#define RELOAD_TIMEOUT_MS 60000u /* a name server may be asked for the node's own address */

static void print_texts(const json_t *object, const char *key, const char *title)
{
    size_t index;
    json_t *text;
    json_array_foreach(json_object_get(object, key), index, text)
    {
        printf("%s: %s\n", title, json_string_value(text));
    }
}

static void print_reload(const json_t *object)
{
    long long left_out = json_integer_value(json_object_get(object, "left_out"));
    print_texts(object, "applied", "applied");
    print_texts(object, "waiting", "waits for a restart");
    if (left_out > 0) {
        printf("and %lld more changes\n", left_out);
    }
    if (json_array_size(json_object_get(object, "applied")) == 0 &&
        json_array_size(json_object_get(object, "waiting")) == 0) {
        puts("nothing has changed");
    }
}

enum exit_code verb_reload(struct commctl *commctl, int argc, char **argv)
{
    Commd__Client__Reload body = COMMD__CLIENT__RELOAD__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    Commd__Client__Event *event;
    (void)argc;
    (void)argv;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_RELOAD;
    request.reload = &body;
    commctl->timeout_ms = commctl->timeout_given ? commctl->timeout_ms : RELOAD_TIMEOUT_MS;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_RELOAD) {
        output_object(commctl, json_of_message(&event->reply->reload->base), print_reload);
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

enum exit_code verb_log_level(struct commctl *commctl, int argc, char **argv)
{
    Commd__Client__LogLevel body = COMMD__CLIENT__LOG_LEVEL__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    Commd__Client__Event *event;
    if (argc != 2) {
        return usage_wrong("log-level", argc < 2 ? "nothing" : argv[2], NULL,
                           "one level: error, warning, info or debug", "usage: commctl log-level LEVEL\n");
    }
    body.level = argv[1];
    request.body_case = COMMD__CLIENT__REQUEST__BODY_LOG_LEVEL;
    request.log_level = &body;
    enum exit_code code = connection_request(commctl, &request, &event);
    commd__client__event__free_unpacked(event, NULL);
    return code;
}
