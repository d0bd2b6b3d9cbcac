/*
 * torch/pickle_instruction.c - see torch/pickle_instruction.h.
 *
 * A value that another one contains is never changed afterwards. So no value can contain itself,
 * and the depth that a container computes when it takes a value stays right. What Python would do
 * to a contained value (give an object its state, for example) is left out when it only concerns
 * objects that nobody here looks at, and refused for lists and dicts.
 */
#include "torch/pickle_instruction.h"

/* APPEND, APPENDS, SETITEM, SETITEMS: n values go into the value below them. */
static tp_status do_append(struct pickle_machine *m, struct pickle_value *const *items, int64_t n,
                           enum pickle_kind kind)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_top(&v, m);

    if (st)
        return st;
    if (v->kind == PICKLE_OBJECT || v->kind == PICKLE_OPAQUE)
        return TP_OK; /* an instance of a class that is a list, dict or set: its items are left out
                       */
    if (v->kind != kind)
        return pickle_refuse(m, "items are added to a value that is not a list or dict");
    if (kind == PICKLE_DICT && n % 2)
        return pickle_refuse(m, "a key has no value");
    return pickle_append(m, v, items, n);
}

tp_status pickle_do_append_marked(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pickle_pop_mark(&items, &n, m);

    return st ? st : do_append(m, items, n, kind);
}

tp_status pickle_do_append_few(struct pickle_machine *m, int64_t n, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    tp_status st = pickle_pop_many(&items, m, n);

    return st ? st : do_append(m, items, n, kind);
}

tp_status pickle_do_tuple(struct pickle_machine *m, int64_t n)
{
    struct pickle_value **items = NULL;
    tp_status st = pickle_pop_many(&items, m, n);

    return st ? st : pickle_push_list(m, PICKLE_TUPLE, items, n);
}

tp_status pickle_do_collect(struct pickle_machine *m, enum pickle_kind kind)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pickle_pop_mark(&items, &n, m);

    if (!st && kind == PICKLE_DICT && n % 2)
        return pickle_refuse(m, "a key has no value");
    return st ? st : pickle_push_list(m, kind, items, n);
}

tp_status pickle_do_pop_mark(struct pickle_machine *m, bool push_opaque)
{
    struct pickle_value **items = NULL;
    int64_t n = 0;
    tp_status st = pickle_pop_mark(&items, &n, m);

    return st || !push_opaque ? st : pickle_push_new(m, PICKLE_OPAQUE, 0);
}

tp_status pickle_do_pop(struct pickle_machine *m)
{
    struct pickle_value *v;

    if (m->n_marks && m->n_stack == pickle_bottom(m)) {
        m->n_marks--;
        return TP_OK;
    }
    return pickle_pop(&v, m);
}

tp_status pickle_do_call(struct pickle_machine *m, bool reduce)
{
    struct pickle_value **items = NULL;
    tp_status st = pickle_pop_many(&items, m, 2);

    return st ? st : pickle_push_call(m, items[0], items[1], reduce);
}

tp_status pickle_do_new_object_ex(struct pickle_machine *m)
{
    struct pickle_value **items = NULL;
    tp_status st = pickle_pop_many(&items, m, 3); /* class, arguments, keyword arguments */

    return st ? st : pickle_push_call(m, items[0], items[1], false);
}

tp_status pickle_do_build(struct pickle_machine *m)
{
    struct pickle_value *state = NULL, *v = NULL;
    tp_status st = pickle_pop(&state, m);

    if (!st)
        st = pickle_top(&v, m);
    if (st)
        return st;
    if (v->kind == PICKLE_OBJECT && !v->held && !v->object.state) {
        v->object.state = state;
        return pickle_hold(m, v, state);
    }
    if (v->kind == PICKLE_OBJECT || v->kind == PICKLE_OPAQUE || v->kind == PICKLE_DICT)
        return TP_OK; /* attributes of an OrderedDict, or of an object that is contained already */
    return pickle_refuse(m, "a state is given to a value that is not an object");
}

tp_status pickle_do_persistent(struct pickle_machine *m)
{
    struct pickle_value *id = NULL, *v = NULL;
    tp_status st = pickle_pop(&id, m);

    if (!st)
        st = pickle_make(&v, m, PICKLE_PERSISTENT);
    if (!st)
        st = pickle_hold(m, v, id);
    if (st)
        return st;
    v->id = id;
    return pickle_push(m, v);
}

tp_status pickle_do_stack_global(struct pickle_machine *m)
{
    struct pickle_value **items = NULL;
    tp_status st = pickle_pop_many(&items, m, 2);

    if (st)
        return st;
    if (!pickle_text(items[0]) || !pickle_text(items[1]))
        return pickle_refuse(m, "the name of a class is not text");
    return pickle_push_global(m, pickle_text(items[0]), pickle_text(items[1]));
}

tp_status pickle_do_duplicate(struct pickle_machine *m)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_top(&v, m);

    return st ? st : pickle_push(m, v);
}
