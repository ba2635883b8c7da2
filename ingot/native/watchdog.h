/* While handlers of signals are deferred, a signal that waits for too long is sent again: a
 * blocking call in the main thread, which the first signal did not end, is ended by the second one.
 */
#ifndef INGOT_WATCHDOG_H
#define INGOT_WATCHDOG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>

/* A deferral begins in this thread. `*waits`: a signal has come and was not handled. */
void ingot_watchdog_begin(const volatile bool *waits);
void ingot_watchdog_end(void);
/* Sends the signal again after so many seconds, if the deferral is in place and one waits. */
void ingot_watchdog_send(int number, double seconds);
/* In the child of a fork, whose lock another thread may have held. */
void ingot_watchdog_renew(void);

#endif
