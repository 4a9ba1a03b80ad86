#include <stdio.h>
#include <string.h>

#include "daemon/api/session.h"
#include "proto/version_range.h"

/* The start of a session: who the client is, and which features both sides have. */

static bool hello_asks_for(const Commd__Client__Hello *hello, const char *feature)
{
    for (size_t i = 0; i < hello->n_features; i++) {
        if (strcmp(hello->features[i], feature) == 0) {
            return true;
        }
    }
    return false;
}

/* --- Features: each is offered if the client asks for it, and its function, if it has one, agrees --- */

static bool begin_rings(struct api_session *session, uint64_t now_ns)
{
    struct error error;
    (void)now_ns;
    if (api_rings_new(session, &error) != STATUS_OK) {
        api_session_log(session, LOG_LEVEL_WARNING, "no rings: %s", error.text);
        return false;
    }
    session->offers_fds = true;
    return true;
}

static bool begin_heartbeat(struct api_session *session, uint64_t now_ns)
{
    api_heart_listen(session, now_ns);
    session->offers_fds = true;
    return true;
}

static bool begin_failures(struct api_session *session, uint64_t now_ns)
{
    (void)now_ns;
    session->wants_failures = true;
    return true;
}

static bool begin_store(struct api_session *session, uint64_t now_ns)
{
    (void)now_ns;
    return session->api->stores != NULL;
}

static bool begin_draining(struct api_session *session, uint64_t now_ns)
{
    (void)now_ns;
    session->wants_draining = true;
    return true;
}

static bool begin_gather(struct api_session *session, uint64_t now_ns)
{
    (void)now_ns;
    return session->api->gathers != NULL;
}

static const struct feature {
    const char *name;
    bool (*begin)(struct api_session *session, uint64_t now_ns);
} features[] = {
    {CLIENT_FEATURE_RINGS, begin_rings},
    {CLIENT_FEATURE_HEARTBEAT, begin_heartbeat},
    {CLIENT_FEATURE_RECORDS_BY_TICKET, NULL},
    {CLIENT_FEATURE_GRAPHS, NULL},
    {CLIENT_FEATURE_ABORT, NULL},
    {CLIENT_FEATURE_SHRINK, NULL},
    {CLIENT_FEATURE_CELLS, NULL},
    {CLIENT_FEATURE_FAILURES, begin_failures},
    {CLIENT_FEATURE_STORE, begin_store},
    {CLIENT_FEATURE_GATHER, begin_gather},
    {CLIENT_FEATURE_DRAINING, begin_draining},
    {CLIENT_FEATURE_BUCKETS_OF_BLOCKS, NULL},
    {CLIENT_FEATURE_MEMORY_POOLS, NULL},
};
#define FEATURES (sizeof features / sizeof features[0])

/* Begins what both sides have. Returns the number of features. */
static size_t offer_features(struct api_session *session, const Commd__Client__Hello *hello,
                             char *offered[FEATURES], uint64_t now_ns)
{
    size_t count = 0;
    for (size_t i = 0; i < FEATURES; i++) {
        const struct feature *feature = &features[i];
        if (hello_asks_for(hello, feature->name) &&
            (feature->begin == NULL || feature->begin(session, now_ns))) {
            offered[count++] = (char *)(uintptr_t)feature->name;
        }
    }
    return count;
}

bool api_session_is_visitor(const struct api_session *session)
{
    return strcmp(session->program, "commctl") == 0;
}

void api_hello(struct api_session *session, uint64_t request_id, const Commd__Client__Hello *hello,
               uint64_t now_ns)
{
    const struct version_range ours = {CLIENT_PROTOCOL_OLDEST, CLIENT_PROTOCOL_VERSION};
    const struct version_range theirs = {hello->oldest_version, hello->protocol_version};
    const uint32_t version = version_choose(ours, theirs);
    char text_ours[VERSION_RANGE_TEXT_BYTES], text_theirs[VERSION_RANGE_TEXT_BYTES];
    if (version == 0) {
        api_session_reply_end(session, request_id, STATUS_VERSION,
                              "this commd (%s) speaks %s of the client protocol, the library %s",
                              COMMD_VERSION_TEXT, version_range_text(ours, text_ours, sizeof text_ours),
                              version_range_text(theirs, text_theirs, sizeof text_theirs));
        return;
    }
    if (session->greeted) {
        api_session_reply_end(session, request_id, STATUS_PROTOCOL, "a second Hello");
        return;
    }
    if (session->role == API_ROLE_CLIENT &&
        !fd_reaper_takes_more(session->api->fd_reaper, session->client.uid)) {
        api_session_has_too_much(session, request_id);
        return;
    }
    session->greeted = true;
    api_session_heard(session);
    api_pass_fds(session->fd, session->role == API_ROLE_CLIENT);
    snprintf(session->program, sizeof session->program, "%s", hello->program);
    for (char *byte = session->program; *byte != '\0'; byte++) {
        if (*byte < ' ' || *byte > '~') {
            *byte = '?';
        }
    }
    Commd__Client__HelloReply answer = COMMD__CLIENT__HELLO_REPLY__INIT;
    answer.protocol_version = version;
    answer.version_text = (char *)COMMD_VERSION_TEXT;
    answer.node_name = (char *)mesh_own_name(session->api->mesh);
    answer.pending_ops_max = COMMS_PENDING_OPS_MAX;
    answer.packet_max_bytes = CLIENT_PACKET_MAX_BYTES;
    answer.patience_ms = (uint32_t)(mesh_patience_ns(session->api->mesh) / TIME_MS);
    char *offered[FEATURES];
    answer.features = offered;
    if (session->role == API_ROLE_CLIENT) {
        answer.n_features = offer_features(session, hello, offered, now_ns);
    }
    Commd__Client__Draining draining;
    if (api_drain_fill(session, &draining, now_ns) && draining.draining) {
        answer.draining = &draining;
    }
    Commd__Client__Reply reply = API_REPLY(request_id, HELLO, hello, &answer);
    api_session_reply(session, &reply);
    if (session->role == API_ROLE_CLIENT && !api_session_is_visitor(session)) {
        api_session_happened(session, HISTORY_CLIENT_CONNECTED, "library %s", hello->version_text);
    }
    log_debug("client %d (%s), uid %u: connected", (int)session->client.pid, session->program,
              (unsigned)session->client.uid);
}
