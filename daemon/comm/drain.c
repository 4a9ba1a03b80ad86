#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/comms_internal.h"
#include "daemon/comm/meeting.h"

/*
 * A node that drains. It keeps the names of communicators that it has refused ranks of for a while. Other
 * nodes' ranks may have announced such a communicator before: they are told by a broadcast. Those that
 * announce it later are told in the answer. In a cluster that is not complete, this node becomes a guest with
 * that name (meeting.h), so that the others announce it here.
 */

struct refused_name {
    uint64_t until_ns; /* 0: none */
    size_t key_bytes;
    struct owned_name key;
    struct comms_guest *guest; /* null in a complete cluster */
};

struct comms_drain {
    char why[COMMS_DRAIN_TEXT_MAX_BYTES];
    uint32_t next; /* the oldest */
    struct refused_name refused[COMMS_REFUSED_MAX];
};

static void refusal_text(const struct comms *comms, const char *name, struct error *error)
{
    error_set(error, STATUS_SHUTTING_DOWN, "communicator \"%s\": %s", name, comms->drain->why);
}

void comms_drain(struct comms *comms, const char *why, uint64_t now_ns)
{
    struct communicator *comm, *next;
    mesh_set_draining(comms->mesh, true);
    if (comms->drain == NULL) {
        comms->drain = calloc(1, sizeof *comms->drain);
    }
    if (comms->drain == NULL) {
        return; /* without memory, joining fails as well */
    }
    (void)snprintf(comms->drain->why, sizeof comms->drain->why, "%s", why);
    DL_FOREACH_SAFE(comms->comms, comm, next)
    {
        struct error cause;
        if (comm->state == COMMS_COMM_FORMING && comm->member_count > 0) {
            refusal_text(comms, comm->name, &cause);
            communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
        }
    }
}

void comms_undrain(struct comms *comms)
{
    for (uint32_t i = 0; comms->drain != NULL && i < COMMS_REFUSED_MAX; i++) {
        comms_guest_free(comms->drain->refused[i].guest);
    }
    free(comms->drain);
    comms->drain = NULL;
    mesh_set_draining(comms->mesh, false);
}

void comms_drain_node_up(const struct comms *comms, uint32_t node)
{
    for (uint32_t i = 0; comms->drain != NULL && i < COMMS_REFUSED_MAX; i++) {
        comms_guest_node_up(comms->drain->refused[i].guest, node);
    }
}

void comms_drain_end(struct comms *comms, const char *why, uint64_t now_ns)
{
    struct communicator *comm, *next;
    DL_FOREACH_SAFE(comms->comms, comm, next)
    {
        struct error cause;
        if (comm->state != COMMS_COMM_FAILED && comm->member_count > 0) {
            error_set(&cause, STATUS_SHUTTING_DOWN, "communicator \"%s\": %s", comm->name, why);
            communicator_fail(comm, &cause, COMMS_TELL_NODES, now_ns);
        }
    }
}

/* Returns null if no rank of that communicator was refused lately. */
static struct refused_name *find_refused(struct comms_drain *drain, const struct owned_name *key,
                                         size_t key_bytes, uint64_t now_ns)
{
    for (uint32_t i = 0; i < COMMS_REFUSED_MAX; i++) {
        struct refused_name *name = &drain->refused[i];
        if (name->until_ns > now_ns && name->key_bytes == key_bytes &&
            memcmp(&name->key, key, key_bytes) == 0) {
            return name;
        }
    }
    return NULL;
}

/* The terms are there because a refusal without them is not valid. */
static void refusal_fill(const char *name, uint32_t owner_uid, uint64_t nonce, struct error *error,
                         Commd__Mesh__CommTerms *terms, Commd__Mesh__Refuse *out)
{
    commd__mesh__comm_terms__init(terms);
    commd__mesh__refuse__init(out);
    terms->owner_uid = owner_uid;
    terms->size = 1;
    out->name = (char *)name;
    out->owner_uid = owner_uid;
    out->nonce = nonce;
    out->status = error->status;
    out->text = error->text;
    out->terms = terms;
}

enum status comms_drain_check(struct comms *comms, uid_t owner_uid, const char *name, uint64_t now_ns,
                              struct error *error)
{
    struct comms_drain *drain = comms->drain;
    Commd__Mesh__CommTerms terms;
    Commd__Mesh__Refuse body;
    struct owned_name key;
    if (drain == NULL) {
        return STATUS_OK;
    }
    refusal_text(comms, name, error);
    size_t key_bytes = owned_name_make(&key, owner_uid, name);
    if (find_refused(drain, &key, key_bytes, now_ns) == NULL) {
        struct refused_name *name_of = &drain->refused[drain->next];
        comms_guest_free(name_of->guest);
        *name_of = (struct refused_name){time_after(now_ns, COMMS_REFUSED_NS), key_bytes, key, NULL};
        if (!mesh_is_complete(comms->mesh)) {
            name_of->guest = comms_guest_new(comms, &key, &(struct comms_guest_kind){0}, now_ns);
        }
        drain->next = (drain->next + 1) % COMMS_REFUSED_MAX;
        refusal_fill(name, owner_uid, 0, error, &terms, &body);
        Commd__Mesh__Message message = MESH_MESSAGE(REFUSE, refuse, &body);
        mesh_broadcast(comms->mesh, owner_uid, &message);
    }
    return error->status;
}

void comms_drain_answer(struct comms *comms, uint32_t node, const Commd__Mesh__Announce *announce,
                        uint64_t now_ns)
{
    Commd__Mesh__CommTerms terms;
    Commd__Mesh__Refuse body;
    struct owned_name key;
    struct error error;
    if (comms->drain == NULL || announce->terms == NULL || announce->answer) {
        return;
    }
    size_t key_bytes = owned_name_make(&key, announce->owner_uid, announce->name);
    if (find_refused(comms->drain, &key, key_bytes, now_ns) != NULL) {
        refusal_text(comms, announce->name, &error);
        refusal_fill(announce->name, announce->owner_uid, announce->nonce, &error, &terms, &body);
        Commd__Mesh__Message message = MESH_MESSAGE(REFUSE, refuse, &body);
        mesh_tell(comms->mesh, node, &message);
    }
}

bool comms_drain_refused(struct communicator *comm, uint32_t node, const Commd__Mesh__Refuse *refuse,
                         const struct error *cause, uint64_t now_ns)
{
    if (cause->status != STATUS_SHUTTING_DOWN) {
        return false;
    }
    if (comm != NULL && comm->state == COMMS_COMM_FORMING &&
        (refuse->nonce == 0 || refuse->nonce == comm->nonce) &&
        comms_user_may_say(comm->comms, comm->terms.owner_uid, node, comm->name, now_ns)) {
        communicator_fail(comm, cause, COMMS_TELL_NODES, now_ns);
    }
    return true;
}
