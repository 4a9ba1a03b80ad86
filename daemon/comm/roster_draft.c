#include "daemon/comm/roster_draft.h"

#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#include "proto/frame.h"

struct comms_roster_draft {
    struct comms_roster_draft *prev, *next; /* in comm->roster_drafts, the oldest first */
    uint32_t node;
    uint8_t *bytes; /* the parts, packed one after the other: together they unpack as one roster */
    size_t size_bytes;
};

static struct comms_roster_draft *draft_find(const struct communicator *comm, uint32_t node)
{
    struct comms_roster_draft *draft;
    DL_FOREACH(comm->roster_drafts, draft)
    {
        if (draft->node == node) {
            return draft;
        }
    }
    return NULL;
}

static void draft_free(struct communicator *comm, struct comms_roster_draft *draft)
{
    if (draft != NULL) {
        DL_DELETE(comm->roster_drafts, draft);
        free(draft->bytes);
        free(draft);
    }
}

/* Null without memory. */
static struct comms_roster_draft *draft_new(struct communicator *comm, uint32_t node)
{
    struct comms_roster_draft *other;
    uint32_t count = 0;
    draft_free(comm, draft_find(comm, node));
    DL_COUNT(comm->roster_drafts, other, count);
    if (count >= COMMS_ROSTER_DRAFTS_MAX) {
        draft_free(comm, comm->roster_drafts);
    }
    struct comms_roster_draft *draft = calloc(1, sizeof *draft);
    if (draft != NULL) {
        draft->node = node;
        DL_APPEND(comm->roster_drafts, draft);
    }
    return draft;
}

/* Returns false if it gets too long, or without memory. */
static bool append(const struct communicator *comm, struct comms_roster_draft *draft,
                   const Commd__Mesh__Roster *part)
{
    size_t most_bytes = FRAME_MAX_BYTES + (size_t)comm->terms.size * COMMS_ROSTER_RANK_MAX_BYTES;
    size_t more_bytes = commd__mesh__roster__get_packed_size(part);
    uint8_t *bytes = draft->size_bytes + more_bytes <= most_bytes
                         ? realloc(draft->bytes, draft->size_bytes + more_bytes)
                         : NULL;
    if (bytes == NULL) {
        return false;
    }
    draft->bytes = bytes;
    draft->size_bytes += commd__mesh__roster__pack(part, &bytes[draft->size_bytes]);
    return true;
}

Commd__Mesh__Roster *comms_roster_draft_add(struct communicator *comm, uint32_t node,
                                            const Commd__Mesh__Roster *part)
{
    Commd__Mesh__Roster *roster = NULL;
    struct comms_roster_draft *draft = part->first ? draft_new(comm, node) : draft_find(comm, node);
    if (draft == NULL) {
        return NULL;
    }
    bool kept = append(comm, draft, part);
    if (kept && part->last) {
        roster = commd__mesh__roster__unpack(NULL, draft->size_bytes, draft->bytes);
    }
    if (!kept || part->last) {
        draft_free(comm, draft);
    }
    return roster;
}

void comms_roster_drafts_free(struct communicator *comm)
{
    struct comms_roster_draft *draft, *next;
    DL_FOREACH_SAFE(comm->roster_drafts, draft, next)
    {
        draft_free(comm, draft);
    }
}
