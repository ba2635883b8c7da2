/* How many threads are worth it while other work is on the processors.

   A launch that is shared by threads is over when the last of them is. Where a processor runs other
   work for some milliseconds in between, all wait for the thread that it has put off: one thread
   alone would have been done sooner. So it is counted how much of their time launches lose to that.
   Where it is more than more threads can gain, fewer are used, and more are tried from time to
   time. */
#ifndef INGOT_COMPANY_H
#define INGOT_COMPANY_H

#include <stdbool.h>
#include <stdint.h>

/* Times are in nanoseconds. */
typedef struct {
    int fewer;           /* threads less than there are */
    bool settled;        /* and these do not lose too much */
    bool tries;          /* what is counted now has had more than that */
    int failed;          /* times that it has lost too much */
    int64_t spent, lost; /* by launches, since it was last decided */
    int64_t next;        /* when more threads are tried again */
    int64_t pause;       /* and how long they were not */
} IngotCompany;

/* How many of `most` threads a launch has that begins now. */
int ingot_company_threads(const IngotCompany *company, int most, int64_t now);

/* Tells of a launch that had so many threads and has ended now. */
void ingot_company_observe(IngotCompany *company, int threads, int most, int64_t now, int64_t spent,
                           int64_t lost);

/* What a launch has lost, by what the thread sees that waits for the others: it has taken `pieces`
   in `busy`, `longest` for one of them, and has waited then. */
int64_t ingot_company_lost(int64_t pieces, int64_t busy, int64_t longest, int64_t waited);

#endif
