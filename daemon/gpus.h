#ifndef DAEMON_GPUS_H
#define DAEMON_GPUS_H

#include "daemon/conf/conf.h"
#include "daemon/gpu/devices.h"

/*
 * The node's GPUs, as the configuration wants them. A node without any works: *out is null then, and *absent
 * says why. GPUs that are there and fail are an error. Once, before there are worker threads.
 */
enum status gpus_open(const struct conf *conf, struct gpu_devices **out, struct error *absent,
                      struct error *error) COMM_MUST_USE;

#define GPUS_END_S 10
/*
 * From now on the process ends after GPUS_END_S, whatever a GPU still does: the driver waits for work that is
 * under way, for however long it takes. gpus_unbound_end takes that back.
 */
void gpus_bound_end(void);
void gpus_unbound_end(void);

#endif
