#ifndef TESTS_DATAGRAMS_SEEDED_TLS_H
#define TESTS_DATAGRAMS_SEEDED_TLS_H

#include <stdbool.h>
#include <stdint.h>

#include "tests/lib/test_pki.h"

/* TLS whose random numbers come from a seed, so that a test with the same seed does the same. */

/* From now on, OpenSSL takes its random numbers here. */
bool seeded_tls_begin(void);
void seeded_tls_seed(uint64_t seed);
/* Makes the certificate of that name, once in the process. Returns the authority, which has it as NAME.pem
 * and NAME.key; it lives until the process ends. */
struct test_pki *seeded_tls_certificate(const char *name);

#endif
