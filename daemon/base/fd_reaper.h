#ifndef DAEMON_BASE_CLOSER_H
#define DAEMON_BASE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * Closes the descriptors that clients pass. close() can wait for the process that serves the file, as long as
 * that process likes: a file on FUSE, a socket that lingers, or a socket whose queue holds such a file. No
 * signal ends that wait, and a process with a thread in it cannot end either. So a separate process closes
 * them. It shares commd's table of descriptors and nothing else. A descriptor leaves the table at once, even
 * while its close() waits.
 *
 * For each user, one descriptor and one socket are closed at a time, and CLOSER_BUSY_MAX in all. The rest
 * wait here, open. The kernel itself can wait for a file's server (to write its pages) in two more cases:
 * when it drops a descriptor that finds no room in recvmsg, and when it closes a socket with unread packets.
 * So code that reads a client's packets gives them room for CLOSER_PACKET_FDS_MAX descriptors if
 * fd_reaper_takes_more, and otherwise leaves them unread. Sockets are closed by fd_reaper_put_socket.
 *
 * If the kernel can keep descriptors from being sent (Linux 6.16), a user with too many gets no new session.
 * On older kernels a user with such files can fill this queue with sockets. Then no new client is accepted,
 * as with that many open sessions.
 *
 * If commd ends without a clean shutdown, the process ends what the shared table would keep alive. It shuts
 * down sockets and closes what can be closed without waiting.
 */
struct fd_reaper;

#define CLOSER_USER_MAX 64       /* of a user, without sockets: then fd_reaper_takes_more is false */
#define CLOSER_TOTAL_MAX 4096    /* of all users, without sockets: likewise */
#define CLOSER_SOCKETS_MAX 4096  /* of all users: then fd_reaper_takes_sockets is false */
#define CLOSER_SESSIONS_MAX 8192 /* open sockets of sessions: may be put even when that is false */
#define CLOSER_BUSY_MAX 64       /* closed at a time; the rest wait */
/* The kernel's own limit (SCM_MAX_FD). */
#define CLOSER_PACKET_FDS_MAX 253

/* Runs in the separate process: signals are blocked, and its memory is a copy as of fd_reaper_new. */
typedef void fd_reaper_close_function(int fd);

/*
 * Call this before threads are started and GPUs are opened: the separate process would have a copy of their
 * memory. `close` is null except in tests, where it replaces close(). SYSTEM, NO_MEMORY.
 */
enum status fd_reaper_new(struct loop *loop, fd_reaper_close_function *close, struct fd_reaper **out,
                          struct error *error) COMM_MUST_USE;
/* Does not wait for descriptors: those that are not closed by then stay open until commd ends. Null is
 * accepted. */
void fd_reaper_free(struct fd_reaper *fd_reaper);

/* Only the loop's thread calls the functions below. Without a fd_reaper (null) everything is closed at once,
 * in place. */

/* Closes a descriptor that came from a client of that user; at once if close() cannot wait. */
void fd_reaper_put(struct fd_reaper *fd_reaper, uint32_t uid, int fd);
/* Closes a Unix socket of ours to a client. It carries nothing more in either direction from now on. */
void fd_reaper_put_socket(struct fd_reaper *fd_reaper, uint32_t uid, int fd);
/* Whether a packet of that user with up to CLOSER_PACKET_FDS_MAX descriptors may be read. */
bool fd_reaper_takes_more(const struct fd_reaper *fd_reaper, uint32_t uid);
/* Whether another socket may be opened. */
bool fd_reaper_takes_sockets(const struct fd_reaper *fd_reaper);
/* How many descriptors wait or are being closed. */
uint32_t fd_reaper_count(const struct fd_reaper *fd_reaper);

#endif
