#include "daemon/comm/comms_internal.h"

/*
 * Finds which ranks of other nodes an operation waits for: for the text at its deadline, and for commctl.
 * Each node that waits asks the communicator's first node about once a second. The first node asks all nodes,
 * once for all that asked it. Nodes with missing ranks answer. So an operation that hangs costs each node a
 * few messages a second.
 */
#define ASK_NS TIME_S
#define KNOWN_NS (3 * TIME_S) /* how long an answer stays valid */

/* How long after its first post a node asks about an operation. It asks again each time half of this has
 * passed. */
static uint64_t ask_after_ns(const struct communicator_op *op)
{
    uint64_t timeout_ns = comms_op_deadline_ns(op) - op->first_post_ns;
    return timeout_ns / 2 < ASK_NS ? timeout_ns / 2 : ASK_NS;
}

static void send_step(struct communicator *comm, uint32_t index, Commd__Mesh__Missing__Step step,
                      uint64_t seq, const struct comms_missing *known)
{
    Commd__Mesh__Missing body = COMMD__MESH__MISSING__INIT;
    body.comm_id = comm->comm_id;
    body.seq = seq;
    body.step = step;
    if (known != NULL) {
        body.count = known->count;
        body.text = (char *)known->text;
        body.n_ranks = body.n_pids = known->listed;
        body.ranks = (uint32_t *)(uintptr_t)known->ranks;
        body.pids = (int32_t *)(uintptr_t)known->pids;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(MISSING, missing, &body);
    communicator_send(comm, comm->nodes[index].node, &message);
}

static void list_rank(struct comms_missing *missing, const struct communicator *comm, uint32_t rank,
                      int32_t pid)
{
    if (missing->listed < CLIENT_FAILURE_RANKS_MAX && rank < comm->terms.size) {
        missing->ranks[missing->listed] = rank;
        missing->pids[missing->listed++] = pid;
    }
}

/* This node's ranks that have not posted the operation. */
static void find_own(const struct communicator *comm, uint64_t seq, struct comms_missing *out)
{
    struct comms_text text;
    *out = (struct comms_missing){.seq = seq};
    comms_text_begin(&text, out->text, sizeof out->text);
    for (uint32_t i = 0; i < comm->local_count; i++) {
        const struct comms_member *member = comm->locals[i];
        out->count += member != NULL && comms_cells_head(member) < seq;
    }
    const char *separator = out->count == 1 ? "rank " : "ranks ";
    for (uint32_t i = 0; i < comm->local_count && out->count > 0; i++) {
        const struct comms_member *member = comm->locals[i];
        if (member != NULL && comms_cells_head(member) < seq) {
            comms_text_add(&text, "%s%u (pid %d)", separator, member->rank, (int)member->client.pid);
            separator = ", ";
            list_rank(out, comm, member->rank, (int32_t)member->client.pid);
        }
    }
    if (out->count > 0) {
        comms_text_add(&text, " of node %s", communicator_own_name(comm));
    }
}

/* Adds ranks to what this node knows of the operation. */
static void add(struct communicator *comm, const struct comms_missing *more)
{
    uint32_t count = more->count;
    const char *said = more->text;
    struct comms_missing *known = &comm->missing;
    struct comms_text text;
    comms_text_continue(&text, known->text, sizeof known->text);
    if (count > 0 && count <= comm->terms.size - known->count) {
        comms_text_add(&text, "%s%s", known->count > 0 ? ", " : "", said);
        known->count += count;
        for (uint32_t i = 0; i < more->listed; i++) {
            list_rank(known, comm, more->ranks[i], more->pids[i]);
        }
    }
}

/* The same, as another node says it. */
static void add_said(struct communicator *comm, const Commd__Mesh__Missing *said)
{
    struct comms_missing more = {.count = said->count};
    printable_copy(said->text, more.text, sizeof more.text);
    for (size_t i = 0; i < said->n_ranks && i < said->count; i++) {
        list_rank(&more, comm, said->ranks[i], i < said->n_pids ? said->pids[i] : 0);
    }
    add(comm, &more);
}

/* On the first node: starts a new round, unless the last one has just begun. */
static void ask_all(struct communicator *comm, uint64_t seq, uint64_t now_ns)
{
    struct comms_missing own;
    uint64_t pause_ns = comm->missing.seq == seq ? ASK_NS : ASK_NS / 5;
    if (comm->missing_round_ns != 0 && now_ns < time_after(comm->missing_round_ns, pause_ns)) {
        return;
    }
    comm->missing_round_ns = now_ns;
    find_own(comm, seq, &own);
    comm->missing = (struct comms_missing){.seq = seq, .known_ns = now_ns};
    add(comm, &own);
    for (uint32_t i = 0; i < comm->node_count; i++) {
        comm->nodes[i].answered = false;
        if (i != comm->own_index) {
            send_step(comm, i, COMMD__MESH__MISSING__STEP__QUESTION, seq, NULL);
        }
    }
}

uint64_t comms_missing_step(struct communicator *comm, uint64_t now_ns)
{
    const struct communicator_op *op = comm->pending;
    if (comm->state != COMMS_COMM_FORMED || comm->node_count == 1 || op == NULL) {
        return TIME_NEVER;
    }
    uint64_t after_ns = ask_after_ns(op);
    uint64_t next_ns = time_after(op->first_post_ns, after_ns);
    if (comm->asked_seq == op->seq) {
        next_ns = time_after(comm->asked_ns, after_ns / 2);
    }
    if (now_ns < next_ns) {
        return next_ns;
    }
    comm->asked_seq = op->seq;
    comm->asked_ns = now_ns;
    if (comm->own_index == 0) {
        ask_all(comm, op->seq, now_ns);
    } else {
        send_step(comm, 0, COMMD__MESH__MISSING__STEP__ASKED, op->seq, NULL);
    }
    return time_after(now_ns, after_ns / 2);
}

const struct comms_missing *comms_missing_of(const struct communicator *comm, uint64_t seq, uint64_t now_ns)
{
    const struct comms_missing *known = &comm->missing;
    bool holds = known->seq == seq && known->count > 0 && now_ns < time_after(known->known_ns, KNOWN_NS);
    return holds ? known : NULL;
}

bool comms_missing_received(struct communicator *comm, uint32_t node, const Commd__Mesh__Missing *said,
                            uint64_t now_ns)
{
    struct comms_missing own;
    uint32_t index = communicator_node_index(comm, node);
    bool from_first = said->step == COMMD__MESH__MISSING__STEP__QUESTION ||
                      said->step == COMMD__MESH__MISSING__STEP__SUMMARY;
    if (from_first ? index != 0 : comm->own_index != 0) {
        return false;
    }
    if (comm->state != COMMS_COMM_FORMED) {
        return true;
    }
    if (said->step == COMMD__MESH__MISSING__STEP__ASKED) {
        ask_all(comm, said->seq, now_ns);
        send_step(comm, index, COMMD__MESH__MISSING__STEP__SUMMARY, comm->missing.seq, &comm->missing);
    } else if (said->step == COMMD__MESH__MISSING__STEP__QUESTION) {
        find_own(comm, said->seq, &own);
        if (own.count > 0) {
            send_step(comm, 0, COMMD__MESH__MISSING__STEP__ANSWER, said->seq, &own);
        }
    } else if (said->step == COMMD__MESH__MISSING__STEP__ANSWER) {
        if (said->seq == comm->missing.seq && !comm->nodes[index].answered) {
            comm->nodes[index].answered = true;
            add_said(comm, said);
        }
    } else if (said->step == COMMD__MESH__MISSING__STEP__SUMMARY) {
        comm->missing = (struct comms_missing){.seq = said->seq, .known_ns = now_ns};
        add_said(comm, said);
    }
    return true;
}
