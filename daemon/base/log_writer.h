#ifndef DAEMON_BASE_LOG_WRITER_H
#define DAEMON_BASE_LOG_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"

/*
 * A thread that writes log lines to standard error, so that nobody else waits for its reader: a pipe, a
 * terminal, a socket to the journal, and a file on a disk that hangs can each block a write for ever. The
 * descriptor's flags are left alone: other processes share them.
 *
 * Lines wait in a queue of LOG_QUEUE_BYTES. A line that finds no room, or that standard error does not take,
 * is lost and counted. The next line that is written follows a line that says how many were lost.
 *
 * log.c puts lines there. Without the thread, log lines are written by whoever logs.
 */
#define LOG_QUEUE_BYTES 262144u

/*
 * Starts the thread; it takes no signals. Once a process, before it has other threads. SYSTEM without a
 * thread.
 */
enum status log_writer_start(struct error *error) COMM_MUST_USE;
/*
 * Waits until the queue is written, but at most timeout_ms: a reader that reads nothing does not hold up the
 * end of the process. Lines after it are lost where the time did not suffice; otherwise whoever logs writes
 * them.
 */
void log_writer_stop(uint32_t timeout_ms);

/* Any thread; never blocks. False: there is no thread, and the caller writes the line itself. */
bool log_writer_put(const char *line, size_t size_bytes);

/* How many lines were lost since the start. Any thread. */
uint64_t log_lines_lost(void);

#endif
