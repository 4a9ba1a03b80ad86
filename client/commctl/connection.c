#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/commctl/commctl.h"
#include "proto/status.h"
#include "proto/version.h"

static enum exit_code exit_code_of(enum status status)
{
    switch (status) {
    case STATUS_OK:
        return EXIT_CODE_OK;
    case STATUS_NOT_FOUND:
        return EXIT_CODE_NOT_FOUND;
    case STATUS_TIMED_OUT:
        return EXIT_CODE_TIMED_OUT;
    case STATUS_DAEMON_LOST:
        return EXIT_CODE_NOT_RUNNING;
    case STATUS_IN_PROGRESS:
    case STATUS_INVALID_ARGUMENT:
    case STATUS_UNSUPPORTED:
    case STATUS_MISMATCH:
    case STATUS_PERMISSION:
    case STATUS_ALREADY_EXISTS:
    case STATUS_LIMIT:
    case STATUS_NO_MEMORY:
    case STATUS_PROTOCOL:
    case STATUS_VERSION:
    case STATUS_NODE_LOST:
    case STATUS_RANK_LOST:
    case STATUS_ABORTED:
    case STATUS_SHUTTING_DOWN:
    case STATUS_CONFIG:
    case STATUS_SYSTEM:
    case STATUS_CERTIFICATE:
    case STATUS_UNREACHABLE:
    case STATUS_INTERNAL:
    case STATUS_DEVICE:
    case STATUS_BUSY:
        break;
    }
    return EXIT_CODE_FAILURE;
}

/* Prints a failure, unless the caller expects it. */
__attribute__((format(printf, 2, 3))) static void complain(const struct commctl *commctl, const char *format,
                                                           ...)
{
    va_list arguments;
    va_start(arguments, format);
    if (commctl->messages != NULL) {
        vfprintf(commctl->messages, format, arguments);
    }
    va_end(arguments);
}

/* Sends a request and waits for the reply, which may be an error. Unless OK is returned, *event is null. */
static enum exit_code exchange(struct commctl *commctl, Commd__Client__Request *request,
                               Commd__Client__Event **event)
{
    static uint8_t packet[CLIENT_PACKET_MAX_BYTES];
    size_t size = commd__client__request__get_packed_size(request);
    *event = NULL;
    if (size > sizeof packet) {
        complain(commctl, "commctl: the arguments are too long: a request has at most %u bytes\n",
                 (unsigned)CLIENT_PACKET_MAX_BYTES);
        return EXIT_CODE_USAGE;
    }
    commd__client__request__pack(request, packet);
    /* A refused client may get the reason before it sends a request. */
    ssize_t sent;
    do {
        sent = send(commctl->fd, packet, size, MSG_NOSIGNAL);
    } while (sent < 0 && errno == EINTR);
    if (sent < 0 && errno != EPIPE) {
        complain(commctl, "commctl: %s: %s\n", commctl->path, strerror(errno));
        return EXIT_CODE_NOT_RUNNING;
    }
    struct pollfd ready = {.fd = commctl->fd, .events = POLLIN};
    int count;
    do {
        count = poll(&ready, 1, (int)commctl->timeout_ms);
    } while (count < 0 && errno == EINTR);
    if (count == 0) {
        complain(commctl, "commctl: %s: no answer within %u ms\n", commctl->path, commctl->timeout_ms);
        return EXIT_CODE_TIMED_OUT;
    }
    ssize_t received = recv(commctl->fd, packet, sizeof packet, 0);
    if (received <= 0) {
        complain(commctl, "commctl: %s: commd closed the connection\n", commctl->path);
        return EXIT_CODE_NOT_RUNNING;
    }
    *event = commd__client__event__unpack(NULL, (size_t)received, packet);
    if (*event == NULL || (*event)->body_case != COMMD__CLIENT__EVENT__BODY_REPLY) {
        complain(commctl, "commctl: %s: the answer cannot be understood; is this a commd?\n", commctl->path);
        commd__client__event__free_unpacked(*event, NULL);
        *event = NULL;
        return EXIT_CODE_FAILURE;
    }
    return EXIT_CODE_OK;
}

/* Returns STATUS_OK if the reply is not an error. */
static enum status reply_status(const Commd__Client__Event *event)
{
    bool is_error = event->reply->body_case == COMMD__CLIENT__REPLY__BODY_ERROR;
    return is_error ? status_from_wire(event->reply->error->status) : STATUS_OK;
}

/* Prints the error, and frees the event. */
static enum exit_code fail_with_reply(const struct commctl *commctl, Commd__Client__Event **event)
{
    enum status status = reply_status(*event);
    const char *text = (*event)->reply->error->text;
    complain(commctl, "commctl: %s\n", text[0] != '\0' ? text : status_text(status));
    commd__client__event__free_unpacked(*event, NULL);
    *event = NULL;
    return exit_code_of(status);
}

static enum exit_code connect_failure(const struct commctl *commctl, int reason)
{
    if (reason == EAGAIN) {
        complain(commctl, "commctl: %s: commd did not accept the connection within %u ms\n", commctl->path,
                 commctl->timeout_ms);
        return EXIT_CODE_TIMED_OUT;
    }
    if (reason == ENAMETOOLONG) {
        complain(commctl, "commctl: %s: too long for a socket's path\n", commctl->path);
        return EXIT_CODE_USAGE;
    }
    complain(commctl, "commctl: %s: %s%s\n", commctl->path, strerror(reason),
             reason == ENOENT || reason == ECONNREFUSED ? " (is commd running? set COMMD_SOCKET or --socket)"
                                                        : "");
    return reason == EACCES ? EXIT_CODE_FAILURE : EXIT_CODE_NOT_RUNNING;
}

/* Whoever stops commctl and lets it go on interrupts a wait that has a time-out (signal(7)). */
static int connect_again(int fd, const struct sockaddr_un *address)
{
    int connected;
    do {
        connected = connect(fd, (const struct sockaddr *)address, sizeof *address);
    } while (connected < 0 && errno == EINTR);
    return connected;
}

/* Returns 0 or an errno value. */
static int connect_socket(struct commctl *commctl)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(commctl->path) >= sizeof address.sun_path) {
        return ENAMETOOLONG;
    }
    strcpy(address.sun_path, commctl->path);
    commctl->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    /* connect waits for room in commd's queue; the socket's send time-out bounds that wait. */
    struct timeval timeout = {.tv_sec = (time_t)(commctl->timeout_ms / 1000),
                              .tv_usec = (suseconds_t)(commctl->timeout_ms % 1000 * 1000)};
    if (commctl->fd < 0 || setsockopt(commctl->fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) < 0 ||
        connect_again(commctl->fd, &address) < 0) {
        int reason = errno;
        connection_close(commctl);
        return reason;
    }
    return 0;
}

/* *event may be an error; null with any code but OK. */
static enum exit_code greet(struct commctl *commctl, Commd__Client__Event **event)
{
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.oldest_version = CLIENT_PROTOCOL_OLDEST;
    hello.program = (char *)"commctl";
    hello.version_text = (char *)COMMD_VERSION_TEXT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.id = 1;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    return exchange(commctl, &request, event);
}

/*
 * Connects to the administrators' socket. Returns false if we may not use it: then the clients' socket is
 * tried, which shows the user's own rows.
 */
static bool connect_as_admin(struct commctl *commctl, enum exit_code *code)
{
    Commd__Client__Event *event;
    if (commctl->admin_socket_path == NULL) {
        return false;
    }
    commctl->path = commctl->admin_socket_path;
    int reason = connect_socket(commctl);
    if (reason == EAGAIN) {
        *code = connect_failure(commctl, reason);
        return true;
    }
    if (reason != 0) {
        return false;
    }
    *code = greet(commctl, &event);
    if (*code != EXIT_CODE_OK) {
        connection_close(commctl);
        return true;
    }
    enum status status = reply_status(event);
    if (status == STATUS_OK) {
        commd__client__event__free_unpacked(event, NULL);
        return true;
    }
    connection_close(commctl);
    if (status == STATUS_PERMISSION || status == STATUS_LIMIT) {
        commd__client__event__free_unpacked(event, NULL);
        return false;
    }
    *code = fail_with_reply(commctl, &event);
    return true;
}

static enum exit_code connect_and_greet(struct commctl *commctl)
{
    enum exit_code code;
    if (connect_as_admin(commctl, &code)) {
        return code;
    }
    commctl->path = commctl->socket_path;
    int reason = connect_socket(commctl);
    if (reason != 0) {
        return connect_failure(commctl, reason);
    }
    Commd__Client__Event *event;
    code = greet(commctl, &event);
    if (code == EXIT_CODE_OK && reply_status(event) != STATUS_OK) {
        code = fail_with_reply(commctl, &event);
    }
    commd__client__event__free_unpacked(event, NULL);
    if (code != EXIT_CODE_OK) {
        connection_close(commctl);
    }
    return code;
}

enum exit_code connection_request(struct commctl *commctl, Commd__Client__Request *request,
                                  Commd__Client__Event **event)
{
    static uint64_t last_id = 1;
    *event = NULL;
    if (commctl->fd < 0) {
        enum exit_code code = connect_and_greet(commctl);
        if (code != EXIT_CODE_OK) {
            return code;
        }
    }
    request->id = ++last_id;
    enum exit_code code = exchange(commctl, request, event);
    if (code == EXIT_CODE_OK && reply_status(*event) != STATUS_OK) {
        code = fail_with_reply(commctl, event);
    }
    if (code != EXIT_CODE_OK) {
        connection_close(commctl);
    }
    return code;
}

enum exit_code connection_request_done(struct commctl *commctl, Commd__Client__Request *request)
{
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, request, &event);
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

void connection_close(struct commctl *commctl)
{
    if (commctl->fd >= 0) {
        close(commctl->fd);
    }
    commctl->fd = -1;
}
