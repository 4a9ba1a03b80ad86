#ifndef DAEMON_BASE_THREAD_H
#define DAEMON_BASE_THREAD_H

#include <pthread.h>

/*
 * Starts a thread that takes no signals of commd: the main thread handles those. SIGBUS and SIGSEGV stay
 * unblocked, since the thread's own code causes them (daemon/host/guard.h). attributes: null for the default.
 * Returns 0, or an error number as pthread_create does. Any thread.
 */
int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*function)(void *), void *context);

#endif
