#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/commctl/commctl.h"
#include "client/commctl/complete.h"
#include "proto/admin_socket.h"
#include "proto/version.h"

static verb_function verb_version, verb_help;

struct verb {
    const char *name;
    const char *arguments;
    const char *help;
    verb_function *function;
    bool watchable;
};

static const struct verb verbs[] = {
    {"status", "", "this node in short (the default)", verb_status, true},
    {"nodes", "[--down | --summary]", "every node: up or not, since when, why not", verb_nodes, true},
    {"comms", "", "communicators: state, ranks, operations, why they failed", verb_comms, true},
    {"clients", "", "processes that are connected", verb_clients, true},
    {"ops", "", "operations under way: ranks arrived, ranks missing, how late", verb_ops, true},
    {"top", "[-d SECONDS] [-n COUNT] ...", "live: communicators, operations, links, processes; what is late",
     verb_top, false},
    {"users", "", "what each user holds in commd, and how much a user may hold", verb_users, true},
    {"gpus", "[--tuning]", "the node's GPUs: memory, MPS, and what clients have on them", verb_gpus, true},
    {"health", "[CHECK]", "checks for probes, a line each; exit code 5 if one of them fails", verb_health,
     true},
    {"events", "[--follow] [--after SEQUENCE]", "what happened on this node, as JSON lines", verb_events,
     false},
    {"metrics", "[--open-metrics]", "all metrics as text, by user and communicator too (administrators)",
     verb_metrics, false},
    {"abort", "COMMUNICATOR [--uid USER] [--reason TEXT]",
     "ends a communicator: its ranks get ABORTED, who and why", verb_abort, false},
    {"disconnect", "PID [--reason TEXT]", "ends a process's sessions: its communicators get RANK_LOST",
     verb_disconnect, false},
    {"drain", "[--timeout S] [--reason TEXT]", "takes no new communicators; ends the rest at the deadline",
     verb_drain, false},
    {"undrain", "", "takes new communicators again", verb_undrain, false},
    {"wait", "nodes | idle [--timeout S]",
     "until all nodes are up, or no communicator is left; 124: timed out", verb_wait, false},
    {"ping", "[-n COUNT] NODE", "round trip to another node, from daemon to daemon", verb_ping, false},
    {"algorithms", "[OPERATION] [-s SIZE] [-n NODES]",
     "which algorithm commd picks for an operation, and why", verb_algorithms, false},
    {"plan", "[OPERATION] [OPTION...]", "predicts time, bytes and memory for any cluster", verb_plan, false},
    {"bench", "[OPTION...]", "measures collectives, and checks their results", verb_bench, false},
    {"run", "-n N | --hosts HOST[:N],... [--] PROGRAM ...",
     "starts the ranks of a job, here or on several hosts", verb_run, false},
    {"trace", "[--seconds S] [-o FILE] [FILE...]",
     "what operations did in the last seconds, for Perfetto or Chrome", verb_trace, false},
    {"reload", "", "commd reads its configuration and certificates again; says what that changed",
     verb_reload, false},
    {"log-level", "LEVEL", "error, warning, info or debug, until the next reload or restart", verb_log_level,
     false},
    {"config", "show | check [FILE]", "shows the settings and their sources, or checks a file", verb_config,
     false},
    {"pki", "init | admit | join AUTHORITY | ...",
     "makes the cluster's authority and the nodes' certificates", verb_pki, false},
    {"version", "", "versions of commctl and of the commd that runs", verb_version, false},
    {"help", "[VERB]", "this text, or the arguments of a verb", verb_help, false},
};
#define VERB_COUNT (sizeof verbs / sizeof verbs[0])

static const struct verb *find_verb(const char *name)
{
    for (size_t i = 0; i < VERB_COUNT; i++) {
        if (strcmp(verbs[i].name, name) == 0) {
            return &verbs[i];
        }
    }
    fprintf(stderr, "commctl: unknown verb: %s\nTry 'commctl help'.\n", name);
    return NULL;
}

static const char *verb_usage(const struct verb *verb, char text[USAGE_MAX_BYTES])
{
    return usage_arguments(verb->name, text) ? text : verb->arguments;
}

static void print_verb(const struct verb *verb)
{
    char usage[USAGE_MAX_BYTES];
    const char *options = help_options(verb->name);
    bool has_usage = strncmp(options, "usage:", 6) == 0;
    if (!has_usage) {
        const char *arguments = verb_usage(verb, usage);
        printf("usage: commctl [OPTION...] %s%s%s\n\n", verb->name, arguments[0] != '\0' ? " " : "",
               arguments);
    }
    printf("%s: %s. commctl(1) explains it.\n%s%s\n'commctl help' has the options before the verb.\n",
           verb->name, verb->help, options[0] != '\0' ? "\n" : "", options);
}

/* For shells. */
static enum exit_code print_completions(int count, char **words)
{
    static char usages[VERB_COUNT][USAGE_MAX_BYTES];
    struct complete_verb known[VERB_COUNT];
    for (size_t i = 0; i < VERB_COUNT; i++) {
        known[i] = (struct complete_verb){verbs[i].name, verb_usage(&verbs[i], usages[i]), verbs[i].help};
    }
    complete(known, VERB_COUNT, usage_global_options, count, words);
    return EXIT_CODE_OK;
}

static enum exit_code verb_help(struct commctl *commctl, int argc, char **argv)
{
    (void)commctl;
    if (argc > 1) {
        const struct verb *verb = find_verb(argv[1]);
        if (verb == NULL) {
            return EXIT_CODE_USAGE;
        }
        print_verb(verb);
        return EXIT_CODE_OK;
    }
    puts("usage: commctl [OPTION...] [VERB [ARGUMENT...]]\n");
    for (size_t i = 0; i < VERB_COUNT; i++) {
        char call[64];
        snprintf(call, sizeof call, "%s %s", verbs[i].name, verbs[i].arguments);
        printf("  %-36s %s\n", call, verbs[i].help);
    }
    puts("\n  -f, --format text|json   how to print (default text)\n"
         "  -w, --watch[=SECONDS]    print every SECONDS (default 1), until interrupted\n"
         "  -t, --timeout SECONDS    how long to wait for commd (default 5)\n"
         "      --socket PATH        default $COMMD_SOCKET, else " CLIENT_SOCKET_DEFAULT "\n"
         "      --admin-socket PATH  the administrators' socket, tried first; default $COMMD_ADMIN_SOCKET, "
         "else beside the clients'\n"
         "      --version, --help\n\n"
         "Exit codes: 0 fine, 1 failure, 2 usage, 3 commd is not running, 4 not found, 5 degraded, 124 timed "
         "out.");
    return EXIT_CODE_OK;
}

static void print_version(const json_t *object)
{
    printf("commctl %s\n", json_string_value(json_object_get(object, "commctl")));
    const json_t *daemon = json_object_get(object, "commd");
    printf("commd   %s\n", daemon != NULL ? json_string_value(daemon) : "none answers");
}

static enum exit_code verb_version(struct commctl *commctl, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    json_t *object = json_pack("{ss}", "commctl", COMMD_VERSION_TEXT);
    enum exit_code code = EXIT_CODE_OK;
    if (access(commctl->socket_path, F_OK) == 0) {
        Commd__Client__StatusQuery query = COMMD__CLIENT__STATUS_QUERY__INIT;
        Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
        request.body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
        request.status = &query;
        Commd__Client__Event *event;
        code = connection_request(commctl, &request, &event);
        if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_STATUS) {
            json_object_set_new(object, "commd", json_string(event->reply->status->version_text));
        }
        commd__client__event__free_unpacked(event, NULL);
    }
    output_object(commctl, object, print_version);
    return code == EXIT_CODE_NOT_RUNNING ? EXIT_CODE_OK : code; /* without commd, its version is not shown */
}

static bool parse_seconds(const char *text, double low, double high, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= low && *out <= high;
}

/* text: may be null; "=2" in -w=2, which means --watch=2. */
static bool parse_watch(const char *text, double *out)
{
    *out = 1;
    return text == NULL || parse_seconds(text + (text[0] == '='), 0.1, 86400, out);
}

/* Returns -1 to continue, otherwise the exit code. */
static int parse_options(int argc, char **argv, struct commctl *commctl)
{
    static const struct option options[] = {
        {"format", required_argument, NULL, 'f'},
        {"watch", optional_argument, NULL, 'w'},
        {"timeout", required_argument, NULL, 't'},
        {"socket", required_argument, NULL, 'S'},
        {"admin-socket", required_argument, NULL, 'A'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    double timeout_s;
    const char *admin_socket = NULL;
    for (int option; (option = getopt_long(argc, argv, "+f:w::t:h", options, NULL)) != -1;) {
        switch (option) {
        case 'f':
            commctl->json = strcmp(optarg, "json") == 0;
            if (!commctl->json && strcmp(optarg, "text") != 0) {
                return usage_wrong(NULL, "--format", optarg, "text or json", "");
            }
            break;
        case 'w':
            if (!parse_watch(optarg, &commctl->watch_s)) {
                return usage_wrong(NULL, "--watch", optarg, "seconds, 0.1 to 86400", "");
            }
            break;
        case 't':
            if (!parse_seconds(optarg, 0.01, 3600, &timeout_s)) {
                return usage_wrong(NULL, "--timeout", optarg, "seconds, 0.01 to 3600", "");
            }
            commctl->timeout_ms = (uint32_t)(timeout_s * 1000);
            commctl->timeout_given = true;
            break;
        case 'S':
            if (optarg[0] == '\0') {
                return usage_wrong(NULL, "--socket", "\"\"", "a path", "");
            }
            commctl->socket_path = optarg;
            commctl->admin_socket_path = NULL; /* the one from the environment may be another commd's */
            break;
        case 'A':
            admin_socket = optarg;
            break;
        case 'V':
            puts("commctl " COMMD_VERSION_TEXT);
            return EXIT_CODE_OK;
        case 'h':
            return (int)verb_help(commctl, 0, NULL);
        default:
            fputs("Try 'commctl help'.\n", stderr);
            return EXIT_CODE_USAGE;
        }
    }
    if (admin_socket != NULL) {
        commctl->admin_socket_path = admin_socket;
    }
    return -1;
}

/* The default is next to the clients' socket, unless an option or the environment names a path. */
static void find_admin_socket(struct commctl *commctl)
{
    static char path[PATH_MAX];
    if (commctl->admin_socket_path == NULL && admin_socket_path(commctl->socket_path, path, sizeof path)) {
        commctl->admin_socket_path = path;
    }
}

/* What follows the first argument of run is the program's. */
static bool asks_for_help(const struct verb *verb, int argc, char **argv)
{
    for (int i = 1; i < argc && (i == 1 || verb->function != verb_run); i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

static enum exit_code run_verb(struct commctl *commctl, const struct verb *verb, int argc, char **argv)
{
    if (asks_for_help(verb, argc, argv)) {
        print_verb(verb);
        return EXIT_CODE_OK;
    }
    if (verb->arguments[0] == '\0' && argc > 1) {
        fprintf(stderr, "commctl: %s: unexpected argument: %s%s\n", verb->name, argv[1],
                argv[1][0] == '-' ? " (options of commctl stand before the verb)" : "");
        return EXIT_CODE_USAGE;
    }
    if (commctl->watch_s > 0 && !verb->watchable) {
        fprintf(stderr, "commctl: %s cannot be watched\n", verb->name);
        return EXIT_CODE_USAGE;
    }
    char name[32]; /* with which getopt's messages begin, as all others do */
    (void)snprintf(name, sizeof name, "commctl: %s", verb->name);
    argv[0] = name;
    for (;;) {
        if (commctl->watch_s > 0 && isatty(STDOUT_FILENO) && !commctl->json) {
            fputs("\033[H\033[2J", stdout);
        }
        enum exit_code code = verb->function(commctl, argc, argv);
        if (commctl->watch_s <= 0 || code == EXIT_CODE_USAGE || fflush(stdout) != 0) {
            return code;
        }
        nanosleep(&(struct timespec){.tv_sec = (time_t)commctl->watch_s,
                                     .tv_nsec =
                                         (long)((commctl->watch_s - (double)(time_t)commctl->watch_s) * 1e9)},
                  NULL);
    }
}

/*
 * If one of the descriptors 0 to 2 is closed, a connection would get its number, and the output. So /dev/null
 * takes its place, opened the other way round: what would have failed still fails.
 */
static void keep_standard_descriptors(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0) {
            (void)!open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY); /* gets the lowest number */
        }
    }
}

int main(int argc, char **argv)
{
    const char *environment = getenv(CLIENT_SOCKET_ENVIRONMENT);
    const char *admin_environment = getenv(ADMIN_SOCKET_ENVIRONMENT);
    struct commctl commctl = {
        .socket_path = environment != NULL && environment[0] != '\0' ? environment : CLIENT_SOCKET_DEFAULT,
        .admin_socket_path =
            admin_environment != NULL && admin_environment[0] != '\0' ? admin_environment : NULL,
        .messages = stderr,
        .timeout_ms = 5000,
        .fd = -1};
    keep_standard_descriptors();
    int exit_code = parse_options(argc, argv, &commctl);
    if (exit_code >= 0) {
        return (int)output_finish((enum exit_code)exit_code);
    }
    find_admin_socket(&commctl);
    char *default_verb[] = {(char *)"status", NULL};
    char **arguments = optind < argc ? argv + optind : default_verb;
    int count = optind < argc ? argc - optind : 1;
    if (strcmp(arguments[0], "complete") == 0) {
        return (int)output_finish(print_completions(count - 1, arguments + 1));
    }
    const struct verb *verb = find_verb(arguments[0]);
    if (verb == NULL) {
        return EXIT_CODE_USAGE;
    }
    enum exit_code code = output_finish(run_verb(&commctl, verb, count, arguments));
    connection_close(&commctl);
    return (int)code;
}
