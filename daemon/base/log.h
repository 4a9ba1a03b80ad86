#ifndef DAEMON_BASE_LOG_H
#define DAEMON_BASE_LOG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * One line per event, on standard error. Under systemd (JOURNAL_STREAM names standard error) each line starts
 * with sd-daemon's "<N>" priority and has no time. Otherwise it starts with a UTC time and the level's name.
 * Thread-safe: one write per line, of at most LOG_LINE_MAX_BYTES; longer lines are cut and end with "...".
 * Control characters and invalid UTF-8 are escaped as \xNN (line feed, tab: \n, \t), so that nobody can forge
 * a line. errno is kept. While the thread of log_writer.h runs, log_line never blocks.
 */
#define LOG_LINE_MAX_BYTES 4096 /* PIPE_BUF: a write of this size to a pipe is not mixed with another's */

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Drops lines above this level. LOG_LEVEL_INFO at first. */
void log_set_level(enum log_level level);
/* Accepts "error", "warning", "info", "debug". For any other text or null, returns false and leaves *out
 * untouched. */
bool log_level_from_text(const char *text, enum log_level *out);

/*
 * Sends lines to `sink` instead of standard error, for tests; null restores that. `line` is the escaped
 * message alone, without prefix and line feed, valid during the call. Not thread-safe: call it before
 * starting threads.
 */
typedef void log_sink(void *context, enum log_level level, const char *line);
void log_set_sink(log_sink *sink, void *context);

void log_line(enum log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

/*
 * Formats the line as it is written, with its prefix and its line feed, not terminated. Returns its length.
 */
size_t log_format_line(char line[LOG_LINE_MAX_BYTES], enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define log_error(...) log_line(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warning(...) log_line(LOG_LEVEL_WARNING, __VA_ARGS__)
#define log_info(...) log_line(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...) log_line(LOG_LEVEL_DEBUG, __VA_ARGS__)

/*
 * A limiter for lines that strangers can provoke: at most `burst` lines, then one line more per
 * `interval_ns`. The owner sets these two and leaves the rest zero. log_limit_pass returns whether to log
 * now. *suppressed (may be null) gets how many lines were dropped since the last one that passed. One thread
 * at a time.
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
