#ifndef DAEMON_MESH_EXPIRY_H
#define DAEMON_MESH_EXPIRY_H

#include <stddef.h>
#include <stdint.h>

/*
 * Logs warnings of certificates that expire soon: one line a day for this node's, and one for all others.
 * Times are seconds since 1970, UTC. The wall clock's time is an argument.
 */
#define EXPIRY_WARN_DAYS 30
#define EXPIRY_NAMES_MAX 8 /* other nodes named in a line: those whose certificates expire first */

/* All zero at first. */
struct expiry {
    uint64_t own_warned_s;
    uint64_t others_warned_s;
};

struct expiry_certificate {
    const char *name; /* the node's */
    uint64_t ends_s;  /* 0: not known */
};

/* Call it about hourly. Sorts `others` by the time of expiry. */
void expiry_check(struct expiry *expiry, const struct expiry_certificate *own,
                  struct expiry_certificate *others, size_t count, uint64_t now_s);

#endif
