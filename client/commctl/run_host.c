#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/run.h"

#define ARGUMENTS_MAX 16 /* before the program's own */

/* A text for a shell: in single quotes. */
static void print_quoted(FILE *out, const char *text)
{
    putc('\'', out);
    for (; *text != '\0'; text++) {
        if (*text == '\'') {
            fputs("'\\''", out);
        } else {
            putc(*text, out);
        }
    }
    putc('\'', out);
}

static bool is_passed(const char *variable)
{
    static const char *const own[] = {"COMMD_RANK=",       "COMMD_SIZE=", "COMMD_LOCAL_RANK=",
                                      "COMMD_LOCAL_SIZE=", "COMMD_JOB=",  "COMMD_LAUNCHER="};
    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++) {
        if (strncmp(variable, own[i], strlen(own[i])) == 0) {
            return false;
        }
    }
    return strncmp(variable, "COMMD_", 6) == 0;
}

/* "env 'A=1' 'B=2'" */
static void print_variables(FILE *out, const struct run_options *options)
{
    fputs("env", out);
    for (char **variable = environ; *variable != NULL; variable++) {
        if (is_passed(*variable)) {
            putc(' ', out);
            print_quoted(out, *variable);
        }
    }
    for (size_t i = 0; i < options->variable_count; i++) {
        const char *given = options->variables[i];
        const char *value = strchr(given, '=') == NULL ? getenv(given) : "";
        if (value != NULL) {
            char *pair = NULL;
            if (asprintf(&pair, "%s%s%s", given, strchr(given, '=') == NULL ? "=" : "", value) >= 0) {
                putc(' ', out);
                print_quoted(out, pair);
                free(pair);
            }
        }
    }
}

/* Prints the command of the agent, as a shell reads it. */
static void print_agent(FILE *out, const struct run_options *options, size_t host, uint32_t first)
{
    char self[PATH_MAX] = "commctl", folder[PATH_MAX];
    char place[RUN_JOB_MAX_BYTES + 48];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? (size_t)length : strlen("commctl")] = '\0';
    if (getcwd(folder, sizeof folder) != NULL) {
        fputs("cd ", out);
        print_quoted(out, folder);
        fputs(" && ", out);
    }
    snprintf(place, sizeof place, "%u:%u:%u:%s", first, options->hosts[host].count, options->size,
             options->job);
    fputs("exec ", out);
    print_variables(out, options);
    putc(' ', out);
    print_quoted(out, self);
    fputs(" run --agent ", out);
    print_quoted(out, place);
    fprintf(out, " --grace %g%s", options->grace_s, options->label ? "" : " --no-label");
    if (options->output_folder != NULL) {
        fputs(" --output-dir ", out);
        print_quoted(out, options->output_folder);
    }
    fputs(" --", out);
    for (char **argument = options->program; *argument != NULL; argument++) {
        putc(' ', out);
        print_quoted(out, *argument);
    }
}

static char *agent_text(const struct run_options *options, size_t host, uint32_t first)
{
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (out == NULL) {
        return NULL;
    }
    print_agent(out, options, host, first);
    if (fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

/*
 * ssh: BatchMode, because nobody can type a password. Keepalives, so that a lost host is noticed within half
 * a minute. srun: one task on the host, beside whatever else the job runs there.
 */
char **run_host_command(const struct run_options *options, size_t host, uint32_t first)
{
    static const char *const ssh[] = {"ssh", "-T", "-o", "BatchMode=yes", "-o", "ServerAliveInterval=10",
                                      NULL};
    static const char *const srun[] = {
        "srun", "--nodes=1", "--ntasks=1", "--overlap", "--kill-on-bad-exit=0", "--unbuffered", NULL};
    const char *const *fixed = options->launcher == RUN_SRUN ? srun : ssh;
    char **command = calloc(ARGUMENTS_MAX, sizeof *command);
    size_t used = 0;
    bool good = command != NULL;
    for (; good && fixed[used] != NULL; used++) {
        command[used] = strdup(fixed[used]);
        good = command[used] != NULL;
    }
    if (good && options->launcher == RUN_SRUN) {
        good = asprintf(&command[used++], "--nodelist=%s", options->hosts[host].name) >= 0 &&
               (command[used++] = strdup("sh")) != NULL && (command[used++] = strdup("-c")) != NULL;
    } else if (good) {
        good = (command[used++] = strdup(options->hosts[host].name)) != NULL;
    }
    if (!good || (command[used] = agent_text(options, host, first)) == NULL) {
        run_host_command_free(command);
        return NULL;
    }
    return command;
}

void run_host_command_free(char **command)
{
    for (size_t i = 0; command != NULL && command[i] != NULL; i++) {
        free(command[i]);
    }
    free(command);
}
