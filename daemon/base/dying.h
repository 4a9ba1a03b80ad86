#ifndef DAEMON_BASE_DYING_H
#define DAEMON_BASE_DYING_H

#include <stdint.h>

#include "daemon/base/loop.h"

/*
 * Tells that a process is dying before the kernel reports its end. A pidfd and a socket report the end when
 * the kernel has unmapped the process's memory: that takes 50 ms per GiB, or a multiple on a busy machine. A
 * thread asks the kernel for each process that is watched, with process_mrelease(2) (Linux 5.15). The call
 * fails with EINVAL while the process lives, and while its core is dumped. It needs no right over the
 * process. If the process is dying and still has its memory, the call begins to unmap that. So it may take
 * long, but does only what must be done anyway. A call that finds a living process takes a microsecond.
 *
 * If the kernel has no such call, or forbids it, nothing is told.
 */
struct dying;
struct dying_process;

#define DYING_LOOK_NS (25 * UINT64_C(1000000)) /* from one look at all processes to the next */
/* With many processes there are fewer looks: the thread rests so many times as long as they took. */
#define DYING_REST_FACTOR 200u

/* SYSTEM, NO_MEMORY. */
enum status dying_new(struct loop *loop, struct dying **out, struct error *error) COMM_MUST_USE;
/* Call it after all processes were forgotten. Waits for a look that is under way. Null is accepted. */
void dying_free(struct dying *dying);

/*
 * Watches the process of that pidfd, which must stay open until dying_forget. `seen` is called on the loop's
 * thread, at most once; it may forget the process. The first call starts the thread. Returns null if that
 * fails, if memory is short, or if `dying` is null. The loop's thread.
 */
struct dying_process *dying_watch(struct dying *dying, int pidfd,
                                  void (*seen)(void *context, uint64_t now_ns), void *context);
/* There is no call of `seen` after this. Null is accepted. The loop's thread. */
void dying_forget(struct dying_process *process);

#endif
