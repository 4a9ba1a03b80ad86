#ifndef DAEMON_GPUS_H
#define DAEMON_GPUS_H

#include "daemon/conf/conf.h"
#include "daemon/exec/exec.h"
#include "daemon/gpu/devices.h"
#include "daemon/gpu/tuning.h"

/*
 * Opens the node's GPUs as the configuration says. A node works without GPUs: *out is null then, and *absent
 * says why. It is an error if GPUs exist but fail. Call it once, before worker threads exist.
 */
enum status gpus_open(const struct conf *conf, struct gpu_devices **out, struct error *absent,
                      struct error *error) COMM_MUST_USE;

/*
 * Makes the table of what was measured among the node's GPUs, if the configuration lets a measurement choose;
 * otherwise *out is null. Its file is the configuration's, or gpu-tuning.json in the service's folder
 * ($STATE_DIRECTORY), in /var/lib/commd for root, or in ~/.local/state/commd ($XDG_STATE_HOME). NO_MEMORY.
 */
enum status gpus_tuning(const struct conf *conf, const struct gpu_devices *gpus, struct gpu_tuning **out,
                        struct error *error) COMM_MUST_USE;

/* The engine that the configuration names. */
enum exec_gpu_engine gpus_engine(const struct conf *conf);

#define GPUS_END_S 10
/*
 * From now on the process ends after GPUS_END_S, even if a GPU is still working: the driver would wait for
 * work under way without a limit. gpus_unbound_end cancels that.
 */
void gpus_bound_end(void);
void gpus_unbound_end(void);

#endif
