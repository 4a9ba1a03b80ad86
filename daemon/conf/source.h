#ifndef DAEMON_CONF_SOURCE_H
#define DAEMON_CONF_SOURCE_H

#include <stddef.h>

#include "daemon/base/error.h"

/*
 * A configuration file's text, before libconfig sees it. What libconfig (to 1.5 at least) gets wrong is found
 * here: it lets whole numbers wrap round at 32 bits, and ends the process at what cannot be read.
 */

/*
 * Reads all of a file, terminated; the caller frees it. SYSTEM when it cannot be read; CONFIG when it is
 * larger than CONF_FILE_MAX_BYTES or holds a zero byte; NO_MEMORY.
 */
enum status conf_source_read(const char *path, char **out, struct error *error) COMM_MUST_USE;

/* A place in a text, for messages. key: the last name before it, not terminated; empty when there is none. */
struct conf_source_place {
    unsigned line;
    const char *key;
    size_t key_bytes;
};

/*
 * Finds the first whole number, outside texts and comments, that 32 bits (with the suffix L: 64 bits) do not
 * hold, or the first "@", which starts an @include. Null when there is none; else where it starts, and
 * *size_bytes its length.
 */
const char *conf_source_find_fault(const char *text, struct conf_source_place *place, size_t *size_bytes);

#endif
