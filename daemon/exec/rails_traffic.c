#include <stdio.h>
#include <stdlib.h>

#include <utlist.h>

#include "daemon/exec/rails_internal.h"

/*
 * What the rails' connections carried, for people. A connection belongs to its rail's thread, so each rail
 * looks at its own and sends what it saw; the home adds it up. Nobody counts while nobody asks.
 */

struct traffic_part {
    struct mail mail;
    struct traffic_question *question;
    uint32_t rail;
};

struct traffic_question {
    struct traffic_question *prev, *next;
    struct rails *rails;
    uint32_t first, count;        /* of peers */
    rails_traffic_function *done; /* null: forgotten */
    void *context;
    uint32_t parts_left;
    struct traffic_part parts[EXEC_RAILS_MAX]; /* the first is unused */
    struct rails_traffic *sums;                /* count */
    struct net_peer_statistics *seen;          /* count of each rail's; the first rail's are unused */
};

static void question_free(struct traffic_question *question)
{
    free(question->sums);
    free(question->seen);
    free(question);
}

static void add_link(struct rails_traffic *sum, uint32_t rail, const struct rails_link *link,
                     const struct net_peer_statistics *seen)
{
    sum->sent_bytes += seen->sent_bytes;
    sum->received_bytes += seen->received_bytes;
    sum->lost_packets += seen->lost_packets;
    if (link->wanted == 0) {
        return;
    }
    sum->needed++;
    sum->connected += seen->up;
    if (!seen->up && sum->missing[0] == '\0') {
        (void)snprintf(sum->missing, sizeof sum->missing, "rail %u is not connected%s%s", rail,
                       link->why.text[0] == '\0' ? "" : ": ", link->why.text);
    }
}

static void question_answer(struct traffic_question *question, uint64_t now_ns)
{
    const struct rails *rails = question->rails;
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        for (uint32_t i = 0; i < question->count; i++) {
            add_link(&question->sums[i], rail, &rails->peers[question->first + i].links[rail],
                     &question->seen[rail * question->count + i]);
        }
    }
    question->done(question->context, question->sums, now_ns);
}

static void home_part_seen(void *context, uint64_t now_ns)
{
    const struct traffic_part *part = context;
    struct traffic_question *question = part->question;
    if (--question->parts_left > 0) {
        return;
    }
    DL_DELETE(question->rails->questions, question);
    if (question->done != NULL) {
        question_answer(question, now_ns);
    }
    question_free(question);
}

/* On the rail's thread. */
static void rail_look(void *context, uint64_t now_ns)
{
    struct traffic_part *part = context;
    const struct traffic_question *question = part->question;
    struct rails *rails = question->rails;
    (void)now_ns;
    for (uint32_t i = 0; i < question->count; i++) {
        if (question->first + i < rails->endpoints[part->rail].peer_count) {
            net_peer_statistics(rails->nets[part->rail], question->first + i,
                                &question->seen[part->rail * question->count + i]);
        }
    }
    part->mail = (struct mail){.deliver = home_part_seen, .context = part};
    mailbox_put(rails_mailbox(rails, 0), &part->mail);
}

enum status rails_ask_traffic(struct rails *rails, uint32_t first, uint32_t count,
                              rails_traffic_function *done, void *context, struct error *error)
{
    if (rails->network_count < 2 || count == 0 || first >= rails->peer_count ||
        count > rails->peer_count - first) {
        return error_set(error, STATUS_NOT_FOUND, "no rails to these nodes");
    }
    struct traffic_question *question = calloc(1, sizeof *question);
    if (question != NULL) {
        question->sums = calloc(count, sizeof *question->sums);
        question->seen = calloc((size_t)rails->network_count * count, sizeof *question->seen);
    }
    if (question == NULL || question->sums == NULL || question->seen == NULL) {
        if (question != NULL) {
            question_free(question);
        }
        return error_set(error, STATUS_NO_MEMORY, "no memory to ask the rails");
    }
    question->rails = rails;
    question->first = first;
    question->count = count;
    question->done = done;
    question->context = context;
    question->parts_left = rails->network_count - 1;
    DL_APPEND(rails->questions, question);
    for (uint32_t rail = 1; rail < rails->network_count; rail++) {
        struct traffic_part *part = &question->parts[rail];
        part->question = question;
        part->rail = rail;
        part->mail = (struct mail){.deliver = rail_look, .context = part};
        mailbox_put(rails_mailbox(rails, rail), &part->mail);
    }
    return STATUS_OK;
}

void rails_forget_traffic(struct rails *rails, const void *context)
{
    struct traffic_question *question;
    DL_FOREACH(rails->questions, question)
    {
        if (question->context == context) {
            question->done = NULL;
        }
    }
}
