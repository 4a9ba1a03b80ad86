#include "daemon/base/log_writer.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/thread.h"

#define WRITER_STACK_BYTES 131072

enum writer_state {
    WRITER_ABSENT,
    WRITER_RUNS,
    WRITER_ENDS, /* the thread writes what is queued, then ends */
    WRITER_STUCK /* log_writer_stop no longer waits for it */
};

static struct {
    pthread_mutex_t lock; /* held while a line is copied, never during a write */
    pthread_cond_t filled;
    pthread_cond_t ended;
    enum writer_state state;
    pthread_t thread;
    size_t first, count_bytes; /* of the queue: lines, each after its length */
    uint64_t lost_unreported;
    char queue[LOG_QUEUE_BYTES];
} writer = {.lock = PTHREAD_MUTEX_INITIALIZER, .filled = PTHREAD_COND_INITIALIZER};

/* Before each line of the queue. */
struct line_header {
    uint32_t size_bytes;
    uint64_t reports; /* how many lost lines this line reports; 0: an ordinary line */
};

static atomic_uint_fast64_t lines_lost;

/* --- The queue; the caller holds the lock --- */

static void queue_copy_in(const void *bytes, size_t size)
{
    size_t at = (writer.first + writer.count_bytes) % LOG_QUEUE_BYTES;
    size_t head = size < LOG_QUEUE_BYTES - at ? size : LOG_QUEUE_BYTES - at;
    memcpy(writer.queue + at, bytes, head);
    memcpy(writer.queue, (const char *)bytes + head, size - head);
    writer.count_bytes += size;
}

static void queue_copy_out(void *bytes, size_t size)
{
    size_t head = size < LOG_QUEUE_BYTES - writer.first ? size : LOG_QUEUE_BYTES - writer.first;
    memcpy(bytes, writer.queue + writer.first, head);
    memcpy((char *)bytes + head, writer.queue, size - head);
    writer.first = (writer.first + size) % LOG_QUEUE_BYTES;
    writer.count_bytes -= size;
}

static void queue_lose(const struct line_header *header)
{
    if (header->reports != 0) { /* a report was lost: its count is reported again */
        writer.lost_unreported += header->reports;
    } else {
        writer.lost_unreported++;
        atomic_fetch_add_explicit(&lines_lost, 1, memory_order_relaxed);
    }
}

static bool queue_put(const char *line, const struct line_header *header)
{
    if (header->size_bytes + sizeof *header > LOG_QUEUE_BYTES - writer.count_bytes) {
        return false;
    }
    queue_copy_in(header, sizeof *header);
    queue_copy_in(line, header->size_bytes);
    return true;
}

/* Queues the report at the place of the missing lines. Returns false if the queue has no room. */
static bool queue_put_report(void)
{
    char line[LOG_LINE_MAX_BYTES];
    if (writer.lost_unreported == 0) {
        return true;
    }
    size_t size = log_format_line(line, LOG_LEVEL_WARNING,
                                  "%llu log lines were lost: nobody read standard error, or it took no more",
                                  (unsigned long long)writer.lost_unreported);
    struct line_header header = {.size_bytes = (uint32_t)size, .reports = writer.lost_unreported};
    if (!queue_put(line, &header)) {
        return false;
    }
    writer.lost_unreported = 0;
    return true;
}

bool log_writer_put(const char *line, size_t size_bytes)
{
    pthread_mutex_lock(&writer.lock);
    bool present = writer.state != WRITER_ABSENT;
    if (present) {
        const struct line_header header = {.size_bytes = (uint32_t)size_bytes};
        if (writer.state == WRITER_STUCK || !queue_put_report() || !queue_put(line, &header)) {
            queue_lose(&header);
        }
        pthread_cond_signal(&writer.filled);
    }
    pthread_mutex_unlock(&writer.lock);
    return present;
}

uint64_t log_lines_lost(void)
{
    return atomic_load_explicit(&lines_lost, memory_order_relaxed);
}

/* --- The thread --- */

/* Returns false if standard error takes nothing (closed, its reader gone, its disk full). */
static bool write_line(const char *line, size_t size)
{
    while (size > 0) {
        ssize_t written = write(STDERR_FILENO, line, size);
        if (written >= 0) {
            line += written;
            size -= (size_t)written;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) { /* another process has made it non-blocking */
            struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
            (void)poll(&room, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

static void *writer_run(void *context)
{
    char line[LOG_LINE_MAX_BYTES];
    const struct sched_param none = {0};
    (void)context;
    (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &none); /* no thread waits for a log line */
    pthread_mutex_lock(&writer.lock);
    for (;;) {
        /* If standard error has refused lines, it would refuse a report as well. So the report waits for the
         * next line. */
        while (writer.count_bytes == 0 && writer.state == WRITER_RUNS) {
            pthread_cond_wait(&writer.filled, &writer.lock);
        }
        if (writer.count_bytes == 0) {
            break;
        }
        struct line_header header;
        queue_copy_out(&header, sizeof header);
        queue_copy_out(line, header.size_bytes);
        bool reports = writer.count_bytes == 0;
        pthread_mutex_unlock(&writer.lock);
        bool written = write_line(line, header.size_bytes);
        pthread_mutex_lock(&writer.lock);
        if (!written) {
            queue_lose(&header);
        } else if (reports) {
            (void)queue_put_report();
        }
    }
    writer.state = WRITER_ABSENT;
    pthread_cond_signal(&writer.ended);
    pthread_mutex_unlock(&writer.lock);
    return NULL;
}

enum status log_writer_start(struct error *error)
{
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, WRITER_STACK_BYTES);
    thread_cond_init(&writer.ended);
    pthread_mutex_lock(&writer.lock);
    int failure = thread_start(&writer.thread, &attributes, writer_run, NULL);
    writer.state = failure == 0 ? WRITER_RUNS : WRITER_ABSENT;
    pthread_mutex_unlock(&writer.lock);
    pthread_attr_destroy(&attributes);
    return failure == 0 ? STATUS_OK
                        : error_set_errno(error, failure, "starting a thread that writes log lines");
}

void log_writer_stop(uint32_t timeout_ms)
{
    struct timespec deadline;
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    deadline.tv_sec += timeout_ms / 1000;
    deadline.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (deadline.tv_nsec >= 1000000000) {
        deadline.tv_sec++;
        deadline.tv_nsec -= 1000000000;
    }
    pthread_mutex_lock(&writer.lock);
    bool runs = writer.state == WRITER_RUNS;
    writer.state = runs ? WRITER_ENDS : writer.state;
    pthread_cond_signal(&writer.filled);
    int waited = 0;
    while (runs && writer.state != WRITER_ABSENT && waited == 0) {
        waited = pthread_cond_timedwait(&writer.ended, &writer.lock, &deadline);
    }
    bool ended = runs && writer.state == WRITER_ABSENT;
    writer.state = runs && !ended ? WRITER_STUCK : writer.state;
    pthread_mutex_unlock(&writer.lock);
    if (ended) {
        (void)pthread_join(writer.thread, NULL);
    } else if (runs) {
        (void)pthread_detach(writer.thread);
    }
}
