#include <stdarg.h>
#include <stdio.h>

#include "daemon/api/session.h"

/* Log lines that clients cause: they name the client, and their number per user is limited. */

#define LINE_MAX_BYTES 1024 /* an error's text and some words */

void api_session_log(struct api_session *session, enum log_level level, const char *format, ...)
{
    uint64_t suppressed;
    if (!budget_may_log(session->api->budget, session->client.uid, session->api->now_ns, &suppressed)) {
        return;
    }
    char text[LINE_MAX_BYTES], more[64] = "";
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (suppressed > 0) {
        (void)snprintf(more, sizeof more, " (%llu lines of this user were left out)",
                       (unsigned long long)suppressed);
    }
    log_line(level, "client %d (%s), uid %u: %s%s", (int)session->client.pid, session->program,
             (unsigned)session->client.uid, text, more);
}

void api_session_happened(const struct api_session *session, enum history_kind kind, const char *format, ...)
{
    char text[HISTORY_TEXT_MAX_BYTES + 1];
    struct history_about about = {.kind = kind,
                                  .audience = HISTORY_FOR_USER,
                                  .uid = session->client.uid,
                                  .pid = (uint32_t)session->client.pid,
                                  .subject = session->program,
                                  .now_ns = session->api->now_ns};
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    history_add(&about, "%s", text);
}
