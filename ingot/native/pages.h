/* Huge pages: fewer faults, and fewer addresses to translate, where the system has them ready. */
#ifndef INGOT_PAGES_H
#define INGOT_PAGES_H

#include <stddef.h>
#include <stdint.h>

enum { INGOT_HUGE_PAGE = 2 << 20 }; /* bytes */

/* Asks for huge pages in memory that holds nothing yet. */
void ingot_ask_for_huge_pages(void *begin, size_t bytes);

/* Lets the system make huge pages of small ones, which it does in its own time. */
void ingot_allow_huge_pages(void *begin, size_t bytes);

/* How long a huge page may take, in nanoseconds, before small ones are preferred. Returns what it
   was before. */
int64_t ingot_set_slow_huge_page(int64_t nanoseconds);

#endif
