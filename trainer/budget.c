/* trainer/budget.c - see trainer/budget.h. */
#include "trainer/budget.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/size.h"
#include "layout/memory.h"

enum { LAYOUTS_SHOWN = 2, DEGREES_TRIED_MAX = 256 }; /* of each axis */

static int flags_of(const struct train_config *c)
{
    return (c->ckpt ? MEMORY_SAVES : 0) | (c->recompute ? MEMORY_RECOMPUTES : 0) |
           (c->recompute_attention ? MEMORY_RECOMPUTES_ATTENTION : 0);
}

static struct memory_run run_of(const struct train_config *c, const struct spec *s, int64_t micro)
{
    return (struct memory_run){ .dtype = c->dtype,
                                .seq = c->seq,
                                .micro = micro,
                                .micros = c->batch / s->dp / micro,
                                .flags = flags_of(c) };
}

static int64_t need_of(const struct train_config *c, const struct model *m, const struct spec *s,
                       int64_t micro)
{
    const struct memory_run run = run_of(c, s, micro);

    return memory_estimate(m, s, &run).total;
}

static bool is_legal(const struct train_config *c, const struct model *m, const struct spec *s)
{
    struct arena a = { 0 };
    struct tp_err ignored = { 0 };
    struct tensor *tensors;
    struct layout l;
    int n;
    bool ok = !model_params(&tensors, &n, m, c->dtype, &a, &ignored) &&
              !layout_make(&l, s, m->layers, tensors, n, &a, &ignored);

    arena_free(&a);
    return ok;
}

/* Whether the run would be accepted at s, and fits. */
static bool would_fit(const struct train_config *c, const struct model *m, const struct spec *s)
{
    struct train_config other = *c;
    struct tp_err ignored = { 0 };

    other.spec = *s;
    return !train_config_check(&other, m, &ignored) && is_legal(c, m, s) &&
           need_of(c, m, s, c->micro) <= c->mem_bytes;
}

/* "tp4 (812 MiB), tp8 (...)": larger degrees of an axis (tp or cp of *s) that fit, nearest first.
 * Appends to buf; returns how many. */
static int list_degrees(char *buf, size_t size, const struct train_config *c, const struct model *m,
                        struct spec *s, int *degree)
{
    int was = *degree, n = 0;

    for (int d = was + 1; d <= DEGREES_TRIED_MAX && n < LAYOUTS_SHOWN; d++) {
        char text[SPEC_TEXT_MAX], bytes[SIZE_TEXT_MAX];
        size_t used = strlen(buf);

        *degree = d;
        if (!would_fit(c, m, s))
            continue;
        snprintf(buf + used, size - used, "%s%s (%s)", used ? ", " : "", spec_format(text, s),
                 size_format(bytes, need_of(c, m, s, c->micro)));
        n++;
    }
    *degree = was;
    return n;
}

/* Layouts with more ranks along tp, or along cp, that fit. */
static int list_layouts(char *buf, size_t size, const struct train_config *c, const struct model *m)
{
    struct spec s = c->spec;
    int n = list_degrees(buf, size, c, m, &s, &s.tp);

    return n + list_degrees(buf, size, c, m, &s, &s.cp);
}

tp_status budget_check(const struct train_config *c, const struct model *m, struct tp_err *err)
{
    struct memory_run run;
    struct memory_need need;
    char spec[SPEC_TEXT_MAX], total[SIZE_TEXT_MAX], mem[SIZE_TEXT_MAX], weights[SIZE_TEXT_MAX];
    char state[SIZE_TEXT_MAX], act[SIZE_TEXT_MAX], staging[SIZE_TEXT_MAX], other[SIZE_TEXT_MAX];
    char layouts[384] = "", micro[96] = "";

    if (c->mem_bytes == 0)
        return TP_OK;
    run = run_of(c, &c->spec, c->micro);
    need = memory_estimate(m, &c->spec, &run);
    if (need.total <= c->mem_bytes)
        return TP_OK;
    if (list_layouts(layouts, sizeof layouts, c, m) == 0)
        snprintf(layouts, sizeof layouts, "no degree of tp or cp");
    if (c->micro > 1 && need_of(c, m, &c->spec, 1) <= c->mem_bytes)
        snprintf(micro, sizeof micro, "; so would --micro 1 at this layout (%s)",
                 size_format(other, need_of(c, m, &c->spec, 1)));
    return tp_fail(
        err, TP_E_BUDGET,
        "%s does not fit at %s: a rank needs about %s of --mem %s (weights %s, gradients "
        "and optimizer %s, activations %s, saving %s, program %s); would fit: %s%s",
        c->model_path, spec_format(spec, &c->spec), size_format(total, need.total),
        size_format(mem, c->mem_bytes), size_format(weights, need.params + need.master),
        size_format(state, need.grads + need.moments),
        size_format(act, need.activations + need.workspace), size_format(staging, need.staging),
        size_format(other, need.overhead), layouts, micro);
}
