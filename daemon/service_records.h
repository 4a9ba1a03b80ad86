#ifndef DAEMON_SERVICE_RECORDS_H
#define DAEMON_SERVICE_RECORDS_H

#include "daemon/conf/conf.h"
#include "daemon/net/srv.h"

/*
 * The nodes that a name's SRV records list. A node's name is the first label of its target: Kubernetes names
 * the pods of a StatefulSet so. Name servers may leave out a record that they have, so a node is dropped only
 * if SERVICE_RECORDS_MISSES answers in a row do not have it.
 */
#define SERVICE_RECORDS_MISSES 3

/* Which nodes the last answers did not have. All zero: none. */
struct service_records {
    struct service_missed *missed;
    size_t count;
};

/*
 * Appends the answer's nodes to the list, sorted by name. CONFIG if a target is no host's name, its first
 * label cannot be a node's name, or its port is 0; LIMIT beyond CONF_NODES_MAX; NO_MEMORY. The caller frees
 * the list, also after an error.
 */
enum status service_records_list(const struct srv_answer *answer, struct conf_node_list *list,
                                 struct error *error) COMM_MUST_USE;

/*
 * Adds the nodes of conf that the list misses, except those missed too often by now; sorts the list. Returns
 * in *kept how many were added. NO_MEMORY: nothing is counted.
 */
enum status service_records_keep(struct service_records *records, const struct conf *conf,
                                 struct conf_node_list *list, size_t *kept,
                                 struct error *error) COMM_MUST_USE;

/* Forgets what was missed. */
void service_records_reset(struct service_records *records);

#endif
