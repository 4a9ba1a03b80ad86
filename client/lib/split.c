#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

/*
 * A split begins with an all-gather of every rank's color and key. Then every rank knows all members of its
 * part, and joins a new communicator. Its name is made from the parent's id, so only this split of this
 * communicator can have it.
 */

#define SPLIT_MARK '~'
#define SPLIT_PREFIX_MAX_BYTES 96

struct wish {
    int32_t color;
    int32_t key;
};

struct part {
    uint32_t rank;
    uint32_t size;
};

/* Where this rank stands among those of its color: by key, then by rank. */
static struct part find_part(const struct wish *wishes, uint32_t size, uint32_t self)
{
    struct part part = {0};
    for (uint32_t rank = 0; rank < size; rank++) {
        if (wishes[rank].color != wishes[self].color) {
            continue;
        }
        bool before =
            wishes[rank].key < wishes[self].key || (wishes[rank].key == wishes[self].key && rank < self);
        part.rank += before;
        part.size++;
    }
    return part;
}

/* FNV-1a, 64 bits. */
static uint64_t digest(const uint64_t *words, size_t count)
{
    const unsigned char *bytes = (const unsigned char *)words;
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < count * sizeof *words; i++) {
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    }
    return hash;
}

static void part_name(const struct comm_comm *comm, uint32_t split, int32_t color, char *out, size_t size)
{
    const char *mark = strchr(comm->name, SPLIT_MARK);
    size_t length = mark != NULL ? (size_t)(mark - comm->name) : strlen(comm->name);
    uint64_t words[] = {comm->comm_id, split, (uint64_t)(uint32_t)color};
    length = length < SPLIT_PREFIX_MAX_BYTES ? length : SPLIT_PREFIX_MAX_BYTES;
    (void)snprintf(out, size, "%.*s%c%016" PRIx64, (int)length, comm->name, SPLIT_MARK, digest(words, 3));
}

static comm_result_t exchange(struct comm_comm *comm, const struct wish *own, struct wish *wishes)
{
    comm_request_t *request = NULL;
    comm_call_options_t options = COMM_CALL_OPTIONS_INIT;
    options.request = &request;
    options.stream = COMM_STREAM_NONE;
    comm_result_t result =
        comm_all_gather(comm, own, wishes, sizeof *own / sizeof own->color, COMM_I32, &options);
    result = result == COMM_OK ? comm_wait(&request, NULL) : result;
    /* The text names the collectives that the ranks called. This one called comm_split. */
    return result == COMM_MISMATCH ? error_within(result, "comm_split") : result;
}

comm_result_t comm_split(comm_t *comm, int32_t color, int32_t key, comm_t **out)
{
    struct wish own = {.color = color, .key = key};
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_split: the argument for the communicator is a null pointer");
    }
    *out = NULL;
    if (comm == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_split: the communicator is a null pointer");
    }
    if (color < COMM_COLOR_NONE) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_split on \"%s\": color %d: expected 0 or more, or COMM_COLOR_NONE (%d)",
                            comm->name, color, COMM_COLOR_NONE);
    }
    comm_result_t waits = group_allows_wait("comm_split", comm->name);
    if (waits != COMM_OK) {
        return waits;
    }
    struct wish *wishes = calloc(comm->size, sizeof *wishes);
    if (wishes == NULL) {
        return error_report(COMM_NO_MEMORY, "comm_split on \"%s\": no memory for %u ranks", comm->name,
                            comm->size);
    }
    comm_result_t result = exchange(comm, &own, wishes);
    struct part part = result == COMM_OK ? find_part(wishes, comm->size, comm->rank) : (struct part){0};
    free(wishes);
    if (result != COMM_OK) {
        return result;
    }
    char name[COMM_NAME_MAX_BYTES + 1];
    result = client_enter(comm->client);
    if (result != COMM_OK) {
        return result;
    }
    uint32_t split = comm->split_count++;
    client_leave(comm->client);
    if (color == COMM_COLOR_NONE) {
        return COMM_OK;
    }
    part_name(comm, split, color, name, sizeof name);
    return member_split_off(comm, name, part.rank, part.size, &comm->options, out);
}
