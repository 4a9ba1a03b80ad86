#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/lib/internal.h"

/*
 * The program's side of a trace: a bar for each operation, from its submission until the library saw its end.
 * The file has one event a line, and Perfetto reads it as it is. commctl trace draws it beside commd's own
 * bars; both use CLOCK_MONOTONIC. Each line is written at once, so a program that hangs has its trace.
 */
#define OPS_MAX 1000000u /* of one connection; later ones are not written: about 250 MB */

struct client_trace {
    FILE *file;
    uint32_t node_id;
    uint32_t left; /* of OPS_MAX */
};

static FILE *open_file(void)
{
    char path[4096];
    const char *pattern = secure_getenv(TRACE_FILE_ENVIRONMENT);
    pattern = pattern != NULL && pattern[0] != '\0' ? pattern : TRACE_FILE_DEFAULT;
    const char *mark = strstr(pattern, "%p");
    int length = mark == NULL ? snprintf(path, sizeof path, "%s", pattern)
                              : snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - pattern), pattern,
                                         (int)getpid(), mark + 2);
    return length > 0 && (size_t)length < sizeof path ? fopen(path, "ae") : NULL;
}

void trace_open(struct comm_client *client, const char *node_name)
{
    unsigned areas;
    if (!trace_areas_parse(secure_getenv(TRACE_ENVIRONMENT), &areas) || (areas & TRACE_AREA_OP) == 0) {
        return;
    }
    struct client_trace *trace = calloc(1, sizeof *trace);
    FILE *file = trace != NULL ? open_file() : NULL;
    if (file == NULL) {
        free(trace);
        return;
    }
    (void)setvbuf(file, NULL, _IOLBF, BUFSIZ);
    *trace = (struct client_trace){.file = file, .node_id = trace_row_id(node_name, 0), .left = OPS_MAX};
    if (fseek(file, 0, SEEK_END) == 0 &&
        ftell(file) == 0) { /* Chrome's format lets the bracket at the end be missing */
        fprintf(file, "[\n");
    }
    client->trace = trace;
}

void trace_close(struct client_trace *trace)
{
    if (trace != NULL) {
        fclose(trace->file);
        free(trace);
    }
}

/* The name in JSON: communicators' names are printable. */
static const char *escaped(const char *name, char out[2 * COMM_NAME_MAX_BYTES + 1])
{
    char *to = out;
    const char *last = out + (size_t)2 * COMM_NAME_MAX_BYTES;
    for (; *name != '\0' && to < last - 1; name++) {
        if (*name == '"' || *name == '\\') {
            *to++ = '\\';
        }
        *to++ = *name;
    }
    *to = '\0';
    return out;
}

/* Bars of one row do not overlap: the first row whose last bar ended before this one begins. */
static uint32_t choose_row(const struct client_trace *trace, struct comm_comm *comm, const char *name,
                           uint64_t begin_ns, uint64_t end_ns)
{
    char label[64];
    uint32_t row = 0;
    while (row < comm->trace_row_count && row < TRACE_ROWS_MAX - 1 &&
           comm->trace_row_ends_ns[row] > begin_ns) {
        row++;
    }
    comm->trace_row_ends_ns[row] = end_ns;
    (void)snprintf(label, sizeof label, row == 0 ? "rank %u program" : "rank %u program +%u", comm->rank,
                   row);
    uint32_t id = trace_row_id(label, comm->comm_id);
    if (row == comm->trace_row_count) {
        comm->trace_row_count++;
        fprintf(
            trace->file,
            "{\"ph\":\"M\",\"pid\":%u,\"tid\":%u,\"name\":\"thread_name\",\"args\":{\"name\":\"%s %s\"}},\n",
            trace->node_id, id, name, label);
    }
    return id;
}

void trace_write_op(struct client_trace *trace, struct comm_comm *comm, const struct client_op *op,
                    comm_result_t result)
{
    char name[2 * COMM_NAME_MAX_BYTES + 1];
    uint64_t begin_ns = op->submitted_ns, end_ns = clock_ns();
    if (trace->left == 0) {
        return;
    }
    trace->left--;
    uint32_t row = choose_row(trace, comm, escaped(comm->name, name), begin_ns, end_ns);
    fprintf(trace->file,
            "{\"ph\":\"X\",\"pid\":%u,\"tid\":%u,\"ts\":%" PRIu64 ".%03u,\"dur\":%" PRIu64
            ".%03u,\"name\":\"%s\",\"args\":{\"communicator\":\"%s\",\"ticket\":%" PRIu64
            ",\"kind\":\"%s\",\"rank\":%u,\"pid\":%d,\"status\":\"%s\"}},\n",
            trace->node_id, row, begin_ns / 1000, (unsigned)(begin_ns % 1000), (end_ns - begin_ns) / 1000,
            (unsigned)((end_ns - begin_ns) % 1000), op_kind_text(op->kind), name, op->ticket,
            op_kind_text(op->kind), comm->rank, (int)getpid(), status_name((enum status)result));
}
