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
#include "ckpt/manifest_text.h"
#include "ckpt/member.h"
#include "ckpt/tensor_name.h"

enum { LAYERS_MAX = 1 << 20, TENSORS_MAX = 1 << 22, EXPERTS_MAX = 1 << 20, SEED_TEXT_MAX = 20 };

/* Most samples and tokens of a run; a trainer adds to them. */
static const int64_t DATA_MAX = INT64_C(1) << 62;

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
        return member_fail(p, "member 'ranks' is %d, but layout %s has %d", ranks, text,
                           spec_world(&l->spec));
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

static tp_status parse_rule(const struct member_reader *p, struct tensor *t, json_t *tensor)
{
    struct placement *r = &t->placement;
    json_t *object = NULL;
    tp_status st;

    TP_TRY(member_object(p, &object, tensor, "rule"));
    TP_TRY(member_small(p, &r->dim, object, "dim", -1, t->ndim - 1));
    TP_TRY(member_int(p, &r->unit, object, "unit", 1, TENSOR_UNIT_MAX));
    TP_TRY(member_small(p, &r->blocks, object, "blocks", 1, TENSOR_BOXES_MAX));
    TP_TRY(member_bool(p, &r->replicate, object, "share"));
    TP_TRY(member_bool(p, &r->uneven, object, "pad"));
    if (json_object_get(object, "first"))
        TP_TRY(member_int(p, &r->first_block, object, "first", 1, INT64_MAX));
    if (json_object_get(object, "experts")) {
        TP_TRY(member_small(p, &r->experts, object, "experts", 1, EXPERTS_MAX));
        TP_TRY(member_small(p, &r->expert, object, "expert", 0, r->experts - 1));
    }
    if (!tensor_first_block_fits(t))
        st = member_fail(p, "tensor %s: a first block of %lld does not fit its axis", t->name,
                         (long long)r->first_block);
done:
    return st;
}

static tp_status parse_shape(const struct member_reader *p, struct tensor *t, json_t *object)
{
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
    }
    if (!tensor_shape_is_possible(t->ndim, t->shape))
        return member_fail(p, "tensor %s: has more than 2^58 elements", t->name);
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
    TP_TRY(parse_rule(p, t, object));
    TP_TRY(member_small(p, &t->layer, object, "layer", LAYER_LAST, n_layers - 1));
done:
    return st;
}

static tp_status check_unique(const struct member_reader *p, struct layout *l)
{
    tp_status st = layout_index(l, p->arena, p->err);

    for (int i = 1; i < l->n_tensors && !st; i++) {
        const struct tensor *a = l->by_name[i - 1], *b = l->by_name[i];

        if (strcmp(a->group, b->group) == 0 && strcmp(a->name, b->name) == 0)
            st = member_fail(p, "tensor %s/%s occurs twice", b->group, b->name);
    }
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
    if (json_object_get(object, "chunked"))
        TP_TRY(member_bool(p, &s->chunked, object, "chunked"));
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
    if (json_object_get(object, "optimizer_start"))
        TP_TRY(member_int(p, &s->optimizer_start, object, "optimizer_start", 0, s->step));
    TP_TRY(member_int(p, &s->next_sample, object, "next_sample", 0, DATA_MAX));
    TP_TRY(member_int(p, &s->tokens, object, "tokens", 0, DATA_MAX));
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

static tp_status parse_config(const struct member_reader *p, struct manifest *m, json_t *root)
{
    tp_status st;

    if (json_is_null(json_object_get(root, "model_config")))
        return TP_OK;
    st = member_keep(p, &m->model_config, root, "model_config");
    if (!st && !json_scan_is_bounded(m->model_config, strlen(m->model_config)))
        st = member_fail(p, "member 'model_config' has too many parts for a config.json");
    return st;
}

static tp_status parse_root(const struct member_reader *p, struct manifest *m, json_t *root)
{
    tp_status st;

    TP_TRY(member_hex(p, m->save_id, SAVE_ID_TEXT - 1, root, "save_id"));
    TP_TRY(member_int(p, &m->epoch, root, "epoch", 0, INT64_MAX));
    TP_TRY(member_int(p, &m->step, root, "step", 0, INT64_MAX));
    TP_TRY(parse_config(p, m, root));
    TP_TRY(parse_layout(p, &m->layout, root));
    TP_TRY(parse_train(p, &m->state, root));
    if (m->state.step != m->step)
        return member_fail(p, "member 'train': its step is %lld, expected %lld as in the manifest",
                           (long long)m->state.step, (long long)m->step);
done:
    return st;
}

/* ---- the lists ---- */

/* What the entries are read into. */
struct manifest_lists {
    const struct member_reader *p;
    struct manifest *m;
};

static tp_status read_entry(void *ctx, enum manifest_list list, int64_t number, json_t *entry)
{
    const struct manifest_lists *l = ctx;
    struct shard_info *s = l->m->shards + (list == MANIFEST_SHARDS ? number : 0);
    tp_status st;

    if (list == MANIFEST_TENSORS)
        return parse_tensor(l->p, &l->m->layout.tensors[number], entry, (int)number,
                            l->m->layout.n_layers);
    st = parse_shard(l->p, s, entry, spec_world(&l->m->layout.spec));
    if (!st && number > 0 && s->rank <= s[-1].rank)
        st = member_fail(l->p, "the shard of rank %d occurs twice or is out of order", s->rank);
    return st;
}

static tp_status check_count(const struct member_reader *p, int64_t n, int64_t max, const char *key)
{
    if (n < 0)
        return member_fail(p, "member '%s' is missing or not a list", key);
    if (n > max)
        return member_fail(p, "member '%s' has %lld entries; the most is %lld", key, (long long)n,
                           (long long)max);
    return TP_OK;
}

static tp_status parse_lists(const struct member_reader *p, struct manifest *m,
                             struct manifest_text *text)
{
    struct manifest_lists lists = { p, m };
    struct layout *l = &m->layout;
    int64_t n_tensors = text->n_entries[MANIFEST_TENSORS];
    int64_t n_shards = text->n_entries[MANIFEST_SHARDS];
    tp_status st;

    TP_TRY(check_count(p, n_tensors, TENSORS_MAX, "tensors"));
    TP_TRY(check_count(p, n_shards, spec_world(&l->spec), "shards"));
    l->tensors = arena_array(p->arena, (size_t)n_tensors, sizeof *l->tensors);
    m->shards = arena_array(p->arena, (size_t)n_shards, sizeof *m->shards);
    if (!l->tensors || !m->shards)
        return member_no_memory(p);
    l->n_tensors = (int)n_tensors;
    m->n_shards = (int)n_shards;
    TP_TRY(manifest_text_lists(text, read_entry, &lists, p));
    TP_TRY(check_unique(p, l));
done:
    return st;
}

/* ---- the whole ---- */

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

tp_status manifest_parse(struct manifest *out, const struct json_scan_input *in,
                         struct arena *arena, struct tp_err *err)
{
    const struct member_reader p = { .path = in->path, .arena = arena, .err = err };
    struct manifest m = { 0 };
    struct manifest_text text;
    tp_status st;

    TP_TRY(manifest_text_open(&text, in, &p));
    TP_TRY(check_version(&p, text.head));
    TP_TRY(parse_root(&p, &m, text.head));
    TP_TRY(parse_lists(&p, &m, &text));
    *out = m;
done:
    manifest_text_close(&text);
    return st;
}
