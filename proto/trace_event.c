#include "proto/trace_event.h"

#include <string.h>

uint32_t trace_row_id(const char *label, uint64_t comm_id)
{
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (; *label != '\0'; label++) {
        hash = (hash ^ (unsigned char)*label) * 16777619u;
    }
    for (; comm_id != 0; comm_id >>= 8) {
        hash = (hash ^ (uint32_t)(comm_id & 255)) * 16777619u;
    }
    return hash & INT32_MAX; /* readers store it in an int */
}

bool trace_areas_parse(const char *text, unsigned *areas)
{
    *areas = 0;
    while (text != NULL && *text != '\0') {
        size_t length = strcspn(text, ",");
        if (length == 4 && memcmp(text, "comm", length) == 0) {
            *areas |= TRACE_AREA_COMM;
        } else if (length == 2 && memcmp(text, "op", length) == 0) {
            *areas |= TRACE_AREA_OP;
        } else {
            return false;
        }
        text += length + (text[length] == ',' ? 1 : 0);
    }
    return true;
}
