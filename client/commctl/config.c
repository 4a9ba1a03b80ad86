#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/commctl.h"

static void print_settings(const json_t *object)
{
    static const struct column columns[] = {
        {"key", "KEY", COLUMN_TEXT}, {"value", "VALUE", COLUMN_TEXT}, {"source", "FROM", COLUMN_TEXT}};
    table_print(json_object_get(object, "settings"), columns, sizeof columns / sizeof columns[0]);
    size_t index;
    json_t *row;
    json_array_foreach(json_object_get(object, "settings"), index, row)
    {
        const char *source = json_string_value(json_object_get(row, "waiting_source"));
        if (source != NULL && source[0] != '\0') {
            printf("%s = %s (%s) waits for a restart\n", json_string_value(json_object_get(row, "key")),
                   json_string_value(json_object_get(row, "waiting_value")), source);
        }
    }
    long long left_out = json_integer_value(json_object_get(object, "left_out"));
    if (left_out > 0) {
        printf("and %lld more nodes and users\n", left_out);
    }
    long long hidden = json_integer_value(json_object_get(object, "hidden"));
    if (hidden > 0) {
        printf("and %lld more that only administrators see\n", hidden);
    }
}

/* Asks for one page. On success *page is a new reference; null if the answer has no settings. */
static enum exit_code fetch_page(struct commctl *commctl, uint64_t after, json_t **page)
{
    Commd__Client__ConfigQuery query = COMMD__CLIENT__CONFIG_QUERY__INIT;
    Commd__Client__Request request = COMMD__CLIENT__REQUEST__INIT;
    query.after = after;
    request.body_case = COMMD__CLIENT__REQUEST__BODY_CONFIG;
    request.config = &query;
    Commd__Client__Event *event;
    enum exit_code code = connection_request(commctl, &request, &event);
    bool has_page = code == EXIT_CODE_OK && event->reply->body_case == COMMD__CLIENT__REPLY__BODY_CONFIG;
    *page = has_page ? json_of_message(&event->reply->config->base) : NULL;
    commd__client__event__free_unpacked(event, NULL);
    return code;
}

/* The later pages' rows are added to the first page. An older commd has one page only, and says how many rows
 * it left out. */
static enum exit_code config_show(struct commctl *commctl)
{
    json_t *all;
    enum exit_code code = fetch_page(commctl, 0, &all);
    uint64_t after = 0, next = (uint64_t)json_integer_value(json_object_get(all, "cursor"));
    while (next > after) {
        json_t *page;
        code = fetch_page(commctl, next, &page);
        if (code != EXIT_CODE_OK) {
            json_decref(all);
            return code;
        }
        json_array_extend(json_object_get(all, "settings"), json_object_get(page, "settings"));
        json_object_set(all, "left_out", json_object_get(page, "left_out"));
        after = next;
        next = (uint64_t)json_integer_value(json_object_get(page, "cursor"));
        json_decref(page);
    }
    if (all != NULL) {
        json_object_del(all, "cursor");
        output_object(commctl, all, print_settings);
    }
    return code;
}

/* Only commd knows its schema: the commd in commctl's folder, or the one on PATH, checks the file. */
static enum exit_code config_check(const char *path)
{
    char beside[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", beside, sizeof beside - 16);
    if (length > 0) {
        static const char *const places[] = {"commd", "../sbin/commd"};
        beside[length] = '\0';
        char *name = strrchr(beside, '/') + 1;
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            strcpy(name, places[i]);
            if (access(beside, X_OK) == 0) {
                execl(beside, "commd", "--check-config", path != NULL ? "--config" : NULL, path,
                      (char *)NULL);
            }
        }
    }
    execlp("commd", "commd", "--check-config", path != NULL ? "--config" : NULL, path, (char *)NULL);
    fprintf(stderr, "commctl: commd cannot be run: %s\n", strerror(errno));
    return EXIT_CODE_FAILURE;
}

enum exit_code verb_config(struct commctl *commctl, int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "show") == 0) {
        return config_show(commctl);
    }
    if ((argc == 2 || argc == 3) && strcmp(argv[1], "check") == 0) {
        return config_check(argc == 3 ? argv[2] : NULL);
    }
    bool known = argc > 1 && (strcmp(argv[1], "show") == 0 || strcmp(argv[1], "check") == 0);
    return usage_wrong("config",
                       argc < 2 ? "nothing"
                       : known  ? argv[argc - 1]
                                : argv[1],
                       NULL,
                       known && argv[1][0] == 's' ? "no argument after show"
                       : known                    ? "one file after check"
                                                  : "show or check",
                       "usage: commctl config show | commctl config check [FILE]\n");
}
