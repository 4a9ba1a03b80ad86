#include "daemon/base/log.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/base/log_writer.h"

#define LOG_CUT_MARK "..."

struct log_level_entry {
    const char *text;
    const char *priority; /* sd-daemon(3) */
};

static const struct log_level_entry log_levels[] = {
    [LOG_LEVEL_ERROR] = {"error", "<3>"},
    [LOG_LEVEL_WARNING] = {"warning", "<4>"},
    [LOG_LEVEL_INFO] = {"info", "<6>"},
    [LOG_LEVEL_DEBUG] = {"debug", "<7>"},
};
#define LOG_LEVEL_COUNT (sizeof(log_levels) / sizeof(log_levels[0]))

static atomic_int log_level_now = LOG_LEVEL_INFO;
static log_sink *log_sink_function;
static void *log_sink_context;
static pthread_once_t log_journal_once = PTHREAD_ONCE_INIT;
static bool log_journal;

void log_set_level(enum log_level level)
{
    atomic_store_explicit(&log_level_now, (int)level, memory_order_relaxed);
}

bool log_level_from_text(const char *text, enum log_level *out)
{
    for (size_t i = 0; text != NULL && i < LOG_LEVEL_COUNT; i++) {
        if (strcmp(text, log_levels[i].text) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_set_sink(log_sink *sink, void *context)
{
    log_sink_function = sink;
    log_sink_context = context;
}

/* systemd.exec(5): JOURNAL_STREAM is the "device:inode" of the stream to the journal. A redirected stderr has
 * another one. */
static void log_find_journal(void)
{
    const char *stream = getenv("JOURNAL_STREAM");
    struct stat status;
    if (stream == NULL || fstat(STDERR_FILENO, &status) != 0) {
        return;
    }
    char expected[64];
    snprintf(expected, sizeof(expected), "%ju:%ju", (uintmax_t)status.st_dev, (uintmax_t)status.st_ino);
    log_journal = strcmp(stream, expected) == 0;
}

/*
 * Returns the length of the well-formed UTF-8 sequence of two or more bytes at `text`, which is terminated; 0
 * when there is none. RFC 3629: no overlong form, surrogate, or code beyond U+10FFFF.
 */
static size_t log_utf8_length(const uint8_t *text)
{
    uint8_t lead = text[0];
    uint8_t second_min = 0x80;
    uint8_t second_max = 0xbf;
    size_t length;
    if (lead >= 0xc2 && lead <= 0xdf) {
        length = 2;
    } else if (lead >= 0xe0 && lead <= 0xef) {
        length = 3;
        second_min = lead == 0xe0 ? 0xa0 : 0x80;
        second_max = lead == 0xed ? 0x9f : 0xbf;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
        length = 4;
        second_min = lead == 0xf0 ? 0x90 : 0x80;
        second_max = lead == 0xf4 ? 0x8f : 0xbf;
    } else {
        return 0;
    }
    if (text[1] < second_min || text[1] > second_max) {
        return 0;
    }
    for (size_t i = 2; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) {
            return 0;
        }
    }
    return length;
}

/*
 * Writes the next character of *text to piece, escaped if needed, and moves *text past it. Returns the bytes
 * written, at most 4. C1 controls (U+0080 to U+009F) control terminals as C0 ones do, so they are escaped,
 * too.
 */
static size_t log_escape_next(const uint8_t **text, char piece[5])
{
    const uint8_t *at = *text;
    size_t length = at[0] >= 0x80 ? log_utf8_length(at) : 0;
    if (length > 0 && !(at[0] == 0xc2 && at[1] < 0xa0)) {
        memcpy(piece, at, length);
        *text += length;
        return length;
    }
    *text += 1;
    if (at[0] >= 0x20 && at[0] < 0x7f) {
        piece[0] = (char)at[0];
        return 1;
    }
    if (at[0] == '\n' || at[0] == '\t') {
        piece[0] = '\\';
        piece[1] = at[0] == '\n' ? 'n' : 't';
        return 2;
    }
    return (size_t)snprintf(piece, 5, "\\x%02x", (unsigned)at[0]);
}

/* Appends text to out, escaped and terminated. Uses at most capacity bytes, terminator included. */
static size_t log_append_escaped(char *out, size_t length, size_t capacity, const char *text, bool cut)
{
    const uint8_t *at = (const uint8_t *)text;
    size_t limit = capacity - sizeof(LOG_CUT_MARK);
    while (*at != '\0') {
        char piece[5];
        size_t piece_bytes = log_escape_next(&at, piece);
        if (piece_bytes > limit - length) {
            cut = true;
            break;
        }
        memcpy(out + length, piece, piece_bytes);
        length += piece_bytes;
    }
    if (cut) {
        memcpy(out + length, LOG_CUT_MARK, strlen(LOG_CUT_MARK));
        length += strlen(LOG_CUT_MARK);
    }
    out[length] = '\0';
    return length;
}

static size_t log_put_prefix(char *out, size_t capacity, enum log_level level)
{
    pthread_once(&log_journal_once, log_find_journal);
    int length;
    if (log_journal) {
        length = snprintf(out, capacity, "%s", log_levels[level].priority);
    } else {
        struct timespec now;
        struct tm utc;
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &utc);
        length = snprintf(out, capacity, "%04d-%02d-%02dT%02d:%02d:%02d.%03ldZ %s: ", utc.tm_year + 1900,
                          utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                          now.tv_nsec / 1000000, log_levels[level].text);
    }
    return (size_t)length;
}

/* Used if there is no writer thread. A line that standard error does not take is lost. */
static void log_write(const char *line, size_t size)
{
    ssize_t written;
    do {
        written = write(STDERR_FILENO, line, size);
    } while (written < 0 && errno == EINTR);
}

/* Writes the message after the prefix, escaped and terminated, in `line` of LOG_LINE_MAX_BYTES. Returns its
 * length. */
__attribute__((format(printf, 3, 0))) static size_t log_format(char *line, size_t prefix_bytes,
                                                               const char *format, va_list arguments)
{
    char message[LOG_LINE_MAX_BYTES];
    int wanted = vsnprintf(message, sizeof(message), format, arguments);
    if (wanted < 0) {
        snprintf(message, sizeof(message), "a message that cannot be formatted: %s", format);
        wanted = 0;
    }
    return log_append_escaped(line, prefix_bytes, LOG_LINE_MAX_BYTES, message,
                              (size_t)wanted >= sizeof(message));
}

size_t log_format_line(char line[LOG_LINE_MAX_BYTES], enum log_level level, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    size_t length = log_format(line, log_put_prefix(line, LOG_LINE_MAX_BYTES, level), format, arguments);
    va_end(arguments);
    line[length] = '\n'; /* in the terminator's place */
    return length + 1;
}

void log_line(enum log_level level, const char *format, ...)
{
    if ((int)level > atomic_load_explicit(&log_level_now, memory_order_relaxed)) {
        return;
    }
    int saved_errno = errno;
    char line[LOG_LINE_MAX_BYTES];
    va_list arguments;
    va_start(arguments, format);
    size_t prefix_bytes = log_sink_function != NULL ? 0 : log_put_prefix(line, sizeof(line), level);
    size_t length = log_format(line, prefix_bytes, format, arguments);
    va_end(arguments);
    if (log_sink_function != NULL) {
        log_sink_function(log_sink_context, level, line);
    } else {
        line[length] = '\n'; /* in the terminator's place */
        if (!log_writer_put(line, length + 1)) {
            log_write(line, length + 1);
        }
    }
    errno = saved_errno;
}

bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t *suppressed)
{
    if (now_ns > limit->refilled_ns && limit->used > 0) {
        uint64_t elapsed_ns = now_ns - limit->refilled_ns;
        uint64_t refills = limit->interval_ns > 0 ? elapsed_ns / limit->interval_ns : limit->used;
        if (refills >= limit->used) {
            limit->used = 0;
        } else {
            limit->used -= (uint32_t)refills;
            limit->refilled_ns += refills * limit->interval_ns;
        }
    }
    if (limit->used == 0) {
        limit->refilled_ns = now_ns; /* a full bucket: the refill interval starts at its first use */
    }
    bool pass = limit->used < limit->burst;
    if (suppressed != NULL) {
        *suppressed = limit->dropped;
    }
    if (pass) {
        limit->used++;
        limit->dropped = 0;
    } else {
        limit->dropped++;
    }
    return pass;
}
