#ifndef DAEMON_BASE_OWNED_NAME_H
#define DAEMON_BASE_OWNED_NAME_H

#include <stddef.h>
#include <stdint.h>

#include "proto/types.h"

/* A name that belongs to a user: of a communicator, an elastic job or a store. It is a key of hash tables:
 * only the bytes up to the end of the name are hashed. */
struct owned_name {
    uint32_t owner_uid;
    char name[COMM_NAME_MAX_BYTES + 1];
};

/* Fills the key; a longer name is cut. Returns its size in bytes up to the end of the name. Any thread. */
size_t owned_name_make(struct owned_name *out, uint32_t owner_uid, const char *name);

#endif
