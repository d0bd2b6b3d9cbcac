/* reshard/formats/pieces/piece_source.c - the pieces that there are; see
 * reshard/formats/pieces/piece.h. piece_endpoint.c reads them. */
#include "reshard/formats/pieces/piece_source_state.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "storage/location.h"
#include "storage/remote_object.h"

tp_status piece_source_new(struct piece_source **out, const char *path, struct tp_err *err)
{
    struct piece_source *s = calloc(1, sizeof *s);

    if (s) {
        pthread_mutex_init(&s->lock, NULL);
        tensor_digests_init(&s->digests);
        s->path = arena_strdup(&s->arena, path);
        s->files = file_table_new();
        s->step.value = s->iteration.value = -1;
        s->weights = DTYPE_BF16;
    }
    if (!s || !s->path || !s->files) {
        piece_source_close(s);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path);
    }
    *out = s;
    return TP_OK;
}

void piece_source_close(struct piece_source *s)
{
    if (!s)
        return;
    pthread_mutex_destroy(&s->lock);
    tensor_digests_end(&s->digests);
    file_table_free(s->files);
    if (s->owned)
        s->close_owned(s->owned);
    free(s->pieces);
    free(s->sums);
    free(s->tensors);
    free(s->left);
    arena_free(&s->arena);
    free(s);
}

const char *piece_source_path(const struct piece_source *s)
{
    return s->path;
}

void piece_source_limit(struct piece_source *s, int64_t memory_bytes)
{
    s->arena.limit_bytes = (size_t)memory_bytes;
}

size_t piece_source_memory_left(struct piece_source *s)
{
    const size_t limit = s->arena.limit_bytes, used = s->arena.used_bytes;

    return limit == 0 ? 0 : limit > used ? limit - used : 1;
}

struct arena *piece_source_arena(struct piece_source *s)
{
    return &s->arena;
}

struct file_table *piece_source_files(struct piece_source *s)
{
    return s->files;
}

tp_status piece_source_add_file(struct piece_source *s, const char *name, int *file,
                                struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st = file_join(path, piece_source_path(s), name, err);

    return st ? st : file_table_add(piece_source_files(s), file, path, err);
}

void piece_source_own(struct piece_source *s, void *owned, void (*close)(void *owned))
{
    s->owned = owned;
    s->close_owned = close;
}

/* ---- adding ---- */

static tp_status no_memory(const struct piece_source *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->path);
}

/* Make room for one more element of a list, which counts as memory of the tables. */
static tp_status grow(struct piece_source *s, void *list, int n, int *room, size_t size,
                      struct tp_err *err)
{
    void **p = list, *grown;
    const int larger = *room + *room / 4 + 64;
    const size_t more = (size_t)(larger - *room) * size;

    if (n < *room)
        return TP_OK;
    if (n > (1 << 29) || (s->arena.limit_bytes > 0 && more >= piece_source_memory_left(s)))
        return no_memory(s, err);
    grown = realloc(*p, (size_t)larger * size);
    if (!grown)
        return no_memory(s, err);
    if (s->arena.limit_bytes > 0)
        s->arena.limit_bytes -= more;
    *p = grown;
    *room = larger;
    return TP_OK;
}

/* Names go to terminals and into our manifest. */
static bool is_printable(const char *name)
{
    for (const char *p = name; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            return false;
    return *name != 0;
}

tp_status piece_source_add(struct piece_source *s, const struct piece *p, struct tp_err *err)
{
    struct box whole = box_whole(p->ndim, p->shape);
    char has[BOX_TEXT_MAX], is[BOX_TEXT_MAX];
    tp_status st;

    if (!is_printable(p->name))
        return tp_fail(err, TP_E_CORRUPT, "%s: a tensor's name has control characters",
                       file_table_path(s->files, p->file));
    if (!tensor_shape_is_possible(p->ndim, p->shape))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s has a shape with too many elements",
                       file_table_path(s->files, p->file), p->group, p->name);
    if (!box_contains(&whole, &p->box))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s is %s, but a part of it is %s",
                       file_table_path(s->files, p->file), p->group, p->name,
                       box_format(is, &whole), box_format(has, &p->box));
    if (box_is_empty(&p->box) && !box_is_empty(&whole))
        return TP_OK;
    st = grow(s, &s->pieces, s->n_pieces, &s->pieces_room, sizeof *s->pieces, err);
    if (!st)
        s->pieces[s->n_pieces++] = *p;
    return st;
}

tp_status piece_source_add_sum(struct piece_source *s, int *number, const struct piece_sum *sum,
                               struct tp_err *err)
{
    tp_status st = grow(s, &s->sums, s->n_sums, &s->sums_room, sizeof *s->sums, err);

    if (st)
        return st;
    s->sums[s->n_sums++] = *sum;
    *number = s->n_sums;
    return TP_OK;
}

/* Two places that say a number must agree. */
static tp_status set_number(struct piece_source *s, struct piece_number *number, int64_t value,
                            const char *where, struct tp_err *err)
{
    if (number->value >= 0 && number->value != value)
        return tp_fail(err, TP_E_CORRUPT, "%s: %s is at step %lld, but %s at step %lld", s->path,
                       where, (long long)value, number->where, (long long)number->value);
    number->value = value;
    number->where = arena_strdup(&s->arena, where);
    return number->where ? TP_OK : no_memory(s, err);
}

tp_status piece_source_set_step(struct piece_source *s, int64_t step, const char *where,
                                struct tp_err *err)
{
    return set_number(s, &s->step, step, where, err);
}

tp_status piece_source_set_iteration(struct piece_source *s, int64_t iteration, const char *where,
                                     struct tp_err *err)
{
    return set_number(s, &s->iteration, iteration, where, err);
}

int64_t piece_source_step(const struct piece_source *s)
{
    return s->step.value >= 0 ? s->step.value : s->iteration.value;
}

void piece_source_set_weights(struct piece_source *s, enum dtype dtype)
{
    s->weights = dtype;
}

enum dtype piece_source_weights(const struct piece_source *s)
{
    return s->weights;
}

void piece_source_set_frozen(struct piece_source *s)
{
    s->frozen = true;
}

bool piece_source_has_frozen(const struct piece_source *s)
{
    return s->frozen;
}

tp_status piece_source_leave(struct piece_source *s, const char *name, struct tp_err *err)
{
    tp_status st = grow(s, &s->left, s->n_left, &s->left_room, sizeof *s->left, err);

    if (st)
        return st;
    s->left[s->n_left] = (struct piece_left){ .name = arena_strdup(&s->arena, name) };
    return s->left[s->n_left++].name ? TP_OK : no_memory(s, err);
}

tp_status piece_source_leave_extra(struct piece_source *s, const char *name, const void *bytes,
                                   size_t n, struct tp_err *err)
{
    tp_status st = piece_source_leave(s, name, err);
    void *copy = st ? NULL : arena_alloc(&s->arena, n);

    if (!copy)
        return st ? st : no_memory(s, err);
    if (n > 0)
        memcpy(copy, bytes, n);
    s->left[s->n_left - 1].extra = (struct piece_extra){ copy, n };
    return TP_OK;
}

const struct piece_extra *piece_source_left_extra(const struct piece_source *s, int i)
{
    return s->left[i].extra.bytes ? &s->left[i].extra : NULL;
}

void piece_source_left_in_adamw(struct piece_source *s)
{
    s->left[s->n_left - 1].in_adamw = true;
}

bool piece_source_left_is_in_adamw(const struct piece_source *s, int i)
{
    return s->left[i].in_adamw;
}

void piece_source_refuse_state(struct piece_source *s, const struct tp_err *why)
{
    s->refused = *why;
}

const struct tp_err *piece_source_refused_state(const struct piece_source *s)
{
    return s->refused.status ? &s->refused : NULL;
}

void piece_source_set_distributed(struct piece_source *s)
{
    s->distributed = true;
}

void piece_source_set_vocab_rows(struct piece_source *s, int64_t rows)
{
    s->vocab_rows = rows;
}

int64_t piece_source_vocab_rows(const struct piece_source *s)
{
    return s->vocab_rows;
}

bool piece_source_is_distributed(const struct piece_source *s)
{
    return s->distributed;
}

void piece_source_set_tensor_steps(struct piece_source *s)
{
    s->tensor_steps = true;
}

bool piece_source_has_tensor_steps(const struct piece_source *s)
{
    return s->tensor_steps;
}

void piece_source_set_modules(struct piece_source *s, struct export_modules modules)
{
    s->modules = modules;
}

struct export_modules piece_source_modules(const struct piece_source *s)
{
    return s->modules;
}

void piece_source_set_module_names(struct piece_source *s)
{
    s->module_names = true;
}

bool piece_source_has_module_names(const struct piece_source *s)
{
    return s->module_names;
}

void piece_source_set_old_form(struct piece_source *s, const char *form)
{
    s->old_form = form;
}

const char *piece_source_old_form(const struct piece_source *s)
{
    return s->old_form;
}

void piece_source_set_adamw(struct piece_source *s, const struct export_adamw *adamw)
{
    s->adamw = *adamw;
    s->has_adamw = true;
}

void piece_source_adamw(const struct piece_source *s, struct export_adamw *out)
{
    if (s->has_adamw)
        *out = s->adamw;
}

bool piece_source_adamw_is_of(struct piece_source *s, const char *owner, int n)
{
    if (n == 0)
        s->adamw_owner = "";
    else if (!s->adamw_owner)
        s->adamw_owner = arena_printf(&s->arena, "%.*s", n, owner);
    return s->adamw_owner && strlen(s->adamw_owner) == (size_t)n &&
           strncmp(s->adamw_owner, owner, (size_t)n) == 0;
}

int piece_source_left(const struct piece_source *s)
{
    return s->n_left;
}

const char *piece_source_left_name(const struct piece_source *s, int i)
{
    return s->left[i].name;
}

/* ---- tensors ---- */

static int by_group_and_name(const struct piece *x, const struct piece *y)
{
    int order = strcmp(x->group, y->group);

    return order ? order : strcmp(x->name, y->name);
}

static int by_place(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    int order = by_group_and_name(x, y);

    for (int d = 0; d < BOX_NDIM_MAX && !order && d < x->ndim && d < y->ndim; d++)
        order = (x->box.lo[d] > y->box.lo[d]) - (x->box.lo[d] < y->box.lo[d]);
    if (!order)
        order = (x->file > y->file) - (x->file < y->file);
    return order ? order : (x->begin > y->begin) - (x->begin < y->begin);
}

static tp_status check_alike(const struct piece_source *s, const struct piece *a,
                             const struct piece *b, struct tp_err *err)
{
    struct box x = box_whole(a->ndim, a->shape), y = box_whole(b->ndim, b->shape);
    char x_text[BOX_TEXT_MAX], y_text[BOX_TEXT_MAX];

    if (!box_equal(&x, &y))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s is %s, but in %s it is %s",
                       file_table_path(s->files, b->file), b->group, b->name,
                       box_format(y_text, &y), file_table_path(s->files, a->file),
                       box_format(x_text, &x));
    if (a->dtype != b->dtype)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s has another type than in %s",
                       file_table_path(s->files, b->file), b->group, b->name,
                       file_table_path(s->files, a->file));
    return TP_OK;
}

tp_status piece_source_finish(struct piece_source *s, struct tp_err *err)
{
    tp_status st;

    s->tensors = calloc((size_t)s->n_pieces + 1, sizeof *s->tensors);
    if (!s->tensors)
        return no_memory(s, err);
    if (s->n_pieces)
        qsort(s->pieces, (size_t)s->n_pieces, sizeof *s->pieces, by_place);
    for (int i = 0; i < s->n_pieces; i++) {
        struct piece *p = &s->pieces[i];

        if (i == 0 || by_group_and_name(p - 1, p) != 0)
            s->tensors[s->n_tensors++] = (struct piece_tensor){ p, 0 };
        else if ((st = check_alike(s, p - 1, p, err)))
            return st;
        s->tensors[s->n_tensors - 1].n++;
    }
    return TP_OK;
}

int piece_source_count(const struct piece_source *s)
{
    return s->n_tensors;
}

struct piece_tensor piece_source_tensor(const struct piece_source *s, int i)
{
    return s->tensors[i];
}

int piece_source_decoded(const struct piece_source *s)
{
    int n = 0;

    for (int i = 0; i < s->n_tensors; i++)
        n += s->tensors[i].pieces->decoder && !s->tensors[i].pieces->decoder->joined;
    return n;
}

static int by_tensor(const void *a, const void *b)
{
    return by_group_and_name(((const struct piece_tensor *)a)->pieces,
                             ((const struct piece_tensor *)b)->pieces);
}

int piece_source_find(const struct piece_source *s, const char *group, const char *name)
{
    const struct piece piece = { .group = group, .name = name };
    const struct piece_tensor key = { &piece, 0 }, *t;

    t = bsearch(&key, s->tensors, (size_t)s->n_tensors, sizeof key, by_tensor);
    return t ? (int)(t - s->tensors) : -1;
}

bool piece_source_has(const struct piece_source *s, const char *group)
{
    for (int i = 0; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i].pieces->group, group) == 0)
            return true;
    return false;
}

/* Compare all sums. A remote source gets the next ranges in advance. */
static tp_status check_sums(const struct piece_source *s, struct tp_err *err)
{
    const int64_t most = location_is_remote(s->path) ? remote_object_ahead_bytes() : 0;
    int64_t named_bytes = 0;
    int named = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < s->n_sums && !st; i++) {
        for (; named < s->n_sums && named_bytes < most; named++) {
            const struct piece_sum *sum = &s->sums[named];
            const struct file_table_range r = { s->files, sum->file, sum->begin, sum->size };

            file_table_range_will_read(&r);
            named_bytes += sum->size;
        }
        st = piece_sums_separate(&s->sums[i], s->files, err);
        named_bytes -= s->sums[i].size;
    }
    return st;
}

/* No sum proves the bytes of this piece, but its file must have them. */
static tp_status check_there(const struct piece_source *s, const struct piece *p,
                             struct tp_err *err)
{
    const int bytes = p->dtype == DTYPE_COUNT ? 0 : dtype_bytes(p->dtype);
    int64_t end = p->begin + bytes;
    struct file_part part;
    tp_status st = TP_OK;

    if (box_is_empty(&p->box))
        return TP_OK;
    for (int d = 0; d < p->ndim; d++)
        end += (p->box.len[d] - 1) * p->stride[d] * bytes;
    st = file_table_use(s->files, p->file, &part, err);
    if (st)
        return st;
    if (end > part.size)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: is cut off or damaged: tensor %s/%s needs %lld bytes, and it has %lld",
                     part.path, p->group, p->name, (long long)end, (long long)part.size);
    file_table_release(s->files, p->file);
    return st;
}

bool piece_has_sum(const struct piece *p)
{
    return p->sum || (p->decoder && p->decoder->n_sums > 0);
}

tp_status piece_source_verify(struct piece_source *s, int64_t *checked, int64_t *unchecked,
                              struct tp_err *err)
{
    tp_status st = TP_OK;

    *checked = *unchecked = 0;
    for (int i = 0; i < s->n_pieces && !st; i++) {
        const struct piece *p = &s->pieces[i];
        int bytes = p->dtype == DTYPE_COUNT ? 0 : dtype_bytes(p->dtype);

        *(piece_has_sum(p) ? checked : unchecked) +=
            p->decoder ? p->decoder->stored_bytes : box_elements(&p->box) * bytes;
        st = p->sum || p->decoder ? TP_OK : check_there(s, p, err);
    }
    return st ? st : check_sums(s, err);
}
