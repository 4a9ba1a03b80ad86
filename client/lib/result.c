#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/internal.h"

/* The public header repeats the lists of proto/: the same names and numbers, and no others. */
#define X(name, number, ...) static_assert((int)COMM_##name == (int)(number), "commclient.h: COMM_" #name);
STATUS_LIST(X)
DTYPE_LIST(X)
REDUCE_LIST(X)
#undef X
static_assert(COMM_BUSY + 1 == STATUS_COUNT, "commclient.h: comm_result_t");
static_assert(COMM_C128 + 1 == DTYPE_COUNT, "commclient.h: comm_dtype_t");
static_assert(COMM_LOR + 1 == REDUCE_COUNT, "commclient.h: comm_op_t");

static _Thread_local char last_error[ERROR_TEXT_BYTES];
static _Thread_local comm_failure_t last_failure; /* its text is set when it is copied out */

comm_result_t error_report(comm_result_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    last_failure = failure_data(result, "");
    DEBUG("%s: %s", comm_result_text(result), last_error);
    return result;
}

comm_result_t error_within(comm_result_t result, const char *format, ...)
{
    char text[sizeof last_error];
    char before[sizeof last_error];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(before, sizeof before, format, arguments);
    va_end(arguments);
    (void)snprintf(text, sizeof text, "%s", last_error);
    comm_failure_t data = last_failure;
    (void)error_report(result, "%s: %s", before, text);
    last_failure = data;
    last_failure.result = result;
    return result;
}

comm_result_t error_repeat(comm_result_t result, const char *text)
{
    comm_failure_t data = failure_data(result, "");
    return error_repeat_failure(&data, text);
}

comm_result_t error_repeat_failure(const comm_failure_t *data, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text[0] != '\0' ? text : comm_result_text(data->result));
    last_failure = *data;
    return data->result;
}

void error_keep(struct kept_error *out)
{
    out->data = last_failure;
    memcpy(out->text, last_error, sizeof out->text);
}

comm_result_t error_report_kept(const struct kept_error *kept)
{
    return error_repeat_failure(&kept->data, kept->text);
}

int comm_last_failure(comm_failure_t *failure)
{
    size_t size = failure != NULL ? failure->struct_size : 0;
    if (size < offsetof(comm_failure_t, operation) || size > OPTIONS_MAX_BYTES) {
        return 0;
    }
    comm_failure_t known = last_failure;
    known.operation = known.operation != NULL ? known.operation : "";
    known.text = last_error;
    memset(failure, 0, size);
    memcpy(failure, &known, size < sizeof known ? size : sizeof known);
    failure->struct_size = size;
    return known.result != COMM_OK;
}

comm_result_t failure_from_wire(uint32_t number)
{
    comm_result_t result = (comm_result_t)status_from_wire(number);
    return result == COMM_OK || result == COMM_IN_PROGRESS ? COMM_PROTOCOL : result;
}

const char *comm_result_text(comm_result_t result)
{
    return status_text((enum status)result);
}

const char *comm_last_error(void)
{
    return last_error;
}

size_t comm_dtype_size(comm_dtype_t dtype)
{
    enum dtype checked;
    return dtype_from_wire((unsigned)dtype, &checked) ? dtype_size_bytes(checked) : 0;
}

const char *comm_version(void)
{
    return COMMD_VERSION_TEXT;
}

comm_result_t options_copy(void *target, size_t known_size, const void *source, const char *call,
                           const char *initializer)
{
    size_t size;
    if (source == NULL) {
        return COMM_OK;
    }
    memcpy(&size, source, sizeof size);
    if (size < sizeof size || size > OPTIONS_MAX_BYTES) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s: the options' struct_size is %zu: initialise them with %s", call, size,
                            initializer);
    }
    for (size_t i = known_size; i < size; i++) {
        if (((const unsigned char *)source)[i] != 0) {
            return error_report(
                COMM_INVALID_ARGUMENT,
                "%s: the options, of %zu bytes, set something that this library (%s) does not know", call,
                size, COMMD_VERSION_TEXT);
        }
    }
    memcpy(target, source, size < known_size ? size : known_size);
    memcpy(target, &known_size, sizeof known_size);
    return COMM_OK;
}
