#include "daemon/base/control_group.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* PIDFD_GET_INFO of linux/pidfd.h, which older headers do not define. */
struct process_info {
    uint64_t mask, control_group;
    uint32_t ids[12];
};
#define PROCESS_INFO_GET _IOWR(0xFF, 11, struct process_info)
#define PROCESS_INFO_CONTROL_GROUP (UINT64_C(1) << 2)

void control_group_of(pid_t process, char *path, size_t size)
{
    char name[48], text[4096];
    path[0] = '\0';
    (void)snprintf(name, sizeof name, "/proc/%d/cgroup", (int)process);
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return;
    }
    ssize_t length = read(fd, text, sizeof text - 1);
    (void)close(fd);
    text[length > 0 ? length : 0] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL; line = strtok_r(NULL, "\n", &rest)) {
        if (strncmp(line, "0::", 3) == 0) {
            (void)snprintf(path, size, "%s", line + 3);
            return;
        }
    }
}

/* Returns 0 if the kernel does not report it, or the process has ended. */
static uint64_t id_of(int pidfd)
{
    struct process_info info = {.mask = PROCESS_INFO_CONTROL_GROUP};
    bool told = pidfd >= 0 && ioctl(pidfd, PROCESS_INFO_GET, &info) == 0 &&
                (info.mask & PROCESS_INFO_CONTROL_GROUP) != 0;
    return told ? info.control_group : 0;
}

const char *control_group_find(struct control_groups *groups, pid_t process, int pidfd)
{
    uint64_t id = id_of(pidfd);
    for (size_t i = 0; id != 0 && i < CONTROL_GROUPS_MAX; i++) {
        if (groups->entries[i].id == id) {
            return groups->entries[i].path;
        }
    }
    control_group_of(process, groups->unknown, sizeof groups->unknown);
    groups->reads++;
    if (id == 0 || id_of(pidfd) != id) { /* the process moved, or ended and its pid was reused */
        return groups->unknown;
    }
    struct control_group_entry *entry = &groups->entries[groups->oldest];
    groups->oldest = (groups->oldest + 1) % CONTROL_GROUPS_MAX;
    entry->id = id;
    memcpy(entry->path, groups->unknown, sizeof entry->path);
    return entry->path;
}
