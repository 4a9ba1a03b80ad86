#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "client/commctl/run.h"

#define HOST_MARGIN_MS 2000 /* for the word of an agent whose ranks have ended */

static const int passed_signals[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
#define PASSED_COUNT (sizeof passed_signals / sizeof passed_signals[0])

struct run {
    struct run_options options;
    struct run_child *children;
    size_t child_count;
    int signals; /* signalfd */
    bool ending; /* from the first SIGTERM or the like on */
    bool killed;
    int64_t kill_ms; /* when those that are left get SIGKILL */
    int exit_code;   /* of the first that failed */
    int control;     /* an agent's; -1: none, or ended */
};

/* --- Ending --- */

static void signal_all(struct run *run, int signal_number)
{
    for (size_t i = 0; i < run->child_count; i++) {
        run_child_signal(&run->children[i], signal_number);
    }
}

static void kill_all(struct run *run)
{
    run->killed = true;
    signal_all(run, SIGKILL);
}

static void set_deadline(struct run *run)
{
    if (!run->ending) {
        int64_t margin_ms = run->options.hosts != NULL ? HOST_MARGIN_MS : 0;
        run->ending = true;
        run->kill_ms = now_ms() + margin_ms + (int64_t)(run->options.grace_s * 1000);
    }
}

static void end_all(struct run *run)
{
    set_deadline(run);
    signal_all(run, SIGTERM);
}

/* A signal that commctl, or an agent's control, has got. The second one that asks for the end is meant. */
static void pass_signal(struct run *run, int signal_number)
{
    bool ends = signal_number != SIGUSR1 && signal_number != SIGUSR2;
    if (ends && run->ending) {
        kill_all(run);
        return;
    }
    if (ends) {
        set_deadline(run);
    }
    signal_all(run, signal_number);
}

static void report_failure(const struct run_child *child, bool others)
{
    int code = run_child_exit_code(child);
    const char *then = others ? "; ending the others" : "";
    if (code > EXIT_CODE_SIGNAL && code < EXIT_CODE_SIGNAL + SIGRTMAX) {
        fprintf(stderr, "commctl: run: %s was ended by signal %d (%s)%s\n", child->what,
                code - EXIT_CODE_SIGNAL, strsignal(code - EXIT_CODE_SIGNAL), then);
    } else {
        fprintf(stderr, "commctl: run: %s ended with exit code %d%s\n", child->what, code, then);
    }
}

/*
 * Of several that have ended since the last look, a signal is the cause rather than an exit code: ranks that
 * lose another rank exit with a code.
 */
static void reap_all(struct run *run)
{
    const struct run_child *first = NULL;
    bool others = false;
    for (size_t i = 0; i < run->child_count; i++) {
        struct run_child *child = &run->children[i];
        bool ran = child->pid != 0;
        run_child_reap(child);
        others = others || child->pid != 0;
        if (ran && child->pid == 0 && run_child_exit_code(child) != 0 &&
            (first == NULL || run_child_exit_code(child) > run_child_exit_code(first))) {
            first = child;
        }
    }
    if (first != NULL && run->exit_code == 0) {
        run->exit_code = run_child_exit_code(first);
        if (!run->ending) {
            report_failure(first, others);
            end_all(run);
        }
    }
}

static bool any_runs(const struct run *run)
{
    for (size_t i = 0; i < run->child_count; i++) {
        if (run->children[i].pid != 0) {
            return true;
        }
    }
    return false;
}

/* --- Output, signals, control --- */

/* Output that cannot be written ends the job: nobody would miss it otherwise. */
static void output_done(struct run *run, int failed)
{
    if (failed != 0 && !run->ending) {
        fprintf(stderr, "commctl: run: the output cannot be written: %s; ending all ranks\n",
                strerror(failed));
        run->exit_code = run->exit_code != 0 ? run->exit_code : EXIT_CODE_FAILURE;
        end_all(run);
    }
}

static void take_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo == SIGCHLD) {
            reap_all(run);
        } else {
            pass_signal(run, (int)info.ssi_signo);
        }
    }
}

/* Of an agent: each byte is a signal; the end means that whoever started us is gone. */
static void take_control(struct run *run)
{
    unsigned char byte;
    ssize_t size = read(run->control, &byte, 1);
    if (size > 0) {
        for (size_t i = 0; i < PASSED_COUNT; i++) {
            if (byte == passed_signals[i]) {
                pass_signal(run, byte);
            }
        }
    } else if (size == 0 || (errno != EAGAIN && errno != EINTR)) {
        run->control = -1;
        end_all(run);
    }
}

static int timeout_ms(const struct run *run)
{
    int64_t now = now_ms();
    if (!run->ending || run->killed) {
        return -1;
    }
    return run->kill_ms > now ? (int)(run->kill_ms - now) : 0;
}

/* Waits for anything to happen, and handles it. polls: room for two of each child, and two. */
static void turn(struct run *run, struct pollfd *polls)
{
    nfds_t count = 2;
    polls[0] = (struct pollfd){.fd = run->signals, .events = POLLIN};
    polls[1] = (struct pollfd){.fd = run->control, .events = POLLIN};
    for (size_t i = 0; i < 2 * run->child_count; i++) {
        polls[count++] = (struct pollfd){.fd = run->children[i / 2].streams[i % 2].fd, .events = POLLIN};
    }
    int ready = poll(polls, count, timeout_ms(run));
    for (size_t i = 0; ready > 0 && i < 2 * run->child_count; i++) {
        if (polls[2 + i].revents != 0) {
            output_done(run, run_stream_read(&run->children[i / 2].streams[i % 2]));
        }
    }
    if (ready > 0 && polls[0].revents != 0) {
        take_signals(run);
    }
    if (ready > 0 && polls[1].revents != 0) {
        take_control(run);
    }
    if (run->ending && !run->killed && now_ms() >= run->kill_ms) {
        fprintf(stderr, "commctl: run: not all have ended within %g s: SIGKILL\n", run->options.grace_s);
        kill_all(run);
    }
}

/* What the ranks wrote before they ended. A process that has left their groups may hold the pipes open. */
static void drain(struct run *run)
{
    for (size_t i = 0; i < 2 * run->child_count; i++) {
        struct run_stream *stream = &run->children[i / 2].streams[i % 2];
        struct pollfd more = {.fd = stream->fd, .events = POLLIN};
        while (stream->fd >= 0 && poll(&more, 1, 0) > 0) {
            output_done(run, run_stream_read(stream));
        }
        output_done(run, run_stream_end(stream));
    }
}

/* --- Starting --- */

/* nohup, and a shell's "&" in a script, have a command ignore signals; then the ranks ignore them, too. */
static bool is_ignored(int signal_number)
{
    struct sigaction action;
    return sigaction(signal_number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

/*
 * Standard error, unlike standard output, is where the reason goes if it cannot be written. A blocked signal
 * would reach the signalfd although it is ignored. SIGTERM always ends the ranks.
 */
static bool hold_signals(struct run *run)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (size_t i = 0; i < PASSED_COUNT; i++) {
        if (passed_signals[i] == SIGTERM || !is_ignored(passed_signals[i])) {
            sigaddset(&set, passed_signals[i]);
        }
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL); /* if it is ignored, children leave no status */
    sigprocmask(SIG_BLOCK, &set, NULL);
    run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return run->signals >= 0;
}

static void start_all(struct run *run)
{
    bool on_hosts = run->options.hosts != NULL;
    size_t count = on_hosts ? run->options.host_count : run->options.count;
    uint32_t first = 0;
    for (size_t i = 0; i < count && !run->ending; i++) {
        struct run_child *child = &run->children[i];
        int failed = on_hosts ? run_child_start_host(&run->options, i, first, child)
                              : run_child_start_rank(&run->options, (uint32_t)i, child);
        first += on_hosts ? run->options.hosts[i].count : 1;
        run->child_count++;
        if (failed != 0) {
            fprintf(stderr, "commctl: run: %s cannot be started: %s\n", child->what, strerror(failed));
            run->exit_code = EXIT_CODE_FAILURE;
            end_all(run);
        }
    }
}

static enum exit_code run_job(struct run *run)
{
    size_t children_max = run->options.hosts != NULL ? run->options.host_count : run->options.count;
    struct pollfd *polls = calloc(2 * children_max + 2, sizeof *polls);
    run->children = calloc(children_max, sizeof *run->children);
    if (polls == NULL || run->children == NULL || !hold_signals(run)) {
        perror("commctl: run");
        free(polls);
        return EXIT_CODE_FAILURE;
    }
    start_all(run);
    reap_all(run);
    while (any_runs(run)) {
        turn(run, polls);
    }
    drain(run);
    free(polls);
    close(run->signals);
    return (enum exit_code)run->exit_code;
}

enum exit_code verb_run(struct commctl *commctl, int argc, char **argv)
{
    struct run run = {.control = -1};
    enum exit_code code = run_options_parse(commctl, argc, argv, &run.options);
    if (code == EXIT_CODE_OK) {
        run.control = run.options.is_agent ? STDIN_FILENO : -1;
        code = run_job(&run);
    }
    free(run.children);
    run_options_free(&run.options);
    return code;
}
