#include "tests/lib/fake_daemon_parts.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

/* The functions for tests, and those that all parts need. */

void fake_must(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "fake_daemon: %s: %s\n", what, strerror(errno));
        abort();
    }
}

uint64_t fake_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

struct fake_script fake_current_script(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    struct fake_script script = daemon->script;
    pthread_mutex_unlock(&daemon->lock);
    return script;
}

struct fake_daemon *fake_daemon_start(const struct fake_script *script)
{
    struct fake_daemon *daemon = calloc(1, sizeof *daemon);
    fake_must(daemon != NULL, "calloc");
    snprintf(daemon->folder, sizeof daemon->folder, "/tmp/fake-daemon-XXXXXX");
    fake_must(mkdtemp(daemon->folder) != NULL, daemon->folder);
    snprintf(daemon->path, sizeof daemon->path, "%s/commd.sock", daemon->folder);
    for (unsigned i = 0; i < FAKE_NODE_NAMES_MAX; i++) {
        snprintf(daemon->node_names[i], sizeof daemon->node_names[i], "node-%u", i);
    }
    for (size_t i = 0; i < FAKE_SESSIONS_MAX; i++) {
        daemon->sessions[i].fd = -1;
    }
    if (script != NULL) {
        daemon->script = *script;
    }
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, daemon->path, strlen(daemon->path) + 1);
    daemon->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    daemon->wake_fd = eventfd(0, EFD_CLOEXEC);
    fake_must(daemon->listen_fd >= 0 && daemon->wake_fd >= 0, "socket");
    fake_must(bind(daemon->listen_fd, (struct sockaddr *)&address, sizeof address) == 0, daemon->path);
    fake_must(listen(daemon->listen_fd, 16) == 0, "listen");
    pthread_mutex_init(&daemon->lock, NULL);
    pthread_cond_init(&daemon->changed, NULL);
    fake_must(pthread_create(&daemon->thread, NULL, fake_serve, daemon) == 0, "pthread_create");
    return daemon;
}

void fake_daemon_set(struct fake_daemon *daemon, const struct fake_script *script)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->script = *script;
    daemon->op_count = 0;
    pthread_mutex_unlock(&daemon->lock);
}

const char *fake_daemon_path(const struct fake_daemon *daemon)
{
    return daemon->path;
}

struct fake_counts fake_daemon_counts(struct fake_daemon *daemon)
{
    pthread_mutex_lock(&daemon->lock);
    struct fake_counts counts = daemon->counts;
    pthread_mutex_unlock(&daemon->lock);
    return counts;
}

void fake_daemon_wait(struct fake_daemon *daemon,
                      bool (*reached)(const struct fake_counts *counts, uint64_t value), uint64_t value)
{
    pthread_mutex_lock(&daemon->lock);
    while (!reached(&daemon->counts, value)) {
        pthread_cond_wait(&daemon->changed, &daemon->lock);
    }
    pthread_mutex_unlock(&daemon->lock);
}

static void wake(struct fake_daemon *daemon, bool *why)
{
    uint64_t one = 1;
    pthread_mutex_lock(&daemon->lock);
    *why = true;
    pthread_mutex_unlock(&daemon->lock);
    fake_must(write(daemon->wake_fd, &one, sizeof one) == sizeof one, "wake");
}

void fake_daemon_go_on(struct fake_daemon *daemon)
{
    wake(daemon, &daemon->goes_on);
}

void fake_daemon_stop(struct fake_daemon *daemon)
{
    wake(daemon, &daemon->stopping);
    pthread_join(daemon->thread, NULL);
    close(daemon->wake_fd);
    close(daemon->listen_fd);
    unlink(daemon->path);
    rmdir(daemon->folder);
    pthread_cond_destroy(&daemon->changed);
    pthread_mutex_destroy(&daemon->lock);
    free(daemon);
}
