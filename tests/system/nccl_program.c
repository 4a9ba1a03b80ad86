#include "tests/system/nccl_program.h"

#include <string.h>
#include <unistd.h>

#define TRIES 3000
#define PAUSE_US 10000u
#define ERROR_TRIES 1000

const struct cuda_driver *driver;
struct local locals[LOCAL_MAX];
int local_count, size;
ncclUniqueId program_id;

ncclResult_t expect(ncclResult_t result, ncclResult_t wanted, const char *what)
{
    if (result != wanted) {
        fprintf(stderr, "rank %d: %s: %d in place of %d: %s\n", locals[0].rank, what, (int)result,
                (int)wanted, ncclGetLastError(NULL));
        exit(EXIT_FAILURE);
    }
    return result;
}

void expect_true(bool holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "rank %d: not so: %s (%s)\n", locals[0].rank, what, ncclGetLastError(NULL));
        exit(EXIT_FAILURE);
    }
}

void expect_text(const char *word)
{
    const char *text = ncclGetLastError(NULL);
    if (strstr(text, word) == NULL) {
        fprintf(stderr, "rank %d: \"%s\" lacks \"%s\"\n", locals[0].rank, text, word);
        exit(EXIT_FAILURE);
    }
}

void cuda(cuda_result result, const char *what)
{
    if (result != CUDA_RESULT_OK) {
        fprintf(stderr, "rank %d: the test's own %s: %d\n", locals[0].rank, what, result);
        exit(EXIT_FAILURE);
    }
}

void enter(const struct local *local)
{
    cuda(driver->context_set(local->context), "context_set");
}

static const char *id_path;

static void beside(char *out, size_t out_size, const char *suffix)
{
    (void)snprintf(out, out_size, "%s.%s", id_path, suffix);
}

static void write_file(const char *suffix, const void *data, size_t bytes)
{
    char path[4096], part[4096];
    beside(path, sizeof path, suffix);
    beside(part, sizeof part, "part");
    FILE *file = fopen(part, "wb");
    expect_true(file != NULL && fwrite(data, 1, bytes, file) == bytes && fclose(file) == 0 &&
                    rename(part, path) == 0,
                "a file is written");
}

static void read_file(const char *suffix, void *data, size_t bytes)
{
    char path[4096];
    FILE *file;
    beside(path, sizeof path, suffix);
    for (int i = 0; (file = fopen(path, "rb")) == NULL && i < TRIES; i++) {
        (void)usleep(PAUSE_US);
    }
    expect_true(file != NULL && fread(data, 1, bytes, file) == bytes, "a file is read");
    (void)fclose(file);
}

static unsigned id_count;

void give_id(const ncclUniqueId *id)
{
    char suffix[16];
    (void)snprintf(suffix, sizeof suffix, "%u", id_count++);
    write_file(suffix, id, sizeof *id);
}

void next_id(void)
{
    char suffix[16];
    (void)snprintf(suffix, sizeof suffix, "%u", id_count++);
    if (locals[0].rank == 0) {
        expect(ncclGetUniqueId(&program_id), ncclSuccess, "ncclGetUniqueId");
        write_file(suffix, &program_id, sizeof program_id);
    } else {
        read_file(suffix, &program_id, sizeof program_id);
    }
}

void mark(const char *name)
{
    write_file(name, "m", 1);
}

void await_mark(const char *name)
{
    char byte;
    read_file(name, &byte, 1);
}

void program_open(const char *id_file, int first, int device_count, char **devices)
{
    char why[256];
    local_count = device_count;
    id_path = id_file;
    if (!cuda_driver_load(&driver, why, sizeof why)) {
        fprintf(stderr, "%s\n", why);
        exit(EXIT_FAILURE);
    }
    EACH(local)
    {
        cuda_device device;
        local->rank = first + (int)(local - locals);
        local->device = atoi(devices[local - locals]);
        cuda(driver->device_get(&device, local->device), "device_get");
        cuda(driver->context_retain(&local->context, device), "context_retain");
        enter(local);
        cuda(driver->stream_create(&local->stream, 1, 0), "stream_create");
        cuda(driver->memory_alloc(&local->send, BUFFER_BYTES), "memory_alloc");
        cuda(driver->memory_alloc(&local->receive, BUFFER_BYTES), "memory_alloc");
    }
    next_id();
}

void init_all(void)
{
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        enter(local);
        expect(ncclCommInitRank(&local->comm, size, program_id, local->rank), ncclSuccess,
               "ncclCommInitRank");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
}

/* One by one in one thread, as nccl-tests does. */
void destroy_all(void)
{
    EACH(local)
    {
        expect(ncclCommDestroy(local->comm), ncclSuccess, "ncclCommDestroy");
    }
}

void write_gpu(const struct local *local, cuda_pointer to, const void *from, size_t bytes)
{
    enter(local);
    cuda(driver->copy_from_host(to, from, bytes, local->stream), "copy_from_host");
    wait_stream(local);
}

void read_gpu(const struct local *local, cuda_pointer from, void *to, size_t bytes)
{
    enter(local);
    cuda(driver->copy_to_host(to, from, bytes, local->stream), "copy_to_host");
    wait_stream(local);
}

void poison(const struct local *local)
{
    static unsigned char garbage[BUFFER_BYTES];
    memset(garbage, 0xee, sizeof garbage);
    write_gpu(local, local->send, garbage, sizeof garbage);
    write_gpu(local, local->receive, garbage, sizeof garbage);
}

void wait_stream(const struct local *local)
{
    enter(local);
    cuda(driver->stream_synchronize(local->stream), "stream_synchronize");
}

ncclResult_t await_state(ncclComm_t comm)
{
    ncclResult_t state = ncclInProgress;
    for (int i = 0; i < TRIES && state == ncclInProgress; i++) {
        expect(ncclCommGetAsyncError(comm, &state), ncclSuccess, "ncclCommGetAsyncError");
        (void)usleep(1000);
    }
    return state;
}

ncclResult_t await_error(ncclComm_t comm)
{
    ncclResult_t state = ncclSuccess;
    for (int i = 0; i < ERROR_TRIES && (state == ncclSuccess || state == ncclInProgress); i++) {
        expect(ncclCommGetAsyncError(comm, &state), ncclSuccess, "ncclCommGetAsyncError");
        (void)usleep(PAUSE_US);
    }
    return state;
}

void say(const char *word)
{
    printf("%s\n", word);
    (void)fflush(stdout);
}

static void check_sum(const struct local *local, float sum)
{
    float got = -1;
    read_gpu(local, local->receive, &got, sizeof got);
    if (!(got == sum)) {
        fprintf(stderr, "rank %d: a sum of %g, not %g\n", local->rank, (double)got, (double)sum);
        exit(EXIT_FAILURE);
    }
}

void check_all_work(void)
{
    float sum = (float)(size * (size + 1)) / 2;
    EACH(local)
    {
        float value = (float)(local->rank + 1);
        poison(local);
        write_gpu(local, local->send, &value, sizeof value);
    }
    expect(ncclGroupStart(), ncclSuccess, "ncclGroupStart");
    EACH(local)
    {
        expect(ncclAllReduce(AT(local->send), AT(local->receive), 1, ncclFloat32, ncclSum, local->comm,
                             STREAM(local)),
               ncclSuccess, "ncclAllReduce");
    }
    expect(ncclGroupEnd(), ncclSuccess, "ncclGroupEnd");
    EACH(local)
    {
        check_sum(local, sum);
    }
}
