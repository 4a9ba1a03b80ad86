#include "daemon/conf/nodes_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "daemon/conf/address.h"
#include "daemon/conf/node_list.h"
#include "daemon/conf/rail_addresses.h"
#include "daemon/conf/source.h"

#define BLANKS " \t\r"

/* Takes the next field off a line; returns "" if there is none. */
static char *next_field(char **rest)
{
    char *field = *rest + strspn(*rest, BLANKS);
    char *end = field + strcspn(field, BLANKS);
    *rest = *end != '\0' ? end + 1 : end;
    *end = '\0';
    return field;
}

static void cut_blanks(char *text)
{
    size_t size = strlen(text);
    while (size > 0 && strchr(BLANKS, text[size - 1]) != NULL) {
        text[--size] = '\0';
    }
}

static enum status refuse(const char *where, const char *what, const char *found, const char *expected,
                          struct error *error)
{
    return error_set(error, STATUS_CONFIG, "%s: %s \"%.200s\": expected %s", where, what, found, expected);
}

/* The line is changed. */
static enum status read_line(char *line, const char *where, struct conf_node_list *list, struct error *error)
{
    line[strcspn(line, "#")] = '\0';
    char *rest = line;
    const char *name = next_field(&rest);
    const char *address = next_field(&rest);
    char *rail_addresses = rest + strspn(rest, BLANKS);
    cut_blanks(rail_addresses);
    const char *expected;
    if (*name == '\0') {
        return STATUS_OK; /* an empty line */
    }
    if ((expected = conf_node_name_expected(name)) != NULL) {
        return refuse(where, "name", name, expected, error);
    }
    if ((expected = conf_address_expected(address)) != NULL) {
        return refuse(where, "address", address, expected, error);
    }
    if ((expected = conf_rail_addresses_expected(rail_addresses)) != NULL) {
        return refuse(where, "rail_addresses", rail_addresses, expected, error);
    }
    return conf_node_list_add(list, name, address, rail_addresses, where, error);
}

enum status conf_nodes_file_parse(const char *text, const char *path, struct conf_node_list *list,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    unsigned number = 1;
    while (*text != '\0' && status == STATUS_OK) {
        char where[512], line[CONF_NODES_FILE_LINE_MAX_BYTES + 1];
        size_t size = strcspn(text, "\n");
        (void)snprintf(where, sizeof where, "%.400s:%u", path, number++);
        if (size > CONF_NODES_FILE_LINE_MAX_BYTES) {
            return error_set(error, STATUS_CONFIG, "%s: a line of %zu bytes; expected at most %u", where,
                             size, CONF_NODES_FILE_LINE_MAX_BYTES);
        }
        memcpy(line, text, size);
        line[size] = '\0';
        status = read_line(line, where, list, error);
        text += size + (text[size] == '\n');
    }
    if (status == STATUS_OK && list->count == 0) {
        return error_set(error, STATUS_CONFIG, "%s: no node is listed; expected lines of \"name host:port\"",
                         path);
    }
    return status;
}

enum status conf_nodes_file_read(const char *path, struct conf_node_list *list, struct error *error)
{
    char *text;
    struct stat file;
    /* Opening a pipe would wait for a writer. */
    if (stat(path, &file) != 0) {
        return error_set_errno(error, errno, "%s", path);
    }
    if (!S_ISREG(file.st_mode)) {
        return error_set(error, STATUS_CONFIG, "%s: expected a regular file", path);
    }
    enum status status = conf_source_read(path, &text, error);
    if (status == STATUS_OK) {
        status = conf_nodes_file_parse(text, path, list, error);
        free(text);
    }
    return status;
}
