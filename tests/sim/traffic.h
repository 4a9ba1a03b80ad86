#ifndef TESTS_SIM_TRAFFIC_H
#define TESTS_SIM_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/sim/sim_messages.h"

/* A case of test_traffic: what it is made of, and the world in which it runs. */
#define CASE_NODES_MAX 5
#define CASE_RANKS_MAX 8
#define CASE_COLLECTIVES_MAX 12
#define CASE_MESSAGES_MAX 40
#define STEPS_MAX (CASE_COLLECTIVES_MAX + 2 * CASE_MESSAGES_MAX)

/* What happens to one rank in the middle of a case. */
enum departure {
    DEPARTURE_NONE,
    DEPARTURE_LEAVES,
    DEPARTURE_DIES,
    DEPARTURE_HOST_DIES,
    DEPARTURE_DAEMON_DIES,
    DEPARTURE_SILENT, /* it posts nothing more */
    DEPARTURES
};

/* Tags. Receives with the first two tags name their source. With the third tag none does, with the fourth
 * some do. */
enum { TAG_ANY_SOURCE = 2, TAG_EITHER, TAGS };

enum {
    CASE_SEED,
    CASE_COLLECTIVES,
    CASE_MESSAGES,
    CASE_NODES,
    CASE_RANKS,
    CASE_DEPARTURE,
    CASE_DEPARTURE_PERMILLE, /* the rank departs after this share of its steps */
    CASE_SHORT_PERCENT,      /* share of the calls that have a deadline which may pass */
    CASE_LONELY_PERCENT,     /* share of the messages that have only a send or only a receive */
    CASE_GROUPED,
    CASE_SLICE_BYTES,
    CASE_DELAY_US,
    CASE_JITTER_US,
    CASE_LOSS_PERMILLE,
    CASE_RAILS,
    CASE_WORKERS,
    CASE_DATAGRAMS,
    CASE_FIELDS
};

struct step {
    bool is_message, joined; /* joined: the next step of the rank follows at once */
    uint32_t index;
};

struct world {
    const uint64_t *fields;
    struct random random;
    struct cluster *cluster;
    struct sim_comm *comm;
    uint32_t ranks;
    struct sim_call calls[CASE_COLLECTIVES_MAX];
    struct sim_op *ops[CASE_COLLECTIVES_MAX];
    struct sim_message_call message_calls[2 * CASE_MESSAGES_MAX];
    uint32_t message_count; /* sends and receives, counted singly */
    struct step steps[CASE_RANKS_MAX][STEPS_MAX];
    uint32_t step_count[CASE_RANKS_MAX], step_at[CASE_RANKS_MAX];
    uint32_t departed; /* CASE_RANKS_MAX: no rank has departed */
    bool gone[CASE_RANKS_MAX];
    struct budget *budgets[CASE_NODES_MAX];
    struct budget_account *accounts[CASE_NODES_MAX];
};

/* After a run: fails unless what test_traffic promises holds for each call of the case. Then the communicator
 * runs one more operation, if nobody has departed. */
void traffic_check(const struct world *world);

#endif
