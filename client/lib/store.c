#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/lib/internal.h"
#include "proto/store.h"

/* Stores of keys and values: each call is one request to commd, which does the waiting. */

#define STORE_TIMEOUT_DEFAULT_MS 60000u
#define STORE_MARGIN_MS 10000u /* that commd has beyond a time-out: it allows a keeper some of it */

_Static_assert(COMM_STORE_KEY_MAX == STORE_KEY_MAX_BYTES, "the header says what commd allows");
_Static_assert(COMM_STORE_VALUE_MAX == STORE_VALUE_MAX_BYTES, "the header says what commd allows");

struct comm_store {
    struct comm_client *client;
    uint32_t handle;
    char name[COMM_NAME_MAX_BYTES + 1];
};

/* --- Checks --- */

static comm_result_t check_key(const char *call, const struct comm_store *store, const char *key)
{
    if (key == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the key is a null pointer", call,
                            store->name);
    }
    size_t size = strnlen(key, STORE_KEY_MAX_BYTES + 1);
    return size > 0 && size <= STORE_KEY_MAX_BYTES
               ? COMM_OK
               : error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": key \"%.80s\": expected 1 to %d bytes",
                              call, store->name, key, STORE_KEY_MAX_BYTES);
}

static comm_result_t check_value(const char *call, const struct comm_store *store, const void *value,
                                 size_t size)
{
    if (value == NULL && size > 0) {
        return error_report(COMM_INVALID_ARGUMENT, "%s on \"%s\": the value is a null pointer", call,
                            store->name);
    }
    return size <= STORE_VALUE_MAX_BYTES
               ? COMM_OK
               : error_report(COMM_LIMIT, "%s on \"%s\": a value of %zu bytes; at most %d are allowed", call,
                              store->name, size, STORE_VALUE_MAX_BYTES);
}

static comm_result_t check_store(const char *call, const struct comm_store *store)
{
    if (store == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "%s: the store is a null pointer", call);
    }
    if (group_is_open()) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "%s on \"%s\": a group is open: a call cannot wait before comm_group_end", call,
                            store->name);
    }
    return COMM_OK;
}

static comm_result_t check_call(const char *call, const struct comm_store *store, const char *key)
{
    comm_result_t result = check_store(call, store);
    return result == COMM_OK ? check_key(call, store, key) : result;
}

static comm_result_t check_answer(const char *call, const struct comm_store *store, const void *at)
{
    return at != NULL ? COMM_OK
                      : error_report(COMM_INVALID_ARGUMENT,
                                     "%s on \"%s\": the argument for the answer is a null pointer", call,
                                     store->name);
}

/* --- Requests --- */

/* Asks, and returns the answer: *event is freed by the caller. timeout_ms: commd's. */
static comm_result_t ask_locked(const char *call, struct comm_client *client, Commd__Client__StoreAsk *body,
                                Commd__Client__Reply__BodyCase expected, Commd__Client__Event **event)
{
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STORE;
    request.store = body;
    struct client_question question = {.what = call,
                                       .expected = expected,
                                       .fd = -1,
                                       .deadline_ns = clock_after_ms(body->timeout_ms + STORE_MARGIN_MS)};
    return client_ask(client, &request, &question, event, NULL);
}

static comm_result_t ask(const char *call, struct comm_store *store, Commd__Client__StoreAsk *body,
                         Commd__Client__Event **event)
{
    comm_result_t result = client_enter(store->client);
    if (result != COMM_OK) {
        return result;
    }
    body->handle = store->handle;
    if (body->kind != STORE_KIND_GET && body->kind != STORE_KIND_WAIT) {
        body->timeout_ms = STORE_TIMEOUT_DEFAULT_MS;
    }
    result = ask_locked(call, store->client, body, COMMD__CLIENT__REPLY__BODY_STORE, event);
    client_leave(store->client);
    return result;
}

/* As ask, for answers that are one number. */
static comm_result_t ask_number(const char *call, struct comm_store *store, Commd__Client__StoreAsk *body,
                                int64_t *number)
{
    Commd__Client__Event *event;
    comm_result_t result = ask(call, store, body, &event);
    if (result == COMM_OK) {
        *number = event->reply->store->number;
        commd__client__event__free_unpacked(event, NULL);
    }
    return result;
}

/* As ask, for answers that are a value. */
static comm_result_t ask_value(const char *call, struct comm_store *store, Commd__Client__StoreAsk *body,
                               void **value, size_t *size)
{
    Commd__Client__Event *event;
    comm_result_t result = ask(call, store, body, &event);
    if (result != COMM_OK) {
        return result;
    }
    const ProtobufCBinaryData *found = &event->reply->store->value;
    *value = malloc(found->len + 1);
    if (*value != NULL) {
        if (found->len > 0) {
            memcpy(*value, found->data, found->len);
        }
        ((char *)*value)[found->len] = '\0';
        *size = found->len;
    } else {
        result = error_report(COMM_NO_MEMORY, "%s on \"%s\": no memory for a value of %zu bytes", call,
                              store->name, found->len);
    }
    commd__client__event__free_unpacked(event, NULL);
    return result;
}

static ProtobufCBinaryData bytes_of(const void *data, size_t size)
{
    return (ProtobufCBinaryData){.data = (uint8_t *)(uintptr_t)data, .len = size};
}

static ProtobufCBinaryData bytes_of_key(const char *key)
{
    return bytes_of(key, strlen(key));
}

/* --- Opening and closing --- */

static comm_result_t open_check(const struct comm_client *client, const char *name, comm_store_t **out)
{
    if (out == NULL) {
        return error_report(COMM_INVALID_ARGUMENT,
                            "comm_store_open: the argument for the store is a null pointer");
    }
    *out = NULL;
    if (name == NULL) {
        return error_report(COMM_INVALID_ARGUMENT, "comm_store_open: the name is a null pointer");
    }
    if (strnlen(name, COMM_NAME_MAX_BYTES + 1) > COMM_NAME_MAX_BYTES) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_store_open: \"%.160s\": a name has 1 to %d printable ASCII characters without "
            "space",
            name, COMM_NAME_MAX_BYTES);
    }
    if (group_is_open()) {
        return error_report(
            COMM_INVALID_ARGUMENT,
            "comm_store_open: \"%s\": a group is open: a call cannot wait before comm_group_end", name);
    }
    return client_check(client);
}

static void tell_closed(struct comm_store *store)
{
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    body.handle = store->handle;
    body.kind = STORE_KIND_CLOSE;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_STORE;
    request.store = &body;
    client_tell(store->client, &request);
}

static comm_result_t open_locked(struct comm_store *store, uint32_t timeout_ms)
{
    struct comm_client *client = store->client;
    if (client->lost == COMM_OK && !client->offers_stores) {
        return error_report(COMM_UNSUPPORTED, "comm_store_open: \"%s\": the commd at %s keeps no stores",
                            store->name, client->path);
    }
    Commd__Client__Event *event;
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    store->handle = ++client->last_handle;
    body.handle = store->handle;
    body.kind = STORE_KIND_OPEN;
    body.name = store->name;
    body.timeout_ms = timeout_ms != 0 ? timeout_ms : STORE_TIMEOUT_DEFAULT_MS;
    comm_result_t result =
        ask_locked("comm_store_open", client, &body, COMMD__CLIENT__REPLY__BODY_STORE, &event);
    if (result == COMM_OK) {
        commd__client__event__free_unpacked(event, NULL);
    } else if (client->lost == COMM_OK) {
        tell_closed(store); /* it may still be opened, after our time */
    }
    return result;
}

comm_result_t comm_store_open(comm_client_t *client, const char *name, uint32_t timeout_ms,
                              comm_store_t **out)
{
    comm_result_t result = open_check(client, name, out);
    if (result != COMM_OK) {
        return result;
    }
    struct comm_store *store = calloc(1, sizeof *store);
    if (store == NULL) {
        return error_report(COMM_NO_MEMORY, "comm_store_open: no memory for store \"%s\"", name);
    }
    store->client = client;
    (void)snprintf(store->name, sizeof store->name, "%s", name);
    result = client_enter(client);
    if (result == COMM_OK) {
        result = open_locked(store, timeout_ms);
        client->stores += result == COMM_OK;
        client_leave(client);
    }
    if (result != COMM_OK) {
        free(store);
        return result;
    }
    *out = store;
    return COMM_OK;
}

void comm_store_close(comm_store_t *store)
{
    if (store == NULL) {
        return;
    }
    if (client_check(store->client) == COMM_OK && client_enter(store->client) == COMM_OK) {
        if (store->client->lost == COMM_OK) {
            tell_closed(store);
        }
        store->client->stores--;
        client_leave(store->client);
    }
    free(store);
}

void comm_store_free(void *value)
{
    free(value);
}

/* --- One key --- */

comm_result_t comm_store_set(comm_store_t *store, const char *key, const void *value, size_t size)
{
    comm_result_t result = check_call("comm_store_set", store, key);
    if (result == COMM_OK) {
        result = check_value("comm_store_set", store, value, size);
    }
    if (result != COMM_OK) {
        return result;
    }
    ProtobufCBinaryData name = bytes_of_key(key);
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    int64_t number;
    body.kind = STORE_KIND_SET;
    body.n_keys = 1;
    body.keys = &name;
    body.value = bytes_of(value, size);
    return ask_number("comm_store_set", store, &body, &number);
}

comm_result_t comm_store_get(comm_store_t *store, const char *key, uint32_t timeout_ms, void **value,
                             size_t *size)
{
    comm_result_t result = check_call("comm_store_get", store, key);
    if (result == COMM_OK) {
        result = check_answer("comm_store_get", store, value != NULL ? size : NULL);
    }
    if (result != COMM_OK) {
        return result;
    }
    ProtobufCBinaryData name = bytes_of_key(key);
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    *value = NULL;
    *size = 0;
    body.kind = STORE_KIND_GET;
    body.n_keys = 1;
    body.keys = &name;
    body.timeout_ms = timeout_ms;
    return ask_value("comm_store_get", store, &body, value, size);
}

comm_result_t comm_store_add(comm_store_t *store, const char *key, int64_t delta, int64_t *sum)
{
    comm_result_t result = check_call("comm_store_add", store, key);
    if (result != COMM_OK) {
        return result;
    }
    ProtobufCBinaryData name = bytes_of_key(key);
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    int64_t number = 0;
    body.kind = STORE_KIND_ADD;
    body.n_keys = 1;
    body.keys = &name;
    body.delta = delta;
    result = ask_number("comm_store_add", store, &body, &number);
    if (result == COMM_OK && sum != NULL) {
        *sum = number;
    }
    return result;
}

comm_result_t comm_store_compare_set(comm_store_t *store, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void **value, size_t *size)
{
    static const char call[] = "comm_store_compare_set";
    comm_result_t result = check_call(call, store, key);
    if (result == COMM_OK) {
        result = check_value(call, store, expected, expected_size);
    }
    if (result == COMM_OK) {
        result = check_value(call, store, desired, desired_size);
    }
    if (result == COMM_OK) {
        result = check_answer(call, store, value != NULL ? size : NULL);
    }
    if (result == COMM_OK && expected_size + desired_size > STORE_VALUE_MAX_BYTES) {
        result = error_report(COMM_LIMIT, "%s on \"%s\": values of %zu and %zu bytes; at most %d together",
                              call, store->name, expected_size, desired_size, STORE_VALUE_MAX_BYTES);
    }
    if (result != COMM_OK) {
        return result;
    }
    ProtobufCBinaryData name = bytes_of_key(key);
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    *value = NULL;
    *size = 0;
    body.kind = STORE_KIND_COMPARE_SET;
    body.n_keys = 1;
    body.keys = &name;
    body.expected = bytes_of(expected, expected_size);
    body.value = bytes_of(desired, desired_size);
    return ask_value(call, store, &body, value, size);
}

comm_result_t comm_store_delete(comm_store_t *store, const char *key, int *existed)
{
    comm_result_t result = check_call("comm_store_delete", store, key);
    if (result != COMM_OK) {
        return result;
    }
    ProtobufCBinaryData name = bytes_of_key(key);
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    int64_t number = 0;
    body.kind = STORE_KIND_DELETE;
    body.n_keys = 1;
    body.keys = &name;
    result = ask_number("comm_store_delete", store, &body, &number);
    if (result == COMM_OK && existed != NULL) {
        *existed = number != 0;
    }
    return result;
}

comm_result_t comm_store_count(comm_store_t *store, size_t *keys)
{
    comm_result_t result = check_store("comm_store_count", store);
    if (result == COMM_OK) {
        result = check_answer("comm_store_count", store, keys);
    }
    if (result != COMM_OK) {
        return result;
    }
    Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
    int64_t number = 0;
    body.kind = STORE_KIND_COUNT;
    result = ask_number("comm_store_count", store, &body, &number);
    if (result == COMM_OK) {
        *keys = (size_t)number;
    }
    return result;
}

/* --- Many keys --- */

static comm_result_t check_keys(const char *call, const struct comm_store *store, const char *const *keys,
                                size_t count)
{
    comm_result_t result = check_store(call, store);
    if (result == COMM_OK && count > 0) {
        result = keys != NULL ? COMM_OK
                              : error_report(COMM_INVALID_ARGUMENT,
                                             "%s on \"%s\": the keys are a null pointer", call, store->name);
    }
    for (size_t i = 0; i < count && result == COMM_OK; i++) {
        result = check_key(call, store, keys[i]);
    }
    return result;
}

/* Fills a request with as many keys from *at on as it may have. */
static void take_keys(Commd__Client__StoreAsk *body, ProtobufCBinaryData *room, const char *const *keys,
                      size_t count, size_t *at)
{
    size_t bytes = 0;
    body->keys = room;
    body->n_keys = 0;
    while (*at < count && body->n_keys < STORE_ASK_KEYS_MAX) {
        ProtobufCBinaryData key = bytes_of_key(keys[*at]);
        bytes += key.len;
        if (bytes > STORE_ASK_KEYS_MAX_BYTES) {
            return;
        }
        room[body->n_keys++] = key;
        (*at)++;
    }
}

comm_result_t comm_store_wait(comm_store_t *store, const char *const *keys, size_t count, uint32_t timeout_ms)
{
    comm_result_t result = check_keys("comm_store_wait", store, keys, count);
    uint64_t deadline_ns = clock_after_ms(timeout_ms);
    for (size_t at = 0; at < count && result == COMM_OK;) {
        ProtobufCBinaryData room[STORE_ASK_KEYS_MAX];
        Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
        uint64_t now_ns = clock_ns();
        int64_t number;
        body.kind = STORE_KIND_WAIT;
        body.timeout_ms = now_ns < deadline_ns ? (deadline_ns - now_ns + 999999u) / 1000000u : 0;
        take_keys(&body, room, keys, count, &at);
        result = ask_number("comm_store_wait", store, &body, &number);
    }
    return result;
}

comm_result_t comm_store_check(comm_store_t *store, const char *const *keys, size_t count, int *all)
{
    comm_result_t result = check_keys("comm_store_check", store, keys, count);
    if (result == COMM_OK) {
        result = check_answer("comm_store_check", store, all);
    }
    int64_t number = 1;
    for (size_t at = 0; at < count && result == COMM_OK && number != 0;) {
        ProtobufCBinaryData room[STORE_ASK_KEYS_MAX];
        Commd__Client__StoreAsk body = COMMD__CLIENT__STORE_ASK__INIT;
        body.kind = STORE_KIND_CHECK;
        take_keys(&body, room, keys, count, &at);
        result = ask_number("comm_store_check", store, &body, &number);
    }
    if (result == COMM_OK) {
        *all = number != 0;
    }
    return result;
}
