/*
 * A process of a program that is written for NCCL.
 *
 * usage: nccl_cases CASE ID-FILE FIRST-RANK SIZE DEVICE ...    one rank for each device
 */
#include <string.h>

#include "tests/system/nccl_program.h"

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"types", case_types},
             {"kinds", case_kinds},
             {"arguments", case_arguments},
             {"groups", case_groups},
             {"messages", case_messages},
             {"splits", case_splits},
             {"memory", case_memory},
             {"pools", case_pools},
             {"configs", case_configs},
             {"operators", case_operators},
             {"life", case_life},
             {"graph", case_graph},
             {"graph-devices", case_graph_devices},
             {"graph-spread", case_graph_spread},
             {"graph-threads", case_graph_threads},
             {"graph-refused", case_graph_refused},
             {"loops", case_loops},
             {"children", case_children},
             {"abort-in-group", case_abort_in_group},
             {"polling", case_polling},
             {"factors", case_factors},
             {"watchdog", case_watchdog},
             {"shrink-group", case_shrink_group},
             {"mixes", case_mixes},
             {"one-device", case_one_device},
             {"half-captured", case_half_captured},
             {"threads", case_threads},
             {"abort", case_abort},
             {"survive", case_survive},
             {"restart", case_restart},
             {"non-blocking", case_non_blocking},
             {"non-blocking-group", case_non_blocking_group},
             {"abandon", case_abandon},
             {"init-all", case_init_all},
             {"shrink", case_shrink},
             {"grow", case_grow}};

int main(int count, char **arguments)
{
    if (count < 6 || count - 5 > LOCAL_MAX) {
        return EXIT_FAILURE;
    }
    size = atoi(arguments[4]);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strcmp(cases[i].name, arguments[1]) == 0) {
            program_open(arguments[2], atoi(arguments[3]), count - 5, &arguments[5]);
            cases[i].run();
            say("OK");
            return EXIT_SUCCESS;
        }
    }
    fprintf(stderr, "no such case: %s\n", arguments[1]);
    return EXIT_FAILURE;
}
