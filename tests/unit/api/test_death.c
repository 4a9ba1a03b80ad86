#include "tests/unit/api/api_node.h"

#include <pthread.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Processes that connect, and end while other processes have their socket. Each is a real process, and this
 * process is the daemon. What else a process does: */
struct plan {
    bool forks;     /* forks a child that keeps the socket */
    bool joins;     /* joins a communicator as rank 1 of 2 */
    bool leaves;    /* sends a CommDestroy before its end; nobody reads it until then */
    bool by_thread; /* connects in a thread that ends */
    bool execs;     /* becomes another program, with the socket */
    bool silent;    /* sends nothing */
};

struct process {
    pid_t pid;
    pid_t child; /* 0: none */
    int control; /* a byte written here lets the process end */
};

#define NAME "death"
#define HANDLE 3u
#define WAIT_MS 10000
#define SYS_PROCESS_MRELEASE 448

static void require(bool condition, int code)
{
    if (!condition) {
        _exit(code);
    }
}

/* The test's helpers run turns of the daemon. A process that was forked must not do that. */
static void ask(int fd, Commd__Client__Request *request, bool answered)
{
    uint8_t bytes[4096];
    size_t size = commd__client__request__pack(request, bytes);
    require(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size, 20);
    require(!answered || recv(fd, bytes, sizeof bytes, 0) > 0, 21);
}

static void greet(int fd)
{
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.program = (char *)(uintptr_t) "mortal";
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.id = 1;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    ask(fd, &request, true);
}

static void join(int fd)
{
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = HANDLE;
    body.name = (char *)(uintptr_t)NAME;
    body.rank = 1;
    body.size = 2;
    body.device = -1;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.id = 2;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    ask(fd, &request, true);
}

static void leave(int fd)
{
    Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
    body.handle = HANDLE;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.id = 3;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    request.comm_destroy = &body;
    ask(fd, &request, false);
}

static void *connect_to(void *context)
{
    static int fd;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, context);
    fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    require(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0, 10);
    return &fd;
}

static _Noreturn void process_run(const char *path, const struct plan *plan, int control)
{
    void *fd_place;
    (void)alarm(60);
    if (plan->by_thread) {
        pthread_t thread;
        require(pthread_create(&thread, NULL, connect_to, (void *)(uintptr_t)path) == 0, 11);
        require(pthread_join(thread, &fd_place) == 0, 12);
    } else {
        fd_place = connect_to((void *)(uintptr_t)path);
    }
    int fd = *(int *)fd_place;
    if (!plan->silent) {
        greet(fd);
    }
    if (plan->joins) {
        join(fd);
    }
    pid_t child = plan->forks ? fork() : 0;
    if (plan->forks && child == 0) {
        close(control);
        (void)alarm(60);
        for (;;) {
            pause();
        }
    }
    char go;
    require(write(control, &child, sizeof child) == (ssize_t)sizeof child && read(control, &go, 1) == 1, 13);
    if (plan->execs) {
        execlp("sleep", "sleep", "60", (char *)NULL);
        _exit(14);
    }
    if (plan->leaves) {
        leave(fd);
    }
    (void)raise(SIGKILL);
    _exit(15);
}

static bool process_reports(struct process *process)
{
    return recv(process->control, &process->child, sizeof process->child, MSG_DONTWAIT) ==
           (ssize_t)sizeof process->child;
}

/* Returns when the process waits to go on. The daemon runs turns meanwhile, unless the process asks it for
 * nothing. */
static struct process process_start(struct node *node, const struct plan *plan)
{
    struct process process;
    int control[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, control), 0);
    fflush(NULL);
    process.pid = fork();
    assert_true(process.pid >= 0);
    if (process.pid == 0) {
        close(control[0]);
        process_run(node->path, plan, control[1]);
    }
    close(control[1]);
    process.control = control[0];
    for (uint64_t end_ns = loop_now_ns() + WAIT_MS * TIME_MS; !process_reports(&process);) {
        assert_true(loop_now_ns() < end_ns);
        if (!plan->silent) {
            node_turn(node);
        }
    }
    return process;
}

static void process_let_die(struct process *process)
{
    int status;
    assert_int_equal(send(process->control, "g", 1, MSG_NOSIGNAL), 1);
    assert_int_equal(waitpid(process->pid, &status, 0), process->pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void process_free(struct process *process)
{
    if (process->child > 0) {
        assert_int_equal(kill(process->child, 0), 0); /* until now, the child has lived and had the socket */
        kill(process->child, SIGKILL);
    }
    close(process->control);
}

static void expect_sessions(struct node *node, unsigned count)
{
    for (uint64_t end_ns = loop_now_ns() + WAIT_MS * TIME_MS; sessions(node) != count;) {
        assert_true(loop_now_ns() < end_ns);
        node_turn(node);
    }
}

static void test_a_child_keeps_the_socket(void **state)
{
    (void)state;
    struct node *node = node_new();
    unsigned fds = count_fds();
    struct plan plan = {.forks = true};
    struct process process = process_start(node, &plan);
    assert_int_equal(sessions(node), 1);
    process_let_die(&process);
    expect_sessions(node, 0);
    process_free(&process);
    assert_int_equal(count_fds(), fds);
    node_free(node);
}

static struct client join_as_other(struct node *node, uint64_t *id)
{
    struct client client = client_new(node);
    *id = client_send_init(&client, HANDLE, NAME, 0, 2);
    return client;
}

static void expect_lost(struct client *other)
{
    Commd__Client__Event *event = client_receive(other);
    assert_non_null(event);
    assert_int_equal(event->body_case, COMMD__CLIENT__EVENT__BODY_ABORTED);
    assert_int_equal(event->aborted->status, STATUS_RANK_LOST);
    assert_contains(event->aborted->text, "rank 1");
    event_free(event);
}

static void test_the_other_rank_is_told(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct plan plan = {.forks = true, .joins = true};
    uint64_t id;
    struct client other = join_as_other(node, &id);
    struct process process = process_start(node, &plan);
    event_free(client_expect_reply(&other, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    process_let_die(&process);
    expect_lost(&other);
    process_free(&process);
    client_free(&other);
    node_free(node);
}

/* The kernel reports the end of a process after it has unmapped its memory. The other rank need not wait. */
static void test_the_other_rank_is_told_early(void **state)
{
    (void)state;
    int own = (int)syscall(SYS_pidfd_open, getpid(), 0), status;
    bool kernel_tells = syscall(SYS_PROCESS_MRELEASE, own, 0) != 0 && errno == EINVAL;
    close(own);
    if (!kernel_tells) {
        print_message("SKIP: the kernel has no process_mrelease, or forbids it\n");
        skip();
    }
    struct node *node = node_new();
    struct plan plan = {.joins = true};
    uint64_t id;
    struct client other = join_as_other(node, &id);
    struct process process = process_start(node, &plan);
    event_free(client_expect_reply(&other, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    assert_int_equal(ptrace(PTRACE_SEIZE, process.pid, NULL, PTRACE_O_TRACEEXIT), 0);
    assert_int_equal(kill(process.pid, SIGKILL), 0);
    assert_int_equal(waitpid(process.pid, &status, __WALL), process.pid);
    assert_true(WIFSTOPPED(status)); /* it is held while it is dying, before its memory is unmapped */
    expect_lost(&other);
    assert_int_equal(waitpid(process.pid, &status, WNOHANG), 0);
    assert_int_equal(ptrace(PTRACE_CONT, process.pid, NULL, NULL), 0);
    assert_int_equal(waitpid(process.pid, &status, 0), process.pid);
    process_free(&process);
    client_free(&other);
    node_free(node);
}

/* The rank has left in order, as when its socket closes. It is not lost. */
static void test_what_it_asked_for_is_done(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct plan plan = {.forks = true, .joins = true, .leaves = true};
    uint64_t id;
    struct client other = join_as_other(node, &id);
    struct process process = process_start(node, &plan);
    event_free(client_expect_reply(&other, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
    process_let_die(&process); /* request and death are found in the same turn */
    expect_sessions(node, 1);
    client_check(&other); /* the first packet that it gets is the answer */
    process_free(&process);
    client_free(&other);
    node_free(node);
}

/* The session ends with the process, not with the thread that connected, nor when the process runs another
 * program. */
static void test_threads_and_programs_come_and_go(void **state)
{
    (void)state;
    struct node *node = node_new();
    static const struct plan plans[] = {{.by_thread = true}, {.execs = true}};
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        int status;
        struct process process = process_start(node, &plans[i]);
        if (plans[i].execs) {
            char byte;
            assert_int_equal(send(process.control, "g", 1, MSG_NOSIGNAL), 1);
            assert_int_equal(recv(process.control, &byte, 1, 0), 0); /* the other program closed its end */
        }
        node_turns(node, 100);
        assert_int_equal(sessions(node), 1);
        kill(process.pid, SIGKILL);
        assert_int_equal(waitpid(process.pid, &status, 0), process.pid);
        expect_sessions(node, 0);
        process_free(&process);
    }
    node_free(node);
}

/* The process ends before commd accepts its connection. Another process that has the socket gets no session.
 */
static void test_dead_before_it_is_accepted(void **state)
{
    (void)state;
    struct node *node = node_new();
    struct plan plan = {.forks = true, .silent = true};
    struct process process = process_start(node, &plan);
    process_let_die(&process);
    node_turn(node); /* refused; or accepted, if the kernel gives pidfds of processes that have ended */
    expect_sessions(node, 0);
    process_free(&process);
    node_free(node);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_child_keeps_the_socket),
        cmocka_unit_test(test_the_other_rank_is_told),
        cmocka_unit_test(test_the_other_rank_is_told_early),
        cmocka_unit_test(test_what_it_asked_for_is_done),
        cmocka_unit_test(test_threads_and_programs_come_and_go),
        cmocka_unit_test(test_dead_before_it_is_accepted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
