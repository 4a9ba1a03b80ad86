#include "daemon/net/stream_intake.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BUFFER_MIN_BYTES 512u

static const uint8_t nothing[1];

void stream_intake_drop(struct stream_intake *intake)
{
    free(intake->buffer);
    intake->buffer = NULL;
    intake->buffer_first = intake->buffer_bytes = intake->buffer_capacity = 0;
}

bool stream_intake_keep(struct stream_intake *intake, const uint8_t *bytes, size_t size)
{
    size_t most = (size_t)(intake->granted_end - intake->consumed_end);
    assert(size > 0 && intake->buffer_bytes + size <= most);
    if (intake->buffer_first + intake->buffer_bytes + size > intake->buffer_capacity) {
        size_t needed = intake->buffer_bytes + size;
        size_t capacity = needed < BUFFER_MIN_BYTES ? BUFFER_MIN_BYTES : needed + needed / 2;
        capacity = capacity < most || needed > most ? capacity : most;
        uint8_t *buffer = malloc(capacity);
        if (buffer == NULL) {
            return false;
        }
        if (intake->buffer_bytes > 0) {
            memcpy(buffer, intake->buffer + intake->buffer_first, intake->buffer_bytes);
        }
        free(intake->buffer);
        intake->buffer = buffer;
        intake->buffer_first = 0;
        intake->buffer_capacity = capacity;
    }
    memcpy(intake->buffer + intake->buffer_first + intake->buffer_bytes, bytes, size);
    intake->buffer_bytes += size;
    return true;
}

/* Returns how many bytes the handler consumed. */
static size_t call(struct stream_intake *intake, struct net_stream *stream, const uint8_t *bytes, size_t size,
                   uint64_t now_ns)
{
    const struct net_stream_handler *handler = stream_handler(stream);
    intake->announced = true;
    intake->calling = true;
    intake->resumed = false;
    size_t used = handler->receive(handler->context, stream, bytes, size, intake->ended, now_ns);
    intake->calling = false;
    assert(used <= size);
    intake->held = used < size;
    if (!intake->held) {
        intake->resumed = false; /* nothing is left to hand out again */
    }
    intake->consumed_end += used;
    return used;
}

bool stream_intake_take(struct stream_intake *intake, struct net_stream *stream, const uint8_t *bytes,
                        size_t size, uint64_t now_ns)
{
    const struct net_stream_handler *handler = stream_handler(stream);
    bool behind = intake->held;
    size_t used = 0;
    if (!intake->stopped && !behind) {
        used = call(intake, stream, size > 0 ? bytes : nothing, size, now_ns);
    }
    net_stream_carried(stream, size, now_ns);
    if (intake->stopped) {
        intake->consumed_end += size - used; /* its receiver wants no more */
        return true;
    }
    if (used < size && !stream_intake_keep(intake, bytes + used, size - used)) {
        return false;
    }
    if (behind && intake->announced && size > 0 && handler->kept != NULL) {
        handler->kept(handler->context, stream, intake->buffer + intake->buffer_first, intake->buffer_bytes,
                      now_ns);
    }
    return true;
}

/* The bytes are handed out directly from the buffer: nothing arrives during the call. */
void stream_intake_again(struct stream_intake *intake, struct net_stream *stream, uint64_t now_ns)
{
    const uint8_t *bytes = intake->buffer == NULL ? nothing : intake->buffer + intake->buffer_first;
    size_t used = call(intake, stream, bytes, intake->buffer_bytes, now_ns);
    net_stream_carried(stream, used, now_ns);
    intake->buffer_first += used;
    intake->buffer_bytes -= used;
    if (intake->buffer_bytes == 0) {
        stream_intake_drop(intake);
    }
}

uint64_t stream_intake_grant(const struct stream_intake *intake, const struct net_stream *stream)
{
    uint64_t limit = net_stream_limit(stream, intake->consumed_end, intake->expected_end);
    uint64_t step = (limit - intake->consumed_end) / 4;
    bool is_over = intake->stopped || intake->reset || intake->ended;
    return is_over || limit < intake->granted_end + step || limit <= intake->granted_end ? 0 : limit;
}

bool stream_intake_expect(struct stream_intake *intake, uint64_t size)
{
    uint64_t end = intake->consumed_end + size;
    if (intake->closing || end <= intake->expected_end) {
        return false;
    }
    intake->expected_end = end;
    return true;
}

bool stream_intake_resume(struct stream_intake *intake)
{
    if ((!intake->held && !intake->calling) || intake->stopped || intake->closing) {
        return false;
    }
    intake->resumed = true;
    return true;
}

void stream_intake_close(struct stream_intake *intake, struct net_stream *stream, const struct error *cause,
                         bool quiet, uint64_t now_ns)
{
    const struct net_stream_handler *handler = stream_handler(stream);
    bool tell = !quiet && intake->announced && handler->closed != NULL;
    intake->closing = true;
    intake->announced = false;
    if (tell) {
        handler->closed(handler->context, stream, cause, now_ns);
    }
    intake->consumed_end += intake->buffer_bytes; /* the stream's place stays the same */
    stream_intake_drop(intake);
}
