#include <getopt.h>
#include <stdio.h>

#include "client/commctl/commctl.h"

static const struct column gpu_columns[] = {
    {"index", "GPU", COLUMN_NUMBER},
    {"name", "NAME", COLUMN_TEXT},
    {"bus", "PCI", COLUMN_TEXT},
    {"capability", "SM", COLUMN_TEXT},
    {"used_bytes", "USED", COLUMN_BYTES},
    {"memory_bytes", "MEMORY", COLUMN_BYTES},
    {"memories", "IMPORTS", COLUMN_NUMBER},
    {"memory_imported_bytes", "IMPORTED", COLUMN_BYTES},
    {"memories_by_ipc", "BY IPC", COLUMN_NUMBER},
    {"ranks", "RANKS", COLUMN_NUMBER},
    {"mps_text", "MPS", COLUMN_TEXT},
    {"error", "ERROR", COLUMN_TEXT},
};
static const struct column comm_columns[] = {
    {"index", "GPU", COLUMN_NUMBER},
    {"name", "COMMUNICATOR", COLUMN_TEXT},
    {"ranks", "RANKS", COLUMN_NUMBER},
    {"owner_uid", "UID", COLUMN_NUMBER},
};
static const struct column client_columns[] = {
    {"index", "GPU", COLUMN_NUMBER},        {"pid", "PID", COLUMN_NUMBER},
    {"uid", "UID", COLUMN_NUMBER},          {"program", "PROGRAM", COLUMN_TEXT},
    {"memories", "IMPORTS", COLUMN_NUMBER}, {"memory_bytes", "IMPORTED", COLUMN_BYTES},
};

/* Prints one list of all GPUs as one table; each row has its GPU's number. */
static void print_lists(const json_t *gpus, const char *key, const struct column *columns,
                        size_t column_count)
{
    json_t *rows = json_array();
    size_t index, place;
    json_t *gpu, *row;
    json_array_foreach(gpus, index, gpu)
    {
        json_array_foreach(json_object_get(gpu, key), place, row)
        {
            json_t *copy = json_copy(row);
            json_object_set(copy, "index", json_object_get(gpu, "index"));
            json_array_append_new(rows, copy);
        }
    }
    if (json_array_size(rows) > 0) {
        putchar('\n');
        table_print(rows, columns, column_count);
    }
    json_decref(rows);
}

/* What people want of a row beside what is in the answer. */
static void complete_row(json_t *gpu)
{
    long long ranks = 0;
    size_t index;
    json_t *comm;
    json_array_foreach(json_object_get(gpu, "comms"), index, comm)
    {
        ranks += json_integer_value(json_object_get(comm, "ranks"));
    }
    ranks += json_integer_value(json_object_get(gpu, "other_comms"));
    json_object_set_new(gpu, "ranks", json_integer(ranks));
    json_object_set_new(
        gpu, "capability",
        json_sprintf("%lld.%lld", (long long)json_integer_value(json_object_get(gpu, "capability_major")),
                     (long long)json_integer_value(json_object_get(gpu, "capability_minor"))));
    json_object_set_new(gpu, "mps_text",
                        json_string(json_is_true(json_object_get(gpu, "mps")) ? "on" : "off"));
}

static long long count_of(const json_t *answer, const char *key)
{
    return (long long)json_integer_value(json_object_get(answer, key));
}

/* Who carried out the operations, and what became of NCCL's communicators. */
static void print_engines(const json_t *answer)
{
    const char *error = json_string_value(json_object_get(answer, "nccl_error"));
    printf("operations: %lld by NCCL, %lld by kernels, %lld through the host\n",
           count_of(answer, "operations_by_nccl"), count_of(answer, "operations_by_kernels"),
           count_of(answer, "operations_by_host"));
    if (count_of(answer, "operations_ahead") > 0) {
        printf("operations that waited on a GPU, behind others: %lld\n",
               count_of(answer, "operations_ahead"));
    }
    printf("messages between two GPUs: %lld by NCCL, %lld by copies\n", count_of(answer, "messages_by_nccl"),
           count_of(answer, "messages_by_copies"));
    printf("NCCL communicators: %lld; could not be formed %lld, failed %lld, stuck %lld\n",
           count_of(answer, "nccl_communicators"), count_of(answer, "nccl_refused"),
           count_of(answer, "nccl_failed"), count_of(answer, "nccl_stuck"));
    if (count_of(answer, "nccl_registered_ever") > 0) {
        printf("memory that NCCL has registered: %lld now, %lld since the start; %lld to be freed\n",
               count_of(answer, "nccl_registered"), count_of(answer, "nccl_registered_ever"),
               count_of(answer, "nccl_retired"));
    }
    if (count_of(answer, "nccl_windows_ever") > 0) {
        printf("windows of NCCL: %lld now, %lld since the start\n", count_of(answer, "nccl_windows"),
               count_of(answer, "nccl_windows_ever"));
    }
    if (json_is_true(json_object_get(answer, "nccl_windows_refused"))) {
        printf("windows of NCCL: refused; commd registers memory without them\n");
    }
    if (error != NULL && error[0] != '\0') {
        bool has_nccl = json_string_length(json_object_get(answer, "nccl_version")) > 0;
        printf("%s: %s\n", has_nccl ? "the last failure" : "NCCL is not used", error);
    }
}

static void print_gpus(const json_t *answer)
{
    json_t *gpus = json_object_get(answer, "gpus");
    const char *absent = json_string_value(json_object_get(answer, "absent"));
    const char *nccl = json_string_value(json_object_get(answer, "nccl_version"));
    char pinned[32];
    if (absent != NULL && absent[0] != '\0') {
        printf("no GPUs: %s\n", absent);
        return;
    }
    table_format(json_object_get(answer, "pinned_bytes"), COLUMN_BYTES, pinned, sizeof pinned);
    bool refused = json_is_true(json_object_get(answer, "refuses_ipc_handles"));
    printf("CUDA %s, NCCL %s, %s pinned%s\n", json_string_value(json_object_get(answer, "driver_version")),
           nccl == NULL || nccl[0] == '\0' ? "none" : nccl, pinned,
           refused ? ", legacy IPC handles refused" : "");
    print_engines(answer);
    putchar('\n');
    table_print(gpus, gpu_columns, sizeof gpu_columns / sizeof gpu_columns[0]);
    print_lists(gpus, "comms", comm_columns, sizeof comm_columns / sizeof comm_columns[0]);
    print_lists(gpus, "clients", client_columns, sizeof client_columns / sizeof client_columns[0]);
    long long other_clients = 0;
    size_t index;
    json_t *gpu;
    json_array_foreach(gpus, index, gpu)
    {
        other_clients += json_integer_value(json_object_get(gpu, "other_clients"));
    }
    print_others(other_clients, "client", "clients");
}

/* --- What was measured --- */

static const struct column tuning_columns[] = {
    {"gpus", "GPUS", COLUMN_LIST},        {"kind", "OPERATION", COLUMN_TEXT},
    {"size_bytes", "SIZE", COLUMN_BYTES}, {"nccl_ns", "NCCL", COLUMN_NS},
    {"without_ns", "WITHOUT", COLUMN_NS}, {"faster", "FASTER", COLUMN_TEXT},
};

static void print_tuning(const json_t *answer)
{
    json_t *rows = json_array();
    size_t index, place;
    json_t *set, *row;
    const char *absent = json_string_value(json_object_get(answer, "absent"));
    if (absent != NULL && absent[0] != '\0') {
        printf("no GPUs: %s\n", absent);
    } else if (json_is_true(json_object_get(answer, "tuning_off"))) {
        printf("nothing is measured: there are fewer than two GPUs, no NCCL, or the configuration decides "
               "(gpu_engine, gpu_tuning)\n");
    } else {
        const char *path = json_string_value(json_object_get(answer, "tuning_path"));
        printf("table: %s; sets of GPUs still to be measured: %lld\n",
               path != NULL && path[0] != '\0' ? path : "not kept", count_of(answer, "tunings_wait"));
    }
    json_array_foreach(json_object_get(answer, "tunings"), index, set)
    {
        json_array_foreach(json_object_get(set, "rows"), place, row)
        {
            json_t *copy = json_copy(row);
            bool nccl = count_of(row, "nccl_ns") < count_of(row, "without_ns");
            json_object_set(copy, "gpus", json_object_get(set, "gpus"));
            json_object_set_new(copy, "faster", json_string(nccl ? "NCCL" : "without"));
            json_array_append_new(rows, copy);
        }
    }
    if (json_array_size(rows) > 0) {
        putchar('\n');
        table_print(rows, tuning_columns, sizeof tuning_columns / sizeof tuning_columns[0]);
    }
    json_decref(rows);
}

static const char usage[] = "usage: commctl gpus [--tuning]\n";

static enum exit_code parse(int argc, char **argv, bool *tuning)
{
    static const struct option options[] = {{"tuning", no_argument, NULL, 't'}, {NULL, 0, NULL, 0}};
    optind = 0; /* main has parsed the options before the verb */
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == '?') {
            fputs(usage, stderr);
            return EXIT_CODE_USAGE;
        }
        *tuning = true;
    }
    if (optind < argc) {
        fprintf(stderr, "commctl: gpus: unexpected argument: %s\n%s", argv[optind], usage);
        return EXIT_CODE_USAGE;
    }
    return EXIT_CODE_OK;
}

enum exit_code verb_gpus(struct commctl *commctl, int argc, char **argv)
{
    bool tuning = false;
    enum exit_code parsed = parse(argc, argv, &tuning);
    if (parsed != EXIT_CODE_OK) {
        return parsed;
    }
    Commd__Client__GpusQuery query = COMMD__CLIENT__GPUS_QUERY__INIT;
    query.tuning = tuning;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_GPUS;
    request.gpus = &query;
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_GPUS) {
        json_t *object = json_of_message(&event->reply->gpus->base);
        size_t index;
        json_t *gpu;
        json_array_foreach(json_object_get(object, "gpus"), index, gpu)
        {
            complete_row(gpu);
        }
        output_object(commctl, object, tuning ? print_tuning : print_gpus);
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}
