#include "tests/cuda_double/machine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROCESSES_MAX MACHINE_PROCESSES_MAX
#define BLOCKS_MAX 16384
#define EXPORTS_MAX 65536
#define TABLE_MAGIC 0x636f6d6d64646233u
#define LABEL_MAGIC 0x636f6d6d646c626cu
#define POOL_MAGIC 0x636f6d6d64706c62u
#define LABEL_BYTES 4096
#define WORDS (PROCESSES_MAX / 64)

struct process_row {
    uint64_t id; /* 0: free */
};

struct block_row {
    uint64_t id; /* 0: free */
    uint64_t bytes;
    uint64_t maker; /* id of the process that made it; 0: the block has no name any more */
    int32_t physical;
    int32_t handle_types;
    uint64_t holders[WORDS]; /* one bit for each row of processes */
};

struct table {
    uint64_t magic;
    uint64_t machine;
    uint64_t next_block;
    uint32_t blocks_high; /* number of rows that were ever used */
    uint32_t exports_high;
    struct process_row processes[PROCESSES_MAX];
    struct block_row blocks[BLOCKS_MAX];
    struct machine_export exports[EXPORTS_MAX];
};

/* Stands behind the memory in a block's file. So a descriptor alone says which block it is. */
struct label {
    uint64_t magic;
    uint64_t machine;
    uint64_t id;
    int32_t physical;
    int32_t handle_types;
};

/* What a descriptor of a pool refers to. */
struct pool_label {
    uint64_t magic;
    uint64_t machine;
    uint64_t id;
    uint64_t process;
    int32_t physical;
    int32_t unused;
};

static int folder_fd = -1;
static int table_fd = -1;
static struct table *table;
static unsigned my_row;
static uint64_t my_id;

/* Sets a lock of the table's file. Byte 0 is the table's lock. Byte 1 + row says that the process in that
 * row lives. The kernel ends such locks when their process ends. */
static bool set_lock(int type, off_t byte, bool wait)
{
    struct flock range = {.l_type = (short)type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int done;
    do {
        done = fcntl(table_fd, wait ? F_SETLKW : F_SETLK, &range);
    } while (done < 0 && errno == EINTR);
    return done == 0;
}

static void table_lock(void)
{
    (void)set_lock(F_WRLCK, 0, true);
}

static void table_unlock(void)
{
    (void)set_lock(F_UNLCK, 0, false);
}

static bool row_lives(unsigned row)
{
    struct flock range = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 1 + (off_t)row, .l_len = 1};
    return row == my_row || (fcntl(table_fd, F_GETLK, &range) == 0 && range.l_type != F_UNLCK);
}

static void block_name(uint64_t id, char name[40])
{
    (void)snprintf(name, 40, "block-%llu", (unsigned long long)id);
}

static void block_unlink(struct block_row *row)
{
    char name[40];
    block_name(row->id, name);
    (void)unlinkat(folder_fd, name, 0);
    row->maker = 0;
}

static void block_drop_holder(struct block_row *block, unsigned row)
{
    block->holders[row / 64] &= ~(1ull << (row % 64));
    for (unsigned i = 0; i < WORDS; i++) {
        if (block->holders[i] != 0) {
            return;
        }
    }
    block->id = 0;
}

static void forget(unsigned row)
{
    uint64_t id = table->processes[row].id;
    for (uint32_t i = 0; i < table->exports_high; i++) {
        if (table->exports[i].process == id) {
            table->exports[i].process = 0;
        }
        table->exports[i].importers[row / 64] &= ~(1ull << (row % 64));
    }
    for (uint32_t i = 0; i < table->blocks_high; i++) {
        struct block_row *block = &table->blocks[i];
        if (block->id != 0 && block->maker == id) {
            block_unlink(block);
        }
        if (block->id != 0) {
            block_drop_holder(block, row);
        }
    }
    table->processes[row].id = 0;
}

static void forget_the_dead(void)
{
    for (unsigned row = 0; row < PROCESSES_MAX; row++) {
        if (table->processes[row].id != 0 && !row_lives(row)) {
            forget(row);
        }
    }
}

static uint64_t random_id(void)
{
    uint64_t id = 0;
    while (id == 0) {
        if (getrandom(&id, sizeof id, 0) != sizeof id) {
            id = now_ns() ^ ((uint64_t)getpid() << 40);
        }
    }
    return id;
}

static bool table_map(void)
{
    /* Other users must reach the folder whatever the umask, and must be able to remove what dead processes
     * left. */
    if (mkdir(settings()->folder, 0777) == 0) {
        (void)chmod(settings()->folder, 0777);
    }
    folder_fd = open(settings()->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder_fd < 0) {
        return false;
    }
    table_fd = openat(folder_fd, "table", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (table_fd < 0) {
        return false;
    }
    (void)fchmod(table_fd, 0666);
    table_lock();
    bool sized = ftruncate(table_fd, sizeof *table) == 0;
    void *memory =
        sized ? mmap(NULL, sizeof *table, PROT_READ | PROT_WRITE, MAP_SHARED, table_fd, 0) : MAP_FAILED;
    if (memory == MAP_FAILED) {
        table_unlock();
        return false;
    }
    table = memory;
    if (table->magic == 0) {
        table->machine = random_id();
        table->next_block = 1;
        table->magic = TABLE_MAGIC;
    }
    return table->magic == TABLE_MAGIC;
}

bool machine_attach(void)
{
    my_row = PROCESSES_MAX;
    if (!table_map()) {
        (void)fprintf(stderr, "cuda_double: %s: %s\n", settings()->folder, strerror(errno));
        return false;
    }
    forget_the_dead();
    for (unsigned row = 0; row < PROCESSES_MAX && my_id == 0; row++) {
        if (table->processes[row].id == 0 && set_lock(F_WRLCK, 1 + (off_t)row, false)) {
            my_id = random_id();
            my_row = row;
            table->processes[row].id = my_id;
        }
    }
    table_unlock();
    return my_id != 0;
}

void machine_detach(void)
{
    if (my_id == 0) {
        return;
    }
    table_lock();
    forget(my_row);
    table_unlock();
    my_id = 0;
}

uint64_t machine_process(void)
{
    return my_id;
}

static uint64_t used_bytes(int physical)
{
    uint64_t used = 0;
    for (uint32_t i = 0; i < table->blocks_high; i++) {
        if (table->blocks[i].id != 0 && table->blocks[i].physical == physical) {
            used += table->blocks[i].bytes;
        }
    }
    return used;
}

uint64_t machine_used_bytes(int physical)
{
    table_lock();
    forget_the_dead();
    uint64_t used = used_bytes(physical);
    table_unlock();
    return used;
}

static bool fits(int physical, uint64_t bytes)
{
    uint64_t limit = settings()->memory_bytes;
    uint64_t used = used_bytes(physical);
    return bytes <= limit && used <= limit - bytes;
}

static struct block_row *row_new(void)
{
    for (uint32_t i = 0; i < BLOCKS_MAX; i++) {
        if (table->blocks[i].id == 0) {
            table->blocks_high = i >= table->blocks_high ? i + 1 : table->blocks_high;
            return &table->blocks[i];
        }
    }
    return NULL;
}

static struct block_row *row_of(uint64_t id)
{
    for (uint32_t i = 0; i < table->blocks_high; i++) {
        if (table->blocks[i].id == id) {
            return &table->blocks[i];
        }
    }
    return NULL;
}

/* Makes the file with its label. All its pages are allocated now, so that no touch of them fails later. */
static int file_new(const struct block_row *row, bool named)
{
    uint64_t bytes = row->bytes;
    char name[40];
    block_name(row->id, name);
    int fd = openat(folder_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0) {
        return -1;
    }
    if (!named) {
        (void)unlinkat(folder_fd, name, 0);
    }
    struct label label = {.magic = LABEL_MAGIC,
                          .machine = table->machine,
                          .id = row->id,
                          .physical = row->physical,
                          .handle_types = row->handle_types};
    (void)fchmod(fd, 0666);
    if (posix_fallocate(fd, 0, (off_t)(bytes + LABEL_BYTES)) != 0 ||
        pwrite(fd, &label, sizeof label, (off_t)bytes) != sizeof label) {
        close(fd);
        return -1;
    }
    return fd;
}

static bool poison(int fd, uint64_t bytes)
{
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return false;
    }
    memset(memory, POISON, bytes);
    munmap(memory, bytes);
    return true;
}

cuda_result machine_create(struct machine_block *block, bool named)
{
    cuda_result result = CUDA_RESULT_OUT_OF_MEMORY;
    table_lock();
    if (!fits(block->physical, block->bytes)) {
        forget_the_dead();
    }
    struct block_row *row = fits(block->physical, block->bytes) ? row_new() : NULL;
    if (row != NULL) {
        /* The table comes first. If the process is killed before the file is there, no unknown file is
         * left. */
        *row = (struct block_row){.bytes = block->bytes,
                                  .maker = named ? my_id : 0,
                                  .physical = block->physical,
                                  .handle_types = block->handle_types};
        row->holders[my_row / 64] = 1ull << (my_row % 64);
        row->id = table->next_block++;
        block->id = row->id;
        block->fd = file_new(row, named);
        result = block->fd >= 0 ? CUDA_RESULT_OK : CUDA_RESULT_OUT_OF_MEMORY;
        if (result != CUDA_RESULT_OK) {
            block_unlink(row);
            block_drop_holder(row, my_row);
        }
    }
    table_unlock();
    if (result == CUDA_RESULT_OK && !poison(block->fd, block->bytes)) {
        close(block->fd);
        machine_leave(block->id);
        result = CUDA_RESULT_OUT_OF_MEMORY;
    }
    return result;
}

static void take(struct block_row *row, struct machine_block *block)
{
    row->holders[my_row / 64] |= 1ull << (my_row % 64);
    *block = (struct machine_block){.id = row->id,
                                    .bytes = row->bytes,
                                    .physical = row->physical,
                                    .handle_types = row->handle_types,
                                    .fd = block->fd};
}

cuda_result machine_open_id(uint64_t id, struct machine_block *block)
{
    char name[40];
    block_name(id, name);
    table_lock();
    struct block_row *row = row_of(id);
    block->fd = row != NULL ? openat(folder_fd, name, O_RDWR | O_CLOEXEC) : -1;
    if (block->fd >= 0) {
        take(row, block);
    }
    table_unlock();
    return block->fd >= 0 ? CUDA_RESULT_OK : CUDA_RESULT_INVALID_VALUE;
}

cuda_result machine_open_fd(int fd, struct machine_block *block)
{
    struct label label = {.magic = 0};
    struct stat file;
    if (fstat(fd, &file) < 0 || file.st_size <= LABEL_BYTES ||
        pread(fd, &label, sizeof label, file.st_size - LABEL_BYTES) != sizeof label ||
        label.magic != LABEL_MAGIC || label.machine != table->machine) {
        return CUDA_RESULT_INVALID_VALUE;
    }
    block->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (block->fd < 0) {
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    table_lock();
    struct block_row *row = row_of(label.id);
    if (row == NULL) { /* all holders are gone, but the descriptor has kept the memory */
        row = row_new();
        if (row != NULL) {
            *row = (struct block_row){.bytes = (uint64_t)file.st_size - LABEL_BYTES,
                                      .physical = label.physical,
                                      .handle_types = label.handle_types};
            row->id = label.id;
        }
    }
    if (row != NULL) {
        take(row, block);
    }
    table_unlock();
    if (row == NULL) {
        close(block->fd);
        return CUDA_RESULT_OUT_OF_MEMORY;
    }
    return CUDA_RESULT_OK;
}

void machine_leave(uint64_t id)
{
    table_lock();
    struct block_row *row = row_of(id);
    if (row != NULL) {
        if (row->maker == my_id) {
            block_unlink(row);
        }
        block_drop_holder(row, my_row);
    }
    table_unlock();
}

bool machine_publish(const struct machine_export *row)
{
    uint32_t index = 0;
    table_lock();
    while (index < EXPORTS_MAX && table->exports[index].process != 0) {
        index++;
    }
    if (index < EXPORTS_MAX) {
        table->exports[index] = *row;
        table->exports[index].process = my_id;
        table->exports_high = index >= table->exports_high ? index + 1 : table->exports_high;
    }
    table_unlock();
    return index < EXPORTS_MAX;
}

static struct machine_export *export_of(uint64_t process, uint64_t address)
{
    for (uint32_t i = 0; i < table->exports_high; i++) {
        if (table->exports[i].process == process && table->exports[i].address == address) {
            return &table->exports[i];
        }
    }
    return NULL;
}

bool machine_retract(uint64_t address)
{
    bool is_open = false;
    table_lock();
    forget_the_dead();
    struct machine_export *row = export_of(my_id, address);
    if (row != NULL) {
        for (unsigned i = 0; i < WORDS; i++) {
            is_open = is_open || row->importers[i] != 0;
        }
        row->process = 0;
    }
    table_unlock();
    return is_open;
}

void machine_set_ready(uint64_t address)
{
    table_lock();
    struct machine_export *row = export_of(my_id, address);
    if (row != NULL) {
        row->ready = true;
    }
    table_unlock();
}

static struct machine_export *pool_row(uint64_t process, uint64_t address, uint64_t serial)
{
    struct machine_export *row = process != 0 ? export_of(process, address) : NULL;
    return row != NULL && row->serial == serial ? row : NULL;
}

bool machine_is_ready(uint64_t process, uint64_t address, uint64_t serial)
{
    table_lock();
    const struct machine_export *row = pool_row(process, address, serial);
    bool ready = row == NULL || row->ready;
    table_unlock();
    return ready;
}

void machine_set_imported(uint64_t process, uint64_t address, uint64_t serial, bool imported)
{
    uint64_t bit = 1ull << (my_row % 64);
    table_lock();
    struct machine_export *row = pool_row(process, address, serial);
    if (row != NULL) {
        uint64_t *word = &row->importers[my_row / 64];
        *word = imported ? *word | bit : *word & ~bit;
    }
    table_unlock();
}

bool machine_find(uint64_t process, uint64_t address, struct machine_export *out)
{
    table_lock();
    forget_the_dead();
    const struct machine_export *row = process != 0 ? export_of(process, address) : NULL;
    if (row != NULL) {
        *out = *row;
    }
    table_unlock();
    return row != NULL;
}

int machine_export_pool(struct machine_pool *pool)
{
    int fd = memfd_create("cuda_double-pool", MFD_CLOEXEC);
    if (fd < 0) {
        return -1;
    }
    table_lock();
    pool->id = pool->id != 0 ? pool->id : table->next_block++;
    table_unlock();
    struct pool_label label = {.magic = POOL_MAGIC,
                               .machine = table->machine,
                               .id = pool->id,
                               .process = my_id,
                               .physical = pool->physical};
    if (pwrite(fd, &label, sizeof label, 0) != sizeof label) {
        close(fd);
        return -1;
    }
    return fd;
}

bool machine_open_pool(int fd, struct machine_pool *out)
{
    struct pool_label label;
    struct stat file;
    if (fstat(fd, &file) < 0 || file.st_size != sizeof label ||
        pread(fd, &label, sizeof label, 0) != sizeof label || label.magic != POOL_MAGIC ||
        label.machine != table->machine) {
        return false;
    }
    *out = (struct machine_pool){.id = label.id, .process = label.process, .physical = label.physical};
    return true;
}
