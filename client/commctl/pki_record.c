#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/pki.h"

/*
 * issued.txt: one certificate a line, its fields separated by one space: serial number, name, when it was
 * issued, when it expires, "valid", or "revoked" and when. Lines that begin with # are for people.
 */
#define RECORD_NAME "issued"
#define RECORD_EXTENSION "txt"
#define RECORD_HEAD "# serial name issued expires state: what `commctl pki` has issued here\n"
#define RECORD_LINE_MAX_BYTES 256

void pki_record_free(struct pki_record *record)
{
    free(record->entries);
    *record = (struct pki_record){0};
}

bool pki_record_add(struct pki_record *record, const struct pki_entry *entry)
{
    if ((record->count & (record->count + 1)) == 0) { /* it doubles */
        struct pki_entry *entries =
            reallocarray(record->entries, 2 * record->count + 2, sizeof *record->entries);
        if (entries == NULL) {
            return false;
        }
        record->entries = entries;
    }
    record->entries[record->count++] = *entry;
    return true;
}

struct pki_entry *pki_record_find(const struct pki_record *record, const char *serial)
{
    for (size_t i = 0; i < record->count; i++) {
        if (strcmp(record->entries[i].serial, serial) == 0) {
            return &record->entries[i];
        }
    }
    return NULL;
}

bool pki_entry_of(const X509 *certificate, struct pki_entry *out)
{
    *out = (struct pki_entry){0};
    return pki_name_of_certificate(certificate, out->name) &&
           pki_serial_text(X509_get0_serialNumber(certificate), out->serial) &&
           pki_time_text(X509_get0_notBefore(certificate), out->issued) &&
           pki_time_text(X509_get0_notAfter(certificate), out->expires);
}

const char *pki_entry_state(const struct pki_entry *entry, time_t now_s)
{
    time_t expires_s;
    if (entry->revoked[0] != '\0') {
        return "revoked";
    }
    return pki_time_parse(entry->expires, &expires_s) && now_s >= expires_s ? "expired" : "valid";
}

/* --- Lines --- */

static bool is_serial(const char *text)
{
    size_t length = strlen(text);
    return length >= 1 && length <= PKI_SERIAL_MAX_BYTES && strspn(text, "0123456789ABCDEF") == length;
}

static bool parse_line(const char *line, struct pki_entry *out)
{
    char copy[RECORD_LINE_MAX_BYTES];
    char *fields[6] = {0};
    size_t count = 0;
    char *rest = copy;
    time_t ignored;
    *out = (struct pki_entry){0};
    snprintf(copy, sizeof copy, "%s", line);
    while (rest != NULL) {
        char *field = strsep(&rest, " ");
        if (count == 6) {
            return false;
        }
        fields[count++] = field;
    }
    bool revoked = count == 6 && strcmp(fields[4], "revoked") == 0;
    if (!revoked && !(count == 5 && strcmp(fields[4], "valid") == 0)) {
        return false;
    }
    if (!is_serial(fields[0]) || !pki_name_is_valid(fields[1]) || !pki_time_parse(fields[2], &ignored) ||
        !pki_time_parse(fields[3], &ignored) || (revoked && !pki_time_parse(fields[5], &ignored))) {
        return false;
    }
    memcpy(out->serial, fields[0], strlen(fields[0]) + 1);
    memcpy(out->name, fields[1], strlen(fields[1]) + 1);
    memcpy(out->issued, fields[2], PKI_TIME_BYTES);
    memcpy(out->expires, fields[3], PKI_TIME_BYTES);
    if (revoked) {
        memcpy(out->revoked, fields[5], PKI_TIME_BYTES);
    }
    return true;
}

bool pki_record_parse(const char *text, size_t size, struct pki_record *out, size_t *line)
{
    const char *at = text;
    const char *end = text + size;
    *out = (struct pki_record){0};
    for (*line = 1; at < end; (*line)++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((stop == NULL ? end : stop) - at);
        char copy[RECORD_LINE_MAX_BYTES];
        struct pki_entry entry;
        if (length >= sizeof copy || memchr(at, 0, length) != NULL) {
            goto failed;
        }
        memcpy(copy, at, length);
        copy[length] = '\0';
        at += length + (stop == NULL ? 0 : 1);
        if (length == 0 || copy[0] == '#') {
            continue;
        }
        if (!parse_line(copy, &entry)) {
            goto failed;
        }
        if (!pki_record_add(out, &entry)) {
            *line = 0;
            goto failed;
        }
    }
    return true;

failed:
    pki_record_free(out);
    return false;
}

/* --- The file --- */

bool pki_record_load(struct pki *pki, struct pki_record *out)
{
    struct pki_bytes text;
    size_t line;
    *out = (struct pki_record){0};
    const char *path = pki_path(pki, RECORD_NAME, RECORD_EXTENSION);
    if (access(path, F_OK) < 0 && errno == ENOENT) {
        return true;
    }
    if (!pki_read(path, &text)) {
        return false;
    }
    bool parsed = pki_record_parse(text.bytes, text.size, out, &line);
    if (!parsed && line == 0) {
        fprintf(stderr, "commctl pki: %s: no memory\n", path);
    } else if (!parsed) {
        fprintf(stderr,
                "commctl pki: %s:%zu: expected \"SERIAL NAME ISSUED EXPIRES valid\" or \"... revoked WHEN\", "
                "times as 2026-11-22T08:00:00Z\n",
                path, line);
    }
    free(text.bytes);
    return parsed;
}

bool pki_record_store(struct pki *pki, const struct pki_record *record)
{
    char *text = NULL;
    size_t size = 0;
    FILE *memory = open_memstream(&text, &size);
    bool written = memory != NULL && fputs(RECORD_HEAD, memory) >= 0;
    for (size_t i = 0; written && i < record->count; i++) {
        const struct pki_entry *entry = &record->entries[i];
        written =
            fprintf(memory, "%s %s %s %s %s%s\n", entry->serial, entry->name, entry->issued, entry->expires,
                    entry->revoked[0] == '\0' ? "valid" : "revoked ", entry->revoked) > 0;
    }
    written = (memory != NULL && fclose(memory) == 0) && written;
    if (written) {
        written = pki_write(pki_path(pki, RECORD_NAME, RECORD_EXTENSION), 0644, NULL, PKI_WRITE_REPLACE,
                            &(struct pki_bytes){text, size});
    } else {
        fputs("commctl pki: no memory for the record\n", stderr);
    }
    free(text);
    return written;
}
