#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "proto/version_range.h"

int client_thread_start(struct comm_client *client, void *(*function)(void *), pthread_t *out)
{
    /* These report faults of the thread itself, such as a buffer that the program has unmapped. If they were
     * blocked, the process would end without the program's handler. */
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
        sigdelset(&all, faults[i]);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before); /* a new thread inherits the mask */
    int failed = pthread_create(out, NULL, function, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static comm_result_t connect_failure(const char *path, int reason, uint32_t timeout_ms)
{
    switch (reason) {
    case EACCES:
    case EPERM:
        return error_report(COMM_PERMISSION,
                            "%s: %s: commd's configuration says who may connect (socket_group, "
                            "socket_mode)",
                            path, strerror(reason));
    case EAGAIN:
        return error_report(COMM_TIMED_OUT, "%s: commd did not accept the connection within %u ms", path,
                            timeout_ms);
    default:
        return error_report(COMM_DAEMON_LOST, "%s: %s: is commd running? ($%s names another socket)", path,
                            strerror(reason), CLIENT_SOCKET_ENVIRONMENT);
    }
}

static comm_result_t open_socket(const char *path, uint32_t timeout_ms, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof address.sun_path) {
        return error_report(COMM_INVALID_ARGUMENT, "\"%s\": the path of commd's socket has 1 to %zu bytes",
                            path, sizeof address.sun_path - 1);
    }
    memcpy(address.sun_path, path, length + 1);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        bool is_limit = errno == EMFILE || errno == ENFILE;
        return error_report(is_limit ? COMM_LIMIT : COMM_SYSTEM, "%s: socket: %s%s", path, strerror(errno),
                            is_limit ? " (ulimit -n)" : "");
    }
    /* connect waits for room in commd's queue; the socket's send time-out bounds that wait. */
    struct timeval timeout = {.tv_sec = (time_t)(timeout_ms / 1000),
                              .tv_usec = (suseconds_t)(timeout_ms % 1000 * 1000)};
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout);
    uint64_t deadline_ns = clock_after_ms(timeout_ms); /* each signal lets the socket's time begin again */
    int connected;
    do {
        connected = connect(fd, (struct sockaddr *)&address, sizeof address);
    } while (connected < 0 && errno == EINTR && clock_ns() < deadline_ns);
    if (connected < 0) {
        int reason = errno == EINTR ? EAGAIN : errno;
        close(fd);
        return connect_failure(path, reason, timeout_ms);
    }
    *out = fd;
    return COMM_OK;
}

static comm_result_t take_hello(struct comm_client *client, const Commd__Client__HelloReply *reply)
{
    const struct version_range ours = {CLIENT_PROTOCOL_OLDEST, CLIENT_PROTOCOL_VERSION};
    const struct version_range chosen = {0, reply->protocol_version};
    char text[VERSION_RANGE_TEXT_BYTES];
    if (version_choose(ours, chosen) == 0) {
        return error_report(COMM_VERSION,
                            "%s: commd (%s) speaks version %u of the client protocol, this library (%s) %s: "
                            "use the same release of both",
                            client->path, reply->version_text, reply->protocol_version, COMMD_VERSION_TEXT,
                            version_range_text(ours, text, sizeof text));
    }
    if (reply->pending_ops_max == 0) {
        return error_report(COMM_PROTOCOL, "%s: commd allows no operation at all", client->path);
    }
    DEBUG("%s: connected to commd %s of node %s, version %u of the protocol", client->path,
          reply->version_text, reply->node_name, reply->protocol_version);
    client->pending_ops_max =
        reply->pending_ops_max < OPS_IN_FLIGHT_MAX ? reply->pending_ops_max : OPS_IN_FLIGHT_MAX;
    return COMM_OK;
}

static bool has_feature(const Commd__Client__HelloReply *reply, const char *feature)
{
    for (size_t i = 0; i < reply->n_features; i++) {
        if (strcmp(reply->features[i], feature) == 0) {
            return true;
        }
    }
    return false;
}

/* From here on commd uses the rings, not the socket. Without their descriptors the connection is useless. */
static comm_result_t take_features(struct comm_client *client, const Commd__Client__HelloReply *reply)
{
    bool has_rings = has_feature(reply, CLIENT_FEATURE_RINGS);
    bool has_heart = has_feature(reply, CLIENT_FEATURE_HEARTBEAT);
    client->offers_stores = has_feature(reply, CLIENT_FEATURE_STORE);
    client->records_by_ticket = has_feature(reply, CLIENT_FEATURE_RECORDS_BY_TICKET);
    client->takes_graphs = has_feature(reply, CLIENT_FEATURE_GRAPHS);
    client->aborts = has_feature(reply, CLIENT_FEATURE_ABORT);
    client->shrinks = has_feature(reply, CLIENT_FEATURE_SHRINK);
    client->takes_pools = has_feature(reply, CLIENT_FEATURE_MEMORY_POOLS);
    client->gathers = has_feature(reply, CLIENT_FEATURE_GATHER);
    if (reply->draining != NULL) {
        draining_handle(client, reply->draining);
    }
    client->joins_blocks = has_feature(reply, CLIENT_FEATURE_BUCKETS_OF_BLOCKS);
    client->cells.offered = has_feature(reply, CLIENT_FEATURE_CELLS);
    size_t ring_fds = has_rings ? CLIENT_RING_FDS : 0;
    size_t heart_fds = has_heart ? CLIENT_HEARTBEAT_FDS : 0;
    if (client->hello_fd_count != ring_fds + heart_fds) {
        return error_report(
            COMM_LIMIT,
            "%s: this process cannot take the descriptors that commd passes: is RLIMIT_NOFILE too low?",
            client->path);
    }
    client->hello_fd_count = 0;
    if (has_rings && !rings_are_safe(client->hello_fds)) {
        for (size_t i = 0; i < ring_fds + heart_fds; i++) {
            close(client->hello_fds[i]);
        }
        return error_report(COMM_PROTOCOL,
                            "%s: commd passes rings that are not safe to use: memory that is not sealed or "
                            "too small, or doorbells that are no Unix sockets",
                            client->path);
    }
    bool fine = true;
    if (has_rings) {
        client->rings = rings_open(client->hello_fds);
        fine = client->rings != NULL;
    }
    if (has_heart) {
        fine = heart_open(&client->heart, client->hello_fds + ring_fds) && fine;
        heart_set_patience(&client->heart, reply->patience_ms);
    }
    return fine ? COMM_OK
                : error_report(COMM_SYSTEM, "%s: this process cannot map the memory that commd offers",
                               client->path);
}

#define THREAD_NAME_BYTES 16 /* prctl(2), PR_GET_NAME */

/* Gets the name of the process's main thread. If called in the main thread, no file is read. */
static void read_program_name(char *out, size_t size)
{
    out[0] = '\0';
    if (size >= THREAD_NAME_BYTES && gettid() == getpid() && prctl(PR_GET_NAME, out) == 0) {
        out[THREAD_NAME_BYTES - 1] = '\0';
    } else {
        FILE *file = fopen("/proc/self/comm", "re");
        if (file == NULL) {
            return;
        }
        if (fgets(out, (int)size, file) == NULL) {
            out[0] = '\0';
        }
        fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
    for (char *byte = out; *byte != '\0'; byte++) {
        *byte = *byte >= ' ' && *byte <= '~' ? *byte : '?';
    }
}

/* Reads a variable that turns a feature off. */
static comm_result_t want(const struct comm_client *client, const char *variable, bool *out)
{
    static const struct {
        const char *text;
        bool on;
    } wishes[] = {{"", true},   {"1", true},    {"on", true},  {"yes", true},   {"true", true},
                  {"0", false}, {"off", false}, {"no", false}, {"false", false}};
    const char *wish = getenv(variable);
    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++) {
        if (strcmp(wish != NULL ? wish : "", wishes[i].text) == 0) {
            *out = wishes[i].on;
            return COMM_OK;
        }
    }
    return error_report(COMM_INVALID_ARGUMENT, "%s=%.40s: expected on or off (%s)", variable, wish,
                        client->path);
}

static comm_result_t greet(struct comm_client *client, uint64_t deadline_ns)
{
    bool rings = true, cells = true;
    comm_result_t wished = want(client, CLIENT_RINGS_ENVIRONMENT, &rings);
    wished = wished == COMM_OK ? want(client, CLIENT_CELLS_ENVIRONMENT, &cells) : wished;
    if (wished != COMM_OK) {
        return wished;
    }
    char program[64];
    read_program_name(program, sizeof program);
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.oldest_version = CLIENT_PROTOCOL_OLDEST;
    hello.program = program;
    hello.version_text = (char *)COMMD_VERSION_TEXT;
    char *features[] = {(char *)CLIENT_FEATURE_RINGS,
                        (char *)CLIENT_FEATURE_HEARTBEAT,
                        (char *)CLIENT_FEATURE_RECORDS_BY_TICKET,
                        (char *)CLIENT_FEATURE_ABORT,
                        (char *)CLIENT_FEATURE_GRAPHS,
                        (char *)CLIENT_FEATURE_FAILURES,
                        (char *)CLIENT_FEATURE_STORE,
                        (char *)CLIENT_FEATURE_SHRINK,
                        (char *)CLIENT_FEATURE_GATHER,
                        (char *)CLIENT_FEATURE_DRAINING,
                        (char *)CLIENT_FEATURE_BUCKETS_OF_BLOCKS,
                        (char *)CLIENT_FEATURE_MEMORY_POOLS,
                        (char *)CLIENT_FEATURE_CELLS};
    size_t left_out = rings ? 0 : 1;
    hello.features = features + left_out;
    hello.n_features = sizeof features / sizeof features[0] - left_out - (cells ? 0 : 1);
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    struct client_question question = {.what = "greeting commd",
                                       .expected = COMMD__CLIENT__REPLY__BODY_HELLO,
                                       .fd = -1,
                                       .deadline_ns = deadline_ns};
    Commd__Client__Event *event;
    comm_result_t result = client_ask(client, &request, &question, &event, NULL);
    if (result == COMM_OK) {
        result = take_hello(client, event->reply->hello);
        if (result == COMM_OK) {
            result = take_features(client, event->reply->hello);
            trace_open(client, event->reply->hello->node_name);
        }
        commd__client__event__free_unpacked(event, NULL);
    }
    return result;
}

/* This process's id, in a page that fork clears for the child. The page is never freed. */
static const _Atomic pid_t *own_process(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static _Atomic pid_t *page;
    size_t page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    pthread_mutex_lock(&lock);
    if (page == NULL) {
        void *memory = mmap(NULL, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        page = memory != MAP_FAILED && madvise(memory, page_bytes, MADV_WIPEONFORK) == 0 ? memory : NULL;
        if (page == NULL && memory != MAP_FAILED) {
            (void)munmap(memory, page_bytes);
        }
    }
    if (page != NULL) {
        atomic_store_explicit(page, getpid(), memory_order_relaxed);
    }
    pthread_mutex_unlock(&lock);
    return page;
}

static struct comm_client *client_new(const char *path)
{
    pthread_condattr_t attributes;
    struct comm_client *client = calloc(1, sizeof *client);
    if (client == NULL || (client->path = strdup(path)) == NULL || pthread_condattr_init(&attributes) != 0) {
        goto failed;
    }
    client->fd = client->cells.fd = -1;
    client->pid = getpid();
    client->process = own_process();
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&client->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&client->lock, NULL);
    fences_init(&client->fences);
    staging_init(&client->staging);
    held_init(&client->feeder);
    return client;
failed:
    if (client != NULL) {
        free(client->path);
    }
    free(client);
    return NULL;
}

static void client_free(struct comm_client *client)
{
    events_free_all(client);
    fences_close(&client->fences);
    held_close(client);
    staging_free_all(client);
    pools_free_all(client);
    memory_free_all(client);
    gpus_close(client);
    rings_close(client->rings);
    heart_close(&client->heart);
    trace_close(client->trace);
    for (size_t i = 0; i < client->hello_fd_count; i++) {
        close(client->hello_fds[i]);
    }
    if (client->cells.fd >= 0) {
        close(client->cells.fd);
    }
    if (client->fd >= 0) {
        close(client->fd);
    }
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client->path);
    free(client);
}

static comm_result_t try_open(const char *path, uint32_t timeout_ms, comm_client_t **out)
{
    uint64_t deadline_ns = clock_after_ms(timeout_ms);
    struct comm_client *client = client_new(path);
    if (client == NULL) {
        return error_report(COMM_NO_MEMORY, "%s: no memory for a connection", path);
    }
    comm_result_t result = open_socket(path, timeout_ms, &client->fd);
    if (result == COMM_OK) {
        pthread_mutex_lock(&client->lock);
        result = greet(client, deadline_ns);
        pthread_mutex_unlock(&client->lock);
    }
    if (result != COMM_OK) {
        client_free(client);
        return result;
    }
    *out = client;
    return COMM_OK;
}

#define WAIT_MAX_MS 86400000u
#define WAIT_FIRST_TRY_MS 10u
#define WAIT_LONGEST_TRY_MS 200u

comm_result_t client_wait_from_environment(uint32_t *out)
{
    const char *text = getenv(CLIENT_WAIT_ENVIRONMENT);
    uint64_t number = 0;
    *out = 0;
    for (const char *digit = text; digit != NULL && *digit != '\0'; digit++) {
        number = *digit >= '0' && *digit <= '9' && number <= WAIT_MAX_MS
                     ? number * 10 + (uint64_t)(*digit - '0')
                     : UINT64_MAX / 16;
    }
    if (number > WAIT_MAX_MS) {
        return error_report(COMM_INVALID_ARGUMENT, "%s=%.40s: expected milliseconds, 0 to %u",
                            CLIENT_WAIT_ENVIRONMENT, text, WAIT_MAX_MS);
    }
    *out = (uint32_t)number;
    return COMM_OK;
}

/* While commd is restarted, the connection may be refused, closed again, or accepted by nobody. */
static bool may_come(comm_result_t result)
{
    return result == COMM_DAEMON_LOST || result == COMM_SHUTTING_DOWN || result == COMM_TIMED_OUT;
}

static comm_result_t open_and_wait(const char *path, const comm_open_options_t *given, comm_client_t **out)
{
    uint32_t timeout_ms = given->timeout_ms != 0 ? given->timeout_ms : OPEN_TIMEOUT_DEFAULT_MS;
    uint64_t deadline_ns = clock_after_ms(given->wait_ms);
    uint32_t pause_ms = WAIT_FIRST_TRY_MS;
    for (;;) {
        comm_result_t result = try_open(path, timeout_ms, out);
        uint64_t now_ns = clock_ns();
        if (given->wait_ms == 0 || !may_come(result)) {
            return result;
        }
        if (now_ns >= deadline_ns) {
            return error_within(result, "waited %u ms for commd", given->wait_ms);
        }
        uint64_t left_ms = (deadline_ns - now_ns) / 1000000u + 1;
        uint64_t sleep_ms = pause_ms < left_ms ? pause_ms : left_ms;
        nanosleep(&(struct timespec){.tv_nsec = (long)(sleep_ms * 1000000u)}, NULL);
        pause_ms = pause_ms * 2 < WAIT_LONGEST_TRY_MS ? pause_ms * 2 : WAIT_LONGEST_TRY_MS;
    }
}

comm_result_t comm_client_open(const comm_open_options_t *options, comm_client_t **out)
{
    comm_open_options_t given = COMM_OPEN_OPTIONS_INIT;
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_client_open: the argument for the client is a null pointer");
    }
    *out = NULL;
    comm_result_t result =
        options_copy(&given, sizeof given, options, "comm_client_open", "COMM_OPEN_OPTIONS_INIT");
    if (result == COMM_OK && given.wait_ms == 0) {
        result = client_wait_from_environment(&given.wait_ms);
    }
    if (result != COMM_OK) {
        return result;
    }
    const char *environment = getenv(CLIENT_SOCKET_ENVIRONMENT);
    const char *path = given.socket_path;
    if (path == NULL) {
        path = environment != NULL && environment[0] != '\0' ? environment : CLIENT_SOCKET_DEFAULT;
    }
    return open_and_wait(path, &given, out);
}

void comm_client_close(comm_client_t *client)
{
    if (client == NULL) {
        return;
    }
    if (client->pid != getpid()) { /* a copy made by fork; a thread of the parent may hold the copied lock */
        close(client->fd);
        client->fd = -1; /* a second call must not close another file */
        return;
    }
    pthread_mutex_lock(&client->lock);
    DEBUG("%s: closing the connection", client->path);
    uint64_t deadline_ns = clock_after_ms(FINISH_TIMEOUT_MS);
    while (client->comms != NULL) {
        member_drop(client->comms, deadline_ns);
    }
    queues_free_all(client);
    joins_free_all(client);
    memory_withdraw_all(client, clock_after_ms(FINISH_TIMEOUT_MS));
    if (client->gpus != NULL) { /* GPU memory is freed below; of host memory commd has its own mapping */
        client_await_daemon_end(client, clock_after_ms(FINISH_TIMEOUT_MS));
    }
    pthread_mutex_unlock(&client->lock);
    graphs_close(client);
    client_free(client);
}
