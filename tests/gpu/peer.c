#include "tests/gpu/peer.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "tests/gpu/burn.h"
#include "tests/gpu/figures.h"

#define ANSWER_TIMEOUT_S 60
#define SMALL_BYTES 65536u

struct worker {
    struct peer_shared *shared;
    struct gpu gpu;
    struct burn burn;
    size_t burn_bytes;
    bool burns;
    cuda_pointer words_at;
    cuda_pointer padding, exported;
    cuda_function kernel;
    cuda_pointer input, output; /* buffers of the small kernel */
};

/* Exports an allocation that lies behind another one in its block. If a handle opened the block instead of
 * the allocation, the bytes would be wrong. */
static void export_memory(struct worker *worker, size_t bytes)
{
    const struct gpu *gpu = &worker->gpu;
    float *ones = malloc(bytes);
    if (ones == NULL) {
        abort();
    }
    for (size_t i = 0; i < bytes / sizeof *ones; i++) {
        ones[i] = 1;
    }
    worker->padding = gpu_alloc(gpu, 4096);
    worker->exported = gpu_alloc(gpu, bytes);
    GPU_MUST(gpu, set_bytes, worker->padding, 0, 4096, gpu->stream);
    GPU_MUST(gpu, copy_from_host, worker->exported, ones, bytes, gpu->stream);
    gpu_synchronize(gpu);
    free(ones);
    GPU_MUST(gpu, ipc_get, &worker->shared->handle, worker->exported);
}

static void open_gpu(struct worker *worker)
{
    const struct gpu *gpu = &worker->gpu;
    gpu_device_open(&worker->gpu);
    worker->words_at = peer_map(gpu, worker->shared);
    worker->input = gpu_alloc(gpu, SMALL_BYTES);
    worker->output = gpu_alloc(gpu, SMALL_BYTES);
    if (!gpu_function(gpu, "commd_reduce_f32_sum", &worker->kernel)) {
        exit(1);
    }
}

static void run_kernel(struct worker *worker)
{
    struct kernels_reduce_few arguments = {.count_elements = SMALL_BYTES / 4,
                                           .input_count = 1,
                                           .output_count = 1,
                                           .inputs = {(const void *)(uintptr_t)worker->input},
                                           .outputs = {(void *)(uintptr_t)worker->output}};
    gpu_launch(&worker->gpu, worker->kernel, &arguments, 8, KERNELS_BLOCK_THREADS);
    gpu_synchronize(&worker->gpu);
}

static void perform(struct worker *worker)
{
    struct peer_shared *shared = worker->shared;
    const struct gpu *gpu = &worker->gpu;
    switch (shared->command) {
    case PEER_OPEN:
        open_gpu(worker);
        break;
    case PEER_KERNEL:
        run_kernel(worker);
        break;
    case PEER_STORE:
        atomic_store(&shared->words[PEER_WORD_GO].word, shared->value);
        break;
    case PEER_WRITE:
        GPU_MUST(gpu, stream_write_value, gpu->stream,
                 worker->words_at + PEER_WORD_GO * sizeof(struct peer_line), shared->value, 0);
        break;
    case PEER_BURN:
        burn_open(&worker->burn, gpu, worker->burn_bytes);
        worker->burns = true;
        break;
    case PEER_REST:
        worker->burns = false;
        burn_close(&worker->burn);
        break;
    case PEER_EXPORT:
        export_memory(worker, shared->value);
        break;
    case PEER_WITHDRAW:
        GPU_MUST(gpu, memory_free, worker->exported);
        GPU_MUST(gpu, memory_free, worker->padding);
        break;
    case PEER_END:
        _exit(0); /* the kernel frees all that it has on the GPU */
    }
}

static _Noreturn void work(struct peer_shared *shared, size_t burn_bytes)
{
    struct worker worker = {.shared = shared, .burn_bytes = burn_bytes};
    for (uint64_t next = 1;; next++) {
        while (!figures_wait(&shared->asked.word, next, 20e-6)) {
            if (worker.burns) {
                burn_step(&worker.burn);
                atomic_store(&shared->burned.word, burn_count(&worker.burn));
            }
        }
        perform(&worker);
        atomic_store(&shared->answered.word, next);
    }
}

void peer_start(struct peer *peer, size_t burn_bytes)
{
    pid_t parent = getpid();
    int file = memfd_create("peer", MFD_CLOEXEC);
    *peer = (struct peer){.shared = MAP_FAILED};
    if (file >= 0 && ftruncate(file, sizeof *peer->shared) == 0) {
        peer->shared = mmap(NULL, sizeof *peer->shared, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    if (peer->shared == MAP_FAILED) {
        perror("memory to share");
        exit(1);
    }
    (void)close(file);
    fflush(stdout);
    peer->pid = fork();
    if (peer->pid < 0) {
        perror("fork");
        exit(1);
    }
    if (peer->pid == 0) {
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == parent) {
            work(peer->shared, burn_bytes);
        }
        _exit(1);
    }
}

cuda_pointer peer_map(const struct gpu *gpu, struct peer_shared *shared)
{
    cuda_pointer pointer;
    GPU_MUST(gpu, host_register, shared->words, sizeof shared->words,
             CUDA_HOST_PORTABLE | CUDA_HOST_DEVICE_MAP);
    GPU_MUST(gpu, host_device_pointer, &pointer, shared->words, 0);
    return pointer;
}

void peer_ask(struct peer *peer, enum peer_command command, uint64_t value)
{
    peer->shared->command = command;
    peer->shared->value = value;
    atomic_store(&peer->shared->asked.word, ++peer->asked);
}

bool peer_answers(struct peer *peer, double timeout_s)
{
    double end_s = figures_now_s() + timeout_s;
    while (!figures_wait(&peer->shared->answered.word, peer->asked, 0.1)) {
        int status;
        if (waitpid(peer->pid, &status, WNOHANG) == peer->pid) {
            fprintf(stderr, "the other process has ended\n");
            exit(1);
        }
        if (figures_now_s() > end_s) {
            return false;
        }
    }
    return true;
}

void peer_wait(struct peer *peer)
{
    if (!peer_answers(peer, ANSWER_TIMEOUT_S)) {
        fprintf(stderr, "the other process does not answer\n");
        exit(1);
    }
}

void peer_do(struct peer *peer, enum peer_command command, uint64_t value)
{
    peer_ask(peer, command, value);
    peer_wait(peer);
}

void peer_end(struct peer *peer)
{
    peer_ask(peer, PEER_END, 0);
    (void)waitpid(peer->pid, NULL, 0);
    (void)munmap(peer->shared, sizeof *peer->shared);
}
