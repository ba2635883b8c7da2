#include "company.h"

#define MILLISECOND INT64_C(1000000)

/* It is decided when launches have taken so long in all: a burst of other work is over sooner. */
#define WINDOW (100 * MILLISECOND)

/* A trial has failed after so many times that. A thread that wakes on the processor of the one that
   waits for it stays there until the system moves it. */
enum { TRIALS = 2 };

/* A trial follows after so long, after twice as long where the last one has failed, but not after
   longer than this. */
#define PAUSE (50 * MILLISECOND)
#define LONGEST_PAUSE (2000 * MILLISECOND)

/* Threads that do the same work are apart by less than this. */
#define APART (MILLISECOND / 4)

/* One of so many parts of the time may be lost. */
enum { PARTS = 3 };

static int step(int threads) { return (threads + 3) / 4; }

static int usual(const IngotCompany *company, int most) {
    return company->fewer < most ? most - company->fewer : 1;
}

int ingot_company_threads(const IngotCompany *company, int most, int64_t now) {
    int threads = usual(company, most);
    if (company->fewer > 0 && now >= company->next && (company->settled || threads == 1))
        threads += step(threads);
    return threads < most ? threads : most;
}

static void use_fewer(IngotCompany *company, int threads, int most, int64_t now, int64_t pause) {
    company->pause = pause < LONGEST_PAUSE ? pause : LONGEST_PAUSE;
    company->next = now + company->pause;
    company->fewer = most - threads;
    company->failed = 0;
    company->settled = false;
}

void ingot_company_observe(IngotCompany *company, int threads, int most, int64_t now, int64_t spent,
                           int64_t lost) {
    int before = usual(company, most);
    bool tries = threads > before;
    if (tries != company->tries) {
        company->tries = tries;
        company->spent = company->lost = 0;
    }
    company->spent += spent;
    company->lost += lost;
    if (company->spent < WINDOW)
        return;
    bool fails = company->lost > company->spent / PARTS;
    company->spent = company->lost = 0;
    if (!fails && tries)
        use_fewer(company, threads, most, now, 0);
    if (!fails)
        company->settled = true;
    else if (!tries)
        use_fewer(company, before - step(before), most, now, PAUSE);
    else if (++company->failed == TRIALS)
        use_fewer(company, before, most, now, company->pause > 0 ? 2 * company->pause : PAUSE);
}

int64_t ingot_company_lost(int64_t pieces, int64_t busy, int64_t longest, int64_t waited) {
    int64_t lost = 0, others = pieces > 1 ? (busy - longest) / (pieces - 1) : longest;
    if (waited > APART + longest)
        lost += waited - longest;
    if (longest > APART + 2 * others) /* it was put off itself */
        lost += longest - others;
    return lost;
}
