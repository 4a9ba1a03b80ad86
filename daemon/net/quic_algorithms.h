#ifndef DAEMON_NET_QUIC_ALGORITHMS_H
#define DAEMON_NET_QUIC_ALGORITHMS_H

#include "daemon/base/error.h"

/*
 * Makes OpenSSL build its tables of algorithms now. OpenSSL builds the table of each kind of operation when
 * it is first needed, and never again. If an allocation failed during the first handshake, algorithms would
 * be missing, and every later handshake would fail with "unsupported" (OpenSSL 3.5, crypto/core_fetch.c).
 * Costs little if the tables exist. NO_MEMORY names what is missing.
 */
enum status quic_algorithms_load(struct error *error) COMM_MUST_USE;

#endif
