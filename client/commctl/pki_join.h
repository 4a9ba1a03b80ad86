#ifndef CLIENT_COMMCTL_PKI_JOIN_H
#define CLIENT_COMMCTL_PKI_JOIN_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "client/commctl/pki.h"

/*
 * How a new node gets its certificate: `commctl pki join` on the node, `commctl pki admit` where the
 * authority's key is. They talk over TCP without encryption: nothing that travels is secret. People compare a
 * short code, which both sides show. The code authenticates the request to the authority, and the authority
 * to the node (Vaudenay, "Secure Communications over Insecure Channels Based on Short Authenticated Strings",
 * CRYPTO 2005; ZRTP uses it likewise: RFC 6189, 4.4.1.1 and 4.5).
 *
 *   join                                     admit
 *   COMMIT: a hash of nonce, name, request   ->
 *                                            <- AUTHORITY: certificate, nonce, hash of the revocation list
 *   OPEN: nonce, name, request               ->
 *   shows the code; a person compares it     shows the code; a person compares it
 *   CONFIRM                                  -> and <- CONFIRM
 *                                            <- CERTIFICATE: the node's certificate, the revocation list
 *   INSTALLED                                ->
 *
 * Each side can send REFUSE instead, with the reason, and the exchange ends.
 *
 * Why an attacker between the two has one guess for each exchange: The code is a hash of all that matters:
 * request, name, authority, revocation list, and a nonce of each side. An attacker who knew both nonces could
 * search for a request or an authority that gives the same code. COMMIT prevents that for false requests: it
 * binds the sender to nonce, name and request before admit shows its nonce. The order of AUTHORITY and OPEN
 * prevents it for false authorities: admit shows certificate and nonce before join opens its own nonce. When
 * the attacker learns the last nonce, his messages to both sides are fixed. So the two codes are equal with a
 * probability of 1 in 10^8. A pause after each failed exchange (pki_admit.c) keeps him from trying often.
 */

/* --- pki_code.c: the commitment, the code, and proofs of a code that was agreed in advance. --- */

#define PKI_HASH_BYTES 32 /* SHA-256 */
#define PKI_CODE_BYTES 10 /* "1234-5678" and the zero byte */
/* Of a code that was agreed in advance: an attacker who sees a proof can try all short ones. */
#define PKI_SECRET_MIN_BYTES 20

/* What both sides must see alike. Strings belong to the caller; texts are PEM as it is sent. */
struct pki_exchange {
    const char *name;
    const char *request;
    const char *authority;
    uint8_t join_nonce[PKI_HASH_BYTES];
    uint8_t admit_nonce[PKI_HASH_BYTES];
    uint8_t list_hash[PKI_HASH_BYTES]; /* of the revocation list: an old one is signed, too, and lacks some */
};
/* All return false if OpenSSL fails. */
bool pki_nonce(uint8_t out[PKI_HASH_BYTES]);
bool pki_hash(const char *bytes, size_t size, uint8_t out[PKI_HASH_BYTES]);
/* Binds join to join_nonce, name and request. Does not use the other fields. */
bool pki_commitment(const struct pki_exchange *exchange, uint8_t out[PKI_HASH_BYTES]);
bool pki_transcript(const struct pki_exchange *exchange, uint8_t out[PKI_HASH_BYTES]);
/* Proves to the other side that this side knows `secret` and sees the same exchange. role: of the sender. */
bool pki_proof(const char *secret, const char *role, const uint8_t transcript[PKI_HASH_BYTES],
               uint8_t out[PKI_HASH_BYTES]);
/* Writes the code that people compare: the transcript modulo 10^8. */
void pki_code_text(const uint8_t transcript[PKI_HASH_BYTES], char out[PKI_CODE_BYTES]);

/* --- pki_message.c: one JSON object for each step. --- */

#define PKI_MESSAGE_MAX_BYTES (64u << 10)    /* of a message before people have confirmed */
#define PKI_CERTIFICATE_MAX_BYTES (4u << 20) /* of CERTIFICATE, for the revocation list */
#define PKI_MESSAGE_VERSION 1

enum pki_message_kind {
    PKI_MESSAGE_COMMIT,
    PKI_MESSAGE_AUTHORITY,
    PKI_MESSAGE_OPEN,
    PKI_MESSAGE_CONFIRM,
    PKI_MESSAGE_CERTIFICATE,
    PKI_MESSAGE_INSTALLED,
    PKI_MESSAGE_REFUSE,
};
#define PKI_MESSAGE_COUNT 7

enum pki_hash_field { PKI_HASH_COMMITMENT, PKI_HASH_NONCE, PKI_HASH_LIST, PKI_HASH_PROOF };
#define PKI_HASH_COUNT 4
enum pki_text_field {
    PKI_TEXT_NAME,
    PKI_TEXT_REQUEST,
    PKI_TEXT_AUTHORITY,
    PKI_TEXT_CERTIFICATE,
    PKI_TEXT_REVOCATIONS,
    PKI_TEXT_REASON,
};
#define PKI_TEXT_COUNT 6

struct pki_message {
    enum pki_message_kind kind;
    bool has_proof; /* OPEN and CONFIRM can be without one */
    uint8_t hashes[PKI_HASH_COUNT][PKI_HASH_BYTES];
    char *texts[PKI_TEXT_COUNT]; /* null: this kind has no such text */
};
/* Returns null, or what is wrong with the bytes; then *out is empty. Free *out with pki_message_free(). A
 * reason gets only printable characters, because it is shown on a terminal. */
const char *pki_message_parse(const char *bytes, size_t size, struct pki_message *out);
/* Returns the JSON text, without a zero byte; null if memory is short. The caller frees it. Texts that the
 * kind needs must be there. */
char *pki_message_format(const struct pki_message *message, size_t *size);
void pki_message_free(struct pki_message *message);

/* --- pki_wait.c: waits that SIGINT, SIGTERM and SIGHUP end. --- */

/* From here on, these signals interrupt pki_wait() and nothing else, so no file is left half-written. */
void pki_signals_catch(void);
/* Returns the signal that came, or 0. */
int pki_signal(void);

enum pki_waited { PKI_WAITED_READY, PKI_WAITED_TIMED_OUT, PKI_WAITED_INTERRUPTED };
/* Waits until one of the descriptors is ready. Negative descriptors are left out. */
enum pki_waited pki_wait(struct pollfd *descriptors, nfds_t count, int64_t deadline_ms);

/* --- pki_link.c: messages over TCP, each after its size of 4 bytes, the most significant first. --- */

#define PKI_PORT_DEFAULT "7399" /* below the TCP and UDP ports of commd's rails, 7400 to 7415 */
#define PKI_ADDRESS_MAX_BYTES 255
#define PKI_STEP_TIMEOUT_MS 10000 /* for one message, and for a connection */

struct pki_link {
    int fd;            /* -1: none */
    char peer[80];     /* its address in numbers */
    const char *wrong; /* why the last call failed, for people: "closed the connection" */
};
/* Splits "HOST", "HOST:PORT", "[IPv6]:PORT" or an IPv6 address. Returns false if it is none of these. */
bool pki_address_split(const char *text, char host[PKI_ADDRESS_MAX_BYTES + 1], char port[6]);
/* Both print failures. The first resolves the name, calls pki_signals_catch(), and connects. The second
 * returns a descriptor, or -1; at most PKI_WAITING_MAX connections wait there. text: null or "": all
 * addresses. */
bool pki_link_connect(const char *text, struct pki_link *out);
#define PKI_WAITING_MAX 8
int pki_link_listen(const char *text, char bound[80]);
bool pki_link_accept(int listener, struct pki_link *out);
void pki_link_close(struct pki_link *link);
/* Both set link->wrong on failure. The second takes any kind; free the message with pki_message_free(). */
bool pki_link_send(struct pki_link *link, const struct pki_message *message);
bool pki_link_receive(struct pki_link *link, size_t max_bytes, int64_t timeout_ms, struct pki_message *out);
/* Says whether what came is a message of that kind. Otherwise prints what it is, or the reason in REFUSE, and
 * frees it. received: what pki_link_receive() returned. */
bool pki_link_is(const struct pki_link *link, bool received, enum pki_message_kind kind,
                 struct pki_message *message);
/* Receives, and fails for another kind than the expected one. Prints why. */
bool pki_link_expect(struct pki_link *link, enum pki_message_kind kind, size_t max_bytes, int64_t timeout_ms,
                     struct pki_message *out);
/* Tells the other side why this side ends the exchange, and waits a second at most until it has closed the
 * connection. Nothing can be sent afterwards. Failures do not matter. */
void pki_link_refuse(struct pki_link *link, const char *reason);

/* --- pki_compare.c: the code, the person, and the other side's answer. --- */

#define PKI_PERSON_TIMEOUT_MS 300000

/* Reads lines of standard input. On a terminal the answer is y or n; else a line has to be the code itself,
 * so that a script must have read it from the other side. */
struct pki_person {
    bool terminal;
    bool ended; /* nothing more can be read */
    bool overlong;
    bool asked; /* a question is on the terminal, and the cursor behind it */
    size_t used;
    char line[64];
};

struct pki_comparison {
    struct pki_link *link;
    struct pki_person *person;
    const char *other;  /* how the other side is called here: a node's name, or "the authority" */
    const char *role;   /* of this side: "join" or "admit" */
    const char *secret; /* agreed in advance; null: a person answers */
    bool secret_proven; /* the other side has proven already that it knows the secret */
    uint8_t transcript[PKI_HASH_BYTES];
};
void pki_person_init(struct pki_person *person);
/* Shows the code; returns true when both sides have confirmed. Otherwise tells the other side, and prints
 * why. */
bool pki_compare(struct pki_comparison *comparison);
/* Checks the other side's proof, in constant time. */
bool pki_proof_is_right(const struct pki_message *message, const char *secret, const char *role,
                        const uint8_t transcript[PKI_HASH_BYTES]);

#endif
