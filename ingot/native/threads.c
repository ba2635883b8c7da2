#include "threads.h"

#include <limits.h>
#include <time.h>

#include "company.h"

#ifndef _WIN32
#include <dlfcn.h>
#include <pthread.h>
#endif

/* Waking a thread costs a microsecond or two; a share must be worth it. */
static const double GRAIN_NANOSECONDS = 1.5e3;

/* A thread's share is so many pieces, if each is worth it. Of short launches the shares are whole:
   what another thread has begun or written lies in the caches of its processor. */
enum { PIECES = 16, MOST_TAKEN = 256, TAKEN_STRIDE = 8 };
static const double PIECE_NANOSECONDS = 25e3;

/* Of short launches one in so many is watched, and counts for all of them: to look at the clock
   three times takes a hundredth of the time. */
enum { WATCHED = 4 };

/* All five are present on Linux, where torch brings libgomp. Elsewhere (macOS has libomp, without
   the GOMP_ entry points on every architecture) kernels run on the calling thread. */
static struct {
    void (*parallel)(void (*body)(void *), void *data, unsigned threads, unsigned flags);
    int (*thread_number)(void);
    int (*team_size)(void);
    int (*torch_threads)(void);
    _Bool (*inside_parallel)(void); /* C++ bool */
} openmp;

static int usable;
static int allowed; /* threads that the system runs at a time; 0 for no limit */

/* Of each thread that launches kernels. */
static _Thread_local IngotCompany company;
static bool watches = true;

static int64_t nanoseconds_now(void) {
    struct timespec now;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &now);
#else
    timespec_get(&now, TIME_UTC);
#endif
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* The threads of libgomp do not survive a fork, and it would wait for them for ever. */
static void after_fork_in_child(void) { usable = 0; }

/* Those that torch would use, if they can run. */
static int threads_there(void) {
    int threads = openmp.torch_threads();
    return allowed > 0 && allowed < threads ? allowed : threads;
}

static int threads_of(const IngotCompany *company, int64_t extent, int64_t unit,
                      double nanoseconds) {
    if (nanoseconds < 2 * GRAIN_NANOSECONDS || extent <= unit || !usable)
        return 1;
    double wanted = nanoseconds / GRAIN_NANOSECONDS;
    int64_t shares = (extent + unit - 1) / unit;
    int most = openmp.inside_parallel() ? 1 : threads_there();
    if (most > 1 && company->fewer > 0)
        most = ingot_company_threads(company, most, nanoseconds_now());
    if (wanted < most)
        most = (int)wanted;
    if (shares < most)
        most = (int)shares;
    return most < 1 ? 1 : most;
}

int ingot_threads_wanted(int64_t extent, int64_t unit, double nanoseconds) {
    return threads_of(&company, extent, unit, nanoseconds);
}

/* What a kernel keeps in its scratch from one call to the next begins with a word that is 0 where
 * there is nothing. */
static void forget(const IngotLaunch *launch, char *scratch) {
    if (launch->scratch_stride >= sizeof(int64_t))
        *(int64_t *)scratch = 0;
}

/* Runs the points from `begin` to `end` of the whole range: of each part, those that lie there. */
static int32_t run_range(const IngotLaunch *launch, int64_t begin, int64_t end, char *scratch) {
    if (launch->parts == 0)
        return launch->kernel(launch->buffers, launch->sizes, begin, end, scratch);
    int64_t start = 0;
    for (int i = 0; i < launch->parts && start < end; i++) {
        int64_t extent = launch->extents[i], from = Py_MAX(begin - start, 0),
                to = Py_MIN(end - start, extent);
        if (from < to) {
            forget(launch, scratch);
            int32_t status = launch->kernel(launch->buffers + (size_t)i * launch->width,
                                            launch->sizes, from, to, scratch);
            if (status != 0)
                return status;
        }
        start += (extent + launch->unit - 1) / launch->unit * launch->unit;
    }
    return 0;
}

static void piece_done(IngotWatch *watch) {
    int64_t now = nanoseconds_now(), took = now - watch->last;
    watch->last = now;
    watch->pieces++;
    if (took > watch->longest)
        watch->longest = took;
}

static void note(IngotLaunch *launch, int32_t status) {
    if (status != 0)
        __atomic_store_n(&launch->status, status, __ATOMIC_RELAXED);
}

/* A thread takes its share, whole units, as even as they come, in pieces; then pieces of others'
   that are not begun: processors are not equally fast at all times. */
static void run_shares(void *data) {
    IngotLaunch *launch = data;
    int64_t number = openmp.thread_number(), team = openmp.team_size(), unit = launch->unit;
    int64_t units = (launch->extent + unit - 1) / unit;
    char *scratch = launch->scratch + (size_t)number * launch->scratch_stride;
    IngotWatch *watch = number == 0 && launch->watched ? &launch->watch : NULL;
    forget(launch, scratch);
    if (launch->taken == NULL) {
        int64_t begin = units * number / team, end = units * (number + 1) / team;
        note(launch, run_range(launch, begin * unit, Py_MIN(end * unit, launch->extent), scratch));
        if (watch != NULL)
            piece_done(watch);
        return;
    }
    for (int64_t k = 0; k < team; k++) {
        int64_t share = (number + k) % team;
        int64_t begin = units * share / team, end = units * (share + 1) / team;
        int64_t *taken = &launch->taken[share * TAKEN_STRIDE];
        for (;;) {
            int64_t from = begin + __atomic_fetch_add(taken, launch->piece, __ATOMIC_RELAXED);
            if (from >= end)
                break;
            int64_t to = Py_MIN(from + launch->piece, end);
            int32_t status =
                run_range(launch, from * unit, Py_MIN(to * unit, launch->extent), scratch);
            note(launch, status);
            if (status != 0)
                return;
            if (watch != NULL)
                piece_done(watch);
        }
    }
}

/* Runs it, and tells what it has lost of its time; it stands for so many launches. */
static void run_watched(IngotLaunch *launch, int threads, int64_t launches) {
    int64_t begun = nanoseconds_now();
    launch->watch = (IngotWatch){.last = begun};
    openmp.parallel(run_shares, launch, (unsigned)threads, 0);
    const IngotWatch *watch = &launch->watch;
    int64_t now = nanoseconds_now();
    int64_t lost =
        ingot_company_lost(watch->pieces, watch->last - begun, watch->longest, now - watch->last);
    ingot_company_observe(&company, threads, threads_there(), now, launches * (now - begun),
                          launches * lost);
}

int32_t ingot_launch(IngotLaunch *launch, int threads) {
    if (threads <= 1) {
        forget(launch, launch->scratch);
        return run_range(launch, 0, launch->extent, launch->scratch);
    }
    int64_t taken[MOST_TAKEN * TAKEN_STRIDE];
    if (threads > MOST_TAKEN)
        threads = MOST_TAKEN;
    int64_t units = (launch->extent + launch->unit - 1) / launch->unit,
            share = (units + threads - 1) / threads;
    double worth = launch->nanoseconds / PIECE_NANOSECONDS / threads;
    int64_t pieces = Py_MIN(share, worth < PIECES ? (int64_t)worth : PIECES);
    bool whole = pieces <= 1;
    launch->taken = whole ? NULL : taken;
    launch->status = 0;
    if (!whole) {
        launch->piece = (share + pieces - 1) / pieces;
        for (int i = 0; i < threads; i++)
            taken[i * TAKEN_STRIDE] = 0;
    }
    static _Thread_local unsigned short_launches;
    bool sampled = whole && company.fewer == 0;
    launch->watched = watches && (!sampled || ++short_launches % WATCHED == 0);
    if (launch->watched)
        run_watched(launch, threads, sampled ? WATCHED : 1);
    else
        openmp.parallel(run_shares, launch, (unsigned)threads, 0);
    return launch->status;
}

static PyObject *threads_wanted(PyObject *Py_UNUSED(module), PyObject *args) {
    long long extent, unit;
    double nanoseconds;
    if (!PyArg_ParseTuple(args, "LLd", &extent, &unit, &nanoseconds))
        return NULL;
    static const IngotCompany alone;
    return PyLong_FromLong(threads_of(&alone, extent, unit, nanoseconds));
}

static PyObject *allow_threads(PyObject *Py_UNUSED(module), PyObject *count) {
    long threads = PyLong_AsLong(count);
    if (threads == -1 && PyErr_Occurred())
        return NULL;
    if (threads < 0 || threads > INT_MAX)
        return PyErr_Format(PyExc_ValueError, "allow_threads: %ld threads", threads);
    allowed = (int)threads;
    Py_RETURN_NONE;
}

static PyObject *watch_company(PyObject *Py_UNUSED(module), PyObject *does) {
    int truth = PyObject_IsTrue(does);
    if (truth < 0)
        return NULL;
    watches = truth;
    company = (IngotCompany){0};
    Py_RETURN_NONE;
}

static PyObject *threads_in_company(PyObject *Py_UNUSED(module), PyObject *args) {
    int most;
    PyObject *launches;
    if (!PyArg_ParseTuple(args, "iO!", &most, &PyList_Type, &launches))
        return NULL;
    IngotCompany seen = {0};
    PyObject *result = PyList_New(PyList_GET_SIZE(launches));
    for (Py_ssize_t i = 0; result != NULL && i < PyList_GET_SIZE(launches); i++) {
        long long now, spent, lost;
        PyObject *number = NULL;
        if (PyArg_ParseTuple(PyList_GET_ITEM(launches, i), "LLL", &now, &spent, &lost)) {
            int threads = ingot_company_threads(&seen, most, now);
            if (threads > 1)
                ingot_company_observe(&seen, threads, most, now + spent, spent, lost);
            number = PyLong_FromLong(threads);
        }
        if (number == NULL)
            Py_CLEAR(result);
        else
            PyList_SET_ITEM(result, i, number);
    }
    return result;
}

static PyObject *time_lost(PyObject *Py_UNUSED(module), PyObject *args) {
    long long pieces, busy, longest, waited;
    if (!PyArg_ParseTuple(args, "LLLL", &pieces, &busy, &longest, &waited))
        return NULL;
    return PyLong_FromLongLong(ingot_company_lost(pieces, busy, longest, waited));
}

static PyMethodDef methods[] = {
    {"threads_wanted", threads_wanted, METH_VARARGS,
     "threads_wanted(extent, unit, nanoseconds) -> int: on how many threads a kernel would run "
     "that has the processors for itself."},
    {"allow_threads", allow_threads, METH_O,
     "allow_threads(count): kernels run on at most so many threads; 0 for as many as torch has."},
    {"_watch_company", watch_company, METH_O,
     "_watch_company(does): whether launches have fewer threads beside other work."},
    {"_threads_in_company", threads_in_company, METH_VARARGS,
     "_threads_in_company(most, launches) -> list: how many of `most` threads each launch has, one "
     "after the other, of (when it begins, how long it takes, what of it is lost), in "
     "nanoseconds."},
    {"_time_lost", time_lost, METH_VARARGS,
     "_time_lost(pieces, busy, longest, waited) -> int: what a launch has lost to other work, in "
     "nanoseconds."},
    {NULL, NULL, 0, NULL},
};

#ifdef _WIN32

static int find_openmp(void) { return 0; }

#else

/* A handle whose search covers torch and what torch was linked with: never another copy of libgomp
   in the same process, whose threads would compete with torch's. */
static void *torch_handle(void) {
    PyObject *core = PyImport_ImportModule("torch._C");
    PyObject *path = core ? PyObject_GetAttrString(core, "__file__") : NULL;
    const char *text = path ? PyUnicode_AsUTF8(path) : NULL;
    void *handle = text ? dlopen(text, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    Py_XDECREF(path);
    Py_XDECREF(core);
    PyErr_Clear();
    return handle;
}

static int find_openmp(void) {
    const struct {
        const char *name;
        void *function;
    } wanted[] = {
        {"GOMP_parallel", &openmp.parallel},
        {"omp_get_thread_num", &openmp.thread_number},
        {"omp_get_num_threads", &openmp.team_size},
        {"_ZN2at15get_num_threadsEv", &openmp.torch_threads},
        {"_ZN2at18in_parallel_regionEv", &openmp.inside_parallel},
    };
    void *handle = torch_handle();
    if (handle == NULL)
        return 0;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(wanted); i++)
        if ((*(void **)wanted[i].function = dlsym(handle, wanted[i].name)) == NULL)
            return 0;
    return pthread_atfork(NULL, NULL, after_fork_in_child) == 0;
}

#endif

int ingot_threads_register(PyObject *module) {
    usable = find_openmp();
    return PyModule_AddFunctions(module, methods);
}
