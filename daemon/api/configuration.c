#include <stdlib.h>
#include <string.h>

#include "daemon/api/session.h"
#include "daemon/conf/conf.h"

/* The configuration for commctl: what is in force, and how administrators change it while commd runs. */

/* --- Settings --- */

#define SETTINGS_MAX 256

struct settings {
    bool shows_private;
    uint32_t hidden, left_out;
    Commd__Client__ConfigSetting rows[SETTINGS_MAX];
    Commd__Client__ConfigSetting *pointers[SETTINGS_MAX];
    size_t count;
};

static void add_setting(void *context, const char *key, const char *value, const char *source,
                        const struct conf_waiting *waiting)
{
    struct settings *settings = context;
    if (!settings->shows_private && conf_is_private(key)) {
        settings->hidden++;
        return;
    }
    if (settings->count == SETTINGS_MAX) {
        settings->left_out++;
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
    settings->pointers[settings->count++] = row;
}

static void text_free(char *text)
{
    if (text != (char *)protobuf_c_empty_string) {
        free(text);
    }
}

static void settings_free(struct settings *settings)
{
    for (size_t i = 0; i < settings->count; i++) {
        text_free(settings->rows[i].key);
        text_free(settings->rows[i].value);
        text_free(settings->rows[i].source);
        text_free(settings->rows[i].waiting_value);
        text_free(settings->rows[i].waiting_source);
    }
    free(settings);
}

void api_admin_config(struct api_session *session, uint64_t request_id)
{
    struct settings *settings = calloc(1, sizeof *settings);
    if (settings == NULL) {
        api_session_reply_failure(session, request_id, STATUS_NO_MEMORY, "no memory for the settings");
        return;
    }
    settings->shows_private = session->role == API_ROLE_ADMIN;
    session->api->visit_settings(session->api->settings_context, add_setting, settings);
    Commd__Client__ConfigReply answer = COMMD__CLIENT__CONFIG_REPLY__INIT;
    answer.settings = settings->pointers;
    answer.n_settings = settings->count;
    answer.hidden = settings->hidden;
    answer.left_out = settings->left_out;
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
    api->visit_settings(api->settings_context, count_waiting, &count);
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

void api_reload(struct api_session *session, uint64_t request_id, uint64_t now_ns)
{
    struct api *api = session->api;
    struct conf_changes changes = {0};
    struct error error;
    if (!session_may_change(session, request_id, "reload the configuration")) {
        return;
    }
    enum status status = api->reload == NULL ? error_set(&error, STATUS_UNSUPPORTED,
                                                         "this commd has no configuration to reload")
                                             : api->reload(api->settings_context, &changes, now_ns, &error);
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    } else {
        Commd__Client__ReloadReply answer = COMMD__CLIENT__RELOAD_REPLY__INIT;
        answer.applied = changes.applied.texts;
        answer.n_applied = changes.applied.count;
        answer.waiting = changes.waiting.texts;
        answer.n_waiting = changes.waiting.count;
        answer.left_out = changes.applied.left_out + changes.waiting.left_out;
        Commd__Client__Reply reply = API_REPLY(request_id, RELOAD, reload, &answer);
        api_session_reply(session, &reply);
    }
    conf_changes_free(&changes);
}

void api_log_level(struct api_session *session, uint64_t request_id, const Commd__Client__LogLevel *request)
{
    const struct api *api = session->api;
    struct error error;
    if (!session_may_change(session, request_id, "set the log level")) {
        return;
    }
    enum status status = api->set_log_level == NULL
                             ? error_set(&error, STATUS_UNSUPPORTED, "this commd has no log level to set")
                             : api->set_log_level(api->settings_context, request->level, &error);
    if (status != STATUS_OK) {
        api_session_reply_error(session, request_id, &error);
    } else {
        api_session_reply_done(session, request_id);
    }
}
