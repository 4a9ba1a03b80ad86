#include "daemon/service_records.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/conf/address.h"
#include "proto/types.h"

#define SOURCE "DNS"

struct service_missed {
    char name[NODE_NAME_MAX_BYTES + 1];
    unsigned times; /* answers in a row */
};

static enum status add_record(const struct srv_record *record, struct conf_node_list *list,
                              struct error *error)
{
    char name[SRV_TARGET_MAX_BYTES + 1], address[SRV_TARGET_MAX_BYTES + 16];
    (void)snprintf(name, sizeof name, "%s", record->target);
    (void)snprintf(address, sizeof address, "%s:%u", record->target, record->port);
    name[strcspn(name, ".")] = '\0';
    const char *expected = conf_address_expected(address);
    if (expected != NULL) {
        return error_set(error, STATUS_CONFIG, "\"%s\": expected %s", address, expected);
    }
    if (!conf_address_is_name(address) || !conf_node_name_is_valid(name)) {
        return error_set(error, STATUS_CONFIG,
                         "\"%s\": expected a host's name, whose first label can be a node's name: letters, "
                         "digits and hyphens",
                         record->target);
    }
    return conf_node_list_add(list, name, address, "", SOURCE, error);
}

enum status service_records_list(const struct srv_answer *answer, struct conf_node_list *list,
                                 struct error *error)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < answer->count && status == STATUS_OK; i++) {
        status = add_record(&answer->records[i], list, error);
    }
    conf_node_list_sort(list);
    return status;
}

static unsigned times_missed(const struct service_records *records, const char *name)
{
    for (size_t i = 0; i < records->count; i++) {
        if (strcmp(records->missed[i].name, name) == 0) {
            return records->missed[i].times;
        }
    }
    return 0;
}

static int by_name(const void *name, const void *node)
{
    return strcmp(name, ((const struct conf_node *)node)->name);
}

enum status service_records_keep(struct service_records *records, const struct conf *conf,
                                 struct conf_node_list *list, size_t *kept, struct error *error)
{
    struct service_records now = {.missed = calloc(conf->node_count + 1, sizeof *now.missed)};
    size_t listed = list->count;
    enum status status = STATUS_OK;
    if (now.missed == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the nodes");
    }
    conf_node_list_sort(list);
    for (size_t i = 0; i < conf->node_count && status == STATUS_OK; i++) {
        const struct conf_node *node = &conf->nodes[i];
        if (listed > 0 && bsearch(node->name, list->nodes, listed, sizeof *list->nodes, by_name) != NULL) {
            continue;
        }
        struct service_missed *missed = &now.missed[now.count++];
        (void)snprintf(missed->name, sizeof missed->name, "%s", node->name);
        missed->times = times_missed(records, node->name) + 1;
        if (missed->times < SERVICE_RECORDS_MISSES) {
            status = conf_node_list_add(list, node->name, node->address, node->rail_addresses, node->source,
                                        error);
        }
    }
    if (status != STATUS_OK) {
        free(now.missed);
        return status;
    }
    service_records_reset(records);
    *records = now;
    *kept = list->count - listed;
    conf_node_list_sort(list);
    return STATUS_OK;
}

void service_records_reset(struct service_records *records)
{
    free(records->missed);
    *records = (struct service_records){0};
}
