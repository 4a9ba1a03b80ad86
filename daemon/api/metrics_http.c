#include "daemon/api/metrics_http.h"

#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <event2/listener.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/time.h"
#include "daemon/conf/metrics_address.h"

/* Between looks at connections, while there are any. */
#define SWEEP_NS (100 * TIME_MS)
#define READ_AHEAD_MAX_BYTES (METRICS_HEADERS_MAX_BYTES + 1024u)
#define BACKLOG 16
#define SOCKET_MODE 0666

static const char open_metrics_type[] = "application/openmetrics-text; version=1.0.0; charset=utf-8";
static const char prometheus_type[] = "text/plain; version=0.0.4; charset=utf-8";

/*
 * evhttp neither counts its connections nor bounds their life. So a reference is kept to each connection's
 * bufferevent. When evhttp frees a connection, it takes the bufferevent's callbacks away: that is how the end
 * is noticed. The descriptor is closed with the last reference, so nobody reuses its number before.
 */
struct connection {
    struct bufferevent *bufferevent; /* null: a free place */
    uint64_t began_ns;
};

struct metrics_http {
    struct evhttp *evhttp;
    struct evconnlistener *listener;
    bool accepts;
    struct loop_timer *timer;
    metrics_http_write *write;
    void *context;
    char *path; /* of the socket file that was made; null: none */
    struct connection connections[METRICS_CONNECTIONS_MAX];
    unsigned connection_count;
    uint64_t second_ns; /* when the present second of accepts began */
    unsigned accepted;  /* in it */
};

/* --- Limits --- */

static void http_accept(struct metrics_http *http, bool accepts)
{
    if (http->accepts != accepts) {
        http->accepts = accepts;
        (void)(accepts ? evconnlistener_enable(http->listener) : evconnlistener_disable(http->listener));
    }
}

static bool has_ended(const struct connection *connection)
{
    bufferevent_event_cb on_event;
    bufferevent_getcb(connection->bufferevent, NULL, NULL, &on_event, NULL);
    return on_event == NULL;
}

static void connection_look(struct metrics_http *http, struct connection *connection, uint64_t now_ns)
{
    if (connection->bufferevent == NULL) {
        return;
    }
    if (has_ended(connection)) {
        (void)bufferevent_decref(connection->bufferevent);
        connection->bufferevent = NULL;
        http->connection_count--;
    } else if (now_ns - connection->began_ns >= METRICS_CONNECTION_MAX_NS) {
        (void)shutdown(bufferevent_getfd(connection->bufferevent), SHUT_RDWR); /* evhttp then ends it */
    }
}

static void http_sweep(void *context, uint64_t now_ns)
{
    struct metrics_http *http = context;
    for (size_t i = 0; i < METRICS_CONNECTIONS_MAX; i++) {
        connection_look(http, &http->connections[i], now_ns);
    }
    if (now_ns - http->second_ns >= TIME_S) {
        http->second_ns = now_ns;
        http->accepted = 0;
    }
    http_accept(http,
                http->connection_count < METRICS_CONNECTIONS_MAX && http->accepted < METRICS_ACCEPTS_PER_S);
    bool rests = http->connection_count == 0 && http->accepts;
    loop_timer_set(http->timer, rests ? TIME_NEVER : time_after(now_ns, SWEEP_NS));
}

/* The process has no descriptor for the next connection: it is looked for again later. */
static void http_accept_failed(struct evconnlistener *listener, void *context)
{
    struct metrics_http *http = context;
    (void)listener;
    http_accept(http, false);
    loop_timer_set(http->timer, time_after(loop_now_ns(), SWEEP_NS));
}

/* A connection begins. If null is returned, evhttp makes the bufferevent itself, and memory is short anyway.
 */
static struct bufferevent *connection_new(struct event_base *base, void *context)
{
    struct metrics_http *http = context;
    uint64_t now_ns = loop_now_ns();
    http_sweep(http, now_ns);
    struct connection *connection = http->connections;
    while (connection < http->connections + METRICS_CONNECTIONS_MAX && connection->bufferevent != NULL) {
        connection++;
    }
    struct bufferevent *bufferevent = bufferevent_socket_new(base, -1, BEV_OPT_CLOSE_ON_FREE);
    if (bufferevent != NULL && connection < http->connections + METRICS_CONNECTIONS_MAX) {
        bufferevent_incref(bufferevent);
        bufferevent_setwatermark(bufferevent, EV_READ, 0, READ_AHEAD_MAX_BYTES);
        *connection = (struct connection){.bufferevent = bufferevent, .began_ns = now_ns};
        http->connection_count++;
    }
    http->accepted++;
    http_accept(http,
                http->connection_count < METRICS_CONNECTIONS_MAX && http->accepted < METRICS_ACCEPTS_PER_S);
    loop_timer_set(http->timer, time_after(now_ns, SWEEP_NS));
    return bufferevent;
}

/* --- Requests --- */

/* The answer is sent, and evhttp ends the connection: its place is free at once. */
static void request_completed(struct evhttp_request *request, void *context)
{
    struct metrics_http *http = context;
    (void)request;
    loop_timer_set(http->timer, 0);
}

static void text_release(const void *bytes, size_t size, void *context)
{
    (void)bytes;
    (void)size;
    free(context);
}

static bool wants_open_metrics(struct evhttp_request *request)
{
    const char *accepted = evhttp_find_header(evhttp_request_get_input_headers(request), "Accept");
    return accepted != NULL && strstr(accepted, "application/openmetrics-text") != NULL;
}

static void answer(struct metrics_http *http, struct evhttp_request *request, int code, const char *reason,
                   const char *type, struct evbuffer *body)
{
    struct evkeyvalq *headers = evhttp_request_get_output_headers(request);
    (void)evhttp_add_header(headers, "Content-Type", type);
    (void)evhttp_add_header(headers, "Connection", "close");
    evhttp_request_set_on_complete_cb(request, request_completed, http);
    evhttp_send_reply(request, code, reason, body);
}

static void answer_failure(struct metrics_http *http, struct evhttp_request *request, int code,
                           const char *reason)
{
    struct evbuffer *body = evbuffer_new();
    if (body != NULL) {
        (void)evbuffer_add_printf(body, "%d %s\n", code, reason);
    }
    answer(http, request, code, reason, "text/plain; charset=utf-8", body);
    if (body != NULL) {
        evbuffer_free(body);
    }
}

/* The socket takes the text from where it was written; it is freed when the last byte is sent. */
static void request_metrics(struct evhttp_request *request, void *context)
{
    struct metrics_http *http = context;
    struct metrics_text text;
    bool open_metrics = wants_open_metrics(request);
    metrics_text_begin(&text, open_metrics ? METRICS_OPENMETRICS : METRICS_PROMETHEUS,
                       METRICS_TEXT_MAX_BYTES);
    http->write(http->context, &text, loop_now_ns());
    struct evbuffer *body = evbuffer_new();
    if (text.failed || body == NULL ||
        evbuffer_add_reference(body, text.bytes, text.used_bytes, text_release, text.bytes) != 0) {
        metrics_text_free(&text);
        answer_failure(http, request, HTTP_INTERNAL, "the metrics are too long, or memory is short");
    } else {
        answer(http, request, HTTP_OK, "OK", open_metrics ? open_metrics_type : prometheus_type, body);
    }
    if (body != NULL) {
        evbuffer_free(body);
    }
}

static void request_other(struct evhttp_request *request, void *context)
{
    answer_failure(context, request, HTTP_NOTFOUND, "the metrics are at /metrics");
}

/* --- The socket --- */

/* Removes the socket file of a process that has ended. */
static enum status remove_dead(const char *address, const struct sockaddr_un *place, struct error *error)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool answers =
        fd >= 0 && (connect(fd, (const struct sockaddr *)place, sizeof *place) == 0 || errno == EAGAIN);
    struct stat file;
    bool is_dead = !answers && lstat(place->sun_path, &file) == 0 && S_ISSOCK(file.st_mode);
    descriptor_close(fd);
    if (answers) {
        return error_set(error, STATUS_ALREADY_EXISTS, "metrics: %s: another process answers there", address);
    }
    if (is_dead && unlink(place->sun_path) != 0) {
        return error_set_errno(error, errno, "metrics: %s: unlink", address);
    }
    return STATUS_OK;
}

/* Returns a listening socket, or -1 with the error. */
static int http_listen(struct metrics_http *http, const char *address, struct error *error)
{
    struct sockaddr_storage place;
    socklen_t size_bytes;
    int on = 1;
    if (!conf_metrics_address(address, &place, &size_bytes)) {
        error_set(error, STATUS_CONFIG, "metrics = \"%s\": expected %s", address,
                  conf_metrics_expected(address));
        return -1;
    }
    bool is_file = place.ss_family == AF_UNIX;
    if (is_file && remove_dead(address, (const struct sockaddr_un *)&place, error) != STATUS_OK) {
        return -1;
    }
    int fd = socket(place.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0 && !is_file) {
        (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* after a restart */
    }
    if (fd < 0 || bind(fd, (const struct sockaddr *)&place, size_bytes) != 0 || listen(fd, BACKLOG) != 0) {
        error_set_errno(error, errno, "metrics: %s", address);
        descriptor_close(fd);
        return -1;
    }
    http->path = is_file ? strdup(address) : NULL;
    if (is_file && chmod(address, SOCKET_MODE) != 0) { /* whatever the umask; its folder says who may come */
        error_set_errno(error, errno, "metrics: %s: chmod", address);
        (void)close(fd);
        return -1;
    }
    return fd;
}

/* --- Beginning and end --- */

static enum status http_make(struct metrics_http *http, struct loop *loop, const char *address,
                             struct error *error)
{
    struct event_base *base = loop_event_base(loop);
    enum status status = loop_timer_new(loop, http_sweep, http, &http->timer, error);
    if (status != STATUS_OK) {
        return status;
    }
    int fd = http_listen(http, address, error);
    if (fd < 0) {
        return error->status;
    }
    http->evhttp = evhttp_new(base);
    struct evconnlistener *listener =
        http->evhttp != NULL
            ? evconnlistener_new(base, NULL, NULL, LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC, 0, fd)
            : NULL;
    if (listener == NULL) {
        (void)close(fd);
        return error_set(error, STATUS_NO_MEMORY, "metrics: no memory");
    }
    if (evhttp_bind_listener(http->evhttp, listener) == NULL) {
        evconnlistener_free(listener);
        return error_set(error, STATUS_NO_MEMORY, "metrics: no memory");
    }
    http->listener = listener; /* evhttp's from here on */
    evconnlistener_set_error_cb(listener, http_accept_failed);
    evhttp_set_allowed_methods(http->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_HEAD);
    evhttp_set_max_headers_size(http->evhttp, METRICS_HEADERS_MAX_BYTES);
    evhttp_set_max_body_size(http->evhttp, 0);
    evhttp_set_timeout(http->evhttp, METRICS_SILENCE_S);
    evhttp_set_bevcb(http->evhttp, connection_new, http);
    evhttp_set_gencb(http->evhttp, request_other, http);
    if (evhttp_set_cb(http->evhttp, "/metrics", request_metrics, http) != 0) {
        return error_set(error, STATUS_NO_MEMORY, "metrics: no memory");
    }
    return STATUS_OK;
}

enum status metrics_http_new(struct loop *loop, const char *address, metrics_http_write *write, void *context,
                             struct metrics_http **out, struct error *error)
{
    struct metrics_http *http = calloc(1, sizeof *http);
    if (http == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "metrics: no memory");
    }
    http->write = write;
    http->context = context;
    http->accepts = true;
    enum status status = http_make(http, loop, address, error);
    if (status != STATUS_OK) {
        metrics_http_free(http);
        return status;
    }
    *out = http;
    return STATUS_OK;
}

void metrics_http_free(struct metrics_http *http)
{
    if (http == NULL) {
        return;
    }
    if (http->evhttp != NULL) {
        evhttp_free(http->evhttp);
    }
    for (size_t i = 0; i < METRICS_CONNECTIONS_MAX; i++) {
        if (http->connections[i].bufferevent != NULL) {
            (void)bufferevent_decref(http->connections[i].bufferevent);
        }
    }
    loop_timer_free(http->timer);
    if (http->path != NULL) {
        (void)unlink(http->path);
    }
    free(http->path);
    free(http);
}
