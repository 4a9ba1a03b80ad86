#ifndef PROTO_STORE_H
#define PROTO_STORE_H

/*
 * Stores of keys and values: the kinds of requests, the same in both wire protocols, and the limits that
 * library and daemon share. Numbers never change.
 *
 * X(name, number, text)
 */
#define STORE_KIND_LIST(X)                                                                                   \
    X(OPEN, 1, "open")                                                                                       \
    X(CLOSE, 2, "close")                                                                                     \
    X(SET, 3, "set")                                                                                         \
    X(GET, 4, "get")                                                                                         \
    X(ADD, 5, "add")                                                                                         \
    X(COMPARE_SET, 6, "compare_set")                                                                         \
    X(WAIT, 7, "wait")                                                                                       \
    X(CHECK, 8, "check")                                                                                     \
    X(DELETE, 9, "delete")                                                                                   \
    X(COUNT, 10, "count")

enum store_kind {
#define X(name, number, text) STORE_KIND_##name = number,
    STORE_KIND_LIST(X)
#undef X
};

#define STORE_KEY_MAX_BYTES 255
/* A request with its key fits into one packet of a client and one message between nodes: each has 64 KiB. The
 * two values of a compare_set share this. */
#define STORE_VALUE_MAX_BYTES 61440
#define STORE_ASK_KEYS_MAX 1024        /* keys of one wait or check */
#define STORE_ASK_KEYS_MAX_BYTES 49152 /* and their bytes */

#endif
