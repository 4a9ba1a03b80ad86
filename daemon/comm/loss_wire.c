#include "daemon/comm/comms_tree.h"
#include "daemon/comm/loss.h"

/* Agreements between nodes: enum agreement_step has the numbers of the protocol's steps. */
_Static_assert((int)AGREEMENT_GONE == (int)COMMD__MESH__AGREE__STEP__GONE &&
                   (int)AGREEMENT_DECIDED == (int)COMMD__MESH__AGREE__STEP__DECIDED,
               "steps as in proto/mesh.proto");

static void value_to_wire(const struct comms_loss_address *to, const struct agreement_value *value,
                          Commd__Mesh__Failure *failure, Commd__Mesh__AgreeValue *out)
{
    *out = (Commd__Mesh__AgreeValue)COMMD__MESH__AGREE_VALUE__INIT;
    out->status = value->cause.status;
    out->text = (char *)(uintptr_t)value->cause.text;
    out->weight = value->cause_weight;
    if (value->has_detail) {
        comms_detail_to_wire(&value->detail, failure);
        out->failure = failure;
    }
    out->last = value->last;
    out->keep = value->keep;
    out->generation = value->generation;
    out->minority = value->minority;
    out->lost.data = value->lost;
    out->lost.len = agreement_bits_bytes(to->rank_count);
    out->down.data = value->down;
    out->down.len = agreement_bits_bytes(to->node_count);
}

void comms_loss_send(const struct comms_loss_address *to, const struct agreement_message *message)
{
    Commd__Mesh__Failure failure;
    Commd__Mesh__AgreeValue value;
    Commd__Mesh__Agree body = COMMD__MESH__AGREE__INIT;
    body.comm_id = to->comm_id;
    body.previous_id = to->previous_id;
    body.step = (Commd__Mesh__Agree__Step)message->step;
    body.attempt = message->ballot.attempt;
    body.leader = message->ballot.leader;
    body.accepted_attempt = message->accepted.attempt;
    body.accepted_leader = message->accepted.leader;
    body.forgot = message->forgot;
    if (message->value != NULL) {
        value_to_wire(to, message->value, &failure, &value);
        body.value = &value;
    }
    Commd__Mesh__Message out = MESH_MESSAGE(AGREE, agree, &body);
    if (to->dials) {
        comms_post(to->comms, to->node, &out);
        return;
    }
    mesh_tell(to->comms->mesh, to->node, &out);
}

static bool value_from_wire(const Commd__Mesh__AgreeValue *said, const struct communicator *comm,
                            struct agreement_value *value)
{
    if (said->lost.len != agreement_bits_bytes(comm->terms.size) ||
        said->down.len != agreement_bits_bytes(comm->node_count)) {
        return false;
    }
    *value = (struct agreement_value){.cause_weight = said->weight,
                                      .last = said->last,
                                      .keep = said->keep,
                                      .generation = said->generation,
                                      .minority = said->minority,
                                      .lost = said->lost.data,
                                      .down = said->down.data};
    value->cause.status = status_from_wire(said->status);
    if (value->cause.status == STATUS_OK || value->cause.status == STATUS_IN_PROGRESS) {
        value->cause.status = STATUS_PROTOCOL;
    }
    printable_copy(said->text, value->cause.text, sizeof value->cause.text);
    value->has_detail = comms_detail_from_wire(said->failure, comm, &value->detail) != NULL;
    return true;
}

bool comms_loss_from_wire(const Commd__Mesh__Agree *said, const struct communicator *comm,
                          struct agreement_message *message, struct agreement_value *value)
{
    if ((int)said->step < 0 || (int)said->step >= AGREEMENT_STEPS || said->leader >= comm->node_count ||
        said->attempt == UINT32_MAX) {
        return false;
    }
    *message = (struct agreement_message){
        .step = (enum agreement_step)said->step,
        .ballot = {said->attempt, said->leader},
        .accepted = {said->accepted_attempt, said->accepted_leader},
        .forgot = said->forgot,
    };
    if (said->value != NULL) {
        if (!value_from_wire(said->value, comm, value)) {
            return false;
        }
        message->value = value;
    }
    return true;
}
