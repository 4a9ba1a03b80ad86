#include "trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WORDS_MAX (TRACE_WEIGHTS_MAX + 4)
#define BYTES_MAX 4e9
/* Places are multiples of this: contest_value repeats after 13 elements, and buffers are aligned to 64 bytes.
 */
#define PLACE_ELEMENTS (13 * 16)

struct reader {
    const char *path;
    int line;
    int size;
    double scale;
    struct trace *trace;
    size_t top;                    /* the first element that nothing started uses */
    int started;                   /* since the last wait */
    unsigned repeat_from, repeats; /* repeats is 0 outside of repeat */
};

static bool refuse(const struct reader *reader, const char *what, const char *word)
{
    fprintf(stderr, "%s:%d: %s%s%s\n", reader->path, reader->line, what, word != NULL ? ": " : "",
            word != NULL ? word : "");
    return false;
}

static bool to_number(const char *word, double least, double most, double *out)
{
    char *end;
    *out = strtod(word, &end);
    return end != word && *end == '\0' && *out >= least && *out <= most;
}

static size_t blocks_of(enum contest_kind kind, int size)
{
    return kind == CONTEST_ALL_GATHER || kind == CONTEST_REDUCE_SCATTER || kind == CONTEST_ALL_TO_ALL
               ? (size_t)size
               : 1;
}

/* Divides the elements by weight. The last rank gets what rounding leaves. */
static void divide(struct trace_step *step, int size)
{
    double total = 0;
    size_t left = step->count;
    for (int to = 0; to < size; to++) {
        total += step->weights[to % step->weight_count];
    }
    for (int to = 0; to < size; to++) {
        double part = step->weights[to % step->weight_count] / total;
        size_t share = to == size - 1 ? left : (size_t)(part * (double)step->count);
        step->parts[to] = share < left ? share : left;
        left -= step->parts[to];
    }
}

static struct trace_step *add(struct reader *reader)
{
    struct trace *trace = reader->trace;
    if (trace->step_count == TRACE_STEPS_MAX) {
        refuse(reader, "too many steps", NULL);
        return NULL;
    }
    return &trace->steps[trace->step_count++];
}

/* An operation that is started keeps its place until the wait. What runs at once may use the next one again.
 */
static bool take_place(struct reader *reader, struct trace_step *step)
{
    size_t most = step->count;
    if (step->kind == CONTEST_ALL_TO_ALL_V) {
        divide(step, reader->size);
        for (int to = 0; to < reader->size; to++) { /* the rank that gets most gets this from every rank */
            most =
                step->parts[to] * (size_t)reader->size > most ? step->parts[to] * (size_t)reader->size : most;
        }
    }
    size_t end = reader->top + (most + PLACE_ELEMENTS - 1) / PLACE_ELEMENTS * PLACE_ELEMENTS;
    step->at = reader->top;
    step->index = reader->started;
    reader->trace->elements = end > reader->trace->elements ? end : reader->trace->elements;
    if (step->action == TRACE_START) {
        if (reader->started == CONTEST_STARTED_MAX) {
            return refuse(reader, "too many operations are started before a wait", NULL);
        }
        reader->started++;
        reader->top = end;
    }
    return true;
}

/* words: what follows the bytes. */
static bool take_weights(const struct reader *reader, struct trace_step *step, char **words, int count)
{
    step->goes_back = count > 0 && strcmp(words[0], "back") == 0;
    words += step->goes_back;
    step->weight_count = count - step->goes_back;
    if (step->weight_count < 1 || step->weight_count > TRACE_WEIGHTS_MAX) {
        return refuse(reader, "expected 1 to 16 weights after the bytes", NULL);
    }
    for (int i = 0; i < step->weight_count; i++) {
        if (!to_number(words[i], 1e-3, 1e3, &step->weights[i])) {
            return refuse(reader, "expected a weight of 0.001 to 1000", words[i]);
        }
    }
    return true;
}

static bool add_operation(struct reader *reader, enum trace_action action, char **words, int count)
{
    double bytes = 0;
    enum contest_kind kind = count > 0 ? contest_kind_find(words[0], strlen(words[0])) : CONTEST_KINDS;
    if (kind == CONTEST_KINDS) {
        return refuse(reader, "unknown word", count > 0 ? words[0] : "nothing follows start");
    }
    bool has_weights = kind == CONTEST_ALL_TO_ALL_V;
    int used = kind == CONTEST_BARRIER ? 1 : 2;
    if (used == 2 && (count < 2 || !to_number(words[1], 1, BYTES_MAX, &bytes))) {
        return refuse(reader, "expected bytes, at most 4e9, after", words[0]);
    }
    if (count > used && !has_weights) {
        return refuse(reader, "too many words after", words[0]);
    }
    struct trace_step *step = add(reader);
    if (step == NULL) {
        return false;
    }
    size_t blocks = blocks_of(kind, reader->size);
    size_t elements = (size_t)(bytes * reader->scale / sizeof(float)) / blocks * blocks;
    *step = (struct trace_step){
        .action = action, .kind = kind, .count = used == 2 && elements == 0 ? blocks : elements};
    return (!has_weights || take_weights(reader, step, words + used, count - used)) &&
           take_place(reader, step);
}

static bool add_compute(struct reader *reader, char **words, int count)
{
    double duration_us;
    if (count != 2 || !to_number(words[1], 0, 1e7, &duration_us)) {
        return refuse(reader, "expected microseconds, at most 1e7, after compute", NULL);
    }
    struct trace_step *step = add(reader);
    if (step != NULL) {
        *step = (struct trace_step){.action = TRACE_COMPUTE, .compute_us = duration_us * reader->scale};
    }
    return step != NULL;
}

static bool add_wait(struct reader *reader)
{
    struct trace_step *step = add(reader);
    if (step != NULL) {
        *step = (struct trace_step){.action = TRACE_WAIT};
        reader->started = 0;
        reader->top = 0;
    }
    return step != NULL;
}

static bool begin_repeat(struct reader *reader, char **words, int count)
{
    double times;
    if (reader->repeats != 0 || reader->started != 0) {
        return refuse(reader, "repeat within a repeat, or with operations that are not waited for", NULL);
    }
    if (count != 2 || !to_number(words[1], 1, TRACE_STEPS_MAX, &times)) {
        return refuse(reader, "expected a number of repeats after repeat", NULL);
    }
    reader->repeats = (unsigned)times;
    reader->repeat_from = reader->trace->step_count;
    return true;
}

static bool end_repeat(struct reader *reader)
{
    struct trace *trace = reader->trace;
    unsigned length = trace->step_count - reader->repeat_from;
    if (reader->repeats == 0 || reader->started != 0) {
        return refuse(reader, "end without repeat, or with operations that are not waited for", NULL);
    }
    for (unsigned i = 0; i < length * (reader->repeats - 1); i++) {
        struct trace_step *step = add(reader);
        if (step == NULL) {
            return false;
        }
        *step = trace->steps[reader->repeat_from + i % length];
    }
    reader->repeats = 0;
    return true;
}

static bool read_line(struct reader *reader, char *text)
{
    char *words[WORDS_MAX], *state = NULL;
    int count = 0;
    text[strcspn(text, "#\n")] = '\0';
    for (char *word = strtok_r(text, " \t\r", &state); word != NULL; word = strtok_r(NULL, " \t\r", &state)) {
        if (count == WORDS_MAX) {
            return refuse(reader, "too many words", NULL);
        }
        words[count++] = word;
    }
    if (count == 0) {
        return true;
    }
    if (strcmp(words[0], "compute") == 0) {
        return add_compute(reader, words, count);
    }
    if (strcmp(words[0], "repeat") == 0) {
        return begin_repeat(reader, words, count);
    }
    if (strcmp(words[0], "end") == 0 || strcmp(words[0], "wait") == 0) {
        return count != 1           ? refuse(reader, "too many words after", words[0])
               : words[0][0] == 'e' ? end_repeat(reader)
                                    : add_wait(reader);
    }
    bool starts = strcmp(words[0], "start") == 0;
    return add_operation(reader, starts ? TRACE_START : TRACE_RUN, words + starts, count - starts);
}

bool trace_read(const char *path, int size, double scale, struct trace *trace)
{
    struct reader reader = {.path = path, .size = size, .scale = scale, .trace = trace};
    char line[512];
    FILE *file = fopen(path, "r");
    *trace = (struct trace){.steps = calloc(TRACE_STEPS_MAX, sizeof *trace->steps)};
    bool fine = file != NULL && trace->steps != NULL;
    if (!fine) {
        perror(path);
    }
    while (fine && fgets(line, sizeof line, file) != NULL) {
        reader.line++;
        fine = strchr(line, '\n') != NULL || feof(file) ? read_line(&reader, line)
                                                        : refuse(&reader, "the line is too long", NULL);
    }
    if (fine && (reader.repeats != 0 || reader.started != 0 || trace->step_count == 0)) {
        fine = refuse(&reader,
                      reader.repeats != 0   ? "repeat without end"
                      : reader.started != 0 ? "an operation is started and not waited for"
                                            : "the trace is empty",
                      NULL);
    }
    if (file != NULL) {
        fclose(file);
    }
    if (!fine) {
        trace_free(trace);
    }
    return fine;
}

void trace_free(struct trace *trace)
{
    free(trace->steps);
    trace->steps = NULL;
}
