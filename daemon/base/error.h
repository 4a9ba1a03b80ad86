#ifndef DAEMON_BASE_ERROR_H
#define DAEMON_BASE_ERROR_H

#include <stdarg.h>

#include "proto/status.h"

#define ERROR_TEXT_MAX_BYTES 512

/*
 * The daemon's one error type: a code and a message that says who, what and where. The caller owns it
 * (usually on its stack); functions that fail fill it, functions that succeed leave it alone. A null pointer
 * is accepted everywhere and means that the caller wants the code alone. Arguments of the functions below may
 * point into the error that they fill.
 */
struct error {
    enum status status;
    char text[ERROR_TEXT_MAX_BYTES];
};

/*
 * Fills *error (cut at ERROR_TEXT_MAX_BYTES - 1, never split in a UTF-8 sequence) and returns status, so that
 * a failing function can end with `return error_set(error, STATUS_..., "...")`.
 */
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* As error_set, with its arguments in a list. */
enum status error_set_list(struct error *error, enum status status, const char *format, va_list arguments)
    __attribute__((format(printf, 3, 0)));

/* As error_set with STATUS_SYSTEM, followed by ": " and the text of errnum. */
enum status error_set_errno(struct error *error, int errnum, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/*
 * Puts "prefix: " before the text of *error, keeping its status, and returns that status. With a null error
 * the status is not known and STATUS_INTERNAL is returned: a caller that may get none returns its own.
 */
enum status error_prefix(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
