#ifndef DAEMON_BASE_CLOSER_PROCESS_H
#define DAEMON_BASE_CLOSER_PROCESS_H

#include "daemon/base/fd_reaper.h"

/* A request to the fd_reaper's process. The answer is the slot alone. */
struct fd_reaper_request {
    uint32_t slot;
    int fd;
};

struct fd_reaper_pipes {
    int requests[2]; /* of struct fd_reaper_request */
    int answers[2];  /* of slots */
    int parent;      /* a descriptor of commd's process: readable once it has ended */
};

/*
 * Never returns. Runs in a process that is a copy of a part of commd, so it calls only the kernel and nothing
 * that might take a lock. Ends when commd does, or when nobody can send requests any more.
 */
_Noreturn void fd_reaper_process(const struct fd_reaper_pipes *pipes, fd_reaper_close_function *close);

#endif
