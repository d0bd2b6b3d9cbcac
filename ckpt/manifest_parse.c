/*
 * ckpt/manifest_parse.c - reads manifest.json.
 *
 * The checksum comes first and stops accidental damage. The rest protects against files that were
 * made to mislead, so the kind and range of every field are checked.
 */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/member.h"
#include "ckpt/sha256.h"
#include "ckpt/tensor_name.h"

enum { LAYERS_MAX = 1 << 20, TENSORS_MAX = 1 << 22, UNIT_MAX = 1 << 30, SEED_TEXT_MAX = 20 };

/* So that elements times 8 bytes stay below 2^62. */
#define ELEMENTS_MAX (INT64_C(1) << 58)

static tp_status parse_layout(const struct member_reader *p, struct layout *l, json_t *root)
{
    const char *text = "";
    struct tp_err spec_err = { 0 };
    json_t *object = NULL, *list = NULL;
    size_t n = 0;
    int ranks = 0;
    tp_status st;

    TP_TRY(member_object(p, &object, root, "layout"));
    TP_TRY(member_text(p, &text, object, "spec"));
    if (spec_parse(&l->spec, text, &spec_err))
        return member_fail(p, "layout: %s", spec_err.msg);
    TP_TRY(member_small(p, &ranks, object, "ranks", 1, INT32_MAX));
    if (ranks != spec_world(&l->spec))
        return member_fail(p, "layout %s has %d ranks, but member 'ranks' is %d", text,
                           spec_world(&l->spec), ranks);
    TP_TRY(member_small(p, &l->n_layers, object, "layers", 0, LAYERS_MAX));
    TP_TRY(member_list(p, &list, &n, object, "stage_of", LAYERS_MAX));
    if (n != (size_t)l->n_layers)
        return member_fail(p,
                           "member 'stage_of' has %zu entries, expected one for each of %d layers",
                           n, l->n_layers);
    l->stage_of = arena_array(p->arena, n, sizeof *l->stage_of);
    if (!l->stage_of)
        return member_no_memory(p);
    for (size_t i = 0; i < n; i++) {
        json_t *v = json_array_get(list, i);

        if (!json_is_integer(v) || json_integer_value(v) < 0 ||
            json_integer_value(v) >= l->spec.pp * l->spec.vpp)
            return member_fail(p, "member 'stage_of': the stage of layer %zu is not one of %s", i,
                               text);
        l->stage_of[i] = (int)json_integer_value(v);
    }
done:
    return st;
}

static tp_status parse_rule(const struct member_reader *p, struct placement *r, json_t *tensor,
                            int ndim)
{
    json_t *object = NULL;
    tp_status st;

    TP_TRY(member_object(p, &object, tensor, "rule"));
    TP_TRY(member_small(p, &r->dim, object, "dim", -1, ndim - 1));
    TP_TRY(member_int(p, &r->unit, object, "unit", 1, UNIT_MAX));
    TP_TRY(member_small(p, &r->blocks, object, "blocks", 1, TENSOR_BOXES_MAX));
    TP_TRY(member_bool(p, &r->replicate, object, "share"));
    TP_TRY(member_bool(p, &r->uneven, object, "pad"));
done:
    return st;
}

static tp_status parse_shape(const struct member_reader *p, struct tensor *t, json_t *object)
{
    int64_t elements = 1;
    json_t *list = NULL;
    size_t n = 0;
    tp_status st = member_list(p, &list, &n, object, "shape", BOX_NDIM_MAX);

    if (st)
        return st;
    t->ndim = (int)n;
    for (int d = 0; d < t->ndim; d++) {
        json_t *v = json_array_get(list, (size_t)d);

        if (!json_is_integer(v) || json_integer_value(v) < 0)
            return member_fail(
                p, "tensor %s: axis %d of its shape is not an integer of at least 0: not a size",
                t->name, d);
        t->shape[d] = json_integer_value(v);
        /* another axis of length 0 must not hide one that is too large */
        if (t->shape[d] > ELEMENTS_MAX ||
            __builtin_mul_overflow(elements, t->shape[d] ? t->shape[d] : 1, &elements) ||
            elements > ELEMENTS_MAX)
            return member_fail(p, "tensor %s: has more than 2^58 elements", t->name);
    }
    return TP_OK;
}

static tp_status parse_tensor(const struct member_reader *p, struct tensor *t, json_t *object,
                              int number, int n_layers)
{
    const char *dtype = "";
    struct tp_err name_err = { 0 };
    int64_t id;
    tp_status st;

    if (!json_is_object(object))
        return member_fail(p, "tensor %d is not an object", number);
    TP_TRY(member_int(p, &id, object, "id", number, number));
    TP_TRY(member_keep(p, &t->name, object, "name"));
    TP_TRY(member_keep(p, &t->group, object, "group"));
    if (tensor_name_check(t, &name_err))
        return member_fail(p, "%s", name_err.msg);
    TP_TRY(member_text(p, &dtype, object, "dtype"));
    if (!dtype_parse(&t->dtype, dtype))
        return member_fail(p, "tensor %s: unknown dtype '%s'", t->name, dtype);
    TP_TRY(parse_shape(p, t, object));
    TP_TRY(parse_rule(p, &t->placement, object, t->ndim));
    TP_TRY(member_small(p, &t->layer, object, "layer", LAYER_LAST, n_layers - 1));
done:
    return st;
}

static int by_name(const void *a, const void *b)
{
    const struct tensor *x = *(const struct tensor *const *)a,
                        *y = *(const struct tensor *const *)b;
    int order = strcmp(x->group, y->group);

    return order ? order : strcmp(x->name, y->name);
}

static tp_status check_unique(const struct member_reader *p, const struct layout *l)
{
    const struct tensor **sorted = calloc((size_t)l->n_tensors + 1, sizeof *sorted);
    tp_status st = TP_OK;

    if (!sorted)
        return member_no_memory(p);
    for (int i = 0; i < l->n_tensors; i++)
        sorted[i] = &l->tensors[i];
    qsort(sorted, (size_t)l->n_tensors, sizeof *sorted, by_name);
    for (int i = 1; i < l->n_tensors && !st; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            st = member_fail(p, "tensor %s/%s occurs twice", sorted[i]->group, sorted[i]->name);
    free(sorted);
    return st;
}

static tp_status parse_tensors(const struct member_reader *p, struct layout *l, json_t *root)
{
    json_t *list = NULL;
    size_t n = 0;
    tp_status st;

    TP_TRY(member_list(p, &list, &n, root, "tensors", TENSORS_MAX));
    l->tensors = arena_array(p->arena, n, sizeof *l->tensors);
    if (!l->tensors)
        return member_no_memory(p);
    l->n_tensors = (int)n;
    for (int i = 0; i < l->n_tensors; i++)
        TP_TRY(parse_tensor(p, &l->tensors[i], json_array_get(list, (size_t)i), i, l->n_layers));
    TP_TRY(check_unique(p, l));
done:
    return st;
}

static tp_status parse_shard(const struct member_reader *p, struct shard_info *s, json_t *object,
                             int n_ranks)
{
    const char *file = "";
    char expected[SHARD_NAME_MAX];
    tp_status st;

    if (!json_is_object(object))
        return member_fail(p, "a shard is not an object");
    TP_TRY(member_small(p, &s->rank, object, "rank", 0, n_ranks - 1));
    TP_TRY(member_text(p, &file, object, "file"));
    snprintf(expected, sizeof expected, "rank-%05d.h5", s->rank);
    if (strcmp(file, expected) != 0) /* so it cannot be a path to another place */
        return member_fail(p, "the file of rank %d is named '%.100s', expected %s", s->rank, file,
                           expected);
    memcpy(s->file, expected, sizeof s->file);
    TP_TRY(member_int(p, &s->size_bytes, object, "size_bytes", 1, INT64_MAX));
    TP_TRY(member_int(p, &s->index_offset, object, "index_offset", 0, INT64_MAX));
    TP_TRY(member_int(p, &s->index_rows, object, "index_rows", 1, SHARD_CHUNKS_MAX));
    TP_TRY(member_hex(p, s->index_sha256, SHA256_TEXT - 1, object, "index_sha256"));
    TP_TRY(member_hex(p, s->meta_sha256, SHA256_TEXT - 1, object, "meta_sha256"));
done:
    return st;
}

static tp_status parse_shards(const struct member_reader *p, struct manifest *m, json_t *root)
{
    const int n_ranks = spec_world(&m->layout.spec);
    json_t *list = NULL;
    size_t n = 0;
    tp_status st;

    TP_TRY(member_list(p, &list, &n, root, "shards", (size_t)n_ranks));
    m->shards = arena_array(p->arena, n, sizeof *m->shards);
    if (!m->shards)
        return member_no_memory(p);
    m->n_shards = (int)n;
    for (int i = 0; i < m->n_shards; i++) {
        TP_TRY(parse_shard(p, &m->shards[i], json_array_get(list, (size_t)i), n_ranks));
        if (i > 0 && m->shards[i].rank <= m->shards[i - 1].rank)
            return member_fail(p, "the shard of rank %d occurs twice or is out of order",
                               m->shards[i].rank);
    }
done:
    return st;
}

static tp_status parse_seed(const struct member_reader *p, uint64_t *seed, json_t *object)
{
    const char *text = "";
    char *end;
    tp_status st = member_text(p, &text, object, "seed");

    if (st)
        return st;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (errno || *end || !isdigit((unsigned char)text[0]) || strlen(text) > SEED_TEXT_MAX)
        return member_fail(p, "member 'seed' is not a 64-bit number");
    return TP_OK;
}

static tp_status parse_train(const struct member_reader *p, struct manifest_train_state *s,
                             json_t *root)
{
    json_t *object = NULL, *options = NULL;
    char *text;
    tp_status st;

    TP_TRY(member_object(p, &object, root, "train"));
    TP_TRY(member_int(p, &s->step, object, "step", 0, INT64_MAX));
    TP_TRY(member_int(p, &s->next_sample, object, "next_sample", 0, INT64_MAX));
    TP_TRY(member_int(p, &s->tokens, object, "tokens", 0, INT64_MAX));
    TP_TRY(parse_seed(p, &s->seed, object));
    TP_TRY(member_keep(p, &s->dtype, object, "dtype"));
    TP_TRY(member_object(p, &options, object, "options"));
    text = json_dumps(options, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    s->options = text ? arena_strdup(p->arena, text) : NULL;
    free(text);
    if (!s->options)
        return member_no_memory(p);
done:
    return st;
}

static tp_status parse_root(const struct member_reader *p, struct manifest *m, json_t *root)
{
    tp_status st;

    TP_TRY(member_hex(p, m->save_id, SAVE_ID_TEXT - 1, root, "save_id"));
    TP_TRY(member_int(p, &m->epoch, root, "epoch", 0, INT64_MAX));
    TP_TRY(member_int(p, &m->step, root, "step", 0, INT64_MAX));
    if (!json_is_null(json_object_get(root, "model_config")))
        TP_TRY(member_keep(p, &m->model_config, root, "model_config"));
    TP_TRY(parse_layout(p, &m->layout, root));
    TP_TRY(parse_train(p, &m->state, root));
    if (m->state.step != m->step)
        return member_fail(p, "member 'train': its step is %lld, expected %lld as in the manifest",
                           (long long)m->state.step, (long long)m->step);
    TP_TRY(parse_tensors(p, &m->layout, root));
    TP_TRY(parse_shards(p, m, root));
done:
    return st;
}

/* ---- the whole ---- */

static tp_status check_checksum(const struct member_reader *p, const char *text, size_t size)
{
    const size_t head = strlen(MANIFEST_CHECKSUM_HEAD), end = strlen(MANIFEST_CHECKSUM_END);
    const size_t tail = head + SHA256_TEXT - 1 + end;
    char found[SHA256_TEXT];
    const char *line;
    tp_status st;

    if (size < tail || memcmp(text + size - tail, MANIFEST_CHECKSUM_HEAD, head) != 0 ||
        memcmp(text + size - end, MANIFEST_CHECKSUM_END, end) != 0)
        return member_fail(p, "does not end with its checksum: the file is damaged or truncated");
    line = text + size - tail + head;
    st = sha256_of(found, text, size - tail, p->err);
    if (!st && memcmp(found, line, SHA256_TEXT - 1) != 0)
        st = member_fail(
            p, "has the SHA-256 %.16s..., but its last line says %.16s...: the file is damaged",
            found, line);
    return st;
}

static tp_status check_version(const struct member_reader *p, json_t *root)
{
    const char *format = "";
    int64_t version = 0;
    tp_status st = member_text(p, &format, root, "format");

    if (st)
        return st;
    if (strcmp(format, MANIFEST_FORMAT) != 0)
        return member_fail(p, "member 'format' is '%.100s', expected '%s'", format,
                           MANIFEST_FORMAT);
    st = member_int(p, &version, root, "version", 1, INT64_MAX);
    if (!st && version > MANIFEST_VERSION)
        st = member_fail(
            p,
            "is in version %lld of the format, but this program reads only up to version %d; "
            "use a newer program",
            (long long)version, MANIFEST_VERSION);
    return st;
}

tp_status manifest_parse(struct manifest *out, const char *text, size_t size, const char *path,
                         struct arena *arena, struct tp_err *err)
{
    const struct member_reader p = { .path = path, .arena = arena, .err = err };
    struct manifest m = { 0 };
    json_error_t json_err;
    json_t *root = NULL;
    tp_status st;

    TP_TRY(check_checksum(&p, text, size));
    root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &json_err);
    if (!json_is_object(root)) {
        st = member_fail(&p, "is not a JSON object: %s",
                         root ? "it is another kind of value" : json_err.text);
        goto done;
    }
    TP_TRY(check_version(&p, root));
    TP_TRY(parse_root(&p, &m, root));
    *out = m;
done:
    json_decref(root);
    return st;
}
