#ifndef DAEMON_BASE_PRINTABLE_H
#define DAEMON_BASE_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Texts and names that come from outside. Any thread. */

/* Copies a text, of which null is an empty one: cut to size - 1 bytes, with '?' for control characters. */
static inline void printable_copy(const char *text, char *out, size_t size)
{
    size_t length = 0;
    for (; text != NULL && text[length] != '\0' && length + 1 < size; length++) {
        unsigned char byte = (unsigned char)text[length];
        out[length] = byte < ' ' || byte == 0x7f ? '?' : (char)byte;
    }
    out[length] = '\0';
}

/* Whether it has 1 to max_bytes printable ASCII characters without space, as names that users choose. */
static inline bool printable_is_name(const char *name, size_t max_bytes)
{
    size_t length = 0;
    while (name[length] > ' ' && name[length] <= '~' && length <= max_bytes) {
        length++;
    }
    return name[length] == '\0' && length > 0 && length <= max_bytes;
}

#endif
