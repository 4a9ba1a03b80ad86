#include "daemon/base/owned_name.h"

#include <string.h>

size_t owned_name_make(struct owned_name *out, uint32_t owner_uid, const char *name)
{
    size_t name_bytes = strnlen(name, sizeof out->name - 1);
    *out = (struct owned_name){.owner_uid = owner_uid};
    memcpy(out->name, name, name_bytes);
    return offsetof(struct owned_name, name) + name_bytes;
}
