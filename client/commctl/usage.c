#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

const char usage_global_options[] =
    "[-f|--format text|json] [-w|--watch] [-t|--timeout SECONDS] [--socket PATH] [--admin-socket PATH] "
    "[--version] [-h|--help]";

/* Where a usage has several lines, they are indented as far as `commctl help VERB` begins it. */
static const struct {
    const char *verb, *arguments;
} usages[] = {
    {"abort", "COMMUNICATOR [-u|--uid USER] [-r|--reason TEXT]"},
    {"disconnect", "PID [-r|--reason TEXT]"},
    {"trace", "[-s|--seconds S] [-o|--output FILE] [FILE...]"},
    {"algorithms", "[OPERATION] [-s SIZE[,SIZE...]] [-n NODES|NAME[,NAME...]] [-a OVERRIDES]"},
    {"plan", "[OPERATION] [-n NODES] [-s SIZE[,SIZE...]] [-l LATENCY_US] [-b GBIT_PER_S]\n"
             "        [--slice SIZE] [-a OVERRIDES] [--svg FILE]"},
    {"bench", "[--ranks N] [--operation NAME[,NAME...]] [--dtype TYPE] [--reduce sum|min|max] [--root RANK]\n"
              "        [--min-bytes SIZE] [--max-bytes SIZE] [--step-factor N] [--seconds-per-size S]\n"
              "        [--iterations N] [--in-place | --out-of-place] [--unregistered] [--no-check]\n"
              "        [--communicator NAME] [--size RANKS] [--first-rank RANK] [-f|--format text|json]"},
    {"top", "[-d|--interval SECONDS] [-n|--count COUNT]\n"
            "        [--table communicators|operations|links|processes] [--text]"},
    {"health", "[answers|drain|loop|mesh|rails|gpus|certificates|memory|objects|descriptors]"},
    {"drain", "[-T|--timeout SECONDS] [-r|--reason TEXT]"},
    {"wait", "nodes|idle [-T|--timeout SECONDS]"},
    {"log-level", "error|warning|info|debug"},
    {"run",
     "-n|--ranks RANKS [--hosts HOST:RANKS,...] [--launcher ssh|srun] [--env NAME=VALUE] [--name NAME]\n"
     "        [--no-label] [--output-dir DIR] [--grace SECONDS] PROGRAM"},
    {"pki", "init | admit | join AUTHORITY [NAME] | request NAME | issue NAME | renew NAME\n"
            "        | revoke NAME|SERIAL|FILE | show [NAME|FILE]\n"
            "        [--dir DIR] [--days N] [--request FILE] [--new-key] [--owner USER] [--renew]\n"
            "        [--listen ADDRESS] [--once | --count N] [--yes-code CODE] [--code CODE]"},
};

const char *usage_arguments(const char *verb)
{
    for (size_t i = 0; i < sizeof usages / sizeof usages[0]; i++) {
        if (strcmp(usages[i].verb, verb) == 0) {
            return usages[i].arguments;
        }
    }
    return NULL;
}

enum exit_code usage_wrong(const char *verb, const char *what, const char *given, const char *expected,
                           const char *usage)
{
    fprintf(stderr, "commctl: %s%s%s%s", verb != NULL ? verb : "", verb != NULL ? ": " : "", what,
            given != NULL ? " " : "");
    fprintf(stderr, "%s: expected %s\n%s",
            given == NULL    ? ""
            : *given != '\0' ? given
                             : "\"\"",
            expected, usage);
    return EXIT_CODE_USAGE;
}

const char *usage_option_name(const struct option *options, int option, char text[32])
{
    for (; options->name != NULL; options++) {
        if (options->val == option) {
            snprintf(text, 32, "--%s", options->name);
            return text;
        }
    }
    snprintf(text, 32, "-%c", option);
    return text;
}
