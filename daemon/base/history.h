#ifndef DAEMON_BASE_HISTORY_H
#define DAEMON_BASE_HISTORY_H

#include <stdint.h>

#include "proto/types.h"

/*
 * What happened on this node lately, for `commctl events`: one list for the whole process, which the main
 * thread alone writes and reads. Events are numbered from 1 on. The node's own events and the users' events
 * have HISTORY_EVENTS_MAX places each, and overwrite the oldest of their sort. So no user can push out what
 * happened to nodes. Each user may cause HISTORY_USER_BURST events at once, then HISTORY_USER_PER_S a second;
 * all users together HISTORY_USERS_BURST, then HISTORY_USERS_PER_S a second. Further ones are only counted.
 */
#define HISTORY_EVENTS_MAX 1024u
#define HISTORY_TEXT_MAX_BYTES 255 /* a longer text is cut */
#define HISTORY_USER_BURST 64u
#define HISTORY_USER_PER_S 8u
#define HISTORY_USERS_BURST 512u
#define HISTORY_USERS_PER_S 32u

/* X(NAME, text, subject): what `subject` names; "" if the event has no subject. */
#define HISTORY_KIND_LIST(X)                                                                                 \
    X(STARTED, "started", "")                                                                                \
    X(NODE_UP, "node_up", "node")                                                                            \
    X(NODE_DOWN, "node_down", "node")                                                                        \
    X(NODE_REMOVED, "node_removed", "node")                                                                  \
    X(COMMUNICATOR_FORMED, "communicator_formed", "communicator")                                            \
    X(COMMUNICATOR_FAILED, "communicator_failed", "communicator")                                            \
    X(CLIENT_CONNECTED, "client_connected", "program")                                                       \
    X(CLIENT_DISCONNECTED, "client_disconnected", "program")                                                 \
    X(CLIENT_LOST, "client_lost", "program")                                                                 \
    X(REFUSED, "refused", "program")                                                                         \
    X(RELOADED, "reloaded", "")                                                                              \
    X(RELOAD_FAILED, "reload_failed", "")                                                                    \
    X(CERTIFICATE, "certificate", "node")                                                                    \
    X(DRAIN, "drain", "")

enum history_kind {
#define X(name, text, subject) HISTORY_##name,
    HISTORY_KIND_LIST(X)
#undef X
        HISTORY_KINDS
};

/* Who may see an event. */
enum history_audience {
    HISTORY_FOR_ALL,
    HISTORY_FOR_ADMINISTRATORS,
    HISTORY_FOR_USER /* and administrators */
};

struct history_event {
    uint64_t number;
    uint64_t time_ms; /* wall clock, since 1970 */
    enum history_kind kind;
    enum history_audience audience;
    uint32_t uid;      /* FOR_USER */
    uint32_t pid;      /* 0: no process */
    uint64_t left_out; /* FOR_USER: events of users that were only counted since the last one of this user */
    char subject[COMM_NAME_MAX_BYTES + 1];
    char text[HISTORY_TEXT_MAX_BYTES + 1];
};

/* "node_up", "node". Static storage. */
const char *history_kind_text(enum history_kind kind);
const char *history_subject_text(enum history_kind kind);

/* What an event is about. */
struct history_about {
    enum history_kind kind;
    enum history_audience audience;
    uint32_t uid;
    uint32_t pid;
    const char *subject; /* null: none; unprintable characters become '?' */
    uint64_t now_ns;     /* FOR_USER: for the limits */
};
/* Adds an event with the wall clock's time. Copies the texts. */
void history_add(const struct history_about *about, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* An event of the node itself, without a subject. */
#define history_note(kind_, audience_, ...)                                                                  \
    history_add(&(const struct history_about){.kind = (kind_), .audience = (audience_)}, __VA_ARGS__)

/* The oldest event that is kept and has a number above `after`, or null. Valid until the next history_add. */
const struct history_event *history_after(uint64_t after);
/* How many events with numbers above `after` are not kept any more. */
uint64_t history_missed(uint64_t after);
/* How many events of the kind there were, those that were only counted included. */
uint64_t history_count(enum history_kind kind);

#endif
