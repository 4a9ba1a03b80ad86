#ifndef DAEMON_NET_SRV_H
#define DAEMON_NET_SRV_H

#include <stddef.h>
#include <stdint.h>

#include "daemon/base/error.h"

/* SRV records (RFC 2782): where a service runs, asked of the machine's name servers. Any thread. */

#define SRV_TARGET_MAX_BYTES 253

struct srv_record {
    char target[SRV_TARGET_MAX_BYTES + 1]; /* without the last dot */
    uint16_t port;
};

/* All zero: no records. */
struct srv_answer {
    struct srv_record *records;
    size_t count;
    uint32_t ttl_s; /* the shortest of the records */
};

/*
 * Reads a DNS message. Priority and weight are ignored. A record whose target is the root says that there is
 * no such service, so it is left out. UNREACHABLE if the message is malformed, cut short, reports an error,
 * or has no records; NO_MEMORY. The caller calls srv_answer_free after STATUS_OK.
 */
enum status srv_parse(const uint8_t *message, size_t size_bytes, struct srv_answer *out,
                      struct error *error) COMM_MUST_USE;

/*
 * Asks for a name, as resolv.conf(5) says: which servers, how long, which domains. Asks again by TCP if an
 * answer is cut short. May block for many seconds. Errors as of srv_parse.
 */
enum status srv_lookup(const char *name, struct srv_answer *out, struct error *error) COMM_MUST_USE;

void srv_answer_free(struct srv_answer *answer);

#endif
