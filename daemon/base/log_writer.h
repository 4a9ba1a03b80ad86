#ifndef DAEMON_BASE_LOG_WRITER_H
#define DAEMON_BASE_LOG_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * A thread that writes log lines to standard error, so that no other thread waits for its reader. A write can
 * block for ever on a pipe, a terminal, a socket to the journal, or a file on a disk that hangs. The
 * descriptor's flags are left alone: other processes share them.
 *
 * Lines wait in a queue of LOG_QUEUE_BYTES. A line is lost and counted if the queue has no room or standard
 * error does not take it. The next line that is written follows a line that says how many were lost.
 *
 * log.c fills the queue. Without the thread, the thread that logs a line writes it itself.
 */
#define LOG_QUEUE_BYTES 262144u

/*
 * Starts the thread; it takes no signals. Call it once per process, before other threads exist. SYSTEM if no
 * thread can be started.
 */
enum status log_writer_start(struct error *error) COMM_MUST_USE;
/*
 * Waits until the queue is written, but at most timeout_ms, so that a reader that reads nothing does not hold
 * up the end of the process. If the queue was written in time, later lines are written by the threads that
 * log them; otherwise they are lost.
 */
void log_writer_stop(uint32_t timeout_ms);

/* Any thread; never blocks. Returns false if there is no thread; the caller then writes the line itself. */
bool log_writer_put(const char *line, size_t size_bytes);

/* How many lines were lost since the start. Any thread. */
uint64_t log_lines_lost(void);

#endif
