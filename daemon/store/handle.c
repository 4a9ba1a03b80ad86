#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/store/stores_internal.h"

/* The stores that processes of this node have open, whichever node keeps them. */

static enum status open_check(const struct stores *stores, uid_t uid, const char *name, struct error *error)
{
    if (!printable_is_name(name, COMM_NAME_MAX_BYTES)) {
        return error_set(error, STATUS_INVALID_ARGUMENT,
                         "store \"%.160s\": a name has 1 to %d printable ASCII characters without space",
                         name, COMM_NAME_MAX_BYTES);
    }
    if (!mesh_user_may(stores->mesh, uid, MESH_NODE_OWN)) {
        return error_set(error, STATUS_PERMISSION,
                         "store \"%s\": uid %u may not be on node %s (users in commd.conf)", name,
                         (unsigned)uid, mesh_own_name(stores->mesh));
    }
    return STATUS_OK;
}

static struct stores_link *link_to(struct stores *stores, uint32_t node)
{
    struct stores_link *link;
    HASH_FIND(hh, stores->links, &node, sizeof node, link);
    if (link == NULL && (link = calloc(1, sizeof *link)) != NULL) {
        link->node = node;
        HASH_ADD(hh, stores->links, node, sizeof link->node, link);
        if (!table_has(link, hh)) {
            free(link);
            return NULL;
        }
    }
    return link;
}

static void handle_free(struct stores_handle *handle)
{
    if (handle->link != NULL) {
        mesh_unneed(handle->stores->mesh, handle->link->node, MESH_NEED_CALL);
    }
    budget_release(handle->account, BUDGET_STORES, sizeof *handle);
    budget_close(handle->account);
    HASH_DEL(handle->stores->handles, handle);
    free(handle);
}

static enum status handle_new(struct stores *stores, const struct stores_client *client, const char *name,
                              const struct stores_handler *handler, struct stores_handle **out,
                              struct error *error)
{
    enum status status = budget_charge(client->account, BUDGET_STORES, sizeof **out, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct stores_handle *handle = calloc(1, sizeof *handle);
    if (handle != NULL) {
        handle->stores = stores;
        handle->number = ++stores->last_handle;
        handle->handler = *handler;
        (void)owned_name_make(&handle->key, client->uid, name);
        HASH_ADD(hh, stores->handles, number, sizeof handle->number, handle);
    }
    if (handle == NULL || !table_has(handle, hh)) {
        free(handle);
        budget_release(client->account, BUDGET_STORES, sizeof **out);
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", name);
    }
    handle->account = client->account != NULL ? budget_ref(client->account) : NULL;
    *out = handle;
    return STATUS_OK;
}

static void answer_opened(struct stores_handle *handle, uint64_t request)
{
    struct error fine = {.status = STATUS_OK};
    struct stores_answer answer = {.result = &fine};
    handle->handler.answered(handle->handler.context, request, STORE_KIND_OPEN, &answer);
}

enum status stores_open(struct stores *stores, const struct stores_client *client, const char *name,
                        uint64_t request, uint64_t timeout_ns, const struct stores_handler *handler,
                        uint64_t now_ns, struct stores_handle **out, struct error *error)
{
    struct stores_handle *handle = NULL;
    enum status status = open_check(stores, client->uid, name, error);
    if (status != STATUS_OK) {
        return status;
    }
    status = handle_new(stores, client, name, handler, &handle, error);
    if (status != STATUS_OK) {
        return status;
    }
    uint32_t keeper = stores_keeper(stores, client->uid, name);
    *out = handle;
    if (keeper == MESH_NODE_OWN) {
        status = stores_kept_open(stores, MESH_NODE_OWN, handle->number, &handle->key, handle, now_ns,
                                  &handle->opener, error);
        if (status == STATUS_OK) {
            handle->open = true;
            answer_opened(handle, request);
            return STATUS_OK;
        }
    } else if ((handle->link = link_to(stores, keeper)) == NULL) {
        status = error_set(error, STATUS_NO_MEMORY, "no memory for store \"%s\"", name);
    } else {
        struct stores_ask ask = {.request = request, .kind = STORE_KIND_OPEN, .timeout_ns = timeout_ns};
        mesh_need(stores->mesh, keeper, MESH_NEED_CALL);
        status = stores_sent_queue(handle, &ask, now_ns, error);
    }
    if (status != STATUS_OK) {
        *out = NULL;
        handle_free(handle);
    }
    return status;
}

enum status stores_request(struct stores_handle *handle, const struct stores_ask *ask, uint64_t now_ns,
                           struct error *error)
{
    struct stores_ask cut = *ask;
    cut.timeout_ns = time_min(cut.timeout_ns, STORES_TIMEOUT_MAX_NS);
    if (handle->lost.status != STATUS_OK) {
        return error_set(error, handle->lost.status, "%s", handle->lost.text);
    }
    if (!handle->open) {
        return error_set(error, STATUS_IN_PROGRESS, "store \"%s\" is not open yet", handle->key.name);
    }
    if (handle->opener != NULL) {
        stores_kept_ask(handle->opener, &cut, now_ns);
        return STATUS_OK;
    }
    return stores_sent_queue(handle, &cut, now_ns, error);
}

void stores_close(struct stores_handle *handle, uint64_t now_ns)
{
    if (handle->opener != NULL) {
        stores_opener_close(handle->opener, now_ns);
    } else {
        stores_sent_close(handle);
    }
    handle_free(handle);
}

void stores_handle_fail(struct stores_handle *handle, const struct error *cause, uint64_t now_ns)
{
    if (handle->lost.status != STATUS_OK) {
        return;
    }
    handle->lost = *cause;
    if (handle->opener != NULL) {
        struct stores_opener *opener = handle->opener;
        handle->opener = NULL;
        stores_opener_end(opener, cause, now_ns);
    } else {
        stores_sent_fail(handle, cause);
    }
}

void stores_handle_node_down(struct stores *stores, uint32_t node, const struct error *cause, uint64_t now_ns)
{
    struct stores_handle *handle, *next;
    HASH_ITER (hh, stores->handles, handle, next) {
        if (handle->link == NULL || handle->link->node != node || !handle->was_sent) {
            continue;
        }
        if (cause->status == STATUS_UNREACHABLE && !handle->open) { /* nobody needed the connection before */
            stores_sent_again(handle);
        } else {
            struct error lost;
            error_set(&lost, STATUS_NODE_LOST, "store \"%s\" is lost with node %s, which kept it: %s",
                      handle->key.name, mesh_node_name(stores->mesh, node), cause->text);
            handle->was_sent = false; /* the keeper has forgotten it */
            stores_handle_fail(handle, &lost, now_ns);
        }
    }
}

void stores_handle_recheck(struct stores *stores, uint64_t now_ns)
{
    struct stores_handle *handle, *next;
    HASH_ITER (hh, stores->handles, handle, next) {
        uint32_t uid = handle->key.owner_uid;
        uint32_t keeper = handle->link != NULL ? handle->link->node : MESH_NODE_OWN;
        uint32_t refused = !mesh_user_may(stores->mesh, uid, MESH_NODE_OWN) ? MESH_NODE_OWN : keeper;
        if (!mesh_user_may(stores->mesh, uid, refused)) {
            struct error cause;
            error_set(&cause, STATUS_PERMISSION,
                      "store \"%s\": uid %u may not be on node %s any more (users in commd.conf)",
                      handle->key.name, (unsigned)uid, mesh_node_name(stores->mesh, refused));
            stores_handle_fail(handle, &cause, now_ns);
        }
    }
}
