#ifndef CLIENT_NCCL_UNIQUE_ID_H
#define CLIENT_NCCL_UNIQUE_ID_H

#include <stdbool.h>

#include "client/nccl/nccl_api.h"

/* A tag, 16 random bytes, and zeros. Their hex is in the communicator's name. */

#define ID_NAME_BYTES 48

/* Returns false if the system gives no random bytes. */
bool id_make(ncclUniqueId *out);
/* Returns false if another library, such as NCCL itself, has made the id. */
bool id_name(const ncclUniqueId *id, char name[ID_NAME_BYTES]);

#endif
