#ifndef CLIENT_NCCL_COMM_CONFIG_H
#define CLIENT_NCCL_COMM_CONFIG_H

#include <stdbool.h>
#include <stddef.h>

/* What this library takes of a program's ncclConfig_t. Programs of NCCL 2.14 to 2.32 pass 24 to 120 bytes. */

#define CONFIG_MAGIC 0xcafebeefu
#define CONFIG_UNDEFINED (-2147483647 - 1)
#define CONFIG_LEAST_BYTES 24
#define CONFIG_MOST_BYTES 4096

/* Where the fields that are read stand. */
enum {
    CONFIG_BLOCKING_OFFSET = 16,
    CONFIG_CLUSTER_OFFSET = 20,
    CONFIG_LEAST_CTAS_OFFSET = 24,
    CONFIG_MOST_CTAS_OFFSET = 28,
    CONFIG_SPLIT_SHARE_OFFSET = 40
};

struct nccl_config {
    bool blocking;
};

/*
 * Reads the fields that the struct's size and version have. `source` null: the values of *out stay. Returns
 * false, with a text in why, if the struct was not initialised, or a field is out of its range.
 */
bool config_read(const void *source, struct nccl_config *out, char *why, size_t why_size);

#endif
