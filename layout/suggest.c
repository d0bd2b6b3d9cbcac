/* layout/suggest.c - see layout/suggest.h. */
#include "layout/suggest.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "layout/layout_check.h"

/* Candidates differ from the spec that was asked for in at most CHANGES_MAX axes, or have the same
 * number of ranks by another dp. Degrees are near the asked ones, or 1. */
enum { DEGREE_MAX = 256, VALUES_MAX = 2 * DEGREE_MAX, CANDIDATES_MAX = 1 << 14, CHANGES_MAX = 2 };

/* Beyond this distance a candidate is of no use even when it has the same number of ranks. */
static const double DISTANCE_MAX = 4;

struct suggest_candidate {
    struct spec spec;
    double distance;
};

struct suggest_list {
    const struct suggest *q;
    struct suggest_candidate *item; /* [CANDIDATES_MAX] */
    int n;
};

static double ratio(double a, double b)
{
    return fabs(log2(a / b));
}

static double distance(const struct spec *a, const struct spec *asked)
{
    double steps = (a->sp != asked->sp) + (a->zero != asked->zero) + (a->vpp != asked->vpp) +
                   (a->ep != asked->ep);
    int ranks = spec_world(a), asked_ranks = spec_world(asked);

    return ratio(a->tp, asked->tp) + ratio(a->pp, asked->pp) + ratio(a->dp, asked->dp) +
           ratio(a->cp, asked->cp) + 0.25 * steps +
           (ranks > asked_ranks ? 1.5 : 0.5) * ratio(ranks, asked_ranks) +
           (a->cp > asked->cp ? 0.5 : 0); /* more cp is rarely the first choice */
}

static int changes(const struct spec *a, const struct spec *b)
{
    return (a->tp != b->tp) + (a->pp != b->pp) + (a->dp != b->dp) + (a->cp != b->cp) +
           (a->vpp != b->vpp) + (a->ep != b->ep) + (a->sp != b->sp) + (a->zero != b->zero);
}

/* Whether s turns on an option that has no effect at its degrees. */
static bool is_idle(const struct spec *s, const struct spec *asked)
{
    return (s->sp && !asked->sp && s->tp == 1) ||
           (s->zero && s->zero != asked->zero && s->dp == 1) ||
           (s->vpp > 1 && s->vpp != asked->vpp && s->pp == 1);
}

static void add(struct suggest_list *l, const struct spec *s)
{
    const struct spec *asked = l->q->asked;
    int n = changes(s, asked);

    if (n == 0 || l->n == CANDIDATES_MAX || is_idle(s, asked))
        return;
    if (n > CHANGES_MAX && spec_world(s) != spec_world(asked))
        return;
    l->item[l->n++] = (struct suggest_candidate){ *s, distance(s, asked) };
}

/* Add a mesh with each choice of sp, zero and vpp. */
static void add_options(struct suggest_list *l, const struct spec *mesh)
{
    static const int zeros[] = { 0, 1, 3 };
    const struct spec *asked = l->q->asked;
    const int vpps[] = { asked->vpp, 1, 2 };

    for (int v = 0; v < 3; v++)
        for (int sp = 0; sp < 2; sp++)
            for (int z = 0; z < 3; z++) {
                struct spec s = *mesh;

                if (v > 0 && vpps[v] == asked->vpp)
                    continue;
                s.vpp = vpps[v];
                s.sp = sp;
                s.zero = zeros[z];
                if (changes(&s, asked) - changes(mesh, asked) <= 1 ||
                    changes(&s, asked) <= CHANGES_MAX)
                    add(l, &s);
            }
}

static bool is_power_of_two(int d)
{
    return (d & (d - 1)) == 0;
}

/* Degrees to try for an axis: near the asked one, its divisors, and 1, 3 or 5 times a power
 * of 2. */
static int near_degrees(int out[VALUES_MAX], int asked, int max)
{
    int n = 0;

    for (int d = 1; d <= max && d <= DEGREE_MAX && d <= 4 * asked + 8; d++)
        if (is_power_of_two(d) || (d % 3 == 0 && is_power_of_two(d / 3)) ||
            (d % 5 == 0 && is_power_of_two(d / 5)) || abs(d - asked) <= 2 || asked % d == 0)
            out[n++] = d;
    return n;
}

/* Add a mesh of tp, pp and cp with several dp: near the asked one, and what keeps the number of
 * ranks. */
static void add_replicas(struct suggest_list *l, struct spec mesh)
{
    const struct spec *asked = l->q->asked;
    int world = spec_world(asked), part = mesh.tp * mesh.pp * mesh.cp;
    int degrees[VALUES_MAX], n = near_degrees(degrees, asked->dp, SPEC_DEGREE_MAX / part);

    mesh.dp = 1;
    for (int i = 0; i < n; i++)
        for (int ep = asked->ep;; ep = 1) {
            mesh.dp = degrees[i];
            mesh.ep = ep;
            if (changes(&mesh, asked) <= CHANGES_MAX)
                add_options(l, &mesh);
            if (ep <= 1)
                break;
        }
    mesh.ep = asked->ep;
    mesh.dp = world / part;
    if (world % part == 0 && changes(&mesh, asked) > CHANGES_MAX)
        add(l, &mesh);
}

static void add_meshes(struct suggest_list *l)
{
    const struct spec *asked = l->q->asked;
    int tp[VALUES_MAX], pp[VALUES_MAX], cp[VALUES_MAX];
    int n_tp = near_degrees(tp, asked->tp, SPEC_DEGREE_MAX);
    int n_pp = near_degrees(pp, asked->pp, l->q->n_layers > 1 ? l->q->n_layers : 1);
    int n_cp = near_degrees(cp, asked->cp, SPEC_DEGREE_MAX);
    struct spec s = *asked;

    for (int i = 0; i < n_tp; i++)
        for (int j = 0; j < n_pp; j++)
            for (int k = 0; k < n_cp; k++) {
                s.tp = tp[i];
                s.pp = pp[j];
                s.cp = cp[k];
                if ((int64_t)s.tp * s.pp * s.cp <= SPEC_DEGREE_MAX &&
                    (s.cp <= asked->cp || s.cp == 2 * asked->cp ||
                     (s.tp == asked->tp && s.pp == asked->pp)))
                    add_replicas(l, s);
            }
}

static int by_distance(const void *a, const void *b)
{
    const struct suggest_candidate *x = a, *y = b;

    if (x->distance != y->distance)
        return x->distance < y->distance ? -1 : 1;
    if (spec_world(&x->spec) != spec_world(&y->spec)) /* fewer ranks are easier to have */
        return spec_world(&x->spec) - spec_world(&y->spec);
    if (x->spec.tp != y->spec.tp)
        return x->spec.tp - y->spec.tp;
    return x->spec.zero - y->spec.zero;
}

static bool works(const struct suggest *q, const struct spec *s)
{
    struct tp_err ignored = { 0 };

    return layout_check(s, q->n_layers, &q->kinds, &ignored) == TP_OK &&
           (!q->fits || q->fits(q->ctx, s));
}

/* Whether s differs from a spec that was found in one of sp, zero and vpp only: not worth a place
 * of its own. */
static bool is_repeat(const struct spec *found, int n, const struct spec *s)
{
    for (int i = 0; i < n; i++) {
        const struct spec *f = &found[i];

        if (f->tp == s->tp && f->pp == s->pp && f->dp == s->dp && f->cp == s->cp &&
            f->ep == s->ep && (f->sp == s->sp) + (f->zero == s->zero) + (f->vpp == s->vpp) >= 2)
            return true;
    }
    return false;
}

static int take_nearest(struct spec out[SUGGEST_MAX], const struct suggest_list *l)
{
    int world = spec_world(l->q->asked), n = 0;
    bool same = false; /* one with as many ranks as asked is taken */

    for (int i = 0; i < l->n && (n < SUGGEST_MAX || !same); i++) {
        const struct spec *s = &l->item[i].spec;
        bool is_same = spec_world(s) == world;

        if (n == SUGGEST_MAX && l->item[i].distance > DISTANCE_MAX)
            break;
        if ((n == SUGGEST_MAX && !is_same) || is_repeat(out, n, s) || !works(l->q, s))
            continue;
        out[n < SUGGEST_MAX ? n++ : SUGGEST_MAX - 1] = *s;
        same |= is_same;
    }
    return n;
}

int suggest_specs(struct spec out[SUGGEST_MAX], const struct suggest *q)
{
    struct suggest_list l = { .q = q, .item = malloc(CANDIDATES_MAX * sizeof *l.item) };
    int n;

    if (!l.item)
        return 0;
    add_meshes(&l);
    qsort(l.item, (size_t)l.n, sizeof *l.item, by_distance);
    n = take_nearest(out, &l);
    free(l.item);
    if (n == 0) { /* no candidate works, but one rank may */
        out[0] = spec_default();
        n = changes(&out[0], q->asked) > 0 && works(q, &out[0]);
    }
    return n;
}

char *suggest_text(char buf[SUGGEST_TEXT_MAX], const struct spec *specs, int n, unsigned named)
{
    char text[SPEC_TEXT_MAX];
    size_t used = 0;

    snprintf(buf, SUGGEST_TEXT_MAX, "none");
    for (int i = 0; i < n && i < SUGGEST_MAX; i++)
        used += (size_t)snprintf(buf + used, SUGGEST_TEXT_MAX - used, "%s%s", i ? ", " : "",
                                 spec_format_with(text, &specs[i], named));
    return buf;
}
