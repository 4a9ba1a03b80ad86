#ifndef DAEMON_BASE_PROCESS_H
#define DAEMON_BASE_PROCESS_H

#include <stdint.h>

/* What the kernel says of this process. 0: not known. Any thread. */
uint64_t process_resident_bytes(void);
/* Open file descriptors, from Linux 6.2 on, and the most that it may have open. */
uint64_t process_open_descriptors(void);
uint64_t process_descriptors_max(void);
/* Processor time of all threads. */
uint64_t process_cpu_ns(void);

#endif
