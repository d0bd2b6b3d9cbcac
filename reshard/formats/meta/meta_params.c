/* reshard/formats/meta/meta_params.c - see reshard/formats/meta/meta_params.h. */
#include "reshard/formats/meta/meta_params.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "core/text.h"
#include "storage/object.h"

enum { PARAMS_BYTES_MAX = 1 << 20, SIZE_MAX_ALLOWED = 1 << 30 };

/* ---- read ---- */

/* The first failure is kept. */
struct params_reader {
    struct meta_params *out;
    json_t *root;
    struct tp_err *err;
    tp_status st;
};

static void refuse(struct params_reader *r, const char *key, const char *why)
{
    char *value = json_dumps(json_object_get(r->root, key), JSON_ENCODE_ANY | JSON_COMPACT);

    if (!r->st)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: has %s %.60s%s", r->out->path, key,
                        value ? value : "", why);
    free(value);
}

/* A whole number. One that is not needed may also be -1, as vocab_size is in Llama 1 and 2: 0. */
static int64_t count(struct params_reader *r, const char *key, bool needed)
{
    const json_t *v = json_object_get(r->root, key);
    const json_int_t n = json_integer_value(v);

    if (!v || json_is_null(v) || (json_is_integer(v) && n == -1 && !needed)) {
        if (needed && !r->st)
            r->st = tp_fail(r->err, TP_E_USAGE,
                            "%s: has no %s, which Meta's model needs; is it the params.json of a "
                            "Llama or a Mistral?",
                            r->out->path, key);
        return 0;
    }
    if (!json_is_integer(v) || n < 1 || n > SIZE_MAX_ALLOWED)
        refuse(r, key, ", which is not a size");
    return r->st ? 0 : (int64_t)n;
}

static double real(struct params_reader *r, const char *key)
{
    const json_t *v = json_object_get(r->root, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !isfinite(json_number_value(v)) || json_number_value(v) <= 0)
        refuse(r, key, ", which is not a number above 0");
    return json_number_value(v);
}

/* An argument that is an object is that of a part which other models have: moe, vision_model,
 * quantization_args, lora_args, yarn. */
static void check_others(struct params_reader *r)
{
    static const char unread[] = ": a model of this kind is not read in Meta's format; import its "
                                 "files of Hugging Face";
    const char *key;
    json_t *v;

    json_object_foreach(r->root, key, v)
    {
        if (json_is_object(v) && json_object_size(v) > 0)
            refuse(r, key, unread);
    }
    if (json_integer_value(json_object_get(r->root, "vision_chunk_size")) > 0)
        refuse(r, "vision_chunk_size", unread);
    if (json_is_true(json_object_get(r->root, "use_qk_norm")))
        refuse(r, "use_qk_norm", unread);
    if (json_is_array(json_object_get(r->root, "_sliding_window"))) /* of each layer */
        refuse(r, "_sliding_window", unread);
    if (json_is_number(json_object_get(r->root, "rope_scaling_factor")))
        refuse(r, "rope_scaling_factor", unread);
}

static void read_all(struct params_reader *r)
{
    struct meta_params *out = r->out;

    out->dim = count(r, "dim", true);
    out->layers = count(r, "n_layers", true);
    out->heads = count(r, "n_heads", true);
    out->kv_heads = count(r, "n_kv_heads", false);
    out->head_dim = count(r, "head_dim", false);
    out->hidden_dim = count(r, "hidden_dim", false);
    out->vocab = count(r, "vocab_size", false);
    out->multiple_of = count(r, "multiple_of", false);
    out->positions = count(r, "max_seq_len", false);
    out->window = count(r, "sliding_window", false);
    out->multiplier = real(r, "ffn_dim_multiplier");
    out->norm_eps = real(r, "norm_eps");
    out->rope_theta = real(r, "rope_theta");
    out->scaled_rope = json_is_true(json_object_get(r->root, "use_scaled_rope"));
    out->mistral = out->hidden_dim || out->head_dim || out->window;
    check_others(r);
    if (!r->st && !out->head_dim && out->dim % out->heads != 0)
        refuse(r, "n_heads", ", which does not divide its dim");
    if (!r->st && !out->head_dim)
        out->head_dim = out->dim / out->heads;
}

tp_status meta_params_read(struct meta_params *out, const char *dir, struct arena *arena,
                           struct tp_err *err)
{
    struct params_reader r = { .out = out, .err = err };
    json_t *file = NULL, *inner;
    char path[PATH_MAX], *text = NULL;
    size_t size = 0;
    tp_status st;

    *out = (struct meta_params){ .dim = 0 };
    TP_TRY(file_join(path, dir, "params.json", err));
    out->path = arena_strdup(arena, path);
    if (!out->path) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
        goto done;
    }
    st = object_read_any(&text, &size, path, PARAMS_BYTES_MAX, arena, err);
    if (st == TP_E_NOTFOUND)
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: there is no such file, which says what model it is; name the model's "
                     "config.json with --config FILE",
                     path);
    TP_TRY(st);
    if (json_scan_is_bounded(text, size))
        file = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    inner = json_object_get(file, "model"); /* as some of Meta's releases have it */
    r.root = json_is_object(inner) ? inner : file;
    if (json_is_object(file))
        read_all(&r);
    else
        r.st = tp_fail(err, TP_E_USAGE, "%s: is not a JSON object", path);
    st = r.st;
done:
    json_decref(file);
    return st;
}

/* ---- the width of the MLP ---- */

/* As Meta's FeedForward computes it, truncations included. */
static int64_t width(int64_t dim, int64_t multiple_of, double multiplier)
{
    int64_t n = (int64_t)(2.0 * (4.0 * (double)dim) / 3.0);

    if (multiplier > 0)
        n = (int64_t)(multiplier * (double)n);
    return (n + multiple_of - 1) / multiple_of * multiple_of;
}

int64_t meta_params_ffn(const struct meta_params *p)
{
    if (p->hidden_dim)
        return p->hidden_dim;
    return p->multiple_of && p->multiplier < 1 << 20 ? width(p->dim, p->multiple_of, p->multiplier)
                                                     : 0;
}

/* ---- written ---- */

double meta_params_rope_factor(bool tied)
{
    return tied ? 32 : 8;
}

bool meta_params_is_old(const struct model *m)
{
    return m->vocab >= 32000 && m->vocab <= 32016;
}

/* Find arguments that give the MLP its width: such as Meta's models have, else the width as a
 * multiple of the usual one. False: there are none. */
static bool find_width(int64_t *multiple_of, double *multiplier, const struct model *m)
{
    static const double multipliers[] = { 0, 1.3, 1.2, 1.5, 1.4, 1 };
    const double usual = floor(8.0 * (double)m->hidden / 3.0);

    for (size_t i = 0; i < sizeof multipliers / sizeof *multipliers; i++)
        for (int64_t k = 256; k <= 4096; k *= 2)
            if (width(m->hidden, k, multipliers[i]) == m->ffn) {
                *multiple_of = k;
                *multiplier = multipliers[i];
                return true;
            }
    for (int64_t k = 256; k >= 1; k /= 2) {
        *multiple_of = k;
        *multiplier = ((double)m->ffn - (k > 1 ? (double)k / 2 : -0.5)) / usual;
        if (*multiplier > 0 && width(m->hidden, k, *multiplier) == m->ffn)
            return true;
    }
    return false;
}

/* Whether Meta's model computes what this one does: the message says what it does not. */
static tp_status check_model(const struct model *m, const char *source, struct tp_err *err)
{
    const struct rope_scaling *rope = &m->rope_scaling;
    const char *what = NULL;

    if (m->family != MODEL_LLAMA)
        return tp_fail(err, TP_E_USAGE, "%s: Meta's format has Llama alone; export another format",
                       source);
    if (m->head_dim * m->heads != m->hidden)
        what = "heads that are not as wide together as the model";
    else if (m->qkv_bias || m->out_bias || m->mlp_bias)
        what = "biases";
    else if (m->head_dim % 2 != 0 || m->rotary_dim != m->head_dim)
        what = "heads that are rotated in part";
    else if (rope->type != ROPE_SCALING_NONE &&
             (rope->type != ROPE_SCALING_LLAMA3 || rope->low_freq_factor != META_LOW_FREQ ||
              rope->high_freq_factor != META_HIGH_FREQ ||
              rope->original_positions != META_POSITIONS ||
              rope->factor != meta_params_rope_factor(m->tied)))
        what = "another rope_scaling than Llama 3.1's (factor 8) or Llama 3.2's (factor 32, with a "
               "tied head)";
    if (!what)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: the model has %s, for which Meta's params.json has no argument; export "
                   "another format",
                   source, what);
}

tp_status meta_params_make(const char **text, const struct meta_params_request *q,
                           struct arena *arena, struct tp_err *err)
{
    const struct model *m = q->model;
    char eps[TEXT_REAL_MAX], number[TEXT_REAL_MAX], width_text[2 * TEXT_REAL_MAX] = "",
                                                                   rope[2 * TEXT_REAL_MAX] = "";
    int64_t multiple_of = 0;
    double multiplier = 0;
    tp_status st = check_model(m, q->source, err);

    if (st)
        return st;
    if (!find_width(&multiple_of, &multiplier, m))
        return tp_fail(err, TP_E_USAGE,
                       "%s: no arguments of Meta's params.json give its MLP the width %lld; export "
                       "another format",
                       q->source, (long long)m->ffn);
    if (multiplier > 0)
        snprintf(width_text, sizeof width_text, ", \"ffn_dim_multiplier\": %s",
                 text_real(number, multiplier));
    if (!q->old || m->rope_theta != 10000)
        snprintf(rope, sizeof rope, ", \"rope_theta\": %s", text_real(number, m->rope_theta));
    *text = arena_printf(
        arena,
        "{\"dim\": %lld, \"n_layers\": %d, \"n_heads\": %d, \"n_kv_heads\": %d, "
        "\"vocab_size\": %lld, \"multiple_of\": %lld%s, \"norm_eps\": %s%s%s}\n",
        (long long)m->hidden, m->layers, m->heads, m->kv_heads < q->ranks ? q->ranks : m->kv_heads,
        (long long)m->vocab, (long long)multiple_of, width_text, text_real(eps, m->norm_eps), rope,
        m->rope_scaling.type == ROPE_SCALING_LLAMA3 ? ", \"use_scaled_rope\": true" : "");
    return *text ? TP_OK : tp_fail(err, TP_E_NOMEM, "%s: no memory for its params.json", q->source);
}
