#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"

comm_failure_t failure_data(comm_result_t result, const char *operation)
{
    comm_failure_t data = COMM_FAILURE_INIT;
    data.result = result;
    data.operation = operation;
    return data;
}

comm_failure_t failure_from_message(const Commd__Client__Failure *message)
{
    static_assert(COMM_FAILURE_RANKS_MAX == CLIENT_FAILURE_RANKS_MAX, "commclient/failure.h");
    bool has_kind = message->kind > 0 && message->kind <= OP_KIND_COUNT;
    comm_failure_t data =
        failure_data(COMM_OK, has_kind ? op_kind_text((enum op_kind)(message->kind - 1)) : "");
    size_t listed = message->n_ranks < COMM_FAILURE_RANKS_MAX ? message->n_ranks : COMM_FAILURE_RANKS_MAX;
    data.seq = message->seq;
    data.rank_count = message->rank_count;
    for (size_t i = 0; i < listed; i++) {
        data.ranks[i] = message->ranks[i];
        data.pids[i] = i < message->n_pids ? message->pids[i] : 0;
    }
    if (data.rank_count < listed || listed < COMM_FAILURE_RANKS_MAX) {
        data.rank_count = (uint32_t)listed; /* a count without ranks would show ranks that are none */
    }
    (void)snprintf(data.node, sizeof data.node, "%s", message->node);
    return data;
}

struct client_failure *failure_new(const comm_failure_t *data, const char *text)
{
    size_t length = strnlen(text, ERROR_TEXT_BYTES - 1);
    struct client_failure *failure = malloc(sizeof *failure + length + 1);
    if (failure != NULL) {
        memcpy(failure->text, text, length);
        failure->text[length] = '\0';
        failure->next = NULL;
        failure->owner = NULL;
        failure->data = *data;
        failure->data.text = failure->text;
    }
    return failure;
}

const comm_failure_t *failure_plain(comm_result_t result)
{
    static const comm_failure_t failures[STATUS_COUNT] = {
#define X(name, number, short_text)                                                                          \
    [number] = {.struct_size = sizeof(comm_failure_t),                                                       \
                .result = COMM_##name,                                                                       \
                .operation = "",                                                                             \
                .text = (short_text)},
        STATUS_LIST(X)
#undef X
    };
    return &failures[(unsigned)result < STATUS_COUNT ? result : COMM_INTERNAL];
}
