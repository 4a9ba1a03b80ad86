#include "daemon/base/error.h"

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

/* Ends text of `length` bytes before a UTF-8 sequence that the cut left incomplete. */
static void error_trim_utf8(char *text, size_t length)
{
    size_t start = length;
    while (start > 0 && length - start < 3 && ((uint8_t)text[start - 1] & 0xc0) == 0x80) {
        start--;
    }
    if (start == 0) {
        return;
    }
    uint8_t lead = (uint8_t)text[start - 1];
    size_t sequence_bytes = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : lead >= 0xc0 ? 2 : 1;
    if (length - (start - 1) < sequence_bytes) {
        text[start - 1] = '\0';
    }
}

/* Appends formatted text to text, which has ERROR_TEXT_MAX_BYTES and `length` in use; returns the new length.
 */
__attribute__((format(printf, 3, 0))) static size_t error_append(char *text, size_t length,
                                                                 const char *format, va_list arguments)
{
    size_t room = ERROR_TEXT_MAX_BYTES - length;
    int wanted = vsnprintf(text + length, room, format, arguments);
    if (wanted < 0) {
        text[length] = '\0';
        return length;
    }
    if ((size_t)wanted < room) {
        return length + (size_t)wanted;
    }
    error_trim_utf8(text, ERROR_TEXT_MAX_BYTES - 1);
    return strlen(text);
}

__attribute__((format(printf, 2, 3))) static void error_add(struct error *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_append(error->text, strlen(error->text), format, arguments);
    va_end(arguments);
}

enum status error_set_list(struct error *error, enum status status, const char *format, va_list arguments)
{
    if (error != NULL) {
        char text[ERROR_TEXT_MAX_BYTES]; /* a buffer of its own: the arguments may point into the error */
        size_t length = error_append(text, 0, format, arguments);
        error->status = status;
        memcpy(error->text, text, length + 1);
    }
    return status;
}

enum status error_set(struct error *error, enum status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_list(error, status, format, arguments);
    va_end(arguments);
    return status;
}

enum status error_set_errno(struct error *error, int errnum, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_list(error, STATUS_SYSTEM, format, arguments);
    va_end(arguments);
    const char *cause = strerrordesc_np(errnum); /* thread-safe, and never translated */
    if (error != NULL && cause != NULL) {
        error_add(error, ": %s", cause);
    } else if (error != NULL) {
        error_add(error, ": error number %d", errnum);
    }
    struct rlimit limit;
    if (error != NULL && errnum == EMFILE && getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        error_add(error, " (ulimit -n is %llu)", (unsigned long long)limit.rlim_cur);
    }
    return STATUS_SYSTEM;
}

enum status error_prefix(struct error *error, const char *format, ...)
{
    if (error == NULL) {
        return STATUS_INTERNAL;
    }
    struct error old = *error;
    va_list arguments;
    va_start(arguments, format);
    (void)error_set_list(error, old.status, format, arguments);
    va_end(arguments);
    error_add(error, ": %s", old.text);
    return old.status;
}
