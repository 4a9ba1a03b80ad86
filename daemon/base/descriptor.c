#include "daemon/base/descriptor.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NVIDIA_MAJOR 195 /* the kernel's list of devices; also nvidiactl's, whose descriptors are memory */

/* Memory file systems of the kernel itself support seals. Other file systems do not; F_GET_SEALS fails
 * without asking them. */
static bool is_memory(int fd)
{
    return fcntl(fd, F_GET_SEALS) >= 0;
}

/* Uses syscall(), since the fd_reaper process runs this, too. Returns false if the kind is not known. */
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
