#include "daemon/exec/gpu_release.h"

#include <stdlib.h>

#include <utlist.h>

#include "daemon/base/time.h"
#include "daemon/gpu/queue.h"
#include "daemon/gpu/words.h"
#include "daemon/host/memory.h"

#define RELEASE_LOOK_NS 10000000ull /* between looks at writes that are not done */

struct gpu_release {
    struct exec *exec;
    struct gpu_queue *queue;
    uint64_t mark;        /* behind the last write; 0: none is under way */
    struct memory **held; /* one reference for each write */
    uint32_t held_count;  /* at most the waits of one operation */
    uint32_t held_room;
    bool abandoned; /* the exec frees it when its writes are done */
    bool is_listed; /* in exec->releases */
    struct gpu_release *next;
};

enum status gpu_release_new(struct exec *exec, uint32_t gpu, struct budget_account *account,
                            struct gpu_release **out, struct error *error)
{
    struct gpu_release *release = calloc(1, sizeof *release);
    if (release == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for a queue of GPU %u", gpu);
    }
    release->exec = exec;
    enum status status = gpu_queue_new(exec->gpus, gpu, account, &release->queue, error);
    if (status != STATUS_OK) {
        free(release);
        return status;
    }
    *out = release;
    return STATUS_OK;
}

static void let_go(struct gpu_release *release)
{
    while (release->held_count > 0) {
        memory_unref(release->held[--release->held_count]);
    }
    release->mark = 0;
}

/* Its writes are done, or it blocks until they are. */
static void destroy(struct gpu_release *release)
{
    gpu_queue_free(release->queue);
    let_go(release);
    free(release->held);
    free(release);
}

void gpu_release_free(struct gpu_release *release)
{
    if (release == NULL) {
        return;
    }
    if (release->is_listed) {
        release->abandoned = true;
    } else {
        destroy(release);
    }
}

bool gpu_release_is_done(struct gpu_release *release, uint64_t now_ns)
{
    struct error why;
    enum status status; /* a GPU that has failed writes nothing any more */
    if (!gpu_queue_is_done(release->queue, release->mark, now_ns, &status, &why)) {
        return false;
    }
    let_go(release);
    return true;
}

static enum status hold(struct gpu_release *release, struct memory *memory, struct error *error)
{
    if (release->held_count == release->held_room) {
        uint32_t room = release->held_room == 0 ? 8 : 2 * release->held_room;
        struct memory **held = realloc(release->held, room * sizeof(struct memory *));
        if (held == NULL) {
            return error_set(error, STATUS_NO_MEMORY, "no memory to end waits of a GPU");
        }
        release->held = held;
        release->held_room = room;
    }
    release->held[release->held_count++] = memory_ref(memory);
    return STATUS_OK;
}

enum status gpu_release_write(struct gpu_release *release, const struct fence *fence, struct error *error)
{
    const struct gpu_word *word = &fence->gpu_word;
    enum status status = hold(release, gpu_words_memory(word), error);
    return status == STATUS_OK
               ? gpu_queue_write_word(release->queue, gpu_word_address(word), fence->value, error)
               : status;
}

enum status gpu_release_mark(struct gpu_release *release, struct error *error)
{
    enum status status = gpu_queue_mark(release->queue, &release->mark, error);
    if (status != STATUS_OK) { /* nothing is under way */
        let_go(release);
    } else if (!release->is_listed) {
        LL_PREPEND(release->exec->releases, release);
        release->is_listed = true;
    }
    return status;
}

void gpu_releases_tick(struct exec *exec, uint64_t now_ns)
{
    struct gpu_release *release, *next;
    LL_FOREACH_SAFE(exec->releases, release, next)
    {
        if (gpu_release_is_done(release, now_ns)) {
            LL_DELETE(exec->releases, release);
            release->is_listed = false;
            if (release->abandoned) {
                destroy(release);
            }
        }
    }
    exec->releases_look_ns = exec->releases != NULL ? time_after(now_ns, RELEASE_LOOK_NS) : TIME_NEVER;
}

uint64_t gpu_releases_deadline_ns(const struct exec *exec)
{
    return exec->releases != NULL ? exec->releases_look_ns : TIME_NEVER;
}

void gpu_releases_end(struct exec *exec)
{
    struct gpu_release *release, *next;
    LL_FOREACH_SAFE(exec->releases, release, next)
    {
        destroy(release);
    }
    exec->releases = NULL;
}
