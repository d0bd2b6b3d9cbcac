/* reshard/formats/gguf/gguf_merges.c - see reshard/formats/gguf/gguf_merges.h. */
#include "reshard/formats/gguf/gguf_merges.h"

#include <stdlib.h>
#include <string.h>

static tp_status no_memory(const char *path, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tokens", path);
}

static int compare_tokens(const void *a, const void *b, void *tokens)
{
    const char *const *list = tokens;

    return strcmp(list[*(const int64_t *)a], list[*(const int64_t *)b]);
}

tp_status gguf_merges_begin(struct gguf_merges *m, struct arena *arena, struct tp_err *err)
{
    m->sorted = arena_array(arena, (size_t)m->n_tokens + 1, sizeof *m->sorted);
    if (!m->sorted)
        return no_memory(m->path, err);
    for (int64_t i = 0; i < m->n_tokens; i++)
        if (m->tokens[i])
            m->sorted[m->n_sorted++] = i;
    qsort_r(m->sorted, (size_t)m->n_sorted, sizeof *m->sorted, compare_tokens, (void *)m->tokens);
    return TP_OK;
}

/* The token of a text, by the sorted list. */
static int64_t find_sorted(const struct gguf_merges *m, const char *text)
{
    int64_t lo = 0, hi = m->n_sorted;

    while (lo < hi) {
        const int64_t middle = lo + (hi - lo) / 2;
        const int order = strcmp(m->tokens[m->sorted[middle]], text);

        if (order == 0)
            return m->sorted[middle];
        if (order < 0)
            lo = middle + 1;
        else
            hi = middle;
    }
    return -1;
}

tp_status gguf_merges_add(struct gguf_merges *m, const json_t *merge, struct tp_err *err)
{
    const char *text = json_string_value(merge), *space = text ? strchr(text, ' ') : NULL;
    const char *a = json_string_value(json_array_get(merge, 0)),
               *b = json_string_value(json_array_get(merge, 1));
    const size_t n_a = text && space ? (size_t)(space - text) : a ? strlen(a) : 0;
    struct gguf_bytes joined = { 0 };
    int64_t token;

    if (text && space) {
        a = text;
        b = space + 1;
    }
    if (!a || !b)
        return tp_fail(err, TP_E_CORRUPT, "%s: a merge is not two tokens", m->path);
    gguf_bytes_u64(m->bytes, n_a + 1 + strlen(b));
    gguf_bytes_add(m->bytes, a, n_a);
    gguf_bytes_add(m->bytes, " ", 1);
    gguf_bytes_add(m->bytes, b, strlen(b));
    gguf_bytes_add(&joined, a, n_a);
    gguf_bytes_add(&joined, b, strlen(b) + 1);
    token = joined.failed || !m->scores ? -1 : find_sorted(m, joined.data);
    if (m->bytes->failed || joined.failed) {
        gguf_bytes_free(&joined);
        return no_memory(m->path, err);
    }
    gguf_bytes_free(&joined);
    m->n++;
    if (token >= 0 && m->scores[token] == 0)
        m->scores[token] = -(float)m->n;
    return TP_OK;
}
