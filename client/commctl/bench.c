#include "client/commctl/bench.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#define BENCH_NAME_BYTES 64

/*
 * The signals that this process waits for. They are blocked before the first fork and taken one at a time, so
 * that no signal is lost between a check and a wait. SIGINT and SIGTERM stay ignored if they were ignored.
 */
static void block_signals(sigset_t *waited)
{
    static const int interrupting[] = {SIGINT, SIGTERM};
    struct sigaction action;
    sigemptyset(waited);
    sigaddset(waited, SIGCHLD);
    for (size_t i = 0; i < sizeof interrupting / sizeof interrupting[0]; i++) {
        if (sigaction(interrupting[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN) {
            sigaddset(waited, interrupting[i]);
        }
    }
    action = (struct sigaction){.sa_handler = SIG_DFL};
    sigaction(SIGCHLD, &action, NULL); /* if SIGCHLD were ignored, the exit codes would be lost */
    sigprocmask(SIG_BLOCK, waited, NULL);
}

/* Uses a signal that also ends stopped processes. The ranks have nothing to clean up. */
static void end_all(const pid_t *processes, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (processes[i] > 0) {
            kill(processes[i], SIGKILL);
        }
    }
}

static enum exit_code code_of(int status)
{
    return WIFEXITED(status) ? (enum exit_code)WEXITSTATUS(status) : EXIT_CODE_FAILURE;
}

/* Collects processes that have ended. The first that failed sets the exit code, and the others are ended.
 * Returns how many are left. */
static uint32_t reap(pid_t *processes, uint32_t count, enum exit_code *code)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        int status;
        if (processes[i] > 0 && waitpid(processes[i], &status, WNOHANG) == processes[i]) {
            processes[i] = 0;
            if (code_of(status) != EXIT_CODE_OK && *code == EXIT_CODE_OK) {
                *code = code_of(status);
                end_all(processes, count);
            }
        }
        left += processes[i] > 0;
    }
    return left;
}

static enum exit_code wait_for_all(pid_t *processes, uint32_t count, const sigset_t *waited)
{
    enum exit_code code = EXIT_CODE_OK;
    while (reap(processes, count, &code) > 0) {
        int number = sigwaitinfo(waited, NULL);
        if (number == SIGINT || number == SIGTERM) {
            code = code == EXIT_CODE_OK ? (enum exit_code)(EXIT_CODE_SIGNAL + number) : code;
            end_all(processes, count);
        }
    }
    return code;
}

/* If all ranks are here, the name is new for each run, so that runs at the same time do not meet. Otherwise
 * commctl on the other nodes makes the same name. */
static void make_name(const struct bench_options *options, char name[BENCH_NAME_BYTES])
{
    uint64_t number = 0;
    (void)snprintf(name, BENCH_NAME_BYTES, "bench-%u", (unsigned)getuid());
    if (options->ranks == options->size) {
        (void)!getrandom(&number, sizeof number, 0);
        (void)snprintf(name, BENCH_NAME_BYTES, "bench-%u.%016llx", (unsigned)getuid(),
                       (unsigned long long)number);
    }
}

enum exit_code verb_bench(struct commctl *commctl, int argc, char **argv)
{
    char name[BENCH_NAME_BYTES];
    pid_t processes[BENCH_RANKS_MAX] = {0};
    sigset_t waited;
    struct bench_options options;
    bench_options_default(&options);
    options.socket_path = commctl->socket_path;
    options.json = commctl->json;
    options.connect_timeout_ms = commctl->timeout_ms;
    options.timeout_ms = commctl->timeout_given ? commctl->timeout_ms : 0;
    enum exit_code code = bench_options_parse(argc, argv, &options);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    if (options.communicator == NULL) {
        make_name(&options, name);
        options.communicator = name;
    }
    if (access(options.socket_path, F_OK) != 0) {
        fprintf(stderr, "commctl: %s: %s (is commd running? set COMMD_SOCKET or --socket)\n",
                options.socket_path, strerror(errno));
        return EXIT_CODE_NOT_RUNNING;
    }
    block_signals(&waited);
    fflush(stdout);
    pid_t parent = getpid();
    for (uint32_t i = 0; i < options.ranks; i++) {
        processes[i] = fork();
        if (processes[i] < 0) {
            fprintf(stderr, "commctl: bench: %s\n", strerror(errno));
            end_all(processes, i);
            (void)wait_for_all(processes, i, &waited);
            return EXIT_CODE_FAILURE;
        }
        if (processes[i] == 0) {
            /* SIGINT and SIGTERM stay blocked: a terminal sends them to all processes, the parent decides. */
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit((int)(getppid() == parent ? bench_rank(&options, options.first_rank + i)
                                            : EXIT_CODE_FAILURE));
        }
    }
    return wait_for_all(processes, options.ranks, &waited);
}
