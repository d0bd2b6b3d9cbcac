/* core/json_scan.c - see core/json_scan.h. */
#include "core/json_scan.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"

enum { WINDOW_BYTES = 1 << 20, FIRST_PIECE_BYTES = 512 };

struct json_scan {
    struct json_scan_input in;
    char *window;
    size_t window_bytes;
    int64_t at;    /* of the window in the text */
    size_t n, pos; /* bytes in the window, and of them done */
    bool fresh;    /* the object or list that was entered has given out nothing yet */

    /* The piece that is being kept. */
    bool keeping;
    size_t kept_from; /* where in the window it continues */
    char *piece;
    size_t piece_n, piece_room;

    tp_status st; /* of reading the text; the message is in err */
    struct tp_err err;
};

/* ---- the text ---- */

struct json_scan_input json_scan_input_text(const char *text, size_t size, const char *path)
{
    return (struct json_scan_input){ .path = path, .text = text, .fd = -1, .size = (int64_t)size };
}

struct json_scan_input json_scan_input_file(int fd, int64_t begin, int64_t size, const char *path)
{
    return (struct json_scan_input){ .path = path, .fd = fd, .begin = begin, .size = size };
}

tp_status json_scan_input_read(const struct json_scan_input *in, int64_t offset, void *buf,
                               size_t n, struct tp_err *err)
{
    if (in->read)
        return in->read(in->ctx, in->path, in->begin + offset, buf, n, err);
    if (!in->text)
        return file_read_at(in->fd, in->path, in->begin + offset, buf, n, err);
    memcpy(buf, in->text + offset, n);
    return TP_OK;
}

static tp_status bad(const struct json_scan *s, const char *what, struct tp_err *err)
{
    if (s->st) {
        *err = s->err;
        return s->st;
    }
    return tp_fail(err, TP_E_CORRUPT, "%s: is not a JSON object: %s at byte %lld", s->in.path, what,
                   (long long)(s->at + (int64_t)s->pos));
}

/* Append what was kept in this window to the piece. */
static void keep(struct json_scan *s)
{
    size_t n = s->pos - s->kept_from, need = s->piece_n + n;

    s->kept_from = s->pos;
    if (need > s->piece_room && need <= JSON_VALUE_BYTES_MAX) {
        size_t room = s->piece_room ? s->piece_room : FIRST_PIECE_BYTES;
        char *grown;

        while (room < need)
            room *= 2;
        grown = realloc(s->piece, room);
        if (!grown) {
            s->st = tp_fail(&s->err, TP_E_NOMEM, "%s: no memory to read it", s->in.path);
            return;
        }
        s->piece = grown;
        s->piece_room = room;
    }
    if (need <= s->piece_room && n > 0)
        memcpy(s->piece + s->piece_n, s->window + s->pos - n, n);
    s->piece_n = need; /* also when it is too long, which the end of the piece reports */
}

static void fill(struct json_scan *s)
{
    int64_t left = s->in.size - s->at - (int64_t)s->n;

    if (s->st || left <= 0)
        return;
    if (s->keeping)
        keep(s);
    s->at += (int64_t)s->n;
    s->n = left < (int64_t)s->window_bytes ? (size_t)left : s->window_bytes;
    s->pos = s->kept_from = 0;
    if (!s->st)
        s->st = json_scan_input_read(&s->in, s->at, s->window, s->n, &s->err);
    if (s->st)
        s->n = 0;
}

/* The next byte, or -1: there is none, or it cannot be read. */
static int peek(struct json_scan *s)
{
    if (s->pos == s->n)
        fill(s);
    return s->pos < s->n ? (unsigned char)s->window[s->pos] : -1;
}

/* The next byte that is not white space. */
static int peek_token(struct json_scan *s)
{
    int c = peek(s);

    while (c == ' ' || c == '\n' || c == '\r' || c == '\t') {
        s->pos++;
        c = peek(s);
    }
    return c;
}

static void begin_piece(struct json_scan *s)
{
    s->keeping = true;
    s->kept_from = s->pos;
    s->piece_n = 0;
}

static tp_status end_piece(struct json_scan *s, struct json_scan_text *out, struct tp_err *err)
{
    keep(s);
    s->keeping = false;
    if (s->st)
        return bad(s, "", err);
    if (s->piece_n > JSON_VALUE_BYTES_MAX)
        return bad(s, "a value is too long", err);
    *out = (struct json_scan_text){ s->piece, s->piece_n };
    return TP_OK;
}

/* ---- the grammar ---- */

static tp_status skip_string(struct json_scan *s, struct tp_err *err)
{
    int c;

    s->pos++; /* the quote */
    while ((c = peek(s)) != '"') {
        if (c < 0x20)
            return bad(s, c < 0 ? "it ends in a string" : "a control character in a string", err);
        s->pos++;
        if (c == '\\' && peek(s) >= 0)
            s->pos++;
    }
    s->pos++;
    return TP_OK;
}

static tp_status skip_key(struct json_scan *s, struct tp_err *err)
{
    tp_status st;

    if (peek_token(s) != '"')
        return bad(s, "a key is missing", err);
    if ((st = skip_string(s, err)))
        return st;
    if (peek_token(s) != ':')
        return bad(s, "a colon is missing", err);
    s->pos++;
    return TP_OK;
}

static bool is_word(int c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || c == '-' || c == '+' || c == '.' ||
           c == 'E';
}

/* A string, number, true, false or null. */
static tp_status skip_scalar(struct json_scan *s, struct tp_err *err)
{
    int c = peek(s);

    if (c == '"')
        return skip_string(s, err);
    if (!is_word(c))
        return bad(s, c < 0 ? "it ends before a value" : "a value is missing", err);
    while (is_word(c)) {
        s->pos++;
        c = peek(s);
    }
    return TP_OK;
}

static char closing(char open)
{
    return open == '{' ? '}' : ']';
}

/* The objects and lists around a place in a value. */
struct json_scan_nest {
    char open[JSON_DEPTH_MAX];
    int depth;
};

/* Begin a value: a scalar, or an object or list, which is entered. *ended: it is complete. */
static tp_status begin_value(struct json_scan *s, struct json_scan_nest *nest, bool *ended,
                             struct tp_err *err)
{
    int c = peek_token(s);

    *ended = true;
    if (c != '{' && c != '[')
        return skip_scalar(s, err);
    if (nest->depth == JSON_DEPTH_MAX)
        return bad(s, "values are nested too deeply", err);
    s->pos++;
    if (peek_token(s) == closing((char)c)) {
        s->pos++;
        return TP_OK;
    }
    nest->open[nest->depth++] = (char)c;
    *ended = false;
    return c == '{' ? skip_key(s, err) : TP_OK;
}

/* After a value: leave what ends with it, up to the comma before the next value. */
static tp_status leave(struct json_scan *s, struct json_scan_nest *nest, struct tp_err *err)
{
    while (nest->depth > 0) {
        char open = nest->open[nest->depth - 1];
        int c = peek_token(s);

        if (c == ',') {
            s->pos++;
            return open == '{' ? skip_key(s, err) : TP_OK;
        }
        if (c != closing(open))
            return bad(s, "a comma or a bracket is missing", err);
        s->pos++;
        nest->depth--;
    }
    return TP_OK;
}

static tp_status skip_value(struct json_scan *s, int64_t parts_max, struct tp_err *err)
{
    struct json_scan_nest nest = { .depth = 0 };
    int64_t parts = 0;
    bool ended;
    tp_status st;

    do {
        if (++parts > parts_max)
            return bad(s, "a value has too many parts", err);
        TP_TRY(begin_value(s, &nest, &ended, err));
        if (ended)
            TP_TRY(leave(s, &nest, err));
    } while (nest.depth > 0);
done:
    return st;
}

/* ---- the calls ---- */

tp_status json_scan_open(struct json_scan **out, const struct json_scan_input *in,
                         struct tp_err *err)
{
    struct json_scan *s = calloc(1, sizeof *s);

    if (s) {
        s->in = *in;
        s->window_bytes = in->size < WINDOW_BYTES ? (size_t)in->size + 1 : WINDOW_BYTES;
        s->window = malloc(s->window_bytes);
    }
    if (!s || !s->window) {
        free(s);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", in->path);
    }
    *out = s;
    return TP_OK;
}

void json_scan_close(struct json_scan *s)
{
    if (!s)
        return;
    free(s->window);
    free(s->piece);
    free(s);
}

void json_scan_rewind(struct json_scan *s)
{
    if (s->at > 0)
        s->n = 0; /* the window must be read again */
    s->at = 0;
    s->pos = 0;
    s->keeping = false;
}

tp_status json_scan_enter(struct json_scan *s, char open, bool *entered, struct tp_err *err)
{
    bool found = peek_token(s) == open;

    if (s->st || (!found && !entered))
        return bad(s, open == '{' ? "no object" : "no list", err);
    if (entered)
        *entered = found;
    s->pos += found;
    s->fresh = s->fresh || found;
    return TP_OK;
}

/* Go to the next value of the object or list. */
static tp_status next(struct json_scan *s, char close, bool *more, struct tp_err *err)
{
    int c = peek_token(s);

    *more = c != close;
    if (c != close && !s->fresh && c != ',')
        return bad(s, "a comma or a bracket is missing", err);
    if (c == close || !s->fresh)
        s->pos++;
    s->fresh = false;
    return TP_OK;
}

tp_status json_scan_member(struct json_scan *s, struct json_scan_text *key, bool *more,
                           struct tp_err *err)
{
    tp_status st = next(s, '}', more, err);

    if (st || !*more)
        return st;
    if (peek_token(s) != '"')
        return bad(s, "a key is missing", err);
    begin_piece(s);
    TP_TRY(skip_string(s, err));
    TP_TRY(end_piece(s, key, err));
    if (peek_token(s) != ':')
        return bad(s, "a colon is missing", err);
    s->pos++;
done:
    s->keeping = false;
    return st;
}

tp_status json_scan_entry(struct json_scan *s, bool *more, struct tp_err *err)
{
    return next(s, ']', more, err);
}

tp_status json_scan_value(struct json_scan *s, struct json_scan_text *value, struct tp_err *err)
{
    tp_status st;

    peek_token(s);
    begin_piece(s);
    TP_TRY(skip_value(s, JSON_VALUE_PARTS_MAX, err));
    TP_TRY(end_piece(s, value, err));
done:
    s->keeping = false;
    return st;
}

tp_status json_scan_skip(struct json_scan *s, struct tp_err *err)
{
    return skip_value(s, INT64_MAX, err);
}

tp_status json_scan_end(struct json_scan *s, struct tp_err *err)
{
    return peek_token(s) < 0 && !s->st ? TP_OK : bad(s, "more text after its end", err);
}

bool json_scan_is_bounded(const char *text, size_t size)
{
    int64_t parts = 1;
    bool in_string = false;

    if (size > JSON_VALUE_BYTES_MAX)
        return false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];

        if (in_string && c == '\\')
            i++;
        else if (c == '"')
            in_string = !in_string;
        else if (!in_string && (c == '{' || c == '[' || c == ','))
            parts++;
    }
    return parts <= 2 * JSON_VALUE_PARTS_MAX;
}
