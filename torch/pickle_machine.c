/* torch/pickle_machine.c - see torch/pickle_machine.h. */
#include "torch/pickle_machine.h"

#include <stdlib.h>
#include <string.h>

#include "core/size.h"

tp_status pickle_refuse(struct pickle_machine *m, const char *what)
{
    return tp_fail(m->err, TP_E_CORRUPT,
                   "%s: the pickle is damaged or hostile: %s, before byte %lld", m->path, what,
                   (long long)(m->at - m->begin));
}

tp_status pickle_no_memory(struct pickle_machine *m)
{
    char has[SIZE_TEXT_MAX], left[SIZE_TEXT_MAX], all[SIZE_TEXT_MAX];

    /* what has been read of the pickle says what the rest needs */
    if (m->limit_bytes > 0)
        return tp_fail(
            m->err, TP_E_BUDGET,
            "%s: the values of its pickle, which has %s, need about %s, more than the "
            "%s that are left of --mem; give more, unless the file is hostile",
            m->path, size_format(has, m->end - m->begin),
            size_format(all, (int64_t)((double)m->limit_bytes * (double)(m->end - m->begin) /
                                       (double)(m->at - m->begin + 1))),
            size_format(left, (int64_t)m->limit_bytes));
    return tp_fail(m->err, TP_E_NOMEM, "%s: no memory for the values of its pickle", m->path);
}

/* ---- bytes ---- */

tp_status pickle_take(const unsigned char **p, struct pickle_machine *m, uint64_t n)
{
    if (n > (uint64_t)(m->end - m->at))
        return pickle_refuse(m, "a value is longer than the rest of the file");
    *p = m->at;
    m->at += n;
    return TP_OK;
}

/* An unsigned number of `n` bytes, little-endian. */
tp_status pickle_take_number(uint64_t *out, struct pickle_machine *m, int n)
{
    const unsigned char *p = NULL;
    tp_status st = pickle_take(&p, m, (uint64_t)n);

    *out = 0;
    for (int i = 0; i < n && !st; i++)
        *out |= (uint64_t)p[i] << 8 * i;
    return st;
}

/* A line of text without its newline, in buf. */
tp_status pickle_take_line(char *buf, size_t size, struct pickle_machine *m)
{
    const unsigned char *end = memchr(m->at, '\n', (size_t)(m->end - m->at));
    size_t n = end ? (size_t)(end - m->at) : 0;

    if (!end || n >= size || memchr(m->at, 0, n))
        return pickle_refuse(m, "a name or number does not end");
    memcpy(buf, m->at, n);
    buf[n] = 0;
    m->at = end + 1;
    return TP_OK;
}

/* ---- the stack ---- */

/* Take bytes from what the arena may still allocate. */
static bool take_memory(struct pickle_machine *m, size_t bytes)
{
    struct arena *a = m->arena;

    if (a->limit_bytes == 0)
        return true;
    if (a->used_bytes + bytes >= a->limit_bytes)
        return false;
    a->limit_bytes -= bytes;
    return true;
}

tp_status pickle_grow(struct pickle_machine *m, struct pickle_value ***list, int64_t *room,
                      int64_t need)
{
    int64_t larger = *room ? *room * 2 : 256;
    void *grown;

    if (need <= *room)
        return TP_OK;
    if (larger < need)
        larger = need;
    if (!take_memory(m, (size_t)(larger - *room) * sizeof **list))
        return pickle_no_memory(m);
    grown = realloc(*list, (size_t)larger * sizeof **list);
    if (!grown)
        return pickle_no_memory(m);
    *list = grown;
    memset(*list + *room, 0, (size_t)(larger - *room) * sizeof **list);
    *room = larger;
    return TP_OK;
}

tp_status pickle_push(struct pickle_machine *m, struct pickle_value *v)
{
    tp_status st = pickle_grow(m, &m->stack, &m->stack_room, m->n_stack + 1);

    if (!st)
        m->stack[m->n_stack++] = v;
    return st;
}

/* The place on the stack below which instructions may not take values. */
int64_t pickle_bottom(const struct pickle_machine *m)
{
    return m->n_marks ? m->marks[m->n_marks - 1] : 0;
}

tp_status pickle_pop(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= pickle_bottom(m))
        return pickle_refuse(m, "it takes a value from an empty stack");
    *out = m->stack[--m->n_stack];
    return TP_OK;
}

tp_status pickle_top(struct pickle_value **out, struct pickle_machine *m)
{
    if (m->n_stack <= pickle_bottom(m))
        return pickle_refuse(m, "it takes a value from an empty stack");
    *out = m->stack[m->n_stack - 1];
    return TP_OK;
}

tp_status pickle_push_mark(struct pickle_machine *m)
{
    if (m->n_marks == PICKLE_MARKS_MAX)
        return pickle_refuse(m, "it nests too deeply");
    m->marks[m->n_marks++] = m->n_stack;
    return TP_OK;
}

/* Take the values after the last mark, and the mark. They stay readable until the next push. */
tp_status pickle_pop_mark(struct pickle_value ***items, int64_t *n, struct pickle_machine *m)
{
    if (m->n_marks == 0)
        return pickle_refuse(m, "it has no mark");
    m->n_marks--;
    *n = m->n_stack - m->marks[m->n_marks];
    m->n_stack = m->marks[m->n_marks];
    *items = m->stack + m->n_stack;
    return TP_OK;
}

/* The last n values of the stack, which stay readable until the next push. */
tp_status pickle_pop_many(struct pickle_value ***items, struct pickle_machine *m, int64_t n)
{
    if (m->n_stack - pickle_bottom(m) < n)
        return pickle_refuse(m, "it takes a value from an empty stack");
    m->n_stack -= n;
    *items = m->stack + m->n_stack;
    return TP_OK;
}

/* ---- the memo ---- */

tp_status pickle_memo_put(struct pickle_machine *m, uint64_t index)
{
    struct pickle_value *v = NULL;
    tp_status st = pickle_top(&v, m);

    if (st)
        return st;
    if (index >= (uint64_t)(m->end - m->begin))
        return pickle_refuse(m, "an index of the memo is too large");
    st = pickle_grow(m, &m->memo, &m->memo_room, (int64_t)index + 1);
    if (!st) {
        m->memo[index] = v;
        m->puts++;
    }
    return st;
}

tp_status pickle_memo_get(struct pickle_machine *m, uint64_t index)
{
    if (index >= (uint64_t)m->memo_room || !m->memo[index])
        return pickle_refuse(m, "the memo has no such value");
    return pickle_push(m, m->memo[index]);
}
