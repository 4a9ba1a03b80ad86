#include "tests/fuzz/client_node.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "proto/version.h"
#include "tests/lib/send_fds.h"

#define TURNS_MAX 200000 /* time that an input asks for must pass within this many steps */
/* steps of exec in one turn; an operation that waits for a client's word would go on for ever */
#define RUNS_MAX 64

/* --- The clock and the users of clients: these two functions replace libc's --- */

static bool clock_is_ours;
static uint64_t clock_ns;
static uint32_t peer_uid;

int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (clock_is_ours && (clock == CLOCK_MONOTONIC || clock == CLOCK_MONOTONIC_COARSE)) {
        *time =
            (struct timespec){.tv_sec = (time_t)(clock_ns / TIME_S), .tv_nsec = (long)(clock_ns % TIME_S)};
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, clock, time);
}

int getsockopt(int fd, int level, int option, void *value, socklen_t *size)
{
    int result = (int)syscall(SYS_getsockopt, fd, level, option, value, size);
    if (result == 0 && clock_is_ours && level == SOL_SOCKET && option == SO_PEERCRED) {
        ((struct ucred *)value)->uid = peer_uid;
    }
    return result;
}

void fuzz_clock_start(void)
{
    clock_is_ours = true;
    clock_ns = 1000 * TIME_S;
}

void fuzz_clock_stop(void)
{
    clock_is_ours = false;
}

/* --- The node --- */

static char socket_path[64];

static void remove_folder(void)
{
    *strrchr(socket_path, '/') = '\0';
    (void)rmdir(socket_path);
}

static void make_folder(void)
{
    if (socket_path[0] == '\0') {
        strcpy(socket_path, "/tmp/commd-fuzz-XXXXXX");
        fuzz_require(mkdtemp(socket_path) != NULL);
        strcat(socket_path, "/s");
        atexit(remove_folder);
    }
}

static void on_log(void *context, enum log_level level, const char *line)
{
    (void)context;
    (void)level;
    (void)line;
}

static void on_settings(void *context, conf_visit_function *visit, void *visit_context)
{
    (void)context;
    visit(visit_context, "slice_bytes", "4096", "default", &(struct conf_waiting){NULL, NULL});
}

void fuzz_node_start(struct fuzz_node *node)
{
    struct mesh_options mesh_options;
    *node = (struct fuzz_node){0};
    make_folder();
    log_set_sink(on_log, NULL);
    fuzz_require(loop_new(&node->loop, NULL) == STATUS_OK);
    mesh_options_default(&mesh_options);
    mesh_options.node_name = "a";
    mesh_options.cluster_name = "blue";
    mesh_options.version_text = COMMD_VERSION_TEXT;
    mesh_options.instance = 77;
    fuzz_require(mesh_new(NULL, &mesh_options, &node->mesh, NULL) == STATUS_OK);
    fuzz_require(exec_new(NULL, &node->exec, NULL) == STATUS_OK);
    fuzz_require(p2p_new(NULL, &node->p2p, NULL) == STATUS_OK);
    struct comms_options comms_options = {
        .mesh = node->mesh, .exec = node->exec, .p2p = node->p2p, .seed_secure = 5, .slice_bytes = 4096};
    fuzz_require(comms_new(&comms_options, &node->comms, NULL) == STATUS_OK);
    struct stores_options stores_options = {.mesh = node->mesh, .seed_secure = 6};
    fuzz_require(stores_new(&stores_options, &node->stores, NULL) == STATUS_OK);
    struct api_options options = {.socket_path = socket_path,
                                  .listen_fd = -1,
                                  .socket_mode = 0666,
                                  .socket_group = "",
                                  .comms = node->comms,
                                  .stores = node->stores,
                                  .mesh = node->mesh,
                                  .cluster_name = "blue",
                                  .network_address = "",
                                  .standalone = true,
                                  .started_ns = loop_now_ns(),
                                  .owner.visit_settings = on_settings};
    fuzz_require(api_new(node->loop, &options, loop_now_ns(), &node->api, NULL) == STATUS_OK);
}

static void node_look(struct fuzz_node *node)
{
    uint64_t now_ns = loop_now_ns();
    mesh_tick(node->mesh, now_ns);
    exec_tick(node->exec, now_ns);
    p2p_tick(node->p2p, now_ns);
    comms_tick(node->comms, now_ns);
    stores_tick(node->stores, now_ns);
    (void)api_poll(node->api, now_ns);
    for (unsigned i = 0; (exec_has_work(node->exec) || p2p_has_work(node->p2p)) && i < RUNS_MAX; i++) {
        (void)exec_run(node->exec, now_ns);
        (void)p2p_run(node->p2p, now_ns);
    }
    if (comms_next_deadline_ns(node->comms) <= now_ns) {
        comms_tick(node->comms, now_ns);
    }
    (void)stores_run(node->stores, now_ns);
    api_ring_bells(node->api);
}

void fuzz_node_turn(struct fuzz_node *node)
{
    fuzz_require(loop_run_once(node->loop, 0, NULL) == STATUS_OK);
    node_look(node);
}

void fuzz_node_turns(struct fuzz_node *node, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        fuzz_node_turn(node);
    }
}

void fuzz_node_advance(struct fuzz_node *node, uint64_t span_ns)
{
    uint64_t until_ns = clock_ns + span_ns;
    for (unsigned i = 0; clock_ns < until_ns; i++) {
        fuzz_require(i < TURNS_MAX);
        uint64_t next_ns = mesh_next_deadline_ns(node->mesh);
        next_ns = time_min(next_ns, comms_next_deadline_ns(node->comms));
        next_ns = time_min(next_ns, stores_next_deadline_ns(node->stores));
        next_ns = time_min(next_ns, exec_next_deadline_ns(node->exec));
        next_ns = time_min(next_ns, p2p_next_deadline_ns(node->p2p));
        /* commd would poll every few microseconds. This takes larger steps; otherwise time would hardly move.
         */
        uint64_t least_ns = clock_ns + span_ns / 8 + 1;
        clock_ns = time_min(until_ns, next_ns > least_ns ? next_ns : least_ns);
        node_look(node);
    }
    fuzz_node_turn(node);
}

void fuzz_node_stop(struct fuzz_node *node)
{
    fuzz_node_turns(node, 3);
    fuzz_node_advance(node, 20 * TIME_S); /* commd reports or forgets some things only after a while */
    fuzz_require(comms_idle(node->comms));
    api_free(node->api);
    stores_free(node->stores);
    comms_free(node->comms);
    exec_free(node->exec);
    p2p_free(node->p2p);
    mesh_free(node->mesh);
    loop_free(node->loop);
    log_set_sink(NULL, NULL);
}

/* --- Clients --- */

void fuzz_client_connect(struct fuzz_client *client, struct fuzz_node *node, uint32_t uid)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    *client = (struct fuzz_client){.node = node,
                                   .bell_of_daemon = -1,
                                   .bell = -1,
                                   .asked = client->asked,
                                   .submitted = client->submitted,
                                   .asked_context = client->asked_context};
    strcpy(address.sun_path, socket_path);
    client->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    fuzz_require(client->fd >= 0);
    fuzz_require(connect(client->fd, (struct sockaddr *)&address, sizeof address) == 0);
    peer_uid = uid;
    fuzz_node_turn(node); /* commd accepts it now, while peer_uid is this client's */
}

static void client_drop_cells(struct fuzz_client *client)
{
    if (client->cells != NULL) {
        fuzz_require(munmap(client->cells, client->cells_bytes) == 0);
        client->cells = NULL;
    }
}

void fuzz_client_close(struct fuzz_client *client)
{
    if (client->fd < 0) {
        return;
    }
    close(client->fd);
    client->fd = -1;
    client_drop_cells(client);
    if (client->shared != NULL) {
        fuzz_require(munmap(client->shared, 2 * ring_shared_bytes(CLIENT_RING_BYTES)) == 0);
        close(client->bell_of_daemon);
        close(client->bell);
        client->shared = NULL;
    }
}

/* Counts the submits of a packet. Those before a wrong one are carried out and answered. */
static void client_count_submits(struct fuzz_client *client, const uint8_t *packet, size_t size)
{
    struct submit_record record;
    const char *what;
    size_t record_bytes;
    for (size_t at = 0; at < size; at += record_bytes) {
        record_bytes = submit_record_read(packet + at, size - at, &record, &what);
        if (record_bytes == 0) {
            return;
        }
        if (record.kind == RECORD_OPERATION) {
            client->submits[record.ticket % FUZZ_TICKETS]++;
        }
        client->captured[record.ticket % FUZZ_TICKETS] |= record.kind == RECORD_CAPTURED;
        if (client->submitted != NULL) {
            client->submitted(client->asked_context, &record);
        }
    }
}

/* Counts the answers that commd owes for a packet, if it is a request. */
static void client_count(struct fuzz_client *client, const uint8_t *packet, size_t size)
{
    if (packet_is_record(packet, size)) {
        client_count_submits(client, packet, size);
        return;
    }
    Commd__Client__Request *request = commd__client__request__unpack(NULL, size, packet);
    if (request == NULL) {
        return;
    }
    client->requests[request->id % FUZZ_TICKETS]++;
    client->destroys |= request->body_case == COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    if (client->asked != NULL) {
        client->asked(client->asked_context, request);
    }
    commd__client__request__free_unpacked(request, NULL);
}

static bool client_put(struct fuzz_client *client, const uint8_t *packet, size_t size)
{
    if (ring_put(&client->out, packet, size) != RING_OK) {
        return false;
    }
    if (ring_wake_consumer(&client->out)) {
        (void)!write(client->bell_of_daemon, "", 1);
    }
    return true;
}

bool fuzz_client_send(struct fuzz_client *client, const uint8_t *packet, size_t size, const int *fds,
                      unsigned fd_count)
{
    if (client->fd < 0) {
        return false;
    }
    bool by_ring = client->shared != NULL && fd_count == 0 && size > 0;
    bool sent = by_ring
                    ? client_put(client, packet, size)
                    : send_with_fds(client->fd, packet, size, fds, fd_count, MSG_DONTWAIT) == (ssize_t)size;
    if (sent) {
        client_count(client, packet, size);
    }
    return sent;
}

bool fuzz_client_request(struct fuzz_client *client, const Commd__Client__Request *request, int fd)
{
    static uint8_t packet[2 * CLIENT_PACKET_MAX_BYTES];
    size_t size = commd__client__request__get_packed_size(request);
    if (size > sizeof packet) {
        return false;
    }
    commd__client__request__pack(request, packet);
    return fuzz_client_send(client, packet, size, &fd, fd >= 0 ? 1 : 0);
}

void fuzz_client_hello(struct fuzz_client *client, bool rings)
{
    char *features[] = {(char *)CLIENT_FEATURE_RINGS};
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.program = (char *)"fuzz";
    hello.features = features;
    hello.n_features = rings ? 1 : 0;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    (void)fuzz_client_request(client, &request, -1);
}

static void client_take_cells(struct fuzz_client *client, int fd)
{
    client_drop_cells(client);
    off_t size = lseek(fd, 0, SEEK_END);
    fuzz_require(size >= (off_t)cells_bytes(2));
    client->cells_bytes = (size_t)size;
    client->cells = mmap(NULL, client->cells_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    fuzz_require(client->cells != MAP_FAILED);
    close(fd);
}

/* Takes the rings, which come with the reply to the Hello, or a communicator's cells. */
static void client_take_fds(struct fuzz_client *client, struct msghdr *message)
{
    int fds[CLIENT_RING_FDS];
    struct cmsghdr *control = CMSG_FIRSTHDR(message);
    if (control == NULL || control->cmsg_type != SCM_RIGHTS) {
        return;
    }
    if (control->cmsg_len == CMSG_LEN(sizeof fds[0])) {
        memcpy(fds, CMSG_DATA(control), sizeof fds[0]);
        client_take_cells(client, fds[0]);
        return;
    }
    fuzz_require(control->cmsg_len == CMSG_LEN(sizeof fds) && client->shared == NULL);
    memcpy(fds, CMSG_DATA(control), sizeof fds);
    client->shared =
        mmap(NULL, 2 * ring_shared_bytes(CLIENT_RING_BYTES), PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0);
    fuzz_require(client->shared != MAP_FAILED);
    close(fds[0]);
    client->bell_of_daemon = fds[1];
    client->bell = fds[2];
    ring_attach(&client->out, client->shared, CLIENT_RING_BYTES);
    ring_attach(&client->in, client->shared + ring_shared_bytes(CLIENT_RING_BYTES), CLIENT_RING_BYTES);
}

static void client_event(struct fuzz_client *client, const uint8_t *packet, size_t size)
{
    if (packet_is_record(packet, size)) {
        struct completion_record completion;
        const char *what;
        fuzz_require(completion_record_read(packet, size, &completion, &what));
        client->completes[completion.ticket % FUZZ_TICKETS]++;
        client->not_ok += completion.status != STATUS_OK;
        return;
    }
    Commd__Client__Event *event = commd__client__event__unpack(NULL, size, packet);
    fuzz_require(event != NULL);
    if (event->body_case == COMMD__CLIENT__EVENT__BODY_REPLY) {
        client->replies[event->reply->id % FUZZ_TICKETS]++;
        client->not_ok += event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR;
    }
    commd__client__event__free_unpacked(event, NULL);
}

unsigned fuzz_client_read(struct fuzz_client *client)
{
    static uint8_t packet[CLIENT_PACKET_MAX_BYTES + 1];
    union {
        struct cmsghdr header;
        char space[CMSG_SPACE(CLIENT_RING_FDS * sizeof(int))];
    } control;
    unsigned count = 0;
    while (client->fd >= 0 && !client->ended) {
        struct iovec part = {.iov_base = packet, .iov_len = sizeof packet};
        struct msghdr message = {
            .msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
        ssize_t size = recvmsg(client->fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
        if (size > 0) {
            fuzz_require((size_t)size <= CLIENT_PACKET_MAX_BYTES);
            client_take_fds(client, &message);
            client_event(client, packet, (size_t)size);
            count++;
            continue;
        }
        client->ended = size == 0 || errno != EAGAIN;
        break;
    }
    size_t ring_bytes;
    while (client->fd >= 0 && client->shared != NULL && !client->scribbles &&
           ring_take(&client->in, packet, sizeof packet, &ring_bytes) == RING_OK) {
        client_event(client, packet, ring_bytes);
        count++;
        if (ring_wake_producer(&client->in)) {
            (void)!write(client->bell_of_daemon, "", 1);
        }
    }
    return count;
}

void fuzz_client_check_answered(const struct fuzz_client *client)
{
    for (unsigned i = 0; i < FUZZ_TICKETS && !client->scribbles; i++) {
        if (client->captured[i]) {
            continue;
        }
        fuzz_require(client->completes[i] <= client->submits[i]);
        if (client->fd >= 0 && !client->ended) {
            fuzz_require(client->replies[i] == client->requests[i]);
            fuzz_require(client->destroys || client->completes[i] == client->submits[i]);
        }
    }
}
