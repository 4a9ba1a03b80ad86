#ifndef TESTS_DATAGRAMS_STRANGER_H
#define TESTS_DATAGRAMS_STRANGER_H

#include <stddef.h>

#include "tests/network/network.h"

/* A host of a network of datagrams without an endpoint, which sends what it likes. Or in another's name. */
void stranger_sends(struct network *network, const char *from, const char *to, const void *bytes,
                    size_t size);
/* The next datagram that came to a host without an endpoint, cut to size; false: there is none. */
bool stranger_receives(struct network *network, const char *name, void *out, size_t size, size_t *received);

#endif
