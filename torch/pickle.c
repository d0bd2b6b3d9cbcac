/*
 * torch/pickle.c - see torch/pickle.h. The instructions: Python's Lib/pickletools.py.
 *
 * A value that another one contains is never changed afterwards. So no value can contain itself,
 * and the depth that a container computes when it takes a value stays right. What Python would do
 * to a contained value (give an object its state, for example) is left out when it only concerns
 * objects that nobody here looks at, and refused for lists and dicts.
 */
#include "torch/pickle.h"

#include <stdlib.h>
#include <string.h>

#include "core/text.h"

enum { MARKS_MAX = 1000, NUMBER_TEXT_MAX = 32, NAME_TEXT_MAX = 1024 };

struct pickle_machine {
    const unsigned char *at, *begin, *end; /* the bytes that are left, and all */
    const char *path;
    struct arena *arena;
    struct tp_err *err;
    struct pickle_value **stack, **memo;
    int64_t n_stack, stack_room, n_memo, memo_room;
    int64_t marks[MARKS_MAX]; /* of the stack */
    int n_marks;
    int64_t puts; /* MEMOIZE numbers by it */
};

static tp_status refuse(struct pickle_machine *m, const char *what)
{
    return tp_fail(m->err, TP_E_CORRUPT,
                   "%s: the pickle is damaged or hostile: %s, before byte %lld", m->path, what,
                   (long long)(m->at - m->begin));
}

static tp_status no_memory(struct pickle_machine *m)
{
    return tp_fail(m->err, TP_E_NOMEM, "%s: no memory for the values of its pickle", m->path);
}

/* ---- bytes ---- */

static tp_status take(const unsigned char **p, struct pickle_machine *m, uint64_t n)
{
    if (n > (uint64_t)(m->end - m->at))
        return refuse(m, "a value is longer than the rest of the file");
    *p = m->at;
    m->at += n;
    return TP_OK;
}

/* An unsigned number of `n` bytes, little-endian. */
static tp_status take_number(uint64_t *out, struct pickle_machine *m, int n)
{
    const unsigned char *p = NULL;
    tp_status st = take(&p, m, (uint64_t)n);

    *out = 0;
    for (int i = 0; i < n && !st; i++)
        *out |= (uint64_t)p[i] << 8 * i;
    return st;
}

/* A line of text without its newline, in buf. */
static tp_status take_line(char *buf, size_t size, struct pickle_machine *m)
{
    const unsigned char *end = memchr(m->at, '\n', (size_t)(m->end - m->at));
    size_t n = end ? (size_t)(end - m->at) : 0;

    if (!end || n >= size || memchr(m->at, 0, n))
        return refuse(m, "a name or number does not end");
    memcpy(buf, m->at, n);
    buf[n] = 0;
    m->at = end + 1;
    return TP_OK;
}

/* ---- the stack ---- */

static tp_status grow(struct pickle_machine *m, struct pickle_value ***list, int64_t *room,
                      int64_t need)
{
    int64_t larger = *room ? *room * 2 : 256;
    void *grown;

    if (need <= *room)
        return TP_OK;
    if (larger < need)
        larger = need;
    grown = realloc(*list, (size_t)larger * sizeof **list);
    if (!grown)
        return no_memory(m);
    *list = grown;
    memset(*list + *room, 0, (size_t)(larger - *room) * sizeof **list);
    *room = larger;
    return TP_OK;
}

static tp_status push(struct pickle_machine *m, struct pickle_value *v)
{
    tp_status st = grow(m, &m->stack, &m->stack_room, m->n_stack + 1);

    if (!st)
        m->stack[m->n_stack++] = v;
    return st;
}

/* The place on the stack below which instructions may not take values. */
static int64_t bottom(const struct pickle_machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

static tp_status pop(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= bottom(m))
        return refuse(m, "it takes a value from an empty stack");
    *out = m->stack[--m->n_stack];
    return TP_OK;
}

static tp_status top(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= bottom(m))
        return refuse(m, "it takes a value from an empty stack");
    *out = m->stack[m->n_stack - 1];
    return TP_OK;
}

static tp_status push_mark(struct pickle_machine *m)
{
    if (m->n_marks == MARKS_MAX)
        return refuse(m, "it nests too deeply");
    m->marks[m->n_marks++] = m->n_stack;
    return TP_OK;
}

/* Take the values after the last mark, and the mark. They stay readable until the next push. */
static tp_status pop_mark(struct pickle_value ***items, int64_t *n, struct pickle_machine *m)
{
    if (m->n_marks == 0)
        return refuse(m, "it has no mark");
    m->n_marks--;
    *n = m->n_stack - m->marks[m->n_marks];
    m->n_stack = m->marks[m->n_marks];
    *items = m->stack + m->n_stack;
    return TP_OK;
}

/* ---- values ---- */

static tp_status make(struct pickle_value **out, struct pickle_machine *m, enum pickle_kind kind)
{
    *out = arena_alloc(m->arena, sizeof **out);
    if (!*out)
        return no_memory(m);
    (*out)->kind = (unsigned char)kind;
    return TP_OK;
}

static tp_status push_new(struct pickle_machine *m, enum pickle_kind kind, int64_t number)
{
    struct pickle_value *v = NULL;
    tp_status st = make(&v, m, kind);

    if (st)
        return st;
    if (kind == PICKLE_BOOL || kind == PICKLE_INT)
        v->number = number;
    return push(m, v);
}

/* Note that `outer` contains `inner` from now on. */
static tp_status hold(struct pickle_machine *m, struct pickle_value *outer,
                      struct pickle_value *inner)
{
    if (inner == outer)
        return refuse(m, "a value contains itself");
    if (inner->depth >= PICKLE_DEPTH_MAX)
        return refuse(m, "it nests too deeply");
    if (outer->depth <= inner->depth)
        outer->depth = (unsigned char)(inner->depth + 1);
    inner->held = true;
    return TP_OK;
}

/* Append items to a list, tuple or dict. */
static tp_status append(struct pickle_machine *m, struct pickle_value *v,
                        struct pickle_value *const *items, int64_t n)
{
    tp_status st = TP_OK;

    if (v->held && n > 0)
        return refuse(m, "a value changes after another one took it in");
    if (n > v->list.room - v->list.n) {
        int64_t room = v->list.n + n > 2 * v->list.room ? v->list.n + n : 2 * v->list.room;
        const struct pickle_value **grown = arena_array(m->arena, (size_t)room, sizeof *grown);

        if (!grown)
            return no_memory(m);
        if (v->list.n)
            memcpy(grown, v->list.items, (size_t)v->list.n * sizeof *grown);
        v->list.items = grown;
        v->list.room = room;
    }
    for (int64_t i = 0; i < n && !st; i++) {
        st = hold(m, v, items[i]);
        v->list.items[v->list.n++] = items[i];
    }
    return st;
}

static tp_status push_list(struct pickle_machine *m, enum pickle_kind kind,
                           struct pickle_value *const *items, int64_t n)
{
    struct pickle_value *v = NULL;
    tp_status st = make(&v, m, kind);

    if (!st)
        st = append(m, v, items, n);
    return st ? st : push(m, v);
}

static tp_status push_text(struct pickle_machine *m, enum pickle_kind kind, uint64_t n)
{
    const unsigned char *p = NULL;
    struct pickle_value *v = NULL;
    char *copy;
    tp_status st = take(&p, m, n);

    if (!st)
        st = make(&v, m, kind);
    if (st)
        return st;
    copy = arena_alloc(m->arena, (size_t)n + 1);
    if (!copy)
        return no_memory(m);
    memcpy(copy, p, (size_t)n);
    v->text.s = copy;
    v->text.n = (int64_t)n;
    for (uint64_t at = 0; at < n && kind == PICKLE_TEXT;) {
        int length = copy[at] ? text_utf8_length(copy + at) : 1;

        if (!length)
            return refuse(m, "a text is not UTF-8");
        at += (uint64_t)length;
    }
    return push(m, v);
}

/* A text whose length comes first, in `bytes` bytes. */
static tp_status read_text(struct pickle_machine *m, enum pickle_kind kind, int bytes)
{
    uint64_t n = 0;
    tp_status st = take_number(&n, m, bytes);

    return st ? st : push_text(m, kind, n);
}

static tp_status push_global(struct pickle_machine *m, const char *module, const char *name)
{
    struct pickle_value *v = NULL;
    tp_status st = make(&v, m, PICKLE_GLOBAL);

    if (st)
        return st;
    v->global.module = arena_strdup(m->arena, module);
    v->global.name = arena_strdup(m->arena, name);
    return v->global.module && v->global.name ? push(m, v) : no_memory(m);
}

/* A call. It is recorded, and nothing is called. */
static tp_status push_call(struct pickle_machine *m, struct pickle_value *callable,
                           struct pickle_value *args, bool reduce)
{
    struct pickle_value *v = NULL;
    bool is_dict = pickle_is_global(callable, "collections", "OrderedDict")
                       ? pickle_count(args) == 0
                       : pickle_is_global(callable, "collections", "defaultdict");
    tp_status st;

    if (!pickle_is(args, PICKLE_TUPLE))
        return refuse(m, "the arguments of a call are no tuple");
    st = make(&v, m, reduce && is_dict ? PICKLE_DICT : PICKLE_OBJECT);
    if (!st && v->kind == PICKLE_OBJECT) {
        v->object.callable = callable;
        v->object.args = args;
        st = hold(m, v, callable);
        if (!st)
            st = hold(m, v, args);
    }
    return st ? st : push(m, v);
}

/* ---- numbers ---- */

static tp_status push_long(struct pickle_machine *m, uint64_t n)
{
    const unsigned char *p = NULL;
    uint64_t number = 0;
    tp_status st = take(&p, m, n);

    if (st)
        return st;
    if (n > 8)
        return push_new(m, PICKLE_OPAQUE, 0);
    for (uint64_t i = 0; i < 8; i++)
        number |= (uint64_t)(i < n ? p[i] : n && p[n - 1] & 0x80 ? 0xff : 0) << 8 * i;
    return push_new(m, PICKLE_INT, (int64_t)number);
}

/* INT and LONG of protocol 0: a number as text. */
static tp_status read_int_text(struct pickle_machine *m)
{
    char line[NUMBER_TEXT_MAX], *end;
    long long number;
    tp_status st = take_line(line, sizeof line, m);

    if (st)
        return st;
    if (strcmp(line, "00") == 0 || strcmp(line, "01") == 0)
        return push_new(m, PICKLE_BOOL, line[1] - '0');
    number = strtoll(line, &end, 10);
    if (end == line || (*end && strcmp(end, "L") != 0))
        return refuse(m, "a number is none");
    return number == INT64_MAX || number == INT64_MIN ? push_new(m, PICKLE_OPAQUE, 0)
                                                      : push_new(m, PICKLE_INT, number);
}

static tp_status push_real(struct pickle_machine *m, double real)
{
    struct pickle_value *v = NULL;
    tp_status st = make(&v, m, PICKLE_FLOAT);

    if (st)
        return st;
    v->real = real;
    return push(m, v);
}

static tp_status read_float(struct pickle_machine *m)
{
    const unsigned char *p = NULL;
    uint64_t bits = 0;
    double real;
    tp_status st = take(&p, m, 8);

    for (int i = 0; i < 8 && !st; i++)
        bits = bits << 8 | p[i];
    memcpy(&real, &bits, sizeof real);
    return st ? st : push_real(m, real);
}

static tp_status read_float_text(struct pickle_machine *m)
{
    char line[NUMBER_TEXT_MAX], *end;
    double real;
    tp_status st = take_line(line, sizeof line, m);

    if (st)
        return st;
    real = strtod(line, &end);
    return end == line || *end ? refuse(m, "a number is none") : push_real(m, real);
}

/* ---- the memo ---- */

static tp_status put(struct pickle_machine *m, uint64_t index)
{
    struct pickle_value *v = NULL;
    tp_status st = top(&v, m);

    if (st)
        return st;
    if (index >= (uint64_t)(m->end - m->begin))
        return refuse(m, "an index of the memo is too large");
    st = grow(m, &m->memo, &m->memo_room, (int64_t)index + 1);
    if (!st) {
        m->memo[index] = v;
        m->puts++;
    }
    return st;
}

static tp_status get(struct pickle_machine *m, uint64_t index)
{
    if (index >= (uint64_t)m->memo_room || !m->memo[index])
        return refuse(m, "the memo has no such value");
    return push(m, m->memo[index]);
}

/* PUT and GET of protocol 0: the index as text. */
static tp_status read_index_text(uint64_t *index, struct pickle_machine *m)
{
    char line[NUMBER_TEXT_MAX];
    size_t digits;
    tp_status st = take_line(line, sizeof line, m);

    if (st)
        return st;
    digits = strspn(line, "0123456789");
    if (!digits || line[digits] || digits > 18)
        return refuse(m, "an index of the memo is none");
    *index = strtoull(line, NULL, 10);
    return TP_OK;
}

/* ---- instructions that take values from the stack ---- */

/* APPEND, APPENDS, SETITEM, SETITEMS: n values go into the value below them. */
static tp_status do_append(struct pickle_machine *m, struct pickle_value *const *items, int64_t n,
                           enum pickle_kind kind)
{
    struct pickle_value *v = NULL;
    tp_status st = top(&v, m);

    if (st)
        return st;
    if (v->kind == PICKLE_OBJECT || v->kind == PICKLE_OPAQUE)
        return TP_OK; /* an instance of a class that is a list, dict or set: its items are left out
                       */
    if (v->kind != kind)
        return refuse(m, "items are added to what is no list or dict");
    if (kind == PICKLE_DICT && n % 2)
        return refuse(m, "a key has no value");
    return append(m, v, items, n);
}

static tp_status do_append_marked(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pop_mark(&items, &n, m);

    return st ? st : do_append(m, items, n, kind);
}

/* The last n values of the stack, which stay readable until the next push. */
static tp_status pop_many(struct pickle_value ***items, struct pickle_machine *m, int64_t n)
{
    if (m->n_stack - bottom(m) < n)
        return refuse(m, "it takes a value from an empty stack");
    m->n_stack -= n;
    *items = m->stack + m->n_stack;
    return TP_OK;
}

static tp_status do_append_few(struct pickle_machine *m, int64_t n, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    tp_status st = pop_many(&items, m, n);

    return st ? st : do_append(m, items, n, kind);
}

static tp_status do_tuple(struct pickle_machine *m, int64_t n)
{
    struct pickle_value **items = NULL;
    tp_status st = pop_many(&items, m, n);

    return st ? st : push_list(m, PICKLE_TUPLE, items, n);
}

/* TUPLE, LIST, DICT: what is after the mark. */
static tp_status do_collect(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pop_mark(&items, &n, m);

    if (!st && kind == PICKLE_DICT && n % 2)
        return refuse(m, "a key has no value");
    return st ? st : push_list(m, kind, items, n);
}

static tp_status do_pop_mark(struct pickle_machine *m, bool push_opaque)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pop_mark(&items, &n, m);

    return st || !push_opaque ? st : push_new(m, PICKLE_OPAQUE, 0);
}

static tp_status do_pop(struct pickle_machine *m)
{
    struct pickle_value *v;

    if (m->n_marks && m->n_stack == bottom(m)) {
        m->n_marks--;
        return TP_OK;
    }
    return pop(&v, m);
}

static tp_status do_call(struct pickle_machine *m, bool reduce)
{
    struct pickle_value **items = NULL;
    tp_status st = pop_many(&items, m, 2);

    return st ? st : push_call(m, items[0], items[1], reduce);
}

static tp_status do_new_object_ex(struct pickle_machine *m)
{
    struct pickle_value **items = NULL;
    tp_status st = pop_many(&items, m, 3); /* class, arguments, keyword arguments */

    return st ? st : push_call(m, items[0], items[1], false);
}

static tp_status do_build(struct pickle_machine *m)
{
    struct pickle_value *state = NULL, *v = NULL;
    tp_status st = pop(&state, m);

    if (!st)
        st = top(&v, m);
    if (st)
        return st;
    if (v->kind == PICKLE_OBJECT && !v->held && !v->object.state) {
        v->object.state = state;
        return hold(m, v, state);
    }
    if (v->kind == PICKLE_OBJECT || v->kind == PICKLE_OPAQUE || v->kind == PICKLE_DICT)
        return TP_OK; /* attributes of an OrderedDict, or of an object that is contained already */
    return refuse(m, "a state is given to what is no object");
}

static tp_status do_persistent(struct pickle_machine *m)
{
    struct pickle_value *id = NULL, *v = NULL;
    tp_status st = pop(&id, m);

    if (!st)
        st = make(&v, m, PICKLE_PERSISTENT);
    if (!st)
        st = hold(m, v, id);
    if (st)
        return st;
    v->id = id;
    return push(m, v);
}

static tp_status do_stack_global(struct pickle_machine *m)
{
    struct pickle_value **items = NULL;
    tp_status st = pop_many(&items, m, 2);

    if (st)
        return st;
    if (!pickle_text(items[0]) || !pickle_text(items[1]))
        return refuse(m, "the name of a class is no text");
    return push_global(m, pickle_text(items[0]), pickle_text(items[1]));
}

static tp_status read_global(struct pickle_machine *m)
{
    char module[NAME_TEXT_MAX], name[NAME_TEXT_MAX];
    tp_status st = take_line(module, sizeof module, m);

    if (!st)
        st = take_line(name, sizeof name, m);
    return st ? st : push_global(m, module, name);
}

static tp_status do_duplicate(struct pickle_machine *m)
{
    struct pickle_value *v = NULL;
    tp_status st = top(&v, m);

    return st ? st : push(m, v);
}

/* ---- the machine ---- */

static tp_status do_number(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st;

    switch (code) {
    case 'J': /* BININT */
        st = take_number(&n, m, 4);
        return st ? st : push_new(m, PICKLE_INT, (int32_t)(uint32_t)n);
    case 'K': /* BININT1 */
        st = take_number(&n, m, 1);
        return st ? st : push_new(m, PICKLE_INT, (int64_t)n);
    case 'M': /* BININT2 */
        st = take_number(&n, m, 2);
        return st ? st : push_new(m, PICKLE_INT, (int64_t)n);
    case 0x8a: /* LONG1 */
        st = take_number(&n, m, 1);
        return st ? st : push_long(m, n);
    case 0x8b: /* LONG4, whose length is signed */
        st = take_number(&n, m, 4);
        return st ? st : push_long(m, n > INT32_MAX ? UINT64_MAX : n);
    case 'G':
        return read_float(m);
    case 'F':
        return read_float_text(m);
    default: /* INT, LONG */
        return read_int_text(m);
    }
}

static tp_status do_text(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st;

    switch (code) {
    case 'X': /* BINUNICODE */
        return read_text(m, PICKLE_TEXT, 4);
    case 0x8c: /* SHORT_BINUNICODE */
        return read_text(m, PICKLE_TEXT, 1);
    case 0x8d: /* BINUNICODE8 */
        return read_text(m, PICKLE_TEXT, 8);
    case 'T': /* BINSTRING, whose length is signed */
        st = take_number(&n, m, 4);
        return st ? st : push_text(m, PICKLE_BYTES, n > INT32_MAX ? UINT64_MAX : n);
    case 'U': /* SHORT_BINSTRING */
    case 'C': /* SHORT_BINBYTES */
        return read_text(m, PICKLE_BYTES, 1);
    case 'B': /* BINBYTES */
        return read_text(m, PICKLE_BYTES, 4);
    default: /* BINBYTES8, BYTEARRAY8 */
        return read_text(m, PICKLE_BYTES, 8);
    }
}

static tp_status do_memo(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = (uint64_t)m->puts;
    tp_status st = TP_OK;

    switch (code) {
    case 'q': /* BINPUT */
    case 'h': /* BINGET */
        st = take_number(&n, m, 1);
        break;
    case 'r': /* LONG_BINPUT */
    case 'j': /* LONG_BINGET */
        st = take_number(&n, m, 4);
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
    return code == 'h' || code == 'j' || code == 'g' ? get(m, n) : put(m, n);
}

static tp_status do_frame(struct pickle_machine *m, unsigned char code)
{
    uint64_t n = 0;
    tp_status st = take_number(&n, m, code == 0x80 ? 1 : 8);

    if (!st && code == 0x80 && n > 5)
        return refuse(m, "its protocol is unknown");
    if (!st && code != 0x80 && n > (uint64_t)(m->end - m->at))
        return refuse(m, "a frame is longer than the rest of the file");
    return st;
}

static tp_status do_object(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case 'R': /* REDUCE */
        return do_call(m, true);
    case 0x81: /* NEWOBJ */
        return do_call(m, false);
    case 0x92: /* NEWOBJ_EX */
        return do_new_object_ex(m);
    case 'b': /* BUILD */
        return do_build(m);
    case 'c': /* GLOBAL */
        return read_global(m);
    case 0x93: /* STACK_GLOBAL */
        return do_stack_global(m);
    default: /* BINPERSID */
        return do_persistent(m);
    }
}

static tp_status do_container(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case ')':
        return push_list(m, PICKLE_TUPLE, NULL, 0);
    case ']':
        return push_list(m, PICKLE_LIST, NULL, 0);
    case '}':
        return push_list(m, PICKLE_DICT, NULL, 0);
    case 't':
        return do_collect(m, PICKLE_TUPLE);
    case 'l':
        return do_collect(m, PICKLE_LIST);
    case 'd':
        return do_collect(m, PICKLE_DICT);
    case 'a': /* APPEND */
        return do_append_few(m, 1, PICKLE_LIST);
    case 's': /* SETITEM */
        return do_append_few(m, 2, PICKLE_DICT);
    case 'e': /* APPENDS */
        return do_append_marked(m, PICKLE_LIST);
    case 'u': /* SETITEMS */
        return do_append_marked(m, PICKLE_DICT);
    case 0x8f: /* EMPTY_SET */
        return push_new(m, PICKLE_OPAQUE, 0);
    case 0x90: /* ADDITEMS */
        return do_append_marked(m, PICKLE_OPAQUE);
    case 0x91: /* FROZENSET */
        return do_pop_mark(m, true);
    default: /* TUPLE1, TUPLE2, TUPLE3 */
        return do_tuple(m, code - 0x84);
    }
}

static tp_status do_stack(struct pickle_machine *m, unsigned char code)
{
    switch (code) {
    case '(':
        return push_mark(m);
    case '0':
        return do_pop(m);
    case '1':
        return do_pop_mark(m, false);
    case '2':
        return do_duplicate(m);
    case 'N':
        return push_new(m, PICKLE_NONE, 0);
    default: /* NEWTRUE, NEWFALSE */
        return push_new(m, PICKLE_BOOL, code == 0x88);
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
    return refuse(m, "it has an instruction that is not allowed");
}

static tp_status run(struct pickle_machine *m)
{
    const unsigned char *code = NULL;
    tp_status st = take(&code, m, 1);

    for (; !st && *code != '.'; st = st ? st : take(&code, m, 1))
        st = step(m, *code);
    if (!st && (m->n_stack != 1 || m->n_marks != 0))
        return refuse(m, "it does not end with one value");
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
    m->err = err;
    if (size > PICKLE_BYTES_MAX)
        st = refuse(m, "it is too large");
    if (!st)
        st = grow(m, &m->stack, &m->stack_room, 1);
    if (!st)
        st = run(m);
    if (!st)
        *out = m->stack[0];
    free(m->stack);
    free(m->memo);
    free(m);
    return st;
}
