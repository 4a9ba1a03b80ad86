#ifndef TESTS_GPU_PEER_H
#define TESTS_GPU_PEER_H

#include <sys/types.h>

#include "tests/gpu/gpu_device.h"

/*
 * Another process on the same GPU, with a context of its own, that does what it is asked: as a daemon beside
 * its client. The two share words, each in a line of its own, in a page of a memfd that both make known to
 * CUDA.
 */
enum peer_command {
    PEER_OPEN,     /* takes the GPU; before the others */
    PEER_STORE,    /* its processor writes the value to PEER_WORD_GO */
    PEER_WRITE,    /* its stream does */
    PEER_KERNEL,   /* launches a small kernel, and waits for it */
    PEER_BURN,     /* keeps the GPU at work from now on */
    PEER_REST,     /* no longer; after PEER_BURN */
    PEER_EXPORT,   /* allocates that many bytes, of ones, and passes the handle */
    PEER_WITHDRAW, /* frees them */
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

/* Before this process loads the driver. burn_bytes: of each kernel's buffer. */
void peer_start(struct peer *peer, size_t burn_bytes);
/* The page of words, known to CUDA: device address of the first. */
cuda_pointer peer_map(const struct gpu *gpu, struct peer_shared *shared);

void peer_ask(struct peer *peer, enum peer_command command, uint64_t value);
/* Until what was asked is done. False: it takes longer. */
bool peer_answers(struct peer *peer, double timeout_s);
/* The same; a process that does not answer at all ends this one. */
void peer_wait(struct peer *peer);
void peer_do(struct peer *peer, enum peer_command command, uint64_t value);
void peer_end(struct peer *peer);

#endif
