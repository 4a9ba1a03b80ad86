#include <ctype.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/commctl/run.h"
#include "proto/version.h"

const char run_usage[] =
    "usage: commctl run -n RANKS [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
    "       commctl run --hosts HOST[:RANKS],... [OPTION...] [--] PROGRAM [ARGUMENT...]\n"
    "\n"
    "  -n, --ranks N              start N ranks on this machine\n"
    "      --hosts HOST[:N],...   start N ranks (default 1) on each host\n"
    "      --launcher ssh|srun    how hosts are reached (default ssh)\n"
    "      --env NAME[=VALUE]     a variable for ranks on other hosts; COMMD_* are passed in any case\n"
    "      --name NAME            first part of the job's name (default: the program's)\n"
    "      --no-label             do not print [RANK] before each line of output\n"
    "      --output-dir DIR       write output to DIR/rank-N.out and DIR/rank-N.err\n"
    "      --grace SECONDS        between SIGTERM and SIGKILL, when ranks are ended (default 5)\n"
    "\n"
    "Each rank gets COMMD_RANK, COMMD_SIZE, COMMD_LOCAL_RANK, COMMD_LOCAL_SIZE and COMMD_JOB, which\n"
    "comm_init_env reads. If a rank fails, the others are ended. The exit code is that of the first rank "
    "that\n"
    "failed, or 128 + the number of the signal that ended it.\n";

enum {
    OPTION_HOSTS = 256,
    OPTION_LAUNCHER,
    OPTION_ENV,
    OPTION_NAME,
    OPTION_NO_LABEL,
    OPTION_OUTPUT,
    OPTION_GRACE,
    OPTION_AGENT
};

static const struct option options_known[] = {{"ranks", required_argument, NULL, 'n'},
                                              {"hosts", required_argument, NULL, OPTION_HOSTS},
                                              {"launcher", required_argument, NULL, OPTION_LAUNCHER},
                                              {"env", required_argument, NULL, OPTION_ENV},
                                              {"name", required_argument, NULL, OPTION_NAME},
                                              {"no-label", no_argument, NULL, OPTION_NO_LABEL},
                                              {"output-dir", required_argument, NULL, OPTION_OUTPUT},
                                              {"grace", required_argument, NULL, OPTION_GRACE},
                                              {"agent", required_argument, NULL, OPTION_AGENT},
                                              {NULL, 0, NULL, 0}};

static bool parse_count(const char *text, uint32_t low, uint32_t high, uint32_t *out)
{
    char *end;
    unsigned long number = strtoul(text, &end, 10);
    if (!isdigit((unsigned char)text[0]) || *end != '\0' || number < low || number > high) {
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

/* A name that ssh takes for an option is refused. */
static bool host_is_good(const char *name)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_@%";
    return name[0] != '\0' && name[0] != '-' && strspn(name, allowed) == strlen(name);
}

/* HOST[:N], modified. */
static bool parse_host(char *text, struct run_host *out)
{
    char *colon = strchr(text, ':');
    out->count = 1;
    if (colon != NULL) {
        *colon = '\0';
        if (!parse_count(colon + 1, 1, RUN_RANKS_MAX, &out->count)) {
            return false;
        }
    }
    out->name = text;
    return host_is_good(text);
}

static bool parse_hosts(const char *text, struct run_options *out)
{
    char *copy = strdup(text), *position = copy;
    if (out->hosts != NULL) {
        free(copy);
        return false; /* given twice */
    }
    out->hosts = calloc(RUN_HOSTS_MAX, sizeof *out->hosts);
    out->host_count = 0;
    uint32_t size = 0;
    bool good = copy != NULL && out->hosts != NULL;
    while (good && position != NULL) {
        char *item = strsep(&position, ",");
        good = out->host_count < RUN_HOSTS_MAX && parse_host(item, &out->hosts[out->host_count]);
        if (good) {
            struct run_host *host = &out->hosts[out->host_count];
            host->name = strdup(host->name);
            size += host->count;
            good = host->name != NULL && size <= RUN_RANKS_MAX;
            out->host_count++;
        }
    }
    free(copy);
    out->size = size;
    return good;
}

/* FIRST:COUNT:SIZE:JOB, of an agent */
static bool parse_agent(const char *text, struct run_options *out)
{
    char *copy = strdup(text), *position = copy;
    char *first = strsep(&position, ":"), *count = strsep(&position, ":"), *size = strsep(&position, ":");
    bool good = copy != NULL && position != NULL && strlen(position) <= RUN_JOB_MAX_BYTES &&
                parse_count(size, 1, RUN_RANKS_MAX, &out->size) &&
                parse_count(count, 1, out->size, &out->count) &&
                parse_count(first, 0, out->size - out->count, &out->first);
    if (good) {
        snprintf(out->job, sizeof out->job, "%s", position);
        out->is_agent = true;
    }
    free(copy);
    return good;
}

static bool parse_grace(const char *text, double *out)
{
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == '\0' && *out >= 0 && *out <= 3600;
}

static bool parse_launcher(const char *text, enum run_launcher *out)
{
    *out = strcmp(text, "srun") == 0 ? RUN_SRUN : RUN_SSH;
    return *out == RUN_SRUN || strcmp(text, "ssh") == 0;
}

/* Returns what was expected in place of the argument, or null if it is fine. */
static const char *take_option(int option, const char *argument, struct run_options *out, const char **name)
{
    switch (option) {
    case 'n':
        return parse_count(argument, 1, RUN_RANKS_MAX, &out->count) ? NULL : "a number of ranks, 1 to 4096";
    case OPTION_HOSTS:
        return parse_hosts(argument, out) ? NULL
                                          : "hosts like alpha:4,beta:4, with at most 4096 ranks in all";
    case OPTION_LAUNCHER:
        return parse_launcher(argument, &out->launcher) ? NULL : "ssh or srun";
    case OPTION_ENV:
        out->variables[out->variable_count++] = argument;
        return argument[0] != '\0' && argument[0] != '=' ? NULL : "NAME or NAME=VALUE";
    case OPTION_NAME:
        *name = argument;
        return argument[0] != '\0' && strlen(argument) <= 64 ? NULL : "a name of 1 to 64 bytes";
    case OPTION_NO_LABEL:
        out->label = false;
        return NULL;
    case OPTION_OUTPUT:
        out->output_folder = argument;
        return NULL;
    case OPTION_GRACE:
        return parse_grace(argument, &out->grace_s) ? NULL : "seconds, 0 to 3600";
    case OPTION_AGENT:
        return parse_agent(argument, out) ? NULL : "what another commctl run passes";
    default:
        return "";
    }
}

/* A job's name is new for each run, so that its ranks never meet those of an earlier one. */
static void make_job(const char *name, const char *program, char job[RUN_JOB_MAX_BYTES + 1])
{
    uint64_t number = 0;
    const char *slash = strrchr(program, '/');
    const char *base = name != NULL ? name : slash != NULL ? slash + 1 : program;
    (void)!getrandom(&number, sizeof number, 0);
    snprintf(job, RUN_JOB_MAX_BYTES + 1, "%.64s.%016llx", base, (unsigned long long)number);
    for (char *byte = job; *byte != '\0'; byte++) {
        *byte = *byte > ' ' && *byte <= '~' && *byte != '\'' ? *byte : '_';
    }
}

static enum exit_code check_together(const struct run_options *options, int argc)
{
    if (optind >= argc) {
        return usage_wrong("run", "nothing", NULL, "a program to run", run_usage);
    }
    if (options->hosts != NULL && options->count > 0) {
        return usage_wrong("run", "-n and --hosts", NULL,
                           "one of them: --hosts says how many ranks each host has", run_usage);
    }
    if (options->hosts == NULL && options->count == 0) {
        return usage_wrong("run", "neither -n nor --hosts", NULL, "how many ranks to start", run_usage);
    }
    return EXIT_CODE_OK;
}

enum exit_code run_options_parse(const struct commctl *commctl, int argc, char **argv,
                                 struct run_options *out)
{
    const char *name = NULL;
    const char *socket = commctl->socket_path;
    *out = (struct run_options){.label = true, .grace_s = RUN_GRACE_DEFAULT_S};
    out->socket_path = strcmp(socket, CLIENT_SOCKET_DEFAULT) != 0 ? socket : NULL;
    out->variables = calloc((size_t)argc, sizeof *out->variables);
    if (out->variables == NULL) {
        perror("commctl: run");
        return EXIT_CODE_FAILURE;
    }
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "+n:", options_known, NULL)) != -1;) {
        char text[32];
        const char *expected = take_option(option, optarg, out, &name);
        if (expected != NULL && expected[0] == '\0') {
            fputs(run_usage, stderr);
            return EXIT_CODE_USAGE;
        }
        if (expected != NULL) {
            return usage_wrong("run", usage_option_name(options_known, option, text), optarg, expected,
                               run_usage);
        }
    }
    enum exit_code code = check_together(out, argc);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    out->program = argv + optind;
    if (!out->is_agent) {
        out->size = out->hosts != NULL ? out->size : out->count;
        make_job(name, out->program[0], out->job);
    }
    return EXIT_CODE_OK;
}

void run_options_free(struct run_options *options)
{
    for (size_t i = 0; i < options->host_count; i++) {
        free(options->hosts[i].name);
    }
    free(options->hosts);
    free(options->variables);
}
