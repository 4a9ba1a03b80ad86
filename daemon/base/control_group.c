#include "daemon/base/control_group.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
