#include "proto/status.h"

struct status_entry {
    const char *name;
    const char *text;
};

static const struct status_entry status_entries[STATUS_COUNT] = {
#define X(name, number, text) [number] = {#name, text},
    STATUS_LIST(X)
#undef X
};

const char *status_text(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? status_entries[status].text : "unknown status";
}

const char *status_name(enum status status)
{
    return (unsigned)status < STATUS_COUNT ? status_entries[status].name : "UNKNOWN";
}

enum status status_from_wire(unsigned number)
{
    return number < STATUS_COUNT ? (enum status)number : STATUS_PROTOCOL;
}
