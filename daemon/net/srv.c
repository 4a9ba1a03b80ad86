#include "daemon/net/srv.h"

#include <arpa/nameser.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <resolv.h>
#include <stdlib.h>
#include <string.h>

#define SRV_FIXED_BYTES 6 /* priority, weight, port */
#define SRV_PORT_BYTES_BEFORE 4
#define MESSAGE_MAX_BYTES 65535

static enum status read_record(const ns_msg *message, const ns_rr *record, struct srv_answer *out,
                               struct error *error)
{
    const uint8_t *data = ns_rr_rdata(*record);
    struct srv_record *next = &out->records[out->count];
    if (ns_rr_rdlen(*record) <= SRV_FIXED_BYTES) {
        return error_set(error, STATUS_UNREACHABLE, "an SRV record of %u bytes; expected more than %d",
                         ns_rr_rdlen(*record), SRV_FIXED_BYTES);
    }
    int used = ns_name_uncompress(ns_msg_base(*message), data + ns_rr_rdlen(*record), data + SRV_FIXED_BYTES,
                                  next->target, sizeof next->target);
    if (used < 0 || used + SRV_FIXED_BYTES != ns_rr_rdlen(*record)) {
        return error_set(error, STATUS_UNREACHABLE, "an SRV record with a malformed target");
    }
    next->port = (uint16_t)ns_get16(data + SRV_PORT_BYTES_BEFORE);
    if (next->target[0] != '\0' && strcmp(next->target, ".") != 0) {
        out->ttl_s = ns_rr_ttl(*record) < out->ttl_s ? ns_rr_ttl(*record) : out->ttl_s;
        out->count++;
    }
    return STATUS_OK;
}

static enum status read_records(ns_msg *message, struct srv_answer *out, struct error *error)
{
    enum status status = STATUS_OK;
    int count = ns_msg_count(*message, ns_s_an);
    for (int i = 0; i < count && status == STATUS_OK; i++) {
        ns_rr record;
        if (ns_parserr(message, ns_s_an, i, &record) < 0) {
            return error_set(error, STATUS_UNREACHABLE, "a malformed record");
        }
        if (ns_rr_type(record) == ns_t_srv && ns_rr_class(record) == ns_c_in) {
            status = read_record(message, &record, out, error);
        }
    }
    if (status == STATUS_OK && out->count == 0) {
        status = error_set(error, STATUS_UNREACHABLE, "the answer has no SRV records");
    }
    return status;
}

enum status srv_parse(const uint8_t *bytes, size_t size_bytes, struct srv_answer *out, struct error *error)
{
    ns_msg message;
    *out = (struct srv_answer){.ttl_s = INT32_MAX};
    if (size_bytes > MESSAGE_MAX_BYTES || ns_initparse(bytes, (int)size_bytes, &message) < 0) {
        return error_set(error, STATUS_UNREACHABLE, "a malformed answer of %zu bytes", size_bytes);
    }
    if (ns_msg_getflag(message, ns_f_qr) == 0 || ns_msg_getflag(message, ns_f_rcode) != ns_r_noerror) {
        return error_set(error, STATUS_UNREACHABLE, "the name server reports error %d",
                         ns_msg_getflag(message, ns_f_rcode));
    }
    if (ns_msg_getflag(message, ns_f_tc) != 0) {
        return error_set(error, STATUS_UNREACHABLE, "the answer is cut short");
    }
    /* ns_initparse has seen that the message has as many records. */
    out->records = calloc((size_t)ns_msg_count(message, ns_s_an) + 1, sizeof *out->records);
    if (out->records == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "no memory for the answer");
    }
    enum status status = read_records(&message, out, error);
    if (status != STATUS_OK) {
        srv_answer_free(out);
    }
    return status;
}

static const char *why_not(int resolver_error)
{
    return resolver_error == HOST_NOT_FOUND ? "there is no such name"
           : resolver_error == NO_DATA      ? "the name has no SRV records"
           : resolver_error == TRY_AGAIN    ? "no name server answers"
                                            : "the name servers cannot answer";
}

enum status srv_lookup(const char *name, struct srv_answer *out, struct error *error)
{
    struct __res_state state = {0};
    struct error why;
    uint8_t *bytes = malloc(MESSAGE_MAX_BYTES);
    if (bytes == NULL) {
        return error_set(error, STATUS_NO_MEMORY, "SRV records of %s: no memory for the answer", name);
    }
    enum status status;
    if (res_ninit(&state) != 0) {
        free(bytes);
        return error_set(error, STATUS_UNREACHABLE, "SRV records of %s: /etc/resolv.conf cannot be read",
                         name);
    }
    state.options |= RES_USE_EDNS0;
    int size_bytes = res_nsearch(&state, name, ns_c_in, ns_t_srv, bytes, MESSAGE_MAX_BYTES);
    if (size_bytes < 0) {
        status = error_set(&why, STATUS_UNREACHABLE, "%s", why_not(state.res_h_errno));
    } else {
        status = srv_parse(bytes, (size_t)size_bytes, out, &why);
    }
    if (status != STATUS_OK) {
        status = error_set(error, status, "SRV records of %s: %s", name, why.text);
    }
    res_nclose(&state);
    free(bytes);
    return status;
}

void srv_answer_free(struct srv_answer *answer)
{
    free(answer->records);
    *answer = (struct srv_answer){0};
}
