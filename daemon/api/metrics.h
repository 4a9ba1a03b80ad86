#ifndef DAEMON_API_METRICS_H
#define DAEMON_API_METRICS_H

#include "daemon/api/metrics_text.h"
#include "daemon/api/session.h"

/*
 * What the metrics show. The number of series is bounded, whatever users do: no label has a user's, a
 * communicator's or a program's name. What only administrators may see has such labels, is bounded by the
 * limits below, and is on the administrators' socket alone. Only the main thread writes metrics.
 *
 * With more links than METRICS_LINKS_MAX, each node has one row for all its rails. With more nodes than
 * that, each rail has one row for all nodes. The sum over all rows stays the same.
 */
#define METRICS_LINKS_MAX 256
#define METRICS_USERS_MAX 256 /* accounts; further ones are left out */
#define METRICS_COMMS_MAX 1024
#define METRICS_ADMIN_TEXT_MAX_BYTES (4u << 20)

/* Writes all families that everybody may see. The caller ends the text. */
void metrics_write(const struct api *api, struct metrics_text *text, uint64_t now_ns);

/* Parts of metrics_write: metrics_links.c, metrics_ops.c, metrics_gpus.c. */
void metrics_write_links(const struct api *api, struct metrics_text *text);
void metrics_write_ops(const struct api *api, struct metrics_text *text);
void metrics_write_gpus(const struct api *api, struct metrics_text *text);

/* A family, and one sample without labels. */
void metrics_put_one(struct metrics_text *text, const struct metrics_family *family, uint64_t value);

#endif
