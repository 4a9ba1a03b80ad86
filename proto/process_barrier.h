#ifndef PROTO_PROCESS_BARRIER_H
#define PROTO_PROCESS_BARRIER_H

#include <stdbool.h>

/*
 * A fence that one process has all others execute, so that they need none of their own: membarrier(2), Linux
 * 4.16 and later. Who seldom looks pays for it (some microseconds), and who often writes does not.
 *
 * A process that joined writes a word A and then reads a word B, without a fence. Another one writes B, calls
 * process_barrier, and reads A. Then at least one of them reads what the other has written, as if both had a
 * fence between their write and their read. Any thread may call these functions.
 */

/* From now on, calls of process_barrier concern all threads of this process. The first call may take some
 * 10 ms if the process has several threads, later ones take none. Returns false if the kernel refuses: then
 * the process needs fences of its own. A child of fork, and a program after exec, has not joined. */
bool process_barrier_join(void);
/* Whether process_barrier works here. Otherwise nobody may rely on it. */
bool process_barrier_works(void);
/* If the kernel refuses, waits for a millisecond: no processor keeps a write back for so long. */
void process_barrier(void);

#endif
