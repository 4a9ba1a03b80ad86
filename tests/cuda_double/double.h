#ifndef TESTS_CUDA_DOUBLE_DOUBLE_H
#define TESTS_CUDA_DOUBLE_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda_double/cuda_double.h"

/*
 * What the parts of the double share. One lock guards all state of a process: double_lock. The double does
 * not hold it while it moves bytes or waits. "Locked" below: the caller holds this lock.
 */

#define DEVICES_MAX 8
#define BLOCK_BYTES (2ull << 20)
#define POISON 0xff
#define CONNECTIONS_MAX 32

struct settings {
    int device_count;
    uint64_t memory_bytes;
    bool mps;
    bool peer;
    bool imports_peer;
    bool virtual_memory;
    bool mappings_numbered;
    bool blocking_allocation;
    unsigned delay_us;
    const char *slow, *slow_while; /* null: none */
    int slow_device;               /* DEVICES_MAX: all */
    unsigned kernel_us, kernel_us_per_mib, nccl_us;
    unsigned hang_ms;
    bool nccl_off_main;
    bool nccl_windows;
    int capability;       /* 90 for 9.0 */
    unsigned connections; /* 0: one queue for each stream */
    char folder[1024];
};

void settings_read(void);
const struct settings *settings(void);
/* Sleeps for 0 to delay_us microseconds. */
void settings_delay(void);
/* Sleeps for as long as the settings make a kernel take that writes so many bytes to each output. */
void settings_delay_kernel(uint64_t bytes);
/* Sleeps for nccl_us microseconds. */
void settings_delay_nccl(void);
/* Sleeps for as long as CUDA_DOUBLE_SLOW says for this symbol. device: of the current context; -1: none.
 * Without the lock. */
void settings_delay_call(const char *symbol, int device);
/* Returns whether this call of the symbol must fail. Sets *result if the rule has a result. */
bool fail_now(const char *symbol, int *result);

void double_lock(void);
void double_unlock(void);
/* Call it after a change for which others may wait. Locked. */
void double_progress(void);
/* Waits for such a change. Locked. Returns false when the deadline has passed (0: no deadline). */
bool double_wait(uint64_t deadline_ns);
void double_wait_on(pthread_cond_t *condition);
uint64_t now_ns(void);

/* Handles are numbers that are never given twice, so a stale handle is always noticed. Locked. */
enum object_kind {
    OBJECT_NONE,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_ALLOCATION,
    OBJECT_GRAPH,
    OBJECT_GRAPH_EXEC,
    OBJECT_USER,
    OBJECT_COMMUNICATOR
};
uintptr_t object_add(enum object_kind kind, void *object); /* returns 0 if there is no memory */
void *object_get(enum object_kind kind, uintptr_t handle); /* returns null if there is no such object */
void *object_remove(enum object_kind kind, uintptr_t handle);

struct stream;

/* What streams share: a queue that numbers pieces of work in the order in which they came. */
struct connection {
    uint64_t given;
    uint64_t done;
};

/* The primary context of a device; there is no other. */
struct cuda_context_handle {
    int ordinal;
    int physical; /* the device's number on this machine */
    unsigned references;
    bool active;
    cuda_result failure; /* never cleared */
    uint32_t peers;      /* ordinals whose memory its kernels may touch */
    struct stream *legacy;
    struct stream *streams; /* all streams, linked by next; also the legacy stream */
    struct connection connections[CONNECTIONS_MAX];
    unsigned streams_made;
};
extern struct cuda_context_handle contexts[DEVICES_MAX];

int device_count(void);
int device_physical(int ordinal);
int device_ordinal_of(int physical); /* returns -1 if this process does not see the device */
void device_uuid_of(int physical, struct cuda_uuid *uuid);
/* Returns this thread's context, or null. */
cuda_context context_now(void);
bool context_is_known(cuda_context context);
/* Keeps the context's first failure, and wakes everything that waits in the context. Locked. */
void context_fail(cuda_context context, cuda_result result);

/*
 * Every exported function calls double_enter first. It checks that the double is initialised in this process,
 * not in the parent of a fork. It injects faults, and checks the current context and the rules of captures.
 */
#define ENTER_CONTEXT 1u       /* a context must be current, and sound */
#define ENTER_NOT_CAPTURING 2u /* the call is "potentially unsafe" during a capture */
cuda_result double_enter(const char *symbol, unsigned needs);
#define ENTER_BOTH (ENTER_CONTEXT | ENTER_NOT_CAPTURING)
/* The same. If it succeeds, the lock is held until double_end. */
cuda_result double_begin(const char *symbol, unsigned needs);
/* Gives the lock back. Returns `result`. */
cuda_result double_end(cuda_result result);

/* In capture.c: whether a capture forbids unsafe calls to this thread. If so, the capture becomes invalid.
 * Locked. */
bool capture_forbids(void);
/* In graph.c: whether this thread runs a destructor of a graph's user object. */
bool graph_calls_back(void);

#endif
