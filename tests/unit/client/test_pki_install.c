#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"

#define FILE_COUNT 3

static char folder[] = "/tmp/commd-test-install-XXXXXX";
static const char *const names[FILE_COUNT] = {"ca.crt", "ca.crl", "alpha.crt"};

static const char *path_of(const char *name)
{
    static char path[sizeof folder + 32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void put(const char *name, const char *text)
{
    FILE *file = fopen(path_of(name), "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void assert_content(const char *name, const char *text)
{
    char found[64] = "";
    FILE *file = fopen(path_of(name), "re");
    assert_non_null(file);
    size_t size = fread(found, 1, sizeof found - 1, file);
    fclose(file);
    found[size] = '\0';
    assert_string_equal(found, text);
}

static size_t count_files(void)
{
    size_t count = 0;
    DIR *open = opendir(folder);
    assert_non_null(open);
    for (const struct dirent *entry; (entry = readdir(open)) != NULL;) {
        count += entry->d_name[0] != '.' || strlen(entry->d_name) > 2 ? 1 : 0;
    }
    closedir(open);
    return count;
}

static struct pki_file *new_files(void)
{
    struct pki_file *files = calloc(FILE_COUNT, sizeof *files);
    assert_non_null(files);
    for (size_t i = 0; i < FILE_COUNT; i++) {
        files[i].content = (struct pki_bytes){(char *)"new", 3};
        files[i].mode = 0640;
        snprintf(files[i].path, sizeof files[i].path, "%s/%s", folder, names[i]);
    }
    return files;
}

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder + sizeof folder - 7, "XXXXXX");
    return mkdtemp(folder) == NULL ? -1 : 0;
}

static int remove_folder(void **state)
{
    (void)state;
    for (size_t i = 0; i < FILE_COUNT; i++) {
        (void)remove(path_of(names[i]));
    }
    return rmdir(folder);
}

static void test_all_are_written(void **state)
{
    (void)state;
    struct pki_file *files = new_files();
    struct stat attributes;
    put("ca.crl", "old");
    assert_int_equal(chmod(path_of("ca.crl"), 0600), 0);
    assert_true(pki_install(files, FILE_COUNT));
    for (size_t i = 0; i < FILE_COUNT; i++) {
        assert_content(names[i], "new");
        assert_int_equal(stat(path_of(names[i]), &attributes), 0);
        assert_int_equal(attributes.st_mode & 07777, 0640);
    }
    assert_int_equal(count_files(), FILE_COUNT);
    free(files);
}

/* The last file cannot be placed: those before it are as they were. */
static void test_none_is_written(void **state)
{
    (void)state;
    struct pki_file *files = new_files();
    put("ca.crl", "old");
    assert_int_equal(mkdir(path_of("alpha.crt"), 0755), 0);
    assert_false(pki_install(files, FILE_COUNT));
    assert_content("ca.crl", "old");
    assert_int_equal(access(path_of("ca.crt"), F_OK), -1);
    assert_int_equal(count_files(), 2);
    free(files);
}

/* The last file cannot even be staged. */
static void test_nothing_is_staged(void **state)
{
    (void)state;
    struct pki_file *files = new_files();
    put("ca.crt", "old");
    snprintf(files[2].path, sizeof files[2].path, "%s/nowhere/alpha.crt", folder);
    assert_false(pki_install(files, FILE_COUNT));
    assert_content("ca.crt", "old");
    assert_int_equal(count_files(), 1);
    free(files);
}

static void test_a_link_is_replaced(void **state)
{
    (void)state;
    struct pki_file *files = new_files();
    put("ca.crl", "victim");
    assert_int_equal(symlink("ca.crl", path_of("alpha.crt")), 0);
    assert_true(pki_install(files + 2, 1));
    assert_content("ca.crl", "victim");
    assert_content("alpha.crt", "new");
    free(files);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_all_are_written, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_none_is_written, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_nothing_is_staged, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_a_link_is_replaced, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
