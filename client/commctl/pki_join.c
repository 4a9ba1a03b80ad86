#include <errno.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/commctl/pki.h"
#include "client/commctl/pki_join.h"

#define TURN_TIMEOUT_MS 900000 /* other nodes may be before us: people compare their codes */
#define TURN_NOTICE_MS 2000
#define ISSUE_TIMEOUT_MS 60000

struct joining {
    struct pki *pki;
    struct pki_link link;
    struct pki_exchange exchange;
    const struct pki_owner *owner;
    EVP_PKEY *key;
    X509 *authority;
    struct pki_bytes request;
    struct pki_bytes authority_text;
};

/* Tells both sides why this node ends the exchange. */
static bool end(struct joining *joining, const char *reason)
{
    fprintf(stderr, "commctl pki: %s: %s: nothing was installed\n", joining->link.peer, reason);
    pki_link_refuse(&joining->link, reason);
    return false;
}

/* --- Before the connection --- */

/* commd's default name: the host's, up to the first dot. */
static bool find_name(struct pki *pki, char host[256])
{
    if (pki->name == NULL) {
        host[0] = '\0';
        (void)gethostname(host, 255);
        host[255] = '\0';
        host[strcspn(host, ".")] = '\0';
        pki->name = host;
    }
    if (!pki_name_is_valid(pki->name)) {
        fprintf(stderr, "commctl pki join: the host's name \"%s\" cannot be a node's: give the node's name\n",
                pki->name);
        return false;
    }
    return true;
}

static bool prepare(struct joining *joining, struct pki_owner *storage)
{
    struct pki *pki = joining->pki;
    if (!pki_owner_find(pki, storage, &joining->owner) || !pki_make_node_folder(pki->folder)) {
        return false;
    }
    if (access(pki->folder, W_OK) < 0) { /* now, not when the certificate has been issued */
        fprintf(stderr, "commctl pki: %s: %s\n", pki->folder, strerror(errno));
        return false;
    }
    joining->key = pki_own_key(pki, joining->owner);
    if (joining->key == NULL) {
        return false;
    }
    X509_REQ *request = pki_request_new(joining->key, pki->name);
    bool made = request != NULL && pki_pem_of_request(request, &joining->request) &&
                pki_nonce(joining->exchange.join_nonce);
    X509_REQ_free(request);
    joining->exchange.name = pki->name;
    joining->exchange.request = joining->request.bytes;
    return made || pki_fail_openssl("the request cannot be made") == EXIT_CODE_OK;
}

/* --- The exchange --- */

static bool send_message(struct joining *joining, const struct pki_message *message)
{
    if (pki_link_send(&joining->link, message)) {
        return true;
    }
    fprintf(stderr, "commctl pki: %s: %s\n", joining->link.peer, joining->link.wrong);
    return false;
}

static bool send_commitment(struct joining *joining)
{
    struct pki_message message = {.kind = PKI_MESSAGE_COMMIT};
    return pki_commitment(&joining->exchange, message.hashes[PKI_HASH_COMMITMENT]) &&
           send_message(joining, &message);
}

/* This node must not leave its cluster by mistake. */
static bool authority_is_ours(struct joining *joining)
{
    struct pki_bytes file;
    const char *path = pki_path(joining->pki, "ca", "crt");
    if (access(path, F_OK) < 0 && errno == ENOENT) {
        return true;
    }
    if (!pki_read(path, &file)) {
        return end(joining, "the node cannot read its ca.crt");
    }
    X509 *ours = pki_parse_certificate(file.bytes, file.size);
    free(file.bytes);
    bool same = ours != NULL && X509_cmp(ours, joining->authority) == 0;
    X509_free(ours);
    if (!same) {
        fprintf(stderr,
                "commctl pki: %s is of another authority: move it away if this node changes its cluster\n",
                path);
        return end(joining, "the node has the certificate of another authority");
    }
    return true;
}

static bool receive_authority(struct joining *joining)
{
    struct pki_message message;
    struct pollfd readable = {.fd = joining->link.fd, .events = POLLIN};
    if (pki_wait(&readable, 1, now_ms() + TURN_NOTICE_MS) == PKI_WAITED_TIMED_OUT) {
        puts("connected; waiting for a turn: 'commctl pki admit' serves one connection after the other");
    }
    if (!pki_link_expect(&joining->link, PKI_MESSAGE_AUTHORITY, PKI_MESSAGE_MAX_BYTES, TURN_TIMEOUT_MS,
                         &message)) {
        return false;
    }
    char *text = message.texts[PKI_TEXT_AUTHORITY];
    message.texts[PKI_TEXT_AUTHORITY] = NULL;
    memcpy(joining->exchange.admit_nonce, message.hashes[PKI_HASH_NONCE], PKI_HASH_BYTES);
    memcpy(joining->exchange.list_hash, message.hashes[PKI_HASH_LIST], PKI_HASH_BYTES);
    pki_message_free(&message);
    joining->authority_text = (struct pki_bytes){text, strlen(text)};
    joining->exchange.authority = text;
    joining->authority = pki_parse_certificate(text, strlen(text));
    if (joining->authority == NULL || X509_check_ca(joining->authority) == 0) {
        ERR_clear_error();
        return end(joining, "what was sent is not the certificate of an authority");
    }
    return authority_is_ours(joining);
}

/* Only now: admit has sent its nonce, so it cannot choose it to fit ours. */
static bool send_opening(struct joining *joining, const uint8_t transcript[PKI_HASH_BYTES])
{
    const struct pki *pki = joining->pki;
    struct pki_message message = {
        .kind = PKI_MESSAGE_OPEN,
        .has_proof = pki->secret_count > 0,
        .texts = {
            [PKI_TEXT_NAME] = (char *)joining->exchange.name, [PKI_TEXT_REQUEST] = joining->request.bytes}};
    memcpy(message.hashes[PKI_HASH_NONCE], joining->exchange.join_nonce, PKI_HASH_BYTES);
    return (!message.has_proof ||
            pki_proof(pki->secrets[0], "join", transcript, message.hashes[PKI_HASH_PROOF])) &&
           send_message(joining, &message);
}

static bool agree(struct joining *joining)
{
    struct pki_person person;
    const struct pki *pki = joining->pki;
    struct pki_comparison comparison = {.link = &joining->link,
                                        .person = &person,
                                        .other = "the authority",
                                        .role = "join",
                                        .secret = pki->secret_count > 0 ? pki->secrets[0] : NULL};
    pki_person_init(&person);
    if (!send_commitment(joining) || !receive_authority(joining) ||
        !pki_transcript(&joining->exchange, comparison.transcript) ||
        !send_opening(joining, comparison.transcript)) {
        return false;
    }
    printf("%s for %s: ", joining->link.peer, joining->exchange.name);
    return pki_compare(&comparison);
}

/* --- What came --- */

/* Returns null, or what is wrong with the certificate. */
static const char *certificate_wrong(const struct joining *joining, X509 *certificate)
{
    char name[NODE_NAME_MAX_BYTES + 1];
    if (certificate == NULL) {
        return "what was sent is not a certificate";
    }
    if (X509_verify(certificate, X509_get0_pubkey(joining->authority)) != 1) {
        return "the certificate is not signed by the authority";
    }
    if (EVP_PKEY_eq(X509_get0_pubkey(certificate), joining->key) != 1) {
        return "the certificate is not for this node's key";
    }
    if (!pki_name_of_certificate(certificate, name) || strcmp(name, joining->exchange.name) != 0) {
        return "the certificate is of another name";
    }
    if (X509_cmp_time(X509_get0_notBefore(certificate), NULL) > 0 ||
        X509_cmp_time(X509_get0_notAfter(certificate), NULL) < 0) {
        return "the certificate is not valid now: does this node's clock differ from the authority's?";
    }
    return NULL;
}

static const char *revocations_wrong(const struct joining *joining, X509 *certificate, const char *text)
{
    X509_REVOKED *revoked = NULL;
    uint8_t hash[PKI_HASH_BYTES];
    const char *wrong = NULL;
    X509_CRL *list = pki_parse_revocations(text, strlen(text));
    if (!pki_hash(text, strlen(text), hash) || memcmp(hash, joining->exchange.list_hash, sizeof hash) != 0) {
        wrong = "the revocation list is not the one that was announced";
    } else if (list == NULL || X509_CRL_verify(list, X509_get0_pubkey(joining->authority)) != 1) {
        wrong = "the revocation list is not signed by the authority";
    } else if (X509_CRL_get0_by_cert(list, &revoked, certificate) == 1) {
        wrong = "the certificate is on the revocation list";
    }
    X509_CRL_free(list);
    return wrong;
}

/* The code does not cover the certificate, which did not exist yet, but the authority's signature does. So
 * what is installed is the certificate alone, without anything that may stand beside it in the text. */
static const char *check(const struct joining *joining, const struct pki_message *message,
                         struct pki_bytes *certificate_text)
{
    const char *text = message->texts[PKI_TEXT_CERTIFICATE];
    X509 *certificate = pki_parse_certificate(text, strlen(text));
    const char *wrong = certificate_wrong(joining, certificate);
    if (wrong == NULL) {
        wrong = revocations_wrong(joining, certificate, message->texts[PKI_TEXT_REVOCATIONS]);
    }
    if (wrong == NULL && !pki_pem_of_certificate(certificate, certificate_text)) {
        wrong = "the certificate cannot be put into PEM";
    }
    X509_free(certificate);
    ERR_clear_error();
    return wrong;
}

/* A key that was made without an owner for it is written again, with the right one. */
static bool key_needs_owner(struct joining *joining, const char *path, struct pki_bytes *key)
{
    struct stat old;
    return joining->owner != NULL && lstat(path, &old) == 0 && S_ISREG(old.st_mode) &&
           (old.st_uid != joining->owner->uid || (old.st_mode & 077) != 0) && pki_read(path, key);
}

static bool install(struct joining *joining, const char *certificate, const char *list)
{
    struct pki *pki = joining->pki;
    struct pki_bytes key = {0};
    const struct {
        const char *name, *extension, *text;
    } sent[3] = {
        {"ca", "crt", joining->authority_text.bytes}, {"ca", "crl", list}, {pki->name, "crt", certificate}};
    size_t count = 0;
    struct pki_file *files = calloc(4, sizeof *files);
    if (files == NULL) {
        return end(joining, "no memory");
    }
    for (; count < 3; count++) {
        files[count].content = (struct pki_bytes){(char *)sent[count].text, strlen(sent[count].text)};
        files[count].mode = 0644;
        snprintf(files[count].path, sizeof files[count].path, "%s",
                 pki_path(pki, sent[count].name, sent[count].extension));
    }
    if (key_needs_owner(joining, pki_path(pki, pki->name, "key"), &key)) {
        files[count] = (struct pki_file){.content = key, .mode = 0600, .owner = joining->owner};
        snprintf(files[count].path, sizeof files[count].path, "%s", pki->path);
        count++;
    }
    bool installed = pki_install(files, count) || end(joining, "the node cannot write its files");
    if (key.bytes != NULL) {
        explicit_bzero(key.bytes, key.size);
    }
    free(key.bytes);
    free(files);
    return installed;
}

static bool receive_certificate(struct joining *joining)
{
    struct pki_message message;
    const struct pki_message done = {.kind = PKI_MESSAGE_INSTALLED};
    if (!pki_link_expect(&joining->link, PKI_MESSAGE_CERTIFICATE, PKI_CERTIFICATE_MAX_BYTES, ISSUE_TIMEOUT_MS,
                         &message)) {
        return false;
    }
    struct pki_bytes certificate = {0};
    const char *wrong = check(joining, &message, &certificate);
    bool installed = wrong == NULL ? install(joining, certificate.bytes, message.texts[PKI_TEXT_REVOCATIONS])
                                   : end(joining, wrong);
    free(certificate.bytes);
    pki_message_free(&message);
    if (installed) {
        (void)pki_link_send(&joining->link,
                            &done); /* the files are in place, whether admit hears it or not */
    }
    return installed;
}

static void say_next(struct pki *pki, const struct pki_owner *owner)
{
    pki_owner_advise(pki, owner, pki_path(pki, pki->name, "key"));
    if (strcmp(pki->folder, PKI_NODE_FOLDER) != 0) {
        printf("in commd.conf: certificate = \"%s/%s.crt\"; key = \"%s/%s.key\"; authority = \"%s/ca.crt\"; "
               "revocation_list = \"%s/ca.crl\";\n",
               pki->folder, pki->name, pki->folder, pki->name, pki->folder, pki->folder);
    }
    puts("next: list every node in commd.conf, the same on all nodes; then 'systemctl restart commd' here,\n"
         "and 'systemctl reload commd' on nodes that are in the cluster already");
}

enum exit_code pki_join(struct pki *pki)
{
    char host[256];
    struct pki_owner storage;
    struct joining joining = {.pki = pki, .link = {.fd = -1}};
    setlinebuf(stdout); /* a script reads the code from a pipe */
    bool joined = find_name(pki, host) && prepare(&joining, &storage);
    joined = joined && pki_link_connect(pki->address, &joining.link) && agree(&joining) &&
             receive_certificate(&joining);
    pki_link_close(&joining.link);
    if (joined) {
        say_next(pki, joining.owner);
    }
    free(joining.authority_text.bytes);
    free(joining.request.bytes);
    X509_free(joining.authority);
    EVP_PKEY_free(joining.key);
    if (!joined && pki_signal() != 0) {
        return (enum exit_code)(EXIT_CODE_SIGNAL + pki_signal());
    }
    return joined ? EXIT_CODE_OK : EXIT_CODE_FAILURE;
}
