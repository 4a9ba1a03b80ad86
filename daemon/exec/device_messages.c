#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/exec/exec_internal.h"

/*
 * Messages whose buffers are on GPUs, or that wait for streams: the message proper is one of pinned memory,
 * in between. Sends keep their order: one that waits holds back those behind it. Receives are posted at once,
 * and wait with what has come.
 */

struct exec_staged {
    struct exec_staged *prev, *next;
    struct exec_comm *comm;
    struct exec_message message; /* the caller's */
    enum {
        STAGED_WAITS,      /* a send: for words that streams write */
        STAGED_COPIES_IN,  /* a send: to the host */
        STAGED_ON_ITS_WAY, /* the message proper is */
        STAGED_RECEIVED,   /* a receive: for words that streams write */
        STAGED_COPIES_OUT, /* a receive: to the GPU */
        STAGED_ENDED       /* to be told */
    } state;
    void *host;
    uint64_t mark;
    struct error result;
    uint32_t source_rank;
    uint64_t count_elements;
};

bool staged_is_needed(const struct exec_message *message)
{
    return message->on_gpu || message->wait_count > 0;
}

static void staged_end(struct exec_staged *staged, const struct error *result)
{
    staged->result = *result;
    staged->state = STAGED_ENDED;
    exec_wake(staged->comm->exec);
}

/* Of the message proper. */
static void staged_done(void *context, const struct error *result, uint32_t source_rank,
                        uint64_t count_elements, uint64_t now_ns)
{
    struct exec_staged *staged = context;
    (void)now_ns;
    staged->source_rank = source_rank;
    staged->count_elements = count_elements;
    if (result->status == STATUS_OK && !staged->message.sends) {
        staged->state = STAGED_RECEIVED;
        exec_wake(staged->comm->exec);
    } else {
        staged_end(staged, result);
    }
}

static uint64_t bytes_of(const struct exec_staged *staged, uint64_t count_elements)
{
    return count_elements * dtype_size_bytes(staged->message.dtype);
}

static enum status staged_post(struct exec_staged *staged, struct error *error)
{
    struct exec_message message = staged->message;
    message.buffer = staged->message.on_gpu ? staged->host : staged->message.buffer;
    message.on_gpu = false;
    message.wait_count = 0;
    message.done = staged_done;
    message.context = staged;
    staged->state = STAGED_ON_ITS_WAY;
    return exec_post_plain(staged->comm, &message, error);
}

enum status staged_new(struct exec_comm *comm, const struct exec_message *message, struct error *error)
{
    struct exec_staged *staged = calloc(1, sizeof *staged);
    if (staged == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "\"%s\": no memory for a message", comm->options.name);
    }
    staged->comm = comm;
    staged->message = *message;
    staged->state = STAGED_WAITS;
    uint64_t bytes = bytes_of(staged, message->count_elements);
    enum status status = STATUS_OK;
    if (message->on_gpu && bytes > 0) {
        status = dev_pinned_alloc(comm->exec->gpus, bytes, &staged->host, error);
    }
    if (status == STATUS_OK && !message->sends) {
        status = staged_post(staged, error);
    }
    if (status != STATUS_OK) {
        dev_pinned_free(comm->exec->gpus, staged->host);
        free(staged);
        return status;
    }
    DL_APPEND(comm->staged, staged);
    exec_wake(comm->exec);
    return STATUS_OK;
}

/* --- Steps --- */

static enum status staged_copy(struct exec_staged *staged, bool in, uint64_t count_elements,
                               struct error *error)
{
    struct dev_queue *queue = NULL;
    uint64_t bytes = bytes_of(staged, count_elements);
    staged->mark = 0;
    if (!staged->message.on_gpu || bytes == 0) {
        return STATUS_OK;
    }
    enum status status = device_queue(staged->comm, staged->message.gpu, &queue, error);
    if (status == STATUS_OK) {
        status = dev_queue_copy(queue, in ? staged->host : staged->message.buffer,
                                in ? staged->message.buffer : staged->host, bytes, error);
    }
    return status == STATUS_OK ? dev_queue_mark(queue, &staged->mark, error) : status;
}

/* False: not yet. *status: the GPU failed, and is done with it too. */
static bool staged_reached(struct exec_staged *staged, uint64_t now_ns, enum status *status,
                           struct error *error)
{
    *status = STATUS_OK;
    return staged->mark == 0 ||
           dev_queue_is_done(staged->comm->queues[staged->message.gpu], staged->mark, now_ns, status, error);
}

static bool staged_begin(struct exec_staged *staged, bool in)
{
    struct error error;
    const struct exec_message *message = &staged->message;
    if (!exec_fences_are_reached(message->waits, message->wait_count)) {
        return false;
    }
    staged->state = in ? STAGED_COPIES_IN : STAGED_COPIES_OUT;
    if (staged_copy(staged, in, in ? message->count_elements : staged->count_elements, &error) != STATUS_OK) {
        staged_end(staged, &error);
    }
    return true;
}

static bool staged_copied(struct exec_staged *staged, uint64_t now_ns)
{
    static const struct error fine = {.status = STATUS_OK};
    enum status status;
    struct error error;
    if (!staged_reached(staged, now_ns, &status, &error)) {
        return false;
    }
    if (status == STATUS_OK && staged->message.sends && !staged->comm->failed) {
        status = staged_post(staged, &error);
        if (status == STATUS_OK) {
            return true;
        }
    }
    if (status == STATUS_OK && staged->comm->failed && staged->message.sends) {
        staged_end(staged, &staged->comm->cause);
    } else {
        staged_end(staged, status == STATUS_OK ? &fine : &error);
    }
    return true;
}

/* Whether it got further. */
static bool staged_step(struct exec_staged *staged, bool may_send, uint64_t now_ns)
{
    switch (staged->state) {
    case STAGED_WAITS:
        if (staged->comm->aborted) {
            staged_end(staged, &staged->comm->cause);
            return true;
        }
        return may_send && staged_begin(staged, true);
    case STAGED_RECEIVED:
        if (staged->comm->aborted) {
            staged_end(staged, &staged->comm->cause);
            return true;
        }
        return staged_begin(staged, false);
    case STAGED_COPIES_IN:
    case STAGED_COPIES_OUT:
        return staged_copied(staged, now_ns);
    case STAGED_ON_ITS_WAY:
    case STAGED_ENDED:
        return false;
    }
    return false;
}

static void staged_tell(struct exec_staged *staged, uint64_t now_ns)
{
    struct exec_message message = staged->message;
    struct error result = staged->result;
    uint32_t source_rank = staged->source_rank;
    uint64_t count_elements = staged->count_elements;
    DL_DELETE(staged->comm->staged, staged);
    dev_pinned_free(staged->comm->exec->gpus, staged->host);
    free(staged);
    message.done(message.context, &result, source_rank, count_elements, now_ns);
}

void staged_run(struct exec_comm *comm, uint64_t now_ns)
{
    struct exec_staged *staged, *next;
    bool may_send = true;
    DL_FOREACH(comm->staged, staged)
    {
        while (staged_step(staged, may_send, now_ns)) {
            comm->exec->devices_advanced = true;
        }
        bool held = staged->state == STAGED_WAITS || staged->state == STAGED_COPIES_IN;
        may_send = may_send && !held;
        bool polls = staged->state != STAGED_ON_ITS_WAY && staged->state != STAGED_ENDED;
        comm->exec->waits_for_devices |= polls;
    }
    DL_FOREACH_SAFE(comm->staged, staged, next)
    {
        if (staged->state == STAGED_ENDED) {
            staged_tell(staged, now_ns);
        }
    }
}

bool staged_holds_sends(const struct exec_comm *comm)
{
    const struct exec_staged *staged;
    DL_FOREACH(comm->staged, staged)
    {
        if (staged->state == STAGED_WAITS || staged->state == STAGED_COPIES_IN) {
            return true;
        }
    }
    return false;
}

const void *staged_describe(const struct exec_comm *comm, const void *context, char *text, size_t size)
{
    const struct exec_staged *staged;
    DL_FOREACH(comm->staged, staged)
    {
        if (staged->message.context != context) {
            continue;
        }
        if (staged->state == STAGED_WAITS || staged->state == STAGED_RECEIVED) {
            (void)snprintf(text, size, "%s: waiting for its stream", staged->message.sends ? "send" : "recv");
        } else if (staged->state != STAGED_ON_ITS_WAY) {
            (void)snprintf(text, size, "%s: being copied from or to GPU %u",
                           staged->message.sends ? "send" : "recv", staged->message.gpu);
        }
        return staged;
    }
    return context;
}
