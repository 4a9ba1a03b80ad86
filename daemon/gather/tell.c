#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "daemon/gather/gathers_internal.h"

/* What a place tells the nodes of its names. */

#define NEWS_NS (100 * TIME_MS) /* of those who wait: at most that often, however many come */

static bool party_has_seats(const struct gathers_party *party)
{
    for (uint32_t i = 0; i < party->count; i++) {
        if (party->guests[i].seat_untold || party->guests[i].grow_untold) {
            return true;
        }
    }
    return false;
}

static void seat_to_wire(const struct gathers_guest *guest, bool grown, Commd__Mesh__GatherSeat *out)
{
    *out = (Commd__Mesh__GatherSeat)COMMD__MESH__GATHER_SEAT__INIT;
    out->id = guest->id;
    if (grown) {
        out->grow_number = guest->grow_answered;
        out->generation = guest->grown.number.generation;
        out->nonce = guest->grown.number.nonce;
        out->seated = guest->grown.seated;
        out->size = guest->grown_size;
    } else {
        out->generation = guest->generation;
        out->nonce = guest->nonce;
        out->seated = guest->seated;
        out->rank = guest->rank;
        out->size = guest->size;
    }
}

/* A guest has at most one of the two to be told: it waits for a rank, or it grows. */
static size_t fill_seats(struct gathers_party *party, Commd__Mesh__GatherSeat *seats,
                         Commd__Mesh__GatherSeat **list)
{
    size_t count = 0;
    for (uint32_t i = 0; i < party->count && count < GATHERS_ENTRIES_MAX; i++) {
        struct gathers_guest *guest = &party->guests[i];
        if (guest->seat_untold || guest->grow_untold) {
            seat_to_wire(guest, !guest->seat_untold, &seats[count]);
            list[count] = &seats[count];
            count++;
        }
    }
    return count;
}

static size_t fill_voids(const struct gathers_party *party, Commd__Mesh__GatherVoid *voids,
                         Commd__Mesh__GatherVoid **list)
{
    const struct gathers_meeting *meeting = party->meeting;
    size_t count = 0;
    uint64_t first = party->told_voids;
    if (meeting->void_count - first > GATHERS_VOIDS_MAX) {
        first = meeting->void_count - GATHERS_VOIDS_MAX;
    }
    for (uint64_t i = first; i < meeting->void_count; i++) {
        const struct gathers_number *number = &meeting->voids[i % GATHERS_VOIDS_MAX];
        voids[count] = (Commd__Mesh__GatherVoid)COMMD__MESH__GATHER_VOID__INIT;
        voids[count].generation = number->generation;
        voids[count].nonce = number->nonce;
        list[count] = &voids[count];
        count++;
    }
    return count;
}

static void note_told(struct gathers_party *party)
{
    const struct gathers_meeting *meeting = party->meeting;
    party->told_waiting = meeting->waiting;
    party->told_text = meeting->text_number;
    party->told_voids = meeting->void_count;
    for (uint32_t i = 0; i < party->count; i++) {
        party->guests[i].seat_untold = party->guests[i].grow_untold = false;
    }
}

static bool party_tell(struct gathers_party *party, uint64_t now_ns)
{
    const struct gathers_meeting *meeting = party->meeting;
    struct mesh *mesh = meeting->gathers->mesh;
    Commd__Mesh__GatherSeat seats[GATHERS_ENTRIES_MAX], *seat_list[GATHERS_ENTRIES_MAX]; /* 20 KiB */
    Commd__Mesh__GatherVoid voids[GATHERS_VOIDS_MAX], *void_list[GATHERS_VOIDS_MAX];
    Commd__Mesh__Gathered answer = COMMD__MESH__GATHERED__INIT;
    uint32_t node = party->node;
    if (node != MESH_NODE_OWN && mesh_node_queued(mesh, node) >= GATHERS_QUEUED_MAX) {
        return false;
    }
    answer.name = (char *)(uintptr_t)meeting->key.name;
    answer.owner_uid = meeting->key.owner_uid;
    answer.number = party->number;
    answer.waiting = meeting->waiting;
    answer.text = (char *)(uintptr_t)meeting->text;
    answer.n_seats = fill_seats(party, seats, seat_list);
    answer.seats = seat_list;
    answer.n_voids = fill_voids(party, voids, void_list);
    answer.voids = void_list;
    note_told(party);
    if (node == MESH_NODE_OWN) {
        gathers_here_answered(meeting->gathers, MESH_NODE_OWN, &answer, now_ns);
        return true;
    }
    Commd__Mesh__Message message = MESH_MESSAGE(GATHERED, gathered, &answer);
    mesh_tell(mesh, node, &message);
    return true;
}

bool gathers_tell(struct gathers_meeting *meeting, uint64_t now_ns)
{
    struct gathers_party *party, *next;
    bool all = true, told_news = false;
    DL_FOREACH_SAFE(meeting->parties, party, next)
    {
        bool urgent = party->told_waiting == UINT32_MAX || party->told_voids != meeting->void_count ||
                      party_has_seats(party);
        bool news = party->told_waiting != meeting->waiting || party->told_text != meeting->text_number;
        if (urgent || (news && meeting->tell_ns <= now_ns)) {
            told_news = told_news || !urgent;
            all = party_tell(party, now_ns) && all;
        } else if (news) {
            meeting->next_ns = time_min(meeting->next_ns, meeting->tell_ns);
        }
    }
    if (told_news) {
        meeting->tell_ns = time_after(now_ns, NEWS_NS);
    }
    meeting->gathers->next_ns = time_min(meeting->gathers->next_ns, meeting->next_ns);
    return all;
}
