#ifndef DAEMON_BASE_ERROR_H
#define DAEMON_BASE_ERROR_H

#include <stdarg.h>

#include "proto/status.h"

#define ERROR_TEXT_MAX_BYTES 512

/*
 * The daemon's one error type: a code and a message that says who, what and where. The caller owns it,
 * usually on its stack. A function that fails fills it; a function that succeeds leaves it alone. A null
 * pointer is accepted everywhere: the caller then gets the code alone. Arguments of the functions below may
 * point into the error that they fill.
 */
struct error {
    enum status status;
    char text[ERROR_TEXT_MAX_BYTES];
};

/*
 * Fills *error and returns status; a failing function can end with `return error_set(error, STATUS_...,
 * "...")`. The text is cut at ERROR_TEXT_MAX_BYTES - 1, never inside a UTF-8 sequence.
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
 * Puts "prefix: " before the text of *error, keeps its status, and returns that status. With a null error the
 * status is not known and STATUS_INTERNAL is returned. A caller that may have a null error returns its own
 * status.
 */
enum status error_prefix(struct error *error, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
