/* The watchdog: a thread that sends a signal again which waits for too long. */
#include "watchdog.h"

#include <stdint.h>

#ifdef _WIN32

void ingot_watchdog_begin(const volatile bool *waits) { (void)waits; }
void ingot_watchdog_end(void) {}
void ingot_watchdog_send(int number, double seconds) { (void)number, (void)seconds; }
void ingot_watchdog_renew(void) {}

#else

#include <pthread.h>
#include <signal.h>
#include <time.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t watched; /* the number of the deferral that is in place; 0: none */
static uint64_t deferrals;
static pthread_t main_thread;
static const volatile bool *signal_waits;

typedef struct {
    uint64_t deferral;
    int number;
    double seconds;
} Watch;

static void *watchdog(void *data) {
    Watch watch = *(Watch *)data;
    PyMem_RawFree(data);
    struct timespec time = {.tv_sec = (time_t)watch.seconds,
                            .tv_nsec = (long)((watch.seconds - (long)watch.seconds) * 1e9)};
    while (nanosleep(&time, &time) != 0)
        ;
    pthread_mutex_lock(&lock);
    if (watched == watch.deferral && *signal_waits)
        pthread_kill(main_thread, watch.number);
    pthread_mutex_unlock(&lock);
    return NULL;
}

void ingot_watchdog_send(int number, double seconds) {
    Watch *data = PyMem_RawMalloc(sizeof *data);
    if (data == NULL)
        return;
    *data = (Watch){watched, number, seconds};
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before); /* no signal is for it */
    pthread_t thread;
    if (pthread_create(&thread, NULL, watchdog, data) == 0)
        pthread_detach(thread);
    else
        PyMem_RawFree(data);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ingot_watchdog_begin(const volatile bool *waits) {
    pthread_mutex_lock(&lock);
    watched = ++deferrals;
    main_thread = pthread_self();
    signal_waits = waits;
    pthread_mutex_unlock(&lock);
}

void ingot_watchdog_end(void) {
    pthread_mutex_lock(&lock);
    watched = 0;
    pthread_mutex_unlock(&lock);
}

void ingot_watchdog_renew(void) {
    pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    lock = fresh;
}

#endif
