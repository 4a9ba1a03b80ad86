#ifndef TESTS_LIB_TEST_PKI_H
#define TESTS_LIB_TEST_PKI_H

#include <stdbool.h>

/*
 * A certificate authority for tests, with its own folder below /tmp. The files there are "ca.pem",
 * "other-ca.pem" (another authority), "crl.pem" (after test_pki_revoke), and "<stem>.pem" and "<stem>.key"
 * for each certificate. Any failure ends the process.
 */
struct test_pki;

struct test_certificate {
    const char *name;        /* the DNS subject alternative name; null: none */
    const char *second_name; /* a second one, or null */
    long begins_s;           /* validity, in seconds from now; both 0: from an hour ago for a day */
    long ends_s;
    bool other_authority; /* the other authority issues it */
    bool server_only;     /* its extended key usage is serverAuth alone */
};

struct test_pki *test_pki_new(void);
/* Removes the folder. */
void test_pki_free(struct test_pki *pki);

/* Makes a key and a certificate. They replace those of the same stem. */
void test_pki_issue(struct test_pki *pki, const char *stem, const struct test_certificate *certificate);
/* Adds the certificate of that stem to crl.pem. With a null stem, only writes crl.pem. */
void test_pki_revoke(struct test_pki *pki, const char *stem);

/* Returns the path of a file in the folder, such as "a.pem". It is valid until test_pki_free. */
const char *test_pki_path(struct test_pki *pki, const char *file);

#endif
