#ifndef DAEMON_COMM_DETAIL_H
#define DAEMON_COMM_DETAIL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/mesh.pb-c.h"
#include "proto/types.h"
#include "proto/version.h"

struct communicator;
struct comms_member;
struct comms_missing;

/*
 * What is known of a failure beside its status and text, for programs: which operation, and which ranks. All
 * is optional: zero means "not known". Failures of which nothing is known have none (a null pointer).
 */
struct comms_detail {
    uint32_t kind;       /* enum op_kind plus one; 0: no operation */
    uint64_t seq;        /* 0: none */
    uint32_t rank_count; /* may exceed CLIENT_FAILURE_RANKS_MAX; then only the first ones are listed */
    uint32_t ranks[CLIENT_FAILURE_RANKS_MAX];
    int32_t pids[CLIENT_FAILURE_RANKS_MAX]; /* 0: not known */
    char node[NODE_NAME_MAX_BYTES + 1];     /* the lost node, or that of the first rank */
};

/* How many ranks are listed. */
static inline uint32_t comms_detail_listed(const struct comms_detail *detail)
{
    return detail->rank_count < CLIENT_FAILURE_RANKS_MAX ? detail->rank_count : CLIENT_FAILURE_RANKS_MAX;
}

/* Adds a rank; pid 0: not known. Ignores a rank that cannot exist. */
void comms_detail_add(struct comms_detail *detail, const struct communicator *comm, uint32_t rank,
                      int32_t pid);
void comms_detail_add_member(struct comms_detail *detail, const struct comms_member *member);
/* Adds the other rank of a message of `rank`; COMM_ANY_SOURCE_RANK: all other ranks. */
void comms_detail_add_peer(struct comms_detail *detail, const struct communicator *comm, uint32_t rank,
                           uint32_t peer_rank);
/* Adds all ranks of the node with this index of the communicator. */
void comms_detail_add_node(struct comms_detail *detail, const struct communicator *comm, uint32_t index);
/* Adds ranks that have not posted the operation. missing: null: only those of this node are known. */
void comms_detail_add_missing(struct comms_detail *detail, const struct communicator *comm, uint64_t seq,
                              const struct comms_missing *missing);
/* Returns null for null, and if memory is short. */
struct comms_detail *comms_detail_copy(const struct comms_detail *detail);
/* The message points into the detail. */
void comms_detail_to_wire(const struct comms_detail *detail, Commd__Mesh__Failure *out);
/* Fills *out, and returns it; null if the message is null. Ranks that cannot exist are left out. */
const struct comms_detail *comms_detail_from_wire(const Commd__Mesh__Failure *failure,
                                                  const struct communicator *comm, struct comms_detail *out);

#endif
