#include <stdio.h>
#include <string.h>

#include "daemon/api/session.h"

/* Ends communicators and clients on request: users end their own, administrators any. */

#define REASON_MAX_BYTES 160
#define OWNERS_MAX 8 /* in a message about one name */

/* A text such as "by uid 0 on node a: reason". */
struct author {
    char text[REASON_MAX_BYTES + NODE_NAME_MAX_BYTES + 64];
};

static void describe_author(const struct api_session *session, const char *reason, struct author *out)
{
    char printable[REASON_MAX_BYTES + 1];
    size_t length = 0;
    for (; reason[length] != '\0' && length < REASON_MAX_BYTES; length++) {
        unsigned char byte = (unsigned char)reason[length];
        printable[length] = byte < ' ' || byte == 0x7f ? '?' : (char)byte;
    }
    printable[length] = '\0';
    (void)snprintf(out->text, sizeof out->text, "by uid %u on node %s%s%s", (unsigned)session->client.uid,
                   mesh_own_name(session->api->mesh), length > 0 ? ": " : "", printable);
}

/* --- Communicators --- */

struct owners {
    const char *name;
    uid_t uids[OWNERS_MAX];
    unsigned count; /* may be more than OWNERS_MAX */
};

static bool find_owner(void *context, const struct communicator_info *info)
{
    struct owners *owners = context;
    if (info->state == COMMS_COMM_FAILED || strcmp(info->name, owners->name) != 0) {
        return true;
    }
    for (unsigned i = 0; i < owners->count && i < OWNERS_MAX; i++) {
        if (owners->uids[i] == info->owner_uid) {
            return true; /* the next communicator of that name is being formed */
        }
    }
    if (owners->count < OWNERS_MAX) {
        owners->uids[owners->count] = info->owner_uid;
    }
    owners->count++;
    return true;
}

/* Finds the owner that an administrator means if he names none. */
static enum status only_owner(const struct api *api, const char *name, uid_t *uid, struct error *error)
{
    struct owners owners = {.name = name};
    comms_visit_comms(api->comms, find_owner, &owners);
    if (owners.count == 0) {
        return error_set(error, STATUS_NOT_FOUND, "no communicator with ranks on this node is called \"%s\"",
                         name);
    }
    if (owners.count > 1) {
        return error_set(
            error, STATUS_INVALID_ARGUMENT,
            "%u users have a communicator \"%s\", uids %u and %u among them: choose one user with --uid",
            owners.count, name, (unsigned)owners.uids[0], (unsigned)owners.uids[1]);
    }
    *uid = owners.uids[0];
    return STATUS_OK;
}

static enum status comm_abort(struct api_session *session, const Commd__Client__CommAbort *request,
                              uint64_t now_ns, struct error *error)
{
    struct author author;
    struct error cause;
    uid_t owner_uid = request->has_owner ? request->owner_uid : session->client.uid;
    enum status status = STATUS_OK;
    if (!api_session_sees(session, owner_uid)) {
        return error_set(
            error, STATUS_PERMISSION,
            "uid %u may end only its own communicators; only uid %u or an administrator may end this one",
            (unsigned)session->client.uid, (unsigned)owner_uid);
    }
    if (session->role == API_ROLE_ADMIN && !request->has_owner) {
        status = only_owner(session->api, request->name, &owner_uid, error);
        if (status != STATUS_OK) {
            return status;
        }
    }
    describe_author(session, request->reason, &author);
    error_set(&cause, STATUS_ABORTED, "communicator \"%.*s\": aborted %s", COMM_NAME_MAX_BYTES, request->name,
              author.text);
    status = comms_abort(session->api->comms, owner_uid, request->name, &cause, now_ns);
    if (status != STATUS_OK) {
        return error_set(error, status, "uid %u has no communicator \"%.*s\" with ranks on this node",
                         (unsigned)owner_uid, COMM_NAME_MAX_BYTES, request->name);
    }
    return STATUS_OK;
}

void api_comm_abort(struct api_session *session, uint64_t request_id, const Commd__Client__CommAbort *request,
                    uint64_t now_ns)
{
    struct error error;
    if (comm_abort(session, request, now_ns, &error) == STATUS_OK) {
        api_session_reply_done(session, request_id);
    } else {
        api_session_reply_error(session, request_id, &error);
    }
}

/* --- Clients --- */

/*
 * The client's objects are given back in its turns. A client that reads nothing is ended without a message:
 * otherwise it would never end.
 */
static void disconnect(struct api_session *session, const struct author *author)
{
    struct error cause;
    char why[sizeof author->text + 32];
    (void)snprintf(why, sizeof why, "was disconnected %s", author->text);
    session->expelled = strdup(why); /* if memory is short, the text says that its process has ended */
    error_set(&cause, STATUS_ABORTED, "this process was disconnected %s", author->text);
    api_session_reply_error(session, 0, &cause);
    api_session_end(session, cause.text);
    if (!session->broken) {
        api_session_break(session);
    }
}

void api_disconnect(struct api_session *session, uint64_t request_id,
                    const Commd__Client__Disconnect *request)
{
    struct author author;
    struct api_session *each, *next;
    unsigned count = 0;
    bool is_own = false;
    describe_author(session, request->reason, &author);
    HASH_ITER (hh, session->api->sessions, each, next) {
        if (each->role != API_ROLE_CLIENT || each->client.pid != (pid_t)request->pid || request->pid == 0 ||
            each->closing || each->broken || !api_session_sees(session, each->client.uid)) {
            continue;
        }
        count++;
        if (each == session) {
            is_own = true; /* after it has its answer */
        } else {
            disconnect(each, &author);
        }
    }
    if (count == 0) {
        api_session_reply_failure(session, request_id, STATUS_NOT_FOUND, "no client%s has pid %u",
                                  session->role == API_ROLE_ADMIN ? "" : " of yours", request->pid);
        return;
    }
    api_session_reply_done(session, request_id);
    if (is_own) {
        disconnect(session, &author);
    }
}
