#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"
#include "daemon/conf/conf.h"

/* The configuration for commctl: what is in force, and how administrators change it while commd runs. */

/* --- Settings --- */

/* A page has so many rows, and so many bytes. The cursor counts the rows of all pages. */
#define SETTINGS_MAX 256
#define PAGE_BYTES_MAX (CLIENT_PACKET_MAX_BYTES - 4096)
#define ROW_OVERHEAD_BYTES 8 /* tag and length */

struct settings {
    bool shows_private;
    uint32_t hidden;
    uint64_t after, seen; /* rows of earlier pages; rows so far, those included */
    size_t bytes;
    bool full;
    Commd__Client__ConfigSetting rows[SETTINGS_MAX];
    Commd__Client__ConfigSetting *pointers[SETTINGS_MAX];
    size_t count;
};

static void text_free(char *text)
{
    if (text != (char *)protobuf_c_empty_string) {
        free(text);
    }
}

static void row_free(Commd__Client__ConfigSetting *row)
{
    text_free(row->key);
    text_free(row->value);
    text_free(row->source);
    text_free(row->waiting_value);
    text_free(row->waiting_source);
}

static void add_setting(void *context, const char *key, const char *value, const char *source,
                        const struct conf_waiting *waiting)
{
    struct settings *settings = context;
    if (!settings->shows_private && conf_is_private(key)) {
        settings->hidden++;
        return;
    }
    if (settings->seen++ < settings->after || settings->full) {
        return;
    }
    Commd__Client__ConfigSetting *row = &settings->rows[settings->count];
    commd__client__config_setting__init(row);
    row->key = strdup(key);
    row->value = strdup(value);
    row->source = strdup(source);
    if (waiting->value != NULL) {
        row->waiting_value = strdup(waiting->value);
        row->waiting_source = strdup(waiting->source);
    }
    settings->bytes += commd__client__config_setting__get_packed_size(row) + ROW_OVERHEAD_BYTES;
    if (settings->bytes > PAGE_BYTES_MAX && settings->count > 0) {
        row_free(row);
        settings->full = true;
        return;
    }
    settings->pointers[settings->count++] = row;
    settings->full = settings->count == SETTINGS_MAX;
}

static void settings_free(struct settings *settings)
{
    for (size_t i = 0; i < settings->count; i++) {
        row_free(&settings->rows[i]);
    }
    free(settings);
}

void api_admin_config(struct api_session *session, uint64_t request_id, uint64_t after)
{
    struct settings *settings = calloc(1, sizeof *settings);
    if (settings == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NO_MEMORY, "no memory for the settings");
        return;
    }
    settings->shows_private = session->role == API_ROLE_ADMIN;
    settings->after = after;
    session->api->owner.visit_settings(session->api->owner.context, add_setting, settings);
    Commd__Client__ConfigReply answer = COMMD__CLIENT__CONFIG_REPLY__INIT;
    answer.settings = settings->pointers;
    answer.n_settings = settings->count;
    answer.hidden = settings->hidden;
    uint64_t shown = after + settings->count;
    answer.left_out = settings->seen > shown ? (uint32_t)(settings->seen - shown) : 0;
    answer.cursor = answer.left_out > 0 ? shown : 0;
    Commd__Client__Reply reply = API_REPLY(request_id, CONFIG, config, &answer);
    api_session_reply(session, &reply);
    settings_free(settings);
}

static void count_waiting(void *context, const char *key, const char *value, const char *source,
                          const struct conf_waiting *waiting)
{
    (void)key;
    (void)value;
    (void)source;
    *(uint32_t *)context += waiting->value != NULL;
}

uint32_t api_settings_waiting(const struct api *api)
{
    uint32_t count = 0;
    api->owner.visit_settings(api->owner.context, count_waiting, &count);
    return count;
}

/* --- Changes --- */

static bool session_may_change(struct api_session *session, uint64_t request_id, const char *what)
{
    if (session->role == API_ROLE_ADMIN) {
        return true;
    }
    api_session_reply_failure(session, request_id, STATUS_PERMISSION,
                              "only administrators %s: root, commd's own user and members of admin_group, on "
                              "the administrators' socket",
                              what);
    return false;
}

/* A reload that is in force, but that other threads may not use yet. */
struct api_reload {
    uint64_t request_id;
    struct conf_changes changes;
};

static void answer_reload(struct api_session *session, uint64_t request_id,
                          const struct conf_changes *changes)
{
    Commd__Client__ReloadReply answer = COMMD__CLIENT__RELOAD_REPLY__INIT;
    answer.applied = (char **)(uintptr_t)changes->applied.texts;
    answer.n_applied = changes->applied.count;
    answer.waiting = (char **)(uintptr_t)changes->waiting.texts;
    answer.n_waiting = changes->waiting.count;
    answer.left_out = changes->applied.left_out + changes->waiting.left_out;
    Commd__Client__Reply reply = API_REPLY(request_id, RELOAD, reload, &answer);
    api_session_reply(session, &reply);
}

static bool reload_is_used(const struct api *api)
{
    return api->owner.reload_is_used == NULL || api->owner.reload_is_used(api->owner.context);
}

void api_reload_forget(struct api_session *session)
{
    if (session->reload != NULL) {
        conf_changes_free(&session->reload->changes);
        free(session->reload);
        session->reload = NULL;
        session->api->reloads_under_way--;
    }
}

void api_reloads_poll(struct api *api)
{
    if (api->reloads_under_way == 0 || !reload_is_used(api)) {
        return;
    }
    for (struct api_session *each = api->sessions; each != NULL; each = each->hh.next) {
        if (each->reload != NULL) {
            answer_reload(each, each->reload->request_id, &each->reload->changes);
            api_reload_forget(each);
        }
    }
}

void api_reload(struct api_session *session, uint64_t request_id, uint64_t now_ns)
{
    struct api *api = session->api;
    struct error error;
    if (!session_may_change(session, request_id, "reload the configuration")) {
        return;
    }
    struct api_reload *reload = calloc(1, sizeof *reload);
    enum status status;
    if (reload == NULL) {
        status = error_set(&error, STATUS_NO_MEMORY, "no memory for a reload");
    } else if (session->reload != NULL) {
        status = error_set(&error, STATUS_LIMIT, "a connection can have only one reload at a time");
    } else if (api->owner.reload == NULL) {
        status = error_set(&error, STATUS_UNSUPPORTED, "this commd has no configuration to reload");
    } else {
        status = api->owner.reload(api->owner.context, &reload->changes, now_ns, &error);
    }
    if (status == STATUS_OK && !reload_is_used(api)) {
        reload->request_id = request_id;
        session->reload = reload;
        api->reloads_under_way++;
        return;
    }
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    } else {
        answer_reload(session, request_id, &reload->changes);
    }
    if (reload != NULL) {
        conf_changes_free(&reload->changes);
    }
    free(reload);
}

void api_log_level(struct api_session *session, uint64_t request_id, const Commd__Client__LogLevel *request)
{
    const struct api *api = session->api;
    struct error error;
    if (!session_may_change(session, request_id, "set the log level")) {
        return;
    }
    enum status status = api->owner.set_log_level == NULL
                             ? error_set(&error, STATUS_UNSUPPORTED, "this commd has no log level to set")
                             : api->owner.set_log_level(api->owner.context, request->level, &error);
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    } else {
        api_session_reply_done(session, request_id);
    }
}
