#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/daemon.h"
#include "tests/failures/fail_calls.h"
#include "tests/failures/fail_plan.h"
#include "tests/failures/failure_rank.h"
#include "tests/lib/test_pki.h"

/*
 * Allocations and system calls fail, one in each run, while daemons and two ranks do a little of everything.
 * A scenario says who is armed. Runs without a failure find the call sites; then each site has runs of its
 * own (fail_plan.h), in processes of their own: start, ranks, ranks again, reload, end.
 *
 * What must hold of each run: nobody crashes, leaks (in a build with AddressSanitizer) or hangs; what a rank
 * is told went well has the right bytes; an armed daemon says what failed and does not start, or serves the
 * second pair of ranks without an error, reloads, and ends in order.
 *
 * COMMD_FAILURES: how many runs of each scenario, evenly spread over its sites;
 * "sites": some for each site; "all": every call. By default FAILURES_SAMPLED. Arguments: SCENARIO
 * SITE:OCCURRENCE:ERRNO, to make that run alone and see what it prints.
 */
#define FAILURES_SAMPLED 24
#define COUNTING_RUNS 3 /* threads and the network vary what is called */
#define TRIES 3         /* of a run that did not come to its call, or in which somebody came too late */
#define RUNS_AT_ONCE 4  /* they mostly wait */
#define READY_LIMIT_MS 20000
#define RANKS_LIMIT_MS 30000
#define END_LIMIT_MS 20000
#define UNSEEN_RELOAD_MS 1000 /* where the log may not say that it has ended */
#define TEXT_BYTES 16384
#define EXIT_LEAK 23 /* LeakSanitizer's */

enum armed { ARMED_DAEMON, ARMED_CLIENT };

struct scenario {
    const char *name;
    enum armed armed;
    bool two_nodes;
};

static const struct scenario scenarios[] = {
    {"daemon", ARMED_DAEMON, false},
    {"client", ARMED_CLIENT, false},
    {"daemon_of_two", ARMED_DAEMON, true},
    {"client_of_two", ARMED_CLIENT, true},
};
#define SCENARIOS (sizeof scenarios / sizeof *scenarios)

struct run {
    const struct scenario *scenario;
    struct fail_state *state; /* shared with the armed process, by this */
    int state_fd;
    const char *program;
    char rank_program[512];
    char commctl[512];
    struct test_pki *pki;
    char folder[64];
    char sockets[2][96];
    char config[96];
    pid_t daemons[2]; /* 0: ended */
    int exit_codes[2];
    char wrong[512]; /* what does not hold; empty */
    bool grave;      /* not what a busy machine may cause as well: a crash, a leak, wrong bytes */
};

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

/* Sets *status; false: it is still there after limit_ms, and is killed. */
static bool await_end(pid_t pid, uint64_t limit_ms, int *status)
{
    uint64_t until_ms = now_ms() + limit_ms;
    while (now_ms() < until_ms) {
        if (waitpid(pid, status, WNOHANG) == pid) {
            return true;
        }
        rest();
    }
    kill(pid, SIGABRT); /* for its core, where there are cores */
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
    size_t unused = run->scenario->two_nodes ? 0 : 2; /* the certificate and its key */
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

/* Standard error took none: a line of the log may be missing. */
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

/* False: the armed one did not start, and said why. */
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
            read_log(run, index == 0 ? "log0" : "log1", text); /* its last words */
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

/* In processes of their own. Both have to do well, or only what they say has to be true. */
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

/* The next pair, which nothing fails for. */
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

/* The run and the call, and the command that says which lines of the program it was. */
static void say_run(const struct run *run, const struct fail_site *site, const char *text)
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

/* The state says what fails, if anything. Returns whether all held. */
static bool run_once(struct run *run, const struct fail_state *what, bool shows)
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
        say_run(run, failed_site(run->state), run->wrong[0] != '\0' ? run->wrong : "all held");
    }
    return run->wrong[0] == '\0';
}

/* --- Scenarios --- */

/* Of all shares, in shared memory. */
struct totals {
    _Atomic size_t next; /* run */
    _Atomic uint32_t wrong, not_reached;
};

static void share_state(struct run *run)
{
    run->state_fd = memfd_create("failures", MFD_CLOEXEC);
    if (run->state_fd < 0 || ftruncate(run->state_fd, sizeof *run->state) != 0) {
        perror("memfd_create");
        exit(EXIT_FAILURE);
    }
    run->state = mmap(NULL, sizeof *run->state, PROT_READ | PROT_WRITE, MAP_SHARED, run->state_fd, 0);
    if (run->state == MAP_FAILED) {
        perror("mmap");
        exit(EXIT_FAILURE);
    }
}

/* Takes the next of `wanted` runs until none is left. */
static void run_share(struct run *run, const struct fail_plan *plan, size_t wanted, struct totals *totals)
{
    static struct fail_state what;
    share_state(run);
    for (size_t i = atomic_fetch_add(&totals->next, 1); i < wanted; i = atomic_fetch_add(&totals->next, 1)) {
        const struct fail_plan_run *chosen = &plan->runs[i * plan->runs_used / wanted];
        bool fine = false, again = true;
        what.fail_site = plan->sites[chosen->site].id;
        what.fail_occurrence = chosen->occurrence;
        what.fail_errno = chosen->errnum;
        for (int tries = 0; tries < TRIES && again; tries++) {
            fine = run_once(run, &what, false);
            again = fine ? !run->state->failed : !run->grave;
        }
        totals->wrong += !fine;
        if (fine && !run->state->failed) {
            say_run(run, &plan->sites[chosen->site], "nothing was tried");
            totals->not_reached++;
        }
    }
}

/* Whether all went well, though nothing failed. */
static bool find_sites(struct run *run, struct fail_plan *plan)
{
    static const struct fail_state nothing;
    bool fine = true;
    for (int i = 0; i < COUNTING_RUNS && fine; i++) {
        fine = run_once(run, &nothing, false);
        if (fine && run->state->sites_left_out > 0) {
            fprintf(stderr, "%s: more call sites than FAIL_SITES_MAX\n", run->scenario->name);
            fine = false;
        }
        fail_plan_add(plan, run->state);
    }
    return fine;
}

static bool run_scenario(struct run *run, unsigned index, const char *asked)
{
    pid_t shares[RUNS_AT_ONCE];
    struct fail_plan plan = {0};
    struct totals *totals =
        mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    bool fine = totals != MAP_FAILED && find_sites(run, &plan);
    fail_plan_make(&plan, strcmp(asked, "all") == 0);
    bool samples = strcmp(asked, "all") != 0 && strcmp(asked, "sites") != 0;
    size_t wanted = samples ? strtoull(asked, NULL, 10) : plan.runs_used;
    wanted = wanted < plan.runs_used ? wanted : plan.runs_used;
    fflush(NULL);
    for (unsigned i = 0; fine && i < RUNS_AT_ONCE; i++) {
        shares[i] = fork();
        if (shares[i] == 0) {
            run_share(run, &plan, wanted, totals);
            _exit(EXIT_SUCCESS);
        }
    }
    for (unsigned i = 0; fine && i < RUNS_AT_ONCE; i++) {
        int status;
        (void)waitpid(shares[i], &status, 0);
        totals->wrong += status != 0;
    }
    fine = fine && totals->wrong == 0;
    printf("%s %u - %s: %zu call sites, %zu of %zu runs, %u went wrong, %u did not come to their call\n",
           fine ? "ok" : "not ok", index + 1, run->scenario->name, plan.sites_used, wanted, plan.runs_used,
           totals->wrong, totals->not_reached);
    fflush(stdout);
    munmap(totals, sizeof *totals);
    fail_plan_free(&plan);
    return fine;
}

/* SITE:OCCURRENCE:ERRNO, as a finding names it. */
static bool run_one(struct run *run, const char *text)
{
    static struct fail_state what;
    unsigned long long site, occurrence;
    if (sscanf(text, "%llx:%llu:%u", &site, &occurrence, &what.fail_errno) != 3) {
        fprintf(stderr, "%s: not SITE:OCCURRENCE:ERRNO\n", text);
        return false;
    }
    what.fail_site = site;
    what.fail_occurrence = occurrence;
    return run_once(run, &what, true);
}

static void find_programs(struct run *run, const char *program)
{
    const char *name = strrchr(program, '/');
    int folder = name != NULL ? (int)(name + 1 - program) : 0;
    run->program = program;
    snprintf(run->rank_program, sizeof run->rank_program, "%.*sfailure_rank", folder, program);
    snprintf(run->commctl, sizeof run->commctl, "%.*s../../commctl", folder, program);
}

int main(int argc, char **argv)
{
    static struct run run;
    char sampled[16];
    const char *asked = getenv("COMMD_FAILURES");
    struct test_certificate certificates[] = {{.name = "a"}, {.name = "b"}};
    bool fine = true;
    snprintf(sampled, sizeof sampled, "%d", FAILURES_SAMPLED);
    run.pki = test_pki_new();
    test_pki_issue(run.pki, "a", &certificates[0]);
    test_pki_issue(run.pki, "b", &certificates[1]);
    share_state(&run);
    find_programs(&run, argv[0]);
    for (unsigned i = 0; i < SCENARIOS; i++) {
        run.scenario = &scenarios[i];
        if (argc > 2 && strcmp(argv[1], scenarios[i].name) == 0) {
            fine = run_one(&run, argv[2]);
        }
        if (argc <= 2 && (argc < 2 || strcmp(argv[1], scenarios[i].name) == 0)) {
            fine = run_scenario(&run, i, asked != NULL ? asked : sampled) && fine;
        }
    }
    if (argc == 1) {
        printf("1..%zu\n", SCENARIOS);
    }
    test_pki_free(run.pki);
    return fine ? EXIT_SUCCESS : EXIT_FAILURE;
}
