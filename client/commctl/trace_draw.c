#include <inttypes.h>
#include <stdlib.h>

#include "client/commctl/trace.h"
#include "proto/status.h"
#include "proto/types.h"

/*
 * Draws records as bars. A node is a process of Chrome's format. It has a row for each rank, with a bar for
 * each operation, and a row for each lane, with a bar for each slice. Bars of a row are separate or nested:
 * overlapping operations of a rank are drawn in additional rows.
 */
#define ROW_LABEL_BYTES 192
#define DEPTHS_MAX 4096 /* rows of one rank; further operations share the last row */

struct drawing {
    FILE *out;
    const struct trace_fetched *fetched;
    uint32_t node_id;
};

/* --- Lines --- */

static void put_text(FILE *out, const char *text)
{
    fputc('"', out);
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\') {
            fputc('\\', out);
        }
        fputc(*text >= ' ' && *text <= '~' ? *text : '?', out);
    }
    fputc('"', out);
}

static const char *comm_label(const struct drawing *drawing, uint64_t comm_id, char label[static 24])
{
    for (size_t i = 0; i < drawing->fetched->name_count; i++) {
        if (drawing->fetched->names[i].comm_id == comm_id) {
            return drawing->fetched->names[i].name;
        }
    }
    (void)snprintf(label, 24, "%016" PRIx64, comm_id);
    return label;
}

/* Begins a row, where rows of a node are ordered by `order`. */
static uint32_t put_row(const struct drawing *drawing, uint64_t comm_id, uint64_t order, const char *format,
                        ...) __attribute__((format(printf, 4, 5)));
static uint32_t put_row(const struct drawing *drawing, uint64_t comm_id, uint64_t order, const char *format,
                        ...)
{
    char label[ROW_LABEL_BYTES], id[24];
    int length = snprintf(label, sizeof label, "%s ", comm_label(drawing, comm_id, id));
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(label + length, sizeof label - (size_t)length, format, arguments);
    va_end(arguments);
    uint32_t row = trace_row_id(label, comm_id);
    fprintf(drawing->out,
            ",\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":",
            drawing->node_id, row);
    put_text(drawing->out, label);
    fprintf(drawing->out,
            "}},\n{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_sort_index\",\"args\":"
            "{\"sort_index\":%" PRIu64 "}}",
            drawing->node_id, row, order);
    return row;
}

static const char *kind_text(uint32_t number)
{
    enum op_kind kind;
    return op_kind_from_wire(number, &kind) ? op_kind_text(kind) : "operation";
}

/* Readers of the file use signed 64-bit numbers, and clients may choose larger tickets. */
static uint64_t number(uint64_t value)
{
    return value & INT64_MAX;
}

/* Writes a bar. Its arguments are those of the record, and `more`: ",\"slice\":7". end_ns 0: an instant. */
static void put_bar(const struct drawing *drawing, uint32_t row, const struct trace_record *record,
                    uint64_t begin_ns, uint64_t end_ns, const char *name, const char *more)
{
    char id[24];
    FILE *out = drawing->out;
    fprintf(out, ",\n{\"ph\":\"%s\",\"pid\":%u,\"tid\":%u,\"ts\":%" PRIu64 ".%03u,", end_ns > 0 ? "X" : "i",
            drawing->node_id, row, begin_ns / 1000, (unsigned)(begin_ns % 1000));
    if (end_ns > 0) {
        uint64_t length_ns = end_ns > begin_ns ? end_ns - begin_ns : 0;
        fprintf(out, "\"dur\":%" PRIu64 ".%03u,", length_ns / 1000, (unsigned)(length_ns % 1000));
    }
    fprintf(out, "\"name\":\"%s\",\"args\":{\"communicator\":", name);
    put_text(out, comm_label(drawing, record->comm_id, id));
    fprintf(out, ",\"seq\":%" PRIu64 ",\"kind\":\"%s\"%s}}", number(record->seq), kind_text(record->kind),
            more);
}

/* --- The order in which records are drawn --- */

enum group { GROUP_COMM, GROUP_LANE, GROUP_OP, GROUP_MESSAGE };

static enum group group_of(const struct trace_record *record)
{
    switch ((enum trace_event)record->event) {
    case TRACE_COMM_FORMED:
    case TRACE_COMM_FAILED:
    case TRACE_COMM_LEFT:
    case TRACE_MESSAGE_MATCHED: /* of no message in particular */
    case TRACE_EVENT_COUNT:
        break;
    case TRACE_SLICE_STARTED:
    case TRACE_STAGE_IN_DONE:
    case TRACE_ROUND_SENT:
    case TRACE_ROUND_RECEIVED:
    case TRACE_SLICE_DONE:
        return GROUP_LANE;
    case TRACE_OP_TAKEN:
    case TRACE_OP_POSTED:
    case TRACE_OP_MATCHED:
    case TRACE_OP_STARTED:
    case TRACE_OP_DONE:
    case TRACE_OP_TOLD:
        return GROUP_OP;
    case TRACE_MESSAGE_TAKEN:
    case TRACE_MESSAGE_POSTED:
    case TRACE_MESSAGE_DONE:
    case TRACE_MESSAGE_TOLD:
        return GROUP_MESSAGE;
    }
    return GROUP_COMM;
}

static int order(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b ? 1 : 0;
}

/* Whether they are of one communicator, lane, operation, or message of a rank: those follow each other. */
static int compare_groups(const struct trace_record *a, const struct trace_record *b)
{
    enum group group = group_of(a);
    bool by_row = group == GROUP_LANE || group == GROUP_MESSAGE;
    bool by_seq = group == GROUP_OP || group == GROUP_MESSAGE;
    int result = order(group, group_of(b));
    result = result == 0 ? order(a->comm_id, b->comm_id) : result;
    result = result == 0 && by_row ? order(a->row, b->row) : result;
    return result == 0 && by_seq ? order(a->seq, b->seq) : result;
}

/* Records of the same time are ordered as they were recorded. */
static int compare_records(const void *left, const void *right)
{
    const struct trace_record *a = *(const struct trace_record *const *)left;
    const struct trace_record *b = *(const struct trace_record *const *)right;
    int result = compare_groups(a, b);
    result = result == 0 ? order(a->time_ns, b->time_ns) : result;
    return result == 0 ? order((uintptr_t)a, (uintptr_t)b) : result;
}

/* --- Lanes --- */

/* Writes the slice's stages and rounds, within its bar. */
static void draw_stages(const struct drawing *drawing, uint32_t row,
                        const struct trace_record *const *records, size_t count)
{
    uint64_t since_ns = records[0]->time_ns, sent_ns = 0;
    bool staged = false;
    for (size_t i = 1; i < count; i++) {
        const struct trace_record *record = records[i];
        char name[40];
        if (record->event == TRACE_STAGE_IN_DONE) {
            staged = true;
            put_bar(drawing, row, record, since_ns, record->time_ns, "stage in", "");
        } else if (record->event == TRACE_ROUND_SENT) {
            sent_ns = record->time_ns;
            continue;
        } else if (record->event == TRACE_ROUND_RECEIVED) {
            (void)snprintf(name, sizeof name, "round %" PRIu64, record->value);
            put_bar(drawing, row, record, since_ns, record->time_ns, name, "");
            if (sent_ns >= since_ns) {
                put_bar(drawing, row, record, since_ns, sent_ns, "send", "");
            }
        } else if (record->event == TRACE_SLICE_DONE && staged) {
            put_bar(drawing, row, record, since_ns, record->time_ns, "stage out", "");
        }
        since_ns = record->time_ns;
    }
}

/* Draws a slice from its start to its end, or to the next slice's start if it has no end. */
static size_t draw_slice(const struct drawing *drawing, uint32_t row,
                         const struct trace_record *const *records, size_t count)
{
    char name[40], more[128];
    size_t used = 1;
    while (used < count && records[used]->event != TRACE_SLICE_STARTED &&
           records[used - 1]->event != TRACE_SLICE_DONE) {
        used++;
    }
    const struct trace_record *first = records[0];
    bool ended = records[used - 1]->event == TRACE_SLICE_DONE;
    uint64_t end_ns = ended          ? records[used - 1]->time_ns
                      : used < count ? records[used]->time_ns
                                     : drawing->fetched->end_ns;
    uint32_t lane = first->row & 255;
    bool is_on_gpus = lane == TRACE_LANE_GPUS || lane == TRACE_LANE_NCCL;
    bool is_agreement = lane - TRACE_LANE_AGREEMENT < TRACE_LANE_AGREEMENTS;
    (void)snprintf(name, sizeof name, "%s", is_on_gpus ? "on GPUs" : "agreement");
    if (!is_on_gpus && !is_agreement) {
        (void)snprintf(name, sizeof name, "slice %u", first->slice);
    }
    (void)snprintf(more, sizeof more, ",\"slice\":%u,\"lane\":%u,\"rail\":%u,\"bytes\":%" PRIu64 "%s",
                   first->slice, lane, first->row >> 8, number(first->value),
                   ended ? "" : ",\"unfinished\":true");
    put_bar(drawing, row, first, first->time_ns, end_ns, name, more);
    draw_stages(drawing, row, records, used);
    return used;
}

static void draw_lane(const struct drawing *drawing, const struct trace_record *const *records, size_t count)
{
    const struct trace_record *first = records[0];
    uint32_t lane = first->row & 255, rail = first->row >> 8, row;
    uint64_t place = 1000000 + first->row;
    if (lane == TRACE_LANE_AGREEMENT) {
        row = put_row(drawing, first->comm_id, place, "agreement");
    } else if (lane - TRACE_LANE_AGREEMENT < TRACE_LANE_AGREEMENTS) {
        row = put_row(drawing, first->comm_id, place, "agreement %u", lane - TRACE_LANE_AGREEMENT + 1);
    } else if (lane == TRACE_LANE_GPUS) {
        row = put_row(drawing, first->comm_id, place, "GPUs");
    } else if (lane == TRACE_LANE_NCCL) {
        row = put_row(drawing, first->comm_id, place, "GPUs by NCCL");
    } else if (lane == TRACE_LANE_LOCAL) {
        row = put_row(drawing, first->comm_id, place, "within the node");
    } else if (rail == 0) {
        row = put_row(drawing, first->comm_id, place, "lane %u", lane);
    } else {
        row = put_row(drawing, first->comm_id, place, "lane %u (rail %u)", lane, rail);
    }
    for (size_t i = 0; i < count;) { /* the start of the first may be overwritten */
        i += records[i]->event == TRACE_SLICE_STARTED ? draw_slice(drawing, row, &records[i], count - i) : 1;
    }
}

/* --- Ranks --- */

/* One operation or message of one rank. */
struct span {
    const struct trace_record *taken, *posted, *done, *told;
    const struct trace_record *matched, *started; /* null for messages */
    uint64_t end_ns;
};

static bool span_is_message(const struct span *span)
{
    return span->taken->event == TRACE_MESSAGE_TAKEN;
}

/* By row, and then by time. */
static int compare_rows(const struct span *a, const struct span *b)
{
    int result = order(a->taken->comm_id, b->taken->comm_id);
    result = result == 0 ? order(a->taken->row, b->taken->row) : result;
    return result == 0 ? order(span_is_message(a), span_is_message(b)) : result;
}

static int compare_spans(const void *left, const void *right)
{
    const struct span *a = left, *b = right;
    int result = compare_rows(a, b);
    return result == 0 ? order(a->taken->time_ns, b->taken->time_ns) : result;
}

/* Appends the spans of one operation or message to `spans`. Returns how many were appended. */
static size_t find_spans(const struct drawing *drawing, const struct trace_record *const *records,
                         size_t count, struct span *spans)
{
    size_t found = 0;
    const struct trace_record *matched = NULL, *started = NULL, *done = NULL;
    for (size_t i = 0; i < count; i++) {
        matched = records[i]->event == TRACE_OP_MATCHED ? records[i] : matched;
        started = started == NULL && records[i]->event == TRACE_OP_STARTED ? records[i] : started;
        done =
            records[i]->event == TRACE_OP_DONE || records[i]->event == TRACE_MESSAGE_DONE ? records[i] : done;
    }
    for (size_t i = 0; i < count; i++) {
        struct span span = {.taken = records[i], .matched = matched, .started = started, .done = done};
        if (records[i]->event != TRACE_OP_TAKEN && records[i]->event != TRACE_MESSAGE_TAKEN) {
            continue;
        }
        for (size_t k = i + 1; k < count && span.told == NULL; k++) {
            bool own = records[k]->row == records[i]->row;
            bool posted = records[k]->event == TRACE_OP_POSTED || records[k]->event == TRACE_MESSAGE_POSTED;
            bool told = records[k]->event == TRACE_OP_TOLD || records[k]->event == TRACE_MESSAGE_TOLD;
            span.posted = own && posted ? records[k] : span.posted;
            span.told = own && told ? records[k] : span.told;
        }
        span.end_ns = span.told != NULL ? span.told->time_ns : drawing->fetched->end_ns;
        spans[found++] = span;
    }
    return found;
}

static void describe_span(const struct span *span, char *more, size_t size)
{
    char status[64] = ",\"unfinished\":true";
    if (span->told != NULL) {
        (void)snprintf(status, sizeof status, ",\"status\":\"%s\"",
                       status_name(status_from_wire((unsigned)span->told->value)));
    }
    if (!span_is_message(span)) {
        uint64_t bytes = span->posted != NULL ? span->posted->value : 0;
        (void)snprintf(more, size, ",\"rank\":%u,\"ticket\":%" PRIu64 ",\"bytes\":%" PRIu64 "%s",
                       span->taken->row, number(span->taken->value), number(bytes), status);
    } else {
        int64_t peer =
            span->posted != NULL && span->posted->value < UINT32_MAX ? (int64_t)span->posted->value : -1;
        (void)snprintf(more, size, ",\"rank\":%u,\"peer\":%lld,\"tag\":%u,\"bytes\":%" PRIu64 "%s",
                       span->taken->row, (long long)peer, span->taken->slice, number(span->taken->value),
                       status);
    }
}

/* Draws the known steps within the span's bar. */
static void draw_steps(const struct drawing *drawing, uint32_t row, const struct span *span)
{
    const struct {
        const char *name;
        const struct trace_record *from, *to;
    } steps[] = {
        {"waiting for local ranks", span->taken, span->matched},
        {"queued", span->matched, span->started},
        {"running", span->started, span->done},
        {"telling", span->done, span->told},
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        const struct trace_record *from = steps[i].from, *to = steps[i].to;
        if (from != NULL && to != NULL && from->time_ns >= span->taken->time_ns &&
            from->time_ns <= to->time_ns && to->time_ns <= span->end_ns) {
            put_bar(drawing, row, span->taken, from->time_ns, to->time_ns, steps[i].name, "");
        }
    }
}

/* Draws the spans of one rank, each in the rank's first free row. */
static void draw_rank(const struct drawing *drawing, const struct span *spans, size_t count)
{
    static uint64_t free_ns[DEPTHS_MAX];
    static uint32_t rows[DEPTHS_MAX];
    const struct trace_record *first = spans[0].taken;
    const char *what = span_is_message(&spans[0]) ? " messages" : "";
    size_t depth_count = 0;
    for (size_t i = 0; i < count; i++) {
        char more[192];
        size_t depth = 0;
        while (depth < depth_count && free_ns[depth] > spans[i].taken->time_ns) {
            depth++;
        }
        depth = depth < DEPTHS_MAX ? depth : DEPTHS_MAX - 1;
        if (depth == depth_count) {
            char number[24] = "";
            if (depth > 0) {
                (void)snprintf(number, sizeof number, " +%zu", depth);
            }
            rows[depth_count++] = put_row(drawing, first->comm_id, (uint64_t)first->row * 8, "rank %u%s%s",
                                          first->row, what, number);
        }
        free_ns[depth] = spans[i].end_ns;
        describe_span(&spans[i], more, sizeof more);
        put_bar(drawing, rows[depth], spans[i].taken, spans[i].taken->time_ns, spans[i].end_ns,
                kind_text(spans[i].taken->kind), more);
        draw_steps(drawing, rows[depth], &spans[i]);
    }
}

static void draw_ranks(const struct drawing *drawing, struct span *spans, size_t count)
{
    qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t begin = 0, end; begin < count; begin = end) {
        for (end = begin + 1; end < count && compare_rows(&spans[begin], &spans[end]) == 0;) {
            end++;
        }
        draw_rank(drawing, &spans[begin], end - begin);
    }
}

/* --- Communicators --- */

static void draw_comm(const struct drawing *drawing, const struct trace_record *const *records, size_t count)
{
    uint32_t row = put_row(drawing, records[0]->comm_id, 0, "events");
    for (size_t i = 0; i < count; i++) {
        const struct trace_record *record = records[i];
        char name[64];
        if (record->event == TRACE_COMM_FORMED) {
            (void)snprintf(name, sizeof name, "formed");
        } else if (record->event == TRACE_COMM_FAILED) {
            (void)snprintf(name, sizeof name, "failed: %s",
                           status_name(status_from_wire((unsigned)record->value)));
        } else if (record->event == TRACE_COMM_LEFT) {
            (void)snprintf(name, sizeof name, "rank %u left", record->row);
        } else {
            (void)snprintf(name, sizeof name, "rank %u takes a message of rank %" PRIu64, record->row,
                           record->value);
        }
        put_bar(drawing, row, record, record->time_ns, 0, name, "");
    }
}

bool trace_draw(const struct trace_fetched *fetched, FILE *out)
{
    struct drawing drawing = {.out = out, .fetched = fetched, .node_id = trace_row_id(fetched->node_name, 0)};
    const struct trace_record **records = calloc(fetched->count + 1, sizeof *records);
    struct span *spans = calloc(fetched->count + 1, sizeof *spans);
    size_t span_count = 0;
    if (spans == NULL || records == NULL) {
        free(records);
        free(spans);
        return false;
    }
    for (size_t i = 0; i < fetched->count; i++) {
        records[i] = &fetched->records[i];
    }
    qsort(records, fetched->count, sizeof *records, compare_records);
    for (size_t begin = 0, end; begin < fetched->count; begin = end) {
        for (end = begin + 1; end < fetched->count && compare_groups(records[begin], records[end]) == 0;) {
            end++;
        }
        switch (group_of(records[begin])) {
        case GROUP_COMM:
            draw_comm(&drawing, &records[begin], end - begin);
            break;
        case GROUP_LANE:
            draw_lane(&drawing, &records[begin], end - begin);
            break;
        case GROUP_OP:
        case GROUP_MESSAGE:
            span_count += find_spans(&drawing, &records[begin], end - begin, &spans[span_count]);
            break;
        }
    }
    draw_ranks(&drawing, spans, span_count);
    free(records);
    free(spans);
    return true;
}
