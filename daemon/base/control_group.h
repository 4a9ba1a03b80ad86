#ifndef DAEMON_BASE_CONTROL_GROUP_H
#define DAEMON_BASE_CONTROL_GROUP_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define CONTROL_GROUP_PATH_MAX_BYTES 255 /* of a path; a longer one is cut */
#define CONTROL_GROUPS_MAX 16            /* that are remembered; then the oldest goes */

/*
 * The path of a process's control group in the unified hierarchy (cgroups(7), "/proc/PID/cgroup"), cut at
 * size - 1 bytes; "" when it cannot be read, or the kernel has no such hierarchy. size is at least 1.
 */
void control_group_of(pid_t process, char *path, size_t size);

/*
 * Paths that were read lately, by the group's id: the kernel gives an id to one group only, ever, and a
 * process's id is had for a twentieth of the time that its path takes (PIDFD_GET_INFO, Linux 6.13). Zero at
 * first. One thread.
 */
struct control_groups {
    struct control_group_entry {
        uint64_t id; /* 0: none */
        char path[CONTROL_GROUP_PATH_MAX_BYTES + 1];
    } entries[CONTROL_GROUPS_MAX];
    unsigned oldest;
    char unknown[CONTROL_GROUP_PATH_MAX_BYTES + 1]; /* of a group without an id */
    uint64_t reads;                                 /* of "/proc" */
};

/*
 * As control_group_of. pidfd: the process's, or -1. An older kernel, or no pidfd: the path is read each time.
 * What is returned is of groups, and stays until the next call.
 */
const char *control_group_find(struct control_groups *groups, pid_t process, int pidfd);

#endif
