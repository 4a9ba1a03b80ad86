#include "daemon/base/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195 /* the kernel's list of devices; of nvidiactl, whose descriptors are memory */

/* Of its own kernel's file systems in memory: the others know nothing of seals, and are not asked. */
static bool is_memory(int fd)
{
    return fcntl(fd, F_GET_SEALS) >= 0;
}

/* By syscall(): the fd_reaper's process, too, comes here. False: it cannot be told. */
static bool look(int fd, struct statx *file)
{
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && (flags & O_PATH) == 0 &&
           syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_TYPE, file) == 0;
}

bool descriptor_closes_at_once(int fd)
{
    struct statx file;
    return is_memory(fd) ||
           (look(fd, &file) && S_ISCHR(file.stx_mode) && file.stx_rdev_major == NVIDIA_MAJOR);
}

bool descriptor_may_be_asked(int fd)
{
    struct statx file;
    return is_memory(fd) || (look(fd, &file) && (S_ISCHR(file.stx_mode) || (file.stx_mode & S_IFMT) == 0));
}
