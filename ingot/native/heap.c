#define _DEFAULT_SOURCE /* for what is not POSIX */

#include "heap.h"

#include <stdlib.h>

#include "pages.h"

#ifdef __linux__
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

/* Blocks tile the heap from `begin` on, in the order of their addresses; idle neighbours are one,
   but where the system has the pages of one of them. What is given out begins behind a line of the
   cache that says of which block it is. */
typedef struct Block {
    char *begin;
    size_t bytes;
    struct Block *before, *after;  /* the neighbours */
    struct Block *previous, *next; /* among the idle ones, in no order */
    bool idle, returned;           /* returned: idle, and the system has its pages */
} Block;

enum { LINE = 64, LEAST = 256, STEP = INGOT_HUGE_PAGE };
static const uint64_t PERIOD = 4096; /* results */

static struct {
    pthread_mutex_t lock;
    bool tried;
    size_t page;
    char *begin, *end,
        *accessible; /* the addresses reserved, and how many of them may be accessed */
    Block *last, *idle;
    IngotHeapUse use;
    size_t most_used, most_before; /* in this period and the one before it */
    uint64_t taken;
    void (*report)(void *begin, int64_t change, size_t held);
} heap = {.lock = PTHREAD_MUTEX_INITIALIZER};

static size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

/* -- pages ------------------------------------------------------------------------------------- */

static void lock(void) { pthread_mutex_lock(&heap.lock); }

static void unlock(void) { pthread_mutex_unlock(&heap.lock); }

/* Addresses for as much memory as the machine has, so that the heap is one piece however it grows.
   Where they are limited, others need them. */
static void reserve(void) {
    heap.tried = true;
    struct rlimit addresses;
    if (getrlimit(RLIMIT_AS, &addresses) != 0 || addresses.rlim_cur != RLIM_INFINITY)
        return;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    heap.page = (size_t)page;
    const size_t bytes = pages > 0 && page > 0 ? rounded((size_t)pages * heap.page, STEP) : 0;
    char *begin = bytes ? mmap(NULL, bytes + STEP, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                        : MAP_FAILED;
    if (begin == MAP_FAILED || pthread_atfork(lock, unlock, unlock) != 0)
        return;
    heap.begin = heap.accessible = (char *)rounded((uintptr_t)begin, STEP);
    heap.end = heap.begin + bytes;
}

static bool make_accessible(char *end) {
    if (end <= heap.accessible)
        return true;
    const size_t bytes = rounded((size_t)(end - heap.accessible), STEP);
    if (bytes > (size_t)(heap.end - heap.accessible) ||
        mprotect(heap.accessible, bytes, PROT_READ | PROT_WRITE) != 0)
        return false;
    ingot_ask_for_huge_pages(heap.accessible, bytes);
    heap.accessible += bytes;
    return true;
}

static void count_held(char *begin, size_t bytes, bool more) {
    heap.use.held = more ? heap.use.held + bytes : heap.use.held - bytes;
    if (heap.report && bytes)
        heap.report(begin, more ? (int64_t)bytes : -(int64_t)bytes, heap.use.held);
}

/* -- blocks ------------------------------------------------------------------------------------ */

static void list(Block *block) {
    block->idle = true;
    block->previous = NULL;
    block->next = heap.idle;
    if (heap.idle)
        heap.idle->previous = block;
    heap.idle = block;
}

static void unlist(Block *block) {
    block->idle = false;
    *(block->previous ? &block->previous->next : &heap.idle) = block->next;
    if (block->next)
        block->next->previous = block->previous;
}

/* A new block behind `before`, of which nothing is in any list. */
static Block *insert(Block *before, char *begin, size_t bytes) {
    Block *block = calloc(1, sizeof *block);
    if (block == NULL)
        return NULL;
    block->begin = begin;
    block->bytes = bytes;
    block->before = before;
    block->after = before ? before->after : NULL;
    if (before)
        before->after = block;
    *(block->after ? &block->after->before : &heap.last) = block;
    return block;
}

/* The neighbour behind an idle block becomes a part of it. */
static void absorb(Block *block) {
    Block *after = block->after;
    block->bytes += after->bytes;
    block->after = after->after;
    *(after->after ? &after->after->before : &heap.last) = block;
    unlist(after);
    free(after);
}

static bool alike(const Block *one, const Block *other) {
    return one && other && one->idle && other->idle && one->returned == other->returned;
}

/* Joins an idle block with its neighbours. */
static void join(Block *block) {
    if (alike(block, block->after))
        absorb(block);
    if (alike(block->before, block))
        absorb(block->before);
}

/* The smallest idle block of at least so many bytes, and of these the first, so that the end stays
   free; one whose pages the system has only where there is no other. */
static Block *find(size_t bytes) {
    Block *best = NULL;
    for (Block *block = heap.idle; block; block = block->next)
        if (block->bytes >= bytes &&
            (best == NULL || (block->returned != best->returned ? best->returned
                              : block->bytes != best->bytes     ? block->bytes < best->bytes
                                                                : block->begin < best->begin)))
            best = block;
    return best;
}

/* The first of idle neighbours that have so many bytes together. */
static Block *find_neighbours(size_t bytes) {
    for (Block *block = heap.idle; block; block = block->next) {
        size_t together = 0;
        for (Block *other = block; other && other->idle && together < bytes; other = other->after)
            together += other->bytes;
        if (together >= bytes)
            return block;
    }
    return NULL;
}

/* The heap grows until its last idle blocks have so many bytes together: the first of them. */
static Block *grow(size_t bytes) {
    Block *first = NULL;
    size_t together = 0;
    for (Block *block = heap.last; block && block->idle; block = block->before) {
        first = block;
        together += block->bytes;
    }
    char *begin = heap.last ? heap.last->begin + heap.last->bytes : heap.begin;
    const size_t more = bytes - together;
    if (heap.begin == NULL || more > (size_t)(heap.end - begin) || !make_accessible(begin + more))
        return NULL;
    Block *fresh = insert(heap.last, begin, more);
    if (fresh == NULL)
        return NULL;
    fresh->returned = true;
    list(fresh);
    return first ? first : fresh;
}

/* Cuts what is too much off an idle block, where it is enough to be worth a block: whether it is.
 */
static bool cut(Block *block, size_t bytes) {
    if (block->bytes < bytes + LEAST)
        return false;
    Block *rest = insert(block, block->begin + bytes, block->bytes - bytes);
    if (rest == NULL)
        return false;
    block->bytes = bytes;
    rest->returned = block->returned;
    list(rest);
    return true;
}

/* Gives the system those units of pages that lie in a block that is returned, and of which a part
   lay between two places in it that was not returned before. Those that are wanted again soon it
   may take when it needs them, which costs no fault if it does not. */
static void give_to_system(const Block *block, const char *begin, const char *end, size_t unit,
                           bool wanted_soon) {
    const size_t first = (size_t)(begin - heap.begin) / unit * unit,
                 last = rounded((size_t)(end - heap.begin), unit);
    size_t from = rounded((size_t)(block->begin - heap.begin), unit),
           to = (size_t)(block->begin + block->bytes - heap.begin) / unit * unit;
    from = from > first ? from : first;
    to = to < last ? to : last;
    if (from < to && !(wanted_soon && madvise(heap.begin + from, to - from, MADV_FREE) == 0))
        madvise(heap.begin + from, to - from, MADV_DONTNEED);
}

/* Returns idle blocks, the ends of those at the highest addresses first, until no more than this is
   held. The system gets whole units: a part of a huge page would split it, and small pages are
   looked up more often than there is room for in the processor's table of them. */
static void trim_to(size_t bytes, size_t unit, bool wanted_soon) {
    for (Block *block = heap.last; block && heap.use.held > bytes; block = block->before) {
        if (!block->idle || block->returned)
            continue;
        const size_t excess = rounded(heap.use.held - bytes, heap.page) + heap.page;
        if (excess < block->bytes && cut(block, block->bytes - excess))
            block = block->after;
        const char *begin = block->begin, *end = begin + block->bytes;
        count_held(block->begin, block->bytes, false);
        block->returned = true;
        if (alike(block, block->after))
            absorb(block);
        if (alike(block->before, block)) {
            block = block->before;
            absorb(block);
        }
        give_to_system(block, begin, end, unit, wanted_soon);
    }
}

static size_t most_used(void) {
    return heap.most_used > heap.most_before ? heap.most_used : heap.most_before;
}

/* So many bytes are about to be used, of which the system has `returned`. No more is held than was
   in use at once, in this period or the one before it: gaps between blocks that live are not to add
   to it. */
static void use(size_t bytes, size_t returned) {
    heap.use.used += bytes;
    if (heap.use.used > heap.most_used)
        heap.most_used = heap.use.used;
    trim_to(most_used() - returned, STEP, true);
    if (++heap.taken % PERIOD == 0) {
        heap.most_before = heap.most_used;
        heap.most_used = heap.use.used;
        trim_to(most_used() - returned, STEP, false);
        ingot_allow_huge_pages(heap.begin, (size_t)(heap.accessible - heap.begin));
    }
}

static Block *take(size_t bytes) {
    if (!heap.tried)
        reserve();
    Block *block = find(bytes);
    if (block == NULL && (block = find_neighbours(bytes)) == NULL && (block = grow(bytes)) == NULL)
        return NULL;
    cut(block, bytes);
    size_t returned = block->returned ? block->bytes : 0;
    while (block->bytes < bytes) {
        cut(block->after, bytes - block->bytes);
        returned += block->after->returned ? block->after->bytes : 0;
        absorb(block);
    }
    unlist(block);
    block->returned = false;
    use(block->bytes, returned);
    count_held(block->begin, returned, true);
    return block;
}

void *ingot_heap_take(size_t bytes) {
    if (bytes > SIZE_MAX / 2)
        return NULL;
    lock();
    Block *block = take(rounded(bytes, LINE) + LINE);
    unlock();
    if (block == NULL)
        return NULL;
    *(Block **)block->begin = block;
    return block->begin + LINE;
}

void ingot_heap_give_back(void *memory) {
    if (memory == NULL)
        return;
    Block *block = *(Block **)((char *)memory - LINE);
    lock();
    heap.use.used -= block->bytes;
    list(block);
    join(block);
    unlock();
}

void ingot_heap_trim(void) {
    lock();
    trim_to(0, heap.page, false);
    heap.most_before = heap.most_used = heap.use.used;
    unlock();
}

IngotHeapUse ingot_heap_use(void) {
    lock();
    IngotHeapUse use = heap.use;
    unlock();
    return use;
}

void ingot_heap_report_to(void (*report)(void *begin, int64_t change, size_t held)) {
    heap.report = report;
}

#else /* elsewhere there is none, and results are malloc's */

void *ingot_heap_take(size_t bytes) { return (void)bytes, NULL; }

void ingot_heap_give_back(void *memory) { (void)memory; }

void ingot_heap_trim(void) {}

IngotHeapUse ingot_heap_use(void) { return (IngotHeapUse){0, 0}; }

void ingot_heap_report_to(void (*report)(void *begin, int64_t change, size_t held)) {
    (void)report;
}

#endif
