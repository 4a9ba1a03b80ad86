#ifndef TESTS_UNIT_CONF_CONF_FILE_H
#define TESTS_UNIT_CONF_CONF_FILE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "daemon/conf/conf.h"

/* One configuration file, written anew by each test and read by conf_load. */

#define OWN "nodes = ( { name = \"a\"; address = \"127.0.0.1:7400\"; } );\nnode_name = \"a\";\n"
#define SETTINGS_MAX 64

static char folder[64];
static char path[128];

static inline int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/commd-test-conf-XXXXXX");
    if (mkdtemp(folder) == NULL) {
        return -1;
    }
    snprintf(path, sizeof path, "%s/commd.conf", folder);
    return 0;
}

static inline int remove_folder(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static inline void write_bytes(const char *text, size_t size)
{
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline struct conf *load(const struct conf_options *options)
{
    struct conf *conf = NULL;
    struct error error;
    if (conf_load(options, &conf, &error) != STATUS_OK) {
        fail_msg("%s", error.text);
    }
    return conf;
}

static inline struct conf *load_text(const char *text)
{
    write_bytes(text, strlen(text));
    struct conf_options options = {.path = path};
    return load(&options);
}

static inline void assert_contains(const char *text, const char *part)
{
    if (strstr(text, part) == NULL) {
        fail_msg("\"%s\" is not in \"%s\"", part, text);
    }
}

/* line 0: the message names the file, but no line. */
static inline void assert_refused_with(const struct conf_options *options, enum status status, unsigned line,
                                       const char *part)
{
    struct conf *conf = NULL;
    struct error error = {0};
    char start[192];
    assert_int_equal(conf_load(options, &conf, &error), status);
    assert_int_equal(error.status, status);
    assert_null(conf);
    if (line == 0) {
        snprintf(start, sizeof start, "%s: ", path);
    } else {
        snprintf(start, sizeof start, "%s:%u: ", path, line);
    }
    if (strncmp(error.text, start, strlen(start)) != 0) {
        fail_msg("\"%s\" does not start with \"%s\"", error.text, start);
    }
    assert_contains(error.text, part);
    assert_int_equal(conf_load(options, &conf, NULL), status); /* without a place for the message */
}

static inline void assert_refused(const char *text, unsigned line, const char *part)
{
    write_bytes(text, strlen(text));
    struct conf_options options = {.path = path};
    assert_refused_with(&options, STATUS_CONFIG, line, part);
}

struct visited {
    size_t count;
    char keys[SETTINGS_MAX][96];
    char values[SETTINGS_MAX][160];
    char sources[SETTINGS_MAX][160];
    char waiting[SETTINGS_MAX][160]; /* "": nothing waits */
};

static inline void visit(void *context, const char *key, const char *value, const char *source,
                         const struct conf_waiting *waiting)
{
    struct visited *visited = context;
    assert_true(visited->count < SETTINGS_MAX);
    snprintf(visited->keys[visited->count], sizeof visited->keys[0], "%s", key);
    snprintf(visited->values[visited->count], sizeof visited->values[0], "%s", value);
    snprintf(visited->sources[visited->count], sizeof visited->sources[0], "%s", source);
    snprintf(visited->waiting[visited->count], sizeof visited->waiting[0], "%s",
             waiting->value != NULL ? waiting->value : "");
    visited->count++;
}

static inline size_t find_visited(const struct visited *visited, const char *key)
{
    for (size_t i = 0; i < visited->count; i++) {
        if (strcmp(visited->keys[i], key) == 0) {
            return i;
        }
    }
    return SIZE_MAX;
}

static inline void assert_visited(const struct visited *visited, const char *key, const char *value,
                                  const char *source)
{
    size_t i = find_visited(visited, key);
    if (i == SIZE_MAX) {
        fail_msg("%s was not visited", key);
    }
    assert_string_equal(visited->values[i], value);
    assert_string_equal(visited->sources[i], source);
}

#endif
