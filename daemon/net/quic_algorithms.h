#ifndef DAEMON_NET_QUIC_ALGORITHMS_H
#define DAEMON_NET_QUIC_ALGORITHMS_H

#include "daemon/base/error.h"

/*
 * Has OpenSSL make its tables of algorithms now. It makes the one of each kind of operation when that is
 * first needed, and never again: an allocation that fails during the first handshake would leave algorithms
 * out, and every later handshake would fail with "unsupported" (OpenSSL 3.5, crypto/core_fetch.c). Costs
 * little when the tables are there. NO_MEMORY names what is missing.
 */
enum status quic_algorithms_load(struct error *error) COMM_MUST_USE;

#endif
