/* A system that does not have huge pages ready needs long for each. The host of a virtual machine
   may have to find 512 small ones, which takes 20 times as long as to clear them, while small pages
   are at hand in the machine itself. So the first of many huge pages is touched here, to see how
   long it takes. */
#define _DEFAULT_SOURCE /* for what is not POSIX */

#include "pages.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>

#ifdef __linux__
#include <sys/mman.h>
#endif

static int64_t slow_huge_page = 2000000; /* nanoseconds */
static _Atomic int64_t small_pages_left; /* bytes */

int64_t ingot_set_slow_huge_page(int64_t nanoseconds) {
    const int64_t before = slow_huge_page;
    slow_huge_page = nanoseconds;
    atomic_store(&small_pages_left, 0);
    return before;
}

#if defined(__linux__) && defined(MADV_HUGEPAGE)

static const size_t PROBED = 8 << 20, /* bytes for which one huge page speaks */
    UNPROBED = 256 << 20;             /* bytes of small pages before the next probe */

/* The processor time of this thread, which others cannot lengthen. Nanoseconds. */
static int64_t now(void) {
    struct timespec time;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0
               ? (int64_t)time.tv_sec * 1000000000 + time.tv_nsec
               : 0;
}

static bool is_slow(char *page) {
    const int64_t start = now();
    *(volatile char *)page = 0;
    return now() - start >= slow_huge_page;
}

void ingot_ask_for_huge_pages(void *begin, size_t bytes) {
    const uintptr_t mask = INGOT_HUGE_PAGE - 1;
    char *page = (char *)(((uintptr_t)begin + mask) & ~mask),
         *end = (char *)(((uintptr_t)begin + bytes) & ~mask);
    if (page >= end || atomic_fetch_sub(&small_pages_left, (int64_t)bytes) >= (int64_t)bytes)
        return;
    atomic_store(&small_pages_left, 0);
    while (page < end) {
        const size_t left = (size_t)(end - page), part = left < PROBED ? left : PROBED;
        if (madvise(page, INGOT_HUGE_PAGE, MADV_HUGEPAGE) != 0)
            return;
        if (is_slow(page)) {
            atomic_store(&small_pages_left, (int64_t)UNPROBED - (int64_t)left);
            return;
        }
        ingot_allow_huge_pages(page, part);
        page += part;
    }
}

void ingot_allow_huge_pages(void *begin, size_t bytes) { madvise(begin, bytes, MADV_HUGEPAGE); }

#else

void ingot_ask_for_huge_pages(void *begin, size_t bytes) { (void)begin, (void)bytes; }

void ingot_allow_huge_pages(void *begin, size_t bytes) { (void)begin, (void)bytes; }

#endif
