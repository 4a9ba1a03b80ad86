#ifndef DAEMON_SERVICE_H
#define DAEMON_SERVICE_H

#include <stdbool.h>

/*
 * Whether systemd stops this process in order to start it again (systemctl restart): asks for the job of its
 * unit, by D-Bus. Waits at most SERVICE_WAIT_MS for the answer. False if commd is no unit, or nobody answers.
 * Source: org.freedesktop.systemd1(5), the unit's property Job and the job's property JobType.
 */
bool service_is_restarting(void);
#define SERVICE_WAIT_MS 200

#endif
