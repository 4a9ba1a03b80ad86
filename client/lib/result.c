#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "client/lib/internal.h"
#include "proto/status.h"
#include "proto/types.h"
#include "proto/version.h"

#define X(name, number, ...) static_assert((int)COMM_##name == (int)number, "commclient.h: COMM_" #name);
STATUS_LIST(X)
DTYPE_LIST(X)
REDUCE_LIST(X)
#undef X

static _Thread_local char last_error[ERROR_TEXT_BYTES];

comm_result_t error_report(comm_result_t result, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return result;
}

comm_result_t error_repeat(comm_result_t result, const char *text)
{
    snprintf(last_error, sizeof last_error, "%s", text[0] != '\0' ? text : comm_result_text(result));
    return result;
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

bool options_copy(void *target, size_t known_size, const void *source)
{
    size_t size;
    if (source == NULL) {
        return true;
    }
    memcpy(&size, source, sizeof size);
    if (size < sizeof size) {
        return false;
    }
    /* A caller built against a newer header: what we do not know must be unused. */
    for (size_t i = known_size; i < size; i++) {
        if (((const unsigned char *)source)[i] != 0) {
            return false;
        }
    }
    memcpy(target, source, size < known_size ? size : known_size);
    memcpy(target, &known_size, sizeof known_size);
    return true;
}
