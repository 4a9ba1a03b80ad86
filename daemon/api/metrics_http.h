#ifndef DAEMON_API_METRICS_HTTP_H
#define DAEMON_API_METRICS_HTTP_H

#include "daemon/api/metrics_text.h"
#include "daemon/base/loop.h"

/*
 * Serves the metrics over HTTP: GET /metrics, on a loopback port or a Unix socket, on the main thread's loop.
 * Any local process may connect, so every resource has a limit:
 *
 * - METRICS_CONNECTIONS_MAX connections at a time, and METRICS_ACCEPTS_PER_S new ones a second. Further ones
 *   wait in the kernel's queue.
 * - One request a connection. A connection ends with its answer, after METRICS_SILENCE_S without a byte, and
 *   in any case METRICS_CONNECTION_MAX_NS after it began.
 * - METRICS_HEADERS_MAX_BYTES of request line and headers, and no body. More, or no HTTP: status 400 or 413.
 * - A text of METRICS_TEXT_MAX_BYTES. A longer one gets status 500.
 */
#define METRICS_CONNECTIONS_MAX 8
#define METRICS_ACCEPTS_PER_S 16
#define METRICS_SILENCE_S 5
#define METRICS_CONNECTION_MAX_NS (10 * TIME_S)
#define METRICS_HEADERS_MAX_BYTES 8192
#define METRICS_TEXT_MAX_BYTES (1u << 20)

struct metrics_http;

/* Writes the text. Called once for each request that is answered with it. */
typedef void metrics_http_write(void *context, struct metrics_text *text, uint64_t now_ns);

/*
 * address: as the setting `metrics`, and not "". Replaces a dead socket file. CONFIG for an address that is
 * none, ALREADY_EXISTS if another process answers there, SYSTEM, NO_MEMORY.
 */
enum status metrics_http_new(struct loop *loop, const char *address, metrics_http_write *write, void *context,
                             struct metrics_http **out, struct error *error) COMM_MUST_USE;
/* Ends all connections. Removes the socket file. Null is accepted. */
void metrics_http_free(struct metrics_http *http);

#endif
