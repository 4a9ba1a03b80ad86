#ifndef CLIENT_LIB_CELLS_REMOTE_H
#define CLIENT_LIB_CELLS_REMOTE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/cells.h"

/*
 * Ranks' inputs that this process reads from theirs (process_vm_readv, proto/cells.h). One thread at a time.
 */
struct cells_remote {
    pid_t pids[CELLS_RANKS_MAX]; /* 0: the rank's input is not read in this way */
    uint64_t at[CELLS_RANKS_MAX];
    uint64_t answers_at[CELLS_RANKS_MAX]; /* there: this rank's challenge, in the rank's process */
    uint64_t challenge;
    bool any;
    bool failed; /* something could not be read; the program must not see the result */
    unsigned char *pieces;
    size_t piece_bytes; /* of each rank */
};

/* Memory for pieces of all ranks' inputs, which are reduced while they are in this processor's cache. Returns
 * false if there is none. */
bool cells_remote_prepare(struct cells_remote *remote, uint32_t rank_count);
void cells_remote_free(struct cells_remote *remote);

/* Whether it is worth trying: a kernel that forbids it to most processes (Yama) writes each attempt to its
 * log. */
bool cells_remote_is_allowed(void);
/* Whether the process has the challenge there, and the kernel lets this one read it. */
bool cells_remote_has(pid_t pid, uint64_t challenge, uint64_t at);
/* Copies what lies `offset_bytes` behind the start of the rank's input. Sets `failed` if it cannot, or if the
 * process is another one by now. */
void cells_remote_read(struct cells_remote *remote, uint32_t rank, size_t offset_bytes, void *to,
                       size_t size_bytes);

#endif
