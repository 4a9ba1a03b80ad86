#include "daemon/node_source.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/backoff.h"
#include "daemon/base/history.h"
#include "daemon/base/log.h"
#include "daemon/base/time.h"
#include "daemon/conf/nodes_file.h"
#include "daemon/service_records.h"
#include "daemon/watched_file.h"

struct node_source {
    struct loop *loop;
    struct configuration *configuration;
    struct nodes *nodes;
    struct random random;
    struct watched_file *file; /* null: the nodes do not come from a file */
    struct resolver *resolver; /* null until DNS is asked first */
    struct resolver_options resolver_options;
    struct service_records records;
    struct backoff again;
    bool asked;
    uint64_t ask_ns;                      /* TIME_NEVER: DNS is not asked */
    char complaint[ERROR_TEXT_MAX_BYTES]; /* the last one; "": all is well */
    uint64_t said_ns;
    char own_address[SRV_TARGET_MAX_BYTES + 16]; /* that the source had last */
};

static const struct conf *conf_of(const struct node_source *source)
{
    return source->configuration->conf;
}

/* --- What the log says --- */

static void complain(struct node_source *source, const struct error *why, uint64_t now_ns)
{
    bool is_new = strcmp(source->complaint, why->text) != 0;
    if (!is_new && now_ns < time_after(source->said_ns, NODE_SOURCE_SAY_NS)) {
        return;
    }
    log_warning("%s; the nodes stay as they were", why->text);
    if (is_new) {
        history_note(HISTORY_RELOAD_FAILED, HISTORY_FOR_ADMINISTRATORS, "%s", why->text);
    }
    (void)snprintf(source->complaint, sizeof source->complaint, "%s", why->text);
    source->said_ns = now_ns;
}

static void be_content(struct node_source *source, const char *where)
{
    if (source->complaint[0] != '\0') {
        log_info("%s names the nodes again", where);
        source->complaint[0] = '\0';
    }
}

static void log_changes(const struct conf_changes *changes, const char *where)
{
    for (size_t i = 0; i < changes->applied.count; i++) {
        log_info("%s: %s", where, changes->applied.texts[i]);
    }
    if (changes->applied.left_out > 0) {
        log_info("%s: %u further changes", where, changes->applied.left_out);
    }
    for (size_t i = 0; i < changes->failed.count; i++) {
        log_error("%s", changes->failed.texts[i]);
    }
}

/* --- Changes --- */

/* Our own address is used from the start on. Remembers another one that the list has. */
static void note_own_address(struct node_source *source, const struct conf_node_list *list, bool *is_new)
{
    const struct conf *conf = conf_of(source);
    *is_new = false;
    for (size_t i = 0; i < list->count && conf->is_listed; i++) {
        const struct conf_node *node = &list->nodes[i];
        if (strcmp(node->name, conf->node_name) == 0) {
            *is_new =
                strcmp(node->address, conf->listen) != 0 && strcmp(node->address, source->own_address) != 0;
            (void)snprintf(source->own_address, sizeof source->own_address, "%s", node->address);
        }
    }
}

/* Takes the list's nodes over if it differs from what is in force. */
static void use_list(struct node_source *source, struct conf_node_list *list, const char *where,
                     uint64_t now_ns)
{
    struct conf_changes changes = {0};
    struct error error;
    bool moved;
    bool is_known = conf_has_nodes(conf_of(source), list);
    note_own_address(source, list, &moved);
    if (!is_known && configuration_take_nodes(source->configuration, list, where, &error) != STATUS_OK) {
        complain(source, &error, now_ns);
        return;
    }
    be_content(source, where);
    if (moved) {
        log_warning("%s: this node's address is %s now, and a restart applies it", where,
                    source->own_address);
    }
    if (is_known) {
        return;
    }
    nodes_update(source->nodes, conf_of(source), &changes, now_ns);
    log_changes(&changes, where);
    history_note(HISTORY_RELOADED, HISTORY_FOR_ALL, "%s: %zu changes of nodes", where,
                 changes.applied.count + changes.applied.left_out);
    conf_changes_free(&changes);
}

static void read_file(struct node_source *source, uint64_t now_ns)
{
    struct conf_node_list list = {0};
    struct error error;
    const char *path = conf_of(source)->nodes_file;
    if (conf_nodes_file_read(path, &list, &error) == STATUS_OK) {
        use_list(source, &list, path, now_ns);
    } else {
        complain(source, &error, now_ns);
    }
    conf_node_list_free(&list);
}

static void on_file(void *context, uint64_t now_ns)
{
    read_file(context, now_ns);
}

/* --- DNS --- */

static void ask_later(struct node_source *source, uint64_t now_ns)
{
    backoff_failed(&source->again, NODE_SOURCE_RETRY_NS, NODE_SOURCE_RETRY_MAX_NS, &source->random, now_ns);
    source->ask_ns = source->again.next_ns;
}

/* The nodes that are not in this answer may be in the next one. */
static enum status use_answer(struct node_source *source, const struct srv_answer *answer, size_t *kept,
                              uint64_t now_ns, struct error *error)
{
    struct conf_node_list list = {0};
    const char *name = conf_of(source)->nodes_dns;
    struct error why;
    enum status status = service_records_list(answer, &list, &why);
    if (status == STATUS_OK) {
        status = service_records_keep(&source->records, conf_of(source), &list, kept, &why);
    }
    if (status == STATUS_OK) {
        use_list(source, &list, name, now_ns);
    } else {
        error_set(error, status, "SRV records of %s: %s", name, why.text);
    }
    conf_node_list_free(&list);
    return status;
}

static void on_answer(void *context, const char *name, const struct srv_answer *answer,
                      const struct error *why, uint64_t now_ns)
{
    struct node_source *source = context;
    struct error error;
    size_t kept = 0;
    source->asked = false;
    if (source->ask_ns == TIME_NEVER || strcmp(name, conf_of(source)->nodes_dns) != 0) {
        return; /* a reload has named another source meanwhile */
    }
    if (answer == NULL) {
        complain(source, why, now_ns);
        ask_later(source, now_ns);
    } else if (use_answer(source, answer, &kept, now_ns, &error) != STATUS_OK) {
        complain(source, &error, now_ns);
        ask_later(source, now_ns);
    } else {
        uint64_t wait_ns = time_min(answer->ttl_s * TIME_S, NODE_SOURCE_ASK_MAX_NS);
        wait_ns = wait_ns < NODE_SOURCE_ASK_MIN_NS ? NODE_SOURCE_ASK_MIN_NS : wait_ns;
        source->again = (struct backoff){0};
        source->ask_ns = time_after(now_ns, kept > 0 ? NODE_SOURCE_RETRY_NS : wait_ns);
    }
}

static void ask(struct node_source *source, uint64_t now_ns)
{
    struct error error;
    enum status status = STATUS_OK;
    if (source->resolver == NULL) {
        status = resolver_new(&source->resolver_options, &source->resolver, &error);
    }
    if (status == STATUS_OK) {
        status = resolver_ask_services(source->resolver, conf_of(source)->nodes_dns, &error);
    }
    source->asked = status == STATUS_OK;
    if (status != STATUS_OK) {
        complain(source, &error, now_ns);
        ask_later(source, now_ns);
    }
}

/* --- The source --- */

enum status node_source_new(const struct node_source_options *options, struct node_source **out,
                            struct error *error)
{
    struct node_source *source = calloc(1, sizeof *source);
    if (source == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the source of the nodes");
    }
    source->loop = options->loop;
    source->configuration = options->configuration;
    source->nodes = options->nodes;
    source->ask_ns = TIME_NEVER;
    source->resolver_options = (struct resolver_options){.loop = options->loop,
                                                         .lookup_services = options->lookup,
                                                         .services_done = on_answer,
                                                         .context = source};
    random_seed(&source->random, options->seed);
    *out = source;
    return STATUS_OK;
}

void node_source_free(struct node_source *source)
{
    if (source != NULL) {
        resolver_free(source->resolver);
        watched_file_free(source->file);
        service_records_reset(&source->records);
        free(source);
    }
}

void node_source_follow(struct node_source *source, uint64_t now_ns)
{
    struct error error;
    const struct conf *conf = conf_of(source);
    watched_file_free(source->file);
    source->file = NULL;
    source->ask_ns = TIME_NEVER;
    source->again = (struct backoff){0};
    service_records_reset(&source->records);
    if (conf->nodes_dns[0] != '\0') {
        source->ask_ns = now_ns;
    } else if (conf->nodes_file[0] != '\0') {
        if (watched_file_new(source->loop, conf->nodes_file, on_file, source, now_ns, &source->file,
                             &error) != STATUS_OK) {
            log_error("%s; only a reload reads it again", error.text);
        }
        read_file(source, now_ns); /* it may have changed since it was read first */
    }
}

uint64_t node_source_next_deadline_ns(const struct node_source *source)
{
    uint64_t ask_ns = source->asked ? TIME_NEVER : source->ask_ns;
    return source->file != NULL ? time_min(ask_ns, watched_file_next_deadline_ns(source->file)) : ask_ns;
}

void node_source_tick(struct node_source *source, uint64_t now_ns)
{
    if (source->file != NULL) {
        watched_file_tick(source->file, now_ns);
    }
    if (!source->asked && now_ns >= source->ask_ns) {
        ask(source, now_ns);
    }
}
