#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/base/log.h"
#include "daemon/gather/gathers_internal.h"

/* Which processes get ranks, and when. */

#define LINKED_NS (500 * TIME_MS) /* for what nodes tell once they are connected */
#define AGAIN_NS (100 * TIME_MS)  /* after a lack of memory */
#define CHOSEN UINT32_MAX         /* a rank that is not known yet */

/* What a meeting's processes want. */
struct tally {
    uint32_t waiting;
    uint32_t running;     /* ranks of a generation that is not void */
    uint32_t doubtful;    /* ranks of one that is: they will ask again or leave, or had formed it after all */
    uint32_t least, most; /* of those that wait: the greatest and the smallest */
    uint64_t last_call_ns;
    bool minority_continues; /* all that wait say so */
};

static struct tally count(const struct gathers_meeting *meeting)
{
    struct tally tally = {.most = UINT32_MAX, .minority_continues = true};
    const struct gathers_party *party;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            const struct gathers_guest *guest = &party->guests[i];
            if (guest->generation != 0) {
                tally.running += !guest->is_void;
                tally.doubtful += guest->is_void;
                continue;
            }
            tally.waiting++;
            tally.least = guest->least > tally.least ? guest->least : tally.least;
            tally.most = guest->most < tally.most ? guest->most : tally.most;
            tally.last_call_ns =
                guest->last_call_ns > tally.last_call_ns ? guest->last_call_ns : tally.last_call_ns;
            tally.minority_continues = tally.minority_continues && guest->minority_continues;
        }
    }
    return tally;
}

__attribute__((format(printf, 2, 3))) static void say(struct gathers_meeting *meeting, const char *format,
                                                      ...)
{
    char text[GATHERS_TEXT_BYTES];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (strcmp(text, meeting->text) != 0) {
        memcpy(meeting->text, text, sizeof text);
        meeting->text_number++;
    }
}

/* --- Seats --- */

static int by_arrival(const void *left, const void *right)
{
    const struct gathers_guest *const *a = left, *const *b = right;
    return ((*a)->came > (*b)->came) - ((*a)->came < (*b)->came);
}

/* Chooses those that came first, such that the size, `from` and they, is at most `to`, and what each of them
 * allows. Their rank is CHOSEN then. Returns how many; 0 without memory. */
static uint32_t choose(struct gathers_meeting *meeting, uint32_t waiting, uint32_t from, uint32_t to)
{
    struct gathers_guest **list = calloc(waiting, sizeof(struct gathers_guest *));
    struct gathers_party *party;
    uint32_t count = 0, chosen = 0, most = to;
    if (list == NULL) {
        return 0;
    }
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            if (party->guests[i].generation == 0) {
                list[count++] = &party->guests[i];
            }
        }
    }
    qsort(list, count, sizeof(struct gathers_guest *), by_arrival);
    for (uint32_t i = 0; i < count && from + chosen < most; i++) {
        if (list[i]->most > from + chosen) {
            most = list[i]->most < most ? list[i]->most : most;
            list[i]->rank = CHOSEN;
            chosen++;
        }
    }
    free(list);
    return chosen;
}

/* Gives the chosen ones ranks of the next generation, by node and arrival. */
static struct gathers_formation seat(struct gathers_meeting *meeting, uint32_t from, uint32_t chosen)
{
    struct gathers_formation given = {{++meeting->generation, random_u64(&meeting->gathers->random)}, chosen};
    struct gathers_party *party;
    uint32_t rank = from;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            struct gathers_guest *guest = &party->guests[i];
            if (guest->generation == 0 && guest->rank == CHOSEN) {
                guest->generation = given.number.generation;
                guest->nonce = given.number.nonce;
                guest->seated = chosen;
                guest->settled = guest->is_void = false;
                guest->rank = rank++;
                guest->size = from + chosen;
                guest->seat_untold = true;
            }
        }
    }
    log_debug("job \"%s\" of uid %u: generation %llu gets %u ranks", meeting->key.name,
              (unsigned)meeting->key.owner_uid, (unsigned long long)given.number.generation, from + chosen);
    return given;
}

/* --- A first generation --- */

/* Whether this node sees most of the cluster; of exactly half, the half with the lowest name. */
static bool sees_most(const struct gathers *gathers, uint32_t *seen, uint32_t *all)
{
    const struct mesh *mesh = gathers->mesh;
    const char *lowest = mesh_own_name(mesh);
    bool has_lowest = true;
    *seen = *all = 1;
    for (uint32_t node = 0; node < mesh_node_count(mesh); node++) {
        if (mesh_node_is_removed(mesh, node)) {
            continue;
        }
        bool is_member = mesh_node_is_member(mesh, node);
        ++*all;
        *seen += is_member;
        if (strcmp(mesh_node_name(mesh, node), lowest) < 0) {
            lowest = mesh_node_name(mesh, node);
            has_lowest = is_member;
        }
    }
    return 2 * *seen > *all || (2 * *seen == *all && has_lowest);
}

/*
 * Whether nodes may have ranks that they have not told of since this node was started. Each node tells as
 * soon as it is connected.
 */
static bool may_hear_of_more(const struct gathers *gathers, uint64_t now_ns, uint64_t *until_ns)
{
    const struct mesh *mesh = gathers->mesh;
    bool all_up = true;
    for (uint32_t node = 0; node < mesh_node_count(mesh); node++) {
        all_up = all_up && (mesh_node_is_removed(mesh, node) || mesh_node_is_up(mesh, node));
    }
    *until_ns = time_after(gathers->started_ns, GATHERS_GRACE_NS);
    if (all_up) {
        *until_ns = time_min(*until_ns, time_after(gathers->linked_ns, LINKED_NS));
    }
    return mesh_configured_count(mesh) > 0 && now_ns < *until_ns;
}

static void wait_until(struct gathers_meeting *meeting, uint64_t then_ns)
{
    meeting->next_ns = time_min(meeting->next_ns, then_ns);
    meeting->gathers->next_ns = time_min(meeting->gathers->next_ns, meeting->next_ns);
}

static void try_to_form(struct gathers_meeting *meeting, const struct tally *tally, uint64_t now_ns)
{
    uint32_t seen, all;
    uint64_t last_call_ns = time_after(meeting->last_came_ns, tally->last_call_ns);
    if (tally->least > tally->most) {
        say(meeting, "one process wants at least %u ranks, and another one at most %u", tally->least,
            tally->most);
        return;
    }
    if (tally->waiting < tally->least) {
        say(meeting, "at least %u are needed", tally->least);
        return;
    }
    if (!tally->minority_continues && !sees_most(meeting->gathers, &seen, &all)) {
        say(meeting, "the node sees only %u of the cluster's %u nodes", seen, all);
        wait_until(meeting, time_after(now_ns, GATHERS_CHECK_NS));
        return;
    }
    if (tally->doubtful > 0 && now_ns < meeting->doubt_ns) {
        say(meeting, "%u ranks of a generation that was lost have not said what they do", tally->doubtful);
        wait_until(meeting, meeting->doubt_ns);
        return;
    }
    uint64_t grace_ns;
    if (may_hear_of_more(meeting->gathers, now_ns, &grace_ns) || now_ns < meeting->grace_ns) {
        say(meeting, "the node may not have heard of all processes yet");
        wait_until(meeting, now_ns < meeting->grace_ns ? meeting->grace_ns : grace_ns);
        return;
    }
    if (tally->waiting < tally->most && now_ns < last_call_ns) {
        say(meeting, "more may come");
        wait_until(meeting, last_call_ns);
        return;
    }
    uint32_t chosen = choose(meeting, tally->waiting, 0, tally->most);
    say(meeting, "%s", "");
    if (chosen > 0) {
        (void)seat(meeting, 0, chosen);
    } else {
        wait_until(meeting, time_after(now_ns, AGAIN_NS));
    }
}

/* --- Growing --- */

static void grow(struct gathers_meeting *meeting, struct gathers_guest *guest)
{
    struct tally tally = count(meeting);
    uint32_t chosen = 0;
    if (gathers_grows_in_vain(guest)) {
        gathers_make_void(meeting, &guest->grown.number); /* the ranks did not take that step */
    }
    guest->grow_answered = guest->grow_number;
    guest->grow_untold = true;
    guest->grown = (struct gathers_formation){0};
    guest->grown_size = guest->grow_from;
    if (tally.waiting > 0) {
        chosen = choose(meeting, tally.waiting, guest->grow_from, guest->grow_to);
    }
    if (chosen > 0) {
        guest->grown = seat(meeting, guest->grow_from, chosen);
        guest->grown_size = guest->grow_from + chosen;
    }
}

static void grow_all(struct gathers_meeting *meeting)
{
    struct gathers_party *party;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            struct gathers_guest *guest = &party->guests[i];
            if (guest->generation != 0 && guest->grow_number > guest->grow_answered) {
                grow(meeting, guest);
            }
        }
    }
}

/* --- What another place gave out --- */

/* The generation that the guest waits for with others. */
static struct gathers_formation formation_of(const struct gathers_guest *guest)
{
    struct gathers_formation own = {{guest->generation, guest->nonce}, guest->seated};
    if (guest->generation != 0 && !guest->settled && !guest->is_void) {
        return own;
    }
    return gathers_grows_in_vain(guest) ? guest->grown : (struct gathers_formation){0};
}

/* Whether all that got ranks are here, or the generation has formed. */
static bool is_whole(const struct gathers_meeting *meeting, const struct gathers_formation *formation)
{
    const struct gathers_party *party;
    uint32_t here = 0;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            const struct gathers_guest *guest = &party->guests[i];
            bool same = guest->generation == formation->number.generation;
            if (same && guest->settled) {
                return true;
            }
            here += same && guest->nonce == formation->number.nonce;
        }
    }
    return here >= formation->seated;
}

/*
 * The place before has given ranks, and was lost. Nodes tell this place of those that they know. If some are
 * missing, they were lost with that place, or it had not told their nodes: the generation cannot form.
 */
static void end_incomplete(struct gathers_meeting *meeting, uint64_t now_ns)
{
    struct gathers_party *party;
    if (meeting->inherited_ns == 0) {
        return;
    }
    if (now_ns < meeting->inherited_ns) {
        wait_until(meeting, meeting->inherited_ns);
        return;
    }
    meeting->inherited_ns = 0;
    DL_FOREACH(meeting->parties, party)
    {
        for (uint32_t i = 0; i < party->count; i++) {
            struct gathers_guest *guest = &party->guests[i];
            struct gathers_formation formation = formation_of(guest);
            if (formation.seated > 0 && !is_whole(meeting, &formation)) {
                gathers_make_void(meeting, &formation.number);
                guest->grown.seated = 0; /* the rank itself goes on */
            }
        }
    }
}

void gathers_decide(struct gathers_meeting *meeting, uint64_t now_ns)
{
    meeting->next_ns = TIME_NEVER;
    end_incomplete(meeting, now_ns);
    grow_all(meeting);
    struct tally tally = count(meeting);
    if (tally.doubtful == 0) {
        meeting->doubt_ns = 0;
    } else if (meeting->doubt_ns == 0) {
        meeting->doubt_ns = time_after(now_ns, GATHERS_GRACE_NS);
    }
    if (tally.waiting > 0 && tally.running == 0) {
        try_to_form(meeting, &tally, now_ns);
        tally = count(meeting);
    } else {
        say(meeting, "%s", "");
    }
    meeting->waiting = tally.waiting;
}
