#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "tests/sim/traffic.h"

/* What must hold after a case of test_traffic. */

static bool somebody_is_gone(const struct world *world)
{
    return world->departed < CASE_RANKS_MAX && world->fields[CASE_DEPARTURE] != DEPARTURE_SILENT;
}

/* Checks whether a call may end with this status in this case. An operation that its deadline ended holds
 * its buffers until a host that died is given up. So the communicator may end before that, with the
 * deadline as the cause. */
static void check_status(const struct world *world, const struct error *result, bool may_time_out,
                         const char *what, uint64_t number, uint32_t rank)
{
    enum status status = result->status;
    const struct sim_rank *who = &world->comm->ranks[rank];
    /* the text is about the other half of a message */
    bool by_other = strstr(result->text, "ended first") != NULL;
    bool by_cause = who->aborted && who->abort_cause.status == STATUS_TIMED_OUT && somebody_is_gone(world);
    may_time_out |= world->fields[CASE_SHORT_PERCENT] != 0 && (by_other || by_cause);
    bool lost = status == STATUS_RANK_LOST || status == STATUS_NODE_LOST || status == STATUS_ABORTED;
    if (status != STATUS_OK && !(may_time_out && status == STATUS_TIMED_OUT) &&
        !(lost && somebody_is_gone(world))) {
        fail_msg("%s %llu, rank %u: %s: %s", what, (unsigned long long)number, rank, status_name(status),
                 result->text);
    }
}

static void check_op(const struct world *world, const struct sim_op *op)
{
    uint64_t last =
        /* the last operation of its group, which runs as one */
        op->seq - 1 + op->call.bucket_ops - op->call.bucket_index - 1;
    bool silent = world->fields[CASE_DEPARTURE] == DEPARTURE_SILENT && world->departed < CASE_RANKS_MAX &&
                  !world->ops[last]->parts[world->departed].posted;
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        const struct sim_part *part = &op->parts[rank];
        if (part->refused.status != STATUS_OK) {
            check_status(world, &part->refused, false, "refused operation", op->seq, rank);
        } else if (part->done) {
            check_status(world, &part->result, op->call.timeout_ms != 0 || silent, "operation", op->seq,
                         rank);
        } else if (part->posted && !world->gone[rank]) {
            fail_msg("operation %llu (%s) does not end on rank %u", (unsigned long long)op->seq,
                     op_kind_text(op->call.kind), rank);
        }
    }
    sim_op_check(op);
}

/* The messages of one sender, receiver and tag, for tags whose receives name their source. */
struct channel {
    uint32_t count[2]; /* [0] receives, [1] sends */
    struct sim_message *messages[2][CASE_MESSAGES_MAX];
    bool has_short;
};

static void find_channel(const struct world *world, uint32_t from, uint32_t to, uint32_t tag,
                         struct channel *channel)
{
    memset(channel, 0, sizeof *channel);
    for (struct sim_message *each = world->comm->messages; each != NULL; each = each->next) {
        uint32_t sender = each->call.sends ? each->call.rank : each->call.peer;
        uint32_t receiver = each->call.sends ? each->call.peer : each->call.rank;
        if (sender == from && receiver == to && each->call.tag == tag) {
            channel->messages[each->call.sends][channel->count[each->call.sends]++] = each;
            channel->has_short = channel->has_short || each->call.timeout_ms != 0;
        }
    }
}

/* If nobody departed and no deadline passed, the n-th receive has the n-th send, if there is enough room. */
static void check_channel(const struct channel *channel)
{
    for (uint32_t side = 0; side < 2; side++) {
        for (uint32_t i = 0; i < channel->count[side]; i++) {
            const struct sim_message *message = channel->messages[side][i];
            const struct sim_message *other =
                i < channel->count[1 - side] ? channel->messages[1 - side][i] : NULL;
            const struct sim_message *send = side == 1 ? message : other;
            const struct sim_message *receive = side == 1 ? other : message;
            enum status status = sim_message_outcome(message)->status;
            bool fits = send != NULL && receive != NULL && send->call.count <= receive->call.count;
            bool right = status == (fits ? STATUS_OK : other == NULL ? STATUS_TIMED_OUT : STATUS_MISMATCH);
            /* an eager send may have ended well before */
            if (!right && !(side == 1 && status == STATUS_OK)) {
                fail_msg("message %llu (%s of %llu, %s): %s: %s", (unsigned long long)message->number,
                         side == 1 ? "send" : "receive", (unsigned long long)message->call.count,
                         other == NULL ? "without another half"
                         : fits        ? "fits"
                                       : "does not fit",
                         status_name(status), sim_message_outcome(message)->text);
            }
        }
    }
}

/* A sender may have left. If its send ended well, a receive must have taken it. That is the receive at the
 * same place, or an earlier one, if receives before it ended when the sender left. */
static void check_sent_is_received(const struct channel *channel)
{
    for (uint32_t i = 0; i < channel->count[0]; i++) {
        if (sim_message_outcome(channel->messages[0][i])->status == STATUS_MISMATCH) {
            return; /* this receive took a message that did not fit */
        }
    }
    for (uint32_t i = 0; i < channel->count[1] && i < channel->count[0]; i++) {
        const struct sim_message *send = channel->messages[1][i];
        if (send->done && sim_message_outcome(send)->status == STATUS_OK && send->call.count > 0 &&
            !send->taken) {
            fail_msg("message %llu was sent well, and not received", (unsigned long long)send->number);
        }
    }
}

static void check_channels(const struct world *world)
{
    struct channel channel;
    for (uint32_t from = 0; from < world->ranks; from++) {
        for (uint32_t to = 0; to < world->ranks; to++) {
            for (uint32_t tag = 0; tag < TAG_ANY_SOURCE; tag++) {
                find_channel(world, from, to, tag, &channel);
                if (channel.has_short) {
                    continue;
                }
                if (!somebody_is_gone(world)) {
                    check_channel(&channel);
                } else if (!world->gone[to] && !world->comm->ranks[to].aborted) {
                    check_sent_is_received(&channel);
                }
            }
        }
    }
}

/* Checks a message. Any receive may have waited for a message of another, or have been in its way. */
static void check_message(const struct world *world, const struct sim_message *message)
{
    const struct sim_message_call *call = &message->call;
    if (world->gone[call->rank]) {
        return;
    }
    if (!message->done) {
        fail_msg("message %llu does not end on rank %u", (unsigned long long)message->number, call->rank);
    }
    const struct error *result = sim_message_outcome(message);
    if (result->status == STATUS_MISMATCH && call->tag < TAG_ANY_SOURCE) {
        return; /* check_channel checks this */
    }
    bool named_is_gone = call->peer != COMM_ANY_SOURCE_RANK && world->gone[call->peer];
    check_status(world, result, call->timeout_ms != 0 || !named_is_gone, "message", message->number,
                 call->rank);
}

static void check_communicator(const struct world *world)
{
    for (uint32_t rank = 0; rank < world->ranks; rank++) {
        const struct sim_rank *who = &world->comm->ranks[rank];
        if (who->aborted && !somebody_is_gone(world)) {
            fail_msg("rank %u: the communicator ended: %s", rank, who->abort_cause.text);
        }
    }
    if (world->departed == CASE_RANKS_MAX) { /* the communicator must go on */
        sim_comm_run(world->comm, &(struct sim_call){.kind = OP_KIND_ALL_REDUCE,
                                                     .dtype = DTYPE_I32,
                                                     .reduce = REDUCE_SUM,
                                                     .count = 1000});
    }
}

void traffic_check(const struct world *world)
{
    for (uint32_t i = 0; i < world->fields[CASE_COLLECTIVES]; i++) {
        check_op(world, world->ops[i]);
    }
    for (const struct sim_message *each = world->comm->messages; each != NULL; each = each->next) {
        check_message(world, each);
    }
    sim_messages_check(world->comm);
    check_channels(world);
    check_communicator(world);
}
