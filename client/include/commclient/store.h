#ifndef COMMCLIENT_STORE_H
#define COMMCLIENT_STORE_H

/*
 * A small store of keys and values that the processes of a job share, so that they find each other without an
 * address. commclient.h includes this file.
 *
 * A store belongs to the user and has a name, as a communicator does. Processes on all nodes on which the
 * user may be reach it through their own commd. One node keeps it: all nodes choose the same one, by the
 * name. A name that ends in "@" and a node's name is kept on that node. If that node is not connected,
 * comm_store_open waits for it, and fails with COMM_UNREACHABLE, which names the node. If the node is lost
 * later, the store is lost: every call fails with COMM_NODE_LOST, and the job starts again under another
 * name.
 *
 * Threads: several threads may use one store. A call that waits delays no other thread's call. Close a store
 * only when no other thread uses it, and before its client.
 *
 * Errors of all calls: COMM_INVALID_ARGUMENT, COMM_LIMIT (a size or number, or what the user may hold),
 * COMM_NO_MEMORY, COMM_TIMED_OUT, COMM_NODE_LOST, COMM_DAEMON_LOST, COMM_PERMISSION. Calls without a time-out
 * of their own fail with COMM_TIMED_OUT after 60 s without an answer; it is then unknown whether the store
 * was changed.
 */

typedef struct comm_store comm_store_t;

/*
 * Opens the store `name` (1 to 127 printable ASCII characters without space). The first process that opens it
 * makes it, empty. It ends 60 s after the last process has closed it, or has ended. timeout_ms 0 means 60 s.
 * COMM_UNREACHABLE, COMM_UNSUPPORTED (this node's commd, or the keeper's, is too old), COMM_SHUTTING_DOWN
 * (the keeper drains).
 */
COMM_API COMM_CHECK comm_result_t comm_store_open(comm_client_t *client, const char *name,
                                                  uint32_t timeout_ms, comm_store_t **store);
/* Calls that wait in other threads must have ended. Null is accepted. */
COMM_API void comm_store_close(comm_store_t *store);

/* A key is text of 1 to 255 bytes, with any bytes but 0. A store holds up to 65,536 keys and 16 MiB. */
#define COMM_STORE_KEY_MAX 255
/* A value is up to 60 KiB of any bytes. */
#define COMM_STORE_VALUE_MAX 61440u

/* Stores a value, in place of the one before. value may be null if size is 0. */
COMM_API COMM_CHECK comm_result_t comm_store_set(comm_store_t *store, const char *key, const void *value,
                                                 size_t size);
/*
 * Waits until the key exists, at most timeout_ms: COMM_TIMED_OUT. With 0, it does not wait. *value is
 * allocated, also for an empty value; free it with comm_store_free.
 */
COMM_API COMM_CHECK comm_result_t comm_store_get(comm_store_t *store, const char *key, uint32_t timeout_ms,
                                                 void **value, size_t *size);
/* Null is accepted. */
COMM_API void comm_store_free(void *value);
/*
 * Adds to a number (decimal text), and returns the sum, which may be null. A missing key counts as 0.
 * COMM_INVALID_ARGUMENT: the value is no number, or the sum does not fit into 64 bits.
 */
COMM_API COMM_CHECK comm_result_t comm_store_add(comm_store_t *store, const char *key, int64_t delta,
                                                 int64_t *sum);
/*
 * Stores `desired` if the value equals `expected`, or if the key does not exist and expected_size is 0.
 * *value is what the key holds afterwards; free it with comm_store_free. If the key still does not exist,
 * *value is a copy of `expected`, as PyTorch's compare_set returns it. Both together are up to
 * COMM_STORE_VALUE_MAX bytes.
 */
COMM_API COMM_CHECK comm_result_t comm_store_compare_set(comm_store_t *store, const char *key,
                                                         const void *expected, size_t expected_size,
                                                         const void *desired, size_t desired_size,
                                                         void **value, size_t *size);
/*
 * Waits until each key has existed, at most timeout_ms: COMM_TIMED_OUT, and the text names a missing key.
 * With 0, it does not wait. More than 1,024 keys, or 48 KiB of keys, are waited for in several steps.
 */
COMM_API COMM_CHECK comm_result_t comm_store_wait(comm_store_t *store, const char *const *keys, size_t count,
                                                  uint32_t timeout_ms);
/* *all gets 1 if all keys exist, otherwise 0. */
COMM_API COMM_CHECK comm_result_t comm_store_check(comm_store_t *store, const char *const *keys, size_t count,
                                                   int *all);
/* *existed, which may be null, gets 1 if the key existed, otherwise 0. */
COMM_API COMM_CHECK comm_result_t comm_store_delete(comm_store_t *store, const char *key, int *existed);
/* The number of keys that exist. */
COMM_API COMM_CHECK comm_result_t comm_store_count(comm_store_t *store, size_t *keys);

#endif
