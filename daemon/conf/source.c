#include "daemon/conf/source.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
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

#define PIPEFS_TYPE 0x50495045 /* statfs(2) */

/*
 * A named pipe would keep commd, which reads its files again while it runs, until somebody writes to it. A
 * shell's pipe, such as that of "-c <(program)", has a writer.
 */
static enum status check_kind(int fd, const char *path, struct error *error)
{
    struct stat file;
    struct statfs system;
    if (fstat(fd, &file) != 0 || fstatfs(fd, &system) != 0) {
        return error_set_errno(error, errno, "%s", path);
    }
    bool is_pipe = S_ISFIFO(file.st_mode) && system.f_type == PIPEFS_TYPE;
    if (is_pipe && fcntl(fd, F_SETFL, O_RDONLY) != 0) {
        return error_set_errno(error, errno, "%s", path);
    }
    return !S_ISFIFO(file.st_mode) || is_pipe
               ? STATUS_OK
               : error_set(error, STATUS_CONFIG, "%s: a named pipe; expected a regular file", path);
}

enum status conf_source_read(const char *path, char **out, struct error *error)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return error_set_errno(error, errno, "%s", path);
    }
    char *text = NULL;
    enum status status = check_kind(fd, path, error);
    if (status == STATUS_OK) {
        status = read_all(fd, path, &text, error);
    }
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

#define NAMES_MAX 256u /* in the groups that are open at one place */

/* The names of the groups that are open, outermost first. */
struct open_names {
    struct {
        const char *text;
        size_t bytes;
        unsigned depth;
    } names[NAMES_MAX];
    size_t count;
    unsigned depth;
};

static bool has_name(const struct open_names *open, const char *name, size_t bytes)
{
    for (size_t i = open->count; i > 0 && open->names[i - 1].depth == open->depth; i--) {
        if (open->names[i - 1].bytes == bytes && memcmp(open->names[i - 1].text, name, bytes) == 0) {
            return true;
        }
    }
    return false;
}

static void open_or_close_group(struct open_names *open, char byte)
{
    open->depth += byte == '{';
    if (byte == '}' && open->depth > 0) {
        while (open->count > 0 && open->names[open->count - 1].depth == open->depth) {
            open->count--;
        }
        open->depth--;
    }
}

const char *conf_source_find_duplicate(const char *text, size_t *size_bytes)
{
    struct open_names open = {.count = 0};
    for (const char *at = text, *end; *at != '\0'; at = end) {
        end = skip_quoted(at);
        if (end != at) {
            continue;
        }
        while (is_name_byte(*end)) {
            end++;
        }
        size_t bytes = (size_t)(end - at);
        const char *after = end + strspn(end, " \t\r\n");
        bool is_name = isalpha((unsigned char)*at) && (*after == '=' || *after == ':');
        if (is_name && has_name(&open, at, bytes)) {
            *size_bytes = bytes;
            return at;
        }
        if (is_name && open.count < NAMES_MAX) {
            open.names[open.count].text = at;
            open.names[open.count].bytes = bytes;
            open.names[open.count++].depth = open.depth;
        }
        open_or_close_group(&open, *at);
        end += end == at;
    }
    return NULL;
}
