#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "client/lib/internal.h"

/*
 * A stream that waits for commd cannot see that commd has ended. This thread waits for the end of the
 * connection, or of the client, and releases the streams. It also reads commd's events now and then, because
 * a program may wait for streams only, and commd stops reading requests of a client that does not read. And
 * it checks whether commd runs, without the lock, because the thread that holds the lock may wait for a
 * stream.
 */

#define BUSY_MS 20                              /* between looks, with operations in flight */
#define IDLE_MS (int)(HEART_LOOK_NS / 1000000u) /* without */

/* Returns the time until the next look, in ms. Does not wait for the lock, because its holder may wait for a
 * stream. */
static int take_what_is_there(struct comm_client *client)
{
    bool busy = false, replays = false;
    if (pthread_mutex_trylock(&client->lock) != 0) {
        return BUSY_MS;
    }
    for (const struct comm_comm *comm = client->comms; comm != NULL; comm = comm->next) {
        busy = busy || comm->op_count > 0;
        replays = replays || comm->parent != NULL;
    }
    if (busy || replays) {
        client_take_all(client);
    }
    pthread_mutex_unlock(&client->lock);
    return busy ? BUSY_MS : IDLE_MS;
}

static void *watch(void *argument)
{
    struct comm_client *client = argument;
    struct pollfd watched[] = {{.fd = client->fd}, {.fd = client->fences.watchdog_fd, .events = POLLIN}};
    struct heart_watch heart = {0};
    bool frozen = false;
    int timeout_ms = BUSY_MS;
    for (int ready = 0; ready <= 0 && !frozen;) {
        ready = poll(watched, 2, timeout_ms);
        timeout_ms = ready == 0 ? take_what_is_there(client) : timeout_ms;
        frozen = ready == 0 && heart_stands_still(&client->heart, &heart, clock_ns());
    }
    if (watched[1].revents != 0) {
        return NULL;
    }
    /* This comes first and without the client's lock, because its holder may wait for a stream. */
    fences_release(&client->fences);
    pthread_mutex_lock(&client->lock);
    if (frozen) {
        client_lose_frozen(client);
    } else {
        client_take_all(client); /* commd's last events, then its end */
    }
    pthread_mutex_unlock(&client->lock);
    return NULL;
}

comm_result_t watchdog_start(struct comm_client *client)
{
    struct client_fences *fences = &client->fences;
    int reason = 0;
    pthread_mutex_lock(&fences->lock);
    if (fences->watched) {
        pthread_mutex_unlock(&fences->lock);
        return COMM_OK;
    }
    fences->watchdog_fd = eventfd(0, EFD_CLOEXEC);
    reason = fences->watchdog_fd < 0 ? errno : 0;
    if (reason == 0) {
        reason = client_thread_start(client, watch, &fences->watchdog);
    }
    if (reason != 0 && fences->watchdog_fd >= 0) {
        close(fences->watchdog_fd);
        fences->watchdog_fd = -1;
    }
    fences->watched = reason == 0;
    pthread_mutex_unlock(&fences->lock);
    return reason == 0 ? COMM_OK
                       : error_report(COMM_SYSTEM, "%s: starting a thread that watches the connection: %s",
                                      client->path, strerror(reason));
}

void watchdog_stop(struct client_fences *fences)
{
    uint64_t one = 1;
    if (!fences->watched) {
        return;
    }
    while (write(fences->watchdog_fd, &one, sizeof one) < 0 && errno == EINTR) {
    }
    pthread_join(fences->watchdog, NULL);
    close(fences->watchdog_fd);
    fences->watchdog_fd = -1;
    fences->watched = false;
}
