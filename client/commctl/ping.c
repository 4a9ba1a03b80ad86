#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "client/commctl/commctl.h"

#define PINGS_MAX 1000000

static void print_ping(const json_t *object)
{
    printf("%s: %.3f ms\n", json_string_value(json_object_get(object, "node")),
           (double)json_integer_value(json_object_get(object, "round_trip_ns")) / 1e6);
}

static enum exit_code ping_once(struct commctl *commctl, const char *node)
{
    Commd__Client__Ping ping = COMMD__CLIENT__PING__INIT;
    ping.node = (char *)node;
    ping.timeout_ms = commctl->timeout_ms > 500 ? commctl->timeout_ms - 250 : commctl->timeout_ms / 2;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_PING;
    request.ping = &ping;
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_PING) {
        json_t *object = json_of_message(&event->reply->ping->base);
        json_object_set_new(object, "node", json_string(node));
        output_object(commctl, object, print_ping);
        fflush(stdout);
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

enum exit_code verb_ping(struct commctl *commctl, int argc, char **argv)
{
    long count = 3;
    const char *node = NULL;
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (argv[i][0] == '-' && argv[i][1] == 'n' && argv[i][2] == '\0' && i + 1 < argc) {
            count = strtol(argv[++i], &end, 10);
        }
        if (end != NULL ? (*end != '\0' || count < 1 || count > PINGS_MAX)
                        : node != NULL || argv[i][0] == '-') {
            node = NULL;
            break;
        }
        node = end == NULL ? argv[i] : node;
    }
    if (node == NULL) {
        fprintf(stderr, "usage: commctl ping [-n COUNT] NODE\n");
        return EXIT_CODE_USAGE;
    }
    enum exit_code code = EXIT_CODE_OK;
    for (long i = 0; i < count && code == EXIT_CODE_OK; i++) {
        if (i > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        }
        code = ping_once(commctl, node);
    }
    return code;
}
