#ifndef CLIENT_LIB_GRAPH_H
#define CLIENT_LIB_GRAPH_H

#include <commclient.h>

#include <stdint.h>

/*
 * Operations that CUDA graphs hold: graph.c. For each capture, a communicator has a part: another
 * communicator of the same ranks, on which the captured operations run at each replay. So a replay and an
 * operation of the program do not depend on each other's order, nor do two graphs.
 */
struct client_call;
struct client_fences;
struct client_graph;
struct comm_client;
struct comm_comm;
struct stream_capture;

#define GRAPH_OPS_MAX 4096u /* of one capture and one communicator; then COMM_LIMIT */
#define GRAPH_PERSISTENT "it is a persistent operation, and a replay starts the operation anew in any case"

/*
 * Adds the call to the graph that captures its stream. All ranks do that for the same calls. Waits for commd,
 * and at the first call of a capture for all ranks, but not for the GPU. Without the lock. Failures are
 * reported; the capture stays valid unless the driver refused the words.
 */
comm_result_t graph_submit(struct comm_comm *comm, const struct client_call *call,
                           const struct stream_capture *capture);
/* Refuses a call if its stream is captured. */
comm_result_t graph_refuse(const struct comm_comm *comm, const struct client_call *call,
                           const struct stream_capture *capture, const char *why);

/* The part of a communicator has ended: from now on the library itself lets the graph's replays go on. */
void graph_part_left(struct client_graph *graph);
/* The communicator has failed: the same, though commd may still serve its part. */
void graph_part_lost(struct client_graph *graph);
/* commd is gone: the same for all graphs of the client with these fences. Any thread, without the lock. */
void graphs_lose(const struct client_fences *fences);
/* Before the client is freed; it has no communicators any more. Without the lock. */
void graphs_close(struct comm_client *client);

#endif
