#ifndef TESTS_ATTACKS_HOSTILE_H
#define TESTS_ATTACKS_HOSTILE_H

#include <stdbool.h>
#include <stdint.h>

/* Returns whether node c tells this lie now: the word in the file that $COMMD_HOSTILE names. The main
 * thread reads the file. A rail may see the old word for a moment, and so begins the new lie a moment
 * later. */
bool hostile_mode_is(const char *name);
/* Draws a random number. Each run draws the same numbers. */
uint64_t hostile_draw(void);

#endif
