#ifndef DAEMON_MESH_EXPIRY_H
#define DAEMON_MESH_EXPIRY_H

#include <stddef.h>
#include <stdint.h>

/*
 * Warnings, in the log, of certificates that end soon: one line a day for this node's, one for all others'.
 * Times are seconds since 1970, UTC, by the wall clock, which is an argument.
 */
#define EXPIRY_WARN_DAYS 30
#define EXPIRY_NAMES_MAX 8 /* of the other nodes, those whose certificates end first */

/* All zero at first. */
struct expiry {
    uint64_t own_warned_s;
    uint64_t others_warned_s;
};

struct expiry_certificate {
    const char *name; /* the node's */
    uint64_t ends_s;  /* 0: not known */
};

/* Call it about hourly. `others` is put into the order in which they end. */
void expiry_check(struct expiry *expiry, const struct expiry_certificate *own,
                  struct expiry_certificate *others, size_t count, uint64_t now_s);

#endif
