#ifndef CLIENT_COMMCTL_PKI_H
#define CLIENT_COMMCTL_PKI_H

#include <limits.h>
#include <openssl/x509.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <time.h>

#include "client/commctl/commctl.h"
#include "proto/types.h"

/*
 * The cluster's authority and its nodes' certificates (X.509 v3, RFC 5280; ECDSA on P-256). The subject
 * alternative name is the node's name and nothing else: that is what commd compares. Keys are made where they
 * are used: `request` on the node, `issue --request` where the authority's key is; a bare `issue` makes the
 * key too, for nodes that share this machine.
 *
 * The authority's folder holds ca.crt, ca.key, ca.crl (the revocation list) and issued.txt (the record). What
 * fails prints one line to standard error that names the file.
 */
#define PKI_FILE_MAX_BYTES (16u << 20) /* of any file that is read */
#define PKI_SERIAL_MAX_BYTES 40        /* hexadecimal digits: 20 bytes (RFC 5280, 4.1.2.2) */
#define PKI_TIME_BYTES 21              /* "2026-11-22T08:00:00Z" and the zero byte */
#define PKI_AUTHORITY_DAYS 3650
/*
 * Renewal is work by hand, so not too often; but a name that is not in use any more should not stay good for
 * ever. A key that is lost is not waited for: it is revoked.
 */
#define PKI_NODE_DAYS 825

struct pki {
    const struct commctl *commctl;
    const char *folder;
    const char *name; /* or a serial number, or a file */
    const char *request_path;
    long days; /* 0: the default */
    bool new_key;
    time_t now_s;
    char path[PATH_MAX];
};

/* --- pki_files.c --- */

/* A file's bytes; free them. A zero byte follows them. */
struct pki_bytes {
    char *bytes;
    size_t size;
};
/* Reads a regular file of at most PKI_FILE_MAX_BYTES. */
bool pki_read(const char *path, struct pki_bytes *out);

enum pki_write_mode { PKI_WRITE_NEW, PKI_WRITE_REPLACE };
/*
 * Writes the whole file or nothing, beside its place and then into it. NEW fails where there is a file
 * already; REPLACE takes the place of one, and its owner. A symbolic link is replaced and never followed.
 */
bool pki_write(const char *path, mode_t mode, enum pki_write_mode how, const char *bytes, size_t size);
bool pki_write_key(const char *path, enum pki_write_mode how, EVP_PKEY *key);
bool pki_write_certificate(const char *path, enum pki_write_mode how, X509 *certificate);
bool pki_write_request(const char *path, X509_REQ *request);
bool pki_write_revocations(const char *path, X509_CRL *list);

/* "FOLDER/NAME.EXTENSION", in pki->path until the next call. */
const char *pki_path(struct pki *pki, const char *name, const char *extension);
bool pki_make_folder(const char *folder);
/* Keeps other commctl from the authority's folder until the returned descriptor is closed; -1 on failure. */
int pki_lock(const char *folder);

/* --- pki_parse.c: what files hold, without a word; null when it is something else. --- */

X509 *pki_parse_certificate(const char *bytes, size_t size);
X509_REQ *pki_parse_request(const char *bytes, size_t size);
X509_CRL *pki_parse_revocations(const char *bytes, size_t size);
EVP_PKEY *pki_parse_key(const char *bytes, size_t size); /* unencrypted ones alone */

/* A node's name: a DNS label, and not "ca", whose files are the authority's. */
bool pki_name_is_valid(const char *name);
/* The one name that a certificate or request is of: false for none, several, or one that is no node's. */
bool pki_name_of_certificate(const X509 *certificate, char out[NODE_NAME_MAX_BYTES + 1]);
bool pki_name_of_request(X509_REQ *request, char out[NODE_NAME_MAX_BYTES + 1]);
/* Hexadecimal, in capitals; false for one that is longer than RFC 5280 allows. */
bool pki_serial_text(const ASN1_INTEGER *serial, char out[PKI_SERIAL_MAX_BYTES + 1]);
bool pki_time_text(const ASN1_TIME *time, char out[PKI_TIME_BYTES]);
bool pki_time_parse(const char *text, time_t *out);

/* --- pki_record.c: which certificates the authority has issued. --- */

struct pki_entry {
    char serial[PKI_SERIAL_MAX_BYTES + 1];
    char name[NODE_NAME_MAX_BYTES + 1];
    char issued[PKI_TIME_BYTES];
    char expires[PKI_TIME_BYTES];
    char revoked[PKI_TIME_BYTES]; /* when; "": it is not */
};
struct pki_record {
    struct pki_entry *entries;
    size_t count;
};
/* Strict: *line is the number of a line that is not understood. Out of memory: line 0. */
bool pki_record_parse(const char *text, size_t size, struct pki_record *out, size_t *line);
void pki_record_free(struct pki_record *record);
/* Null when there is none. */
struct pki_entry *pki_record_find(const struct pki_record *record, const char *serial);
/* False without memory. */
bool pki_record_add(struct pki_record *record, const struct pki_entry *entry);
/* An entry for a certificate that is not revoked. False for one without a node's name. */
bool pki_entry_of(const X509 *certificate, struct pki_entry *out);
/* "valid", "expired" or "revoked". */
const char *pki_entry_state(const struct pki_entry *entry, time_t now_s);

/* A record that is not there is empty. */
bool pki_record_load(struct pki *pki, struct pki_record *out);
bool pki_record_store(struct pki *pki, const struct pki_record *record);

/* --- pki_make.c --- */

struct pki_authority {
    X509 *certificate;
    EVP_PKEY *key;
};
bool pki_authority_load(struct pki *pki, struct pki_authority *out);
void pki_authority_free(struct pki_authority *authority);
enum exit_code pki_fail_openssl(const char *what);
bool pki_add_authority_identifier(X509_CRL *list, X509 *authority);

enum exit_code pki_init(struct pki *pki);
enum exit_code pki_request(struct pki *pki);
enum exit_code pki_issue(struct pki *pki);
enum exit_code pki_renew(struct pki *pki);

/* --- pki_revoke.c --- */

enum exit_code pki_revoke(struct pki *pki);
/* Writes ca.crl: what the record says is revoked. */
bool pki_revocations_store(struct pki *pki, const struct pki_authority *authority,
                           const struct pki_record *record);

/* --- pki_show.c --- */

enum exit_code pki_show(struct pki *pki);

#endif
