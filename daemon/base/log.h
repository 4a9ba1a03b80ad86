#ifndef DAEMON_BASE_LOG_H
#define DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One line an event, on standard error. Under systemd (JOURNAL_STREAM names standard error) each line starts
 * with sd-daemon's "<N>" priority and carries no time; otherwise with a UTC time and the level's name.
 * Thread-safe: one write a line, of at most LOG_LINE_MAX_BYTES; what is longer is cut and ends with "...".
 * Control characters and invalid UTF-8 are escaped as \xNN (line feed, tab: \n, \t), so that nobody forges a
 * line. errno is kept. With log_writer.h's thread, log_line never blocks.
 */
#define LOG_LINE_MAX_BYTES 4096 /* PIPE_BUF: a write of this size to a pipe is not mixed with another's */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Lines beyond the level are dropped. LOG_LEVEL_INFO at first. */
void log_set_level(enum log_level level);
/* "error", "warning", "info", "debug". False, leaving *out untouched, for any other text or null. */
bool log_level_from_text(const char *text, enum log_level *out);

/*
 * Where lines go instead of standard error, for tests; null restores. `line` is the escaped message alone,
 * without prefix and line feed, valid during the call. Not thread-safe: set before threads.
 */
typedef void log_sink(void *context, enum log_level level, const char *line);
void log_set_sink(log_sink *sink, void *context);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The line as it is written, with its prefix and its line feed, not terminated; returns its length. */
size_t log_format_line(char line[LOG_LINE_MAX_BYTES], enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * A limiter for lines that strangers can provoke: at most `burst` lines, refilled one each `interval_ns`.
 * The owner sets these two and leaves the rest zero. log_limit_pass returns whether to log now; *suppressed
 * (may be null) gets how many were dropped since the last passed. One thread at a time.
 */
struct log_limit {
    uint32_t burst;
    uint64_t interval_ns;
    uint32_t used;
    uint64_t refilled_ns;
    uint64_t dropped;
};
bool log_limit_pass(struct log_limit *limit, uint64_t now_ns, uint64_t *suppressed);

#endif
