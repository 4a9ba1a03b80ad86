#include <getopt.h>
#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/commctl.h"

/* The verbs that end communicators and clients. */

struct control_options {
    bool has_uid;
    uint32_t uid;
    const char *reason;
    const char *target; /* the one argument */
};

static bool parse_number(const char *text, unsigned long max, uint32_t *out)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (end == text || *end != '\0' || text[0] == '-' || number > max) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

/* A number, or a user's name. */
static bool parse_user(const char *text, uint32_t *uid)
{
    const struct passwd *user;
    if (parse_number(text, UINT32_MAX, uid)) {
        return true;
    }
    user = getpwnam(text);
    if (user != NULL) {
        *uid = user->pw_uid;
    }
    return user != NULL;
}

/* target: what the one argument of the verb is. */
static enum exit_code parse_options(const char *verb, int argc, char **argv, const char *target,
                                    const char *usage, struct control_options *out)
{
    static const struct option options[] = {
        {"reason", required_argument, NULL, 'r'}, {"uid", required_argument, NULL, 'u'}, {NULL, 0, NULL, 0}};
    bool takes_uid = strcmp(verb, "abort") == 0;
    *out = (struct control_options){.reason = ""};
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "r:u:", options, NULL)) != -1;) {
        if (option == 'r') {
            out->reason = optarg;
            if (!usage_reason_fits(optarg)) {
                return usage_wrong(verb, "--reason", NULL, USAGE_REASON, usage);
            }
        } else if (option == 'u' && takes_uid) {
            if (!parse_user(optarg, &out->uid)) {
                return usage_wrong(verb, "--uid", optarg, "a user's number or name", usage);
            }
            out->has_uid = true;
        } else if (option == 'u') {
            return usage_wrong(verb, "--uid", optarg, "only PID and --reason", usage);
        } else {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
    }
    if (optind + 1 != argc) {
        return usage_wrong(verb, optind == argc ? "nothing" : argv[optind + 1], NULL, target, usage);
    }
    out->target = argv[optind];
    return EXIT_CODE_OK;
}

enum exit_code verb_abort(struct commctl *commctl, int argc, char **argv)
{
    struct control_options options;
    if (parse_options("abort", argc, argv, "the name of one communicator",
                      "usage: commctl abort COMMUNICATOR [--uid USER] [--reason TEXT]\n",
                      &options) != EXIT_CODE_OK) {
        return EXIT_CODE_USAGE;
    }
    Commd__Client__CommAbort body = COMMD__CLIENT__COMM_ABORT__INIT;
    body.name = (char *)(uintptr_t)options.target;
    body.has_owner = options.has_uid;
    body.owner_uid = options.uid;
    body.reason = (char *)(uintptr_t)options.reason;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_ABORT;
    request.comm_abort = &body;
    return connection_request_done(commctl, &request);
}

enum exit_code verb_disconnect(struct commctl *commctl, int argc, char **argv)
{
    struct control_options options;
    static const char usage[] = "usage: commctl disconnect PID [--reason TEXT]\n";
    static const char expected[] = "the number of one process, 1 to 2147483647";
    uint32_t pid = 0;
    if (parse_options("disconnect", argc, argv, expected, usage, &options) != EXIT_CODE_OK) {
        return EXIT_CODE_USAGE;
    }
    if (!parse_number(options.target, INT_MAX, &pid) || pid == 0) {
        return usage_wrong("disconnect", "PID", options.target, expected, usage);
    }
    Commd__Client__Disconnect body = COMMD__CLIENT__DISCONNECT__INIT;
    body.pid = pid;
    body.reason = (char *)(uintptr_t)options.reason;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_DISCONNECT;
    request.disconnect = &body;
    return connection_request_done(commctl, &request);
}
