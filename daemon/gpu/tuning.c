#include "daemon/gpu/tuning.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/base/log.h"
#include "daemon/base/printable.h"
#include "daemon/base/thread.h"
#include "daemon/gpu/nccl.h"
#include "daemon/gpu/tuning_file.h"
#include "proto/version.h"

#define DRIVER_VERSION_FILE "/sys/module/nvidia/version"

struct gpu_tuning {
    struct gpu_tuning_machine machine;
    char *path;
    struct gpu_tuning_set sets[GPU_TUNING_SETS_MAX]; /* the oldest first */
    uint32_t count;
    pthread_t writer;
    bool has_writer;
    _Atomic bool written; /* the writer is done */
};

/* --- The machine --- */

/* Copies a text from a driver, as the file may hold it. */
static void copy_text(const char *text, char *out, size_t size)
{
    printable_copy(text, out, size);
    for (char *at = out; *at != '\0'; at++) {
        *at = *at == '"' || *at == '\\' || (unsigned char)*at > '~' ? '?' : *at;
    }
}

/* The version of the kernel's part of the driver; "none" without it. */
static void read_driver_version(char *out, size_t size)
{
    char text[64] = "";
    int fd = open(DRIVER_VERSION_FILE, O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0) {
        close(fd);
    }
    text[got > 0 ? got : 0] = '\0';
    text[strcspn(text, "\n")] = '\0';
    copy_text(text[0] != '\0' ? text : "none", out, size);
}

static void describe_gpu(const struct gpu_device_info *info, char *out, size_t size)
{
    char uuid[2 * CUDA_UUID_BYTES + 1], text[GPU_TUNING_TEXT_MAX_BYTES + 1];
    for (size_t i = 0; i < CUDA_UUID_BYTES; i++) {
        (void)snprintf(uuid + 2 * i, 3, "%02x", (unsigned char)info->uuid.bytes[i]);
    }
    (void)snprintf(text, sizeof text, "%s, PCI %s, %s%s", info->name, info->bus, uuid,
                   info->mps ? ", MPS" : "");
    copy_text(text, out, size);
}

static void describe_machine(const struct gpu_devices *gpus, struct gpu_tuning_machine *machine)
{
    char nccl[32], driver[64];
    int cuda = gpu_devices_driver_version(gpus);
    gpu_nccl_version(nccl, sizeof nccl);
    read_driver_version(driver, sizeof driver);
    (void)snprintf(machine->versions, sizeof machine->versions,
                   "commd %s, CUDA %d.%d, driver %s, NCCL %s with %u CTAs", COMMD_VERSION_TEXT, cuda / 1000,
                   cuda % 1000 / 10, driver, nccl, gpu_groups_ctas(gpus));
    machine->gpu_count = gpu_devices_count(gpus);
    for (uint32_t gpu = 0; gpu < machine->gpu_count; gpu++) {
        describe_gpu(gpu_devices_info(gpus, gpu), machine->gpus[gpu], sizeof machine->gpus[gpu]);
        for (uint32_t other = 0; other < machine->gpu_count; other++) {
            machine->reaches[gpu][other] = gpu_devices_reaches(gpus, gpu, other);
        }
    }
}

/* --- Reading --- */

/* Reads a regular file of at most GPU_TUNING_FILE_MAX_BYTES, and terminates it; the caller frees it. Null
 * with errno, of which EFBIG also stands for anything else than such a file. */
static char *read_file(const char *path, size_t *size_bytes)
{
    struct stat about;
    size_t size = 0;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0) {
        return NULL;
    }
    int failure = fstat(fd, &about) != 0                                                        ? errno
                  : !S_ISREG(about.st_mode) || about.st_size > (off_t)GPU_TUNING_FILE_MAX_BYTES ? EFBIG
                                                                                                : 0;
    if (failure == 0) {
        text = malloc(GPU_TUNING_FILE_MAX_BYTES + 1);
        failure = text == NULL ? ENOMEM : 0;
    }
    while (failure == 0 && size < GPU_TUNING_FILE_MAX_BYTES) {
        ssize_t got = read(fd, text + size, GPU_TUNING_FILE_MAX_BYTES - size);
        if (got == 0) {
            break;
        }
        failure = got < 0 && errno != EINTR ? errno : 0;
        size += got > 0 ? (size_t)got : 0;
    }
    close(fd);
    if (failure != 0) {
        free(text);
        errno = failure;
        return NULL;
    }
    text[size] = '\0';
    *size_bytes = size;
    return text;
}

static void load(struct gpu_tuning *tuning)
{
    size_t size_bytes;
    uint32_t foreign;
    struct error error;
    char *text = read_file(tuning->path, &size_bytes);
    if (text == NULL) {
        if (errno != ENOENT && errno != ENOTDIR) {
            log_warning("%s: %s; commd measures the GPUs again", tuning->path,
                        errno == EFBIG ? "not a file of at most 1 MiB" : strerror(errno));
        }
        return;
    }
    if (gpu_tuning_file_parse(text, size_bytes, &tuning->machine, tuning->sets, &tuning->count, &foreign,
                              &error) != STATUS_OK) {
        log_warning("%s: %s; commd measures the GPUs again", tuning->path, error.text);
    } else if (foreign > 0) {
        log_warning("%s: %u sets of GPUs were measured with other GPUs or versions; commd measures again",
                    tuning->path, foreign);
    }
    free(text);
}

/* --- Writing --- */

struct writing {
    _Atomic bool *written;
    char *text;
    char path[]; /* of the file; behind its end, that of the new file, which then replaces it */
};

static bool write_all(int fd, const char *text)
{
    size_t left = strlen(text);
    while (left > 0) {
        ssize_t put = write(fd, text, left);
        if (put < 0 && errno != EINTR) {
            return false;
        }
        text += put > 0 ? put : 0;
        left -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

static void *write_file(void *context)
{
    struct writing *writing = context;
    const char *path = writing->path, *next = path + strlen(path) + 1;
    (void)unlink(next); /* whatever it was */
    int fd = open(next, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    bool written = fd >= 0 && write_all(fd, writing->text) && fsync(fd) == 0;
    if (fd >= 0) {
        written = close(fd) == 0 && written;
    }
    if (!written || rename(next, path) != 0) {
        log_warning("%s: %s; what was measured on the GPUs is lost when commd ends", path, strerror(errno));
        if (fd >= 0) {
            (void)unlink(next);
        }
    }
    atomic_store(writing->written, true);
    free(writing->text);
    free(writing);
    return NULL;
}

static void await_writer(struct gpu_tuning *tuning)
{
    if (tuning->has_writer) {
        (void)pthread_join(tuning->writer, NULL);
        tuning->has_writer = false;
    }
}

/* Makes the folder that the file is in, and the one above it. */
static void make_folders(const char *path)
{
    char folder[4096];
    (void)snprintf(folder, sizeof folder, "%s", path);
    char *last = strrchr(folder, '/');
    if (last == NULL || last == folder) {
        return;
    }
    *last = '\0';
    char *above = strrchr(folder, '/');
    if (above != NULL && above != folder) {
        *above = '\0';
        (void)mkdir(folder, 0755);
        *above = '/';
    }
    (void)mkdir(folder, 0755); /* if it fails, opening the file says why */
}

/* Another thread writes: a disk may be slow. If it is still at the last table, this one is written with the
 * next. */
static void save(struct gpu_tuning *tuning)
{
    size_t length = strlen(tuning->path);
    if (length == 0) {
        return;
    }
    if (tuning->has_writer && !atomic_load(&tuning->written)) {
        log_warning("%s: still being written", tuning->path);
        return;
    }
    await_writer(tuning);
    struct writing *writing = calloc(1, sizeof *writing + 2 * length + sizeof ".new" + 1);
    char *text = gpu_tuning_file_text(&tuning->machine, tuning->sets, tuning->count);
    if (writing == NULL || text == NULL) {
        log_warning("%s: no memory to write it", tuning->path);
        free(writing);
        free(text);
        return;
    }
    atomic_store(&tuning->written, false);
    writing->written = &tuning->written;
    writing->text = text;
    memcpy(writing->path, tuning->path, length + 1);
    (void)snprintf(writing->path + length + 1, length + sizeof ".new", "%s.new", tuning->path);
    tuning->has_writer = thread_start(&tuning->writer, NULL, write_file, writing) == 0;
    if (!tuning->has_writer) {
        log_warning("%s: no thread to write it", tuning->path);
        free(writing->text);
        free(writing);
    }
}

/* --- The table --- */

enum status gpu_tuning_new(const struct gpu_devices *gpus, const char *path, struct gpu_tuning **out,
                           struct error *error)
{
    struct gpu_tuning *tuning = calloc(1, sizeof *tuning);
    char *copy = strdup(path);
    if (tuning == NULL || copy == NULL) {
        free(tuning);
        free(copy);
        return error_set(error, STATUS_NO_MEMORY, "no memory for the GPUs' tuning");
    }
    tuning->path = copy;
    describe_machine(gpus, &tuning->machine);
    if (path[0] != '\0') {
        make_folders(path);
        load(tuning);
    }
    *out = tuning;
    return STATUS_OK;
}

void gpu_tuning_free(struct gpu_tuning *tuning)
{
    if (tuning != NULL) {
        await_writer(tuning);
        free(tuning->path);
        free(tuning);
    }
}

const char *gpu_tuning_path(const struct gpu_tuning *tuning)
{
    return tuning->path;
}

static uint32_t index_of(const struct gpu_tuning *tuning, const uint32_t *list, uint32_t count)
{
    uint32_t index = 0;
    while (index < tuning->count && (tuning->sets[index].gpu_count != count ||
                                     memcmp(tuning->sets[index].gpus, list, count * sizeof *list) != 0)) {
        index++;
    }
    return index;
}

const struct gpu_tuning_set *gpu_tuning_find(const struct gpu_tuning *tuning, const uint32_t *list,
                                             uint32_t count)
{
    uint32_t index = index_of(tuning, list, count);
    return index < tuning->count ? &tuning->sets[index] : NULL;
}

uint32_t gpu_tuning_count(const struct gpu_tuning *tuning)
{
    return tuning->count;
}

const struct gpu_tuning_set *gpu_tuning_at(const struct gpu_tuning *tuning, uint32_t index)
{
    return &tuning->sets[index];
}

void gpu_tuning_put(struct gpu_tuning *tuning, const struct gpu_tuning_set *set)
{
    uint32_t index = index_of(tuning, set->gpus, set->gpu_count);
    if (index == GPU_TUNING_SETS_MAX) {
        memmove(&tuning->sets[0], &tuning->sets[1], (GPU_TUNING_SETS_MAX - 1) * sizeof tuning->sets[0]);
        index = GPU_TUNING_SETS_MAX - 1;
    } else if (index == tuning->count) {
        tuning->count++;
    }
    tuning->sets[index] = *set;
    save(tuning);
}

/* --- Predictions --- */

static double on_line(uint64_t bytes, uint64_t low_bytes, uint64_t high_bytes, uint64_t low_ns,
                      uint64_t high_ns)
{
    double part = ((double)bytes - (double)low_bytes) / (double)(high_bytes - low_bytes);
    return (double)low_ns + part * ((double)high_ns - (double)low_ns);
}

bool gpu_tuning_predict(const struct gpu_tuning_set *set, enum op_kind kind, uint64_t bytes, double *nccl_ns,
                        double *without_ns)
{
    const struct gpu_tuning_row *low = NULL,
                                *high = NULL; /* the neighbours; beyond the largest: the last two */
    for (uint32_t i = 0; i < set->row_count; i++) {
        const struct gpu_tuning_row *row = &set->rows[i];
        if (row->kind == kind && (high == NULL || high->bytes < bytes)) {
            low = high;
            high = row;
        }
    }
    if (high == NULL) {
        return false;
    }
    *nccl_ns = (double)high->nccl_ns;
    *without_ns = (double)high->without_ns;
    if (low != NULL) {
        *nccl_ns = on_line(bytes, low->bytes, high->bytes, low->nccl_ns, high->nccl_ns);
        *without_ns = on_line(bytes, low->bytes, high->bytes, low->without_ns, high->without_ns);
    }
    return true;
}

bool gpu_tuning_prefers_nccl(const struct gpu_tuning_set *set, enum op_kind kind, uint64_t bytes,
                             bool otherwise)
{
    double nccl_ns, without_ns;
    return gpu_tuning_predict(set, kind, bytes, &nccl_ns, &without_ns) ? nccl_ns < without_ns : otherwise;
}
