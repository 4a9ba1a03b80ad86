#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "client/commctl/commctl.h"

/* commctl events: what happened on the node, one JSON object a line. */

#define POLL_NS 250000000L /* between questions of --follow */
#define MS_PER_S 1000u

static const char usage[] = "usage: commctl events [--follow] [--after SEQUENCE]\n";

struct events_options {
    bool follows;
    uint64_t after;
};

static json_t *time_text(uint64_t time_ms)
{
    char text[40];
    struct tm parts;
    time_t seconds = (time_t)(time_ms / MS_PER_S);
    if (gmtime_r(&seconds, &parts) == NULL) {
        return json_null();
    }
    size_t used = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
    (void)snprintf(text + used, sizeof text - used, ".%03uZ", (unsigned)(time_ms % MS_PER_S));
    return json_string(text);
}

static void print_line(json_t *object)
{
    json_dumpf(object, stdout, JSON_COMPACT | JSON_SORT_KEYS);
    putchar('\n');
    json_decref(object);
}

static void print_event(const Commd__Client__EventInfo *event)
{
    json_t *object =
        json_pack("{sIsosssI}", "sequence", (json_int_t)event->sequence, "time", time_text(event->time_ms),
                  "event", event->kind, "schema_version", (json_int_t)COMMCTL_SCHEMA_VERSION);
    if (event->subject_kind[0] != '\0') {
        json_object_set_new(object, event->subject_kind, json_string(event->subject));
    }
    if (event->text[0] != '\0') {
        json_object_set_new(object, "text", json_string(event->text));
    }
    if (event->has_uid) {
        json_object_set_new(object, "uid", json_integer((json_int_t)event->uid));
    }
    if (event->pid != 0) {
        json_object_set_new(object, "pid", json_integer((json_int_t)event->pid));
    }
    if (event->left_out > 0) {
        json_object_set_new(object, "left_out", json_integer((json_int_t)event->left_out));
    }
    print_line(object);
}

static void print_missed(uint64_t missed)
{
    print_line(json_pack("{sssIsI}", "event", "missed", "count", (json_int_t)missed, "schema_version",
                         (json_int_t)COMMCTL_SCHEMA_VERSION));
}

/* Prints a page, and moves the query to the next. */
static enum exit_code print_page(struct commctl *commctl, Commd__Client__EventsQuery *query,
                                 bool tells_missed, bool *more)
{
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    Commd__Client__Event *event;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_EVENTS;
    request.events = query;
    *more = false;
    enum exit_code code = connection_request(commctl, &request, &event);
    if (code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_EVENTS) {
        const Commd__Client__EventsReply *page = event->reply->events;
        if (tells_missed && page->missed > 0) {
            print_missed(page->missed);
        }
        for (size_t i = 0; i < page->n_events; i++) {
            print_event(page->events[i]);
        }
        query->after = page->cursor;
        *more = page->more;
    }
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

static bool parse(int argc, char **argv, struct events_options *options)
{
    static const struct option names[] = {
        {"follow", no_argument, NULL, 'F'}, {"after", required_argument, NULL, 'a'}, {0}};
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, "", names, NULL)) != -1;) {
        char *end;
        if (option == 'F') {
            options->follows = true;
            continue;
        }
        if (option != 'a') {
            fputs(usage, stderr);
            return false;
        }
        errno = 0;
        options->after = strtoull(optarg, &end, 10);
        if (optarg[strspn(optarg, "0123456789")] != '\0' || end == optarg || errno == ERANGE) {
            (void)usage_wrong("events", "--after", optarg, "the sequence number of an event", usage);
            return false;
        }
    }
    if (optind < argc) {
        (void)usage_wrong("events", argv[optind], NULL, "options alone", usage);
        return false;
    }
    return true;
}

enum exit_code verb_events(struct commctl *commctl, int argc, char **argv)
{
    struct events_options options = {.after = 0};
    Commd__Client__EventsQuery query = COMMD__CLIENT__EVENTS_QUERY__INIT;
    if (!parse(argc, argv, &options)) {
        return EXIT_CODE_USAGE;
    }
    query.after = options.after;
    /* The events before the first ones that are kept were not missed, unless the user names where he was. */
    for (bool tells_missed = options.after > 0;; tells_missed = true) {
        bool more;
        enum exit_code code = print_page(commctl, &query, tells_missed, &more);
        if (code != EXIT_CODE_OK) {
            return code;
        }
        if (!more && (fflush(stdout) != 0 || ferror(stdout))) {
            return EXIT_CODE_FAILURE;
        }
        if (!more && !options.follows) {
            return EXIT_CODE_OK;
        }
        if (!more) {
            (void)nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
        }
    }
}
