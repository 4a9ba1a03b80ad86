#ifndef DAEMON_CONF_SOURCE_H
#define DAEMON_CONF_SOURCE_H

#include <stddef.h>

#include "daemon/base/error.h"

/*
 * Checks a configuration file's text before libconfig reads it, because of two faults of libconfig (to 1.5 at
 * least): whole numbers wrap round at 32 bits, and it ends the process if a file cannot be read.
 */

/*
 * Reads a whole file and terminates it; the caller frees it. SYSTEM when it cannot be read; CONFIG when it is
 * larger than CONF_FILE_MAX_BYTES, holds a zero byte, or is a named pipe; NO_MEMORY.
 */
enum status conf_source_read(const char *path, char **out, struct error *error) COMM_MUST_USE;

/* A place in a text, for messages. key: the last name before the place, not terminated; empty when there is
 * none. */
struct conf_source_place {
    unsigned line;
    const char *key;
    size_t key_bytes;
};

/*
 * Finds the first fault outside texts and comments: a whole number that does not fit 32 bits (64 bits with
 * the suffix L), or an "@", which starts an @include. Returns null when there is none. Otherwise returns
 * where it starts; *size_bytes is its length.
 */
const char *conf_source_find_fault(const char *text, struct conf_source_place *place, size_t *size_bytes);

/* Finds a name that stands twice in one group, or outside of groups: libconfig refuses it, but does not say
 * which. Returns where it stands the second time; *size_bytes is its length. Returns null when there is none.
 */
const char *conf_source_find_duplicate(const char *text, size_t *size_bytes);

#endif
