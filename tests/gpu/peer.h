#ifndef TESTS_GPU_PEER_H
#define TESTS_GPU_PEER_H

#include <sys/types.h>

#include "tests/gpu/gpu_device.h"

/*
 * Another process on the same GPU, with its own context. It does what this process asks, as a daemon does for
 * its client. The two processes share words in a page of a memfd, each in its own cache line. Both register
 * the page with CUDA.
 */
enum peer_command {
    PEER_OPEN,     /* opens the GPU; comes before the others */
    PEER_STORE,    /* its processor writes the value to PEER_WORD_GO */
    PEER_WRITE,    /* its stream writes the value there */
    PEER_KERNEL,   /* launches a small kernel, and waits for it */
    PEER_BURN,     /* keeps the GPU at work until PEER_REST */
    PEER_REST,     /* stops that; comes after PEER_BURN */
    PEER_EXPORT,   /* allocates that many bytes, filled with floats of 1, and passes the handle */
    PEER_WITHDRAW, /* frees the exported memory */
    PEER_END
};

enum peer_word { PEER_WORD_GO, PEER_WORD_DONE, PEER_WORDS };

struct peer_line {
    _Alignas(64) _Atomic uint64_t word;
};

struct peer_shared {
    struct peer_line asked, answered, burned;
    enum peer_command command;
    uint64_t value;
    struct cuda_ipc_handle handle;
    _Alignas(4096) struct peer_line words[4096 / 64];
};

struct peer {
    struct peer_shared *shared;
    pid_t pid;
    uint64_t asked;
};

/* Call it before this process loads the driver. burn_bytes: size of each kernel's buffers. */
void peer_start(struct peer *peer, size_t burn_bytes);
/* Registers the page of words with CUDA. Returns the device address of the first word. */
cuda_pointer peer_map(const struct gpu *gpu, struct peer_shared *shared);

void peer_ask(struct peer *peer, enum peer_command command, uint64_t value);
/* Waits until the peer has done what it was asked. Returns false if that takes longer than timeout_s. */
bool peer_answers(struct peer *peer, double timeout_s);
/* Waits as well, but ends this process if the peer does not answer at all. */
void peer_wait(struct peer *peer);
void peer_do(struct peer *peer, enum peer_command command, uint64_t value);
void peer_end(struct peer *peer);

#endif
