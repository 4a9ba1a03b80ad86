#ifndef DAEMON_BASE_CONTROL_GROUP_H
#define DAEMON_BASE_CONTROL_GROUP_H

#include <stddef.h>
#include <sys/types.h>

/*
 * The path of a process's control group in the unified hierarchy (cgroups(7), "/proc/PID/cgroup"), cut at
 * size - 1 bytes; "" when it cannot be read, or the kernel has no such hierarchy. size is at least 1.
 */
void control_group_of(pid_t process, char *path, size_t size);

#endif
