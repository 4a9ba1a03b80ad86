#ifndef DAEMON_WATCHED_FILE_H
#define DAEMON_WATCHED_FILE_H

#include "daemon/base/loop.h"

/*
 * One file that others may change at any time: in place, by a rename, or by a link that points elsewhere, as
 * Kubernetes does it. The folder is watched with inotify. The file is also looked at every few seconds, for
 * file systems and links that inotify does not cover. Only the loop's thread calls these functions.
 */
struct watched_file;

#define WATCHED_FILE_LOOK_NS (5 * TIME_S)
/* Who writes in place makes several events. The file is read when there were none for this long, but at most
 * so late. */
#define WATCHED_FILE_SETTLE_NS (100 * TIME_MS)
#define WATCHED_FILE_SETTLE_MAX_NS (2 * TIME_S)

/* The file has changed, appeared or disappeared. It must not free the watched_file. */
typedef void watched_file_function(void *context, uint64_t now_ns);

/* The path is copied. As it is now, the file counts as known. Without inotify (the log says so), it is only
 * looked at. NO_MEMORY. */
enum status watched_file_new(struct loop *loop, const char *path, watched_file_function *function,
                             void *context, uint64_t now_ns, struct watched_file **out,
                             struct error *error) COMM_MUST_USE;
/* Null is accepted. */
void watched_file_free(struct watched_file *file);

/* By when watched_file_tick must be called again. */
uint64_t watched_file_next_deadline_ns(const struct watched_file *file);
void watched_file_tick(struct watched_file *file, uint64_t now_ns);

#endif
