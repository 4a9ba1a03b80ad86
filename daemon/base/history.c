#include "daemon/base/history.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "daemon/base/log.h"
#include "daemon/base/time.h"

/* Users whose numbers are equal modulo this share a limit. */
#define USER_LIMITS 64u

struct ring {
    struct history_event events[HISTORY_EVENTS_MAX];
    uint64_t count; /* of all events so far; the latest is at (count - 1) modulo the size */
};

struct user_limit {
    struct log_limit limit;
    uint64_t left_out;
};

static struct ring of_node, of_users;
static struct user_limit user_limits[USER_LIMITS];
static struct log_limit users_limit;
static uint64_t last_number;
static uint64_t kind_counts[HISTORY_KINDS];

const char *history_kind_text(enum history_kind kind)
{
    static const char *const texts[HISTORY_KINDS] = {
#define X(name, text, subject) text,
        HISTORY_KIND_LIST(X)
#undef X
    };
    return texts[kind];
}

const char *history_subject_text(enum history_kind kind)
{
    static const char *const subjects[HISTORY_KINDS] = {
#define X(name, text, subject) subject,
        HISTORY_KIND_LIST(X)
#undef X
    };
    return subjects[kind];
}

/* Whether a user may cause one more event. If so, *left_out gets how many were suppressed before. */
static bool user_may(const struct history_about *about, uint64_t *left_out)
{
    struct user_limit *user = &user_limits[about->uid % USER_LIMITS];
    user->limit.burst = HISTORY_USER_BURST;
    user->limit.interval_ns = TIME_S / HISTORY_USER_PER_S;
    users_limit.burst = HISTORY_USERS_BURST;
    users_limit.interval_ns = TIME_S / HISTORY_USERS_PER_S;
    if (!log_limit_pass(&user->limit, about->now_ns, NULL) ||
        !log_limit_pass(&users_limit, about->now_ns, NULL)) {
        user->left_out++;
        return false;
    }
    *left_out = user->left_out;
    user->left_out = 0;
    return true;
}

static uint64_t wall_clock_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / TIME_MS;
}

static void copy_printable(char *out, size_t size, const char *text)
{
    (void)snprintf(out, size, "%s", text);
    for (char *byte = out; *byte != '\0'; byte++) {
        *byte = (char)(*byte < ' ' || *byte > '~' ? '?' : *byte);
    }
}

void history_add(const struct history_about *about, const char *format, ...)
{
    uint64_t left_out = 0;
    bool of_user = about->audience == HISTORY_FOR_USER;
    struct ring *ring = of_user ? &of_users : &of_node;
    kind_counts[about->kind]++;
    if (of_user && !user_may(about, &left_out)) {
        return;
    }
    struct history_event *event = &ring->events[ring->count++ % HISTORY_EVENTS_MAX];
    event->number = ++last_number;
    event->time_ms = wall_clock_ms();
    event->kind = about->kind;
    event->audience = about->audience;
    event->uid = about->uid;
    event->pid = about->pid;
    event->left_out = left_out;
    copy_printable(event->subject, sizeof event->subject, about->subject != NULL ? about->subject : "");
    char text[sizeof event->text];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    copy_printable(event->text, sizeof event->text, text);
}

static uint64_t oldest_kept(const struct ring *ring)
{
    return ring->count > HISTORY_EVENTS_MAX ? ring->count - HISTORY_EVENTS_MAX : 0;
}

/* The place, counted from the ring's first event on, of the oldest kept one above `after`. The ring's numbers
 * ascend. */
static uint64_t place_after(const struct ring *ring, uint64_t after)
{
    uint64_t low = oldest_kept(ring), high = ring->count;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (ring->events[middle % HISTORY_EVENTS_MAX].number > after) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static const struct history_event *ring_after(const struct ring *ring, uint64_t after)
{
    uint64_t place = place_after(ring, after);
    return place < ring->count ? &ring->events[place % HISTORY_EVENTS_MAX] : NULL;
}

const struct history_event *history_after(uint64_t after)
{
    const struct history_event *node = ring_after(&of_node, after);
    const struct history_event *user = ring_after(&of_users, after);
    if (node == NULL || user == NULL) {
        return node != NULL ? node : user;
    }
    return node->number < user->number ? node : user;
}

uint64_t history_missed(uint64_t after)
{
    uint64_t kept =
        of_node.count - place_after(&of_node, after) + of_users.count - place_after(&of_users, after);
    return after < last_number ? last_number - after - kept : 0;
}

uint64_t history_count(enum history_kind kind)
{
    return kind_counts[kind];
}
