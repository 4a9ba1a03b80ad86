#include "tests/unit/conf/conf_file.h"

/* What the documents tell administrators about the settings. */

/* The installed configuration file. Each comment that shows a setting is read as that setting. */
static void test_installed_file(void **state)
{
    (void)state;
    FILE *in = fopen("config/commd.conf", "re");
    if (in == NULL) {
        fail_msg("config/commd.conf: run from the repository's root");
    }
    FILE *out = fopen(path, "we");
    assert_non_null(out);
    char line[512];
    unsigned uncommented = 0;
    while (fgets(line, sizeof line, in) != NULL) {
        char *comment = strstr(line, "// ");
        bool sets = comment != NULL && comment == line + strspn(line, " ") &&
                    (strstr(comment, " = ") != NULL) && strchr(comment, ';') != NULL;
        fputs(sets ? comment + 3 : line, out);
        uncommented += sets;
    }
    fclose(in);
    assert_int_equal(fclose(out), 0);
    assert_in_range(uncommented, 10, 100);

    struct conf_options options = {.path = path};
    struct conf *conf = load(&options); /* an unknown key would be refused */
    assert_string_equal(conf->node_name, "a");
    assert_int_equal(conf->node_count, 1);
    /* The values that it names as defaults are the defaults. */
    struct conf_options bare = {.standalone = true};
    struct conf *defaults = load(&bare);
    struct visited given = {0};
    struct visited standard = {0};
    conf_visit(conf, visit, &given);
    conf_visit(defaults, visit, &standard);
    unsigned compared = 0;
    for (size_t i = 0; i < standard.count; i++) {
        const char *key = standard.keys[i];
        size_t k = find_visited(&given, key);
        assert_int_not_equal(k, SIZE_MAX);
        if (strcmp(given.sources[k], "default") != 0 && strcmp(key, "node_name") != 0 &&
            strcmp(key, "listen") != 0 && strncmp(standard.values[i], "/", 1) != 0) {
            assert_string_equal(given.values[k], standard.values[i]);
            compared++;
        }
    }
    assert_in_range(compared, 4, SETTINGS_MAX);
    conf_free(defaults);
    conf_free(conf);
}

/* commd.conf(5) describes every setting, and nothing that is no setting. */
static void test_manual_page(void **state)
{
    (void)state;
    struct conf_options options = {.standalone = true};
    struct conf *conf = load(&options);
    struct visited visited = {0};
    conf_visit(conf, visit, &visited);
    conf_free(conf);
    visit(&visited, "nodes", "", "", &(struct conf_waiting){NULL, NULL});
    visit(&visited, "users", "", "", &(struct conf_waiting){NULL, NULL});
    bool described[SETTINGS_MAX] = {false};
    FILE *page = fopen("config/commd.conf.5.scd", "re");
    if (page == NULL) {
        fail_msg("config/commd.conf.5.scd: run from the repository's root");
    }
    char line[1024];
    bool within = false;
    while (fgets(line, sizeof line, page) != NULL) {
        if (strncmp(line, "# ", 2) == 0) {
            within = strcmp(line, "# SETTINGS\n") == 0;
        }
        if (!within || line[0] != '*') {
            continue;
        }
        for (char *key = strtok(line, "*, \n"); key != NULL; key = strtok(NULL, "*, \n")) {
            size_t i = find_visited(&visited, key);
            if (i == SIZE_MAX) {
                fail_msg("commd.conf(5) describes %s, which is no setting", key);
            }
            described[i] = true;
        }
    }
    fclose(page);
    for (size_t i = 0; i < visited.count; i++) {
        if (!described[i]) {
            fail_msg("commd.conf(5) does not describe %s", visited.keys[i]);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_installed_file),
        cmocka_unit_test(test_manual_page),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
