#ifndef TESTS_SIM_SIM_MESSAGES_H
#define TESTS_SIM_SIM_MESSAGES_H

#include "tests/sim/sim_comm.h"

/* Messages between the ranks of a simulated communicator, beside its operations, and what must have come. */

#define SIM_MESSAGE_TICKETS (UINT64_C(1) << 63) /* theirs are from here on, operations' below */

struct sim_message_call {
    bool sends;
    uint32_t rank, peer, tag; /* peer: may be COMM_ANY_SOURCE_RANK of a receive */
    enum dtype dtype;
    uint64_t count; /* elements; of a receive: that there is room for */
    uint64_t timeout_ms;
};

struct sim_message {
    struct sim_message_call call;
    uint64_t number;      /* among all of the communicator, in the order posted */
    struct error refused; /* by comms_submit; STATUS_OK otherwise */
    bool done;
    struct error result;
    uint32_t source; /* of a receive */
    uint64_t came;   /* elements */
    bool taken;      /* of a send: a receive was found that has it */
    unsigned char *bytes;
    struct memory *memory;
    struct sim_message *next;
};

/* Of a rank that is a member. The message is the communicator's. */
struct sim_message *sim_message_post(struct sim_comm *comm, const struct sim_message_call *call);
/* What became of it: why it was refused, or its result. Of one that is over. */
const struct error *sim_message_outcome(const struct sim_message *message);
/* Every message is over whose rank is still there. */
bool sim_messages_done(const struct sim_comm *comm);
/*
 * Each receive that ended well has the right bytes of a send to it; of one sender, receiver and tag in the
 * order posted, and no send twice. Nothing else was written.
 */
void sim_messages_check(struct sim_comm *comm);

/* For sim_comm.c. */
void sim_message_completed(struct sim_rank *rank, const struct comms_completion *completion);
bool sim_messages_use_memory(const struct sim_comm *comm);
void sim_messages_free(struct sim_comm *comm);

#endif
