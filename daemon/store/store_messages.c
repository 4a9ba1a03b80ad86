#include <stdio.h>
#include <string.h>

#include "daemon/store/stores_internal.h"

/* What nodes tell each other about stores. */

/* --- Answers --- */

bool stores_has_room(const struct stores_opener *opener, size_t size)
{
    const struct stores_handle *handle = opener->handle;
    if (handle != NULL) {
        return handle->handler.has_room == NULL || handle->handler.has_room(handle->handler.context, size);
    }
    return mesh_node_queued(opener->kept->stores->mesh, opener->key.node) < STORES_QUEUED_MAX;
}

static void send_answer(struct stores *stores, uint32_t node, uint64_t opener, uint64_t request,
                        const struct stores_answer *answer)
{
    Commd__Mesh__StoreAnswer body = COMMD__MESH__STORE_ANSWER__INIT;
    body.opener = opener;
    body.request = request;
    body.status = answer->result->status;
    if (answer->result->status != STATUS_OK) {
        body.text = (char *)answer->result->text;
    }
    body.value = (ProtobufCBinaryData){.data = (uint8_t *)answer->value.data, .len = answer->value.size};
    body.number = answer->number;
    Commd__Mesh__Message message = MESH_MESSAGE(STORE_ANSWER, store_answer, &body);
    mesh_tell(stores->mesh, node, &message);
}

void stores_answer(struct stores_opener *opener, uint64_t request, enum store_kind kind,
                   const struct stores_answer *answer)
{
    if (opener->handle != NULL) {
        const struct stores_handler *handler = &opener->handle->handler;
        handler->answered(handler->context, request, kind, answer);
    } else {
        send_answer(opener->kept->stores, opener->key.node, opener->key.number, request, answer);
    }
}

static void send_failure(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAsk *message,
                         const struct error *error)
{
    struct stores_answer answer = {.result = error};
    send_answer(stores, node, message->opener, message->request, &answer);
}

/* --- Requests --- */

static enum status open_from(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAsk *message,
                             uint64_t now_ns, struct error *error)
{
    struct stores_opener *opener;
    struct owned_name key;
    uint64_t suppressed;
    if (!mesh_user_may(stores->mesh, message->owner_uid, node)) {
        if (log_limit_pass(&stores->node_limit, now_ns, &suppressed)) {
            log_warning(
                "node %s asks for a store of uid %u: users in commd.conf does not allow that user there",
                mesh_node_name(stores->mesh, node), message->owner_uid);
        }
        return error_set(error, STATUS_PERMISSION,
                         "node %s does not allow uid %u on node %s (users in commd.conf)",
                         mesh_own_name(stores->mesh), message->owner_uid, mesh_node_name(stores->mesh, node));
    }
    if (stores_keeper(stores, message->owner_uid, message->name) != MESH_NODE_OWN) {
        return error_set(
            error, STATUS_CONFIG,
            "store \"%s\": node %s says that node %s keeps it, not node %s: do all nodes have the same "
            "nodes and users in commd.conf?",
            message->name, mesh_own_name(stores->mesh),
            stores_keeper_name(stores, message->owner_uid, message->name), mesh_own_name(stores->mesh));
    }
    (void)owned_name_make(&key, message->owner_uid, message->name);
    return stores_kept_open(stores, node, message->opener, &key, NULL, now_ns, &opener, error);
}

static void on_open(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAsk *message,
                    uint64_t now_ns)
{
    struct error result = {.status = STATUS_OK};
    if (!printable_is_name(message->name, COMM_NAME_MAX_BYTES)) {
        mesh_violation(stores->mesh, node, "the name of a store that cannot exist");
        return;
    }
    if (stores_opener_find(stores, node, message->opener) != NULL) {
        mesh_violation(stores->mesh, node, "a store that it opens a second time");
        return;
    }
    if (open_from(stores, node, message, now_ns, &result) != STATUS_OK) {
        send_failure(stores, node, message, &result);
        return;
    }
    struct stores_answer answer = {.result = &result};
    send_answer(stores, node, message->opener, message->request, &answer);
}

static void on_request(struct stores *stores, uint32_t node, struct stores_opener *opener,
                       const Commd__Mesh__StoreAsk *message, uint64_t now_ns)
{
    struct store_bytes keys[STORE_ASK_KEYS_MAX];
    struct error error;
    struct stores_ask ask = {.request = message->request,
                             .kind = (enum store_kind)message->kind,
                             .keys = keys,
                             .key_count = message->n_keys,
                             .value = {.data = message->value.data, .size = message->value.len},
                             .expected = {.data = message->expected.data, .size = message->expected.len},
                             .delta = message->delta};
    for (size_t i = 0; i < message->n_keys && i < STORE_ASK_KEYS_MAX; i++) {
        keys[i] = (struct store_bytes){.data = message->keys[i].data, .size = message->keys[i].len};
    }
    if (stores_ask_check(&ask, &error) != STATUS_OK) {
        mesh_violation(stores->mesh, node, "a request to a store that no commd sends");
        return;
    }
    uint64_t timeout_ms = message->timeout_ms;
    ask.timeout_ns =
        timeout_ms < STORES_TIMEOUT_MAX_NS / TIME_MS ? timeout_ms * TIME_MS : STORES_TIMEOUT_MAX_NS;
    stores_kept_ask(opener, &ask, now_ns);
}

static void on_ask(struct stores *stores, uint32_t node, const Commd__Mesh__StoreAsk *message,
                   uint64_t now_ns)
{
    struct error error;
    if (message->kind == STORE_KIND_OPEN) {
        on_open(stores, node, message, now_ns);
        return;
    }
    struct stores_opener *opener = stores_opener_find(stores, node, message->opener);
    if (message->kind == STORE_KIND_CLOSE) {
        if (opener != NULL) {
            stores_opener_close(opener, now_ns);
        }
        return;
    }
    if (opener == NULL) {
        error_set(&error, STATUS_NOT_FOUND, "node %s keeps no such store any more",
                  mesh_own_name(stores->mesh));
        send_failure(stores, node, message, &error);
        return;
    }
    struct budget_account *account = opener->kept->account;
    uint64_t began_ns = stores->clock != NULL ? stores->clock() : 0;
    on_request(stores, node, opener, message, now_ns);
    if (stores->clock != NULL) {
        budget_spend(account, stores->clock() - began_ns);
    }
}

void stores_control_received(void *context, uint32_t node, const Commd__Mesh__Message *message,
                             uint64_t now_ns)
{
    struct stores *stores = context;
    if (message->body_case == COMMD__MESH__MESSAGE__BODY_STORE_ASK) {
        on_ask(stores, node, message->store_ask, now_ns);
    } else if (message->body_case == COMMD__MESH__MESSAGE__BODY_STORE_ANSWER) {
        if (message->store_answer->value.len > STORE_VALUE_MAX_BYTES) {
            mesh_violation(stores->mesh, node, "a value larger than a store's values may be");
        } else {
            stores_sent_answered(stores, node, message->store_answer, now_ns);
        }
    }
}
