#include "daemon/gpu/tuning_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- Writing --- */

static void write_set(FILE *file, const struct gpu_tuning_machine *machine, const struct gpu_tuning_set *set)
{
    fputs("    {\n      \"gpus\": [", file);
    for (uint32_t i = 0; i < set->gpu_count; i++) {
        fprintf(file, "%s\"%s\"", i > 0 ? ", " : "", machine->gpus[set->gpus[i]]);
    }
    fputs("],\n      \"reach\": \"", file);
    for (uint32_t i = 0; i < set->gpu_count; i++) {
        for (uint32_t k = 0; k < set->gpu_count; k++) {
            fputc(machine->reaches[set->gpus[i]][set->gpus[k]] ? '1' : '0', file);
        }
    }
    fputs("\",\n      \"rows\": [", file);
    for (uint32_t i = 0; i < set->row_count; i++) {
        const struct gpu_tuning_row *row = &set->rows[i];
        fprintf(file,
                "%s\n        {\"kind\": \"%s\", \"bytes\": %" PRIu64 ", \"nccl_ns\": %" PRIu64
                ", \"without_ns\": %" PRIu64 "}",
                i > 0 ? "," : "", op_kind_text(row->kind), row->bytes, row->nccl_ns, row->without_ns);
    }
    fputs("\n      ]\n    }", file);
}

char *gpu_tuning_file_text(const struct gpu_tuning_machine *machine, const struct gpu_tuning_set *sets,
                           uint32_t count)
{
    char *text = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&text, &size);
    if (file == NULL) {
        return NULL;
    }
    fprintf(file, "{\n  \"format\": 1,\n  \"versions\": \"%s\",\n  \"sets\": [", machine->versions);
    for (uint32_t i = 0; i < count; i++) {
        fputs(i > 0 ? ",\n" : "\n", file);
        write_set(file, machine, &sets[i]);
    }
    fputs("\n  ]\n}\n", file);
    bool failed = ferror(file) != 0;
    if (fclose(file) != 0 || failed) {
        free(text);
        return NULL;
    }
    return text;
}

/* --- Reading --- */

/* After the first fault, every function does nothing and returns false. */
struct scan {
    const char *text, *at, *end;
    struct error *error;
    enum status status;
};

static bool fail(struct scan *scan, const char *expected)
{
    unsigned line = 1;
    if (scan->status == STATUS_OK) {
        for (const char *at = scan->text; at < scan->at; at++) {
            line += *at == '\n';
        }
        scan->status =
            error_set(scan->error, STATUS_INVALID_ARGUMENT, "line %u: expected %s", line, expected);
    }
    return false;
}

static void skip_space(struct scan *scan)
{
    while (scan->at < scan->end &&
           (*scan->at == ' ' || *scan->at == '\n' || *scan->at == '\t' || *scan->at == '\r')) {
        scan->at++;
    }
}

static bool see(struct scan *scan, char mark)
{
    skip_space(scan);
    return scan->status == STATUS_OK && scan->at < scan->end && *scan->at == mark;
}

static bool take(struct scan *scan, char mark)
{
    if (!see(scan, mark)) {
        char expected[] = {'"', mark, '"', '\0'};
        return fail(scan, expected);
    }
    scan->at++;
    return true;
}

static bool take_text(struct scan *scan, char *out, size_t size)
{
    size_t length = 0;
    if (!take(scan, '"')) {
        return false;
    }
    for (; scan->at < scan->end && *scan->at != '"'; scan->at++) {
        if (length + 1 == size || *scan->at < ' ' || *scan->at > '~' || *scan->at == '\\') {
            return fail(scan, "a shorter text of printable characters");
        }
        out[length++] = *scan->at;
    }
    out[length] = '\0';
    return take(scan, '"');
}

/* With the colon behind it. */
static bool take_key(struct scan *scan, const char *key)
{
    char text[32], expected[48];
    if (!take_text(scan, text, sizeof text)) {
        return false;
    }
    if (strcmp(text, key) != 0) {
        (void)snprintf(expected, sizeof expected, "\"%s\"", key);
        return fail(scan, expected);
    }
    return take(scan, ':');
}

static bool take_number(struct scan *scan, uint64_t most, uint64_t *out)
{
    uint64_t number = 0;
    skip_space(scan);
    const char *begin = scan->at;
    for (; scan->status == STATUS_OK && scan->at < scan->end && *scan->at >= '0' && *scan->at <= '9';
         scan->at++) {
        number = number * 10 + (uint64_t)(*scan->at - '0');
        if (number > most) {
            return fail(scan, "a smaller number");
        }
    }
    if (scan->at == begin || number == 0) {
        return fail(scan, "a number, at least 1");
    }
    *out = number;
    return scan->status == STATUS_OK;
}

/* Whether a list goes on. At its end, takes the bracket. */
static bool take_more(struct scan *scan, bool first)
{
    if (see(scan, ']')) {
        scan->at++;
        return false;
    }
    return first ? scan->status == STATUS_OK : take(scan, ',');
}

static bool take_kind(struct scan *scan, enum op_kind *out)
{
    char text[32];
    if (!take_text(scan, text, sizeof text)) {
        return false;
    }
    for (unsigned kind = 0; kind < OP_KIND_COUNT; kind++) {
        if (strcmp(text, op_kind_text((enum op_kind)kind)) == 0) {
            *out = (enum op_kind)kind;
            return true;
        }
    }
    return fail(scan, "the name of an operation");
}

/* A kind may begin once; then its sizes ascend. */
static bool row_follows(const struct gpu_tuning_set *set, const struct gpu_tuning_row *row)
{
    if (set->row_count > 0 && set->rows[set->row_count - 1].kind == row->kind) {
        return set->rows[set->row_count - 1].bytes < row->bytes;
    }
    for (uint32_t i = 0; i < set->row_count; i++) {
        if (set->rows[i].kind == row->kind) {
            return false;
        }
    }
    return true;
}

static void parse_rows(struct scan *scan, struct gpu_tuning_set *set)
{
    set->row_count = 0;
    if (!take_key(scan, "rows") || !take(scan, '[')) {
        return;
    }
    for (bool first = true; take_more(scan, first); first = false) {
        struct gpu_tuning_row row = {0};
        bool whole = take(scan, '{') && take_key(scan, "kind") && take_kind(scan, &row.kind) &&
                     take(scan, ',') && take_key(scan, "bytes") &&
                     take_number(scan, GPU_TUNING_BYTES_MAX, &row.bytes) && take(scan, ',') &&
                     take_key(scan, "nccl_ns") && take_number(scan, GPU_TUNING_NS_MAX, &row.nccl_ns) &&
                     take(scan, ',') && take_key(scan, "without_ns") &&
                     take_number(scan, GPU_TUNING_NS_MAX, &row.without_ns) && take(scan, '}');
        if (!whole) {
            return;
        }
        if (set->row_count == GPU_TUNING_ROWS_MAX || !row_follows(set, &row)) {
            (void)fail(scan, "each operation once, with ascending sizes");
            return;
        }
        set->rows[set->row_count++] = row;
    }
}

/* Returns whether these are GPUs of this machine, each once, in ascending order. */
static bool parse_gpus(struct scan *scan, const struct gpu_tuning_machine *machine,
                       struct gpu_tuning_set *set)
{
    bool ours = true;
    uint32_t listed = 0;
    set->gpu_count = 0;
    if (!take_key(scan, "gpus") || !take(scan, '[')) {
        return false;
    }
    for (bool first = true; take_more(scan, first); first = false) {
        char text[GPU_TUNING_TEXT_MAX_BYTES + 1];
        uint32_t gpu = set->gpu_count > 0 ? set->gpus[set->gpu_count - 1] + 1 : 0;
        if (!take_text(scan, text, sizeof text)) {
            return false;
        }
        if (++listed > GPU_DEVICES_MAX) {
            return fail(scan, "fewer GPUs");
        }
        while (gpu < machine->gpu_count && strcmp(machine->gpus[gpu], text) != 0) {
            gpu++;
        }
        ours = ours && gpu < machine->gpu_count;
        if (ours) {
            set->gpus[set->gpu_count++] = gpu;
        }
    }
    return ours && set->gpu_count > 1;
}

static bool same_reach(const struct gpu_tuning_machine *machine, const struct gpu_tuning_set *set,
                       const char *reach)
{
    for (uint32_t i = 0; i < set->gpu_count; i++) {
        for (uint32_t k = 0; k < set->gpu_count; k++, reach++) {
            if (*reach != (machine->reaches[set->gpus[i]][set->gpus[k]] ? '1' : '0')) {
                return false; /* also at its end */
            }
        }
    }
    return *reach == '\0';
}

/* Returns whether the set is of this machine. */
static bool parse_set(struct scan *scan, const struct gpu_tuning_machine *machine, struct gpu_tuning_set *set)
{
    char reach[GPU_DEVICES_MAX * GPU_DEVICES_MAX + 1];
    bool ours = take(scan, '{') && parse_gpus(scan, machine, set);
    bool whole =
        take(scan, ',') && take_key(scan, "reach") && take_text(scan, reach, sizeof reach) && take(scan, ',');
    if (!whole) {
        return false;
    }
    parse_rows(scan, set);
    return take(scan, '}') && ours && set->row_count > 0 && same_reach(machine, set, reach);
}

static bool is_known(const struct gpu_tuning_set *sets, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (sets[i].gpu_count == sets[count].gpu_count &&
            memcmp(sets[i].gpus, sets[count].gpus, sets[i].gpu_count * sizeof sets[i].gpus[0]) == 0) {
            return true;
        }
    }
    return false;
}

static void parse_sets(struct scan *scan, const struct gpu_tuning_machine *machine, bool same_versions,
                       struct gpu_tuning_set *sets, uint32_t *count, uint32_t *foreign)
{
    uint32_t listed = 0;
    struct gpu_tuning_set left_out;
    for (bool first = true; take_more(scan, first); first = false) {
        struct gpu_tuning_set *set = *count < GPU_TUNING_SETS_MAX ? &sets[*count] : &left_out;
        bool ours = parse_set(scan, machine, set) && same_versions;
        if (scan->status != STATUS_OK) {
            return;
        }
        if (++listed > GPU_TUNING_SETS_MAX || (ours && is_known(sets, *count))) {
            (void)fail(scan, "each set of GPUs once, and fewer sets");
            return;
        }
        *count += ours;
        *foreign += !ours;
    }
}

enum status gpu_tuning_file_parse(const char *text, size_t size_bytes,
                                  const struct gpu_tuning_machine *machine, struct gpu_tuning_set *sets,
                                  uint32_t *count, uint32_t *foreign, struct error *error)
{
    struct scan scan = {.text = text, .at = text, .end = text + size_bytes, .error = error};
    char versions[GPU_TUNING_TEXT_MAX_BYTES + 1] = "";
    uint64_t format;
    *count = *foreign = 0;
    if (take(&scan, '{') && take_key(&scan, "format") && take_number(&scan, 1, &format) && take(&scan, ',') &&
        take_key(&scan, "versions") && take_text(&scan, versions, sizeof versions) && take(&scan, ',') &&
        take_key(&scan, "sets") && take(&scan, '[')) {
        parse_sets(&scan, machine, strcmp(versions, machine->versions) == 0, sets, count, foreign);
        (void)take(&scan, '}');
        skip_space(&scan);
    }
    if (scan.status == STATUS_OK && scan.at != scan.end) {
        (void)fail(&scan, "the end of the file");
    }
    if (scan.status != STATUS_OK) {
        *count = 0;
    }
    return scan.status;
}
