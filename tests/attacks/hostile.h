#ifndef TESTS_ATTACKS_HOSTILE_H
#define TESTS_ATTACKS_HOSTILE_H

#include <stdbool.h>
#include <stdint.h>

/* Whether node c lies in this way now: the word in the file that $COMMD_HOSTILE names. The main thread reads
 * it; a rail that sees the old one for a moment lies a moment later. */
bool hostile_mode_is(const char *name);
/* The same numbers in each run. */
uint64_t hostile_draw(void);

#endif
