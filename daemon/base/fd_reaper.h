#ifndef DAEMON_BASE_CLOSER_H
#define DAEMON_BASE_CLOSER_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * Closes what clients pass. close() of a file on FUSE, a socket that lingers, a socket in whose queue such a
 * file is, waits for whoever serves it, for as long as that likes, and no signal ends the wait: a process one
 * of whose threads is in there cannot end either. So a process of its own closes them, which shares commd's
 * table of descriptors and nothing else: a descriptor is out of the table at once, whoever waits for its end.
 *
 * One descriptor and one socket of a user are closed at a time, CLOSER_BUSY_MAX in all; the others wait here,
 * open. The kernel, too, waits for some files' servers (it writes their pages) when it drops a descriptor
 * that finds no room in recvmsg, or with a socket that nobody has read: who reads a client's packets gives
 * them room for CLOSER_PACKET_FDS_MAX where fd_reaper_takes_more, and leaves them unread where not; sockets
 * go by fd_reaper_put_socket.
 *
 * Where the kernel can keep descriptors from being sent (Linux 6.16), a user with too many gets no new
 * session. Elsewhere a user with files of that kind can have sockets pile up here, until no new client is
 * accepted: as with that many open sessions.
 *
 * When commd ends without tidying up, the process ends what the shared table would keep alive: sockets are
 * shut down, and what is harmless is closed.
 */
struct fd_reaper;

#define CLOSER_USER_MAX 64       /* of a user, sockets aside: then fd_reaper_takes_more is false */
#define CLOSER_TOTAL_MAX 4096    /* of all users, sockets aside: likewise */
#define CLOSER_SOCKETS_MAX 4096  /* of all users: then fd_reaper_takes_sockets is false */
#define CLOSER_SESSIONS_MAX 8192 /* sockets open elsewhere, which may be put whatever it says by then */
#define CLOSER_BUSY_MAX 64       /* that are being closed at a time; beyond: they wait */
/* The kernel's own limit (SCM_MAX_FD). */
#define CLOSER_PACKET_FDS_MAX 253

/* In the other process: its signals are blocked, its memory is as of fd_reaper_new. */
typedef void fd_reaper_close_function(int fd);

/*
 * Before there are threads and GPUs, whose memory the other process would have a copy of. `close` is null but
 * in tests, in place of close(). SYSTEM, NO_MEMORY.
 */
enum status fd_reaper_new(struct loop *loop, fd_reaper_close_function *close, struct fd_reaper **out,
                          struct error *error) COMM_MUST_USE;
/* Waits for no descriptor: what is not closed by then stays open until commd ends. Null is accepted. */
void fd_reaper_free(struct fd_reaper *fd_reaper);

/* What follows: the loop's thread alone. Without a fd_reaper (null) everything is closed at once, in place.
 */

/* A descriptor that came from a client of that user. Closed at once where that cannot wait. */
void fd_reaper_put(struct fd_reaper *fd_reaper, uint32_t uid, int fd);
/* A Unix socket of ours to a client. No more comes in or goes out from now on. */
void fd_reaper_put_socket(struct fd_reaper *fd_reaper, uint32_t uid, int fd);
/* Whether a packet of that user with up to CLOSER_PACKET_FDS_MAX descriptors may be taken. */
bool fd_reaper_takes_more(const struct fd_reaper *fd_reaper, uint32_t uid);
/* Whether another socket may be opened. */
bool fd_reaper_takes_sockets(const struct fd_reaper *fd_reaper);
/* How many wait or are being closed. */
uint32_t fd_reaper_count(const struct fd_reaper *fd_reaper);

#endif
