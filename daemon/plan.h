#ifndef DAEMON_PLAN_H
#define DAEMON_PLAN_H

/*
 * What `commctl plan` asks: predictions for a cluster that need not exist, by the code that chooses.
 * arguments:
 *
 *   OPERATION NODES LATENCY_NS BYTES_PER_S SLICE_BYTES OVERRIDES SIZE_BYTES...
 *
 * One JSON object a line on standard output for each algorithm that serves and each size, in that order.
 * Returns an exit code; says on standard error what it does not understand.
 */
int plan_run(int argument_count, char **arguments);

#endif
