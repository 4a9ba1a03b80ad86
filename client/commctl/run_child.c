#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "client/commctl/run.h"

#define EXIT_NOT_FOUND 127 /* as shells have it */
#define EXIT_NOT_EXECUTABLE 126

/* What the child's three standard streams become; -1: as the parent's. */
struct child_files {
    int fds[3];
};

static void set_number(const char *name, uint32_t number)
{
    char text[16];
    snprintf(text, sizeof text, "%u", number);
    setenv(name, text, 1);
}

/* What an outer torchrun has set is not about this rank. See client/lib/environment.c. */
static void set_place(const struct run_options *options, uint32_t index)
{
    static const char *const outer[] = {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "RANK",
                                        "WORLD_SIZE", "LOCAL_RANK"};
    bool inside = getenv(outer[0]) != NULL;
    for (size_t i = 0; inside && i < sizeof outer / sizeof outer[0]; i++) {
        unsetenv(outer[i]);
    }
    unsetenv("COMMD_LAUNCHER");
    set_number("COMMD_RANK", options->first + index);
    set_number("COMMD_SIZE", options->size);
    set_number("COMMD_LOCAL_RANK", index);
    set_number("COMMD_LOCAL_SIZE", options->count);
    setenv("COMMD_JOB", options->job, 1);
    if (options->socket_path != NULL) {
        setenv("COMMD_SOCKET", options->socket_path, 1);
    }
}

/*
 * In the child. If commctl is killed, the kernel kills the child. What the child has started itself then goes
 * on; only commctl's orderly end reaches that, by the process group.
 */
__attribute__((noreturn)) static void become(const struct child_files *files, char **command, pid_t parent)
{
    sigset_t none;
    sigemptyset(&none);
    if (setpgid(0, 0) < 0 || prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent) {
        _exit(EXIT_CODE_FAILURE);
    }
    for (int i = 0; i < 3; i++) {
        if (files->fds[i] >= 0 && dup2(files->fds[i], i) < 0) {
            _exit(EXIT_CODE_FAILURE);
        }
    }
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    execvp(command[0], command);
    int code = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_NOT_EXECUTABLE;
    fprintf(stderr, "commctl: run: %s: %s\n", command[0], strerror(errno));
    fflush(stderr);
    _exit(code);
}

/* When this returns in the parent, the child's process group exists, so one signal reaches all of it once. */
static pid_t fork_group(void)
{
    pid_t pid = fork();
    if (pid > 0) {
        (void)setpgid(pid, pid); /* fails if the child runs its program: then it has its group */
    }
    return pid;
}

/* Makes a pipe whose read end does not block. */
static int open_pipe(struct run_stream *stream, int target, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return errno;
    }
    (void)fcntl(ends[0], F_SETFL, O_NONBLOCK);
    stream->fd = ends[0];
    stream->target = target;
    *write_end = ends[1];
    return 0;
}

static int open_file(const struct run_options *options, uint32_t rank, const char *suffix, int *out)
{
    char *path = NULL;
    if (asprintf(&path, "%s/rank-%u.%s", options->output_folder, rank, suffix) < 0) {
        return ENOMEM;
    }
    *out = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int failed = *out < 0 ? errno : 0;
    if (failed != 0) {
        fprintf(stderr, "commctl: run: %s: %s\n", path, strerror(failed));
    }
    free(path);
    return failed;
}

static void close_files(const struct child_files *files)
{
    for (int i = 0; i < 3; i++) {
        if (files->fds[i] >= 0) {
            close(files->fds[i]);
        }
    }
}

static void child_init(struct run_child *child)
{
    *child = (struct run_child){.control = -1, .streams = {{.fd = -1}, {.fd = -1}}};
}

int run_child_start_rank(const struct run_options *options, uint32_t index, struct run_child *child)
{
    struct child_files files = {{-1, -1, -1}};
    uint32_t rank = options->first + index;
    int failed = 0;
    child_init(child);
    snprintf(child->what, sizeof child->what, "rank %u", rank);
    for (int i = 0; i < 2 && failed == 0; i++) {
        struct run_stream *stream = &child->streams[i];
        if (options->label) {
            snprintf(stream->label, sizeof stream->label, "[%u] ", rank);
        }
        failed = options->output_folder != NULL
                     ? open_file(options, rank, i == 0 ? "out" : "err", &files.fds[i + 1])
                     : open_pipe(stream, i + 1, &files.fds[i + 1]);
    }
    /* Rank 0 may read what is piped to commctl. A terminal is not for it: it is not in the foreground. */
    if (failed == 0 && (rank > 0 || options->is_agent || isatty(STDIN_FILENO))) {
        files.fds[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
        failed = files.fds[0] < 0 ? errno : 0;
    }
    pid_t parent = getpid();
    child->pid = failed == 0 ? fork_group() : 0;
    if (failed == 0 && child->pid == 0) {
        set_place(options, index);
        become(&files, options->program, parent);
    }
    if (failed == 0 && child->pid < 0) {
        failed = errno;
    }
    child->pid = failed == 0 ? child->pid : 0;
    close_files(&files);
    return failed;
}

/* Returns 0 or an errno value; *write_end does not block. */
static int open_control(int *read_end, int *write_end)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) < 0) {
        return errno;
    }
    (void)fcntl(ends[1], F_SETFL, O_NONBLOCK);
    *read_end = ends[0];
    *write_end = ends[1];
    return 0;
}

int run_child_start_host(const struct run_options *options, size_t host, uint32_t first,
                         struct run_child *child)
{
    struct child_files files = {{-1, -1, -1}};
    child_init(child);
    snprintf(child->what, sizeof child->what, "host %.64s", options->hosts[host].name);
    char **command = run_host_command(options, host, first);
    int failed = command == NULL ? ENOMEM : open_control(&files.fds[0], &child->control);
    for (int i = 0; i < 2 && failed == 0; i++) {
        failed = open_pipe(&child->streams[i], i + 1, &files.fds[i + 1]);
    }
    pid_t parent = getpid();
    child->pid = failed == 0 ? fork_group() : 0;
    if (failed == 0 && child->pid == 0) {
        become(&files, command, parent);
    }
    if (failed == 0 && child->pid < 0) {
        failed = errno;
    }
    child->pid = failed == 0 ? child->pid : 0;
    close_files(&files);
    run_host_command_free(command);
    return failed;
}

void run_child_signal(struct run_child *child, int signal_number)
{
    if (child->pid == 0) {
        return;
    }
    if (child->control >= 0 && signal_number != SIGKILL) {
        char byte = (char)signal_number;
        (void)!write(child->control, &byte, 1);
    } else {
        (void)kill(-child->pid, signal_number);
    }
}

void run_child_reap(struct run_child *child)
{
    siginfo_t info = {.si_pid = 0};
    /* Until it is waited for, its number is no other process's. */
    if (child->pid == 0 || waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) < 0 ||
        info.si_pid == 0) {
        return;
    }
    (void)kill(-child->pid, SIGKILL);
    (void)waitpid(child->pid, &child->status, 0);
    child->pid = 0;
    if (child->control >= 0) {
        close(child->control);
        child->control = -1;
    }
}

int run_child_exit_code(const struct run_child *child)
{
    return WIFSIGNALED(child->status) ? EXIT_CODE_SIGNAL + WTERMSIG(child->status)
                                      : WEXITSTATUS(child->status);
}
