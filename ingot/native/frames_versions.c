#include "frames_parts.h"

#if !INGOT_KNOWS_FRAMES

/* nothing is raised where no frame is begun */

#elif PYTHON_3_13

/* When CPython 3.13 enters a frame with an exception, the line in the traceback is that of the
   frame's position, and the handler that of the unit before. Both must be those of one instruction,
   which may be a single unit long. */

typedef struct {
    int target, depth_and_lasti;
} Handler;

/* Six bits a byte, most significant first; 64 says that more follow. See
 * Objects/exception_handling_notes.txt. */
static const unsigned char *read_varint(const unsigned char *at, int *value) {
    *value = *at & 63;
    while (*at++ & 64)
        *value = *value << 6 | (*at & 63);
    return at;
}

static Handler handler_at(const IngotCode *code, int unit) {
    PyObject *table = code->object->co_exceptiontable;
    const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(table),
                        *end = at + PyBytes_GET_SIZE(table);
    while (at < end) {
        int start, size;
        Handler handler;
        at = read_varint(at, &start);
        at = read_varint(at, &size);
        at = read_varint(at, &handler.target);
        at = read_varint(at, &handler.depth_and_lasti);
        if (start <= unit && unit < start + size)
            return handler;
    }
    return (Handler){-1, -1};
}

int ingot_raising_position(const IngotCode *code, int unit) {
    Handler handler = handler_at(code, unit);
    int line = PyCode_Addr2Line(code->object, 2 * unit), found = -1;
    for (int i = code->object->_co_firsttraceable + 1; i < code->size; i++) {
        Handler before = handler_at(code, i - 1);
        if (before.target != handler.target || before.depth_and_lasti != handler.depth_and_lasti ||
            PyCode_Addr2Line(code->object, 2 * i) != line)
            continue;
        if (found < 0 || abs(i - unit) < abs(found - unit))
            found = i;
    }
    return found < 0 ? unit + 1 : found;
}

#else

int ingot_raising_position(const IngotCode *Py_UNUSED(code), int unit) { return unit + 1; }

#endif
