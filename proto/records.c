#include "proto/records.h"

#include <string.h>

static bool has_terms(unsigned kind)
{
    return kind == RECORD_OPERATION || kind == RECORD_CAPTURED;
}

/* --- Writing --- */

void submit_record_begin(struct submit_record *record, enum record_kind kind, uint32_t handle)
{
    memset(record, 0, SUBMIT_RECORD_MIN_BYTES);
    record->mark = RECORD_MARK;
    record->version = RECORD_VERSION;
    record->kind = (uint8_t)kind;
    record->handle = handle;
    record->terms.bucket_ops = has_terms(kind) ? 1 : 0;
}

void submit_record_add(struct submit_record *record, enum record_what what, uint32_t memory,
                       uint64_t offset_bytes, uint64_t value)
{
    record->entries[record->entry_count++] = (struct record_entry){
        .what = (uint8_t)what, .memory = memory, .offset_bytes = offset_bytes, .value = value};
}

void completion_record_begin(struct completion_record *record, uint32_t handle, uint64_t ticket)
{
    memset(record, 0, COMPLETION_RECORD_MIN_BYTES);
    record->mark = RECORD_MARK;
    record->version = RECORD_VERSION;
    record->kind = RECORD_COMPLETION;
    record->handle = handle;
    record->ticket = ticket;
}

void completion_record_fail(struct completion_record *record, enum status status, const char *text)
{
    record->status = (uint16_t)status;
    record->text_bytes = text != NULL ? (uint16_t)strnlen(text, CLIENT_ERROR_TEXT_MAX_BYTES) : 0;
    memcpy(record->text, text != NULL ? text : "", record->text_bytes);
}

/* --- Reading --- */

/* Checks the fields before the entries. Returns the name of a wrong one, or null. */
static const char *wrong_field(const struct submit_record *record)
{
    static const char nothing[SUBMIT_RECORD_MIN_BYTES - offsetof(struct submit_record, terms)];
    const char *rest = (const char *)record + offsetof(struct submit_record, terms);
    bool is_bare = record->kind == RECORD_EVENT;
    return record->mark != RECORD_MARK                             ? "mark"
           : record->version != RECORD_VERSION                     ? "version"
           : !is_bare && !has_terms(record->kind)                  ? "kind"
           : record->entry_count > RECORD_ENTRIES_MAX              ? "entry_count"
           : is_bare && memcmp(rest, nothing, sizeof nothing) != 0 ? "reserved field"
           : record->terms.hash != 0                               ? "hash"
           : record->terms.has_residual != 0                       ? "has_residual"
                                                                   : NULL;
}

/* Checks an entry, given the previous entry's `what`; 0: it is the first. Returns the name of a wrong field,
 * or null. */
static const char *wrong_entry(const struct submit_record *record, const struct record_entry *entry,
                               uint8_t before)
{
    bool fence = entry->what == RECORD_ENDED || entry->what == RECORD_WAIT;
    bool in_order = entry->what > before || (entry->what == before && entry->what == RECORD_WAIT);
    bool number = entry->what == RECORD_NUMBER;
    bool exists = (entry->what >= RECORD_INPUT && entry->what <= RECORD_WAIT) || number;
    bool fits = record->kind == RECORD_OPERATION || fence || (!number && record->kind == RECORD_CAPTURED);
    bool reserved =
        (entry->reserved[0] | entry->reserved[1] | entry->reserved[2]) != 0 || (number && entry->memory != 0);
    return !exists                                                ? "entry"
           : !in_order                                            ? "order of entries"
           : !fits                                                ? "entry"
           : reserved || (!fence && !number && entry->value != 0) ? "reserved field"
                                                                  : NULL;
}

size_t submit_record_read(const void *bytes, size_t size_bytes, struct submit_record *out, const char **what)
{
    *what = "size";
    if (size_bytes < SUBMIT_RECORD_MIN_BYTES) {
        return 0;
    }
    memcpy(out, bytes, SUBMIT_RECORD_MIN_BYTES);
    const char *wrong = wrong_field(out);
    size_t record_bytes = wrong == NULL ? submit_record_bytes(out) : 0;
    if (wrong == NULL && size_bytes < record_bytes) {
        return 0;
    }
    if (wrong == NULL) {
        memcpy(out->entries, (const char *)bytes + SUBMIT_RECORD_MIN_BYTES,
               record_bytes - SUBMIT_RECORD_MIN_BYTES);
    }
    unsigned waits = 0;
    for (unsigned i = 0; wrong == NULL && i < out->entry_count; i++) {
        wrong = wrong_entry(out, &out->entries[i], i > 0 ? out->entries[i - 1].what : 0);
        waits += out->entries[i].what == RECORD_WAIT;
        wrong = wrong == NULL && waits > CLIENT_FENCES_MAX ? "number of waits" : wrong;
    }
    *what = wrong;
    return wrong == NULL ? record_bytes : 0;
}

const struct record_entry *submit_record_find(const struct submit_record *record, enum record_what what)
{
    for (unsigned i = 0; i < record->entry_count && record->entries[i].what <= what; i++) {
        if (record->entries[i].what == what) {
            return &record->entries[i];
        }
    }
    return NULL;
}

bool completion_record_read(const void *packet, size_t size_bytes, struct completion_record *out,
                            const char **what)
{
    *what = "size";
    if (size_bytes < COMPLETION_RECORD_MIN_BYTES ||
        size_bytes > COMPLETION_RECORD_MIN_BYTES + CLIENT_ERROR_TEXT_MAX_BYTES) {
        return false;
    }
    memcpy(out, packet, size_bytes);
    out->text[size_bytes - COMPLETION_RECORD_MIN_BYTES] = '\0';
    *what = out->mark != RECORD_MARK                                      ? "mark"
            : out->version != RECORD_VERSION                              ? "version"
            : out->kind != RECORD_COMPLETION                              ? "kind"
            : out->reserved != 0                                          ? "reserved field"
            : out->text_bytes != size_bytes - COMPLETION_RECORD_MIN_BYTES ? "size"
            : out->status == STATUS_OK && out->text_bytes > 0             ? "text"
                                                                          : NULL;
    return *what == NULL;
}
