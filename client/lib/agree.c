#include "client/lib/internal.h"

/*
 * comm_agree: commclient/recovery.h.
 *
 * Ranks reduce their flags, and then wait for each other. If both end well, every rank has the result. If the
 * communicator fails meanwhile, what its nodes agreed on says whether the reduction has ended on all
 * survivors. If it has, they return its result: those for which the wait ended well have returned it before.
 * If it has not, no rank has returned anything, because the wait ends well only after the reduction has ended
 * everywhere. Then the survivors agree again, as the next communicator.
 */

static const char abort_reason[] = "comm_agree: a rank did not call it in time";

/* The number of the last collective that this rank has submitted. */
static comm_result_t ask_seq(comm_t *comm, uint64_t *seq)
{
    Commd__Client__CommTable body = COMMD__CLIENT__COMM_TABLE__INIT;
    body.handle = comm->handle;
    body.first_rank = comm->size;
    body.first_node = comm->node_count;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_TABLE;
    request.comm_table = &body;
    struct client_question question = {.what = "agreeing",
                                       .expected = COMMD__CLIENT__REPLY__BODY_COMM_TABLE,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(REQUEST_TIMEOUT_MS)};
    Commd__Client__Event *event;
    comm_result_t result = client_enter(comm->client);
    if (result != COMM_OK) {
        return result;
    }
    result = client_ask(comm->client, &request, &question, &event, NULL);
    if (result == COMM_OK) {
        *seq = event->reply->comm_table->last_seq;
        commd__client__event__free_unpacked(event, NULL);
    }
    client_leave(comm->client);
    return result;
}

/* *unsent: the other ranks have seen nothing of this call, for example because memory was short. */
static comm_result_t reduce(comm_t *comm, const uint64_t *mine, uint64_t *all, uint32_t timeout_ms,
                            bool *unsent)
{
    comm_call_options_t call = COMM_CALL_OPTIONS_INIT;
    comm_request_t *request = NULL;
    call.timeout_ms = timeout_ms;
    call.stream = COMM_STREAM_NONE;
    call.request = &request;
    comm_result_t result = comm_all_reduce(comm, mine, all, 1, COMM_U64, COMM_BAND, &call);
    *unsent = result == COMM_LIMIT || result == COMM_NO_MEMORY;
    result = result == COMM_OK ? comm_wait(&request, NULL) : result;
    /* The text names the collectives that the ranks called. This one called comm_agree. */
    return result == COMM_MISMATCH ? error_within(result, "comm_agree") : result;
}

static comm_result_t meet(comm_t *comm, uint32_t timeout_ms)
{
    comm_call_options_t call = COMM_CALL_OPTIONS_INIT;
    comm_request_t *request = NULL;
    call.timeout_ms = timeout_ms;
    call.stream = COMM_STREAM_NONE;
    call.request = &request;
    comm_result_t result = comm_barrier(comm, &call);
    return result == COMM_OK ? comm_wait(&request, NULL) : result;
}

static bool has_failed(const comm_t *comm)
{
    pthread_mutex_lock(&comm->client->lock);
    bool failed = comm->failure != COMM_OK || comm->verdict_is_due;
    client_leave(comm->client);
    return failed;
}

/* The failure of an operation becomes the communicator's, so that its nodes agree. */
static void fail_everywhere(comm_t *comm, const struct kept_error *kept)
{
    if (!has_failed(comm) && kept->data.result != COMM_MISMATCH) {
        comm_result_t ignored = comm_abort(comm, abort_reason);
        (void)ignored;
    }
}

/* One attempt. *again: no rank has a result, and the survivors may try again as the next communicator. */
static comm_result_t agree_once(comm_t *comm, uint64_t mine, uint64_t *all, uint32_t timeout_ms, bool *again)
{
    struct kept_error kept;
    comm_lost_t lost;
    uint64_t seq = 0, reduced = 0;
    bool unsent;
    *again = false;
    comm_result_t result = reduce(comm, &mine, &reduced, timeout_ms, &unsent);
    if (unsent && !has_failed(comm)) {
        return result; /* the others wait until this rank calls again */
    }
    bool has_reduced = result == COMM_OK;
    if (has_reduced) {
        result = ask_seq(comm, &seq);
    }
    if (result == COMM_OK) {
        result = meet(comm, timeout_ms);
    }
    if (result == COMM_OK) {
        *all = reduced;
        return COMM_OK;
    }
    error_keep(&kept);
    if (result == COMM_DAEMON_LOST || result == COMM_MISMATCH || result == COMM_INVALID_ARGUMENT) {
        return error_report_kept(&kept);
    }
    fail_everywhere(comm, &kept);
    if (comm_lost(comm, NULL, 0, &lost) != COMM_OK) {
        return error_report_kept(&kept);
    }
    if (has_reduced && seq != 0 && lost.last_seq >= seq) {
        *all = reduced;
        return COMM_OK;
    }
    *again = lost.may_shrink && result != COMM_TIMED_OUT;
    return error_report_kept(&kept);
}

/* The next communicator, which comm_shrink will return. */
static comm_result_t succeed(comm_t *comm, uint32_t timeout_ms)
{
    comm_shrink_options_t options = COMM_SHRINK_OPTIONS_INIT;
    comm_t *next = NULL;
    options.timeout_ms = timeout_ms;
    comm_result_t result = comm_shrink(comm, &options, &next);
    if (result == COMM_OK) {
        pthread_mutex_lock(&comm->client->lock);
        comm->successor = next;
        client_leave(comm->client);
    }
    return result;
}

static comm_t *newest(comm_t *comm)
{
    pthread_mutex_lock(&comm->client->lock);
    while (comm->successor != NULL) {
        comm = comm->successor;
    }
    client_leave(comm->client);
    return comm;
}

static comm_result_t check_agree(comm_t *comm, const uint64_t *flags)
{
    if (comm == NULL || flags == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_agree: an argument is a null pointer");
    }
    comm_result_t result = group_allows_wait("comm_agree", comm->name);
    result = result == COMM_OK ? client_enter(comm->client) : result;
    if (result != COMM_OK) {
        return result;
    }
    if (comm->client->lost == COMM_OK && !(comm->client->gathers && comm->client->shrinks)) {
        result =
            error_report(COMM_UNSUPPORTED, "comm_agree on \"%s\": commd at %s is older than this library",
                         comm->name, comm->client->path);
    }
    client_leave(comm->client);
    return result;
}

comm_result_t comm_agree(comm_t *comm, uint64_t *flags, uint32_t timeout_ms)
{
    bool again = true;
    comm_result_t result = check_agree(comm, flags);
    timeout_ms = timeout_ms != 0 ? timeout_ms : OP_TIMEOUT_DEFAULT_MS;
    while (result == COMM_OK && again) {
        comm_t *now = newest(comm);
        result = agree_once(now, *flags, flags, timeout_ms, &again);
        result = again ? succeed(now, timeout_ms) : result;
    }
    return result;
}
