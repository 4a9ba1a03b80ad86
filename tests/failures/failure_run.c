#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "tests/failures/failure_rank.h"
#include "tests/failures/failure_run.h"
#include "tests/lib/test_pki.h"

#define READY_LIMIT_MS 20000
#define RANKS_LIMIT_MS 30000
#define END_LIMIT_MS 20000
#define UNSEEN_RELOAD_MS 1000 /* how long to wait for a reload whose end the log may not show */
#define TEXT_BYTES 16384
#define EXIT_LEAK 23 /* LeakSanitizer's exit code */

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void rest(void)
{
    const struct timespec pause = {.tv_nsec = 1000000};
    (void)nanosleep(&pause, NULL);
}

#define is_wrong(run, is_grave, ...)                                                                         \
    do {                                                                                                     \
        (run)->grave |= (is_grave);                                                                          \
        if ((run)->wrong[0] == '\0') {                                                                       \
            snprintf((run)->wrong, sizeof(run)->wrong, __VA_ARGS__);                                         \
        }                                                                                                    \
    } while (0)

/* Waits for a process, and sets *status. If it still runs after limit_ms, kills it and returns false. */
static bool await_end(pid_t pid, uint64_t limit_ms, int *status)
{
    uint64_t until_ms = now_ms() + limit_ms;
    while (now_ms() < until_ms) {
        if (waitpid(pid, status, WNOHANG) == pid) {
            return true;
        }
        rest();
    }
    kill(pid, SIGABRT); /* makes a core file, where core files are enabled */
    rest();
    kill(pid, SIGKILL);
    (void)waitpid(pid, status, 0);
    return false;
}

static void say_status(int status, char *text, size_t size)
{
    if (WIFSIGNALED(status)) {
        snprintf(text, size, "ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    } else {
        snprintf(text, size, "exit code %d%s", WEXITSTATUS(status),
                 WEXITSTATUS(status) == EXIT_LEAK ? " (a leak, or what a sanitizer found)" : "");
    }
}

/* --- Daemons --- */

static _Noreturn void daemon_main(const struct run *run, int index)
{
    char log_path[128], socket[128], node[64], certificate[256], key[256];
    snprintf(log_path, sizeof log_path, "%s/log%d", run->folder, index);
    snprintf(socket, sizeof socket, "socket_path=%s", run->sockets[index]);
    snprintf(node, sizeof node, "node_name=%s", index == 0 ? "a" : "b");
    snprintf(certificate, sizeof certificate, "certificate=%s",
             test_pki_path(run->pki, index == 0 ? "a.pem" : "b.pem"));
    snprintf(key, sizeof key, "key=%s", test_pki_path(run->pki, index == 0 ? "a.key" : "b.key"));
    int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (log < 0 || dup2(log, STDERR_FILENO) < 0) {
        _exit(99);
    }
    close(log);
    const char *overrides[] = {socket,      node, "gpus=off", "worker_threads=2", "drain_timeout_ms=1000",
                               certificate, key};
    /* the last two overrides: the certificate and its key */
    size_t unused = run->scenario->two_nodes ? 0 : 2;
    struct daemon_options options = {
        .conf = {.path = run->scenario->two_nodes ? run->config : NULL,
                 .standalone = !run->scenario->two_nodes,
                 .overrides = overrides,
                 .override_count = sizeof overrides / sizeof *overrides - unused}};
    struct error error;
    (void)signal(SIGPIPE, SIG_IGN);
    if (run->scenario->armed == ARMED_DAEMON && index == 0) {
        fail_calls_arm(run->state);
    }
    int code = EXIT_SUCCESS;
    if (daemon_run(&options, &error) != STATUS_OK) {
        log_error("%s", error.text);
        code = EXIT_FAILURE;
    }
    fail_calls_arm(NULL);
    exit(code);
}

static bool daemon_has_ended(struct run *run, int index)
{
    int status;
    if (run->daemons[index] != 0 && waitpid(run->daemons[index], &status, WNOHANG) == run->daemons[index]) {
        run->daemons[index] = 0;
        run->exit_codes[index] = status;
    }
    return run->daemons[index] == 0;
}

static void read_log(const struct run *run, const char *name, char text[TEXT_BYTES])
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", run->folder, name);
    int fd = open(path, O_RDONLY);
    ssize_t size = fd >= 0 ? read(fd, text, TEXT_BYTES - 1) : 0;
    text[size > 0 ? size : 0] = '\0';
    if (fd >= 0) {
        close(fd);
    }
}

/* The call that failed was a write, so a line of the log may be missing. */
static bool may_lack_a_line(const struct run *run)
{
    return atomic_load(&run->state->failed) && strcmp(run->state->call, "write") == 0;
}

static bool accepts(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    bool connected = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0) {
        close(fd);
    }
    return connected;
}

/* Returns false if the daemon did not start. The armed one may do that, if it logs an error. */
static bool start_daemon(struct run *run, int index)
{
    char status[128], text[TEXT_BYTES];
    fflush(NULL);
    run->daemons[index] = fork();
    if (run->daemons[index] == 0) {
        daemon_main(run, index);
    }
    uint64_t until_ms = now_ms() + READY_LIMIT_MS;
    for (;;) {
        read_log(run, index == 0 ? "log0" : "log1", text);
        if (strstr(text, " ready on ") != NULL || (may_lack_a_line(run) && accepts(run->sockets[index]))) {
            return true;
        }
        if (daemon_has_ended(run, index)) {
            say_status(run->exit_codes[index], status, sizeof status);
            read_log(run, index == 0 ? "log0" : "log1", text); /* its last lines */
            bool said = strstr(text, "error: ") != NULL;
            if (!atomic_load(&run->state->failed) || index != 0 || !WIFEXITED(run->exit_codes[index]) ||
                WEXITSTATUS(run->exit_codes[index]) != EXIT_FAILURE || !said) {
                is_wrong(run, true, "daemon %d did not start: %s, %s", index, status,
                         said ? "with a message" : "without a message");
            }
            return false;
        }
        if (now_ms() > until_ms) {
            is_wrong(run, false, "daemon %d hangs while it starts", index);
            return false;
        }
        rest();
    }
}

static void stop_daemon(struct run *run, int index)
{
    char text[128];
    if (run->daemons[index] == 0) {
        return;
    }
    pid_t pid = run->daemons[index];
    run->daemons[index] = 0;
    (void)kill(pid, SIGTERM);
    if (!await_end(pid, END_LIMIT_MS, &run->exit_codes[index])) {
        is_wrong(run, false, "daemon %d does not end", index);
    } else if (!WIFEXITED(run->exit_codes[index]) || WEXITSTATUS(run->exit_codes[index]) != 0) {
        say_status(run->exit_codes[index], text, sizeof text);
        is_wrong(run, true, "daemon %d at its end: %s", index, text);
    }
}

/* --- Ranks --- */

static _Noreturn void rank_main(const struct run *run, const char *name, int rank, bool armed)
{
    char number[16], fd[16], log_path[128];
    snprintf(number, sizeof number, "%d", rank);
    snprintf(fd, sizeof fd, "%d", armed ? run->state_fd : -1);
    snprintf(log_path, sizeof log_path, "%s/ranks", run->folder);
    int log = open(log_path, O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (log < 0 || dup2(log, STDERR_FILENO) < 0 || (armed && fcntl(run->state_fd, F_SETFD, 0) != 0)) {
        _exit(EXIT_FAILURE);
    }
    execl(run->rank_program, run->rank_program, run->sockets[run->scenario->two_nodes ? rank : 0], name,
          number, fd, run->commctl, (char *)NULL);
    _exit(EXIT_FAILURE);
}

/* Runs two ranks in processes of their own. If must_do_well, both must succeed. Otherwise a rank may also
 * report an error. */
static void run_ranks(struct run *run, const char *name, bool armed, bool must_do_well)
{
    pid_t pids[2];
    char text[256];
    fflush(NULL);
    for (int rank = 0; rank < 2; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            rank_main(run, name, rank, armed && rank == 0);
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        int status;
        if (!await_end(pids[rank], RANKS_LIMIT_MS, &status)) {
            is_wrong(run, false, "rank %d of \"%s\" hangs", rank, name);
            continue;
        }
        bool ended = WIFEXITED(status) &&
                     (WEXITSTATUS(status) == 0 || (!must_do_well && WEXITSTATUS(status) == RANK_TOLD));
        if (!ended) {
            say_status(status, text, sizeof text);
            is_wrong(run, !WIFEXITED(status) || WEXITSTATUS(status) != RANK_TOLD, "rank %d of \"%s\": %s%s",
                     rank, name, text,
                     WIFEXITED(status) && WEXITSTATUS(status) == RANK_WRONG  ? ": it has wrong bytes"
                     : WIFEXITED(status) && WEXITSTATUS(status) == RANK_TOLD ? ": it was told of an error"
                                                                             : "");
        }
    }
}

static void check_alive(struct run *run, const char *when)
{
    char text[128];
    for (int i = 0; i <= (run->scenario->two_nodes ? 1 : 0); i++) {
        if (daemon_has_ended(run, i)) {
            say_status(run->exit_codes[i], text, sizeof text);
            is_wrong(run, true, "daemon %d, %s: %s", i, when, text);
        }
    }
}

/* Runs the next pair of ranks, while no call fails. */
static void check_serves(struct run *run, const char *name)
{
    atomic_store(&run->state->paused, true);
    run_ranks(run, name, false, true);
    check_alive(run, name);
    atomic_store(&run->state->paused, false);
}

static void reload(struct run *run)
{
    char text[TEXT_BYTES];
    uint64_t began_ms = now_ms();
    uint64_t until_ms = began_ms + READY_LIMIT_MS;
    if (run->daemons[0] == 0) {
        return;
    }
    (void)kill(run->daemons[0], SIGHUP);
    do {
        if (may_lack_a_line(run) && now_ms() > began_ms + UNSEEN_RELOAD_MS) {
            return;
        }
        if (daemon_has_ended(run, 0) || now_ms() > until_ms) {
            is_wrong(run, false, "daemon 0: no end of the reload");
            return;
        }
        rest();
        read_log(run, "log0", text);
    } while (strstr(text, "reload: ") == NULL);
}

/* --- One run --- */

static int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0) {
        perror("a free port");
        exit(EXIT_FAILURE);
    }
    close(fd);
    return ntohs(address.sin_port);
}

static void write_config(struct run *run)
{
    FILE *file = fopen(run->config, "we");
    if (file == NULL) {
        perror(run->config);
        exit(EXIT_FAILURE);
    }
    fprintf(file, "nodes = ( { name = \"a\"; address = \"127.0.0.1:%d\"; }, ", free_port());
    fprintf(file, "{ name = \"b\"; address = \"127.0.0.1:%d\"; } );\n", free_port());
    fprintf(file, "rails = 1;\nreconnect_min_ms = 20;\nreconnect_max_ms = 100;\n");
    fprintf(file, "authority = \"%s\";\n", test_pki_path(run->pki, "ca.pem"));
    fclose(file);
}

static void prepare(struct run *run)
{
    strcpy(run->folder, "/tmp/commd-failures-XXXXXX");
    if (mkdtemp(run->folder) == NULL) {
        perror("mkdtemp");
        exit(EXIT_FAILURE);
    }
    snprintf(run->sockets[0], sizeof run->sockets[0], "%s/a.sock", run->folder);
    snprintf(run->sockets[1], sizeof run->sockets[1], "%s/b.sock", run->folder);
    snprintf(run->config, sizeof run->config, "%s/commd.conf", run->folder);
    if (run->scenario->two_nodes) {
        write_config(run);
    }
}

static void clean(struct run *run, bool shows)
{
    static const char *const names[] = {"log0", "log1", "ranks", "a.sock", "b.sock", "commd.conf"};
    static const char *const logs[] = {"log0", "log1", "ranks"};
    char path[128], text[TEXT_BYTES];
    for (int i = 0; i < 3 && shows; i++) {
        read_log(run, logs[i], text);
        fprintf(stderr, "--- %s\n%s", logs[i], text);
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", run->folder, names[i]);
        unlink(path);
    }
    rmdir(run->folder);
}

void failure_run_say(const struct run *run, const struct fail_site *site, const char *text)
{
    const struct fail_state *state = run->state;
    const char *program = run->scenario->armed == ARMED_CLIENT ? run->rank_program : run->program;
    fprintf(stderr, "%s %llx:%llu:%u (%s, %s): %s\n", run->scenario->name,
            (unsigned long long)state->fail_site, (unsigned long long)state->fail_occurrence,
            state->fail_errno, site != NULL ? site->call : "unknown call",
            state->failed ? strerrorname_np(state->errnum) : "it did not occur", text);
    fprintf(stderr, "    addr2line -fpie %s", program);
    for (int i = 0; i < FAIL_FRAMES && site != NULL && site->frames[i] != 0; i++) {
        fprintf(stderr, " 0x%llx", (unsigned long long)site->frames[i] - 1);
    }
    fprintf(stderr, "\n");
}

static const struct fail_site *failed_site(const struct fail_state *state)
{
    for (size_t i = 0; i < FAIL_SITES_MAX; i++) {
        if (state->sites[i].id == state->fail_site && state->sites[i].complete) {
            return &state->sites[i];
        }
    }
    return NULL;
}

bool failure_run(struct run *run, const struct fail_state *what, bool shows)
{
    bool armed_client = run->scenario->armed == ARMED_CLIENT;
    memcpy(run->state, what, sizeof *what);
    memset(run->daemons, 0, sizeof run->daemons);
    run->wrong[0] = '\0';
    run->grave = false;
    prepare(run);
    bool up = (!run->scenario->two_nodes || start_daemon(run, 1)) && start_daemon(run, 0);
    if (up) {
        run_ranks(run, "first", armed_client, what->fail_site == 0);
        check_alive(run, "while ranks ran");
        check_serves(run, "second");
        reload(run);
        check_serves(run, "third");
    }
    stop_daemon(run, 0);
    stop_daemon(run, 1);
    clean(run, shows || run->wrong[0] != '\0');
    if (run->wrong[0] != '\0' || shows) {
        failure_run_say(run, failed_site(run->state), run->wrong[0] != '\0' ? run->wrong : "all held");
    }
    return run->wrong[0] == '\0';
}
