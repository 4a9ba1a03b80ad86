#ifndef CLIENT_LIB_GRAPH_H
#define CLIENT_LIB_GRAPH_H

#include <commclient.h>

#include <stdbool.h>
#include <stdint.h>

/*
 * What commd and the library keep for operations that CUDA graphs hold: graph.c. For each capture, a
 * communicator has a part: another communicator of the same ranks, on which the captured operations run at
 * each replay. So a replay and an operation of the program do not depend on each other's order, nor do two
 * graphs. capture.h adds operations.
 */
struct client_fences;
struct client_op;
struct comm_client;
struct comm_comm;
struct fence_slot;

#define GRAPH_OPS_MAX 4096u /* of one capture and one communicator; then COMM_LIMIT */

struct graph_op {
    struct fence_slot *slot;
    struct client_op *op; /* holds the staging block of layouts; null: none. Under the client's lock */
};

struct client_graph {
    struct client_graph *next;  /* the keeper's list; this and what follows is under the keeper's lock */
    struct comm_client *client; /* null: it was closed */
    uint64_t capture_id;
    uint32_t op_count, op_capacity;
    struct graph_op *ops;
    bool released;          /* the program has destroyed it */
    bool lost;              /* the keeper answers in commd's place */
    struct comm_comm *part; /* under the client's lock; null: it was left, or has not formed */
};

/* Starts the thread that looks after this process's graphs, unless it runs. Failures are reported. */
comm_result_t graph_keeper_start(struct comm_client *client);
/* Returns null if memory is short. The graph lives until graph_released was called. */
struct client_graph *graph_make(struct comm_client *client, uint64_t capture_id);
/* The graph owns the slot and the operation from now on. Returns false if memory is short. */
bool graph_add(struct client_graph *graph, const struct graph_op *op);
/* CUDA calls it when nothing refers to the graph (a struct client_graph) any more. */
void graph_released(void *argument);

/* The part of a communicator has ended: from now on the library itself lets the graph's replays go on. */
void graph_part_left(struct client_graph *graph);
/* The communicator has failed: the same, though commd may still serve its part. */
void graph_part_lost(struct client_graph *graph);
/* commd is gone: the same for all graphs of the client with these fences. Any thread, without the lock. */
void graphs_lose(const struct client_fences *fences);
/* Before the client is freed; it has no communicators any more. Without the lock. */
void graphs_close(struct comm_client *client);

#endif
