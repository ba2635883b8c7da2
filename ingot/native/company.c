#include "company.h"

static const int64_t MILLISECOND = 1000000;

/* It is decided when launches have taken so long in all, of a trial sooner: one that fails costs as
   much. */
#define WINDOW (20 * MILLISECOND)
#define TRIAL (60 * MILLISECOND)

/* A trial follows after so long, after twice as long where the last one has failed, but not after
   longer than this. */
#define PAUSE (50 * MILLISECOND)
#define LONGEST_PAUSE (2000 * MILLISECOND)

/* Threads that do the same work are apart by less than this. */
#define APART (MILLISECOND / 4)

/* One of so many parts of the time may be lost. */
enum { PARTS = 3 };

static int step(int threads) { return (threads + 3) / 4; }

int ingot_company_threads(const IngotCompany *company, int most, int64_t now) {
    int threads = most - company->fewer;
    if (threads < 1)
        threads = 1;
    if (company->fewer > 0 && now >= company->next)
        threads += step(threads);
    return threads < most ? threads : most;
}

void ingot_company_observe(IngotCompany *company, int threads, int most, int64_t now, int64_t spent,
                           int64_t lost) {
    int usual = most - company->fewer;
    bool tries = company->fewer > 0 && threads > usual;
    if (tries != company->tries) {
        company->tries = tries;
        company->spent = company->lost = 0;
    }
    company->spent += spent;
    company->lost += lost;
    if (company->spent < (tries ? TRIAL : WINDOW))
        return;
    bool fails = company->lost > company->spent / PARTS;
    company->spent = company->lost = 0;
    if (fails) {
        int64_t pause = company->pause > 0 ? company->pause : PAUSE;
        company->fewer = most - (tries ? usual : usual - step(usual));
        company->next = now + pause;
        company->pause = 2 * pause < LONGEST_PAUSE ? 2 * pause : LONGEST_PAUSE;
    } else if (tries) {
        company->fewer = most - threads;
        company->next = now;
        company->pause = PAUSE;
    }
}

int64_t ingot_company_lost(int64_t pieces, int64_t busy, int64_t longest, int64_t waited) {
    int64_t lost = 0, others = pieces > 1 ? (busy - longest) / (pieces - 1) : longest;
    if (waited > APART + longest)
        lost += waited - longest;
    if (longest > APART + 2 * others) /* it was put off itself */
        lost += longest - others;
    return lost;
}
