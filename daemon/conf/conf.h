#ifndef DAEMON_CONF_CONF_H
#define DAEMON_CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "daemon/base/budget.h"
#include "daemon/base/error.h"

/*
 * The configuration: one file in libconfig's syntax (without @include), the same on every node. It is checked
 * strictly against one schema (conf.c). An unknown key, or a value of another type or out of range, prevents
 * the start. The error gives file, line, key and what was expected.
 */
#define CONF_NODES_MAX 16384
#define CONF_USERS_MAX 4096
#define CONF_OVERRIDES_MAX 32
#define CONF_FILE_MAX_BYTES (16u << 20)

struct conf_node {
    char *name;
    char *address;
    char *rail_addresses; /* of rails 1, 2, ...: rail_addresses.h; "": none */
    char *source;         /* "file:line" */
};

/* Nodes from one source, this node included. All zero: empty. */
struct conf_node_list {
    struct conf_node *nodes;
    size_t count, capacity;
};

/* A user who may have ranks only on some nodes. */
struct conf_user {
    uint32_t uid;
    char *name;   /* as written in the file */
    char **nodes; /* sorted */
    size_t node_count;
    char *source;
};

struct conf {
    char *path; /* "" without a file (standalone) */
    bool standalone;
    bool is_listed; /* this node's own entry among the nodes is what it listens on */
    char *node_name;
    char *cluster_name;
    char *nodes_file; /* "": none; see nodes_file.h */
    char *nodes_dns;  /* "": none; the name of SRV records */
    char *listen;
    char *rail_addresses; /* of this node: rail_addresses.h */
    char *certificate;
    char *key;
    char *authority;
    char *revocation_list;
    char *socket_path;
    char *socket_mode; /* octal */
    char *socket_group;
    char *admin_socket_path; /* "": as in proto/admin_socket.h */
    char *admin_group;       /* "": none */
    char *metrics;           /* "": off; see metrics_address.h */
    char *log_level;
    uint64_t heartbeat_interval_ms;
    uint64_t heartbeat_timeout_ms;
    uint64_t suspect_timeout_ms;
    uint64_t reconnect_min_ms;
    uint64_t reconnect_max_ms;
    uint64_t handshake_timeout_ms;
    uint64_t probe_interval_ms;
    uint64_t slice_bytes;
    uint64_t rails;          /* 0: chosen by the number of processors */
    uint64_t worker_threads; /* likewise */
    char *numa_placement;    /* "on" or "off" */
    char *algorithms;
    char *gpus;              /* "auto" or "off" */
    char *gpu_peer_access;   /* "auto" or "off" */
    char *gpu_engine;        /* "auto", "nccl" or "kernels" */
    char *gpu_tuning;        /* "auto", "off" or a path */
    uint64_t gpu_nccl_ctas;  /* 0: as many as NCCL wants */
    char *gpu_nccl_register; /* "off", "on" or "windows" */
    uint64_t gpu_ahead;      /* operations of a communicator that GPUs wait for in advance */
    char *cuda_ipc_handles;  /* "auto", "accept" or "refuse" */
    char *bulk_links;        /* "auto", "quic" or "tls" */
    uint64_t datagram_bytes;
    uint64_t socket_buffer_bytes;
    uint64_t drain_timeout_ms;
    uint64_t user_limits[BUDGET_KINDS]; /* what one user may hold; 0: the kind's default */
    struct conf_node *nodes;            /* the other nodes, in the order of their source */
    size_t node_count;
    struct conf_user *users; /* sorted by uid; users not listed may be on every node */
    size_t user_count;
    char **sources; /* source of each setting of the schema: "file:line", "default", "option", "commctl" */
    /* After conf_keep_until_restart: what the file says of settings that only a restart changes; null: there
     * was no reload. */
    struct conf *file;
};

struct conf_options {
    const char *path;             /* the file; null when standalone */
    bool standalone;              /* one node, no network: no file is needed */
    const char *const *overrides; /* "key=value" of the command line; they override the file */
    size_t override_count;
};

/* Reads and checks the file, and nodes_file. With nodes_dns, the nodes are left to the caller (nodes.h).
 * CONFIG with "file:line: key: what was expected", or when the file cannot be read; SYSTEM when nodes_file
 * cannot be read; NO_MEMORY. */
enum status conf_load(const struct conf_options *options, struct conf **out,
                      struct error *error) COMM_MUST_USE;
void conf_free(struct conf *conf);

/* Appends a node. The texts are copied and already checked. LIMIT beyond CONF_NODES_MAX; NO_MEMORY. */
enum status conf_node_list_add(struct conf_node_list *list, const char *name, const char *address,
                               const char *rail_addresses, const char *source,
                               struct error *error) COMM_MUST_USE;
void conf_node_list_free(struct conf_node_list *list);
void conf_node_list_sort(struct conf_node_list *list); /* by name */

/*
 * Makes the nodes of the list those of conf: this node is taken out, and gives `listen` and `rail_addresses`
 * where these are not set, as conf_load does. where: what the list came from, for messages. The list gets the
 * nodes that conf had before. CONFIG if this node is not in the list, but was or must be, or if two nodes
 * have one name or one address; NO_MEMORY: conf is as it was, and the list still has its nodes.
 */
enum status conf_take_nodes(struct conf *conf, struct conf_node_list *list, const char *where,
                            struct error *error) COMM_MUST_USE;
/* Exchanges the nodes of conf, which do not include this node, with those of the list. */
void conf_swap_nodes(struct conf *conf, struct conf_node_list *list);
/* Copies the nodes of `present`, which is in force, and what this node listens on: for a reload while DNS is
 * asked again. NO_MEMORY. */
enum status conf_inherit_nodes(struct conf *conf, const struct conf *present,
                               struct error *error) COMM_MUST_USE;
/* Whether the list names the nodes that conf has, in the same order, with the same addresses; and this node,
 * if it must. */
bool conf_has_nodes(const struct conf *conf, const struct conf_node_list *list);

/* Whether the user may have ranks on the node. */
bool conf_user_may(const struct conf *conf, uint32_t uid, const char *node);

/*
 * Visits every setting with its value and its source, nodes included ("nodes.b"), in the schema's order.
 * waiting: what the file says instead, if only a restart applies it; otherwise both values are null.
 */
struct conf_waiting {
    const char *value;
    const char *source;
};
typedef void conf_visit_function(void *context, const char *key, const char *value, const char *source,
                                 const struct conf_waiting *waiting);
void conf_visit(const struct conf *conf, conf_visit_function *visit, void *context);

/* Where a setting comes from, for messages: "file:line", "option", or for a default the file's path. */
const char *conf_source(const struct conf *conf, const char *key);

/* Whether the file or an option sets it; false for a default. */
bool conf_is_given(const struct conf *conf, const char *key);

/* Whether only administrators may see the setting: it says where keys and certificates are, or who the users
 * are. */
bool conf_is_private(const char *key);

/* Calls `differs` for each setting whose value in next is another one, with that value. */
typedef void conf_differs_function(void *context, const char *key, const char *value, bool reloadable);
void conf_compare(const struct conf *present, const struct conf *next, conf_differs_function *differs,
                  void *context);

/*
 * A reload: next takes the values that only a restart can change from `present`, which is in force. From then
 * on next says what is in force, and conf_visit names what waits. `present` belongs to next afterwards.
 */
void conf_keep_until_restart(struct conf *next, struct conf *present);

/* Sets one text setting of a configuration that is in force. INVALID_ARGUMENT with what was expected;
 * NO_MEMORY. */
enum status conf_set_text(struct conf *conf, const char *key, const char *text, const char *source,
                          struct error *error) COMM_MUST_USE;

/* Whether text can be a node's name: a DNS label of letters, digits and hyphens, at most NODE_NAME_MAX_BYTES.
 */
bool conf_node_name_is_valid(const char *text);

#endif
