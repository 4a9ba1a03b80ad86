#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/client_node.h"

/* Files that clients offer as memory: mostly memfds of odd sizes, with holes and with different seals. */

void fuzz_files_new(struct fuzz_file files[FUZZ_FILES])
{
    for (int i = 0; i < FUZZ_FILES; i++) {
        files[i].fd = -1;
    }
}

static int make_other(uint32_t kind)
{
    int pair[2];
    switch (kind) {
    case 0:
        fuzz_require(pipe2(pair, O_CLOEXEC) == 0);
        close(pair[1]);
        return pair[0];
    case 1:
        return open("/dev/zero", O_RDWR | O_CLOEXEC);
    case 2:
        return open("/tmp", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    case 3:
        return open("/tmp", O_PATH | O_CLOEXEC);
    default:
        fuzz_require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) == 0);
        close(pair[1]);
        return pair[0];
    }
}

void fuzz_file_make(struct fuzz_file *file, struct fuzz_input *input)
{
    static const uint64_t sizes[] = {FUZZ_FILE_BYTES, 4096, 4095, 4097, 64, 8, 1, 0, 65536, 262144};
    static const int seals[] = {F_SEAL_SHRINK,
                                F_SEAL_SHRINK | F_SEAL_GROW,
                                F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                                F_SEAL_SHRINK,
                                0,
                                F_SEAL_GROW,
                                F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE,
                                F_SEAL_SHRINK | F_SEAL_WRITE};
    fuzz_file_close(file);
    uint8_t kind = fuzz_u8(input);
    if (kind >= 224) {
        file->fd = make_other(kind % 5u);
        return;
    }
    file->size = sizes[kind % (sizeof sizes / sizeof *sizes)];
    file->compares = file->size <= FUZZ_FILE_BYTES;
    file->fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    fuzz_require(file->fd >= 0 && ftruncate(file->fd, (off_t)file->size) == 0);
    if ((kind & 1) == 0) { /* otherwise the file is a hole */
        uint8_t pattern[64];
        memset(pattern, kind, sizeof pattern);
        fuzz_file_write(file, 0, pattern, sizeof pattern);
    }
    int chosen = seals[fuzz_below(input, sizeof seals / sizeof *seals)];
    fuzz_require(fcntl(file->fd, F_ADD_SEALS, chosen) == 0);
}

void fuzz_file_write(struct fuzz_file *file, uint64_t offset, const void *bytes, size_t size)
{
    if (file->fd < 0 || offset >= file->size) {
        return;
    }
    size = size < file->size - offset ? size : (size_t)(file->size - offset);
    if (pwrite(file->fd, bytes, size, (off_t)offset) == (ssize_t)size && file->compares) {
        memcpy(file->bounce + offset, bytes, size);
    }
}

void fuzz_file_touch(struct fuzz_file *file, uint64_t offset, uint64_t size)
{
    if (size == 0 || offset >= file->size) {
        return;
    }
    uint64_t end = size < file->size - offset ? offset + size : file->size;
    bool first = file->touched_to == 0;
    file->touched_from = first || offset < file->touched_from ? offset : file->touched_from;
    file->touched_to = end > file->touched_to ? end : file->touched_to;
}

void fuzz_file_check(struct fuzz_file *file)
{
    uint8_t bytes[FUZZ_FILE_BYTES];
    if (file->fd < 0 || file->size == 0) {
        return;
    }
    int seals = fcntl(file->fd, F_GET_SEALS);
    fuzz_require(seals >= 0);
    if ((seals & F_SEAL_SEAL) == 0) { /* the kernel refuses this seal while any writable mapping exists */
        fuzz_require(fcntl(file->fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
    }
    if (file->compares) {
        fuzz_require(pread(file->fd, bytes, (size_t)file->size, 0) == (ssize_t)file->size);
        uint64_t from = file->touched_to > 0 ? file->touched_from : file->size;
        uint64_t to = file->touched_to > 0 ? file->touched_to : file->size;
        fuzz_require(memcmp(bytes, file->bounce, (size_t)from) == 0);
        fuzz_require(memcmp(bytes + to, file->bounce + to, (size_t)(file->size - to)) == 0);
    }
}

void fuzz_file_close(struct fuzz_file *file)
{
    if (file->fd >= 0) {
        close(file->fd);
    }
    *file = (struct fuzz_file){.fd = -1};
}
