#ifndef TESTS_CUDA_DOUBLE_GRAPH_H
#define TESTS_CUDA_DOUBLE_GRAPH_H

#include "tests/cuda_double/stream.h"

/* Graphs. Callers of all functions hold the lock. */

/* Work in the order of its capture, which is an order that the graph's edges allow. */
struct works {
    struct work **list;
    size_t count;
    size_t room;
};

/* What a graph and its executables refer to. Its destructor runs when the last reference is gone. */
struct user_object {
    unsigned references;
    void *pointer;
    void (*destroy)(void *pointer);
};

#define GRAPH_OBJECTS_MAX 64
struct graph {
    cuda_graph handle;
    struct works works;
    struct user_object *objects[GRAPH_OBJECTS_MAX];
    size_t object_count;
    bool captures; /* it is being captured: it cannot be launched or destroyed */
};

/* Returns null if there is no memory. */
struct graph *graph_new(void);
/* Takes over the reference to the work if it succeeds. */
bool graph_add(struct graph *graph, struct work *work);
void graph_free(struct graph *graph);

#endif
