#include "daemon/conf/conf.h"
#include "daemon/conf/nodes_file.h"
#include "daemon/service_records.h"
#include "tests/fuzz/input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Every list is usable as a whole. */
static void check_list(struct conf_node_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        fuzz_require(conf_node_name_is_valid(list->nodes[i].name));
        fuzz_require(strchr(list->nodes[i].address, ':') != NULL);
    }
    conf_node_list_free(list);
}

static void read_answer(const uint8_t *data, size_t size)
{
    struct srv_answer answer;
    struct conf_node_list list = {0};
    struct error error = {.status = STATUS_OK};
    if (srv_parse(data, size, &answer, &error) != STATUS_OK) {
        fuzz_require(answer.records == NULL && error.text[0] != '\0');
        return;
    }
    fuzz_require(answer.count > 0 && answer.count <= size / 11);
    bool good = service_records_list(&answer, &list, &error) == STATUS_OK;
    fuzz_require(good ? list.count == answer.count : error.text[0] != '\0');
    check_list(&list);
    srv_answer_free(&answer);
}

static void read_file(const uint8_t *data, size_t size)
{
    struct conf_node_list list = {0};
    struct error error = {.status = STATUS_OK};
    char *text = malloc(size + 1);
    fuzz_require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    bool good = conf_nodes_file_parse(text, "nodes", &list, &error) == STATUS_OK;
    fuzz_require(good ? list.count > 0 : error.text[0] != '\0');
    check_list(&list);
    free(text);
}

/* Where nodes come from: a message of DNS, or, if the first byte is odd, the text of a nodes_file. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0) {
        (data[0] % 2 == 0 ? read_answer : read_file)(data + 1, size - 1);
    }
    return 0;
}
