#ifndef DAEMON_BASE_CONTROL_GROUP_H
#define DAEMON_BASE_CONTROL_GROUP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CONTROL_GROUP_PATH_MAX_BYTES 255 /* of a path; longer ones are cut */
#define CONTROL_GROUPS_MAX 16            /* remembered at once; the oldest is replaced */

/*
 * The path of a process's control group in the unified hierarchy (cgroups(7), "/proc/PID/cgroup"), cut at
 * size - 1 bytes; "" when it cannot be read, or the kernel has no such hierarchy. size is at least 1.
 */
void control_group_of(pid_t process, char *path, size_t size);

/*
 * Paths that were read lately, by control group id. The kernel never gives the same id to another group.
 * Reading a process's id (PIDFD_GET_INFO, Linux 6.13) takes a twentieth of the time that reading its path
 * takes. Zero at first. One thread.
 */
struct control_groups {
    struct control_group_entry {
        uint64_t id; /* 0: none */
        char path[CONTROL_GROUP_PATH_MAX_BYTES + 1];
    } entries[CONTROL_GROUPS_MAX];
    unsigned oldest;
    char unknown[CONTROL_GROUP_PATH_MAX_BYTES + 1]; /* the path of a group without an id */
    uint64_t reads;                                 /* of "/proc" */
};

/*
 * As control_group_of. pidfd is the process's, or -1. With an older kernel, or without a pidfd, the path is
 * read each time. The returned path lies in `groups` and is valid until the next call.
 */
const char *control_group_find(struct control_groups *groups, pid_t process, int pidfd);

#endif
