#include "daemon/watched_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/descriptor.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"

#define EVENTS (IN_MODIFY | IN_CLOSE_WRITE | IN_MOVED_TO | IN_MOVED_FROM | IN_CREATE | IN_DELETE | IN_ONLYDIR)
#define EVENTS_BYTES 4096

/* What tells one content from another. All zero: the file is not there. */
struct mark {
    dev_t device;
    ino_t inode;
    off_t size_bytes;
    struct timespec modified, changed;
};

struct watched_file {
    char *path, *folder;
    watched_file_function *function;
    void *context;
    int inotify_fd; /* -1: none */
    struct loop_watch *watch;
    struct mark mark;
    uint64_t look_ns;   /* when the file is looked at next */
    uint64_t settle_ns; /* TIME_NEVER: no event waits */
    uint64_t first_ns;  /* the first of the events that wait */
};

static void take_mark(const struct watched_file *file, struct mark *mark)
{
    struct stat now;
    *mark = (struct mark){0};
    if (stat(file->path, &now) == 0) {
        mark->device = now.st_dev;
        mark->inode = now.st_ino;
        mark->size_bytes = now.st_size;
        mark->modified = now.st_mtim;
        mark->changed = now.st_ctim;
    }
}

static bool times_equal(struct timespec one, struct timespec other)
{
    return one.tv_sec == other.tv_sec && one.tv_nsec == other.tv_nsec;
}

static bool marks_equal(const struct mark *one, const struct mark *other)
{
    return one->device == other->device && one->inode == other->inode &&
           one->size_bytes == other->size_bytes && times_equal(one->modified, other->modified) &&
           times_equal(one->changed, other->changed);
}

static void note_event(struct watched_file *file, uint64_t now_ns)
{
    if (file->settle_ns == TIME_NEVER) {
        file->first_ns = now_ns;
    }
    file->settle_ns = time_min(time_after(now_ns, WATCHED_FILE_SETTLE_NS),
                               time_after(file->first_ns, WATCHED_FILE_SETTLE_MAX_NS));
}

static void on_events(void *context, unsigned events, uint64_t now_ns)
{
    struct watched_file *file = context;
    char bytes[EVENTS_BYTES];
    (void)events;
    if (read(file->inotify_fd, bytes, sizeof bytes) > 0) {
        note_event(file, now_ns);
    }
}

/* Watches the folder that now has this name; harmless if it is watched already. */
static bool watch_folder(const struct watched_file *file)
{
    return inotify_add_watch(file->inotify_fd, file->folder, EVENTS) >= 0;
}

static void start_inotify(struct watched_file *file, struct loop *loop)
{
    struct error error;
    file->inotify_fd = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    if (file->inotify_fd < 0 || !watch_folder(file)) {
        log_warning("%s: inotify: %s; it is looked at every %llu s instead", file->path, strerror(errno),
                    (unsigned long long)(WATCHED_FILE_LOOK_NS / TIME_S));
    }
    if (file->inotify_fd >= 0 && loop_watch_new(loop, file->inotify_fd, LOOP_READ, on_events, file,
                                                &file->watch, &error) != STATUS_OK) {
        log_warning("%s: %s; it is looked at every %llu s instead", file->path, error.text,
                    (unsigned long long)(WATCHED_FILE_LOOK_NS / TIME_S));
        file->watch = NULL;
    }
}

enum status watched_file_new(struct loop *loop, const char *path, watched_file_function *function,
                             void *context, uint64_t now_ns, struct watched_file **out, struct error *error)
{
    struct watched_file *file = calloc(1, sizeof *file);
    const char *slash = strrchr(path, '/');
    if (file == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory to watch %s", path);
    }
    file->path = strdup(path);
    file->folder = slash == NULL   ? strdup(".")
                   : slash == path ? strdup("/")
                                   : strndup(path, (size_t)(slash - path));
    file->inotify_fd = -1;
    if (file->path == NULL || file->folder == NULL) {
        watched_file_free(file);
        return error_set(error, STATUS_NO_MEMORY, "no memory to watch %s", path);
    }
    file->function = function;
    file->context = context;
    file->settle_ns = TIME_NEVER;
    file->look_ns = time_after(now_ns, WATCHED_FILE_LOOK_NS);
    start_inotify(file, loop);
    take_mark(file, &file->mark);
    *out = file;
    return STATUS_OK;
}

void watched_file_free(struct watched_file *file)
{
    if (file == NULL) {
        return;
    }
    loop_watch_free(file->watch);
    descriptor_close(file->inotify_fd);
    free(file->path);
    free(file->folder);
    free(file);
}

uint64_t watched_file_next_deadline_ns(const struct watched_file *file)
{
    return time_min(file->look_ns, file->settle_ns);
}

void watched_file_tick(struct watched_file *file, uint64_t now_ns)
{
    struct mark mark;
    if (now_ns < watched_file_next_deadline_ns(file)) {
        return;
    }
    bool settled = now_ns >= file->settle_ns;
    file->look_ns = time_after(now_ns, WATCHED_FILE_LOOK_NS);
    if (file->inotify_fd >= 0) {
        (void)watch_folder(file); /* the folder itself may be another one by now */
    }
    take_mark(file, &mark);
    if (marks_equal(&mark, &file->mark)) {
        file->settle_ns = settled ? TIME_NEVER : file->settle_ns;
        return;
    }
    if (!settled) {
        note_event(file, now_ns); /* it is perhaps being written */
        return;
    }
    file->settle_ns = TIME_NEVER;
    file->mark = mark;
    file->function(file->context, now_ns);
}
