#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <string.h>

#include "client/commctl/pki.h"

/* No key here is encrypted: without this, OpenSSL would ask at the terminal. */
static int no_password(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static BIO *memory_of(const char *bytes, size_t size)
{
    return size > PKI_FILE_MAX_BYTES ? NULL : BIO_new_mem_buf(bytes, (int)size);
}

X509 *pki_parse_certificate(const char *bytes, size_t size)
{
    BIO *memory = memory_of(bytes, size);
    X509 *certificate = memory == NULL ? NULL : PEM_read_bio_X509(memory, NULL, no_password, NULL);
    BIO_free(memory);
    ERR_clear_error();
    return certificate;
}

X509_REQ *pki_parse_request(const char *bytes, size_t size)
{
    BIO *memory = memory_of(bytes, size);
    X509_REQ *request = memory == NULL ? NULL : PEM_read_bio_X509_REQ(memory, NULL, no_password, NULL);
    BIO_free(memory);
    ERR_clear_error();
    return request;
}

X509_CRL *pki_parse_revocations(const char *bytes, size_t size)
{
    BIO *memory = memory_of(bytes, size);
    X509_CRL *list = memory == NULL ? NULL : PEM_read_bio_X509_CRL(memory, NULL, no_password, NULL);
    BIO_free(memory);
    ERR_clear_error();
    return list;
}

EVP_PKEY *pki_parse_key(const char *bytes, size_t size)
{
    BIO *memory = memory_of(bytes, size);
    EVP_PKEY *key = memory == NULL ? NULL : PEM_read_bio_PrivateKey(memory, NULL, no_password, NULL);
    BIO_free(memory);
    ERR_clear_error();
    return key;
}

/* --- Names --- */

bool pki_name_is_valid(const char *name)
{
    size_t length = strlen(name);
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-";
    return length >= 1 && length <= NODE_NAME_MAX_BYTES && strspn(name, allowed) == length &&
           name[0] != '-' && name[length - 1] != '-' && strcmp(name, "ca") != 0;
}

static bool copy_name(const unsigned char *bytes, int size, char out[NODE_NAME_MAX_BYTES + 1])
{
    if (bytes == NULL || size <= 0 || size > NODE_NAME_MAX_BYTES || memchr(bytes, 0, (size_t)size) != NULL) {
        return false;
    }
    memcpy(out, bytes, (size_t)size);
    out[size] = '\0';
    return pki_name_is_valid(out);
}

/* Gets the only common name of a subject. */
static bool common_name(const X509_NAME *subject, char out[NODE_NAME_MAX_BYTES + 1])
{
    int index = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
    if (index < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, index) >= 0) {
        return false;
    }
    unsigned char *text = NULL;
    int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, index)));
    bool copied = copy_name(text, size, out);
    OPENSSL_free(text);
    ERR_clear_error();
    return copied;
}

/* Gets the only DNS name of alternative names that contain nothing else. */
static bool alternative_name(const GENERAL_NAMES *names, char out[NODE_NAME_MAX_BYTES + 1])
{
    int type = 0;
    if (sk_GENERAL_NAME_num(names) != 1) {
        return false;
    }
    const ASN1_STRING *string = GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names, 0), &type);
    return type == GEN_DNS && copy_name(ASN1_STRING_get0_data(string), ASN1_STRING_length(string), out);
}

bool pki_name_of_certificate(const X509 *certificate, char out[NODE_NAME_MAX_BYTES + 1])
{
    GENERAL_NAMES *names = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    bool found = names != NULL && alternative_name(names, out);
    GENERAL_NAMES_free(names);
    ERR_clear_error();
    return found;
}

/* If the request has alternative names, they must be the same name. */
bool pki_name_of_request(X509_REQ *request, char out[NODE_NAME_MAX_BYTES + 1])
{
    char alternative[NODE_NAME_MAX_BYTES + 1];
    bool found = common_name(X509_REQ_get_subject_name(request), out);
    STACK_OF(X509_EXTENSION) *extensions = X509_REQ_get_extensions(request);
    if (extensions != NULL && X509v3_get_ext_by_NID(extensions, NID_subject_alt_name, -1) >= 0) {
        GENERAL_NAMES *names = X509V3_get_d2i(extensions, NID_subject_alt_name, NULL, NULL);
        found =
            found && names != NULL && alternative_name(names, alternative) && strcmp(alternative, out) == 0;
        GENERAL_NAMES_free(names);
    }
    sk_X509_EXTENSION_pop_free(extensions, X509_EXTENSION_free);
    ERR_clear_error();
    return found;
}

/* --- Numbers and times --- */

bool pki_serial_text(const ASN1_INTEGER *serial, char out[PKI_SERIAL_MAX_BYTES + 1])
{
    BIGNUM *number = ASN1_INTEGER_to_BN(serial, NULL);
    char *text = number == NULL || BN_is_negative(number) ? NULL : BN_bn2hex(number);
    bool fits = text != NULL && strlen(text) <= PKI_SERIAL_MAX_BYTES;
    if (fits) {
        memcpy(out, text, strlen(text) + 1);
    }
    OPENSSL_free(text);
    BN_free(number);
    ERR_clear_error();
    return fits;
}

bool pki_time_text(const ASN1_TIME *time, char out[PKI_TIME_BYTES])
{
    struct tm parts;
    bool converted = time != NULL && ASN1_TIME_to_tm(time, &parts) == 1 &&
                     strftime(out, PKI_TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts) == PKI_TIME_BYTES - 1;
    ERR_clear_error();
    return converted;
}

bool pki_time_parse(const char *text, time_t *out)
{
    struct tm parts = {0};
    char again[PKI_TIME_BYTES];
    int end = 0;
    if (strlen(text) != PKI_TIME_BYTES - 1 ||
        sscanf(text, "%4d-%2d-%2dT%2d:%2d:%2dZ%n", &parts.tm_year, &parts.tm_mon, &parts.tm_mday,
               &parts.tm_hour, &parts.tm_min, &parts.tm_sec, &end) != 6 ||
        end != PKI_TIME_BYTES - 1 || parts.tm_year < 1950) {
        return false;
    }
    parts.tm_year -= 1900;
    parts.tm_mon--;
    *out = timegm(&parts); /* which also accepts the 31st of February */
    return strftime(again, sizeof again, "%Y-%m-%dT%H:%M:%SZ", &parts) != 0 && strcmp(again, text) == 0;
}
