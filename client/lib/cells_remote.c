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

/*
 * Reads the challenge with the data. The kernel looks up the process once for both. So they are of one
 * program, whatever has ended meanwhile, or has begun under this pid. Returns how many of the data it has
 * read.
 */
static size_t read_some(pid_t pid, uint64_t challenge, uint64_t answer_at, uint64_t at, void *to,
                        size_t size_bytes)
{
    uint64_t answer = ~challenge;
    struct iovec here[2] = {{.iov_base = &answer, .iov_len = sizeof answer},
                            {.iov_base = to, .iov_len = size_bytes}};
    struct iovec there[2] = {{.iov_base = (void *)(uintptr_t)answer_at, .iov_len = sizeof answer},
                             {.iov_base = (void *)(uintptr_t)at, .iov_len = size_bytes}};
    ssize_t got = process_vm_readv(pid, here, 2, there, 2, 0);
    return got > (ssize_t)sizeof answer && answer == challenge ? (size_t)got - sizeof answer : 0;
}

bool cells_remote_has(pid_t pid, uint64_t challenge, uint64_t at)
{
    unsigned char first;
    return pid > 0 && read_some(pid, challenge, at, at, &first, sizeof first) == sizeof first;
}

void cells_remote_read(struct cells_remote *remote, uint32_t rank, size_t offset_bytes, void *to,
                       size_t size_bytes)
{
    size_t done = 0;
    while (!remote->failed && done < size_bytes) {
        size_t got =
            read_some(remote->pids[rank], remote->challenge, remote->answers_at[rank],
                      remote->at[rank] + offset_bytes + done, (unsigned char *)to + done, size_bytes - done);
        remote->failed = got == 0;
        done += got;
    }
}
