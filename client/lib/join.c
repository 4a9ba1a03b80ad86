#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"
#include "client/lib/policy.h"

/* Elastic jobs: commclient/elastic.h. */

#define JOIN_TIMEOUT_DEFAULT_MS 600000u
#define LAST_CALL_DEFAULT_MS 1000u
#define JOB_NAME_MAX_BYTES 80
#define NS_PER_MS 1000000u

/* This process's part in a job. */
struct client_join {
    struct comm_client *client;
    struct client_join *next; /* in the client's list */
    uint32_t handle;
    uint32_t holds; /* communicators, and the call that makes one */
    bool told;      /* commd may know of it */
    bool joins;     /* comm_join has not returned yet */
    bool cancelled; /* comm_cancel ends it */
    uint32_t least, most;
    uint32_t waiting; /* what commd said last */
    int device;
    uint32_t last_call_ms;
    comm_init_options_t init; /* its algorithms points to the copy below */
    char *algorithms;
    char name[JOB_NAME_MAX_BYTES + 1];
};

/* Where a generation meets. All bytes are sent to other ranks. */
struct seat {
    uint64_t generation;
    uint32_t rank;
    uint32_t size;
    uint32_t failure; /* a comm_result_t; then the text follows */
    uint32_t unused;
    char name[COMM_NAME_MAX_BYTES + 1]; /* "": nobody waits */
    char text[256];
};

/* --- Life --- */

static struct client_join *join_new(struct comm_client *client, const char *name, uint32_t least,
                                    uint32_t most, const comm_join_options_t *options)
{
    struct client_join *join = calloc(1, sizeof *join);
    const comm_init_options_t none = COMM_INIT_OPTIONS_INIT;
    if (join == NULL) {
        return NULL;
    }
    join->client = client;
    join->holds = 1;
    join->joins = true;
    join->least = least;
    join->most = most;
    join->device = options->device;
    join->last_call_ms = options->last_call_ms != 0 ? options->last_call_ms : LAST_CALL_DEFAULT_MS;
    join->init = options->init != NULL ? *options->init : none;
    (void)snprintf(join->name, sizeof join->name, "%s", name);
    if (join->init.algorithms != NULL) {
        join->algorithms = strdup(join->init.algorithms);
        join->init.algorithms = join->algorithms;
        if (join->algorithms == NULL) {
            free(join);
            return NULL;
        }
    }
    join->handle = ++client->last_handle;
    join->next = client->joins;
    client->joins = join;
    return join;
}

static void join_free(struct client_join *join)
{
    struct client_join **link = &join->client->joins;
    while (*link != join) {
        link = &(*link)->next;
    }
    *link = join->next;
    free(join->algorithms);
    free(join);
}

static void tell_left(struct comm_client *client, uint32_t handle)
{
    Commd__Client__CommLeave body = COMMD__CLIENT__COMM_LEAVE__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    body.join = handle;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_LEAVE;
    request.comm_leave = &body;
    client_tell(client, &request);
}

struct client_join *join_hold(struct client_join *join)
{
    if (join != NULL) {
        join->holds++;
    }
    return join;
}

void join_release(struct client_join *join)
{
    if (join == NULL || --join->holds > 0) {
        return;
    }
    struct comm_client *client = join->client;
    uint32_t handle = join->handle;
    bool tell = join->told && client->lost == COMM_OK;
    join_free(join); /* first: what follows may release the lock */
    if (tell) {
        tell_left(client, handle);
    }
}

void joins_cancel(struct comm_client *client, const char *name)
{
    struct client_join *join = client->joins;
    while (join != NULL && client->lost == COMM_OK) {
        bool cancels = join->joins && !join->cancelled && (name == NULL || strcmp(join->name, name) == 0);
        if (!cancels) {
            join = join->next;
            continue;
        }
        join->cancelled = true;
        tell_left(client, join->handle);
        join = client->joins; /* the list may be another one now */
    }
}

void joins_free_all(struct comm_client *client)
{
    while (client->joins != NULL) {
        join_free(client->joins);
    }
}

void join_handle_waiting(struct comm_client *client, const Commd__Client__Waiting *event)
{
    for (struct client_join *join = client->joins; join != NULL; join = join->next) {
        if (join->handle == event->join) {
            join->waiting = event->waiting;
        }
    }
}

/* --- What commd is asked --- */

/* Asks for a rank, or to grow. Releases the lock while it waits. */
static comm_result_t ask_seat(struct client_join *join, Commd__Client__Request *request, const char *what,
                              uint64_t timeout_ms, struct seat *out)
{
    struct client_question question = {.what = what,
                                       .expected = COMMD__CLIENT__REPLY__BODY_COMM_SEAT,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(timeout_ms + DAEMON_MARGIN_MS)};
    Commd__Client__Event *event;
    *out = (struct seat){0};
    comm_result_t result = client_ask(join->client, request, &question, &event, NULL);
    if (result == COMM_OK) {
        const Commd__Client__CommSeat *seat = event->reply->comm_seat;
        out->generation = seat->generation;
        out->rank = seat->rank;
        out->size = seat->size;
        (void)snprintf(out->name, sizeof out->name, "%s", seat->comm_name);
        commd__client__event__free_unpacked(event, NULL);
    }
    return result;
}

static comm_result_t ask_rank(struct client_join *join, uint64_t timeout_ms, struct seat *out)
{
    Commd__Client__CommJoin body = COMMD__CLIENT__COMM_JOIN__INIT;
    body.join = join->handle;
    body.name = join->name;
    body.least = join->least;
    body.most = join->most;
    body.timeout_ms = timeout_ms;
    body.last_call_ms = join->last_call_ms;
    body.minority_continues = join->init.minority_continues != 0;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_JOIN;
    request.comm_join = &body;
    join->told = true;
    char what[JOB_NAME_MAX_BYTES + 32];
    (void)snprintf(what, sizeof what, "joining \"%s\"", join->name);
    return ask_seat(join, &request, what, timeout_ms, out);
}

static comm_result_t ask_grow(struct client_join *join, uint32_t from, uint32_t to, uint64_t timeout_ms,
                              struct seat *out)
{
    Commd__Client__CommGrow body = COMMD__CLIENT__COMM_GROW__INIT;
    body.join = join->handle;
    body.from = from;
    body.to = to;
    body.timeout_ms = timeout_ms;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_GROW;
    request.comm_grow = &body;
    return ask_seat(join, &request, "growing a communicator", timeout_ms, out);
}

/* The communicator of the generation has formed. */
static void settle(struct comm_client *client, struct client_join *join, comm_t *comm, uint64_t generation)
{
    Commd__Client__CommSettle body = COMMD__CLIENT__COMM_SETTLE__INIT;
    body.join = join->handle;
    body.generation = generation;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_COMM_SETTLE;
    request.comm_settle = &body;
    pthread_mutex_lock(&client->lock);
    comm->join = join_hold(join);
    if (client->lost == COMM_OK) {
        client_tell(client, &request);
    }
    client_leave(client);
}

/* --- Joining --- */

static uint64_t left_ms(uint64_t deadline_ns)
{
    uint64_t now_ns = clock_ns();
    return now_ns < deadline_ns ? (deadline_ns - now_ns + NS_PER_MS - 1) / NS_PER_MS : 0;
}

/* Whether other processes may have caused this failure of a generation that was forming. */
static bool may_try_again(comm_result_t result)
{
    return result == COMM_RANK_LOST || result == COMM_NODE_LOST || result == COMM_TIMED_OUT ||
           result == COMM_ABORTED;
}

/* One attempt: a rank, and the communicator of its generation. */
static comm_result_t join_once(struct comm_client *client, struct client_join *join, uint64_t deadline_ns,
                               bool *again, comm_t **out)
{
    struct seat seat;
    comm_t *comm = NULL;
    *again = false;
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    result = join->cancelled ? error_report(COMM_ABORTED, "comm_join: \"%s\": cancelled", join->name)
                             : ask_rank(join, left_ms(deadline_ns), &seat);
    client_leave(client);
    if (result != COMM_OK) {
        return result;
    }
    comm_init_options_t init = join->init;
    result = comm_init(client, seat.name, seat.rank, seat.size, join->device, &init, &comm);
    if (result == COMM_OK) {
        result = comm_barrier(comm, NULL); /* the ranks that were there before have agreed to grow */
    }
    if (result == COMM_OK) {
        settle(client, join, comm, seat.generation);
        *out = comm;
        return COMM_OK;
    }
    *again = may_try_again(result) && !join->cancelled && left_ms(deadline_ns) > 0;
    struct kept_error kept;
    error_keep(&kept);
    comm_destroy(comm);
    return error_report_kept(&kept);
}

static comm_result_t check_join(const char *name, uint32_t least, uint32_t most, comm_t **out)
{
    if (out == NULL || name == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_join: an argument is a null pointer");
    }
    *out = NULL;
    if (strlen(name) > JOB_NAME_MAX_BYTES || name[0] == '\0') {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_join: \"%.160s\": a job's name has 1 to %d printable ASCII characters without "
            "space",
            name, JOB_NAME_MAX_BYTES);
    }
    if (least == 0 || least > most || most > COMM_SIZE_MAX) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_join: \"%s\": at least %u and at most %u ranks: expected 1 to %d, in that order", name,
            least, most, COMM_SIZE_MAX);
    }
    return group_allows_wait("comm_join", name);
}

static comm_result_t join_begin(struct comm_client *client, const char *name, uint32_t least, uint32_t most,
                                const comm_join_options_t *options, struct client_join **out)
{
    comm_result_t result = client_enter(client);
    if (result != COMM_OK) {
        return result;
    }
    if (client->lost == COMM_OK && !client->gathers) {
        result = error_report(COMM_UNSUPPORTED, "comm_join: \"%s\": commd at %s is older than this library",
                              name, client->path);
    } else if ((*out = join_new(client, name, least, most, options)) == NULL) {
        result = error_report(COMM_NO_MEMORY, "comm_join: no memory for job \"%s\"", name);
    }
    client_leave(client);
    return result;
}

comm_result_t comm_join(comm_client_t *client, const char *name, uint32_t least, uint32_t most,
                        const comm_join_options_t *options, comm_t **out)
{
    comm_join_options_t given = COMM_JOIN_OPTIONS_INIT;
    comm_init_options_t init = COMM_INIT_OPTIONS_INIT;
    struct client_join *join = NULL;
    comm_result_t result = check_join(name, least, most, out);
    if (result == COMM_OK) {
        result = options_copy(&given, sizeof given, options, "comm_join", "COMM_JOIN_OPTIONS_INIT");
    }
    if (result == COMM_OK) {
        result = options_copy(&init, sizeof init, given.init, "comm_join", "COMM_INIT_OPTIONS_INIT");
        given.init = &init;
    }
    if (result == COMM_OK) {
        result = policy_check(&init, "comm_join", name);
    }
    if (result == COMM_OK) {
        result = join_begin(client, name, least, most, &given, &join);
    }
    if (result != COMM_OK) {
        return result;
    }
    uint64_t deadline_ns = clock_after_ms(given.timeout_ms != 0 ? given.timeout_ms : JOIN_TIMEOUT_DEFAULT_MS);
    bool again;
    do {
        result = join_once(client, join, deadline_ns, &again, out);
    } while (again);
    struct kept_error kept;
    error_keep(&kept);
    pthread_mutex_lock(&client->lock);
    bool cancelled = join->cancelled;
    join->joins = false;
    join_release(join);
    client_leave(client);
    if (result == COMM_OK) {
        return COMM_OK;
    }
    return cancelled ? error_report(COMM_ABORTED, "comm_join: \"%s\": cancelled", name)
                     : error_report_kept(&kept);
}

comm_result_t comm_waiting(comm_t *comm, uint32_t *count)
{
    if (comm == NULL || count == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_waiting: an argument is a null pointer");
    }
    *count = 0;
    comm_result_t result = client_enter(comm->client);
    if (result != COMM_OK) {
        return result;
    }
    struct comm_client *client = comm->client;
    client_take_all(client);
    if (client->lost != COMM_OK) {
        result = error_repeat(client->lost, client->lost_text);
    } else if (comm->join == NULL) {
        result = error_report(COMM_INVALID_ARGUMENT, "comm_waiting on \"%s\": comm_join has not made it",
                              comm->name);
    } else {
        *count = comm->join->waiting;
    }
    client_leave(client);
    return result;
}

/* --- Growing --- */

/*
 * Gives all ranks the seat of rank 0; that of the others is zero. It is no broadcast, which may end on rank 0
 * before the others have called. It is waited for by its handle: comm_sync would wait for other operations,
 * such as receives of this rank alone, and return their failures.
 */
static comm_result_t share_seat(comm_t *comm, struct seat *seat)
{
    comm_request_t *request = NULL;
    comm_call_options_t call = COMM_CALL_OPTIONS_INIT;
    call.stream = COMM_STREAM_NONE;
    call.request = &request;
    comm_result_t result = comm_all_reduce(comm, seat, seat, sizeof *seat, COMM_U8, COMM_BOR, &call);
    result = result == COMM_OK ? comm_wait(&request, NULL) : result;
    /* The text names the collectives that the ranks called. This one called comm_grow. */
    return result == COMM_MISMATCH ? error_within(result, "comm_grow") : result;
}

/* Rank 0 asks, and tells the others what came of it. */
static comm_result_t find_seat(comm_t *comm, const comm_grow_options_t *options, struct seat *seat)
{
    struct comm_client *client = comm->client;
    struct client_join *join = comm->join;
    *seat = (struct seat){0};
    if (comm->rank == 0) {
        uint32_t most = options->most != 0 ? options->most : join->most;
        most = most > comm->size ? most : comm->size;
        comm_result_t asked = client_enter(client);
        if (asked == COMM_OK) {
            asked = ask_grow(join, comm->size, most, options->timeout_ms, seat);
            client_leave(client);
        }
        seat->failure = (uint32_t)asked;
        if (asked != COMM_OK) {
            (void)snprintf(seat->text, sizeof seat->text, "%.255s", comm_last_error());
        }
    }
    comm_result_t result = share_seat(comm, seat);
    seat->name[sizeof seat->name - 1] = seat->text[sizeof seat->text - 1] = '\0';
    if (result == COMM_OK && seat->failure != COMM_OK) {
        result = error_report(failure_from_wire(seat->failure), "comm_grow on \"%s\": rank 0: %s", comm->name,
                              seat->text);
    }
    return result;
}

/* *all: whether all ranks have formed the generation. It is no failure if newcomers are the reason. */
static comm_result_t all_formed(comm_t *comm, comm_result_t formed, uint32_t timeout_ms, bool *all)
{
    struct kept_error kept;
    uint64_t flags = formed == COMM_OK ? UINT64_MAX : 0;
    error_keep(&kept);
    comm_result_t result = comm_agree(comm, &flags, timeout_ms);
    *all = result == COMM_OK && flags != 0;
    if (result == COMM_OK && formed != COMM_OK && !may_try_again(formed)) {
        return error_report_kept(&kept);
    }
    return result;
}

static comm_result_t check_grow(comm_t *comm, const comm_grow_options_t *options, comm_grow_options_t *given,
                                comm_t **out)
{
    const comm_grow_options_t none = COMM_GROW_OPTIONS_INIT;
    *given = none;
    if (comm == NULL || out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_grow: a communicator is a null pointer");
    }
    *out = NULL;
    if (comm->join == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_grow on \"%s\": comm_join has not made it",
                            comm->name);
    }
    comm_result_t result = group_allows_wait("comm_grow", comm->name);
    if (result != COMM_OK) {
        return result;
    }
    result = options_copy(given, sizeof *given, options, "comm_grow", "COMM_GROW_OPTIONS_INIT");
    given->timeout_ms = given->timeout_ms != 0 ? given->timeout_ms : FORM_TIMEOUT_DEFAULT_MS;
    return result;
}

comm_result_t comm_grow(comm_t *comm, const comm_grow_options_t *options, comm_t **out)
{
    comm_grow_options_t given;
    struct seat seat;
    comm_t *next = NULL;
    comm_result_t result = check_grow(comm, options, &given, out);
    if (result == COMM_OK) {
        result = find_seat(comm, &given, &seat);
    }
    if (result != COMM_OK || seat.name[0] == '\0') {
        return result;
    }
    comm_init_options_t init = comm->join->init;
    init.timeout_ms = given.timeout_ms;
    result = member_split_off(comm, seat.name, comm->rank, seat.size, &init, &next);
    bool all;
    result = all_formed(comm, result, given.timeout_ms, &all);
    if (!all) {
        struct kept_error kept;
        error_keep(&kept);
        comm_destroy(next);
        return result == COMM_OK ? COMM_OK : error_report_kept(&kept);
    }
    /* A newcomer that is lost from here on is a rank of the next communicator that is lost. */
    comm_result_t ignored = comm_barrier(next, NULL);
    (void)ignored;
    settle(comm->client, comm->join, next, seat.generation);
    *out = next;
    return COMM_OK;
}
