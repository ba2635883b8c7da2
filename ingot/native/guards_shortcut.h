/* A shortcut: what the last successful walk over a guard tree found, and the words of memory which
   show that a walk would find the same again. For a module in which nothing changed, a few
   comparisons take the place of the lookups.

   Every node of the tree has a standing.
   - COVERED: its path is proven by words: the version tags of the dicts, the type pointers, the
   places of `__dict__` on the way. Where dicts can be watched (see watch.h), they tell of changes
   by themselves, and have no words. The address is kept; facts that are not proven so as well (a
   tensor's) are checked at that address each call.
   - EARLY: its value is read anew at each call, without code of the user's being run and without
   any allocation, and its facts are checked; so are the argument slots.
   - LATE: as in a walk, after all others.

   A word is only read when the words and values before it have shown that the object it lies in is
   alive. So nothing here holds objects of the user's but tuples of constants. Where a version tag
   differs or a dict has told of a change, the facts about that dict are looked up again; where a
   path differs, the walk is taken, and learnt from anew. */
#ifndef INGOT_GUARDS_SHORTCUT_H
#define INGOT_GUARDS_SHORTCUT_H

#include "guards_parts.h"
#include "watch.h"
#include "words.h"

#if INGOT_HAS_WORDS

typedef enum { LATE, EARLY, COVERED } Standing;

typedef struct {
    const void *address;
    uint64_t expected;
} Word;

typedef struct {
    int node, word; /* read after the words before this one are verified */
    bool portal;    /* words lead on from its value, which must be the one that was learnt */
    size_t field;   /* for ATTRIBUTE: where in a function */
} Early;

typedef struct {
    int node;
    Check *check;
} Recheck;

typedef struct Shortcut {
    int users; /* the tree, and running calls */
    int word_count, word_room, watch_count, early_count, recheck_count, late_count, kept_count,
        held_count, relation_count;
    void *piece; /* holds what each call reads: words, early, rechecks, relations, pointers. NULL
                    while it is learnt */
    Word *words;
    int *owners;         /* per word: the node whose path or facts it proves */
    IngotWatch *watches; /* in the order in which they take part among the words */
    int changes;         /* how many of them have changed */
    Early *early;
    Recheck *rechecks;
    int *late, *kept;    /* kept: nodes whose values are needed after the late ones are read */
    int *relations;      /* those of the tree's that are checked at each call */
    PyObject **held;     /* owned: tuples of constants */
    PyObject **pointers; /* per node: borrowed; what was learnt, or read early in this call */
    unsigned char *standings, *natures; /* per node */
    bool *leaves; /* per node: whether no word relies on its address, here or below */
    bool knows_string_keys;
    bool repointed; /* a covered node is at another address than was learnt: all relations are
                       checked */
    unsigned long long hits;
} Shortcut;

/* How far a pass has come; where it ended by CHANGED, at which node, and by which word or watched
   dict; neither if by an early value. */
typedef struct {
    int word, watch, early, node;
    Word *differs;
    IngotWatch *changed;
} Progress;

/* What the words about an object take for granted: that it is large enough to have them. */
typedef enum { ANY, DICT, FUNCTION } Nature;

static inline Nature ingot_nature_of(PyObject *value) {
    return PyDict_Check(value) ? DICT : PyFunction_Check(value) ? FUNCTION : ANY;
}

typedef enum { HOLDS, FAILS, CHANGED } Verdict;

/* Whether the facts hold, by the tree's shortcut. If so, `inputs` receives input_count new
   references. CHANGED: it cannot tell, take the walk. Leaves no exception set. */
Verdict ingot_take_shortcut(GuardTree *tree, PyObject *const *slots, PyObject **inputs);

/* A pass over words, early nodes and rechecks, from where it was. Runs no code of the user's. */
Verdict ingot_verify_shortcut(GuardTree *tree, Shortcut *shortcut, PyObject *const *slots,
                              Progress *progress);

/* Makes a shortcut from the values of a walk that succeeded, and puts it in the tree's if a further
   walk agrees with it. Leaves no exception set. */
void ingot_learn_shortcut(GuardTree *tree, PyObject *const *slots, PyObject **values);

/* How many surprises it takes for a node not to be covered any more. */
#define INGOT_SURPRISES 4

void ingot_release_shortcut(Shortcut *shortcut);

#endif
#endif
