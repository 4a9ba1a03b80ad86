#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/run.h"

/* Waits if the reader of our output does not read: then the ranks wait, too, in their writes. */
static int write_all(int fd, const char *bytes, size_t size)
{
    while (size > 0) {
        ssize_t written = write(fd, bytes, size);
        if (written < 0 && errno == EAGAIN) { /* whoever shares the terminal may have set O_NONBLOCK */
            struct pollfd room = {.fd = fd, .events = POLLOUT};
            (void)poll(&room, 1, -1);
        } else if (written < 0 && errno != EINTR) {
            return errno;
        } else if (written > 0) {
            bytes += written;
            size -= (size_t)written;
        }
    }
    return 0;
}

/* Label and text leave in one write, as far as the pipe allows, so that lines of several streams do not mix.
 */
static int print_part(struct run_stream *stream, const char *bytes, size_t size, bool ends)
{
    static char out[RUN_LINE_MAX_BYTES + sizeof stream->label + 1];
    size_t used = 0;
    if (!stream->midway) {
        used = strlen(stream->label);
        memcpy(out, stream->label, used);
    }
    memcpy(out + used, bytes, size);
    used += size;
    if (ends) {
        out[used++] = '\n';
    }
    stream->midway = !ends;
    return write_all(stream->target, out, used);
}

/* Prints the complete lines, and a line that fills the buffer. */
static int print_lines(struct run_stream *stream)
{
    size_t begin = 0;
    int failed = 0;
    const char *newline;
    while (failed == 0 &&
           (newline = memchr(stream->line + begin, '\n', stream->used_bytes - begin)) != NULL) {
        size_t length = (size_t)(newline - stream->line) - begin;
        failed = print_part(stream, stream->line + begin, length, true);
        begin += length + 1;
    }
    memmove(stream->line, stream->line + begin, stream->used_bytes - begin);
    stream->used_bytes -= begin;
    if (failed == 0 && stream->used_bytes == RUN_LINE_MAX_BYTES) {
        failed = print_part(stream, stream->line, stream->used_bytes, false);
        stream->used_bytes = 0;
    }
    return failed;
}

static void stream_close(struct run_stream *stream)
{
    close(stream->fd);
    free(stream->line);
    stream->fd = -1;
    stream->line = NULL;
}

int run_stream_read(struct run_stream *stream)
{
    if (stream->line == NULL && (stream->line = malloc(RUN_LINE_MAX_BYTES)) == NULL) {
        return ENOMEM;
    }
    ssize_t size =
        read(stream->fd, stream->line + stream->used_bytes, RUN_LINE_MAX_BYTES - stream->used_bytes);
    if (size > 0) {
        stream->used_bytes += (size_t)size;
        return print_lines(stream);
    }
    return size < 0 && (errno == EAGAIN || errno == EINTR) ? 0 : run_stream_end(stream);
}

int run_stream_end(struct run_stream *stream)
{
    int failed = 0;
    if (stream->fd < 0) {
        return 0;
    }
    if (stream->used_bytes > 0 || stream->midway) {
        failed = print_part(stream, stream->line, stream->used_bytes, true);
    }
    stream_close(stream);
    return failed;
}
