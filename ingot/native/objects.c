#define _GNU_SOURCE /* for what is not POSIX */

#include "objects.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#if defined(__linux__) && defined(__x86_64__)
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

/* Kernels are relocatable object files of ELF, as LLVM makes them: code and constants that refer to
   one another, and call functions of the C library. What there is beside these (data that is
   written, threads' own memory, other relocations) is not dealt with here, and the file is LLVM's
   to load. */

enum { MOST_SECTIONS = 4096, MOST_BYTES = 1 << 28, STUB = 16 };

/* A jump to the address behind it, as far away as it may be: what is called lies in a library. */
static const unsigned char JUMP[] = {0xff, 0x25, 0, 0, 0, 0};

typedef struct {
    const char *data;
    size_t size;
    const Elf64_Shdr *sections;
    size_t count;
    size_t *places; /* of each section in memory; NOWHERE for one that is not there */
    const Elf64_Sym *symbols;
    size_t symbol_count;
    size_t stubs; /* the place of the first symbol's; each has one, used or not */
    const char *texts;
    size_t texts_size;
} Image;

typedef struct {
    char *begin;
    size_t bytes;
} Memory;

static const size_t NOWHERE = SIZE_MAX;

/* Whether `count` items lie in the file from `offset` on, where they are aligned. */
static bool holds(const Image *image, uint64_t offset, uint64_t count, size_t item) {
    return offset <= image->size && count <= (image->size - offset) / item &&
           (item == 1 || ((uintptr_t)image->data + offset) % sizeof(uint64_t) == 0);
}

static bool read_header(Image *image) {
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)image->data;
    if (!holds(image, 0, 1, sizeof *header) || memcmp(header->e_ident, ELFMAG, SELFMAG) != 0 ||
        header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_ident[EI_DATA] != ELFDATA2LSB ||
        header->e_type != ET_REL || header->e_machine != EM_X86_64 ||
        header->e_shentsize != sizeof(Elf64_Shdr) || header->e_shnum > MOST_SECTIONS ||
        !holds(image, header->e_shoff, header->e_shnum, sizeof(Elf64_Shdr)))
        return false;
    image->sections = (const Elf64_Shdr *)(image->data + header->e_shoff);
    image->count = header->e_shnum;
    return true;
}

static bool read_symbols(Image *image, const Elf64_Shdr *table) {
    if (image->symbols || table->sh_entsize != sizeof(Elf64_Sym) ||
        table->sh_link >= image->count ||
        !holds(image, table->sh_offset, table->sh_size / sizeof(Elf64_Sym), sizeof(Elf64_Sym)))
        return false;
    const Elf64_Shdr *texts = &image->sections[table->sh_link];
    if (texts->sh_type != SHT_STRTAB || !holds(image, texts->sh_offset, texts->sh_size, 1) ||
        texts->sh_size == 0 || image->data[texts->sh_offset + texts->sh_size - 1] != '\0')
        return false;
    image->symbols = (const Elf64_Sym *)(image->data + table->sh_offset);
    image->symbol_count = table->sh_size / sizeof(Elf64_Sym);
    image->texts = image->data + texts->sh_offset;
    image->texts_size = texts->sh_size;
    return true;
}

/* Gives the sections of an image their places from `*bytes` on. False for one of a kind that is not
   dealt with. */
static bool lay_out(Image *image, size_t *bytes) {
    for (size_t k = 0; k < image->count; k++) {
        const Elf64_Shdr *section = &image->sections[k];
        image->places[k] = NOWHERE;
        if (section->sh_type == SHT_SYMTAB && !read_symbols(image, section))
            return false;
        if (!(section->sh_flags & SHF_ALLOC) || section->sh_size == 0)
            continue;
        const uint64_t alignment = section->sh_addralign ? section->sh_addralign : 1;
        if (section->sh_type != SHT_PROGBITS || section->sh_flags & (SHF_WRITE | SHF_TLS) ||
            alignment > 4096 || (alignment & (alignment - 1)) != 0 ||
            !holds(image, section->sh_offset, section->sh_size, 1))
            return false;
        image->places[k] = (*bytes + alignment - 1) & ~(size_t)(alignment - 1);
        if (section->sh_size > MOST_BYTES || image->places[k] > MOST_BYTES)
            return false;
        *bytes = image->places[k] + section->sh_size;
    }
    image->stubs = (*bytes + STUB - 1) & ~(size_t)(STUB - 1);
    *bytes = image->stubs + image->symbol_count * STUB;
    return image->symbols != NULL && *bytes <= MOST_BYTES;
}

/* The address of a symbol; 0 for one that is in none of the image's sections. */
static uint64_t address_of(const Image *image, size_t number, const Memory *memory) {
    if (number >= image->symbol_count)
        return 0;
    const Elf64_Sym *symbol = &image->symbols[number];
    const size_t section = symbol->st_shndx;
    if (section == SHN_UNDEF || section >= image->count || image->places[section] == NOWHERE ||
        ELF64_ST_TYPE(symbol->st_info) == STT_TLS ||
        ELF64_ST_TYPE(symbol->st_info) == STT_GNU_IFUNC ||
        symbol->st_value > image->sections[section].sh_size)
        return 0;
    return (uint64_t)(uintptr_t)memory->begin + image->places[section] + symbol->st_value;
}

/* The address of a stub that jumps to a function of a library; 0 for what is none. */
static uint64_t stub_of(const Image *image, size_t number, const Memory *memory) {
    if (number >= image->symbol_count || image->symbols[number].st_shndx != SHN_UNDEF ||
        image->symbols[number].st_name >= image->texts_size)
        return 0;
    const char *name = image->texts + image->symbols[number].st_name;
    void *function = *name ? dlsym(RTLD_DEFAULT, name) : NULL;
    if (function == NULL)
        return 0;
    char *stub = memory->begin + image->stubs + number * STUB;
    memcpy(stub, JUMP, sizeof JUMP);
    memcpy(stub + sizeof JUMP, &function, sizeof function);
    return (uint64_t)(uintptr_t)stub;
}

static bool relocate(const Image *image, const Elf64_Shdr *table, const Memory *memory) {
    if (table->sh_info >= image->count || image->places[table->sh_info] == NOWHERE)
        return true; /* of a section that is not in memory */
    if (table->sh_type != SHT_RELA || table->sh_entsize != sizeof(Elf64_Rela) ||
        !holds(image, table->sh_offset, table->sh_size / sizeof(Elf64_Rela), sizeof(Elf64_Rela)))
        return false;
    const Elf64_Rela *rows = (const Elf64_Rela *)(image->data + table->sh_offset);
    const uint64_t size = image->sections[table->sh_info].sh_size;
    for (size_t k = 0; k < table->sh_size / sizeof *rows; k++) {
        const uint64_t type = ELF64_R_TYPE(rows[k].r_info);
        const bool narrow = type == R_X86_64_PC32 || type == R_X86_64_PLT32;
        const uint64_t width = narrow ? 4 : 8, offset = rows[k].r_offset;
        uint64_t symbol = address_of(image, ELF64_R_SYM(rows[k].r_info), memory);
        if (symbol == 0 && type == R_X86_64_PLT32)
            symbol = stub_of(image, ELF64_R_SYM(rows[k].r_info), memory);
        if (symbol == 0 || offset > size || size - offset < width ||
            !(narrow || type == R_X86_64_64 || type == R_X86_64_PC64))
            return false;
        char *place = memory->begin + image->places[table->sh_info] + offset;
        uint64_t value = symbol + (uint64_t)rows[k].r_addend;
        if (type != R_X86_64_64)
            value -= (uint64_t)(uintptr_t)place;
        if (narrow && (int64_t)value != (int32_t)value)
            return false;
        memcpy(place, &value, width);
    }
    return true;
}

static bool fill(const Image *image, const Memory *memory) {
    for (size_t k = 0; k < image->count; k++)
        if (image->places[k] != NOWHERE)
            memcpy(memory->begin + image->places[k], image->data + image->sections[k].sh_offset,
                   image->sections[k].sh_size);
    for (size_t k = 0; k < image->count; k++) {
        const uint32_t type = image->sections[k].sh_type;
        if ((type == SHT_RELA || type == SHT_REL) && !relocate(image, &image->sections[k], memory))
            return false;
    }
    return true;
}

static void unmap(PyObject *capsule) {
    Memory *memory = PyCapsule_GetPointer(capsule, NULL);
    if (memory == NULL)
        return;
    munmap(memory->begin, memory->bytes);
    PyMem_Free(memory);
}

/* Adds the functions of an image that are among the names. 0, or -1 with an exception. */
static int add_addresses(const Image *image, const Memory *memory, PyObject *names,
                         PyObject *addresses) {
    for (size_t k = 0; k < image->symbol_count; k++) {
        const Elf64_Sym *symbol = &image->symbols[k];
        const uint64_t address = address_of(image, k, memory);
        if (address == 0 || ELF64_ST_BIND(symbol->st_info) != STB_GLOBAL ||
            symbol->st_name >= image->texts_size)
            continue;
        const char *text = image->texts + symbol->st_name;
        PyObject *name = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
        int wanted = name ? PySequence_Contains(names, name) : -1;
        PyObject *number = wanted == 1 ? PyLong_FromUnsignedLongLong(address) : NULL;
        int done = wanted == 1 ? (number ? PyDict_SetItem(addresses, name, number) : -1) : wanted;
        Py_XDECREF(number);
        Py_XDECREF(name);
        if (done < 0)
            return -1;
    }
    return 0;
}

/* The addresses by name and what keeps the memory, or None where LLVM has to. */
static PyObject *loaded(Image *images, size_t count, PyObject *names) {
    size_t bytes = 0;
    for (size_t k = 0; k < count; k++)
        if (!read_header(&images[k]) ||
            !(images[k].places = PyMem_Calloc(images[k].count + 1, sizeof(size_t))) ||
            !lay_out(&images[k], &bytes))
            Py_RETURN_NONE;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    Memory *memory = PyMem_Malloc(sizeof *memory);
    if (memory == NULL)
        return PyErr_NoMemory();
    memory->bytes = (bytes + page) / page * page;
    memory->begin =
        mmap(NULL, memory->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PyObject *capsule = NULL, *addresses = NULL, *result = NULL;
    if (memory->begin == MAP_FAILED) {
        PyMem_Free(memory);
        Py_RETURN_NONE;
    }
    bool sound = true;
    for (size_t k = 0; sound && k < count; k++)
        sound = fill(&images[k], memory);
    sound = sound && mprotect(memory->begin, memory->bytes, PROT_READ | PROT_EXEC) == 0;
    capsule = PyCapsule_New(memory, NULL, unmap);
    if (capsule == NULL) {
        munmap(memory->begin, memory->bytes);
        PyMem_Free(memory);
        return NULL;
    }
    addresses = sound ? PyDict_New() : NULL;
    int done = addresses ? 0 : -1;
    for (size_t k = 0; done == 0 && k < count; k++)
        done = add_addresses(&images[k], memory, names, addresses);
    if (done == 0 && PyDict_GET_SIZE(addresses) == PyObject_Size(names))
        result = PyTuple_Pack(2, addresses, capsule);
    else if (!PyErr_Occurred())
        result = Py_NewRef(Py_None);
    Py_XDECREF(addresses);
    Py_DECREF(capsule);
    return result;
}

static PyObject *load_objects(PyObject *Py_UNUSED(self), PyObject *args) {
    PyObject *files, *names;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &files, &PyFrozenSet_Type, &names))
        return NULL;
    const size_t count = (size_t)PyTuple_GET_SIZE(files);
    Image *images = PyMem_Calloc(count + 1, sizeof *images);
    if (images == NULL)
        return PyErr_NoMemory();
    PyObject *result = NULL;
    size_t read = 0;
    for (; read < count; read++) {
        PyObject *file = PyTuple_GET_ITEM(files, read);
        if (!PyBytes_Check(file))
            break;
        images[read].data = PyBytes_AS_STRING(file);
        images[read].size = (size_t)PyBytes_GET_SIZE(file);
    }
    if (read == count)
        result = loaded(images, count, names);
    else
        PyErr_SetString(PyExc_TypeError, "object files are bytes");
    for (size_t k = 0; k < count; k++)
        PyMem_Free(images[k].places);
    PyMem_Free(images);
    return result;
}

#else

static PyObject *load_objects(PyObject *Py_UNUSED(self), PyObject *Py_UNUSED(args)) {
    Py_RETURN_NONE;
}

#endif

static PyMethodDef methods[] = {
    {"load_objects", load_objects, METH_VARARGS,
     "load_objects(files, names): a dict of the addresses of these functions in object files, and "
     "what holds their memory; None for files that LLVM has to load."},
    {NULL, NULL, 0, NULL},
};

int ingot_objects_register(PyObject *module) { return PyModule_AddFunctions(module, methods); }
