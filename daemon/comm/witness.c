#include "daemon/comm/witness.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/comm/doubt.h"
#include "daemon/comm/meeting.h"
#include "daemon/comm/meeting_choice.h"

/* --- The choice --- */

/* So many nodes may be passed over: the first places, and the named node's relays. */
#define PASSED_MAX (MEETING_PLACES_DOUBTED + MEETING_RELAYS_TRUSTED)

struct passed {
    const struct comms_witness_wish *wish;
    uint32_t nodes[PASSED_MAX];
    uint32_t count;
};

static bool is_passed(const void *context, uint32_t node)
{
    const struct passed *passed = context;
    for (uint32_t i = 0; i < passed->count; i++) {
        if (passed->nodes[i] == node) {
            return true;
        }
    }
    return node == passed->wish->teller || node == passed->wish->except ||
           comms_guest_knows(passed->wish->comm->guest, node);
}

bool comms_witness_choose(const struct comms_witness_wish *wish, uint32_t *out)
{
    const struct communicator *comm = wish->comm;
    const struct comms *comms = comm->comms;
    const char *about = mesh_node_name(comms->mesh, wish->about);
    uint32_t groups = meeting_groups(comm->terms.size, mesh_configured_count(comms->mesh) + 1);
    struct passed passed = {.wish = wish};
    if (groups == 0) {
        return false;
    }
    const struct meeting_chooser chooser = {.comms = comms,
                                            .key = &comm->key,
                                            .about = about,
                                            .group = meeting_group_of(mesh_own_name(comms->mesh), groups),
                                            .is_taken = is_passed,
                                            .context = &passed};
    while (meeting_choose(&chooser, out)) {
        if (!meeting_may_be_place(comms, &comm->key, *out) &&
            !meeting_trusts_relay(comms, &comm->key, meeting_group_of(about, groups), *out)) {
            return true;
        }
        if (passed.count == PASSED_MAX) {
            return false; /* not reached: there are no more such nodes */
        }
        passed.nodes[passed.count++] = *out;
    }
    return false;
}

/* --- Messages --- */

/* About whose part of which communicator. */
struct subject {
    struct owned_name key;
    uint32_t node; /* the mesh's index */
};

static void send_ask(struct mesh *mesh, uint32_t to, const struct subject *subject, bool says_lost)
{
    Commd__Mesh__EndAsk body = COMMD__MESH__END_ASK__INIT;
    body.name = (char *)(uintptr_t)subject->key.name;
    body.owner_uid = subject->key.owner_uid;
    body.node = (char *)(uintptr_t)mesh_node_name(mesh, subject->node);
    body.lost = says_lost;
    Commd__Mesh__Message message = MESH_MESSAGE(END_ASK, end_ask, &body);
    mesh_tell(mesh, to, &message);
}

/* What a correct node may say of its end. So nobody makes a witness hand on much. */
static bool is_sound(const Commd__Mesh__Withdraw *end)
{
    const Commd__Mesh__Failure *failure = end->failure;
    return strlen(end->name) <= COMM_NAME_MAX_BYTES && strlen(end->text) <= CLIENT_ERROR_TEXT_MAX_BYTES &&
           (failure == NULL ||
            (failure->n_ranks <= CLIENT_FAILURE_RANKS_MAX && failure->n_pids <= CLIENT_FAILURE_RANKS_MAX &&
             strlen(failure->node) <= NODE_NAME_MAX_BYTES));
}

/* said: what the named node answered; null: not known. */
static void send_answer(struct mesh *mesh, uint32_t to, const Commd__Mesh__EndAsk *ask,
                        const Commd__Mesh__EndAnswer *said)
{
    Commd__Mesh__EndAnswer body = COMMD__MESH__END_ANSWER__INIT;
    body.name = ask->name;
    body.owner_uid = ask->owner_uid;
    body.node = ask->node;
    body.denies = said != NULL && said->denies;
    body.end = said != NULL ? said->end : NULL;
    Commd__Mesh__Message message = MESH_MESSAGE(END_ANSWER, end_answer, &body);
    mesh_tell(mesh, to, &message);
}

void comms_witness_ask(const struct communicator *comm, uint32_t node, uint32_t about, bool says_lost)
{
    const struct subject subject = {.key = comm->key, .node = about};
    send_ask(comm->comms->mesh, node, &subject, says_lost);
}

/* --- Questions --- */

struct asker {
    uint32_t node;
    uint64_t until_ns; /* then it is told that nothing is known */
    bool is_asked;     /* the named node was asked for it */
};

struct question {
    struct question *prev, *next; /* the oldest first */
    struct subject subject;
    uint32_t beginner;
    struct asker *askers; /* that wait for an answer */
    uint32_t asker_count, asker_room;
    uint64_t ends_ns; /* without askers: when it does not count any more */
};

struct comms_witness {
    struct question *questions;
    uint32_t count;
    uint64_t look_ns; /* when to look at the questions; TIME_NEVER: there are none */
};

static struct question *question_find(const struct comms_witness *witness, const struct subject *subject)
{
    struct question *question;
    DL_FOREACH(witness->questions, question)
    {
        if (question->subject.node == subject->node &&
            question->subject.key.owner_uid == subject->key.owner_uid &&
            strcmp(question->subject.key.name, subject->key.name) == 0) {
            return question;
        }
    }
    return NULL;
}

static void question_free(struct comms *comms, struct question *question)
{
    if (question->asker_count > 0) {
        mesh_unneed(comms->mesh, question->subject.node, MESH_NEED_CALL);
    }
    DL_DELETE(comms->witness->questions, question);
    comms->witness->count--;
    free(question->askers);
    free(question);
}

static struct asker *asker_find(const struct question *question, uint32_t node)
{
    for (uint32_t i = 0; i < question->asker_count; i++) {
        if (question->askers[i].node == node) {
            return &question->askers[i];
        }
    }
    return NULL;
}

/* How many questions count against that node. */
static uint32_t questions_of(const struct comms_witness *witness, uint32_t node)
{
    const struct question *question;
    uint32_t count = 0;
    DL_FOREACH(witness->questions, question)
    {
        count += question->beginner == node || asker_find(question, node) != NULL;
    }
    return count;
}

/* Frees the oldest question that nobody waits for, if there are COMMS_QUESTIONS_MAX. */
static void make_room(struct comms *comms)
{
    struct question *question, *next;
    DL_FOREACH_SAFE(comms->witness->questions, question, next)
    {
        if (question->asker_count == 0 && comms->witness->count >= COMMS_QUESTIONS_MAX) {
            question_free(comms, question);
        }
    }
}

/* Null: no room. */
static struct question *question_new(struct comms *comms, const struct subject *subject, uint32_t beginner)
{
    struct comms_witness *witness = comms->witness;
    make_room(comms);
    struct question *question = witness->count < COMMS_QUESTIONS_MAX ? calloc(1, sizeof *question) : NULL;
    if (question != NULL) {
        question->subject = *subject;
        question->beginner = beginner;
        DL_APPEND(witness->questions, question);
        witness->count++;
    }
    return question;
}

/* Returns false if there is no room. */
static bool asker_add(struct comms *comms, struct question *question, uint32_t node, uint64_t until_ns)
{
    if (question->asker_count == question->asker_room) {
        uint32_t room = question->asker_room > 0 ? 2 * question->asker_room : 8;
        struct asker *askers =
            room <= COMMS_ASKERS_MAX ? realloc(question->askers, room * sizeof *askers) : NULL;
        if (askers == NULL) {
            return false;
        }
        question->askers = askers;
        question->asker_room = room;
    }
    question->askers[question->asker_count++] = (struct asker){.node = node, .until_ns = until_ns};
    if (question->asker_count == 1) {
        mesh_need(comms->mesh, question->subject.node, MESH_NEED_CALL);
    }
    return true;
}

static void asker_remove(struct comms *comms, struct question *question, uint32_t i, uint64_t now_ns)
{
    question->askers[i] = question->askers[--question->asker_count];
    if (question->asker_count == 0) {
        mesh_unneed(comms->mesh, question->subject.node, MESH_NEED_CALL);
        question->ends_ns = time_after(now_ns, COMMS_QUESTION_COUNTS_NS);
    }
}

/* Tells these askers, which then wait no more. said: null: nothing is known. */
static void tell(struct comms *comms, struct question *question,
                 bool (*is_meant)(const struct asker *asker, uint64_t now_ns),
                 const Commd__Mesh__EndAnswer *said, uint64_t now_ns)
{
    Commd__Mesh__EndAsk ask = COMMD__MESH__END_ASK__INIT;
    ask.name = question->subject.key.name;
    ask.owner_uid = question->subject.key.owner_uid;
    ask.node = (char *)(uintptr_t)mesh_node_name(comms->mesh, question->subject.node);
    for (uint32_t i = question->asker_count; i > 0; i--) {
        if (is_meant(&question->askers[i - 1], now_ns)) {
            send_answer(comms->mesh, question->askers[i - 1].node, &ask, said);
            asker_remove(comms, question, i - 1, now_ns);
        }
    }
}

static bool is_any(const struct asker *asker, uint64_t now_ns)
{
    (void)asker;
    (void)now_ns;
    return true;
}

static bool is_asked(const struct asker *asker, uint64_t now_ns)
{
    (void)now_ns;
    return asker->is_asked;
}

static bool is_late(const struct asker *asker, uint64_t now_ns)
{
    return now_ns >= asker->until_ns;
}

/* Asks the named node for all askers that wait, unless it is being asked, or is not connected yet. */
static void ask_named(struct comms *comms, struct question *question, bool again, uint64_t now_ns)
{
    uint32_t named = question->subject.node;
    bool waits = false;
    for (uint32_t i = 0; i < question->asker_count && !again; i++) {
        waits = waits || question->askers[i].is_asked;
    }
    if (question->asker_count == 0 || waits || !mesh_node_is_up(comms->mesh, named)) {
        return;
    }
    if (!mesh_node_offers(comms->mesh, named, MESH_OFFERS_WITNESS)) {
        tell(comms, question, is_any, NULL, now_ns);
        return;
    }
    for (uint32_t i = 0; i < question->asker_count; i++) {
        question->askers[i].is_asked = true;
    }
    send_ask(comms->mesh, named, &question->subject, false);
}

static bool make_witness(struct comms *comms)
{
    if (comms->witness == NULL) {
        comms->witness = calloc(1, sizeof *comms->witness);
        if (comms->witness != NULL) {
            comms->witness->look_ns = TIME_NEVER;
        }
    }
    return comms->witness != NULL;
}

/* A node asks about another one's part. Returns false if there is no room. */
static bool hear(struct comms *comms, uint32_t asker, const struct subject *subject, bool says_lost,
                 uint64_t now_ns)
{
    struct comms_witness *witness = make_witness(comms) ? comms->witness : NULL;
    struct question *question = witness != NULL ? question_find(witness, subject) : NULL;
    uint64_t until_ns = time_after(now_ns, says_lost ? COMMS_DOUBT_LOST_NS : COMMS_DOUBT_NS);
    if (question != NULL && asker_find(question, asker) != NULL) {
        return true; /* it will get the answer that it waits for */
    }
    if (witness == NULL || (questions_of(witness, asker) >= COMMS_QUESTIONS_NODE_MAX &&
                            (question == NULL || question->beginner != asker))) {
        return false;
    }
    if (question == NULL) {
        question = question_new(comms, subject, asker);
    }
    if (question == NULL || !asker_add(comms, question, asker, until_ns)) {
        return false;
    }
    ask_named(comms, question, false, now_ns);
    witness->look_ns = time_min(witness->look_ns, time_after(now_ns, COMMS_DOUBT_LOOK_NS));
    return true;
}

/* Of this node's own part. */
static void answer_own(struct comms *comms, uint32_t node, const Commd__Mesh__EndAsk *ask, uint64_t now_ns)
{
    Commd__Mesh__EndAnswer said = COMMD__MESH__END_ANSWER__INIT;
    Commd__Mesh__Withdraw end;
    Commd__Mesh__Failure failure;
    if (communicator_find(comms, ask->owner_uid, ask->name) == NULL &&
        comms_ends_fill(comms, ask->owner_uid, ask->name, now_ns, &end, &failure)) {
        said.end = &end;
    } else {
        said.denies = true;
    }
    send_answer(comms->mesh, node, ask, &said);
}

void comms_witness_asked(struct comms *comms, uint32_t node, const Commd__Mesh__EndAsk *ask, uint64_t now_ns)
{
    struct subject subject;
    if (!printable_is_name(ask->name, COMM_NAME_MAX_BYTES)) {
        mesh_violation(comms->mesh, node, "a malformed name of a communicator");
        return;
    }
    if (!comms_user_may_say(comms, ask->owner_uid, node, ask->name, now_ns)) {
        return;
    }
    if (strcmp(ask->node, mesh_own_name(comms->mesh)) == 0) {
        answer_own(comms, node, ask, now_ns);
        return;
    }
    (void)owned_name_make(&subject.key, ask->owner_uid, ask->name);
    if (!mesh_find_node(comms->mesh, ask->node, &subject.node) || subject.node == node ||
        !mesh_user_may(comms->mesh, ask->owner_uid, subject.node) ||
        !hear(comms, node, &subject, ask->lost, now_ns)) {
        send_answer(comms->mesh, node, ask, NULL);
    }
}

void comms_witness_answered(struct comms *comms, uint32_t node, const Commd__Mesh__EndAnswer *answer,
                            uint64_t now_ns)
{
    struct subject subject;
    struct question *question = NULL;
    if (!printable_is_name(answer->name, COMM_NAME_MAX_BYTES)) {
        mesh_violation(comms->mesh, node, "a malformed name of a communicator");
        return;
    }
    (void)owned_name_make(&subject.key, answer->owner_uid, answer->name);
    if (answer->end != NULL && !is_sound(answer->end)) {
        mesh_violation(comms->mesh, node, "the end of a communicator with more than its text and ranks");
        return;
    }
    if (!mesh_find_node(comms->mesh, answer->node, &subject.node)) {
        return;
    }
    if (subject.node == node && comms->witness != NULL) {
        question = question_find(comms->witness, &subject);
    }
    if (question != NULL) {
        tell(comms, question, is_asked, answer, now_ns);
        ask_named(comms, question, false, now_ns); /* for those that have come since then */
    }
    comms_doubt_heard(comms, node, subject.node, answer, now_ns);
}

/* --- Time --- */

void comms_witness_node_up(struct comms *comms, uint32_t node)
{
    struct question *question;
    if (comms->witness == NULL) {
        return;
    }
    DL_FOREACH(comms->witness->questions, question)
    {
        if (question->subject.node == node) {
            ask_named(comms, question, true, comms->now_ns);
        }
    }
}

void comms_witness_tick(struct comms *comms, uint64_t now_ns)
{
    struct comms_witness *witness = comms->witness;
    struct question *question, *next;
    if (witness == NULL || now_ns < witness->look_ns) {
        return;
    }
    witness->look_ns = TIME_NEVER;
    DL_FOREACH_SAFE(witness->questions, question, next)
    {
        bool is_lost = comms_doubt_is_lost(comms, question->subject.node);
        tell(comms, question, is_lost ? is_any : is_late, NULL, now_ns);
        if (question->asker_count > 0) {
            witness->look_ns = time_min(witness->look_ns, time_after(now_ns, COMMS_DOUBT_LOOK_NS));
        } else if (now_ns >= question->ends_ns) {
            question_free(comms, question);
        } else {
            witness->look_ns = time_min(witness->look_ns, question->ends_ns);
        }
    }
}

uint64_t comms_witness_deadline_ns(const struct comms *comms)
{
    return comms->witness != NULL ? comms->witness->look_ns : TIME_NEVER;
}

void comms_witness_free(struct comms *comms)
{
    while (comms->witness != NULL && comms->witness->questions != NULL) {
        question_free(comms, comms->witness->questions);
    }
    free(comms->witness);
    comms->witness = NULL;
}
