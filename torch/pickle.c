/* torch/pickle.c - see torch/pickle.h. The instructions: Python's Lib/pickletools.py. */
#include "torch/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "torch/pickle_instruction.h"
#include "torch/pickle_machine.h"

enum { INDEX_TEXT_MAX = 32, NAME_TEXT_MAX = 1024 };

/* PUT and GET of protocol 0: the index as text. */
static tp_status read_index_text(uint64_t *index, struct pickle_machine *m)
{
    char line[INDEX_TEXT_MAX];
    size_t digits;
    tp_status st = pickle_take_line(line, sizeof line, m);

    if (st)
        return st;
    digits = strspn(line, "0123456789");
    if (!digits || line[digits] || digits > 18)
        return pickle_refuse(m, "an index of the memo is invalid");
    *index = strtoull(line, NULL, 10);
    return TP_OK;
}

static tp_status read_global(struct pickle_machine *m)
{
    char module[NAME_TEXT_MAX], name[NAME_TEXT_MAX];
    tp_status st = pickle_take_line(module, sizeof module, m);

    if (!st)
        st = pickle_take_line(name, sizeof name, m);
    return st ? st : pickle_push_global(m, module, name);
}

/* ---- codes ---- */

static tp_status do_number(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st;

    switch (code) {
    case 'J': /* BININT */
        st = pickle_take_number(&n, m, 4);
        return st ? st : pickle_push_new(m, PICKLE_INT, (int32_t)(uint32_t)n);
    case 'K': /* BININT1 */
        st = pickle_take_number(&n, m, 1);
        return st ? st : pickle_push_new(m, PICKLE_INT, (int64_t)n);
    case 'M': /* BININT2 */
        st = pickle_take_number(&n, m, 2);
        return st ? st : pickle_push_new(m, PICKLE_INT, (int64_t)n);
    case 0x8a: /* LONG1 */
        st = pickle_take_number(&n, m, 1);
        return st ? st : pickle_push_long(m, n);
    case 0x8b: /* LONG4, whose length is signed */
        st = pickle_take_number(&n, m, 4);
        return st ? st : pickle_push_long(m, n > INT32_MAX ? UINT64_MAX : n);
    case 'G':
        return pickle_push_float(m);
    case 'F':
        return pickle_push_float_line(m);
    default: /* INT, LONG */
        return pickle_push_int_line(m);
    }
}

static tp_status do_text(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st;

    switch (code) {
    case 'X': /* BINUNICODE */
        return pickle_push_sized_text(m, PICKLE_TEXT, 4);
    case 0x8c: /* SHORT_BINUNICODE */
        return pickle_push_sized_text(m, PICKLE_TEXT, 1);
    case 0x8d: /* BINUNICODE8 */
        return pickle_push_sized_text(m, PICKLE_TEXT, 8);
    case 'T': /* BINSTRING, whose length is signed */
        st = pickle_take_number(&n, m, 4);
        return st ? st : pickle_push_text(m, PICKLE_BYTES, n > INT32_MAX ? UINT64_MAX : n);
    case 'U': /* SHORT_BINSTRING */
    case 'C': /* SHORT_BINBYTES */
        return pickle_push_sized_text(m, PICKLE_BYTES, 1);
    case 'B': /* BINBYTES */
        return pickle_push_sized_text(m, PICKLE_BYTES, 4);
    default: /* BINBYTES8, BYTEARRAY8 */
        return pickle_push_sized_text(m, PICKLE_BYTES, 8);
    }
}

static tp_status do_memo(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = (uint64_t)m->puts;
    tp_status st = TP_OK;

    switch (code) {
    case 'q': /* BINPUT */
    case 'h': /* BINGET */
        st = pickle_take_number(&n, m, 1);
        break;
    case 'r': /* LONG_BINPUT */
    case 'j': /* LONG_BINGET */
        st = pickle_take_number(&n, m, 4);
        break;
    case 'p': /* PUT */
    case 'g': /* GET */
        st = read_index_text(&n, m);
        break;
    default: /* MEMOIZE */
        break;
    }
    if (st)
        return st;
    return code == 'h' || code == 'j' || code == 'g' ? pickle_memo_get(m, n)
                                                     : pickle_memo_put(m, n);
}

static tp_status do_frame(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st = pickle_take_number(&n, m, code == 0x80 ? 1 : 8);

    if (!st && code == 0x80 && n > 5)
        return pickle_refuse(m, "its protocol is unknown");
    if (!st && code != 0x80 && n > (uint64_t)(m->end - m->at))
        return pickle_refuse(m, "a frame is longer than the rest of the file");
    return st;
}

static tp_status do_object(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case 'R': /* REDUCE */
        return pickle_do_call(m, true);
    case 0x81: /* NEWOBJ */
        return pickle_do_call(m, false);
    case 0x92: /* NEWOBJ_EX */
        return pickle_do_new_object_ex(m);
    case 'b': /* BUILD */
        return pickle_do_build(m);
    case 'c': /* GLOBAL */
        return read_global(m);
    case 0x93: /* STACK_GLOBAL */
        return pickle_do_stack_global(m);
    default: /* BINPERSID */
        return pickle_do_persistent(m);
    }
}

static tp_status do_container(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case ')':
        return pickle_push_list(m, PICKLE_TUPLE, NULL, 0);
    case ']':
        return pickle_push_list(m, PICKLE_LIST, NULL, 0);
    case '}':
        return pickle_push_list(m, PICKLE_DICT, NULL, 0);
    case 't':
        return pickle_do_collect(m, PICKLE_TUPLE);
    case 'l':
        return pickle_do_collect(m, PICKLE_LIST);
    case 'd':
        return pickle_do_collect(m, PICKLE_DICT);
    case 'a': /* APPEND */
        return pickle_do_append_few(m, 1, PICKLE_LIST);
    case 's': /* SETITEM */
        return pickle_do_append_few(m, 2, PICKLE_DICT);
    case 'e': /* APPENDS */
        return pickle_do_append_marked(m, PICKLE_LIST);
    case 'u': /* SETITEMS */
        return pickle_do_append_marked(m, PICKLE_DICT);
    case 0x8f: /* EMPTY_SET */
        return pickle_push_new(m, PICKLE_OPAQUE, 0);
    case 0x90: /* ADDITEMS */
        return pickle_do_append_marked(m, PICKLE_OPAQUE);
    case 0x91: /* FROZENSET */
        return pickle_do_pop_mark(m, true);
    default: /* TUPLE1, TUPLE2, TUPLE3 */
        return pickle_do_tuple(m, code - 0x84);
    }
}

static tp_status do_stack(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case '(':
        return pickle_push_mark(m);
    case '0':
        return pickle_do_pop(m);
    case '1':
        return pickle_do_pop_mark(m, false);
    case '2':
        return pickle_do_duplicate(m);
    case 'N':
        return pickle_push_new(m, PICKLE_NONE, 0);
    default: /* NEWTRUE, NEWFALSE */
        return pickle_push_new(m, PICKLE_BOOL, code == 0x88);
    }
}

static tp_status step(struct pickle_machine *m, unsigned char code)
{
    static const struct {
        const char *codes;
        tp_status (*run)(struct pickle_machine *m, unsigned char code);
    } groups[] = {
        { "JKMGFIL\x8a\x8b", do_number },
        { "XTUCB\x8c\x8d\x8e\x96", do_text },
        { "qrphjg\x94", do_memo },
        { "\x80\x95", do_frame },
        { "RbcQ\x81\x92\x93", do_object },
        { "(012N\x88\x89", do_stack },
        { ")]}tldaseu\x85\x86\x87\x8f\x90\x91", do_container },
    };

    for (size_t i = 0; i < sizeof groups / sizeof *groups && code; i++)
        if (strchr(groups[i].codes, (char)code))
            return groups[i].run(m, code);
    return pickle_refuse(m, "it has an instruction that is not allowed");
}

static tp_status run(struct pickle_machine *m)
{
    const unsigned char *code = NULL;
    tp_status st = pickle_take(&code, m, 1);

    for (; !st && *code != '.'; st = st ? st : pickle_take(&code, m, 1))
        st = step(m, *code);
    if (!st && (m->n_stack != 1 || m->n_marks != 0))
        return pickle_refuse(m, "it does not end with one value");
    return st;
}

tp_status pickle_read(const struct pickle_value **out, const void *bytes, size_t size,
                      const char *path, struct arena *arena, struct tp_err *err)
{
    struct pickle_machine *m = calloc(1, sizeof *m);
    tp_status st = TP_OK;

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", path);
    m->at = m->begin = bytes;
    m->end = m->begin + size;
    m->path = path;
    m->arena = arena;
    m->limit_bytes = arena->limit_bytes;
    m->err = err;
    if (size > PICKLE_BYTES_MAX)
        st = pickle_refuse(m, "it is too large");
    if (!st)
        st = pickle_grow(m, &m->stack, &m->stack_room, 1);
    if (!st)
        st = run(m);
    if (!st)
        *out = m->stack[0];
    arena->limit_bytes = m->limit_bytes;
    free(m->stack);
    free(m->memo);
    free(m);
    return st;
}
