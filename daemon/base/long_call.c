#include "daemon/base/long_call.h"

#include <pthread.h>
#include <stddef.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t count;
static _Atomic uint32_t *shown;

static void show(void)
{
    if (shown != NULL) {
        atomic_store_explicit(shown, count, memory_order_relaxed);
    }
}

void long_call_show(_Atomic uint32_t *place)
{
    pthread_mutex_lock(&lock);
    shown = place;
    show();
    pthread_mutex_unlock(&lock);
}

void long_call_begin(void)
{
    pthread_mutex_lock(&lock);
    count++;
    show();
    pthread_mutex_unlock(&lock);
}

void long_call_end(void)
{
    pthread_mutex_lock(&lock);
    count--;
    show();
    pthread_mutex_unlock(&lock);
}
