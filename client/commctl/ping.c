#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/commctl/commctl.h"

#define PINGS_MAX 1000000

/* As JSON all of them are one document, at the end. */
static enum exit_code ping_once(struct commctl *commctl, const char *node, json_t *round_trips_ns)
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
        uint64_t round_trip_ns = event->reply->ping->round_trip_ns;
        json_array_append_new(round_trips_ns, json_integer((json_int_t)round_trip_ns));
        if (!commctl->json) {
            printf("%s: %.3f ms\n", node, (double)round_trip_ns / 1e6);
            fflush(stdout);
        }
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

static const char usage[] = "usage: commctl ping [-n COUNT] NODE\n";

static enum exit_code parse(int argc, char **argv, long *count, const char **node)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-n") == 0 && i + 1 < argc) {
            char *end;
            *count = strtol(argv[++i], &end, 10);
            if (end == argv[i] || *end != '\0' || *count < 1 || *count > PINGS_MAX) {
                return usage_wrong("ping", "-n", argv[i], "how often, 1 to 1000000", usage);
            }
        } else if (*node != NULL || argv[i][0] == '-') {
            return usage_wrong("ping", argv[i], NULL, "one node, and perhaps -n COUNT", usage);
        } else {
            *node = argv[i];
        }
    }
    return *node != NULL ? EXIT_CODE_OK : usage_wrong("ping", "NODE", NULL, "a node's name", usage);
}

enum exit_code verb_ping(struct commctl *commctl, int argc, char **argv)
{
    long count = 3;
    const char *node = NULL;
    enum exit_code code = parse(argc, argv, &count, &node);
    json_t *round_trips_ns = json_array();
    for (long i = 0; i < count && code == EXIT_CODE_OK; i++) {
        if (i > 0) {
            nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
        }
        code = ping_once(commctl, node, round_trips_ns);
    }
    if (commctl->json && json_array_size(round_trips_ns) > 0) {
        json_t *object = json_object();
        json_object_set_new(object, "node", json_string(node));
        json_object_set(object, "round_trips_ns", round_trips_ns);
        output_object(commctl, object, NULL);
    }
    json_decref(round_trips_ns);
    return code;
}
