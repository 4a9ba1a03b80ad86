#ifndef TESTS_SIM_CONDITIONS_H
#define TESTS_SIM_CONDITIONS_H

#include "daemon/base/time.h"
#include "tests/network/network.h"

/* Conditions that several simulations use. */

static const struct network_conditions calm = {
    .delay_ns = 20 * TIME_US, .jitter_ns = 5 * TIME_US, .packet_bytes = 16384};
static const struct network_conditions rough = {.loss = 0.02,
                                                .duplication = 0.01,
                                                .delay_ns = 50 * TIME_US,
                                                .jitter_ns = 100 * TIME_US,
                                                .packet_bytes = 8192};

#endif
