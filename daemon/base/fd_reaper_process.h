#ifndef DAEMON_BASE_CLOSER_PROCESS_H
#define DAEMON_BASE_CLOSER_PROCESS_H

#include "daemon/base/fd_reaper.h"

/* What the fd_reaper's process is asked, and answers with the slot alone. */
struct fd_reaper_request {
    uint32_t slot;
    int fd;
};

struct fd_reaper_pipes {
    int requests[2]; /* of struct fd_reaper_request */
    int answers[2];  /* of slots */
    int parent;      /* a descriptor of commd's process: readable once that has ended */
};

/*
 * Never returns. In a process that is a copy of a part of commd: calls nothing that might take a lock, only
 * the kernel. Ends when commd does, or when nobody can ask any more.
 */
_Noreturn void fd_reaper_process(const struct fd_reaper_pipes *pipes, fd_reaper_close_function *close);

#endif
