#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/store/stores_internal.h"

/* Requests of this node's processes to stores that other nodes keep. */

static void sent_free(struct stores_sent *sent)
{
    struct stores_handle *handle = sent->handle;
    struct stores *stores = handle->stores;
    if (!sent->is_sent) {
        DL_DELETE(handle->unsent, sent);
        if (handle->unsent == NULL) {
            DL_DELETE(handle->link->senders, handle);
        }
    } else if (stores_kind_is_quick(sent->kind)) {
        handle->link->in_flight--;
        stores->run_ns = 0;
    }
    timer_heap_remove(&stores->sent_timers, &sent->timer);
    stores->sent_count--;
    HASH_DEL(handle->sent, sent);
    budget_release(handle->account, BUDGET_STORES, sent->charged_bytes);
    free(sent);
}

static void sent_answer(struct stores_sent *sent, const struct stores_answer *answer)
{
    const struct stores_handler handler = sent->handle->handler;
    uint64_t request = sent->request;
    enum store_kind kind = sent->kind;
    sent_free(sent);
    handler.answered(handler.context, request, kind, answer);
}

/* Fills the message; keys has room for the request's keys. */
static void message_fill(Commd__Mesh__StoreAsk *body, const struct stores_handle *handle, uint64_t number,
                         const struct stores_ask *ask, ProtobufCBinaryData *keys)
{
    body->opener = handle->number;
    body->request = number;
    body->kind = ask->kind;
    if (ask->kind == STORE_KIND_OPEN) {
        body->name = (char *)handle->key.name;
        body->owner_uid = handle->key.owner_uid;
    }
    for (size_t i = 0; i < ask->key_count; i++) {
        keys[i] = (ProtobufCBinaryData){.data = (uint8_t *)ask->keys[i].data, .len = ask->keys[i].size};
    }
    body->keys = keys;
    body->n_keys = ask->key_count;
    body->value = (ProtobufCBinaryData){.data = (uint8_t *)ask->value.data, .len = ask->value.size};
    body->expected = (ProtobufCBinaryData){.data = (uint8_t *)ask->expected.data, .len = ask->expected.size};
    body->delta = ask->delta;
    body->timeout_ms = ask->timeout_ns / TIME_MS;
}

/* The time that this node waits for the answer. A keeper ends waits itself. */
static uint64_t patience_ns(const struct stores_ask *ask)
{
    return stores_kind_is_quick(ask->kind) ? ask->timeout_ns : time_after(ask->timeout_ns, STORES_MARGIN_NS);
}

static struct stores_sent *sent_new(struct stores_handle *handle, const struct stores_ask *ask,
                                    const Commd__Mesh__Message *message, size_t size)
{
    struct stores_sent *sent = calloc(1, sizeof *sent + size);
    if (sent == NULL) {
        return NULL;
    }
    sent->handle = handle;
    sent->number = message->store_ask->request;
    sent->request = ask->request;
    sent->kind = ask->kind;
    sent->timeout_ns = ask->timeout_ns;
    sent->charged_bytes = sizeof *sent + size;
    sent->timer.index = TIMER_NODE_DISARMED;
    sent->size = size;
    commd__mesh__message__pack(message, sent->packed);
    HASH_ADD(hh, handle->sent, number, sizeof sent->number, sent);
    if (!table_has(sent, hh)) {
        free(sent);
        return NULL;
    }
    return sent;
}

enum status stores_sent_queue(struct stores_handle *handle, const struct stores_ask *ask, uint64_t now_ns,
                              struct error *error)
{
    struct stores *stores = handle->stores;
    ProtobufCBinaryData keys[STORE_ASK_KEYS_MAX];
    Commd__Mesh__StoreAsk body = COMMD__MESH__STORE_ASK__INIT;
    message_fill(&body, handle, ++handle->last_number, ask, keys);
    Commd__Mesh__Message message = MESH_MESSAGE(STORE_ASK, store_ask, &body);
    size_t size = commd__mesh__message__get_packed_size(&message);
    enum status status =
        budget_charge(handle->account, BUDGET_STORES, sizeof(struct stores_sent) + size, error);
    if (status != STATUS_OK) {
        return status;
    }
    struct stores_sent *sent = timer_heap_reserve(&stores->sent_timers, stores->sent_count + 1)
                                   ? sent_new(handle, ask, &message, size)
                                   : NULL;
    if (sent == NULL) {
        budget_release(handle->account, BUDGET_STORES, sizeof(struct stores_sent) + size);
        return error_set(error, STATUS_NO_MEMORY, "store \"%s\": no memory for a request", handle->key.name);
    }
    stores->sent_count++;
    if (handle->unsent == NULL) {
        DL_APPEND(handle->link->senders, handle);
    }
    DL_APPEND(handle->unsent, sent);
    timer_heap_set(&stores->sent_timers, &sent->timer, time_after(now_ns, patience_ns(ask)));
    stores->run_ns = 0;
    return STATUS_OK;
}

/* --- Sending --- */

static void fail_unsupported(struct stores_handle *handle, uint64_t now_ns)
{
    const struct mesh *mesh = handle->stores->mesh;
    struct mesh_node_info info;
    struct error cause;
    mesh_node_info(mesh, handle->link->node, &info);
    error_set(&cause, STATUS_UNSUPPORTED,
              "store \"%s\" would be kept by node %s, whose commd (%s) keeps no stores", handle->key.name,
              info.name, info.version_text);
    stores_handle_fail(handle, &cause, now_ns);
}

/* Sends the link's next request. Returns false if none can be sent now. */
static bool link_send_one(struct stores *stores, struct stores_link *link, uint64_t now_ns)
{
    struct stores_handle *handle = link->senders;
    if (handle == NULL || !mesh_node_is_up(stores->mesh, link->node) ||
        mesh_node_queued(stores->mesh, link->node) >= STORES_QUEUED_MAX || link->in_flight >= STORES_WINDOW) {
        return false;
    }
    if (!mesh_node_offers(stores->mesh, link->node, MESH_OFFERS_STORE)) {
        fail_unsupported(handle, now_ns);
        return true;
    }
    struct stores_sent *sent = handle->unsent;
    if (mesh_send_packed(stores->mesh, link->node, sent->packed, sent->size) != STATUS_OK) {
        return false; /* the node is lost: node_down has come, or will */
    }
    DL_DELETE(handle->unsent, sent);
    DL_DELETE(link->senders, handle);
    if (handle->unsent != NULL) {
        DL_APPEND(link->senders, handle);
    }
    sent->is_sent = true;
    handle->was_sent = true;
    link->in_flight += stores_kind_is_quick(sent->kind);
    return true;
}

uint32_t stores_sent_run(struct stores *stores, uint64_t now_ns)
{
    struct stores_link *link, *next;
    uint32_t count = 0;
    HASH_ITER (hh, stores->links, link, next) {
        for (unsigned i = 0; i < STORES_ANSWERS_PER_RUN && link_send_one(stores, link, now_ns); i++) {
            count++;
        }
    }
    return count;
}

bool stores_sent_waits(const struct stores *stores)
{
    for (const struct stores_link *link = stores->links; link != NULL; link = link->hh.next) {
        if (link->senders != NULL && link->in_flight < STORES_WINDOW &&
            mesh_node_is_up(stores->mesh, link->node)) {
            return true;
        }
    }
    return false;
}

/* --- Endings --- */

void stores_sent_answered(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAnswer *message,
                          uint64_t now_ns)
{
    struct stores_handle *handle;
    struct stores_sent *sent = NULL;
    HASH_FIND(hh, stores->handles, &message->opener, sizeof message->opener, handle);
    if (handle == NULL || handle->link == NULL || handle->link->node != node) {
        return; /* it is closed */
    }
    HASH_FIND(hh, handle->sent, &message->request, sizeof message->request, sent);
    if (sent == NULL || !sent->is_sent) {
        return; /* it has timed out */
    }
    struct error result = {.status = status_from_wire(message->status)};
    printable_copy(message->text, result.text, sizeof result.text);
    if (result.status == STATUS_IN_PROGRESS) {
        result.status = STATUS_PROTOCOL;
    }
    if (sent->kind == STORE_KIND_OPEN && result.status != STATUS_OK) {
        stores_handle_fail(handle, &result, now_ns);
        return;
    }
    handle->open = true;
    struct stores_answer answer = {
        .result = &result,
        .value = {.data = message->value.data, .size = message->value.len},
        .number = message->number,
    };
    sent_answer(sent, &answer);
}

void stores_sent_fail(struct stores_handle *handle, const struct error *cause)
{
    struct stores_answer answer = {.result = cause};
    struct stores_sent *sent;
    bool was_open = handle->open;
    while ((sent = handle->sent) != NULL) {
        sent_answer(sent, &answer);
        if (!was_open) {
            return; /* OPEN was the only one, and the owner may have closed the handle */
        }
    }
}

void stores_sent_again(struct stores_handle *handle)
{
    struct stores_sent *sent = handle->sent;
    handle->was_sent = false;
    if (sent != NULL && sent->is_sent) {
        sent->is_sent = false;
        handle->link->in_flight -= stores_kind_is_quick(sent->kind);
        DL_APPEND(handle->unsent, sent);
        DL_APPEND(handle->link->senders, handle);
        handle->stores->run_ns = 0;
    }
}

void stores_sent_close(struct stores_handle *handle)
{
    struct stores *stores = handle->stores;
    while (handle->sent != NULL) {
        sent_free(handle->sent);
    }
    if (handle->was_sent && mesh_node_is_up(stores->mesh, handle->link->node)) {
        Commd__Mesh__StoreAsk body = COMMD__MESH__STORE_ASK__INIT;
        body.opener = handle->number;
        body.kind = STORE_KIND_CLOSE;
        Commd__Mesh__Message message = MESH_MESSAGE(STORE_ASK, store_ask, &body);
        mesh_tell(stores->mesh, handle->link->node, &message);
    }
}

static void sent_expire(struct stores_sent *sent, uint64_t now_ns)
{
    struct stores_handle *handle = sent->handle;
    struct stores *stores = handle->stores;
    struct mesh_node_info info;
    struct error cause;
    unsigned long long waited_ms = sent->timeout_ns / TIME_MS;
    mesh_node_info(stores->mesh, handle->link->node, &info);
    if (mesh_node_is_up(stores->mesh, handle->link->node)) {
        error_set(&cause, STATUS_TIMED_OUT,
                  "store \"%s\": node %s, which keeps it, did not answer within %llu ms", handle->key.name,
                  info.name, waited_ms);
    } else {
        error_set(&cause, STATUS_UNREACHABLE,
                  "store \"%s\" is kept by node %s, which was not connected within %llu ms%s%s (the "
                  "name \"...@NODE\" chooses the node)",
                  handle->key.name, info.name, waited_ms, info.last_error[0] != '\0' ? ": " : "",
                  info.last_error);
    }
    if (sent->kind == STORE_KIND_OPEN) {
        stores_handle_fail(handle, &cause, now_ns);
    } else {
        struct stores_answer answer = {.result = &cause};
        sent_answer(sent, &answer);
    }
}

void stores_sent_tick(struct stores *stores, uint64_t now_ns)
{
    const struct timer_node *first;
    while ((first = timer_heap_first(&stores->sent_timers)) != NULL && first->deadline_ns <= now_ns) {
        sent_expire((struct stores_sent *)((char *)(uintptr_t)first - offsetof(struct stores_sent, timer)),
                    now_ns);
    }
}
