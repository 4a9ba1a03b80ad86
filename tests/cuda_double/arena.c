#include <sys/mman.h>

#include "tests/cuda_double/memory.h"

#define ARENA_BLOCKS (1u << 16)
#define ARENA_BYTES (ARENA_BLOCKS * BLOCK_BYTES)

static uint64_t visible;   /* addresses that the process gets; nothing is mapped there */
static unsigned char *own; /* addresses where the double sees the same memory; mapped where there is memory */
static bool taken[ARENA_BLOCKS]; /* each entry stands for the addresses of one block */

static void *reserve(uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory != MAP_FAILED ? memory : NULL;
}

bool arena_make(void)
{
    uint64_t memory = (uint64_t)(uintptr_t)reserve(ARENA_BYTES + BLOCK_BYTES);
    own = reserve(ARENA_BYTES);
    visible = (memory + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
    return memory != 0 && own != NULL;
}

bool arena_contains(uint64_t address)
{
    return visible != 0 && address >= visible && address - visible < ARENA_BYTES;
}

static bool is_free(uint64_t first, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++) {
        if (first + i >= ARENA_BLOCKS || taken[first + i]) {
            return false;
        }
    }
    return true;
}

static void mark(uint64_t first, uint64_t count, bool value)
{
    for (uint64_t i = 0; i < count; i++) {
        taken[first + i] = value;
    }
}

uint64_t arena_reserve(uint64_t bytes, uint64_t alignment, uint64_t wish)
{
    uint64_t count = bytes / BLOCK_BYTES;
    if (count > ARENA_BLOCKS) {
        return 0;
    }
    if (arena_contains(wish) && (wish - visible) % BLOCK_BYTES == 0 &&
        is_free((wish - visible) / BLOCK_BYTES, count)) {
        mark((wish - visible) / BLOCK_BYTES, count, true);
        return wish;
    }
    for (uint64_t first = 0; first + count <= ARENA_BLOCKS; first++) {
        uint64_t address = visible + first * BLOCK_BYTES;
        if ((alignment == 0 || address % alignment == 0) && is_free(first, count)) {
            mark(first, count, true);
            return address;
        }
    }
    return 0;
}

void arena_free(uint64_t address, uint64_t bytes)
{
    mark((address - visible) / BLOCK_BYTES, bytes / BLOCK_BYTES, false);
}

unsigned char *arena_memory(uint64_t address)
{
    return own + (address - visible);
}

bool arena_map(uint64_t address, uint64_t bytes, int fd, uint64_t offset)
{
    return mmap(arena_memory(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
                (off_t)offset) != MAP_FAILED;
}

void arena_unmap(uint64_t address, uint64_t bytes)
{
    (void)mmap(arena_memory(address), bytes, PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
