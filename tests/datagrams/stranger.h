#ifndef TESTS_DATAGRAMS_STRANGER_H
#define TESTS_DATAGRAMS_STRANGER_H

#include <stddef.h>

#include "tests/network/network.h"

/* Sends a datagram from a host of a network of datagrams that has no endpoint. If `from` has an endpoint,
 * the datagram is forged in its name. */
void stranger_sends(struct network *network, const char *from, const char *to, const void *bytes,
                    size_t size);
/* Takes the next datagram that came to a host without an endpoint, cut to `size`. Returns false if there
 * is none. */
bool stranger_receives(struct network *network, const char *name, void *out, size_t size, size_t *received);

#endif
