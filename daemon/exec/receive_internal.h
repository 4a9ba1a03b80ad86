#ifndef DAEMON_EXEC_RECEIVE_INTERNAL_H
#define DAEMON_EXEC_RECEIVE_INTERNAL_H

#include <stddef.h>

#include "daemon/exec/exec_internal.h"

/* Shared by receive.c, which reads streams and stores payloads, and receive_match.c, which compares headers.
 */

enum match { MATCH_READY, MATCH_WAIT, MATCH_FAULT };

/* A stream of data. */
struct data_reader {
    struct stream_reader reader;
    struct data_header header;
    bool is_agreement;       /* it has the messages of agreements, without payload; it feeds no lane */
    struct exec_lane *feeds; /* set from its first header to its end; null while parked */
    struct exec_lane *lane;  /* the same, from a message's match until its payload is complete */
    bool dropping;           /* the operation was cancelled: drop the payload */
    uint8_t partial[DTYPE_SIZE_MAX_BYTES]; /* the first bytes of an element that the last piece cut */
    uint32_t partial_have;
    unsigned char *encoded; /* a compressed payload, until it is complete */
    uint64_t encoded_bytes;
    uint32_t source;                        /* its place among the lane's sources */
    uint64_t early_seq;                     /* the last operation whose data went to `early` */
    struct budget_account *encoded_account; /* charged for it; may outlive the communicator */
};

static inline struct data_reader *data_of(struct stream_reader *reader)
{
    return (struct data_reader *)reader;
}

static inline struct exec_comm *comm_of(const struct stream_reader *reader)
{
    return (struct exec_comm *)((char *)reader->group - offsetof(struct exec_comm, streams));
}

/* Whether the message's payload can be taken now. FAULT: no correct node sends it; *error has the text. */
enum match data_match(struct data_reader *incoming, uint64_t now_ns, struct error *error);
/* Sets *error to what the sender did. Returns MATCH_FAULT. */
enum match data_set_fault(const struct data_reader *incoming, const char *what, struct error *error);
/* For struct stream_reader_kind. */
void data_waits(struct stream_reader *reader, const uint8_t *bytes, size_t size);

#endif
