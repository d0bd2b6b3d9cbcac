/* torch/pickle_make.c - makes the values; see torch/pickle_machine.h. */
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "torch/pickle_machine.h"

enum { NUMBER_TEXT_MAX = 32 };

/* ---- values ---- */

tp_status pickle_make(struct pickle_value **out, struct pickle_machine *m, enum pickle_kind kind)
{
    *out = arena_alloc(m->arena, sizeof **out);
    if (!*out)
        return pickle_no_memory(m);
    (*out)->kind = (unsigned char)kind;
    return TP_OK;
}

tp_status pickle_push_new(struct pickle_machine *m, enum pickle_kind kind, int64_t number)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_make(&v, m, kind);

    if (st)
        return st;
    if (kind == PICKLE_BOOL || kind == PICKLE_INT)
        v->number = number;
    return pickle_push(m, v);
}

/* Note that `outer` contains `inner` from now on. */
tp_status pickle_hold(struct pickle_machine *m, struct pickle_value *outer,
                      struct pickle_value *inner)
{
    if (inner == outer)
        return pickle_refuse(m, "a value contains itself");
    if (inner->depth >= PICKLE_DEPTH_MAX)
        return pickle_refuse(m, "it nests too deeply");
    if (outer->depth <= inner->depth)
        outer->depth = (unsigned char)(inner->depth + 1);
    inner->held = true;
    return TP_OK;
}

/* Append items to a list, tuple or dict. */
tp_status pickle_append(struct pickle_machine *m, struct pickle_value *v,
                        struct pickle_value *const *items, int64_t n)
{
    tp_status st = TP_OK;

    if (v->held && n > 0)
        return pickle_refuse(m, "a value changes after another one took it in");
    if (n > v->list.room - v->list.n) {
        int64_t room = v->list.n + n > 2 * v->list.room ? v->list.n + n : 2 * v->list.room;
        const struct pickle_value **grown = arena_array(m->arena, (size_t)room, sizeof *grown);

        if (!grown)
            return pickle_no_memory(m);
        if (v->list.n)
            memcpy(grown, v->list.items, (size_t)v->list.n * sizeof *grown);
        v->list.items = grown;
        v->list.room = room;
    }
    for (int64_t i = 0; i < n && !st; i++) {
        st = pickle_hold(m, v, items[i]);
        v->list.items[v->list.n++] = items[i];
    }
    return st;
}

tp_status pickle_push_list(struct pickle_machine *m, enum pickle_kind kind,
                           struct pickle_value *const *items, int64_t n)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_make(&v, m, kind);

    if (!st)
        st = pickle_append(m, v, items, n);
    return st ? st : pickle_push(m, v);
}

tp_status pickle_push_text(struct pickle_machine *m, enum pickle_kind kind, uint64_t n)
{
    const unsigned char *p = NULL;
    struct pickle_value *v = NULL;
    char *copy;
    tp_status st = pickle_take(&p, m, n);

    if (!st)
        st = pickle_make(&v, m, kind);
    if (st)
        return st;
    copy = arena_alloc(m->arena, (size_t)n + 1);
    if (!copy)
        return pickle_no_memory(m);
    memcpy(copy, p, (size_t)n);
    v->text.s = copy;
    v->text.n = (int64_t)n;
    for (uint64_t at = 0; at < n && kind == PICKLE_TEXT;) {
        int length = copy[at] ? text_utf8_length(copy + at) : 1;

        if (!length)
            return pickle_refuse(m, "a text is not UTF-8");
        at += (uint64_t)length;
    }
    return pickle_push(m, v);
}

/* A text whose length comes first, in `bytes` bytes. */
tp_status pickle_push_sized_text(struct pickle_machine *m, enum pickle_kind kind, int bytes)
{
    uint64_t n = 0;
    tp_status st = pickle_take_number(&n, m, bytes);

    return st ? st : pickle_push_text(m, kind, n);
}

tp_status pickle_push_global(struct pickle_machine *m, const char *module, const char *name)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_make(&v, m, PICKLE_GLOBAL);

    if (st)
        return st;
    v->global.module = arena_strdup(m->arena, module);
    v->global.name = arena_strdup(m->arena, name);
    return v->global.module && v->global.name ? pickle_push(m, v) : pickle_no_memory(m);
}

/* A call. It is recorded, and nothing is called. */
tp_status pickle_push_call(struct pickle_machine *m, struct pickle_value *callable,
                           struct pickle_value *args, bool reduce)
{
    struct pickle_value *v = NULL;
    bool is_dict = pickle_is_global(callable, "collections", "OrderedDict")
                       ? pickle_count(args) == 0
                       : pickle_is_global(callable, "collections", "defaultdict");
    tp_status st;

    if (!pickle_is(args, PICKLE_TUPLE))
        return pickle_refuse(m, "the arguments of a call are not a tuple");
    st = pickle_make(&v, m, reduce && is_dict ? PICKLE_DICT : PICKLE_OBJECT);
    if (!st && v->kind == PICKLE_OBJECT) {
        v->object.callable = callable;
        v->object.args = args;
        st = pickle_hold(m, v, callable);
        if (!st)
            st = pickle_hold(m, v, args);
    }
    return st ? st : pickle_push(m, v);
}

/* ---- numbers ---- */

tp_status pickle_push_long(struct pickle_machine *m, uint64_t n)
{
    const unsigned char *p = NULL;
    uint64_t number = 0;
    tp_status st = pickle_take(&p, m, n);

    if (st)
        return st;
    if (n > 8)
        return pickle_push_new(m, PICKLE_OPAQUE, 0);
    for (uint64_t i = 0; i < 8; i++)
        number |= (uint64_t)(i < n ? p[i] : n && p[n - 1] & 0x80 ? 0xff : 0) << 8 * i;
    return pickle_push_new(m, PICKLE_INT, (int64_t)number);
}

/* INT and LONG of protocol 0: a number as text. */
tp_status pickle_push_int_line(struct pickle_machine *m)
{
    char line[NUMBER_TEXT_MAX], *end;
    long long number;
    tp_status st = pickle_take_line(line, sizeof line, m);

    if (st)
        return st;
    if (strcmp(line, "00") == 0 || strcmp(line, "01") == 0)
        return pickle_push_new(m, PICKLE_BOOL, line[1] - '0');
    number = strtoll(line, &end, 10);
    if (end == line || (*end && strcmp(end, "L") != 0))
        return pickle_refuse(m, "a number is none");
    return number == INT64_MAX || number == INT64_MIN ? pickle_push_new(m, PICKLE_OPAQUE, 0)
                                                      : pickle_push_new(m, PICKLE_INT, number);
}

static tp_status push_real(struct pickle_machine *m, double real)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_make(&v, m, PICKLE_FLOAT);

    if (st)
        return st;
    v->real = real;
    return pickle_push(m, v);
}

tp_status pickle_push_float(struct pickle_machine *m)
{
    const unsigned char *p = NULL;
    uint64_t bits = 0;
    double real;
    tp_status st = pickle_take(&p, m, 8);

    for (int i = 0; i < 8 && !st; i++)
        bits = bits << 8 | p[i];
    memcpy(&real, &bits, sizeof real);
    return st ? st : push_real(m, real);
}

tp_status pickle_push_float_line(struct pickle_machine *m)
{
    char line[NUMBER_TEXT_MAX], *end;
    double real;
    tp_status st = pickle_take_line(line, sizeof line, m);

    if (st)
        return st;
    real = strtod(line, &end);
    return end == line || *end ? pickle_refuse(m, "a number is none") : push_real(m, real);
}
