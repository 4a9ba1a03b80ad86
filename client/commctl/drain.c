#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/commctl/commctl.h"

/* The verbs that let a node end its work, and that wait for it. */

#define WAIT_DEFAULT_S 60.0
#define WAIT_MAX_S 604800.0
#define WAIT_LOOK_MS 100

static const struct option drain_options[] = {
    {"timeout", required_argument, NULL, 'T'}, {"reason", required_argument, NULL, 'r'}, {NULL, 0, NULL, 0}};

static bool parse_timeout(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out > 0 && *out <= WAIT_MAX_S;
}

enum exit_code verb_drain(struct commctl *commctl, int argc, char **argv)
{
    static const char usage[] = "usage: commctl drain [--timeout SECONDS] [--reason TEXT]\n";
    Commd__Client__Drain body = COMMD__CLIENT__DRAIN__INIT;
    double timeout_s = 0;
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "T:r:", drain_options, NULL)) != -1;) {
        if (option == 'T') {
            if (!parse_timeout(optarg, &timeout_s)) {
                return usage_wrong("drain", "--timeout", optarg, "seconds, more than 0 and at most 604800",
                                   usage);
            }
        } else if (option == 'r') {
            body.reason = optarg;
            if (!usage_reason_fits(optarg)) {
                return usage_wrong("drain", "--reason", NULL, USAGE_REASON, usage);
            }
        } else {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
    }
    if (optind < argc) {
        return usage_wrong("drain", argv[optind], NULL, "options alone", usage);
    }
    body.timeout_ms = timeout_s > 0 ? (uint64_t)(timeout_s * 1000) + 1 : 0;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_DRAIN;
    request.drain = &body;
    return connection_request_done(commctl, &request);
}

enum exit_code verb_undrain(struct commctl *commctl, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    Commd__Client__Undrain body = COMMD__CLIENT__UNDRAIN__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_UNDRAIN;
    request.undrain = &body;
    return connection_request_done(commctl, &request);
}

/* --- Waiting --- */

struct wait {
    bool idle;         /* otherwise: for nodes */
    char missing[160]; /* what it still waits for */
};

/* Whether the state is reached. If not, wait->missing says why not. */
static bool is_reached(const Commd__Client__StatusReply *status, struct wait *wait)
{
    if (wait->idle) {
        uint32_t left = status->comms_formed + status->comms_forming;
        snprintf(wait->missing, sizeof wait->missing, "%u communicators are left", left);
        return left == 0;
    }
    snprintf(wait->missing, sizeof wait->missing, "%u of %u other nodes are up", status->nodes_up,
             status->nodes_configured);
    return status->nodes_up >= status->nodes_configured;
}

/* A commd that does not run, or does not answer, is waited for as well. *code is another failure. */
static bool look(struct commctl *commctl, struct wait *wait, enum exit_code *code)
{
    Commd__Client__StatusQuery query = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    Commd__Client__Event *event;
    bool reached = false;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
    request.status = &query;
    *code = connection_request(commctl, &request, &event);
    if (*code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_STATUS) {
        reached = is_reached(event->reply->status, wait);
    } else if (*code == EXIT_CODE_NOT_RUNNING || *code == EXIT_CODE_TIMED_OUT) {
        snprintf(wait->missing, sizeof wait->missing, "%.120s: no commd answers", commctl->path);
        *code = EXIT_CODE_OK;
    }
    commd__client__event__free_unpacked(event, NULL);
    return reached;
}

static enum exit_code wait_for(struct commctl *commctl, struct wait *wait, double timeout_s)
{
    double until_s = now_s() + timeout_s;
    enum exit_code code;
    commctl->messages = NULL;
    for (;;) {
        double left_s = until_s - now_s();
        commctl->timeout_ms = left_s < 1 ? (left_s > 0.05 ? (uint32_t)(left_s * 1000) : 50) : 1000;
        if (look(commctl, wait, &code)) {
            return EXIT_CODE_OK;
        }
        if (code != EXIT_CODE_OK) {
            fprintf(stderr, "commctl: wait: commd refuses to tell its status\n");
            return code;
        }
        if (now_s() >= until_s) {
            fprintf(stderr, "commctl: wait: after %g s, %s\n", timeout_s, wait->missing);
            return EXIT_CODE_TIMED_OUT;
        }
        nanosleep(&(struct timespec){.tv_nsec = WAIT_LOOK_MS * 1000000L}, NULL);
    }
}

enum exit_code verb_wait(struct commctl *commctl, int argc, char **argv)
{
    static const char usage[] = "usage: commctl wait nodes|idle [--timeout SECONDS]\n";
    double timeout_s = WAIT_DEFAULT_S;
    struct wait wait = {.idle = false};
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "T:", drain_options, NULL)) != -1;) {
        if (option != 'T') {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        if (!parse_timeout(optarg, &timeout_s)) {
            return usage_wrong("wait", "--timeout", optarg, "seconds, more than 0 and at most 604800", usage);
        }
    }
    wait.idle = optind + 1 == argc && strcmp(argv[optind], "idle") == 0;
    if (optind + 1 != argc || (!wait.idle && strcmp(argv[optind], "nodes") != 0)) {
        return usage_wrong("wait", optind < argc ? argv[argc - 1] : "nothing", NULL, "nodes or idle", usage);
    }
    return wait_for(commctl, &wait, timeout_s);
}
