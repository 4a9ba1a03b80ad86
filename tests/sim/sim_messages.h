#ifndef TESTS_SIM_SIM_MESSAGES_H
#define TESTS_SIM_SIM_MESSAGES_H

#include "tests/sim/sim_comm.h"

/* Messages between the ranks of a simulated communicator, besides its operations, and the checks of what
 * was received. */

/* tickets of messages begin here; those of operations are lower */
#define SIM_MESSAGE_TICKETS (UINT64_C(1) << 63)

struct sim_message_call {
    bool sends;
    uint32_t rank, peer, tag; /* peer: for a receive, may be COMM_ANY_SOURCE_RANK */
    enum dtype dtype;
    uint64_t count; /* elements to send; for a receive, room for elements */
    uint64_t timeout_ms;
};

struct sim_message {
    struct sim_message_call call;
    uint64_t number;      /* number in the communicator, in the order of posting */
    struct error refused; /* why comms_submit refused it; STATUS_OK if it did not */
    bool done;
    struct error result;
    uint32_t source; /* for a receive: the sender */
    uint64_t came;   /* for a receive: elements that came */
    bool taken;      /* for a send: a receive was found that has it */
    unsigned char *bytes;
    struct memory *memory;
    struct sim_message *next;
};

/* Posts a message of a rank that is a member. The communicator owns the message. */
struct sim_message *sim_message_post(struct sim_comm *comm, const struct sim_message_call *call);
/* Returns why a message was refused, or its result. The message must be over. */
const struct error *sim_message_outcome(const struct sim_message *message);
/* Whether every message is over whose rank is still there. */
bool sim_messages_done(const struct sim_comm *comm);
/*
 * Checks the messages. Each receive that ended well has the right bytes of a send to it. Messages of one
 * sender, receiver and tag come in the order posted, and no send comes twice. Nothing else was written.
 */
void sim_messages_check(struct sim_comm *comm);

/* For use by sim_comm.c. */
void sim_message_completed(struct sim_rank *rank, const struct comms_completion *completion);
bool sim_messages_use_memory(const struct sim_comm *comm);
void sim_messages_free(struct sim_comm *comm);

#endif
