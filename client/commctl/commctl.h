#ifndef CLIENT_COMMCTL_COMMCTL_H
#define CLIENT_COMMCTL_COMMCTL_H

#include <getopt.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>

#include "proto/client.pb-c.h"

/* What the verbs of commctl share. Data goes to standard output, messages to standard error. */

enum exit_code {
    EXIT_CODE_OK = 0,
    EXIT_CODE_FAILURE = 1,
    EXIT_CODE_USAGE = 2,
    EXIT_CODE_NOT_RUNNING = 3,
    EXIT_CODE_NOT_FOUND = 4,
    EXIT_CODE_DEGRADED = 5,
    EXIT_CODE_TIMED_OUT = 124,
    EXIT_CODE_SIGNAL = 128 /* and the number of the signal that ended it */
};

#define COMMCTL_SCHEMA_VERSION 1

struct commctl {
    const char *socket_path;       /* the clients' */
    const char *admin_socket_path; /* tried first; null: it is not */
    const char *path;              /* of the two, the one in use */
    FILE
        *messages; /* where connection.c prints failures: standard error, or top's last line; null: nowhere */
    uint32_t timeout_ms;
    bool timeout_given;
    bool json;
    double watch_s; /* 0: once */
    int fd;         /* -1 until the first request */
};

/* The time that goes on evenly (CLOCK_MONOTONIC). */
static inline double now_s(void)
{
    struct timespec now = {0};
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline int64_t now_ms(void)
{
    return (int64_t)(now_s() * 1e3);
}

/* connection.c: sends a request and waits for its reply. The caller frees *event with
 * commd__client__event__free_unpacked. Prints failures. */
enum exit_code connection_request(struct commctl *commctl, Commd__Client__Request *request,
                                  Commd__Client__Event **event);
/* The same for a request whose answer says no more than that it was done. */
enum exit_code connection_request_done(struct commctl *commctl, Commd__Client__Request *request);
void connection_close(struct commctl *commctl);

/* json.c: converts any message to an object, by its descriptor. Returns a new reference; null if memory is
 * short. */
json_t *json_of_message(const ProtobufCMessage *message);

/* table.c: prints an array of objects as a table. */
enum column_format {
    COLUMN_TEXT,
    COLUMN_NUMBER,
    COLUMN_BYTES,
    COLUMN_MS,
    COLUMN_NS,
    COLUMN_DATE, /* of seconds since 1970 */
    COLUMN_LIST,
    COLUMN_SHARE /* key is "part/whole", two keys: prints both numbers */
};
struct column {
    const char *key;
    const char *title;
    enum column_format format;
};
void table_print(const json_t *rows, const struct column *columns, size_t column_count);
/* A size as people write it: "4k", "1.5m", "2g"; powers of 1024. */
bool size_parse(const char *text, uint64_t *bytes);
/* Writes a row's cell as text into the caller's buffer; a value. */
void table_cell(const json_t *row, const struct column *column, char *text, size_t size);
void table_format(const json_t *value, enum column_format format, char *text, size_t size);

/* usage.c: prints to standard error which argument is wrong, what was given (null: nothing), what is allowed,
 * and the usage. verb: null for options before the verb. Returns EXIT_CODE_USAGE. */
enum exit_code usage_wrong(const char *verb, const char *what, const char *given, const char *expected,
                           const char *usage);
#define USAGE_MAX_BYTES 1024u
/* Writes all arguments of a verb, in the language of complete.h: those of usage.c, and the options that
 * help.c explains. Returns false if there are none. */
bool usage_arguments(const char *verb, char text[USAGE_MAX_BYTES]);
/* The options before a verb, in the same language. */
extern const char usage_global_options[];
/* Whether a reason is one line without control characters, which others may print. */
#define USAGE_REASON "one line of printable text"
bool usage_reason_fits(const char *reason);
/* Returns the name of an option of getopt_long: "--slice", "-n". */
const char *usage_option_name(const struct option *options, int option, char text[32]);

/* help.c: the options of a verb; "" if it has none. Each has a line, which begins with spaces, the names and
 * the value: "  -r, --reason TEXT   what it is for". Two spaces end the value. */
const char *help_options(const char *verb);

/* Verbs: argv[0] is the verb. */
typedef enum exit_code verb_function(struct commctl *commctl, int argc, char **argv);
verb_function verb_status, verb_comms, verb_clients, verb_ops; /* list.c */
verb_function verb_nodes;                                      /* nodes.c */
verb_function verb_users;                                      /* users.c */
verb_function verb_top;                                        /* top.c */
verb_function verb_gpus;                                       /* gpus.c */
verb_function verb_health;                                     /* health.c */
verb_function verb_events;                                     /* events.c */
verb_function verb_metrics;                                    /* metrics.c */
verb_function verb_ping;                                       /* ping.c */
verb_function verb_algorithms;                                 /* algorithms.c */
verb_function verb_plan;                                       /* plan.c */
verb_function verb_bench;                                      /* bench.c */
verb_function verb_trace;                                      /* trace.c */
verb_function verb_drain, verb_undrain, verb_wait;             /* drain.c */
verb_function verb_run;                                        /* run.c */
verb_function verb_abort, verb_disconnect;                     /* control.c */
verb_function verb_reload, verb_log_level;                     /* reload.c */
verb_function verb_config;                                     /* config.c */
verb_function verb_pki;                                        /* pki.c */

/* A list that comes in pages: how to ask for one, and where its rows and cursor are. */
struct list {
    const char *name;
    const char *singular, *plural;
    Commd__Client__Request__BodyCase question;
    Commd__Client__Reply__BodyCase answer;
};
/* Appends the rows of all pages. *others gets the number of other users' rows, which are not shown. Prints
 * failures. */
enum exit_code list_fetch(struct commctl *commctl, const struct list *list, json_t *rows, long long *others);

extern const struct list list_nodes, list_comms, list_clients, list_ops;

/* Fetches the node's status as an object, a new reference. Prints failures. */
enum exit_code status_fetch(struct commctl *commctl, json_t **status);

/* Prints "and 3 clients of other users", unless there are none. */
void print_others(long long count, const char *singular, const char *plural);

/* Prints an object (its schema_version added) as JSON, or calls `text` with it; releases it. */
void output_object(const struct commctl *commctl, json_t *object, void (*text)(const json_t *object));
/* Writes what standard output holds. If output was lost, as on a full disk, prints so, and returns a failure
 * in place of a code that says success. */
enum exit_code output_finish(enum exit_code code);

#endif
