#include "daemon/base/fair.h"

#include <stddef.h>

#include <utlist.h>

/* Knuth, "The Art of Computer Programming", volume 3, 6.4: the bits of the golden ratio. */
uint32_t fair_line_of(uint32_t uid)
{
    return (uid * UINT32_C(2654435769)) >> 26;
}

_Static_assert(FAIR_LINES == 1u << 6, "fair_line_of gives 6 bits");

void fair_put(struct fair *fair, struct fair_entry *entry, uint32_t uid)
{
    if (entry->queued) {
        return;
    }
    entry->queued = true;
    entry->line = fair_line_of(uid);
    struct fair_line *line = &fair->lines[entry->line];
    if (line->entries == NULL) {
        DL_APPEND(fair->waiting, line);
    }
    DL_APPEND(line->entries, entry);
    fair->count++;
}

void fair_remove(struct fair *fair, struct fair_entry *entry)
{
    struct fair_line *line = &fair->lines[entry->line];
    if (!entry->queued) {
        return;
    }
    entry->queued = false;
    DL_DELETE(line->entries, entry);
    if (line->entries == NULL) {
        DL_DELETE(fair->waiting, line);
    }
    fair->count--;
}

struct fair_entry *fair_take(struct fair *fair)
{
    struct fair_line *line = fair->waiting;
    if (line == NULL) {
        return NULL;
    }
    struct fair_entry *entry = line->entries;
    fair_remove(fair, entry);
    if (line->entries != NULL) { /* the other lines come first */
        DL_DELETE(fair->waiting, line);
        DL_APPEND(fair->waiting, line);
    }
    return entry;
}
