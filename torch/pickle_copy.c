/* torch/pickle_copy.c - see torch/pickle_copy.h. Values nest at most PICKLE_DEPTH_MAX deep. */
#include "torch/pickle_copy.h"

enum { PARTS_MAX = 100000 };

static bool has_items(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_LIST) || pickle_is(v, PICKLE_TUPLE) || pickle_is(v, PICKLE_DICT);
}

/* Whether v is plain; *left parts more may follow. */
static bool is_plain(const struct pickle_value *v, int *left)
{
    bool plain = pickle_is(v, PICKLE_NONE) || pickle_is(v, PICKLE_BOOL) ||
                 pickle_is(v, PICKLE_INT) || pickle_is(v, PICKLE_FLOAT) || pickle_text(v);

    if (--*left < 0)
        return false;
    if (!has_items(v))
        return plain;
    plain = true;
    for (int64_t i = 0; i < v->list.n && plain; i++)
        plain = is_plain(v->list.items[i], left);
    return plain;
}

bool pickle_copy_can(const struct pickle_value *v)
{
    int left = PARTS_MAX;

    return is_plain(v, &left);
}

static void push_items(struct pickle_writer *w, const struct pickle_value *v)
{
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int64_t i = 0; i < v->list.n; i++)
        pickle_copy(w, v->list.items[i]);
}

void pickle_copy(struct pickle_writer *w, const struct pickle_value *v)
{
    switch (v->kind) {
    case PICKLE_BOOL:
        pickle_write_op(w, v->number ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
        break;
    case PICKLE_INT:
        pickle_write_int(w, v->number);
        break;
    case PICKLE_FLOAT:
        pickle_write_float(w, v->real);
        break;
    case PICKLE_TEXT:
        pickle_write_text(w, v->text.s);
        break;
    case PICKLE_LIST:
        pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
        push_items(w, v);
        pickle_write_op(w, PICKLE_OP_APPENDS);
        break;
    case PICKLE_TUPLE:
        push_items(w, v);
        pickle_write_op(w, PICKLE_OP_TUPLE);
        break;
    case PICKLE_DICT:
        pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
        push_items(w, v);
        pickle_write_op(w, PICKLE_OP_SETITEMS);
        break;
    default:
        pickle_write_op(w, PICKLE_OP_NONE);
    }
}
