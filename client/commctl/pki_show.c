#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/commctl/pki.h"

#define DAY_S 86400

static void set_text(json_t *object, const char *key, const char *text)
{
    json_t *value = json_string(text); /* null if text is not UTF-8 */
    json_object_set_new(object, key, value != NULL ? value : json_string("?"));
}

static void set_subject(json_t *object, const char *key, const X509_NAME *name)
{
    char text[256] = "";
    BIO *memory = BIO_new(BIO_s_mem());
    if (memory != NULL && name != NULL && X509_NAME_print_ex(memory, name, 0, XN_FLAG_RFC2253) >= 0) {
        int size = BIO_read(memory, text, (int)sizeof text - 1);
        text[size > 0 ? size : 0] = '\0';
    }
    BIO_free(memory);
    set_text(object, key, text);
}

static void set_time(json_t *object, const char *key, const ASN1_TIME *time)
{
    char text[PKI_TIME_BYTES];
    set_text(object, key, pki_time_text(time, text) ? text : "?");
}

static void set_serial(json_t *object, const ASN1_INTEGER *serial)
{
    char text[PKI_SERIAL_MAX_BYTES + 1];
    set_text(object, "serial", pki_serial_text(serial, text) ? text : "?");
}

/* Sets the hash of the public key (SubjectPublicKeyInfo): the same for a key, its request and certificate. */
static void set_key(json_t *object, EVP_PKEY *key)
{
    unsigned char digest[EVP_MAX_MD_SIZE];
    char text[2 * EVP_MAX_MD_SIZE + 1] = "?";
    unsigned size = 0;
    unsigned char *der = NULL;
    int der_size = key == NULL ? -1 : i2d_PUBKEY(key, &der);
    if (der_size > 0 && EVP_Digest(der, (size_t)der_size, digest, &size, EVP_sha256(), NULL) == 1) {
        for (size_t i = 0; i < size; i++) {
            snprintf(text + 2 * i, 3, "%02x", digest[i]);
        }
    }
    OPENSSL_free(der);
    set_text(object, "key_sha256", text);
}

static void set_alternative_names(json_t *object, const X509 *certificate)
{
    json_t *list = json_array();
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; names != NULL && i < sk_GENERAL_NAME_num(names); i++) {
        int type = 0;
        const ASN1_STRING *string = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, i), &type);
        if (type == GEN_DNS) {
            json_t *name =
                json_stringn((const char *)ASN1_STRING_get0_data(string), (size_t)ASN1_STRING_length(string));
            json_array_append_new(list, name != NULL ? name : json_string("?"));
        }
    }
    GENERAL_NAMES_free(names);
    json_object_set_new(object, "names", list);
}

static void describe_certificate(struct pki *pki, json_t *object, X509 *certificate)
{
    char serial[PKI_SERIAL_MAX_BYTES + 1];
    char ends[PKI_TIME_BYTES];
    struct pki_record record = {0};
    time_t ends_s = 0;
    set_text(object, "kind", "certificate");
    set_subject(object, "subject", X509_get_subject_name(certificate));
    set_alternative_names(object, certificate);
    set_subject(object, "issuer", X509_get_issuer_name(certificate));
    set_serial(object, X509_get0_serialNumber(certificate));
    set_time(object, "begins", X509_get0_notBefore(certificate));
    set_time(object, "ends", X509_get0_notAfter(certificate));
    if (pki_time_text(X509_get0_notAfter(certificate), ends) && pki_time_parse(ends, &ends_s)) {
        json_object_set_new(object, "days_left", json_integer((ends_s - pki->now_s) / DAY_S));
    }
    json_object_set_new(object, "authority", json_boolean(X509_check_ca(certificate) != 0));
    set_key(object, X509_get0_pubkey(certificate));
    const char *state = ends_s != 0 && pki->now_s >= ends_s ? "expired" : "valid";
    if (pki_serial_text(X509_get0_serialNumber(certificate), serial) && pki_record_load(pki, &record)) {
        const struct pki_entry *entry = pki_record_find(&record, serial);
        state = entry != NULL ? pki_entry_state(entry, pki->now_s) : state;
    }
    set_text(object, "state", state);
    pki_record_free(&record);
}

static void describe_request(json_t *object, X509_REQ *request)
{
    char name[NODE_NAME_MAX_BYTES + 1];
    set_text(object, "kind", "request");
    set_subject(object, "subject", X509_REQ_get_subject_name(request));
    set_text(object, "name", pki_name_of_request(request, name) ? name : "");
    EVP_PKEY *key = X509_REQ_get0_pubkey(request);
    set_key(object, key);
    json_object_set_new(object, "signature_is_right",
                        json_boolean(key != NULL && X509_REQ_verify(request, key) == 1));
}

static void describe_revocations(json_t *object, X509_CRL *list)
{
    json_t *serials = json_array();
    STACK_OF(X509_REVOKED) *revoked = X509_CRL_get_REVOKED(list);
    set_text(object, "kind", "revocation list");
    set_subject(object, "issuer", X509_CRL_get_issuer(list));
    set_time(object, "begins", X509_CRL_get0_lastUpdate(list));
    set_time(object, "ends", X509_CRL_get0_nextUpdate(list));
    for (int i = 0; i < sk_X509_REVOKED_num(revoked); i++) {
        const X509_REVOKED *entry = sk_X509_REVOKED_value(revoked, i);
        json_t *row = json_object();
        set_serial(row, X509_REVOKED_get0_serialNumber(entry));
        set_time(row, "revoked", X509_REVOKED_get0_revocationDate(entry));
        json_array_append_new(serials, row);
    }
    json_object_set_new(object, "revoked", serials);
}

static void print_value(const char *key, const json_t *value)
{
    char text[512];
    table_format(value, COLUMN_TEXT, text, sizeof text);
    printf("%-20s%s\n", key, text);
}

static void print_object(const json_t *object)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        size_t index;
        json_t *element;
        if (strcmp(key, "schema_version") == 0) {
            continue;
        }
        if (!json_is_array(value)) {
            print_value(key, value);
        }
        json_array_foreach(value, index, element)
        {
            if (json_is_object(element)) {
                printf("%-20s%s on %s\n", key, json_string_value(json_object_get(element, "serial")),
                       json_string_value(json_object_get(element, "revoked")));
            } else {
                print_value(key, element);
            }
        }
    }
}

static enum exit_code show_file(struct pki *pki, const char *path)
{
    struct pki_bytes file;
    char copy[PATH_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    if (!pki_read(copy, &file)) {
        return EXIT_CODE_FAILURE;
    }
    X509 *certificate = pki_parse_certificate(file.bytes, file.size);
    X509_REQ *request = pki_parse_request(file.bytes, file.size);
    X509_CRL *list = pki_parse_revocations(file.bytes, file.size);
    json_t *object = json_object();
    enum exit_code code = EXIT_CODE_OK;
    set_text(object, "file", copy);
    if (certificate != NULL) {
        describe_certificate(pki, object, certificate);
    } else if (request != NULL) {
        describe_request(object, request);
    } else if (list != NULL) {
        describe_revocations(object, list);
    } else {
        fprintf(stderr, "commctl pki: %s: no certificate, request or revocation list in PEM\n", copy);
        code = EXIT_CODE_FAILURE;
    }
    if (code == EXIT_CODE_OK) {
        output_object(pki->commctl, json_incref(object), print_object);
    }
    json_decref(object);
    X509_CRL_free(list);
    X509_REQ_free(request);
    X509_free(certificate);
    free(file.bytes);
    ERR_clear_error();
    return code;
}

static enum exit_code show_record(struct pki *pki)
{
    static const struct column columns[] = {
        {"name", "NODE", COLUMN_TEXT},
        {"state", "STATE", COLUMN_TEXT},
        {"days_left", "DAYS", COLUMN_NUMBER},
        {"expires", "EXPIRES", COLUMN_TEXT},
        {"issued", "ISSUED", COLUMN_TEXT},
        {"revoked", "REVOKED", COLUMN_TEXT},
        {"serial", "SERIAL NUMBER", COLUMN_TEXT},
    };
    struct pki_record record;
    if (!pki_record_load(pki, &record)) {
        return EXIT_CODE_FAILURE;
    }
    json_t *rows = json_array();
    for (size_t i = 0; i < record.count; i++) {
        const struct pki_entry *entry = &record.entries[i];
        time_t expires_s = pki->now_s;
        (void)pki_time_parse(entry->expires, &expires_s);
        json_array_append_new(rows,
                              json_pack("{ss ss ss ss ss ss sI}", "name", entry->name, "state",
                                        pki_entry_state(entry, pki->now_s), "serial", entry->serial, "issued",
                                        entry->issued, "expires", entry->expires, "revoked", entry->revoked,
                                        "days_left", (json_int_t)((expires_s - pki->now_s) / DAY_S)));
    }
    if (pki->commctl->json) {
        output_object(pki->commctl, json_pack("{sO}", "certificates", rows), NULL);
    } else {
        table_print(rows, columns, sizeof columns / sizeof columns[0]);
    }
    json_decref(rows);
    pki_record_free(&record);
    return EXIT_CODE_OK;
}

/* A node's name means its certificate in the folder. */
enum exit_code pki_show(struct pki *pki)
{
    if (pki->name == NULL) {
        return show_record(pki);
    }
    bool is_name = pki_name_is_valid(pki->name) || strcmp(pki->name, "ca") == 0;
    return show_file(pki, is_name ? pki_path(pki, pki->name, "crt") : pki->name);
}
