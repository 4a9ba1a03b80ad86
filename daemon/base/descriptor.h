#ifndef DAEMON_BASE_DESCRIPTOR_H
#define DAEMON_BASE_DESCRIPTOR_H

#include <stdbool.h>

/*
 * What a descriptor is that a client passed, learned without asking its file system: a client can be the
 * server of one (FUSE), and let who asks wait for ever. Any thread.
 */

/* Whether close() waits for nobody: memory of the host, or a device of a GPU's driver. */
bool descriptor_closes_at_once(int fd);
/* Whether fstat(), mmap() and the like wait for nobody: memory, or what is no file, directory, link or
 * socket. */
bool descriptor_may_be_asked(int fd);

#endif
