/* reshard/formats/safetensors/safetensors_header.c - see
 * reshard/formats/safetensors/safetensors_header.h. */
#include "reshard/formats/safetensors/safetensors_header.h"

#include <endian.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "reshard/formats/pieces/compiled_name.h"

enum {
    LENGTH_BYTES = 8,
    HEADER_MAX_BYTES = 100000000,
    DATA_ALIGN = 64, /* of the data in the file: some machines write whole cache lines faster */
};

#define METADATA "__metadata__" /* a member of the header that is no tensor */

/* ---- reading ---- */

/* What all checks of a header need. */
struct safetensors_reading {
    const char *path;
    int64_t data_begin, data_bytes;
    struct arena *arena;
    struct tp_err *err;
};

static tp_status no_memory(const struct safetensors_reading *r)
{
    return tp_fail(r->err, TP_E_NOMEM, "%s: no memory for its header", r->path);
}

static tp_status bad_tensor(const struct safetensors_reading *r, const char *name, const char *what)
{
    return tp_fail(r->err, TP_E_CORRUPT, "%s: tensor %s: %s", r->path, name, what);
}

/* Element size of a type that cannot be converted here, so that its offsets can be checked; 0: the
 * type is unknown, and its offsets are not checked. */
static int unsupported_bytes(const char *dtype)
{
    static const struct {
        const char *name;
        int bytes;
    } types[] = { { "BOOL", 1 }, { "I8", 1 },  { "F8_E4M3", 1 }, { "F8_E5M2", 1 }, { "F8_E8M0", 1 },
                  { "I16", 2 },  { "U16", 2 }, { "U32", 4 },     { "U64", 8 },     { "C64", 8 } };

    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (strcmp(dtype, types[i].name) == 0)
            return types[i].bytes;
    return 0;
}

static enum fp8_type fp8_type_of(const char *dtype)
{
    if (strcmp(dtype, "F8_E4M3") == 0)
        return FP8_E4M3;
    return strcmp(dtype, "F8_E8M0") == 0 ? FP8_E8M0 : FP8_NONE;
}

static tp_status read_shape(struct safetensors_tensor *t, int64_t *elements, const json_t *shape,
                            const struct safetensors_reading *r)
{
    size_t ndim = json_array_size(shape);
    struct box whole;

    if (!json_is_array(shape))
        return bad_tensor(r, t->name, "has no shape");
    if (ndim > BOX_NDIM_MAX)
        return bad_tensor(r, t->name, "has more axes than this version supports");
    t->ndim = (int)ndim;
    for (size_t d = 0; d < ndim; d++) {
        const json_t *v = json_array_get(shape, d);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return bad_tensor(r, t->name,
                              "has a shape with a number that is not an integer of at least 0");
        t->shape[d] = json_integer_value(v);
    }
    if (!tensor_shape_is_possible(t->ndim, t->shape))
        return bad_tensor(r, t->name, "has a shape with too many elements");
    whole = box_whole(t->ndim, t->shape);
    *elements = box_elements(&whole);
    return TP_OK;
}

static tp_status read_offsets(struct safetensors_entry *e, const json_t *offsets,
                              const struct safetensors_reading *r)
{
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);

    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return bad_tensor(r, e->tensor.name, "has no data_offsets");
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->end < e->begin || e->end > r->data_bytes)
        return bad_tensor(r, e->tensor.name,
                          "has data_offsets outside the file, which may be truncated");
    return TP_OK;
}

static tp_status read_entry(struct safetensors_entry *e, const char *name, const json_t *value,
                            const struct safetensors_reading *r)
{
    struct safetensors_tensor *t = &e->tensor;
    const char *dtype = json_string_value(json_object_get(value, "dtype"));
    int64_t elements = 0, bytes;
    int elem;
    tp_status st;

    t->name = compiled_name_plain(r->arena, name);
    if (!t->name)
        return no_memory(r);
    if (!dtype)
        return bad_tensor(r, name, "has no dtype");
    if (!dtype_parse(&t->dtype, dtype) || strcmp(dtype_safetensors(t->dtype), dtype) != 0)
        t->dtype = DTYPE_COUNT;
    e->fp8 = fp8_type_of(dtype);
    if ((st = read_shape(t, &elements, json_object_get(value, "shape"), r)))
        return st;
    if ((st = read_offsets(e, json_object_get(value, "data_offsets"), r)))
        return st;
    elem = t->dtype == DTYPE_COUNT ? unsupported_bytes(dtype) : dtype_bytes(t->dtype);
    if (elem &&
        (__builtin_mul_overflow(elements, (int64_t)elem, &bytes) || bytes != e->end - e->begin))
        return bad_tensor(r, name, "has data_offsets that do not match its shape and dtype");
    return TP_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct safetensors_entry *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end); /* empty ones first */
}

/* The tensors must fill the data, each byte exactly once. */
static tp_status check_no_holes(struct safetensors_entry *entries, int n,
                                const struct safetensors_reading *r)
{
    int64_t at = 0;

    qsort(entries, (size_t)n, sizeof *entries, by_begin);
    for (int i = 0; i < n; i++) {
        if (entries[i].begin != at)
            return bad_tensor(r, entries[i].tensor.name,
                              "has data that overlaps the data of another tensor, or that leaves a "
                              "hole before it");
        at = entries[i].end;
        entries[i].begin += r->data_begin;
        entries[i].end += r->data_begin;
    }
    if (at != r->data_bytes)
        return tp_fail(r->err, TP_E_CORRUPT, "%s: the last %lld bytes belong to no tensor", r->path,
                       (long long)(r->data_bytes - at));
    return TP_OK;
}

static int by_entry_name(const void *a, const void *b)
{
    const struct safetensors_entry *x = *(const struct safetensors_entry *const *)a;
    const struct safetensors_entry *y = *(const struct safetensors_entry *const *)b;

    return strcmp(x->tensor.name, y->tensor.name);
}

static tp_status check_unique(const struct safetensors_entry *entries, int n,
                              const struct safetensors_reading *r)
{
    const struct safetensors_entry **sorted = calloc((size_t)n + 1, sizeof *sorted);
    tp_status st = TP_OK;

    if (!sorted)
        return no_memory(r);
    for (int i = 0; i < n; i++)
        sorted[i] = &entries[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_entry_name);
    for (int i = 1; i < n && !st; i++)
        if (by_entry_name(&sorted[i - 1], &sorted[i]) == 0)
            st = bad_tensor(r, sorted[i]->tensor.name, "occurs twice");
    free(sorted);
    return st;
}

static tp_status parse(json_t **out, const struct json_scan_text *text,
                       const struct safetensors_reading *r)
{
    json_error_t why;

    *out = json_loadb(text->text, text->n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    return *out ? TP_OK
                : tp_fail(r->err, TP_E_CORRUPT, "%s: the header is not a JSON object: %s", r->path,
                          why.text);
}

static bool is_metadata(const struct json_scan_text *key)
{
    static const char name[] = "\"" METADATA "\"";

    return key->n == sizeof name - 1 && memcmp(key->text, name, key->n) == 0;
}

/* Count the tensors. */
static tp_status count_entries(int64_t *n, struct json_scan *s, const struct safetensors_reading *r)
{
    struct json_scan_text key;
    bool more;
    tp_status st = json_scan_enter(s, '{', NULL, r->err);

    for (*n = 0; !st;) {
        TP_TRY(json_scan_member(s, &key, &more, r->err));
        if (!more)
            return json_scan_end(s, r->err);
        *n += !is_metadata(&key);
        TP_TRY(json_scan_skip(s, r->err));
    }
done:
    return st;
}

/* Read the next tensor. *found is false when there is no other, or when this is the metadata. */
static tp_status read_next(struct safetensors_entry *e, bool *found, bool *more,
                           struct json_scan *s, const struct safetensors_reading *r)
{
    struct json_scan_text text;
    json_t *name = NULL, *value = NULL;
    tp_status st;

    TP_TRY(json_scan_member(s, &text, more, r->err));
    *found = *more && !is_metadata(&text);
    if (*more && !*found)
        TP_TRY(json_scan_skip(s, r->err));
    if (!*found)
        goto done;
    TP_TRY(parse(&name, &text, r));
    TP_TRY(json_scan_value(s, &text, r->err));
    TP_TRY(parse(&value, &text, r));
    TP_TRY(read_entry(e, json_string_value(name), value, r));
done:
    json_decref(name);
    json_decref(value);
    return st;
}

static tp_status read_entries(struct safetensors_entry **out, int *n, struct json_scan *s,
                              const struct safetensors_reading *r)
{
    struct safetensors_entry *entries, e;
    int64_t count = 0;
    bool found = false, more = true;
    tp_status st = count_entries(&count, s, r);

    if (st)
        return st;
    if (!(entries = arena_array(r->arena, (size_t)count + 1, sizeof *entries)))
        return no_memory(r);
    json_scan_rewind(s);
    TP_TRY(json_scan_enter(s, '{', NULL, r->err));
    for (*n = 0; more;) {
        e = (struct safetensors_entry){ .begin = 0 };
        TP_TRY(read_next(&e, &found, &more, s, r));
        if (found && *n == count)
            return tp_fail(r->err, TP_E_CORRUPT, "%s: changed while it was read", r->path);
        if (found)
            entries[(*n)++] = e;
    }
    TP_TRY(check_no_holes(entries, *n, r));
    TP_TRY(check_unique(entries, *n, r));
    *out = entries;
done:
    return st;
}

tp_status safetensors_header_read(struct safetensors_entry **entries, int *n,
                                  const struct safetensors_header_file *file, struct arena *arena,
                                  struct tp_err *err)
{
    const char *path = file->path;
    const int64_t size = file->size;
    struct safetensors_reading r = { .path = path, .arena = arena, .err = err };
    struct json_scan_input in;
    struct json_scan *scan = NULL;
    uint64_t length = 0;
    tp_status st;

    if (size < LENGTH_BYTES)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has %lld bytes, which is too short for a safetensors file", path,
                       (long long)size);
    TP_TRY(object_read_at(&file->object, path, 0, &length, sizeof length, err));
    length = le64toh(length);
    if (length > HEADER_MAX_BYTES || (int64_t)length > size - LENGTH_BYTES)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: says that its header has %llu bytes, but the file has %lld: it is "
                       "truncated or not a safetensors file",
                       path, (unsigned long long)length, (long long)size);
    in = object_json(&file->object, LENGTH_BYTES, (int64_t)length, path);
    TP_TRY(json_scan_open(&scan, &in, err));
    r.data_begin = LENGTH_BYTES + (int64_t)length;
    r.data_bytes = size - r.data_begin;
    st = read_entries(entries, n, scan, &r);
done:
    json_scan_close(scan);
    return st;
}

/* ---- writing ---- */

static json_t *entry_json(const struct safetensors_entry *e)
{
    json_t *shape = json_array();

    for (int d = 0; shape && d < e->tensor.ndim; d++)
        json_array_append_new(shape, json_integer(e->tensor.shape[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", dtype_safetensors(e->tensor.dtype), "shape",
                     shape, "data_offsets", (json_int_t)e->begin, (json_int_t)e->end);
}

/* Fill in the offsets within the data. */
static tp_status place_entries(struct safetensors_entry *entries, int n, struct tp_err *err)
{
    int64_t at = 0;

    for (int i = 0; i < n; i++) {
        struct box whole = box_whole(entries[i].tensor.ndim, entries[i].tensor.shape);
        int64_t bytes = box_elements(&whole) * dtype_bytes(entries[i].tensor.dtype);

        if (strcmp(entries[i].tensor.name, METADATA) == 0)
            return tp_fail(err, TP_E_USAGE,
                           "a tensor is called " METADATA ", which in a safetensors file is not a "
                           "tensor; rename it, or choose another format");
        entries[i].begin = at;
        if (__builtin_add_overflow(at, bytes, &at))
            return tp_fail(err, TP_E_USAGE, "tensor %s is too large for a safetensors file",
                           entries[i].tensor.name);
        entries[i].end = at;
    }
    return TP_OK;
}

static json_t *header_json(const struct safetensors_entry *entries, int n)
{
    json_t *root = json_pack("{s:{s:s}}", METADATA, "format", "pt");

    for (int i = 0; root && i < n; i++)
        if (json_object_set_new(root, entries[i].tensor.name, entry_json(&entries[i])) != 0) {
            json_decref(root);
            return NULL;
        }
    return root;
}

/* The length and the text of the header, padded so that the data is aligned; malloc'ed. TP_E_USAGE:
 * it is too long. */
static tp_status header_bytes_of(char **out, int64_t *bytes, const char *text, int n,
                                 struct tp_err *err)
{
    size_t length = strlen(text);
    size_t data = (LENGTH_BYTES + length + DATA_ALIGN - 1) / DATA_ALIGN * DATA_ALIGN;
    size_t padded = data - LENGTH_BYTES;
    uint64_t le = htole64(padded);
    char *buf;

    if (padded > HEADER_MAX_BYTES)
        return tp_fail(err, TP_E_USAGE,
                       "%d tensors need a header of %zu bytes, but readers of safetensors accept "
                       "at most %d; give a smaller --max-shard-size",
                       n, padded, HEADER_MAX_BYTES);
    buf = malloc(LENGTH_BYTES + padded);
    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "no memory for a header of %d tensors", n);
    memcpy(buf, &le, LENGTH_BYTES);
    /* NOLINTNEXTLINE(bugprone-not-null-terminated-result): the format has a length, no 0 byte */
    memcpy(buf + LENGTH_BYTES, text, length);
    memset(buf + LENGTH_BYTES + length, ' ', padded - length);
    *bytes = (int64_t)data;
    *out = buf;
    return TP_OK;
}

tp_status safetensors_header_make(char **header, int64_t *header_bytes,
                                  struct safetensors_entry *entries, int n, struct tp_err *err)
{
    json_t *root = NULL;
    char *text = NULL;
    tp_status st = place_entries(entries, n, err);

    if (st)
        return st;
    root = header_json(entries, n);
    text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    st = text ? header_bytes_of(header, header_bytes, text, n, err)
              : tp_fail(err, TP_E_NOMEM, "no memory for a header of %d tensors", n);
    for (int i = 0; i < n && !st; i++) {
        entries[i].begin += *header_bytes;
        entries[i].end += *header_bytes;
    }
    free(text);
    json_decref(root);
    return st;
}
