#include "client/nccl/unique_id.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "client/nccl/failure.h"

#define RANDOM_BYTES 16

struct id {
    char tag[8];
    unsigned char random[RANDOM_BYTES];
    unsigned char zeros[NCCL_UNIQUE_ID_BYTES - 8 - RANDOM_BYTES];
};
_Static_assert(sizeof(struct id) == sizeof(ncclUniqueId), "an id of NCCL's size");

static const char tag[8] = {'c', 'o', 'm', 'm', 'd', '-', 'i', '1'};

bool id_make(ncclUniqueId *out)
{
    struct id id = {0};
    ssize_t got;
    memcpy(id.tag, tag, sizeof tag);
    do {
        got = getrandom(id.random, sizeof id.random, 0);
    } while (got < 0 && errno == EINTR);
    memcpy(out, &id, sizeof id);
    return got == RANDOM_BYTES;
}

bool id_name(const ncclUniqueId *id, char name[ID_NAME_BYTES])
{
    struct id parts;
    memcpy(&parts, id, sizeof parts);
    if (memcmp(parts.tag, tag, sizeof tag) != 0) {
        return false;
    }
    int length = snprintf(name, ID_NAME_BYTES, "nccl-");
    for (int i = 0; i < RANDOM_BYTES; i++) {
        length += snprintf(name + length, (size_t)(ID_NAME_BYTES - length), "%02x", parts.random[i]);
    }
    return true;
}

NCCL_EXPORT(ncclResult_t, ncclGetUniqueId, ncclUniqueId *out)
{
    if (out == NULL) {
        return failure_set(NCCL_INVALID_ARGUMENT, "ncclGetUniqueId: the argument is a null pointer");
    }
    return id_make(out) ? NCCL_SUCCESS
                        : failure_set(NCCL_SYSTEM_ERROR, "ncclGetUniqueId: the system gave no random bytes");
}
