#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"

/* Stores that a session has open: its requests to them, and their answers. */

#define TIMEOUT_MAX_MS (STORES_TIMEOUT_MAX_NS / TIME_MS)

static struct api_store *session_store(struct api_session *session, uint32_t handle)
{
    struct api_store *store;
    HASH_FIND(hh, session->stores, &handle, sizeof handle, store);
    return store;
}

void api_store_forget(struct api_store *store, uint64_t now_ns)
{
    HASH_DEL(store->session->stores, store);
    if (store->opened != NULL) {
        stores_close(store->opened, now_ns);
    }
    free(store);
}

static void store_answered(void *context, uint64_t request, enum store_kind kind,
                           const struct stores_answer *answer)
{
    struct api_store *store = context;
    if (answer->result->status != STATUS_OK) {
        api_session_reply_error(store->session, request, answer->result);
        if (kind == STORE_KIND_OPEN) {
            api_store_forget(store, store->session->api->now_ns);
        }
        return;
    }
    Commd__Client__StoreAnswer body = COMMD__CLIENT__STORE_ANSWER__INIT;
    body.value = (ProtobufCBinaryData){.data = (uint8_t *)answer->value.data, .len = answer->value.size};
    body.number = answer->number;
    Commd__Client__Reply reply = API_REPLY(request, STORE, store, &body);
    api_session_reply(store->session, &reply);
}

static bool store_has_room(void *context, size_t size)
{
    const struct api_session *session = ((struct api_store *)context)->session;
    return session->broken || (session->out_count < API_SESSION_PAUSE_PACKETS / 2 &&
                               session->out_bytes + size < API_SESSION_PAUSE_BYTES);
}

static enum status store_open(struct api_session *session, uint64_t request_id,
                              const Commd__Client__StoreAsk *request, uint64_t now_ns, struct error *error)
{
    if (session_store(session, request->handle) != NULL) {
        return error_set(error, STATUS_PROTOCOL, "handle %u of a store is in use", request->handle);
    }
    if (HASH_COUNT(session->stores) >= API_SESSION_STORES_MAX) {
        return error_set(error, STATUS_LIMIT, "a process can have %d stores open at most",
                         API_SESSION_STORES_MAX);
    }
    struct api_store *store = calloc(1, sizeof *store);
    if (store != NULL) {
        store->session = session;
        store->handle = request->handle;
        HASH_ADD(hh, session->stores, handle, sizeof store->handle, store);
    }
    if (store == NULL || !table_has(store, hh)) {
        free(store);
        return error_set(error, STATUS_NO_MEMORY, "no memory for store \"%.160s\"", request->name);
    }
    struct stores_client client = {.uid = session->client.uid, .account = session->account};
    struct stores_handler handler = {
        .context = store, .answered = store_answered, .has_room = store_has_room};
    uint64_t timeout_ms = request->timeout_ms < TIMEOUT_MAX_MS ? request->timeout_ms : TIMEOUT_MAX_MS;
    enum status status = stores_open(session->api->stores, &client, request->name, request_id,
                                     timeout_ms * TIME_MS, &handler, now_ns, &store->opened, error);
    if (status != STATUS_OK) {
        store->opened = NULL;
        api_store_forget(store, now_ns);
    }
    return status;
}

static enum status store_request(struct api_session *session, uint64_t request_id,
                                 const Commd__Client__StoreAsk *request, uint64_t now_ns, struct error *error)
{
    struct store_bytes keys[STORE_ASK_KEYS_MAX];
    const struct api_store *store = session_store(session, request->handle);
    if (store == NULL) {
        return error_set(error, STATUS_NOT_FOUND, "no store has handle %u", request->handle);
    }
    for (size_t i = 0; i < request->n_keys && i < STORE_ASK_KEYS_MAX; i++) {
        keys[i] = (struct store_bytes){.data = request->keys[i].data, .size = request->keys[i].len};
    }
    uint64_t timeout_ms = request->timeout_ms < TIMEOUT_MAX_MS ? request->timeout_ms : TIMEOUT_MAX_MS;
    struct stores_ask ask = {.request = request_id,
                             .kind = (enum store_kind)request->kind,
                             .keys = keys,
                             .key_count = request->n_keys,
                             .value = {.data = request->value.data, .size = request->value.len},
                             .expected = {.data = request->expected.data, .size = request->expected.len},
                             .delta = request->delta,
                             .timeout_ns = timeout_ms * TIME_MS};
    enum status status = stores_ask_check(&ask, error);
    return status == STATUS_OK ? stores_request(store->opened, &ask, now_ns, error) : status;
}

void api_store(struct api_session *session, uint64_t request_id, const Commd__Client__StoreAsk *request,
               uint64_t now_ns)
{
    struct error error;
    enum status status = STATUS_OK;
    if (session->api->stores == NULL) {
        status = error_set(&error, STATUS_UNSUPPORTED, "this commd keeps no stores");
    } else if (request->kind == STORE_KIND_OPEN) {
        status = store_open(session, request_id, request, now_ns, &error);
    } else if (request->kind == STORE_KIND_CLOSE) {
        struct api_store *store = session_store(session, request->handle);
        if (store != NULL) {
            api_store_forget(store, now_ns);
        }
        api_session_reply_done(session, request_id);
    } else {
        status = store_request(session, request_id, request, now_ns, &error);
    }
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    }
}
