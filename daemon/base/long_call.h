#ifndef DAEMON_BASE_LONG_CALL_H
#define DAEMON_BASE_LONG_CALL_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * Calls that may take seconds and cannot be cut into pieces, such as pinning gigabytes: whoever watches this
 * process is shown that it is in one, and does not take it for stopped. Few and rare ones: a process that is
 * stopped in one is noticed late.
 *
 * Any thread. Calls may nest.
 */

/* Where their number is shown from now on; null: nowhere, as at first. */
void long_call_show(_Atomic uint32_t *place);
void long_call_begin(void);
void long_call_end(void);

#endif
