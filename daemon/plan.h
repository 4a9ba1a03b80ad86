#ifndef DAEMON_PLAN_H
#define DAEMON_PLAN_H

/*
 * Implements `commctl plan`: predictions for a cluster that need not exist, made by the code that chooses
 * algorithms. arguments:
 *
 *   OPERATION NODES LATENCY_NS BYTES_PER_S SLICE_BYTES OVERRIDES SIZE_BYTES...
 *
 * Prints one JSON object per line on standard output, for each algorithm that serves the operation and each
 * size, in that order. Returns an exit code. Reports arguments that it does not understand on standard error.
 */
int plan_run(int argument_count, char **arguments);

#endif
