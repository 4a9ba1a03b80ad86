#ifndef DAEMON_BASE_DESCRIPTOR_H
#define DAEMON_BASE_DESCRIPTOR_H

#include <stdbool.h>
#include <unistd.h>

/*
 * Tells what kind of descriptor a client passed, without asking its file system. A client can be the server
 * of that file system (FUSE) and let any request to it wait for ever. Any thread.
 */

/* Whether close() cannot block: memory of the host, or a device of the GPU driver. */
bool descriptor_closes_at_once(int fd);
/* Whether fstat(), mmap() and the like cannot block: memory, or anything that is not a file, directory, link
 * or socket. */
bool descriptor_may_be_asked(int fd);

/* Closes a descriptor of our own; -1 is none. */
static inline void descriptor_close(int fd)
{
    if (fd >= 0) {
        (void)close(fd);
    }
}

#endif
