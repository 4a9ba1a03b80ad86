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
 * alternative name is the node's name and nothing else; commd compares it. Keys are made where they are used:
 * `request` makes the node's key on the node, and `issue --request` runs where the authority's key is.
 * `issue` without a request makes the key, too, for nodes that share this machine.
 *
 * The authority's folder holds ca.crt, ca.key, ca.crl (the revocation list) and issued.txt (the record). A
 * failure prints one line to standard error that names the file.
 */
#define PKI_FILE_MAX_BYTES (16u << 20) /* of any file that is read */
#define PKI_SERIAL_MAX_BYTES 40        /* hexadecimal digits: 20 bytes (RFC 5280, 4.1.2.2) */
#define PKI_TIME_BYTES 21              /* "2026-11-22T08:00:00Z" and the zero byte */
#define PKI_AUTHORITY_DAYS 3650
/*
 * Renewal is manual work, so it should be rare. But the certificate of an unused name should expire some day.
 * The certificate of a lost key is revoked at once.
 */
#define PKI_NODE_DAYS 825

#define PKI_NODE_FOLDER COMMD_SYSCONFDIR "/commd/pki" /* where commd looks for its files by default */
#define PKI_SECRETS_MAX 16                            /* codes that were agreed in advance */

/* The user who reads a node's key. */
struct pki_owner {
    uid_t uid;
    gid_t gid;
};

struct pki {
    const struct commctl *commctl;
    const char *folder; /* null until the options are read: the command's default */
    const char *name;   /* a name, a serial number, or a file */
    const char *request_path;
    const char *owner_name; /* null: commd */
    const char *address;    /* where admit listens; where join connects to */
    char *secrets[PKI_SECRETS_MAX];
    size_t secret_count;
    long days;       /* 0: the default */
    long node_count; /* how many nodes admit admits; 0: until a signal ends it */
    bool new_key;
    bool renew;
    time_t now_s;
    char path[PATH_MAX];
};

/* --- pki_files.c --- */

/* A file's bytes, followed by a zero byte. Free them with free(). */
struct pki_bytes {
    char *bytes;
    size_t size;
};
/* Reads a regular file of at most PKI_FILE_MAX_BYTES. */
bool pki_read(const char *path, struct pki_bytes *out);

#define PKI_TEMPORARY_BYTES (PATH_MAX + 32)
/*
 * Writes and syncs a temporary file in the folder of `path`, with that mode. owner: null for this process's
 * user, or for the owner of the file at `path` if `replaces` is set.
 */
bool pki_stage(const char *path, mode_t mode, const struct pki_owner *owner, bool replaces,
               const struct pki_bytes *content, char temporary[PKI_TEMPORARY_BYTES]);
void pki_folder_of(const char *path, char out[PATH_MAX]);
void pki_sync_folder(const char *folder);

enum pki_write_mode { PKI_WRITE_NEW, PKI_WRITE_REPLACE };
/*
 * Writes the whole file or nothing: stages it, then moves it to the path. NEW fails if the file exists.
 * REPLACE keeps the old file's owner unless one is given. A symbolic link is replaced, never followed.
 */
bool pki_write(const char *path, mode_t mode, const struct pki_owner *owner, enum pki_write_mode how,
               const struct pki_bytes *content);
bool pki_write_key(const char *path, enum pki_write_mode how, const struct pki_owner *owner,
                   const EVP_PKEY *key);
bool pki_write_certificate(const char *path, enum pki_write_mode how, const X509 *certificate);
bool pki_write_request(const char *path, const X509_REQ *request);
bool pki_write_revocations(const char *path, const X509_CRL *list);
/* Texts in PEM; return false if OpenSSL fails or memory is short. */
bool pki_pem_of_certificate(const X509 *certificate, struct pki_bytes *out);
bool pki_pem_of_request(const X509_REQ *request, struct pki_bytes *out);

/* "FOLDER/NAME.EXTENSION", in pki->path until the next call. */
const char *pki_path(struct pki *pki, const char *name, const char *extension);
bool pki_make_folder(const char *folder);
/* Locks the authority's folder against other commctl, until the returned descriptor is closed. Returns -1 on
 * failure. */
int pki_lock(const char *folder);

/* --- pki_parse.c: parses files, without printing errors; returns null for anything else. --- */

X509 *pki_parse_certificate(const char *bytes, size_t size);
X509_REQ *pki_parse_request(const char *bytes, size_t size);
X509_CRL *pki_parse_revocations(const char *bytes, size_t size);
EVP_PKEY *pki_parse_key(const char *bytes, size_t size); /* only unencrypted keys */

/* A node's name is a DNS label, but not "ca", because ca.* are the authority's files. */
bool pki_name_is_valid(const char *name);
/* Gets the one name of a certificate or request. Returns false if it has none, several, or an invalid one. */
bool pki_name_of_certificate(const X509 *certificate, char out[NODE_NAME_MAX_BYTES + 1]);
bool pki_name_of_request(X509_REQ *request, char out[NODE_NAME_MAX_BYTES + 1]);
/* Writes capital hexadecimal digits. Returns false if the serial number is longer than RFC 5280 allows. */
bool pki_serial_text(const ASN1_INTEGER *serial, char out[PKI_SERIAL_MAX_BYTES + 1]);
bool pki_time_text(const ASN1_TIME *time, char out[PKI_TIME_BYTES]);
bool pki_time_parse(const char *text, time_t *out);

/* --- pki_record.c: which certificates the authority has issued. --- */

struct pki_entry {
    char serial[PKI_SERIAL_MAX_BYTES + 1];
    char name[NODE_NAME_MAX_BYTES + 1];
    char issued[PKI_TIME_BYTES];
    char expires[PKI_TIME_BYTES];
    char revoked[PKI_TIME_BYTES]; /* when it was revoked; "": it is not */
};
struct pki_record {
    struct pki_entry *entries;
    size_t count;
};
/* On failure, *line is the number of the invalid line, or 0 if memory is short. */
bool pki_record_parse(const char *text, size_t size, struct pki_record *out, size_t *line);
void pki_record_free(struct pki_record *record);
/* Returns null if there is none. */
struct pki_entry *pki_record_find(const struct pki_record *record, const char *serial);
/* Returns false if memory is short. */
bool pki_record_add(struct pki_record *record, const struct pki_entry *entry);
/* Makes an entry for a certificate that is not revoked. Returns false if it has no node's name. */
bool pki_entry_of(const X509 *certificate, struct pki_entry *out);
/* Returns "valid", "expired" or "revoked". */
const char *pki_entry_state(const struct pki_entry *entry, time_t now_s);

/* A missing file counts as an empty record. */
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

/* Issues a certificate for pki->name and key, records it, and writes it to the folder. Also writes
 * private_key, unless it is null. The folder must be locked. */
enum exit_code pki_issue_to(struct pki *pki, const struct pki_authority *authority, EVP_PKEY *key,
                            EVP_PKEY *private_key, enum pki_write_mode how);

enum exit_code pki_init(struct pki *pki);
enum exit_code pki_issue(struct pki *pki);
enum exit_code pki_renew(struct pki *pki);

/* --- pki_request.c: a node's key and its request. --- */

/* Makes a request for the name. Returns null if OpenSSL fails. */
X509_REQ *pki_request_new(EVP_PKEY *key, const char *name);
/* Gets the public key of a request for that name. Its signature proves that the sender has the key. Returns
 * null, and prints why; `where` is the file or address that it comes from. */
EVP_PKEY *pki_request_key(const char *where, const char *bytes, size_t size, const char *name);
bool pki_set_name(X509_NAME *name, const char *common_name);
/* Reads the key FOLDER/NAME.key, or makes and writes it. Returns null, and prints why. */
EVP_PKEY *pki_own_key(struct pki *pki, const struct pki_owner *owner);

enum exit_code pki_request(struct pki *pki);

/* --- pki_owner.c: whose the key of a node is. --- */

/*
 * Who gets the key that this command writes: the user of --owner; else commd, if root runs commctl and there
 * is such a user. *out is null if the file stays this process's user's. Returns false if --owner names
 * nobody.
 */
bool pki_owner_find(const struct pki *pki, struct pki_owner *storage, const struct pki_owner **out);
/* Makes a node's folder, which the owner of its key must be able to enter. */
bool pki_make_node_folder(const char *folder);
/* Prints the commands that are missing until commd can read the key. */
void pki_owner_advise(const struct pki *pki, const struct pki_owner *owner, const char *key_path);

/* --- pki_install.c: several files, all or none. --- */

struct pki_file {
    char path[PATH_MAX];
    struct pki_bytes content; /* borrowed */
    mode_t mode;
    const struct pki_owner *owner;
    /* For pki_install() alone: */
    bool staged, existed, exchanged, placed;
    char temporary[PKI_TEMPORARY_BYTES];
};
/* Writes all files, or leaves everything as it was. Prints what failed. */
bool pki_install(struct pki_file *files, size_t count);

/* --- pki_admission.c: whether a request gets a certificate. --- */

enum pki_admission {
    PKI_ADMISSION_ISSUE,
    PKI_ADMISSION_SEND_AGAIN, /* this key has a valid certificate of this name: that one */
    PKI_ADMISSION_TAKEN,      /* another key has one, and pki->renew is not set */
    PKI_ADMISSION_REVOKED,    /* the certificate of this key was revoked */
    PKI_ADMISSION_UNKNOWN,    /* the record cannot be read; that was printed */
};
/* Decides about pki->name and the key of its request. */
enum pki_admission pki_admission_find(struct pki *pki, EVP_PKEY *key);

/* --- pki_admit.c, pki_join.c: pki_join.h says what these two do. --- */

enum exit_code pki_admit(struct pki *pki);
enum exit_code pki_join(struct pki *pki);

/* --- pki_revoke.c --- */

enum exit_code pki_revoke(struct pki *pki);
/* Writes ca.crl: the certificates that the record lists as revoked. */
bool pki_revocations_store(struct pki *pki, const struct pki_authority *authority,
                           const struct pki_record *record);

/* --- pki_show.c --- */

enum exit_code pki_show(struct pki *pki);

#endif
