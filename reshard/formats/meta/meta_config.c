/* reshard/formats/meta/meta_config.c - makes a config.json of params.json and of the shapes in the
 * first rank's file; see reshard/formats/meta/meta.h. */
#include <stdio.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/meta/meta.h"
#include "reshard/formats/meta/meta_params.h"
#include "reshard/formats/meta/meta_rank.h"

enum { CONFIG_TEXT = 512, NOTE_TEXT = 128, LLAMA3_VOCAB = 128256, COMPARED_BYTES = 1 << 17 };

struct meta_config_maker {
    struct meta_params params;
    struct meta_rank first;
    int ranks;
    int64_t vocab, ffn, kv_heads;
    bool columns; /* the embedding is cut by columns */
    bool tied;
};

/* Find a tensor of the first file, with this many axes. */
static tp_status find(const struct piece **out, const struct meta_config_maker *m, const char *name,
                      int ndim, struct tp_err *err)
{
    const struct meta_rank_tensor *t = meta_rank_find(&m->first, name);

    if (!t || t->piece.ndim != ndim)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has no tensor %s with %d ax%s, so it is not of "
                       "Meta's Llama",
                       m->first.path, name, ndim, ndim == 1 ? "is" : "es");
    *out = &t->piece;
    return TP_OK;
}

/* params.json says another size than the files have: `says` is such as "dim is". */
static tp_status differs(const struct meta_config_maker *m, const char *says, int64_t said,
                         const struct piece *p, int64_t found, struct tp_err *err)
{
    char has[BOX_TEXT_MAX];

    return tp_fail(err, TP_E_CORRUPT,
                   "%s: its %s %lld, but tensor %s of %s is %s, which makes %lld with %d file%s; "
                   "is this the params.json of another model?",
                   m->params.path, says, (long long)said, p->name, m->first.path,
                   box_format_shape(has, sizeof has, p->ndim, p->shape), (long long)found, m->ranks,
                   m->ranks == 1 ? "" : "s");
}

/* How many files there are, and that the width is right. */
static tp_status find_ranks(struct meta_config_maker *m, struct tp_err *err)
{
    const struct meta_params *a = &m->params;
    const struct piece *norm = NULL;
    tp_status st;

    m->ranks = 1;
    TP_TRY(find(&norm, m, "norm.weight", 1, err));
    if (norm->shape[0] != a->dim)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: its dim is %lld, but tensor norm.weight of %s has %lld elements; is "
                       "this the params.json of another model?",
                       a->path, (long long)a->dim, m->first.path, (long long)norm->shape[0]);
    st = meta_rank_count(&m->ranks, &m->first, a->heads * a->head_dim, a->path, err);
done:
    return st;
}

/* The last layer must be there, and none after it. */
static tp_status check_layers(const struct meta_config_maker *m, struct tp_err *err)
{
    for (int64_t i = m->params.layers - 1; i <= m->params.layers; i++) {
        char name[NOTE_TEXT];

        snprintf(name, sizeof name, "layers.%lld.attention.wq.weight", (long long)i);
        if (!meta_rank_find(&m->first, name) == (i < m->params.layers))
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: its n_layers is %lld, but %s has %stensor %s; is this the "
                           "params.json of another model?",
                           m->params.path, (long long)m->params.layers, m->first.path,
                           i < m->params.layers ? "no " : "a ", name);
    }
    return TP_OK;
}

/* The width of the MLP, and how many heads keys and values have. Where there are more ranks than
 * these, each rank may have one, which others have too. */
static tp_status find_layer(struct meta_config_maker *m, struct tp_err *err)
{
    const struct meta_params *a = &m->params;
    const struct piece *w1 = NULL, *wk = NULL;
    const int64_t said = a->kv_heads ? a->kv_heads : a->heads;
    tp_status st;

    TP_TRY(find(&w1, m, "layers.0.feed_forward.w1.weight", 2, err));
    TP_TRY(find(&wk, m, "layers.0.attention.wk.weight", 2, err));
    m->ffn = w1->shape[0] * m->ranks;
    if (meta_params_ffn(a) && meta_params_ffn(a) != m->ffn)
        return differs(m,
                       a->hidden_dim ? "hidden_dim is" : "multiple_of and ffn_dim_multiplier give",
                       meta_params_ffn(a), w1, m->ffn, err);
    m->kv_heads = said;
    if (wk->shape[0] * m->ranks != said * a->head_dim &&
        (m->ranks <= said || wk->shape[0] != a->head_dim))
        return differs(m, a->kv_heads ? "n_kv_heads is" : "n_heads (there is no n_kv_heads) is",
                       said, wk, wk->shape[0] * m->ranks / a->head_dim, err);
done:
    return st;
}

/* Read the first bytes of a matrix without gaps; *n: how many, 0 of another one. */
static tp_status read_begin(char *buf, int64_t *n, struct piece_source *s, const struct piece *p,
                            struct tp_err *err)
{
    *n = p->stride[1] == 1 && p->stride[0] == p->shape[1] && p->dtype != DTYPE_COUNT
             ? p->shape[0] * p->shape[1] * dtype_bytes(p->dtype)
             : 0;
    *n = *n < COMPARED_BYTES ? *n : COMPARED_BYTES;
    return file_table_read(piece_source_files(s), p->file, p->begin, buf, *n, err);
}

/* Whether two matrices of one type and shape begin with the same bytes. Where config.json then says
 * that they are tied, all of them are compared (reshard/tied_head.h). */
static tp_status begin_equal(bool *equal, struct piece_source *s, const struct piece *a,
                             const struct piece *b, struct tp_err *err)
{
    char *buf = arena_array(piece_source_arena(s), 2, COMPARED_BYTES);
    int64_t n = 0, other = 0;
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read tensors", piece_source_path(s));
    TP_TRY(read_begin(buf, &n, s, a, err));
    TP_TRY(read_begin(buf + COMPARED_BYTES, &other, s, b, err));
    *equal = n > 0 && n == other && memcmp(buf, buf + COMPARED_BYTES, (size_t)n) == 0;
done:
    return st;
}

/* Whether the head is the embedding: it has no tensor, or one with the same bytes, as far as the
 * CRC-32 or the first bytes say. */
static tp_status find_tied(struct meta_config_maker *m, struct piece_source *s, struct tp_err *err)
{
    const struct meta_rank_tensor *head = meta_rank_find(&m->first, "output.weight"),
                                  *embedding = meta_rank_find(&m->first, "tok_embeddings.weight");
    const struct piece *a, *b;

    m->tied = !head;
    if (!head)
        return TP_OK;
    a = &head->piece;
    b = &embedding->piece;
    if (a->shape[0] != b->shape[0] || a->shape[1] != b->shape[1] || a->dtype != b->dtype)
        return TP_OK;
    if (!head->crc || !embedding->crc)
        return begin_equal(&m->tied, s, a, b, err);
    m->tied = head->crc == embedding->crc;
    return TP_OK;
}

/* The vocabulary, and how the embedding is cut: one of its axes is then the model's. */
static tp_status find_ends(struct meta_config_maker *m, struct piece_source *s, struct tp_err *err)
{
    const struct meta_params *a = &m->params;
    const struct piece *p = NULL, *head = NULL;
    tp_status st;

    TP_TRY(find(&p, m, "tok_embeddings.weight", 2, err));
    m->columns = p->shape[1] != a->dim;
    if (m->columns && p->shape[1] * m->ranks != a->dim)
        return differs(m, "dim is", a->dim, p, p->shape[1] * m->ranks, err);
    m->vocab = m->columns ? p->shape[0] : p->shape[0] * m->ranks;
    if (meta_rank_find(&m->first, "output.weight")) {
        TP_TRY(find(&head, m, "output.weight", 2, err));
        if (head->shape[0] * m->ranks != m->vocab)
            return differs(m, "vocabulary by tok_embeddings.weight is", m->vocab, head,
                           head->shape[0] * m->ranks, err);
    }
    if (a->vocab && a->vocab != m->vocab)
        return differs(m, "vocab_size is", a->vocab, p, m->vocab, err);
    st = find_tied(m, s, err);
done:
    return st;
}

/* ---- the text ---- */

/* How far Meta trained: params.json says it of no model. */
static int64_t positions(const struct meta_config_maker *m, double theta)
{
    if (m->params.positions)
        return m->params.positions;
    if (m->params.mistral)
        return 32768;
    if (m->params.scaled_rope)
        return 131072;
    if (m->vocab >= LLAMA3_VOCAB)
        return 8192;
    return theta > 10000 ? 16384 : 4096; /* Code Llama; Llama 2 */
}

/* What params.json leaves out is what the code of the models has: of Mistral's without a window a
 * larger theta. */
static double theta_of(const struct meta_params *a)
{
    if (a->rope_theta > 0)
        return a->rope_theta;
    return a->mistral && !a->window ? 1e6 : 10000;
}

/* The members that some models have. */
static void more_text(char text[CONFIG_TEXT], const struct meta_config_maker *m)
{
    char factor[TEXT_REAL_MAX];
    int n = 0;

    text[0] = 0;
    if (m->params.mistral && m->params.window)
        n = snprintf(text, CONFIG_TEXT, ", \"sliding_window\": %lld", (long long)m->params.window);
    else if (m->params.mistral)
        n = snprintf(text, CONFIG_TEXT, ", \"sliding_window\": null");
    if (m->vocab >= LLAMA3_VOCAB && !m->params.mistral)
        n += snprintf(text + n, CONFIG_TEXT - (size_t)n,
                      ", \"bos_token_id\": 128000, \"eos_token_id\": 128001");
    if (m->params.scaled_rope)
        snprintf(text + n, CONFIG_TEXT - (size_t)n,
                 ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": %s, "
                 "\"low_freq_factor\": %.1f, \"high_freq_factor\": %.1f, "
                 "\"original_max_position_embeddings\": %d}",
                 text_real(factor, meta_params_rope_factor(m->tied)), META_LOW_FREQ, META_HIGH_FREQ,
                 META_POSITIONS);
}

static const char *config_text(const struct meta_config_maker *m, struct arena *arena)
{
    const struct meta_params *a = &m->params;
    const double theta = theta_of(a);
    char more[CONFIG_TEXT], eps[TEXT_REAL_MAX], base[TEXT_REAL_MAX];

    more_text(more, m);
    return arena_printf(
        arena,
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"vocab_size\": %lld, "
        "\"hidden_size\": %lld, \"intermediate_size\": %lld, \"num_hidden_layers\": %lld, "
        "\"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld, "
        "\"hidden_act\": \"silu\", \"max_position_embeddings\": %lld, \"rms_norm_eps\": %s, "
        "\"rope_theta\": %s, \"tie_word_embeddings\": %s%s}",
        a->mistral ? "MistralForCausalLM" : "LlamaForCausalLM", a->mistral ? "mistral" : "llama",
        (long long)m->vocab, (long long)a->dim, (long long)m->ffn, (long long)a->layers,
        (long long)a->heads, (long long)m->kv_heads, (long long)a->head_dim,
        (long long)positions(m, theta), text_real(eps, a->norm_eps > 0 ? a->norm_eps : 1e-5),
        text_real(base, theta), m->tied ? "true" : "false", more);
}

/* What was decided, for people. */
static const char *note_text(const struct meta_config_maker *m, struct arena *arena)
{
    char cut[NOTE_TEXT] = "", rope[NOTE_TEXT] = "", factor[TEXT_REAL_MAX];

    if (m->ranks > 1)
        snprintf(cut, sizeof cut, ", %d ranks, the embedding cut by %s", m->ranks,
                 m->columns ? "columns (Llama 1 and 2)" : "rows (since Llama 3)");
    if (m->params.scaled_rope)
        snprintf(rope, sizeof rope, ", rope_scaling by %s (Llama 3.%s)",
                 text_real(factor, meta_params_rope_factor(m->tied)), m->tied ? "2" : "1 and 3.3");
    return arena_printf(
        arena,
        "%.200s: there is no config.json, so one is made of this file and the shapes "
        "of the tensors: %s%s, vocabulary %lld, %s head%s, "
        "max_position_embeddings %lld; --config FILE gives another",
        m->params.path, m->params.mistral ? "MistralForCausalLM" : "LlamaForCausalLM", cut,
        (long long)m->vocab, m->tied ? "a tied" : "its own", rope,
        (long long)positions(m, theta_of(&m->params)));
}

tp_status meta_config(const char **text, const char **note, struct piece_source *s,
                      struct tp_err *err)
{
    struct arena *arena = piece_source_arena(s);
    struct meta_config_maker m = { .ranks = 1 };
    tp_status st;

    TP_TRY(meta_params_read(&m.params, piece_source_path(s), arena, err));
    TP_TRY(meta_rank_first(&m.first, s, err));
    TP_TRY(find_ranks(&m, err));
    TP_TRY(check_layers(&m, err));
    TP_TRY(find_layer(&m, err));
    TP_TRY(find_ends(&m, s, err));
    *text = config_text(&m, arena);
    *note = note_text(&m, arena);
    if (!*text || !*note)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a config.json", piece_source_path(s));
done:
    return st;
}
