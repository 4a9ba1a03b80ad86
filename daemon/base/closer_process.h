#ifndef DAEMON_BASE_CLOSER_PROCESS_H
#define DAEMON_BASE_CLOSER_PROCESS_H

#include "daemon/base/closer.h"

/* What the closer's process is asked, and answers with the slot alone. */
struct closer_request {
    uint32_t slot;
    int fd;
};

struct closer_pipes {
    int requests[2]; /* of struct closer_request */
    int answers[2];  /* of slots */
    int parent;      /* a descriptor of commd's process: readable once that has ended */
};

/*
 * Never returns. In a process that is a copy of a part of commd: calls nothing that might take a lock, only
 * the kernel. Ends when commd does, or when nobody can ask any more.
 */
_Noreturn void closer_process(const struct closer_pipes *pipes, closer_close_function *close);

#endif
