#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/pki.h"

/* FOLDER/NAME.crt, beside the record. */
struct last_certificate {
    bool exists;
    bool same_key; /* as the request's */
    bool valid;    /* neither expired nor revoked */
    bool revoked;
};

static bool name_is_held(const struct pki_record *record, const char *name, time_t now_s)
{
    for (size_t i = 0; i < record->count; i++) {
        if (strcmp(record->entries[i].name, name) == 0 &&
            strcmp(pki_entry_state(&record->entries[i], now_s), "valid") == 0) {
            return true;
        }
    }
    return false;
}

/* A file that is no certificate counts as a valid one of another key: it is not replaced unless asked to. */
static bool last_certificate_find(struct pki *pki, const struct pki_record *record, EVP_PKEY *key,
                                  struct last_certificate *out)
{
    struct pki_bytes file;
    struct pki_entry entry;
    const char *path = pki_path(pki, pki->name, "crt");
    *out = (struct last_certificate){0};
    if (access(path, F_OK) < 0 && errno == ENOENT) {
        return true;
    }
    if (!pki_read(path, &file)) {
        return false;
    }
    X509 *certificate = pki_parse_certificate(file.bytes, file.size);
    free(file.bytes);
    *out = (struct last_certificate){.exists = true, .valid = true};
    if (certificate != NULL && pki_entry_of(certificate, &entry)) {
        const struct pki_entry *known = pki_record_find(record, entry.serial);
        const char *state = pki_entry_state(known != NULL ? known : &entry, pki->now_s);
        out->same_key = EVP_PKEY_eq(X509_get0_pubkey(certificate), key) == 1;
        out->valid = strcmp(state, "valid") == 0;
        out->revoked = strcmp(state, "revoked") == 0;
    }
    ERR_clear_error();
    X509_free(certificate);
    return true;
}

enum pki_admission pki_admission_find(struct pki *pki, EVP_PKEY *key)
{
    struct pki_record record;
    struct last_certificate last;
    if (!pki_record_load(pki, &record)) {
        return PKI_ADMISSION_UNKNOWN;
    }
    bool held = name_is_held(&record, pki->name, pki->now_s);
    bool read = last_certificate_find(pki, &record, key, &last);
    pki_record_free(&record);
    if (!read) {
        return PKI_ADMISSION_UNKNOWN;
    }
    if (last.same_key && last.revoked) {
        return PKI_ADMISSION_REVOKED;
    }
    if (pki->renew || (!held && !last.valid)) {
        return PKI_ADMISSION_ISSUE;
    }
    return last.same_key && last.valid ? PKI_ADMISSION_SEND_AGAIN : PKI_ADMISSION_TAKEN;
}
