#include "proto/trace_event.h"

#include <string.h>

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
