#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include "client/lib/internal.h"

/* Checks whether commd runs: its loop increments a word. The socket does not show this, because it stays open
 * while commd is stopped. */

bool heart_open(struct client_heart *heart, const int fds[CLIENT_HEARTBEAT_FDS])
{
    void *page = MAP_FAILED;
    if (memory_is_fixed(fds[0], sizeof *heart->page)) {
        page = mmap(NULL, sizeof *heart->page, PROT_READ, MAP_SHARED, fds[0], 0);
    }
    close(fds[0]);
    if (page == MAP_FAILED) {
        close(fds[1]);
        return false;
    }
    heart->page = page;
    heart->daemon_fd = fds[1];
    return true;
}

void heart_close(struct client_heart *heart)
{
    if (heart->page != NULL) {
        (void)munmap((void *)(uintptr_t)heart->page, sizeof *heart->page);
        close(heart->daemon_fd);
        heart->page = NULL;
    }
}

void heart_set_patience(struct client_heart *heart, uint32_t patience_ms)
{
    uint32_t most_ms = patience_ms < HEART_PATIENCE_MAX_MS ? patience_ms : HEART_PATIENCE_MAX_MS;
    heart->still_ms = most_ms + CLIENT_HEARTBEAT_MS;
}

uint32_t heart_still_ms(const struct client_heart *heart)
{
    return heart->still_ms > HEART_STILL_MS ? heart->still_ms : HEART_STILL_MS;
}

bool heart_stands_still(const struct client_heart *heart, struct heart_watch *watch, uint64_t now_ns)
{
    if (heart->page == NULL) {
        return false;
    }
    uint64_t beats = atomic_load_explicit(&heart->page->beats, memory_order_relaxed);
    if (beats != watch->beats || watch->looked_ns == 0) {
        *watch = (struct heart_watch){.beats = beats, .looked_ns = now_ns};
    } else {
        uint64_t step_ns = now_ns - watch->looked_ns;
        watch->looked_ns = now_ns;
        watch->still_ns += step_ns < HEART_STEP_MAX_NS ? step_ns : HEART_STEP_MAX_NS;
    }
    bool in_long_call = atomic_load_explicit(&heart->page->long_calls, memory_order_relaxed) > 0;
    uint64_t most_ms = heart_still_ms(heart);
    most_ms = in_long_call && most_ms < HEART_LONG_MS ? HEART_LONG_MS : most_ms;
    return watch->still_ns >= most_ms * 1000000u;
}

static bool process_has_ended(int pidfd, int timeout_ms)
{
    struct pollfd ended = {.fd = pidfd, .events = POLLIN};
    return poll(&ended, 1, timeout_ms) != 0; /* a failure of poll counts as the end */
}

void client_lose_frozen(struct comm_client *client)
{
    client->frozen = client->frozen || client->lost == COMM_OK;
    client_lose(client, COMM_DAEMON_LOST,
                "%s: commd is stopped, or gets no processor time: it has done nothing for %u ms; until its "
                "process has ended it may still write to registered buffers",
                client->path, (unsigned)heart_still_ms(&client->heart));
}

bool client_daemon_may_write(const struct comm_client *client)
{
    return client->frozen && !process_has_ended(client->heart.daemon_fd, 0);
}

void client_await_daemon_end(struct comm_client *client, uint64_t deadline_ns)
{
    int pidfd = client->heart.daemon_fd;
    if (!client->frozen) {
        return;
    }
    pthread_mutex_unlock(&client->lock);
    while (!process_has_ended(pidfd, poll_timeout_ms(deadline_ns)) && clock_ns() < deadline_ns) {
    }
    pthread_mutex_lock(&client->lock);
}
