#ifndef TESTS_FUZZ_HOSTILE_DAEMON_H
#define TESTS_FUZZ_HOSTILE_DAEMON_H

#include "tests/fuzz/input.h"

/*
 * commd's side of one client in the client's own thread: poll(), by which the library waits, is replaced by
 * one that lets the daemon read what has come and answer as the input says: rightly, wrongly, with anything,
 * or not at all. At the input's end the daemon closes the connection. Time goes on with each look at the
 * clock and with each wait, so every wait of the library ends.
 */
void hostile_daemon_start(struct fuzz_input *input);
const char *hostile_path(void);
void hostile_daemon_stop(void);

#endif
