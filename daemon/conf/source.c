#include "daemon/conf/source.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/conf/conf.h"

#define READ_BYTES 65536u

/* Reads until the end of the file, which may be a pipe. */
static enum status read_all(int fd, const char *path, char **text, struct error *error)
{
    size_t size = 0;
    size_t capacity = 0;
    for (;;) {
        if (capacity - size < 2) {
            capacity = capacity == 0 ? READ_BYTES : 2 * capacity;
            char *larger = realloc(*text, capacity);
            if (larger == NULL) {
                return error_set(error, STATUS_NO_MEMORY, "%s: no memory for %zu bytes", path, capacity);
            }
            *text = larger;
        }
        ssize_t got = read(fd, *text + size, capacity - size - 1);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return error_set_errno(error, errno, "%s", path);
        }
        size += (size_t)got;
        if (size > CONF_FILE_MAX_BYTES) {
            return error_set(error, STATUS_CONFIG, "%s: expected at most %u bytes", path,
                             CONF_FILE_MAX_BYTES);
        }
        (*text)[size] = '\0';
        if (got == 0) {
            break;
        }
    }
    unsigned line = 1;
    for (const char *at = *text; at < *text + size; at++) {
        if (*at == '\0') {
            return error_set(error, STATUS_CONFIG, "%s:%u: a zero byte; expected text", path, line);
        }
        line += *at == '\n';
    }
    return STATUS_OK;
}

enum status conf_source_read(const char *path, char **out, struct error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return error_set_errno(error, errno, "%s", path);
    }
    char *text = NULL;
    enum status status = read_all(fd, path, &text, error);
    close(fd);
    if (status != STATUS_OK) {
        free(text);
        return status;
    }
    *out = text;
    return STATUS_OK;
}

/* Returns the end of the quoted text or comment that starts at `at`; returns `at` if neither starts there. */
static const char *skip_quoted(const char *at)
{
    if (*at == '"') {
        for (at++; *at != '\0' && *at != '"'; at++) {
            at += at[0] == '\\' && at[1] != '\0';
        }
        return *at == '"' ? at + 1 : at;
    }
    if (*at == '#' || (at[0] == '/' && at[1] == '/')) {
        return at + strcspn(at, "\n");
    }
    if (at[0] == '/' && at[1] == '*') {
        const char *end = strstr(at + 2, "*/");
        return end != NULL ? end + 2 : at + strlen(at);
    }
    return at;
}

static bool is_name_byte(char byte)
{
    return isalnum((unsigned char)byte) || byte == '_' || byte == '-' || byte == '*';
}

/* Returns a number's end; *too_large: whether it is a whole number that is too large. The check of types
 * handles fractions. */
static const char *skip_number(const char *at, bool *too_large)
{
    char *end;
    errno = 0;
    bool hexadecimal = at[0] == '0' && (at[1] == 'x' || at[1] == 'X');
    long long number = strtoll(at, &end, hexadecimal ? 16 : 10);
    bool is_long = *end == 'L';
    bool fraction = !hexadecimal && (*end == '.' || *end == 'e' || *end == 'E');
    /* libconfig reads 0xffffffff as -1: hexadecimal numbers have a sign bit, too. */
    *too_large = !fraction && (errno == ERANGE || (!is_long && (number > INT32_MAX || number < INT32_MIN)));
    return fraction ? end + strspn(end, ".0123456789eE+-") : end + strspn(end, "L");
}

const char *conf_source_find_fault(const char *text, struct conf_source_place *place, size_t *size_bytes)
{
    *place = (struct conf_source_place){.line = 1, .key = text, .key_bytes = 0};
    for (const char *at = text; *at != '\0';) {
        const char *end = skip_quoted(at);
        bool signed_number = (*at == '-' || *at == '+') && isdigit((unsigned char)at[1]);
        bool fault = false;
        if (end != at) {
            /* Nothing inside a text or comment is checked. */
        } else if (isdigit((unsigned char)*at) || signed_number) {
            end = skip_number(at, &fault);
        } else if (isalpha((unsigned char)*at)) {
            while (is_name_byte(*end)) {
                end++;
            }
            place->key = at;
            place->key_bytes = (size_t)(end - at);
        } else {
            fault = *at == '@';
            end = fault ? at + strcspn(at, " \t\r\n\"") : at + 1;
        }
        if (fault) {
            *size_bytes = (size_t)(end - at);
            return at;
        }
        for (; at < end; at++) {
            place->line += *at == '\n';
        }
    }
    return NULL;
}
