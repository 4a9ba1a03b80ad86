#ifndef TESTS_FUZZ_HOSTILE_DAEMON_H
#define TESTS_FUZZ_HOSTILE_DAEMON_H

#include "tests/fuzz/input.h"

/*
 * commd's side of one client, in the client's own thread. The library waits in poll(). This file replaces
 * poll(): the daemon reads what has come, and answers as the input says: correctly, wrongly, with anything,
 * or not at all. At the end of the input the daemon closes the connection. Time moves with each look at the
 * clock and with each wait, so every wait of the library ends.
 */
void hostile_daemon_start(struct fuzz_input *input);
const char *hostile_path(void);
void hostile_daemon_stop(void);

#endif
