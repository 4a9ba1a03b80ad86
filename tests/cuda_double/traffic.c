#include "tests/cuda_double/traffic.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* Bytes that cross each device's link to the host, for tests: see CUDA_DOUBLE_TRAFFIC. */

static uint64_t *counts; /* in the file: to the host, from the host, for each device */

void traffic_open(void)
{
    const char *path = getenv("CUDA_DOUBLE_TRAFFIC");
    size_t bytes = 2 * DEVICES_MAX * sizeof *counts;
    if (path == NULL || path[0] == '\0' || counts != NULL) {
        return;
    }
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    void *mapped = fd >= 0 && ftruncate(fd, (off_t)bytes) == 0
                       ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    if (mapped == MAP_FAILED) {
        (void)fprintf(stderr, "cuda_double: CUDA_DOUBLE_TRAFFIC=%s cannot be used\n", path);
        abort(); /* a test with a wrong setting must not go on */
    }
    close(fd);
    counts = mapped;
}

void traffic_count(cuda_context context, uint64_t address, uint64_t bytes, bool writes)
{
    const struct allocation *allocation = counts != NULL ? allocation_find(address) : NULL;
    if (allocation != NULL &&
        (allocation->kind == ALLOCATION_HOST || allocation->kind == ALLOCATION_REGISTERED)) {
        counts[2 * context->physical + (writes ? 0 : 1)] += bytes;
    }
}
