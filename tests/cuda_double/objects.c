#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "tests/cuda_double/double.h"

/* Handles look like addresses of pages that no program has mapped. */
#define HANDLE_FIRST 0x10000u
#define HANDLE_STEP 16u

struct object {
    enum object_kind kind;
    void *object;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress;
static pthread_once_t progress_once = PTHREAD_ONCE_INIT;
static struct object *objects;
static size_t object_count;
static size_t object_room;

/* Deadlines use the monotonic clock, which nobody can set. */
static void progress_make(void)
{
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&progress, &attributes);
    pthread_condattr_destroy(&attributes);
}

void double_lock(void)
{
    (void)pthread_once(&progress_once, progress_make);
    pthread_mutex_lock(&lock);
}

void double_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void double_progress(void)
{
    pthread_cond_broadcast(&progress);
}

bool double_wait(uint64_t deadline_ns)
{
    if (deadline_ns == 0) {
        pthread_cond_wait(&progress, &lock);
        return true;
    }
    struct timespec deadline = {.tv_sec = (time_t)(deadline_ns / 1000000000),
                                .tv_nsec = (long)(deadline_ns % 1000000000)};
    return pthread_cond_timedwait(&progress, &lock, &deadline) != ETIMEDOUT;
}

void double_wait_on(pthread_cond_t *condition)
{
    pthread_cond_wait(condition, &lock);
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uintptr_t object_add(enum object_kind kind, void *object)
{
    if (object_count == object_room) {
        size_t room = object_room == 0 ? 256 : object_room * 2;
        struct object *grown = realloc(objects, room * sizeof *grown);
        if (grown == NULL) {
            return 0;
        }
        objects = grown;
        object_room = room;
    }
    objects[object_count] = (struct object){.kind = kind, .object = object};
    return HANDLE_FIRST + HANDLE_STEP * object_count++;
}

static struct object *find(enum object_kind kind, uintptr_t handle)
{
    assert(kind != OBJECT_NONE);
    if (handle < HANDLE_FIRST || (handle - HANDLE_FIRST) % HANDLE_STEP != 0) {
        return NULL;
    }
    size_t index = (handle - HANDLE_FIRST) / HANDLE_STEP;
    return index < object_count && objects[index].kind == kind ? &objects[index] : NULL;
}

void *object_get(enum object_kind kind, uintptr_t handle)
{
    struct object *object = find(kind, handle);
    return object != NULL ? object->object : NULL;
}

void *object_remove(enum object_kind kind, uintptr_t handle)
{
    struct object *object = find(kind, handle);
    if (object == NULL) {
        return NULL;
    }
    object->kind = OBJECT_NONE;
    return object->object;
}
