#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "client/lib/internal.h"
#include "proto/version.h"

static comm_result_t open_socket(const char *path, int *out)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: a socket's path has at most %zu bytes", path,
                            sizeof address.sun_path - 1);
    }
    strcpy(address.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return error_report(COMM_SYSTEM, "socket: %s", strerror(errno));
    }
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) {
        int reason = errno;
        close(fd);
        if (reason == EACCES || reason == EPERM) {
            return error_report(COMM_PERMISSION, "%s: %s", path, strerror(reason));
        }
        return error_report(COMM_DAEMON_LOST, "%s: %s: is commd running? ($%s names another socket)", path,
                            strerror(reason), CLIENT_SOCKET_ENVIRONMENT);
    }
    *out = fd;
    return COMM_OK;
}

static comm_result_t greet(struct comm_client *client, uint32_t timeout_ms)
{
    char program[64] = "";
    FILE *file = fopen("/proc/self/comm", "re");
    if (file != NULL) {
        if (fgets(program, sizeof program, file) == NULL) {
            program[0] = '\0';
        }
        program[strcspn(program, "\n")] = '\0';
        fclose(file);
    }
    Commd__Client__Hello hello = COMMD__CLIENT__HELLO__INIT;
    hello.protocol_version = CLIENT_PROTOCOL_VERSION;
    hello.program = program;
    hello.version_text = (char *)COMMD_VERSION_TEXT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_HELLO;
    request.hello = &hello;
    Commd__Client__Event *event;
    comm_result_t result =
        client_ask(client, &request, -1, COMMD__CLIENT__REPLY__BODY_HELLO, timeout_ms, &event);
    if (result != COMM_OK) {
        return result;
    }
    const Commd__Client__HelloReply *answer = event->reply->hello;
    client->pending_ops_max =
        answer->pending_ops_max < OPS_IN_FLIGHT_MAX ? answer->pending_ops_max : OPS_IN_FLIGHT_MAX;
    if (answer->protocol_version != CLIENT_PROTOCOL_VERSION || client->pending_ops_max == 0) {
        result =
            error_report(COMM_VERSION, "%s: commd speaks version %u of the protocol, this library version %u",
                         client->path, answer->protocol_version, CLIENT_PROTOCOL_VERSION);
    }
    commd__client__event__free_unpacked(event, NULL);
    return result;
}

static void client_free(struct comm_client *client)
{
    memory_release_all(client);
    close(client->fd);
    pthread_cond_destroy(&client->changed);
    pthread_mutex_destroy(&client->lock);
    free(client->memories);
    free(client->path);
    free(client);
}

comm_result_t comm_client_open(const comm_open_options_t *options, comm_client_t **out)
{
    comm_open_options_t given = COMM_OPEN_OPTIONS_INIT;
    if (out == NULL || !options_copy(&given, sizeof given, options)) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_client_open: %s",
                            out == NULL ? "no place for the client" : "options of an unknown size");
    }
    *out = NULL;
    const char *path = given.socket_path;
    const char *environment = getenv(CLIENT_SOCKET_ENVIRONMENT);
    if (path == NULL) {
        path = environment != NULL && environment[0] != '\0' ? environment : CLIENT_SOCKET_DEFAULT;
    }
    struct comm_client *client = calloc(1, sizeof *client);
    char *path_copy = strdup(path);
    if (client == NULL || path_copy == NULL) {
        free(client);
        free(path_copy);
        return error_report(COMM_NO_MEMORY, "no memory for a connection");
    }
    client->path = path_copy;
    client->pid = getpid();
    comm_result_t result = open_socket(path, &client->fd);
    if (result != COMM_OK) {
        free(client->path);
        free(client);
        return result;
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&client->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    pthread_mutex_init(&client->lock, NULL);
    pthread_mutex_lock(&client->lock);
    result = greet(client, given.timeout_ms != 0 ? given.timeout_ms : OPEN_TIMEOUT_DEFAULT_MS);
    pthread_mutex_unlock(&client->lock);
    if (result != COMM_OK) {
        client_free(client);
        return result;
    }
    *out = client;
    return COMM_OK;
}

void comm_client_close(comm_client_t *client)
{
    if (client == NULL) {
        return;
    }
    if (client->pid != getpid()) { /* a fork's copy: the connection is the parent's */
        close(client->fd);
        return;
    }
    while (client->comms != NULL) {
        comm_destroy(client->comms);
    }
    client_free(client);
}
