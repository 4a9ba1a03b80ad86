#ifndef TESTS_LIB_TEST_PKI_H
#define TESTS_LIB_TEST_PKI_H

#include <stdbool.h>

/*
 * A certificate authority for tests, with its files in a folder of its own below /tmp: "ca.pem",
 * "other-ca.pem" (another authority), "crl.pem" (after test_pki_revoke), and "<stem>.pem", "<stem>.key" for
 * each certificate. Whatever fails ends the process.
 */
struct test_pki;

struct test_certificate {
    const char *name;        /* DNS subject alternative name; null: none */
    const char *second_name; /* or null */
    long begins_s;           /* from now: validity; both 0: from an hour ago for a day */
    long ends_s;
    bool other_authority; /* issued by the other CA */
    bool server_only;     /* extended key usage serverAuth alone */
};

struct test_pki *test_pki_new(void);
/* Removes the folder. */
void test_pki_free(struct test_pki *pki);

/* Makes a key and a certificate; replaces those of the same stem. */
void test_pki_issue(struct test_pki *pki, const char *stem, const struct test_certificate *certificate);
/* Adds the certificate of that stem to crl.pem; with a null stem, crl.pem is only written. */
void test_pki_revoke(struct test_pki *pki, const char *stem);

/* A path in the folder: "a.pem". Valid until test_pki_free. */
const char *test_pki_path(struct test_pki *pki, const char *file);

#endif
