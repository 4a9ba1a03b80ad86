#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"
#include "daemon/base/log.h"
#include "daemon/net/quic.h"
#include "tests/fuzz/input.h"
#include "tests/lib/test_pki.h"

/*
 * Files of certificates. `commctl pki` reads certificates, requests, revocation lists, keys, and its record
 * of serial numbers. commd loads some of these, too. The first byte chooses the kind of file. It also says
 * whether the rest is the file as it is, or DER that is first put into PEM.
 */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX_BYTES 65536u

enum kind { KIND_CERTIFICATE, KIND_REQUEST, KIND_REVOCATIONS, KIND_KEY, KIND_RECORD, KIND_COUNT };

static struct test_pki *test_files;
static int file = -1;
static char file_path[32];
static FILE *nowhere;
static struct quic_options usual;

/* replaces the function of commctl, which is in the file with its main */
void output_object(const struct commctl *commctl, json_t *object, void (*text)(const json_t *object))
{
    if (text != NULL && !commctl->json) {
        text(object);
    } else {
        (void)json_dumpf(object, stdout, 0);
    }
    json_decref(object);
}

static void free_files(void)
{
    test_pki_free(test_files);
    if (nowhere != NULL) {
        (void)fclose(nowhere);
    }
}

static void start(void)
{
    if (test_files != NULL) {
        return;
    }
    log_set_level(LOG_LEVEL_ERROR);
    test_files = test_pki_new();
    test_pki_issue(test_files, "a", &(struct test_certificate){.name = "a"});
    (void)atexit(free_files);
    usual = (struct quic_options){.node_name = "a",
                                  .certificate_path = test_pki_path(test_files, "a.pem"),
                                  .key_path = test_pki_path(test_files, "a.key"),
                                  .authority_path = test_pki_path(test_files, "ca.pem")};
    nowhere = fopen("/dev/null", "we");
    fuzz_require(nowhere != NULL);
    file = memfd_create("fuzz-pki", MFD_CLOEXEC);
    fuzz_require(file >= 0 && fchmod(file, 0600) == 0);
    snprintf(file_path, sizeof file_path, "/proc/self/fd/%d", file);
}

/* Puts DER into PEM. Returns its size; the caller frees it. */
static size_t put_into_pem(enum kind kind, const uint8_t *der, size_t size, char **out)
{
    static const char *const labels[KIND_COUNT] = {PEM_STRING_X509, PEM_STRING_X509_REQ, PEM_STRING_X509_CRL,
                                                   PEM_STRING_PKCS8INF, "RECORD"};
    BIO *memory = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    fuzz_require(memory != NULL && PEM_write_bio(memory, labels[kind], "", der, (long)size) >= 0);
    size_t pem_bytes = (size_t)BIO_get_mem_data(memory, &bytes);
    *out = malloc(pem_bytes + 1);
    fuzz_require(*out != NULL);
    memcpy(*out, bytes, pem_bytes);
    BIO_free(memory);
    return pem_bytes;
}

static void write_file(const char *bytes, size_t size)
{
    fuzz_require(ftruncate(file, 0) == 0 && pwrite(file, bytes, size, 0) == (ssize_t)size);
}

/* Checks that the entries of a record that parses are valid. */
static void check_record(const char *bytes, size_t size)
{
    struct pki_record record;
    size_t line;
    if (!pki_record_parse(bytes, size, &record, &line)) {
        fuzz_require(line > 0 && record.entries == NULL && record.count == 0);
        return;
    }
    for (size_t i = 0; i < record.count; i++) {
        const struct pki_entry *entry = &record.entries[i];
        time_t seconds;
        fuzz_require(pki_name_is_valid(entry->name) && pki_record_find(&record, entry->serial) != NULL);
        fuzz_require(pki_time_parse(entry->issued, &seconds) && pki_time_parse(entry->expires, &seconds));
        fuzz_require(pki_entry_state(entry, 0)[0] != '\0');
    }
    pki_record_free(&record);
}

static void check_certificate(const char *bytes, size_t size)
{
    struct pki_entry entry;
    X509 *certificate = pki_parse_certificate(bytes, size);
    if (certificate != NULL && pki_entry_of(certificate, &entry)) {
        time_t seconds;
        fuzz_require(pki_name_is_valid(entry.name) && entry.serial[0] != '\0');
        fuzz_require(strlen(entry.issued) == PKI_TIME_BYTES - 1);
        (void)pki_time_parse(entry.issued, &seconds);
    }
    X509_free(certificate);
}

static void check_request(const char *bytes, size_t size)
{
    char name[NODE_NAME_MAX_BYTES + 1];
    X509_REQ *request = pki_parse_request(bytes, size);
    fuzz_require(request == NULL || !pki_name_of_request(request, name) || pki_name_is_valid(name));
    X509_REQ_free(request);
}

/* Lets commd load its own files, with this file in place of one of them. */
static void load(enum kind kind)
{
    struct quic_options options = usual;
    struct quic_tls *tls = NULL;
    struct error error = {.status = STATUS_OK};
    switch (kind) {
    case KIND_CERTIFICATE:
        options.certificate_path = file_path;
        break;
    case KIND_REVOCATIONS:
        options.revocation_path = file_path;
        break;
    case KIND_KEY:
        options.key_path = file_path;
        break;
    /* the form of an authority's file is that of a certificate; a request has another form */
    case KIND_REQUEST:
    case KIND_RECORD:
    case KIND_COUNT:
        options.authority_path = file_path;
        break;
    }
    if (net_quic_load(&options, &tls, &error) == STATUS_OK) {
        net_quic_unload(tls);
    } else {
        fuzz_require(error.status != STATUS_OK && error.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1 || size > INPUT_MAX_BYTES) {
        return 0;
    }
    start();
    enum kind kind = (enum kind)((data[0] & 0x7fu) % KIND_COUNT);
    char *bytes = NULL;
    size_t used;
    if ((data[0] & 0x80u) != 0) {
        used = put_into_pem(kind, data + 1, size - 1, &bytes);
    } else {
        used = size - 1;
        bytes = malloc(used + 1);
        fuzz_require(bytes != NULL);
        memcpy(bytes, data + 1, used);
    }
    if (kind == KIND_RECORD) {
        check_record(bytes, used);
    } else {
        struct commctl commctl = {.json = (data[0] & 0x40u) != 0};
        struct pki pki = {.commctl = &commctl, .folder = "/nowhere", .name = file_path, .now_s = 1800000000};
        write_file(bytes, used);
        FILE *output = stdout;
        FILE *errors = stderr;
        /* the output of commctl is not checked; the replay needs the real stdout for its own lines */
        stdout = nowhere;
        stderr = nowhere;
        (void)pki_show(&pki);
        stdout = output;
        stderr = errors;
        check_certificate(bytes, used);
        check_request(bytes, used);
        EVP_PKEY_free(pki_parse_key(bytes, used));
        load(kind);
        fuzz_require(ERR_peek_error() == 0); /* no error is left for later calls of OpenSSL */
    }
    free(bytes);
    return 0;
}
