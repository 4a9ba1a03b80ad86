#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/api/session.h"
#include "daemon/base/descriptor.h"
#include "daemon/base/long_call.h"

/*
 * A heartbeat: a word that the loop increments while it runs, in a page that clients can read. If the word
 * stops, a client knows that commd is stopped or starved. The client also gets a pidfd, which reports when
 * commd has ended: only then is the client's memory safe.
 *
 * The loop is woken for the heartbeat only while a client listens.
 */

struct api_heart {
    struct api *api;
    struct loop_timer *timer;
    struct client_heartbeat *page;
    int page_fd;
    int pidfd;
    uint32_t listeners;
};

static size_t page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void heart_beat(void *context, uint64_t now_ns)
{
    struct api_heart *heart = context;
    atomic_fetch_add_explicit(&heart->page->beats, 1, memory_order_relaxed);
    if (heart->listeners > 0) {
        loop_timer_set(heart->timer, time_after(now_ns, CLIENT_HEARTBEAT_MS * TIME_MS));
    }
}

/* Only this process can write to the page, and no process can remove it. */
static enum status heart_make_page(struct api_heart *heart, struct error *error)
{
    heart->page_fd = memfd_create("commd-heartbeat", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (heart->page_fd < 0 || ftruncate(heart->page_fd, (off_t)page_bytes()) != 0) {
        return error_set_errno(error, errno, "a page for the heartbeat");
    }
    void *page = mmap(NULL, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, heart->page_fd, 0);
    if (page == MAP_FAILED) {
        return error_set_errno(error, errno, "a page for the heartbeat");
    }
    heart->page = page;
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
    return fcntl(heart->page_fd, F_ADD_SEALS, seals) == 0
               ? STATUS_OK
               : error_set_errno(error, errno, "a page for the heartbeat");
}

enum status api_heart_new(struct api *api, struct error *error)
{
    struct api_heart *heart = calloc(1, sizeof *heart);
    if (heart == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the heartbeat");
    }
    api->heart = heart;
    heart->api = api;
    heart->page_fd = -1;
    heart->pidfd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    if (heart->pidfd < 0) {
        return error_set_errno(error, errno, "pidfd_open");
    }
    enum status status = heart_make_page(heart, error);
    if (status == STATUS_OK) {
        long_call_show(&heart->page->long_calls);
    }
    return status == STATUS_OK ? loop_timer_new(api->loop, heart_beat, heart, &heart->timer, error) : status;
}

void api_heart_free(struct api *api)
{
    struct api_heart *heart = api->heart;
    if (heart == NULL) {
        return;
    }
    loop_timer_free(heart->timer);
    if (heart->page != NULL) {
        long_call_show(NULL);
        (void)munmap(heart->page, page_bytes());
    }
    int fds[] = {heart->page_fd, heart->pidfd};
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++) {
        descriptor_close(fds[i]);
    }
    free(heart);
    api->heart = NULL;
}

void api_heart_listen(struct api_session *session, uint64_t now_ns)
{
    struct api_heart *heart = session->api->heart;
    session->listens = true;
    if (heart->listeners++ == 0) {
        heart_beat(heart, now_ns);
    }
}

void api_heart_forget(struct api_session *session)
{
    if (session->listens) {
        session->listens = false;
        session->api->heart->listeners--;
    }
}

void api_heart_fds(const struct api *api, int fds[CLIENT_HEARTBEAT_FDS])
{
    fds[0] = api->heart->page_fd;
    fds[1] = api->heart->pidfd;
}
