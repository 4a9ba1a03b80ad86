#ifndef TESTS_UNIT_API_API_NODE_H
#define TESTS_UNIT_API_API_NODE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/api/api.h"
#include "daemon/api/session.h"
#include "daemon/base/log.h"
#include "daemon/base/loop.h"
#include "daemon/base/time.h"
#include "daemon/comm/comms.h"
#include "daemon/exec/exec.h"
#include "daemon/host/guard.h"
#include "daemon/mesh/mesh.h"
#include "proto/client.pb-c.h"
#include "proto/types.h"
#include "proto/version.h"
#include "tests/lib/own_process.h"
#include "tests/lib/send_fds.h"

/* One node, "a", with everything below the client socket, in this thread. The tests write its clients'
 * packets byte by byte, so that clients can break the protocol. Log lines are kept, not printed. */
#define TURNS_MAX 200000    /* turns of the loop without an answer; after that, the test fails */
#define TURNS_AT_ONCE 20000 /* turns without a pause; then one a millisecond, for what commd does later */

struct node {
    char folder[64];
    char path[96];
    char admin_path[96];
    struct loop *loop;
    struct mesh *mesh;
    struct exec *exec;
    struct p2p *p2p;
    struct comms *comms;
    struct api *api;
    unsigned warnings;
    char last_warning[1024];
    const char *awaited_warning; /* null: none */
    bool warned;                 /* a log line contained the awaited warning */
    unsigned reloads, log_levels;
    bool reload_waits;      /* for other threads */
    unsigned more_settings; /* nodes that the configuration lists */
    size_t setting_bytes;   /* the length of their values */
};

struct client {
    struct node *node;
    int fd;
    uint64_t last_id;
};

static inline void node_log(void *context, enum log_level level, const char *line)
{
    struct node *node = context;
    if (level <= LOG_LEVEL_WARNING) {
        node->warnings++;
        snprintf(node->last_warning, sizeof node->last_warning, "%s", line);
        node->warned |= node->awaited_warning != NULL && strstr(line, node->awaited_warning) != NULL;
    }
}

static inline void node_settings(void *context, conf_visit_function *visit, void *visit_context)
{
    const struct node *node = context;
    const struct conf_waiting waiting = {"65536", "commd.conf:3"}, nothing = {NULL, NULL};
    visit(visit_context, "slice_bytes", "4096", "default", &waiting);
    visit(visit_context, "key", "/secret/node.key", "commd.conf:7", &nothing);
    for (unsigned i = 0; i < node->more_settings; i++) {
        char key[32], value[8192];
        snprintf(key, sizeof key, "nodes[%u]", i);
        snprintf(value, sizeof value, "%0*u", (int)node->setting_bytes, i);
        visit(visit_context, key, value, "commd.conf:9", &nothing);
    }
}

static inline enum status node_reload(void *context, struct conf_changes *changes, uint64_t now_ns,
                                      struct error *error)
{
    struct node *node = context;
    (void)now_ns;
    node->reloads++;
    conf_changes_add(&changes->applied, "log_level = debug");
    conf_changes_add(&changes->waiting, "slice_bytes = 65536");
    return node->reloads == 1 ? STATUS_OK : error_set(error, STATUS_CONFIG, "commd.conf:3: x: unknown key");
}

static inline bool node_reload_is_used(void *context)
{
    return !((const struct node *)context)->reload_waits;
}

static inline enum status node_set_log_level(void *context, const char *level, struct error *error)
{
    struct node *node = context;
    node->log_levels++;
    return strcmp(level, "debug") == 0 ? STATUS_OK
                                       : error_set(error, STATUS_INVALID_ARGUMENT, "expected debug");
}

#define must(call)                                                                                           \
    do {                                                                                                     \
        struct error error_;                                                                                 \
        struct error *error = &error_;                                                                       \
        if ((call) != STATUS_OK) {                                                                           \
            fail_msg(#call ": %s", error_.text);                                                             \
        }                                                                                                    \
    } while (0)

static inline struct api_options node_api_options(struct node *node)
{
    return (struct api_options){.socket_path = node->path,
                                .listen_fd = -1,
                                .socket_mode = 0666,
                                .socket_mode_given = true,
                                .socket_group = "",
                                .admin_socket_path = node->admin_path,
                                .admin_listen_fd = -1,
                                .comms = node->comms,
                                .mesh = node->mesh,
                                .cluster_name = "blue",
                                .network_address = "",
                                .standalone = true,
                                .started_ns = loop_now_ns(),
                                .owner = {.context = node,
                                          .visit_settings = node_settings,
                                          .reload = node_reload,
                                          .reload_is_used = node_reload_is_used,
                                          .set_log_level = node_set_log_level}};
}

/* As in the daemon, the guard has its descriptor from the start. */
__attribute__((constructor)) static void node_start_guard(void)
{
    (void)guard_start();
}

/* Makes a node with everything below the socket. net: of the mesh; null for a node that is alone. */
static inline struct node *node_new_on(struct net *net)
{
    struct node *node = calloc(1, sizeof *node);
    assert_non_null(node);
    log_set_sink(node_log, node);
    strcpy(node->folder, "/tmp/commd-test-api-XXXXXX");
    assert_non_null(mkdtemp(node->folder));
    snprintf(node->path, sizeof node->path, "%s/commd.sock", node->folder);
    snprintf(node->admin_path, sizeof node->admin_path, "%s/admin.sock", node->folder);
    must(loop_new(&node->loop, error));
    struct mesh_options mesh_options;
    mesh_options_default(&mesh_options);
    mesh_options.node_name = "a";
    mesh_options.cluster_name = "blue";
    mesh_options.version_text = COMMD_VERSION_TEXT;
    mesh_options.instance = 77;
    must(mesh_new(net, &mesh_options, &node->mesh, error));
    must(exec_new(NULL, &node->exec, error));
    must(p2p_new(NULL, &node->p2p, error));
    struct comms_options comms_options = {
        .mesh = node->mesh, .exec = node->exec, .p2p = node->p2p, .seed_secure = 5, .slice_bytes = 65536};
    must(comms_new(&comms_options, &node->comms, error));
    return node;
}

static inline struct node *node_new_bare(void)
{
    return node_new_on(NULL);
}

static inline struct node *node_new(void)
{
    struct node *node = node_new_bare();
    struct api_options options = node_api_options(node);
    must(api_new(node->loop, &options, loop_now_ns(), &node->api, error));
    return node;
}

static inline void node_turn(struct node *node)
{
    uint64_t now_ns = loop_now_ns();
    mesh_tick(node->mesh, now_ns);
    exec_tick(node->exec, now_ns);
    p2p_tick(node->p2p, now_ns);
    comms_tick(node->comms, now_ns);
    if (exec_has_work(node->exec) || p2p_has_work(node->p2p)) {
        (void)exec_run(node->exec, now_ns);
        (void)p2p_run(node->p2p, now_ns);
    }
    must(loop_run_once(node->loop, 0, error));
    if (node->api != NULL) {
        (void)api_poll(node->api, loop_now_ns());
    }
}

static inline void node_turns(struct node *node, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        node_turn(node);
    }
}

static inline void node_free(struct node *node)
{
    node_turns(node, 3);
    api_free(node->api);
    comms_free(node->comms);
    exec_free(node->exec);
    p2p_free(node->p2p);
    mesh_free(node->mesh);
    loop_free(node->loop);
    assert_int_equal(access(node->path, F_OK), -1); /* the api removes its files */
    assert_int_equal(access(node->admin_path, F_OK), -1);
    assert_int_equal(rmdir(node->folder), 0);
    log_set_sink(NULL, NULL);
    free(node);
}

static inline unsigned sessions(const struct node *node)
{
    return HASH_COUNT(node->api->sessions);
}

/* Counts mappings of the clients' memfds in this process, which is the daemon's as well. */
static inline unsigned client_mappings(void)
{
    return count_mappings("client");
}

static inline int client_memfd(uint64_t size)
{
    int fd = memfd_create("client", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    for (uint64_t at = 0; at < size; at += 4096) { /* the client has to make the pages */
        static const char zeros[4096];
        size_t bytes = (size_t)(size - at < sizeof zeros ? size - at : sizeof zeros);
        assert_int_equal(pwrite(fd, zeros, bytes, (off_t)at), bytes);
    }
    assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
    return fd;
}

static inline void assert_contains(const char *text, const char *part)
{
    if (text == NULL || strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, text != NULL ? text : "");
    }
}

/* --- A client --- */

static inline int node_connect_to(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static inline int node_connect(struct node *node)
{
    return node_connect_to(node->path);
}

static inline struct client client_connect(struct node *node)
{
    struct client client = {.node = node, .fd = node_connect(node)};
    node_turn(node);
    return client;
}

/* Sends a packet as it is; false when the socket is full. */
static inline bool client_try_send(struct client *client, const void *bytes, size_t size, const int *fds,
                                   unsigned fd_count)
{
    ssize_t sent = send_with_fds(client->fd, bytes, size, fds, fd_count, MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        return false;
    }
    if (sent < 0 && errno == EPERM && fd_count > 0) {
        return client_try_send(client, bytes, size, NULL,
                               0); /* the kernel holds descriptors back until the Hello */
    }
    assert_int_equal(sent, size);
    return true;
}

static inline void client_send_raw(struct client *client, const void *bytes, size_t size, const int *fds,
                                   unsigned fd_count)
{
    for (unsigned turns = 0; !client_try_send(client, bytes, size, fds, fd_count); turns++) {
        assert_true(turns < TURNS_MAX);
        node_turn(client->node);
    }
}

/* Sends a request under the next id, with fd unless that is -1; returns the id. */
static inline uint64_t client_send(struct client *client, Commd__Client__Request *request, int fd)
{
    request->id = ++client->last_id;
    size_t size = commd__client__request__get_packed_size(request);
    uint8_t *bytes = malloc(size + 1);
    assert_non_null(bytes);
    commd__client__request__pack(request, bytes);
    client_send_raw(client, bytes, size, &fd, fd >= 0 ? 1 : 0);
    free(bytes);
    return client->last_id;
}

/* Returns the next packet's size; 0 when the daemon has closed the connection. */
static inline size_t client_receive_packet(struct client *client, uint8_t bytes[CLIENT_PACKET_MAX_BYTES + 1])
{
    for (unsigned turns = 0; turns < TURNS_MAX; turns++) {
        ssize_t size = recv(client->fd, bytes, CLIENT_PACKET_MAX_BYTES + 1, MSG_DONTWAIT);
        if (size > 0) {
            assert_true((size_t)size <= CLIENT_PACKET_MAX_BYTES);
            return (size_t)size;
        }
        if (size == 0 || errno == ECONNRESET) {
            return 0;
        }
        assert_true(errno == EAGAIN || errno == EWOULDBLOCK);
        if (turns > TURNS_AT_ONCE) {
            struct pollfd answer = {.fd = client->fd, .events = POLLIN};
            (void)poll(&answer, 1, 1);
        }
        node_turn(client->node);
    }
    fail_msg("no answer");
    return 0;
}

/* Returns the next event, which the caller frees; null when the daemon has closed the connection. */
static inline Commd__Client__Event *client_receive(struct client *client)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES + 1];
    size_t size = client_receive_packet(client, bytes);
    Commd__Client__Event *event = size > 0 ? commd__client__event__unpack(NULL, size, bytes) : NULL;
    assert_true(size == 0 || event != NULL);
    return event;
}

static inline void event_free(Commd__Client__Event *event)
{
    commd__client__event__free_unpacked(event, NULL);
}

static inline Commd__Client__Event *client_expect_reply(struct client *client, uint64_t id,
                                                        Commd__Client__Reply__BodyCase body)
{
    Commd__Client__Event *event = client_receive(client);
    assert_non_null(event);
    assert_int_equal(event->body_case, COMMD__CLIENT__EVENT__BODY_REPLY);
    if (event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR && body != event->reply->body_case) {
        fail_msg("%s", event->reply->error->text);
    }
    if (event->reply->id != id || event->reply->body_case != body) {
        fail_msg("reply %llu of kind %d, not %llu of kind %d", (unsigned long long)event->reply->id,
                 (int)event->reply->body_case, (unsigned long long)id, (int)body);
    }
    return event;
}

static inline void client_expect_error(struct client *client, uint64_t id, enum status status,
                                       const char *text)
{
    Commd__Client__Event *event = client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_ERROR);
    if (event->reply->error->status != status) {
        fail_msg("status %u, not %u: %s", event->reply->error->status, status, event->reply->error->text);
    }
    assert_contains(event->reply->error->text, text);
    event_free(event);
}

static inline void client_expect_done(struct client *client, uint64_t id)
{
    event_free(client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_DONE));
}

static inline void client_expect_closed(struct client *client)
{
    assert_null(client_receive(client));
}

/* Expects a completion with that ticket and status. The text is compared unless it is null. */
static inline void client_expect_complete(struct client *client, uint32_t handle, uint64_t ticket,
                                          enum status status, const char *text)
{
    static uint8_t bytes[CLIENT_PACKET_MAX_BYTES + 1];
    struct completion_record completion;
    const char *what;
    assert_true(completion_record_read(bytes, client_receive_packet(client, bytes), &completion, &what));
    if (completion.status != status) {
        fail_msg("status %u, not %u: %s", completion.status, status, completion.text);
    }
    assert_int_equal(completion.handle, handle);
    assert_int_equal(completion.ticket, ticket);
    if (text != NULL) {
        assert_contains(completion.text, text);
    }
}

/* oldest: the oldest version that the client speaks; 0: it does not send it. */
static inline uint64_t client_send_hello_range(struct client *client, uint32_t oldest, uint32_t version,
                                               const char *program)
{
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.oldest_version = oldest;
    hello.protocol_version = version;
    hello.program = (char *)program;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    return client_send(client, &request, -1);
}

static inline uint64_t client_send_hello(struct client *client, uint32_t version, const char *program)
{
    return client_send_hello_range(client, 0, version, program);
}

static inline uint64_t client_send_status(struct client *client, int fd)
{
    Commd__Client__StatusQuery query = COMMD__CLIENT__STATUS_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STATUS;
    request.status = &query;
    return client_send(client, &request, fd);
}

/* Checks that the session lives. */
static inline void client_check(struct client *client)
{
    uint64_t id = client_send_status(client, -1);
    event_free(client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_STATUS));
}

/* Returns a client that has had its answer to Hello. */
static inline struct client client_new_on(struct node *node, const char *path)
{
    struct client client = {.node = node, .fd = node_connect_to(path)};
    node_turn(node);
    uint64_t id = client_send_hello(&client, CLIENT_PROTOCOL_VERSION, "test");
    event_free(client_expect_reply(&client, id, COMMD__CLIENT__REPLY__BODY_HELLO));
    return client;
}

static inline struct client client_new(struct node *node)
{
    return client_new_on(node, node->path);
}

static inline struct client admin_new(struct node *node)
{
    return client_new_on(node, node->admin_path);
}

static inline void client_free(struct client *client)
{
    unsigned before = sessions(client->node);
    close(client->fd);
    for (unsigned i = 0; (i < 100 || turns_wait(&client->node->api->turns)) && i < 100000 && before > 0 &&
                         sessions(client->node) == before;
         i++) {
        node_turn(client->node);
    }
}

static inline uint64_t client_send_register(struct client *client, uint32_t memory, uint64_t size, int fd)
{
    Commd__Client__MemRegister body = COMMD__CLIENT__MEM_REGISTER__INIT;
    body.memory = memory;
    body.size_bytes = size;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_REGISTER;
    request.mem_register = &body;
    return client_send(client, &request, fd);
}

static inline uint64_t client_send_deregister(struct client *client, uint32_t memory)
{
    Commd__Client__MemDeregister body = COMMD__CLIENT__MEM_DEREGISTER__INIT;
    body.memory = memory;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_MEM_DEREGISTER;
    request.mem_deregister = &body;
    return client_send(client, &request, -1);
}

static inline uint64_t client_send_init(struct client *client, uint32_t handle, const char *name,
                                        uint32_t rank, uint32_t size)
{
    Commd__Client__CommInit body = COMMD__CLIENT__COMM_INIT__INIT;
    body.handle = handle;
    body.name = (char *)name;
    body.rank = rank;
    body.size = size;
    body.device = -1;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_INIT;
    request.comm_init = &body;
    return client_send(client, &request, -1);
}

static inline void client_init(struct client *client, uint32_t handle, const char *name)
{
    uint64_t id = client_send_init(client, handle, name, 0, 1);
    event_free(client_expect_reply(client, id, COMMD__CLIENT__REPLY__BODY_COMM_INIT));
}

static inline uint64_t client_send_destroy(struct client *client, uint32_t handle)
{
    Commd__Client__CommDestroy body = COMMD__CLIENT__COMM_DESTROY__INIT;
    body.handle = handle;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_DESTROY;
    request.comm_destroy = &body;
    return client_send(client, &request, -1);
}

/* An operation without buffers. */
static inline struct submit_record submit_of(uint32_t handle, uint64_t ticket, enum op_kind kind)
{
    struct submit_record submit;
    submit_record_begin(&submit, RECORD_OPERATION, handle);
    submit.ticket = ticket;
    submit.terms.kind = kind;
    return submit;
}

static inline void client_submit(struct client *client, const struct submit_record *submit)
{
    client_send_raw(client, (const uint8_t *)submit, submit_record_bytes(submit), NULL, 0);
}

#endif
