/* torch/pickle_value.c - see torch/pickle_value.h. */
#include "torch/pickle_value.h"

#include <stdlib.h>
#include <string.h>

bool pickle_is(const struct pickle_value *v, enum pickle_kind kind)
{
    return v && v->kind == kind;
}

bool pickle_is_global(const struct pickle_value *v, const char *module, const char *name)
{
    return pickle_is(v, PICKLE_GLOBAL) && strcmp(v->global.module, module) == 0 &&
           strcmp(v->global.name, name) == 0;
}

bool pickle_is_call(const struct pickle_value *v, const char *module, const char *name)
{
    return pickle_is(v, PICKLE_OBJECT) && pickle_is_global(v->object.callable, module, name);
}

const char *pickle_text(const struct pickle_value *v)
{
    if (!pickle_is(v, PICKLE_TEXT) || (int64_t)strlen(v->text.s) != v->text.n)
        return NULL;
    return v->text.s;
}

int64_t pickle_count(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_LIST) || pickle_is(v, PICKLE_TUPLE) ? v->list.n : 0;
}

const struct pickle_value *pickle_item(const struct pickle_value *v, int64_t i)
{
    return i >= 0 && i < pickle_count(v) ? v->list.items[i] : NULL;
}

int64_t pickle_entries(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_DICT) ? v->list.n / 2 : 0;
}

const struct pickle_value *pickle_key(const struct pickle_value *v, int64_t i)
{
    return i >= 0 && i < pickle_entries(v) ? v->list.items[2 * i] : NULL;
}

const struct pickle_value *pickle_entry(const struct pickle_value *v, int64_t i)
{
    return i >= 0 && i < pickle_entries(v) ? v->list.items[2 * i + 1] : NULL;
}

const struct pickle_value *pickle_get(const struct pickle_value *v, const char *key)
{
    if (pickle_is(v, PICKLE_OBJECT))
        v = v->object.state;
    for (int64_t i = pickle_entries(v) - 1; i >= 0; i--) {
        const char *text = pickle_text(pickle_key(v, i));

        if (text && strcmp(text, key) == 0)
            return pickle_entry(v, i);
    }
    return NULL;
}

const struct pickle_value *pickle_get_number(const struct pickle_value *v, int64_t key)
{
    int64_t n;

    for (int64_t i = pickle_entries(v) - 1; i >= 0; i--)
        if (pickle_int(&n, pickle_key(v, i)) && n == key)
            return pickle_entry(v, i);
    return NULL;
}

static int by_number(const void *a, const void *b)
{
    const struct pickle_number *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return (x->at > y->at) - (x->at < y->at);
}

bool pickle_numbers_make(struct pickle_numbers *out, const struct pickle_value *v,
                         struct arena *arena)
{
    const int64_t n = pickle_entries(v);
    int64_t key;

    *out = (struct pickle_numbers){ arena_array(arena, (size_t)n + 1, sizeof *out->list), 0 };
    if (!out->list)
        return false;
    for (int64_t i = 0; i < n; i++)
        if (pickle_int(&key, pickle_key(v, i)))
            out->list[out->n++] = (struct pickle_number){ key, i, pickle_entry(v, i) };
    qsort(out->list, (size_t)out->n, sizeof *out->list, by_number);
    return true;
}

const struct pickle_value *pickle_numbers_find(const struct pickle_numbers *numbers, int64_t key)
{
    int64_t lo = 0, hi = numbers->n;

    while (lo < hi) { /* the first one above the key */
        const int64_t middle = lo + (hi - lo) / 2;

        if (numbers->list[middle].key > key)
            hi = middle;
        else
            lo = middle + 1;
    }
    return lo > 0 && numbers->list[lo - 1].key == key ? numbers->list[lo - 1].value : NULL;
}

bool pickle_int(int64_t *n, const struct pickle_value *v)
{
    if (!pickle_is(v, PICKLE_INT))
        return false;
    *n = v->number;
    return true;
}

bool pickle_real(double *x, const struct pickle_value *v)
{
    if (!v || (v->kind != PICKLE_FLOAT && v->kind != PICKLE_INT))
        return false;
    *x = v->kind == PICKLE_FLOAT ? v->real : (double)v->number;
    return true;
}
