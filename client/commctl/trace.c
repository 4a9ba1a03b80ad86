#include "client/commctl/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/*
 * commctl trace: writes commd's latest records of operations to a file for Perfetto (ui.perfetto.dev) or
 * chrome://tracing. Files of programs, and of commctl on other nodes, can be drawn beside it: they have one
 * event a line.
 */
#define SECONDS_DEFAULT 5.0
#define SECONDS_MAX 3600.0
#define LINE_MAX_BYTES 4096
#define NS_PER_S 1e9

struct trace_options {
    double seconds;
    const char *path; /* null: standard output */
    char **files;
    int file_count;
};

static const char usage[] = "usage: commctl trace [--seconds S] [-o FILE] [FILE...]\n";

/* --- Records --- */

/* Returns the array with room for one more element; it may have moved. If memory is short, returns null and
 * keeps the array. */
static void *with_room(void *array, size_t element_bytes, size_t count, size_t *capacity)
{
    if (count < *capacity) {
        return array;
    }
    size_t wanted = *capacity == 0 ? 4096 : 2 * *capacity;
    void *space = reallocarray(array, wanted, element_bytes);
    *capacity = space != NULL ? wanted : *capacity;
    return space;
}

static bool keep_record(struct trace_fetched *fetched, const uint8_t *bytes)
{
    struct trace_record *space =
        with_room(fetched->records, sizeof *space, fetched->count, &fetched->capacity);
    if (space == NULL) {
        return false;
    }
    fetched->records = space;
    memcpy(&space[fetched->count++], bytes, sizeof *space);
    return true;
}

static bool knows(const struct trace_fetched *fetched, uint64_t comm_id)
{
    for (size_t i = 0; i < fetched->name_count; i++) {
        if (fetched->names[i].comm_id == comm_id) {
            return true;
        }
    }
    return false;
}

static bool keep_name(struct trace_fetched *fetched, const Commd__Client__TraceComm *comm)
{
    if (knows(fetched, comm->comm_id)) {
        return true;
    }
    struct trace_name *space =
        with_room(fetched->names, sizeof *space, fetched->name_count, &fetched->name_capacity);
    char *name = strdup(comm->name);
    if (space != NULL) {
        fetched->names = space;
    }
    if (space == NULL || name == NULL) {
        free(name);
        return false;
    }
    space[fetched->name_count++] = (struct trace_name){.comm_id = comm->comm_id, .name = name};
    return true;
}

static bool keep_page(struct trace_fetched *fetched, const Commd__Client__TraceReply *page)
{
    bool kept = true;
    fetched->count = page->cut ? 0 : fetched->count;
    fetched->cut = fetched->cut || page->cut;
    for (size_t at = 0; kept && page->records.len - at >= sizeof(struct trace_record);
         at += sizeof(struct trace_record)) {
        kept = keep_record(fetched, page->records.data + at);
    }
    for (size_t i = 0; kept && i < page->n_comms; i++) {
        kept = keep_name(fetched, page->comms[i]);
    }
    return kept;
}

static enum exit_code ask(struct commctl *commctl, Commd__Client__TraceQuery *query,
                          Commd__Client__Event **event)
{
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_TRACE;
    request.trace = query;
    enum exit_code code = connection_request(commctl, &request, event);
    if (code == EXIT_CODE_OK && (*event)->reply->body_case != COMMD__CLIENT__REPLY__BODY_TRACE) {
        fprintf(stderr, "commctl: commd answered another request\n");
        commd__client__event__free_unpacked(*event, NULL);
        *event = NULL;
        code = EXIT_CODE_FAILURE;
    }
    return code;
}

static void wait_seconds(double seconds)
{
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec = (long)((seconds - (double)(time_t)seconds) * NS_PER_S)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* If commd does not record, turns recording on; then the seconds to show are still to come. */
static enum exit_code begin(struct commctl *commctl, const struct trace_options *options,
                            Commd__Client__TraceQuery *query, struct trace_fetched *fetched)
{
    Commd__Client__Event *event;
    query->next = query->end = UINT64_MAX; /* an empty page */
    enum exit_code code = ask(commctl, query, &event);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    const Commd__Client__TraceReply *reply = event->reply->trace;
    bool is_on = (reply->areas & TRACE_AREA_OP) != 0;
    uint64_t length_ns = (uint64_t)(options->seconds * NS_PER_S);
    query->next = query->end = 0;
    query->record = !is_on;
    query->since_ns = is_on && reply->now_ns > length_ns ? reply->now_ns - length_ns : reply->now_ns;
    fetched->node_name = strdup(reply->node_name);
    commd__client__event__free_unpacked(event, NULL);
    if (fetched->node_name == NULL) {
        fprintf(stderr, "commctl: no memory\n");
        return EXIT_CODE_FAILURE;
    }
    if (is_on) {
        return EXIT_CODE_OK;
    }
    code = ask(commctl, query, &event);
    commd__client__event__free_unpacked(event, NULL);
    if (code == EXIT_CODE_OK) {
        fprintf(stderr, "commctl: recording for %g s\n", options->seconds);
        wait_seconds(options->seconds);
    }
    query->record = false;
    return code;
}

static enum exit_code fetch(struct commctl *commctl, const struct trace_options *options,
                            struct trace_fetched *fetched)
{
    Commd__Client__TraceQuery query = COMMD__CLIENT__TRACE_QUERY__INIT;
    Commd__Client__Event *event;
    long long others = 0;
    enum exit_code code = begin(commctl, options, &query, fetched);
    do {
        code = code == EXIT_CODE_OK ? ask(commctl, &query, &event) : code;
        if (code != EXIT_CODE_OK) {
            return code;
        }
        const Commd__Client__TraceReply *page = event->reply->trace;
        fetched->end_ns = fetched->end_ns == 0 ? page->now_ns : fetched->end_ns;
        query.next = page->cursor;
        query.end = page->end;
        others += (long long)page->others;
        if (!keep_page(fetched, page)) {
            fprintf(stderr, "commctl: no memory for the trace\n");
            code = EXIT_CODE_FAILURE;
        }
        commd__client__event__free_unpacked(event, NULL);
    } while (query.next != 0);
    if (code == EXIT_CODE_OK && others > 0) {
        fprintf(stderr, "commctl: left out %lld records of other users\n", others);
    }
    if (code == EXIT_CODE_OK && fetched->cut && fetched->count > 0) {
        fprintf(stderr, "commctl: newer records have overwritten older ones; what is left covers %.2f s\n",
                (double)(fetched->end_ns - fetched->records[0].time_ns) / NS_PER_S);
    }
    return code;
}

/* --- Files --- */

/* Microseconds from the clock of its node's events to the time of day. */
static double clock_offset_us(void)
{
    struct timespec real, monotonic;
    clock_gettime(CLOCK_REALTIME, &real);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    return (double)(real.tv_sec - monotonic.tv_sec) * 1e6 + (double)(real.tv_nsec - monotonic.tv_nsec) / 1e3;
}

/*
 * Copies the events of another file. Events of another node have that node's clock. The times of day of the
 * two nodes align them, as exactly as these agree.
 */
static void put_file(FILE *in, FILE *out, uint32_t node_id)
{
    static char line[LINE_MAX_BYTES];
    double shift_us = 0;
    while (fgets(line, sizeof line, in) != NULL) {
        json_t *event = json_loads(line + strspn(line, ", "), JSON_DISABLE_EOF_CHECK, NULL);
        const char *name = json_string_value(json_object_get(event, "name"));
        if (name != NULL && strcmp(name, TRACE_CLOCK_EVENT) == 0 &&
            json_integer_value(json_object_get(event, "pid")) != node_id) {
            const json_t *offset = json_object_get(json_object_get(event, "args"), "offset_us");
            shift_us = json_number_value(offset) - clock_offset_us();
        }
        json_t *time = json_object_get(event, "ts");
        if (json_is_number(time) && shift_us != 0) {
            json_object_set_new(event, "ts", json_real(json_number_value(time) + shift_us));
        }
        if (json_is_object(event)) {
            fputs(",\n", out);
            json_dumpf(event, out, JSON_COMPACT);
        }
        json_decref(event);
    }
}

static enum exit_code put_files(const struct trace_options *options, uint32_t node_id, FILE *out)
{
    for (int i = 0; i < options->file_count; i++) {
        FILE *in = fopen(options->files[i], "re");
        if (in == NULL) {
            fprintf(stderr, "commctl: %s: %s\n", options->files[i], strerror(errno));
            return EXIT_CODE_FAILURE;
        }
        put_file(in, out, node_id);
        fclose(in);
    }
    return EXIT_CODE_OK;
}

static enum exit_code put_all(const struct trace_options *options, const struct trace_fetched *fetched,
                              FILE *out)
{
    uint32_t node_id = trace_row_id(fetched->node_name, 0);
    fprintf(out,
            "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n"
            "{\"ph\":\"M\",\"pid\":%u,\"name\":\"process_name\",\"args\":{\"name\":\"%s\"}},\n"
            "{\"ph\":\"M\",\"pid\":%u,\"name\":\"" TRACE_CLOCK_EVENT "\",\"args\":{\"offset_us\":%.3f}}",
            node_id, fetched->node_name, node_id, clock_offset_us());
    if (!trace_draw(fetched, out)) {
        fprintf(stderr, "commctl: no memory for the trace\n");
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = put_files(options, node_id, out);
    fputs("\n]}\n", out);
    return code;
}

/* --- Where the trace goes --- */

struct output {
    const char *path; /* null: standard output */
    FILE *direct;     /* standard output, a pipe or a device; null: the file is replaced at the end */
    char temporary[PATH_MAX + 16]; /* beside the file */
    mode_t mode;                   /* of the file */
};

static enum exit_code output_failed(const struct output *out, int failure)
{
    fprintf(stderr, "commctl: %s: %s\n", out->path, strerror(failure));
    return EXIT_CODE_FAILURE;
}

static int open_temporary(struct output *out)
{
    (void)snprintf(out->temporary, sizeof out->temporary, "%s.XXXXXX", out->path);
    return mkostemp(out->temporary, O_CLOEXEC);
}

/* A recording takes up to an hour, so what would lose it is said before. Until there is a trace, the file
 * keeps what it has, and nothing stands beside it. */
static enum exit_code output_prepare(struct output *out)
{
    struct stat old;
    if (out->path == NULL) {
        out->direct = stdout;
        return EXIT_CODE_OK;
    }
    if (strlen(out->path) >= PATH_MAX) {
        return output_failed(out, ENAMETOOLONG);
    }
    bool exists = lstat(out->path, &old) == 0;
    if (exists && !S_ISREG(old.st_mode)) {
        int fd = open(out->path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666); /* a link, a pipe or a device */
        out->direct = fd >= 0 ? fdopen(fd, "w") : NULL;
        return out->direct != NULL ? EXIT_CODE_OK : output_failed(out, errno);
    }
    mode_t mask = umask(0);
    (void)umask(mask);
    out->mode = exists ? old.st_mode & 07777 : 0666 & ~mask;
    int fd = open_temporary(out);
    if (fd < 0) {
        return output_failed(out, errno);
    }
    close(fd);
    unlink(out->temporary);
    return EXIT_CODE_OK;
}

static void output_free(struct output *out)
{
    if (out->direct != NULL && out->direct != stdout) {
        fclose(out->direct);
    }
}

static bool is_output(const struct output *out, FILE *in)
{
    struct stat first, second;
    bool known = out->direct != NULL ? fstat(fileno(out->direct), &first) == 0 : stat(out->path, &first) == 0;
    return known && fstat(fileno(in), &second) == 0 && S_ISREG(first.st_mode) &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

static enum exit_code check_files(const struct trace_options *options, const struct output *out)
{
    for (int i = 0; i < options->file_count; i++) {
        FILE *in = fopen(options->files[i], "re");
        if (in == NULL) {
            fprintf(stderr, "commctl: %s: %s\n", options->files[i], strerror(errno));
            return EXIT_CODE_FAILURE;
        }
        bool is_same = is_output(out, in);
        fclose(in);
        if (is_same) {
            return usage_wrong("trace", "-o", options->path, "another file than those that are read", usage);
        }
    }
    return EXIT_CODE_OK;
}

/* Nothing stays beside the file if a signal ends commctl: they come before or after this. */
static enum exit_code replace_file(struct output *out, const char *text, size_t bytes)
{
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &before);
    int fd = open_temporary(out);
    FILE *file = fd >= 0 ? fdopen(fd, "w") : NULL;
    bool written = file != NULL && fwrite(text, 1, bytes, file) == bytes && fflush(file) == 0 &&
                   fchmod(fd, out->mode) == 0 && rename(out->temporary, out->path) == 0;
    int failure = errno;
    if (fd >= 0 && !written) {
        unlink(out->temporary);
    }
    if (file != NULL) {
        fclose(file);
    } else if (fd >= 0) {
        close(fd);
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return written ? EXIT_CODE_OK : output_failed(out, failure);
}

static enum exit_code write_trace(const struct trace_options *options, const struct trace_fetched *fetched,
                                  struct output *out)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *memory = open_memstream(&text, &bytes);
    if (memory == NULL) {
        fprintf(stderr, "commctl: no memory for the trace\n");
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = put_all(options, fetched, memory);
    if ((fclose(memory) != 0 || text == NULL) && code == EXIT_CODE_OK) {
        fprintf(stderr, "commctl: no memory for the trace\n");
        code = EXIT_CODE_FAILURE;
    }
    if (code == EXIT_CODE_OK && out->direct == NULL) {
        code = replace_file(out, text, bytes);
    } else if (code == EXIT_CODE_OK) {
        bool written = fwrite(text, 1, bytes, out->direct) == bytes && fflush(out->direct) == 0;
        /* If standard output cannot be written, output_finish() says so. */
        code = written || out->path == NULL ? code : output_failed(out, errno);
    }
    free(text);
    return code;
}

static enum exit_code parse(int argc, char **argv, struct trace_options *options)
{
    static const struct option names[] = {
        {"seconds", required_argument, NULL, 's'}, {"output", required_argument, NULL, 'o'}, {0}};
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, "s:o:", names, NULL)) != -1;) {
        char *end;
        if (option == '?') {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        if (option == 'o') {
            options->path = strcmp(optarg, "-") == 0 ? NULL : optarg;
            continue;
        }
        options->seconds = strtod(optarg, &end);
        if (end == optarg || *end != '\0' || !(options->seconds > 0 && options->seconds <= SECONDS_MAX)) {
            return usage_wrong("trace", "--seconds", optarg, "seconds, more than 0 and at most 3600", usage);
        }
    }
    options->files = argv + optind;
    options->file_count = argc - optind;
    return EXIT_CODE_OK;
}

enum exit_code verb_trace(struct commctl *commctl, int argc, char **argv)
{
    struct trace_options options = {.seconds = SECONDS_DEFAULT};
    struct trace_fetched fetched = {.node_name = NULL};
    enum exit_code code = parse(argc, argv, &options);
    if (code != EXIT_CODE_OK) {
        return code;
    }
    struct output out = {.path = options.path};
    code = output_prepare(&out);
    code = code == EXIT_CODE_OK ? check_files(&options, &out) : code;
    code = code == EXIT_CODE_OK ? fetch(commctl, &options, &fetched) : code;
    code = code == EXIT_CODE_OK ? write_trace(&options, &fetched, &out) : code;
    output_free(&out);
    for (size_t i = 0; i < fetched.name_count; i++) {
        free(fetched.names[i].name);
    }
    free(fetched.names);
    free(fetched.records);
    free(fetched.node_name);
    return code;
}
