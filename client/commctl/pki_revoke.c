#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "client/commctl/pki.h"

#define CLOCK_SKEW_S 300

/* --- The list --- */

static bool add_revoked(X509_CRL *list, const struct pki_entry *entry)
{
    BIGNUM *number = NULL;
    ASN1_INTEGER *serial = NULL;
    X509_REVOKED *revoked = X509_REVOKED_new();
    time_t revoked_s = 0;
    ASN1_TIME *when = pki_time_parse(entry->revoked, &revoked_s) ? ASN1_TIME_set(NULL, revoked_s) : NULL;
    bool added =
        BN_hex2bn(&number, entry->serial) > 0 && (serial = BN_to_ASN1_INTEGER(number, NULL)) != NULL &&
        revoked != NULL && when != NULL && X509_REVOKED_set_serialNumber(revoked, serial) == 1 &&
        X509_REVOKED_set_revocationDate(revoked, when) == 1 && X509_CRL_add0_revoked(list, revoked) == 1;
    if (!added) {
        X509_REVOKED_free(revoked);
    }
    ASN1_TIME_free(when);
    ASN1_INTEGER_free(serial);
    BN_free(number);
    return added;
}

/* RFC 5280, 5.2.3: the number grows with each list. */
static bool add_number(X509_CRL *list, time_t now_s)
{
    ASN1_INTEGER *number = ASN1_INTEGER_new();
    bool added = number != NULL && ASN1_INTEGER_set_int64(number, now_s) == 1 &&
                 X509_CRL_add1_ext_i2d(list, NID_crl_number, number, 0, 0) == 1;
    ASN1_INTEGER_free(number);
    return added;
}

/*
 * The list is valid as long as the authority. It is copied to the nodes by hand. If a list expired before the
 * next one was copied, no node could connect.
 */
static X509_CRL *new_revocations(const struct pki_authority *authority, const struct pki_record *record,
                                 time_t now_s)
{
    X509_CRL *list = X509_CRL_new();
    ASN1_TIME *begins = ASN1_TIME_set(NULL, now_s - CLOCK_SKEW_S);
    bool made = list != NULL && begins != NULL && X509_CRL_set_version(list, X509_CRL_VERSION_2) == 1 &&
                X509_CRL_set_issuer_name(list, X509_get_subject_name(authority->certificate)) == 1 &&
                X509_CRL_set1_lastUpdate(list, begins) == 1 &&
                X509_CRL_set1_nextUpdate(list, X509_get0_notAfter(authority->certificate)) == 1 &&
                pki_add_authority_identifier(list, authority->certificate) && add_number(list, now_s);
    for (size_t i = 0; made && i < record->count; i++) {
        made = record->entries[i].revoked[0] == '\0' || add_revoked(list, &record->entries[i]);
    }
    made = made && X509_CRL_sort(list) == 1 && X509_CRL_sign(list, authority->key, EVP_sha256()) > 0;
    ASN1_TIME_free(begins);
    if (!made) {
        X509_CRL_free(list);
        return NULL;
    }
    return list;
}

bool pki_revocations_store(struct pki *pki, const struct pki_authority *authority,
                           const struct pki_record *record)
{
    X509_CRL *list = new_revocations(authority, record, pki->now_s);
    if (list == NULL) {
        (void)pki_fail_openssl("the revocation list cannot be made");
        return false;
    }
    bool written = pki_write_revocations(pki_path(pki, "ca", "crl"), list);
    X509_CRL_free(list);
    return written;
}

/* --- Which certificates to revoke --- */

static bool is_file(const char *text)
{
    return strpbrk(text, "/.") != NULL;
}

/* Converts "4f:3a…" or "4f3a…" to the form in the record. Returns false if it is not a number. */
static bool serial_of(const char *text, char out[PKI_SERIAL_MAX_BYTES + 1])
{
    size_t used = 0;
    for (; *text != '\0'; text++) {
        static const char digits[] = "0123456789ABCDEF0123456789abcdef";
        const char *digit = strchr(digits, *text);
        if (*text == ':') {
            continue;
        }
        if (digit == NULL || used == PKI_SERIAL_MAX_BYTES) {
            return false;
        }
        out[used++] = digits[(digit - digits) % 16];
    }
    out[used] = '\0';
    return used > 0;
}

/* Selects the certificate in a file. If it was issued before there was a record, adds it to the record. */
static bool select_file(struct pki *pki, const struct pki_authority *authority, struct pki_record *record,
                        char serial[PKI_SERIAL_MAX_BYTES + 1])
{
    struct pki_bytes file;
    struct pki_entry entry;
    if (!pki_read(pki->name, &file)) {
        return false;
    }
    X509 *certificate = pki_parse_certificate(file.bytes, file.size);
    free(file.bytes);
    const char *wrong = NULL;
    if (certificate == NULL) {
        wrong = "not a certificate in PEM";
    } else if (X509_verify(certificate, authority->key) != 1) {
        wrong = "not issued by this authority";
    } else if (!pki_entry_of(certificate, &entry)) {
        wrong = "does not name one node";
    } else if (pki_record_find(record, entry.serial) == NULL && !pki_record_add(record, &entry)) {
        wrong = "no memory";
    } else {
        memcpy(serial, entry.serial, sizeof entry.serial);
    }
    ERR_clear_error();
    X509_free(certificate);
    if (wrong != NULL) {
        fprintf(stderr, "commctl pki: %s: %s\n", pki->name, wrong);
    }
    return wrong == NULL;
}

/* Marks certificates as revoked: for a name, all that are still valid. Returns how many; *known counts those
 * that were revoked before. */
static size_t mark(struct pki_record *record, const char *name, const char *serial, time_t now_s,
                   size_t *known)
{
    struct tm parts;
    size_t marked = 0;
    *known = 0;
    for (size_t i = 0; i < record->count; i++) {
        struct pki_entry *entry = &record->entries[i];
        bool meant = serial != NULL ? strcmp(entry->serial, serial) == 0
                                    : strcmp(entry->name, name) == 0 &&
                                          strcmp(pki_entry_state(entry, now_s), "expired") != 0;
        if (meant && entry->revoked[0] != '\0') {
            ++*known;
        } else if (meant && gmtime_r(&now_s, &parts) != NULL &&
                   strftime(entry->revoked, sizeof entry->revoked, "%Y-%m-%dT%H:%M:%SZ", &parts) > 0) {
            marked++;
            printf("revoked %s of %s, which would have expired on %.10s\n", entry->serial, entry->name,
                   entry->expires);
        }
    }
    return marked;
}

static bool record_names(const struct pki_record *record, const char *name)
{
    for (size_t i = 0; i < record->count; i++) {
        if (strcmp(record->entries[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum exit_code revoke_meant(struct pki *pki, const struct pki_authority *authority,
                                   struct pki_record *record)
{
    char serial[PKI_SERIAL_MAX_BYTES + 1] = "";
    size_t known;
    bool by_name = !is_file(pki->name) && record_names(record, pki->name);
    if (is_file(pki->name) && !select_file(pki, authority, record, serial)) {
        return EXIT_CODE_FAILURE;
    }
    if (!by_name && serial[0] == '\0' && !serial_of(pki->name, serial)) {
        serial[0] = '\0';
    }
    size_t marked = by_name || serial[0] != '\0'
                        ? mark(record, pki->name, by_name ? NULL : serial, pki->now_s, &known)
                        : (known = 0);
    if (marked == 0 && known == 0) {
        fprintf(stderr,
                "commctl pki: %s: %s/issued.txt has no valid certificate of that name or serial number (or "
                "give the certificate's file)\n",
                pki->name, pki->folder);
        return EXIT_CODE_NOT_FOUND;
    }
    if (marked == 0) {
        printf("%s is revoked already\n", pki->name);
    } else if (!pki_record_store(pki, record)) {
        return EXIT_CODE_FAILURE;
    }
    if (!pki_revocations_store(pki, authority, record)) {
        return EXIT_CODE_FAILURE;
    }
    printf("copy %s/ca.crl to every node, as its revocation_list, and reload commd there\n", pki->folder);
    return EXIT_CODE_OK;
}

enum exit_code pki_revoke(struct pki *pki)
{
    enum exit_code code = EXIT_CODE_FAILURE;
    struct pki_authority authority = {0};
    struct pki_record record = {0};
    int lock = pki_lock(pki->folder);
    if (lock >= 0 && pki_authority_load(pki, &authority) && pki_record_load(pki, &record)) {
        code = revoke_meant(pki, &authority, &record);
    }
    pki_record_free(&record);
    pki_authority_free(&authority);
    if (lock >= 0) {
        close(lock);
    }
    return code;
}
