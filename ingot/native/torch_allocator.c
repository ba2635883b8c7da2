#define _GNU_SOURCE /* for dladdr1 */

#include "torch_allocator.h"

#include "heap.h"
#include "tensor.h"

#include <string.h>

#if defined(__linux__) && defined(__GLIBC__) && defined(__LP64__)
#include <dlfcn.h>
#include <link.h>

/* C++ objects as they lie in memory under the Itanium ABI, with libstdc++, whose unique_ptr has its
   deleter first. What is larger than two words, or no plain data, is returned in memory that the
   caller gives. */
typedef struct {
    void *data;
    void (*deleter)(void *);
    void *context;
    int8_t device_type, device_index;
} DataPtr;

typedef struct {
    const int64_t *data;
    size_t length;
} ArrayRef;

typedef struct {
    void *impl, *unused[2];
} Returned; /* a tensor */

/* c10::Allocator's table of virtual functions. */
typedef struct {
    ptrdiff_t offset_to_top;
    const void *type;
    void (*destroy)(void *), (*destroy_and_free)(void *);
    DataPtr (*allocate)(void *self, size_t bytes);
    void *is_simple_data_ptr, *raw_deleter;
    void (*copy_data)(const void *self, void *to, const void *from, size_t bytes);
} Functions;

typedef struct {
    const void *functions;
} Allocator;

static Functions functions;
static Allocator allocator, *torchs;
static _Thread_local void *taken; /* for the allocation that comes next */

static Returned (*empty_strided)(ArrayRef sizes, ArrayRef strides, void *allocator, uint64_t keys,
                                 int8_t dtype);
static void *(*operator_new)(size_t bytes);
static void (*report_memory)(void *pointer, int64_t change, size_t allocated, size_t reserved,
                             uint16_t device);

enum { CPU = 0, NO_INDEX = -1 };

static DataPtr by_torch(size_t bytes) {
    const Functions *its =
        (const Functions *)((const char *)torchs->functions - offsetof(Functions, destroy));
    return its->allocate(torchs, bytes);
}

static DataPtr allocate(void *Py_UNUSED(self), size_t bytes) {
    void *memory = taken;
    taken = NULL;
    if (memory == NULL && bytes >= INGOT_HEAP_FROM) /* a tensor that lay in the heap is resized */
        memory = ingot_heap_take(bytes);
    if (memory == NULL)
        return by_torch(bytes);
    return (DataPtr){memory, ingot_heap_give_back, memory, CPU, NO_INDEX};
}

static void copy_data(const void *Py_UNUSED(self), void *to, const void *from, size_t bytes) {
    memcpy(to, from, bytes);
}

static void stay(void *Py_UNUSED(self)) {}

/* A profiler counts what the heap holds, in use or not. */
static void report(void *begin, int64_t change, size_t held) {
    report_memory(begin, change, held, 0, (uint16_t)(CPU | (uint8_t)NO_INDEX << 8));
}

void *ingot_torch_allocate(size_t bytes, const int64_t *sizes, const int64_t *strides, int64_t rank,
                           int dtype, uint64_t keys) {
    void **handle = NULL;
    if (empty_strided == NULL || (taken = ingot_heap_take(bytes)) == NULL)
        return NULL;
    handle = operator_new(sizeof *handle);
    *handle = empty_strided((ArrayRef){sizes, (size_t)rank}, (ArrayRef){strides, (size_t)rank},
                            &allocator, keys, (int8_t)dtype)
                  .impl;
    return handle;
}

/* `operator new` as torch's libraries see it, since they delete: a program may have put its own
   before that of the library that they come with. */
static void *found_operator_new(void) {
    void *found = dlsym(RTLD_DEFAULT, "_Znwm");
    return found ? found : ingot_torch_symbol("_Znwm");
}

/* A later torch may have further virtual functions, which it would call. */
static bool has_size(const void *table, size_t bytes) {
    Dl_info info;
    const ElfW(Sym) *symbol = NULL;
    return dladdr1(table, &info, (void **)&symbol, RTLD_DL_SYMENT) != 0 && symbol &&
           symbol->st_size == bytes;
}

/* That virtual functions are in the order known here is seen by torch's own table: two of them are
   pure, and one has a name. How a DataPtr lies is seen by one that torch makes. */
bool ingot_torch_allocator_init(void) {
    const Functions *its = ingot_torch_symbol("_ZTVN3c109AllocatorE");
    const void *pure = ingot_torch_symbol("__cxa_pure_virtual"),
               *simple =
                   ingot_torch_symbol("_ZNK3c109Allocator18is_simple_data_ptrERKNS_7DataPtrE");
    Allocator *(*cpu_allocator)(void);
    *(void **)&cpu_allocator = ingot_torch_symbol("_ZN3c1015GetCPUAllocatorEv");
    *(void **)&report_memory =
        ingot_torch_symbol("_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE");
    *(void **)&operator_new = found_operator_new();
    void *found = ingot_torch_symbol(
        "_ZN2at6detail21empty_strided_genericEN3c108ArrayRefIlEES3_PNS1_9AllocatorENS1_"
        "14DispatchKeySetENS1_10ScalarTypeE");
    if (!its || !pure || !simple || !cpu_allocator || !report_memory || !operator_new || !found ||
        memcmp(&its->allocate, &pure, sizeof pure) != 0 ||
        memcmp(&its->copy_data, &pure, sizeof pure) != 0 || its->is_simple_data_ptr != simple ||
        !has_size(its, sizeof *its) || (torchs = cpu_allocator()) == NULL)
        return false;
    DataPtr made = by_torch(1);
    const bool known = made.data != NULL && made.context == made.data && made.deleter != NULL &&
                       made.device_type == CPU && made.device_index == NO_INDEX;
    if (!known)
        return false;
    made.deleter(made.context);
    functions = *its;
    functions.allocate = allocate;
    functions.copy_data = copy_data;
    functions.destroy = functions.destroy_and_free = stay;
    allocator.functions = &functions.destroy;
    ingot_heap_report_to(report);
    *(void **)&empty_strided = found;
    return true;
}

#else

bool ingot_torch_allocator_init(void) { return false; }

void *ingot_torch_allocate(size_t bytes, const int64_t *sizes, const int64_t *strides, int64_t rank,
                           int dtype, uint64_t keys) {
    return (void)bytes, (void)sizes, (void)strides, (void)rank, (void)dtype, (void)keys, NULL;
}

#endif
