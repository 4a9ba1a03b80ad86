#include <errno.h>
#include <openssl/err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/commctl/pki.h"
#include "client/commctl/pki_join.h"

/*
 * The pause after an exchange that failed; it doubles with each. After AUTHORITY, an attacker knows which
 * code admit is going to show. He can leave before a person sees it, and try again until it is the code that
 * he needs. With the pause, he has about 3,000 tries of 10^8 in a day.
 */
#define PAUSE_MIN_MS 1000
#define PAUSE_MAX_MS 30000
/* join sends its first message as soon as it is connected, and waits for nobody until the codes are shown. */
#define FIRST_TIMEOUT_MS 5000
#define INSTALL_TIMEOUT_MS 60000

enum admit_result {
    ADMIT_DONE,
    ADMIT_NOTHING, /* it ended before this side's nonce was sent: nothing can have been guessed */
    ADMIT_FAILED,
};

struct admission {
    struct pki *pki;
    struct pki_link link;
    struct pki_person person;
    struct pki_bytes authority; /* the certificate, in PEM */
    struct pki_exchange exchange;
    struct pki_message opened;
    EVP_PKEY *key; /* of the request */
    enum pki_admission decision;
};

/* --- The exchange --- */

static bool receive_commitment(struct admission *admission, uint8_t commitment[PKI_HASH_BYTES])
{
    struct pki_message message;
    if (!pki_link_expect(&admission->link, PKI_MESSAGE_COMMIT, PKI_MESSAGE_MAX_BYTES, FIRST_TIMEOUT_MS,
                         &message)) {
        pki_link_refuse(&admission->link, "expected a commitment of 'commctl pki join'");
        return false;
    }
    memcpy(commitment, message.hashes[PKI_HASH_COMMITMENT], PKI_HASH_BYTES);
    pki_message_free(&message);
    return true;
}

static bool send_authority(struct admission *admission)
{
    struct pki_exchange *exchange = &admission->exchange;
    struct pki_message message = {.kind = PKI_MESSAGE_AUTHORITY,
                                  .texts = {[PKI_TEXT_AUTHORITY] = admission->authority.bytes}};
    struct pki_bytes list;
    if (!pki_read(pki_path(admission->pki, "ca", "crl"), &list)) {
        pki_link_refuse(&admission->link, "the authority cannot read its revocation list");
        return false;
    }
    bool hashed = pki_hash(list.bytes, list.size, exchange->list_hash);
    free(list.bytes);
    memcpy(message.hashes[PKI_HASH_LIST], exchange->list_hash, PKI_HASH_BYTES);
    memcpy(message.hashes[PKI_HASH_NONCE], exchange->admit_nonce, PKI_HASH_BYTES);
    if (hashed && pki_link_send(&admission->link, &message)) {
        return true;
    }
    fprintf(stderr, "commctl pki: %s: %s\n", admission->link.peer,
            hashed ? admission->link.wrong : "no hash can be made");
    return false;
}

/* Receives what the commitment binds, and checks that it is that. Otherwise join could have chosen its nonce
 * or its request after it saw our nonce. */
static bool receive_opening(struct admission *admission, const uint8_t commitment[PKI_HASH_BYTES])
{
    struct pki_exchange *exchange = &admission->exchange;
    struct pki_message *opened = &admission->opened;
    uint8_t expected[PKI_HASH_BYTES];
    if (!pki_link_expect(&admission->link, PKI_MESSAGE_OPEN, PKI_MESSAGE_MAX_BYTES, PKI_STEP_TIMEOUT_MS,
                         opened)) {
        return false;
    }
    exchange->name = opened->texts[PKI_TEXT_NAME];
    exchange->request = opened->texts[PKI_TEXT_REQUEST];
    memcpy(exchange->join_nonce, opened->hashes[PKI_HASH_NONCE], PKI_HASH_BYTES);
    if (!pki_commitment(exchange, expected) || memcmp(expected, commitment, PKI_HASH_BYTES) != 0) {
        fprintf(stderr, "commctl pki: %s: its request is not the one that it committed to: refused\n",
                admission->link.peer);
        pki_link_refuse(&admission->link, "the request is not the one that was committed to");
        return false;
    }
    return true;
}

/* Returns false, and tells both sides why, if the request can get no certificate. */
static bool check_admission(struct admission *admission)
{
    struct pki *pki = admission->pki;
    char reason[160];
    pki->name = admission->exchange.name;
    pki->now_s = time(NULL);
    admission->decision = pki_admission_find(pki, admission->key);
    switch (admission->decision) {
    case PKI_ADMISSION_ISSUE:
    case PKI_ADMISSION_SEND_AGAIN:
        return true;
    case PKI_ADMISSION_TAKEN:
        snprintf(reason, sizeof reason, "the name %s is taken ('commctl pki admit --renew' issues a new one)",
                 pki->name);
        break;
    case PKI_ADMISSION_REVOKED:
        snprintf(reason, sizeof reason,
                 "this key of %s was revoked (join makes a new key if the old is gone)", pki->name);
        break;
    case PKI_ADMISSION_UNKNOWN:
        snprintf(reason, sizeof reason, "the authority's record cannot be read");
        break;
    }
    fprintf(stderr, "commctl pki: %s: refused: %s\n", admission->link.peer, reason);
    pki_link_refuse(&admission->link, reason);
    return false;
}

/* A code that was agreed in advance counts only if join has proven that it knows it. */
static bool compare(struct admission *admission)
{
    const struct pki *pki = admission->pki;
    const char *name = admission->exchange.name;
    struct pki_comparison comparison = {
        .link = &admission->link, .person = &admission->person, .other = name, .role = "admit"};
    if (!pki_transcript(&admission->exchange, comparison.transcript)) {
        return false;
    }
    for (size_t i = 0; i < pki->secret_count && comparison.secret == NULL; i++) {
        if (pki_proof_is_right(&admission->opened, pki->secrets[i], "join", comparison.transcript)) {
            comparison.secret = pki->secrets[i];
            comparison.secret_proven = true;
        }
    }
    printf("%s at %s asks for a certificate: ", name, admission->link.peer);
    if (admission->opened.has_proof && !comparison.secret_proven) {
        puts("its --code is none of --yes-code");
        pki_link_refuse(&admission->link, "--code is none of the codes of 'commctl pki admit --yes-code'");
        return false;
    }
    return pki_compare(&comparison);
}

/* --- The certificate --- */

static bool read_text(const char *path, struct pki_message *message, enum pki_text_field field)
{
    struct pki_bytes file;
    if (!pki_read(path, &file)) {
        return false;
    }
    message->texts[field] = file.bytes; /* a zero byte follows */
    return true;
}

/* The code that people compared was of these two. */
static bool authority_is_the_same(const struct admission *admission, const struct pki_authority *authority,
                                  const char *list)
{
    uint8_t hash[PKI_HASH_BYTES];
    struct pki_bytes text;
    bool made = pki_pem_of_certificate(authority->certificate, &text);
    bool same = made && strcmp(text.bytes, admission->authority.bytes) == 0 &&
                pki_hash(list, strlen(list), hash) &&
                memcmp(hash, admission->exchange.list_hash, sizeof hash) == 0;
    free(text.bytes);
    if (!same) {
        fprintf(stderr, "commctl pki: %s: ca.crt or ca.crl has changed meanwhile: nothing is issued\n",
                admission->pki->folder);
    }
    return same;
}

/* The authority's key is in memory only here, while no message of a stranger is being read. */
static bool make_certificate(struct admission *admission, struct pki_message *message)
{
    struct pki *pki = admission->pki;
    struct pki_authority authority = {0};
    bool made = false;
    int lock = pki_lock(pki->folder);
    if (lock >= 0 && pki_authority_load(pki, &authority) && check_admission(admission) &&
        read_text(pki_path(pki, "ca", "crl"), message, PKI_TEXT_REVOCATIONS) &&
        authority_is_the_same(admission, &authority, message->texts[PKI_TEXT_REVOCATIONS])) {
        made = true;
        if (admission->decision == PKI_ADMISSION_SEND_AGAIN) {
            printf("%s has a certificate for this key already: it gets that one again\n", pki->name);
        } else {
            made = pki_issue_to(pki, &authority, admission->key, NULL, PKI_WRITE_REPLACE) == EXIT_CODE_OK;
        }
    }
    pki_authority_free(&authority);
    if (lock >= 0) {
        close(lock);
    }
    return made && read_text(pki_path(pki, pki->name, "crt"), message, PKI_TEXT_CERTIFICATE);
}

static bool send_certificate(struct admission *admission)
{
    struct pki_message message = {.kind = PKI_MESSAGE_CERTIFICATE};
    struct pki_message installed;
    const char *name = admission->exchange.name;
    if (!make_certificate(admission, &message)) {
        pki_link_refuse(&admission->link, "the authority cannot issue the certificate");
        pki_message_free(&message);
        return false;
    }
    bool sent = pki_link_send(&admission->link, &message);
    pki_message_free(&message);
    if (!sent) {
        fprintf(stderr, "commctl pki: %s: %s\n", name, admission->link.wrong);
    }
    if (sent && pki_link_expect(&admission->link, PKI_MESSAGE_INSTALLED, PKI_MESSAGE_MAX_BYTES,
                                INSTALL_TIMEOUT_MS, &installed)) {
        pki_message_free(&installed);
        printf("%s has its certificate\n", name);
        return true;
    }
    fprintf(
        stderr,
        "commctl pki: %s did not install its certificate, which was issued: 'commctl pki join' there gets it "
        "again; or revoke it\n",
        name);
    return false;
}

static enum admit_result admit_one(struct admission *admission)
{
    uint8_t commitment[PKI_HASH_BYTES];
    enum admit_result result = ADMIT_NOTHING;
    if (!receive_commitment(admission, commitment) || !pki_nonce(admission->exchange.admit_nonce)) {
        return result;
    }
    result = ADMIT_FAILED; /* from here on, join can compute the code */
    if (!send_authority(admission) || !receive_opening(admission, commitment)) {
        return result;
    }
    admission->key = pki_request_key(admission->link.peer, admission->exchange.request,
                                     strlen(admission->exchange.request), admission->exchange.name);
    if (admission->key == NULL) {
        pki_link_refuse(&admission->link, "the request is not a valid one of that name");
    } else if (check_admission(admission) && compare(admission) && send_certificate(admission)) {
        result = ADMIT_DONE;
    }
    return result;
}

/* --- One after the other --- */

static enum admit_result serve_next(struct admission *admission, int listener)
{
    enum admit_result result = ADMIT_NOTHING;
    struct pollfd readable = {.fd = listener, .events = POLLIN};
    if (pki_wait(&readable, 1, now_ms() + PKI_PERSON_TIMEOUT_MS) != PKI_WAITED_READY ||
        !pki_link_accept(listener, &admission->link)) {
        return result;
    }
    result = admit_one(admission);
    pki_link_close(&admission->link);
    EVP_PKEY_free(admission->key);
    admission->key = NULL;
    pki_message_free(&admission->opened);
    admission->pki->name = NULL;
    admission->exchange = (struct pki_exchange){.authority = admission->authority.bytes};
    ERR_clear_error();
    return result;
}

static enum exit_code serve(struct admission *admission, int listener)
{
    const struct pki *pki = admission->pki;
    const struct pki_person *person = &admission->person;
    int64_t pause_ms = PAUSE_MIN_MS;
    for (long admitted = 0; pki->node_count == 0 || admitted < pki->node_count;) {
        switch (serve_next(admission, listener)) {
        case ADMIT_DONE:
            admitted++;
            pause_ms = PAUSE_MIN_MS;
            break;
        case ADMIT_FAILED:
            (void)pki_wait(NULL, 0, now_ms() + pause_ms);
            pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
            break;
        case ADMIT_NOTHING:
            break;
        }
        if (pki_signal() != 0) {
            printf("\nno more nodes are admitted\n");
            return (enum exit_code)(EXIT_CODE_SIGNAL + pki_signal());
        }
        if (person->ended && person->used == 0 && pki->secret_count == 0 &&
            (pki->node_count == 0 || admitted < pki->node_count)) {
            fputs("commctl pki: standard input has ended, so nobody can compare codes (--yes-code can be "
                  "given)\n",
                  stderr);
            return EXIT_CODE_FAILURE;
        }
    }
    return EXIT_CODE_OK;
}

/* Authorities that were made before there were revocation lists have none. */
static bool make_list(struct pki *pki, const struct pki_authority *authority)
{
    struct pki_record record = {0};
    if (access(pki_path(pki, "ca", "crl"), F_OK) == 0 || errno != ENOENT) {
        return true;
    }
    bool made = pki_record_load(pki, &record) && pki_revocations_store(pki, authority, &record);
    pki_record_free(&record);
    return made;
}

/* Fails now rather than later if the authority's key is not here. */
static bool load_authority(struct pki *pki, struct pki_bytes *out)
{
    struct pki_authority authority;
    int lock = pki_lock(pki->folder);
    if (lock < 0) {
        return false;
    }
    bool loaded = pki_authority_load(pki, &authority) && make_list(pki, &authority);
    bool made = loaded && pki_pem_of_certificate(authority.certificate, out);
    pki_authority_free(&authority);
    close(lock);
    if (loaded && !made) {
        fputs("commctl pki: the authority's certificate cannot be put into PEM\n", stderr);
    }
    return made;
}

enum exit_code pki_admit(struct pki *pki)
{
    char bound[80] = "";
    struct admission admission = {.pki = pki, .link = {.fd = -1}};
    setlinebuf(stdout); /* a script reads the code from a pipe */
    if (!load_authority(pki, &admission.authority)) {
        return EXIT_CODE_FAILURE;
    }
    enum exit_code code = EXIT_CODE_FAILURE;
    int listener = pki_link_listen(pki->address, bound);
    if (listener >= 0) {
        admission.exchange.authority = admission.authority.bytes;
        pki_person_init(&admission.person);
        pki_signals_catch();
        const char *port = strrchr(bound, ':');
        bool usual = port != NULL && strcmp(port, ":" PKI_PORT_DEFAULT) == 0;
        printf("waiting for nodes at %s; on each: commctl pki join THIS_MACHINE%s\n", bound,
               port == NULL || usual ? "" : port);
        code = serve(&admission, listener);
        close(listener);
    }
    free(admission.authority.bytes);
    return code;
}
