#include "client/lib/cells_remote.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/uio.h>
#include <unistd.h>

#define PIECES_BYTES ((size_t)512 << 10)
#define PIECE_MAX_BYTES ((size_t)128 << 10)

bool cells_remote_prepare(struct cells_remote *remote, uint32_t rank_count)
{
    if (remote->pieces == NULL) {
        size_t each = PIECES_BYTES / rank_count / CELLS_PAGE_BYTES * CELLS_PAGE_BYTES;
        remote->piece_bytes = each < PIECE_MAX_BYTES ? each : PIECE_MAX_BYTES;
        remote->pieces = aligned_alloc(CELLS_PAGE_BYTES, remote->piece_bytes * rank_count);
    }
    return remote->pieces != NULL;
}

void cells_remote_free(struct cells_remote *remote)
{
    free(remote->pieces);
    remote->pieces = NULL;
}

bool cells_remote_is_allowed(void)
{
    char scope = '0'; /* see ptrace_scope in the kernel's documentation of Yama */
    int fd = geteuid() != 0 ? open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC) : -1;
    if (fd >= 0) {
        scope = read(fd, &scope, 1) == 1 ? scope : '0';
        (void)close(fd);
    }
    return scope == '0';
}

/* Returns false unless all was read. */
static bool read_all(pid_t pid, uint64_t at, void *to, size_t size_bytes)
{
    size_t done = 0;
    while (done < size_bytes) {
        struct iovec here = {.iov_base = (unsigned char *)to + done, .iov_len = size_bytes - done};
        struct iovec there = {.iov_base = (void *)(uintptr_t)(at + done), .iov_len = size_bytes - done};
        ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
        if (got <= 0) {
            return false;
        }
        done += (size_t)got;
    }
    return true;
}

bool cells_remote_has(pid_t pid, uint64_t number, uint64_t at)
{
    uint64_t found = ~number;
    return pid > 0 && read_all(pid, at, &found, sizeof found) && found == number;
}

void cells_remote_read(struct cells_remote *remote, uint32_t rank, size_t offset_bytes, void *to,
                       size_t size_bytes)
{
    if (!remote->failed && size_bytes > 0) {
        remote->failed = !read_all(remote->pids[rank], remote->at[rank] + offset_bytes, to, size_bytes);
    }
}
