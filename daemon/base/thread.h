#ifndef DAEMON_BASE_THREAD_H
#define DAEMON_BASE_THREAD_H

#include <pthread.h>

/*
 * Starts a thread that no signal of commd's is delivered to: these are the main thread's. SIGBUS and SIGSEGV,
 * which say what the thread itself did, stay open (daemon/host/guard.h). attributes: null for the usual ones.
 * Returns 0, or the number of the error as pthread_create does. Any thread.
 */
int thread_start(pthread_t *out, const pthread_attr_t *attributes, void *(*function)(void *), void *context);

#endif
