#ifndef DAEMON_BASE_LONG_CALL_H
#define DAEMON_BASE_LONG_CALL_H

#include <stdatomic.h>
#include <stdint.h>

/*
 * Marks calls that may take seconds and cannot be cut into pieces, such as pinning gigabytes. A process that
 * watches commd then sees that commd is in such a call, and does not take it for stopped. Use this for few
 * and rare calls: if commd really stops during one, that is noticed late.
 *
 * Any thread. Calls may nest.
 */

/* Sets the word that shows the number of calls under way. Null, the initial value, shows it nowhere. */
void long_call_show(_Atomic uint32_t *place);
void long_call_begin(void);
void long_call_end(void);

#endif
