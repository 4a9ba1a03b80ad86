#ifndef PROTO_STATUS_H
#define PROTO_STATUS_H

/*
 * The one list of result codes, shared by the daemon, the wire formats and the client library.
 *
 * Numbers are part of both wire protocols and of the library's ABI: they are never reused or renumbered.
 * client/include/commclient.h repeats the names as COMM_<NAME>; client/lib asserts that they are the same.
 *
 * X(name, number, text)
 */
#define STATUS_LIST(X)                                                                                       \
    X(OK, 0, "success")                                                                                      \
    X(IN_PROGRESS, 1, "not finished yet")                                                                    \
    X(INVALID_ARGUMENT, 2, "invalid argument")                                                               \
    X(UNSUPPORTED, 3, "combination without a meaning, or not offered by this build")                         \
    X(MISMATCH, 4, "ranks do not agree")                                                                     \
    X(PERMISSION, 5, "not permitted")                                                                        \
    X(NOT_FOUND, 6, "no such object")                                                                        \
    X(ALREADY_EXISTS, 7, "already exists")                                                                   \
    X(LIMIT, 8, "a named limit is reached")                                                                  \
    X(NO_MEMORY, 9, "out of memory")                                                                         \
    X(TIMED_OUT, 10, "deadline passed")                                                                      \
    X(PROTOCOL, 11, "malformed or unexpected message")                                                       \
    X(VERSION, 12, "protocol version not understood")                                                        \
    X(DAEMON_LOST, 13, "connection to commd lost")                                                           \
    X(NODE_LOST, 14, "a node of the communicator is lost")                                                   \
    X(RANK_LOST, 15, "a rank of the communicator is lost")                                                   \
    X(ABORTED, 16, "the communicator was aborted")                                                           \
    X(SHUTTING_DOWN, 17, "commd is shutting down")                                                           \
    X(CONFIG, 18, "bad configuration")                                                                       \
    X(SYSTEM, 19, "a system call failed")                                                                    \
    X(CERTIFICATE, 20, "certificate not acceptable")                                                         \
    X(UNREACHABLE, 21, "node cannot be reached")                                                             \
    X(INTERNAL, 22, "internal error: please report")                                                         \
    X(DEVICE, 23, "a GPU or its driver failed")                                                              \
    X(BUSY, 24, "still in use")

enum status {
#define X(name, number, text) STATUS_##name = number,
    STATUS_LIST(X)
#undef X
};

#define STATUS_COUNT 25

#define COMM_MUST_USE __attribute__((warn_unused_result))

/* Short text of a code; "unknown status" for a number that is not in the list. Static storage, thread-safe.
 */
const char *status_text(enum status status);

/* Upper-case name of a code ("TIMED_OUT"); "UNKNOWN" for a number that is not in the list. Static storage. */
const char *status_name(enum status status);

/*
 * Converts a number from the wire into a code. A number that is not in the list becomes STATUS_PROTOCOL, so a
 * peer can never create an unlisted enum value.
 */
enum status status_from_wire(unsigned number);

#endif
