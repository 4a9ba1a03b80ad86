#ifndef TESTS_CUDA_DOUBLE_DOUBLE_H
#define TESTS_CUDA_DOUBLE_DOUBLE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tests/cuda_double/cuda_double.h"

/*
 * What the parts of the double share. One lock guards all of a process's state: double_lock. It is not held
 * while bytes are moved or waited for.
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
    unsigned hang_ms;
    unsigned connections; /* 0: one a stream */
    char folder[1024];
};

void settings_read(void);
const struct settings *settings(void);
/* Between 0 and delay_us microseconds pass. */
void settings_delay(void);
/* True if this call of the symbol is to fail; *result is set where the rule gives one. */
bool fail_now(const char *symbol, int *result);

void double_lock(void);
void double_unlock(void);
/* Something that others may wait for has changed. Locked. */
void double_progress(void);
/* Waits for such a change. Locked; false when the deadline (0: none) has passed. */
bool double_wait(uint64_t deadline_ns);
void double_wait_on(pthread_cond_t *condition);
uint64_t now_ns(void);

/* Handles are numbers that are never given twice, so that a stale one is always found out. Locked. */
enum object_kind {
    OBJECT_NONE,
    OBJECT_STREAM,
    OBJECT_EVENT,
    OBJECT_MODULE,
    OBJECT_FUNCTION,
    OBJECT_ALLOCATION,
    OBJECT_GRAPH,
    OBJECT_GRAPH_EXEC,
    OBJECT_COMMUNICATOR
};
uintptr_t object_add(enum object_kind kind, void *object); /* 0: no memory */
void *object_get(enum object_kind kind, uintptr_t handle); /* null: no such one */
void *object_remove(enum object_kind kind, uintptr_t handle);

struct stream;

/* What streams share: numbers of pieces of work, in the order in which they came. */
struct connection {
    uint64_t given;
    uint64_t done;
};

/* The primary context of a device; there is no other. */
struct cuda_context_handle {
    int ordinal;
    int physical; /* of the machine */
    unsigned references;
    bool active;
    cuda_result failure; /* for good */
    uint32_t peers;      /* ordinals whose memory its kernels may touch */
    struct stream *legacy;
    struct stream *streams; /* all, by next; the legacy one, too */
    struct connection connections[CONNECTIONS_MAX];
    unsigned streams_made;
};
extern struct cuda_context_handle contexts[DEVICES_MAX];

int device_count(void);
int device_physical(int ordinal);
int device_ordinal_of(int physical); /* -1: not visible here */
void device_uuid_of(int physical, struct cuda_uuid *uuid);
/* This thread's, or null. */
cuda_context context_now(void);
bool context_is_known(cuda_context context);
/* Keeps the first failure, wakes everything that waits in it. Locked. */
void context_fail(cuda_context context, cuda_result result);

/*
 * What every exported function begins with: initialised, in this process and not in one forked from it;
 * faults to inject; the state of the current context; and what a capture forbids.
 */
#define ENTER_CONTEXT 1u       /* a context must be current, and sound */
#define ENTER_NOT_CAPTURING 2u /* "potentially unsafe" during a capture */
cuda_result double_enter(const char *symbol, unsigned needs);
#define ENTER_BOTH (ENTER_CONTEXT | ENTER_NOT_CAPTURING)

/* In capture.c: whether a capture that is under way forbids unsafe calls to this thread; it ends by it.
 * Locked. */
bool capture_forbids(void);

#endif
