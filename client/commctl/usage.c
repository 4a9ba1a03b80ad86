#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

const char usage_global_options[] =
    "[-f|--format text|json] [-w|--watch] [-t|--timeout SECONDS] [--socket PATH] [--admin-socket PATH] "
    "[--version] [-h|--help]";

/* What a verb takes beside its options. */
static const struct {
    const char *verb, *before, *after; /* the options */
} arguments_of[] = {
    {"abort", "COMMUNICATOR", ""},
    {"disconnect", "PID", ""},
    {"trace", "", "[FILE...]"},
    {"algorithms", "[OPERATION]", ""},
    {"plan", "[OPERATION]", ""},
    {"health", "[answers|drain|loop|mesh|rails|gpus|certificates|memory|objects|descriptors]", ""},
    {"wait", "nodes|idle", ""},
    {"log-level", "error|warning|info|debug", ""},
    {"ping", "", "NODE"},
    {"run", "", "PROGRAM"},
    {"pki",
     "init | admit | join AUTHORITY [NAME] | request NAME | issue NAME | renew NAME | revoke "
     "NAME|SERIAL|FILE "
     "| show [NAME|FILE]",
     ""},
};

#define LINE_CHARACTERS 100u /* of a usage's lines */
/* What main.c prints before a verb. */
#define PREFIX "usage: commctl [OPTION...]"
#define USAGE_OPTION_MAX_BYTES 96u
#define INDENT "        " /* of the lines after the first */

/* Text that grows in the caller's buffer. What does not fit is left out. */
struct usage_text {
    char *text;
    size_t size, length;
    size_t column; /* of the present line */
};

static void add(struct usage_text *usage, const char *text, size_t length)
{
    if (usage->length + length < usage->size) {
        memcpy(usage->text + usage->length, text, length);
        usage->length += length;
        usage->column += length;
        usage->text[usage->length] = '\0';
    }
}

/* Begins a new line if the part does not fit into this one. */
static void add_part(struct usage_text *usage, const char *part, size_t length)
{
    if (usage->length > 0 && usage->column + 1 + length > LINE_CHARACTERS) {
        add(usage, "\n", 1);
        usage->column = 0;
        add(usage, INDENT, sizeof INDENT - 1);
    } else if (usage->length > 0) {
        add(usage, " ", 1);
    }
    add(usage, part, length);
}

/* Adds an argument, which may be divided at its spaces. */
static void add_words(struct usage_text *usage, const char *words)
{
    for (size_t length; *words != '\0'; words += length + strspn(words + length, " ")) {
        length = strcspn(words, " ");
        add_part(usage, words, length);
    }
}

/* Adds an option as its line of help begins: "-r, --reason TEXT   why" gives "[-r|--reason TEXT]". */
static void add_option(struct usage_text *usage, const char *line)
{
    char part[USAGE_OPTION_MAX_BYTES];
    const char *end = strstr(line, "  ");
    size_t length = strcspn(line, "\n");
    if (end != NULL && (size_t)(end - line) < length) {
        length = (size_t)(end - line);
    }
    int printed;
    if (strncmp(line + 2, ", ", 2) == 0) {
        printed = snprintf(part, sizeof part, "[%.2s|%.*s]", line, (int)(length - 4), line + 4);
    } else {
        printed = snprintf(part, sizeof part, "[%.*s]", (int)length, line);
    }
    if (printed > 0 && (size_t)printed < sizeof part) {
        add_part(usage, part, (size_t)printed);
    }
}

bool usage_arguments(const char *verb, char text[USAGE_MAX_BYTES])
{
    struct usage_text usage = {
        .text = text, .size = USAGE_MAX_BYTES, .column = sizeof PREFIX + strlen(verb) + 1};
    const char *before = "", *after = "";
    text[0] = '\0';
    for (size_t i = 0; i < sizeof arguments_of / sizeof arguments_of[0]; i++) {
        if (strcmp(arguments_of[i].verb, verb) == 0) {
            before = arguments_of[i].before;
            after = arguments_of[i].after;
        }
    }
    add_words(&usage, before);
    for (const char *line = help_options(verb); *line != '\0'; line += *line == '\n') {
        const char *first = line + strspn(line, " ");
        if (*first == '-') {
            add_option(&usage, first);
        }
        line += strcspn(line, "\n");
    }
    add_words(&usage, after);
    return usage.length > 0;
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

bool usage_reason_fits(const char *reason)
{
    while (*reason != '\0' && (unsigned char)*reason >= ' ' && *reason != 0x7f) {
        reason++;
    }
    return *reason == '\0';
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
