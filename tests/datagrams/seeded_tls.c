#define OPENSSL_SUPPRESS_DEPRECATED /* this file replaces OpenSSL's random generator */

#include "tests/datagrams/seeded_tls.h"

#include <assert.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/base/hash.h"
#include "daemon/base/random.h"
#include "proto/types.h"

#define CERTIFICATES_MAX 256u

static struct random random_of_tls;

static int random_bytes(unsigned char *out, int size)
{
    for (int i = 0; i < size; i++) {
        out[i] = (unsigned char)random_u64(&random_of_tls);
    }
    return 1;
}

static int random_ready(void)
{
    return 1;
}

bool seeded_tls_begin(void)
{
    static const RAND_METHOD method = {NULL, random_bytes, NULL, NULL, random_bytes, random_ready};
    return RAND_set_rand_method(&method) == 1;
}

void seeded_tls_seed(uint64_t seed)
{
    random_seed(&random_of_tls, seed);
}

static struct test_pki *pki;

static void free_pki(void)
{
    test_pki_free(pki);
}

struct test_pki *seeded_tls_certificate(const char *name)
{
    static char issued[CERTIFICATES_MAX][NODE_NAME_MAX_BYTES + 1];
    static size_t count;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(issued[i], name) == 0) {
            return pki;
        }
    }
    assert(count < sizeof issued / sizeof issued[0]);
    /* so that the random numbers that follow do not depend on whether the certificate was made before */
    struct random kept = random_of_tls;
    random_seed(&random_of_tls, hash_bytes(1, name, strlen(name)));
    if (pki == NULL) {
        pki = test_pki_new();
        (void)atexit(free_pki);
    }
    test_pki_issue(pki, name, &(struct test_certificate){.name = name});
    random_of_tls = kept;
    (void)snprintf(issued[count++], sizeof issued[0], "%s", name);
    return pki;
}
