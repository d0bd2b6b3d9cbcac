/* torch/pickle_writer.c - see torch/pickle_writer.h. The instructions: Python's pickletools.py. */
#include "torch/pickle_writer.h"

#include <stdlib.h>
#include <string.h>

/* Instructions with operands. */
enum {
    OP_PROTO = 0x80,
    OP_BININT1 = 'K',
    OP_BININT = 'J',
    OP_LONG1 = 0x8a,
    OP_BINFLOAT = 'G',
    OP_BINUNICODE = 'X',
    OP_GLOBAL = 'c',
    OP_BINPUT = 'q',
    OP_LONG_BINPUT = 'r',
    OP_BINGET = 'h',
    OP_LONG_BINGET = 'j',
    PROTOCOL = 2,
    ROOM_MIN = 256,
};

void pickle_writer_free(struct pickle_writer *w)
{
    free(w->data);
    *w = (struct pickle_writer){ 0 };
}

static void append(struct pickle_writer *w, const void *bytes, size_t n)
{
    if (w->n + n > w->room && !w->failed) {
        const size_t room = w->n + n < ROOM_MIN ? ROOM_MIN : 2 * (w->n + n);
        char *grown = realloc(w->data, room);

        w->failed = !grown;
        if (grown) {
            w->data = grown;
            w->room = room;
        }
    }
    if (w->failed)
        return;
    memcpy(w->data + w->n, bytes, n);
    w->n += n;
}

static void append_byte(struct pickle_writer *w, int byte)
{
    const unsigned char c = (unsigned char)byte;

    append(w, &c, 1);
}

/* The n low bytes of v, the lowest first. */
static void append_low(struct pickle_writer *w, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        append_byte(w, (int)(v >> (8 * i) & 0xff));
}

void pickle_write_begin(struct pickle_writer *w)
{
    append_byte(w, OP_PROTO);
    append_byte(w, PROTOCOL);
}

void pickle_write_pushed(struct pickle_writer *w, const void *bytes, size_t n)
{
    append(w, bytes, n);
}

void pickle_write_op(struct pickle_writer *w, enum pickle_op op)
{
    append_byte(w, (int)op);
}

void pickle_write_dict(struct pickle_writer *w)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
}

void pickle_write_ordered_dict(struct pickle_writer *w)
{
    pickle_write_global(w, "collections", "OrderedDict");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_REDUCE);
    pickle_write_op(w, PICKLE_OP_MARK);
}

void pickle_write_list(struct pickle_writer *w)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_LIST);
    pickle_write_op(w, PICKLE_OP_MARK);
}

void pickle_write_int(struct pickle_writer *w, int64_t v)
{
    if (v >= 0 && v <= UINT8_MAX) {
        append_byte(w, OP_BININT1);
        append_low(w, (uint64_t)v, 1);
    } else if (v >= INT32_MIN && v <= INT32_MAX) {
        append_byte(w, OP_BININT);
        append_low(w, (uint64_t)v, 4);
    } else {
        append_byte(w, OP_LONG1);
        append_byte(w, 8);
        append_low(w, (uint64_t)v, 8);
    }
}

void pickle_write_float(struct pickle_writer *w, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    append_byte(w, OP_BINFLOAT);
    for (int i = 7; i >= 0; i--) /* the highest byte first */
        append_byte(w, (int)(bits >> (8 * i) & 0xff));
}

void pickle_write_text(struct pickle_writer *w, const char *text)
{
    const size_t n = strlen(text);

    append_byte(w, OP_BINUNICODE);
    append_low(w, n, 4);
    append(w, text, n);
}

void pickle_write_global(struct pickle_writer *w, const char *module, const char *name)
{
    append_byte(w, OP_GLOBAL);
    append(w, module, strlen(module));
    append_byte(w, '\n');
    append(w, name, strlen(name));
    append_byte(w, '\n');
}

void pickle_write_ints(struct pickle_writer *w, const int64_t *v, int n)
{
    pickle_write_op(w, PICKLE_OP_MARK);
    for (int i = 0; i < n; i++)
        pickle_write_int(w, v[i]);
    pickle_write_op(w, PICKLE_OP_TUPLE);
}

void pickle_write_key_int(struct pickle_writer *w, const char *key, int64_t v)
{
    pickle_write_text(w, key);
    pickle_write_int(w, v);
}

void pickle_write_key_float(struct pickle_writer *w, const char *key, double v)
{
    pickle_write_text(w, key);
    pickle_write_float(w, v);
}

void pickle_write_key_bool(struct pickle_writer *w, const char *key, bool v)
{
    pickle_write_text(w, key);
    pickle_write_op(w, v ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
}

void pickle_write_key_floats(struct pickle_writer *w, const char *key, double a, double b)
{
    pickle_write_text(w, key);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_float(w, a);
    pickle_write_float(w, b);
    pickle_write_op(w, PICKLE_OP_TUPLE);
}

void pickle_write_key_none(struct pickle_writer *w, const char *key)
{
    pickle_write_text(w, key);
    pickle_write_op(w, PICKLE_OP_NONE);
}

int pickle_write_remember(struct pickle_writer *w)
{
    const int memo = w->memo++;

    append_byte(w, memo <= UINT8_MAX ? OP_BINPUT : OP_LONG_BINPUT);
    append_low(w, (uint64_t)memo, memo <= UINT8_MAX ? 1 : 4);
    return memo;
}

void pickle_write_again(struct pickle_writer *w, int memo)
{
    append_byte(w, memo <= UINT8_MAX ? OP_BINGET : OP_LONG_BINGET);
    append_low(w, (uint64_t)memo, memo <= UINT8_MAX ? 1 : 4);
}
