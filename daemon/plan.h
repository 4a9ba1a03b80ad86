#ifndef DAEMON_PLAN_H
#define DAEMON_PLAN_H

/*
 * Implements `commctl plan`: predictions for a cluster that need not exist, made by the code that chooses
 * algorithms. arguments:
 *
 *   OPERATION NODES LATENCY_NS BYTES_PER_S SLICE_BYTES DIAL_NS MESSAGE_NS MILLINODES OVERRIDES
 *   SIZE_BYTES...
 *
 * DIAL_NS: processor time of a new connection, for each of its nodes. MESSAGE_NS: of a message. MILLINODES:
 * how many thousandths of a node share a processor, from 1000 on.
 *
 * Prints one JSON object per line on standard output: what forming a communicator costs, with the key
 * "fresh_ns"; then one for each algorithm that serves the operation and each size, in that order. Returns an
 * exit code. Reports arguments that it does not understand on standard error.
 */
int plan_run(int argument_count, char **arguments);

#endif
