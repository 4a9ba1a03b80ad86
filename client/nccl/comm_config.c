#include "client/nccl/comm_config.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

struct header {
    size_t size;
    unsigned magic;
    unsigned version;
};

/* The whole numbers of ncclConfig_t. A field that ends beyond the struct, or is newer than its version, is
 * padding. */
static const struct field {
    const char *name;
    size_t offset;
    unsigned since;
    int least;
    int most;
} fields[] = {{"blocking", CONFIG_BLOCKING_OFFSET, 21400, 0, 1},
              {"cgaClusterSize", CONFIG_CLUSTER_OFFSET, 21700, 0, 8},
              {"minCTAs", CONFIG_LEAST_CTAS_OFFSET, 21700, 1, INT_MAX},
              {"maxCTAs", CONFIG_MOST_CTAS_OFFSET, 21700, 1, INT_MAX},
              {"splitShare", CONFIG_SPLIT_SHARE_OFFSET, 21800, 0, 1}};
#define FIELD_COUNT (sizeof fields / sizeof fields[0])

static bool read_field(const struct header *header, const void *source, const struct field *field, int *value)
{
    *value = CONFIG_UNDEFINED;
    if (header->version >= field->since && header->size >= field->offset + sizeof *value) {
        memcpy(value, (const unsigned char *)source + field->offset, sizeof *value);
    }
    return *value == CONFIG_UNDEFINED || (*value >= field->least && *value <= field->most);
}

bool config_read(const void *source, struct nccl_config *out, char *why, size_t why_size)
{
    struct header header;
    int values[FIELD_COUNT];
    if (source == NULL) {
        return true;
    }
    memcpy(&header, source, sizeof header);
    if (header.magic != CONFIG_MAGIC || header.size < CONFIG_LEAST_BYTES || header.size > CONFIG_MOST_BYTES) {
        (void)snprintf(why, why_size, "the ncclConfig_t was not set by NCCL_CONFIG_INITIALIZER");
        return false;
    }
    for (size_t i = 0; i < FIELD_COUNT; i++) {
        if (!read_field(&header, source, &fields[i], &values[i])) {
            (void)snprintf(why, why_size, "%s of the ncclConfig_t is %d", fields[i].name, values[i]);
            return false;
        }
    }
    if (values[2] != CONFIG_UNDEFINED && values[3] != CONFIG_UNDEFINED && values[2] > values[3]) {
        (void)snprintf(why, why_size, "minCTAs of the ncclConfig_t is %d, more than maxCTAs, %d", values[2],
                       values[3]);
        return false;
    }
    out->blocking = values[0] == CONFIG_UNDEFINED ? out->blocking : values[0] == 1;
    return true;
}
