#include <pwd.h>
#include <stdio.h>
#include <string.h>

#include "client/commctl/commctl.h"

/* Shows what commd holds for each user, and each user's limits. */

static const struct list list_users = {"users", "account", "accounts", COMMD__CLIENT__REQUEST__BODY_USERS,
                                       COMMD__CLIENT__REPLY__BODY_USERS};

static const struct column columns[] = {
    {"user", "USER", COLUMN_TEXT},
    {"sessions", "SESSIONS", COLUMN_NUMBER},
    {"communicators", "RANKS", COLUMN_NUMBER},
    {"communicator_bytes", "COMMUNICATORS", COLUMN_BYTES},
    {"operation_bytes", "OPERATIONS", COLUMN_BYTES},
    {"lane_bytes", "WORK MEMORY", COLUMN_BYTES},
    {"queued_bytes", "QUEUED", COLUMN_BYTES},
    {"store_bytes", "STORES", COLUMN_BYTES},
    {"address_bytes", "REGISTERED", COLUMN_BYTES},
    {"descriptors", "FDS", COLUMN_NUMBER},
    {"refused", "REFUSED", COLUMN_TEXT},
    {"loop", "TIME", COLUMN_TEXT},
    {"group", "GROUP", COLUMN_TEXT},
};

#define GROUP_SHOWN_BYTES 24u /* of a path, its end: a terminal has no room for more */

/* The text in which a user's accounts differ: the end of the control group's path. "administration" is not a
 * group, and is always shown. */
static json_t *short_group(const json_t *row)
{
    const char *group = json_string_value(json_object_get(row, "group"));
    size_t length = group != NULL ? strlen(group) : 0;
    if (length == 0 || (group[0] == '/' && !json_is_true(json_object_get(row, "shares_uid")))) {
        return json_string("");
    }
    return length <= GROUP_SHOWN_BYTES ? json_string(group)
                                       : json_sprintf("...%s", group + length - GROUP_SHOWN_BYTES + 3);
}

static json_t *loop_text(const json_t *row)
{
    char text[64];
    const json_t *rate = json_object_get(row, "loop_us_per_s");
    json_t *ms = json_integer(json_integer_value(json_object_get(row, "loop_us")) / 1000);
    table_format(ms, COLUMN_MS, text, sizeof text);
    json_decref(ms);
    return rate == NULL ? json_string(text)
                        : json_sprintf("%s, %.1f ms/s", text, (double)json_integer_value(rate) / 1000);
}

/* A row of the table: of each kind what is used, or the ceiling. */
static json_t *table_row(const json_t *row, const char *which)
{
    json_t *shown = json_object();
    const char *key;
    json_t *use;
    json_object_foreach(json_object_get(row, "kinds"), key, use)
    {
        json_object_set(shown, key, json_object_get(use, which));
    }
    return shown;
}

static void print_users(const json_t *answer)
{
    json_t *rows = json_array();
    const json_t *users = json_object_get(answer, "users");
    size_t index;
    json_t *row;
    json_array_foreach(users, index, row)
    {
        const char *name = json_string_value(json_object_get(row, "name"));
        long long uid = json_integer_value(json_object_get(row, "uid"));
        json_t *shown = table_row(row, "used");
        json_object_set_new(shown, "user",
                            name != NULL && name[0] != '\0' ? json_string(name) : json_sprintf("%lld", uid));
        json_object_set_new(
            shown, "refused",
            json_sprintf("%lld", (long long)json_integer_value(json_object_get(row, "refused"))));
        json_object_set_new(shown, "loop", loop_text(row));
        json_object_set_new(shown, "group", short_group(row));
        json_array_append_new(rows, shown);
    }
    if (index > 0) { /* the same for every user */
        json_t *limits = table_row(json_array_get(users, 0), "ceiling");
        json_object_set_new(limits, "user", json_string("(limit)"));
        json_array_append_new(rows, limits);
    }
    table_print(rows, columns, sizeof columns / sizeof columns[0]);
    print_others(json_integer_value(json_object_get(answer, "others")), list_users.singular,
                 list_users.plural);
    json_decref(rows);
}

/* With --watch, the values of the last look: loop_us by account. */
static struct {
    json_t *loop_us; /* null: this is the first one */
    double at_s;
} last;

static void complete_rows(json_t *rows)
{
    size_t index, place;
    json_t *row, *use;
    double at_s = now_s();
    json_t *loop_us = json_object();
    json_array_foreach(rows, index, row)
    {
        const struct passwd *user = getpwuid((uid_t)json_integer_value(json_object_get(row, "uid")));
        json_t *kinds = json_object();
        char id[32];
        json_array_foreach(json_object_get(row, "uses"), place, use)
        {
            json_object_set_new(kinds, json_string_value(json_object_get(use, "kind")),
                                json_pack("{sO,sO}", "used", json_object_get(use, "used"), "ceiling",
                                          json_object_get(use, "ceiling")));
        }
        json_object_del(row, "uses");
        json_object_set_new(row, "kinds", kinds);
        json_object_set_new(row, "name", json_string(user != NULL ? user->pw_name : ""));
        snprintf(id, sizeof id, "%lld", (long long)json_integer_value(json_object_get(row, "id")));
        const json_t *before = json_object_get(last.loop_us, id);
        if (before != NULL && at_s > last.at_s) {
            double more =
                (double)(json_integer_value(json_object_get(row, "loop_us")) - json_integer_value(before));
            json_object_set_new(row, "loop_us_per_s", json_integer((json_int_t)(more / (at_s - last.at_s))));
        }
        json_object_set(loop_us, id, json_object_get(row, "loop_us"));
    }
    json_decref(last.loop_us);
    last.loop_us = loop_us;
    last.at_s = at_s;
}

enum exit_code verb_users(struct commctl *commctl, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    json_t *rows = json_array();
    long long others;
    enum exit_code code = list_fetch(commctl, &list_users, rows, &others);
    if (code == EXIT_CODE_OK) {
        complete_rows(rows);
        output_object(commctl, json_pack("{sO,sI}", "users", rows, "others", (json_int_t)others),
                      print_users);
    }
    json_decref(rows);
    return code;
}
