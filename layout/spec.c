/* layout/spec.c - see layout/spec.h. */
#include "layout/spec.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

struct spec_axis {
    const char *name;
    unsigned bit;
};

/* "vpp" comes before "pp", because the first name that matches is taken. */
static const struct spec_axis axes[] = {
    { "zero", SPEC_ZERO }, { "vpp", SPEC_VPP }, { "tp", SPEC_TP }, { "pp", SPEC_PP },
    { "dp", SPEC_DP },     { "cp", SPEC_CP },   { "ep", SPEC_EP }, { "sp", SPEC_SP },
};

struct spec spec_default(void)
{
    return (struct spec){ .tp = 1, .pp = 1, .vpp = 1, .dp = 1, .cp = 1, .ep = 1 };
}

static int *degree_of(struct spec *s, unsigned bit)
{
    switch (bit) {
    case SPEC_TP:
        return &s->tp;
    case SPEC_PP:
        return &s->pp;
    case SPEC_VPP:
        return &s->vpp;
    case SPEC_DP:
        return &s->dp;
    case SPEC_CP:
        return &s->cp;
    case SPEC_EP:
        return &s->ep;
    case SPEC_ZERO:
        return &s->zero;
    default:
        return NULL;
    }
}

static const struct spec_axis *axis_at(const char *p)
{
    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++)
        if (strncasecmp(p, axes[i].name, strlen(axes[i].name)) == 0)
            return &axes[i];
    return NULL;
}

/* Read a number and move *p behind it. -1: there is none, or it is too large. */
static int read_degree(const char **p)
{
    int v = 0;

    if (!isdigit((unsigned char)**p))
        return -1;
    for (; isdigit((unsigned char)**p); (*p)++) {
        v = v * 10 + (**p - '0');
        if (v > SPEC_DEGREE_MAX)
            return -1;
    }
    return v;
}

static tp_status set_degree(struct spec *s, const struct spec_axis *axis, int v, const char *text,
                            struct tp_err *err)
{
    if (axis->bit == SPEC_ZERO) {
        if (v < 0 || v > 3)
            return tp_fail(err, TP_E_USAGE, "layout '%s': zero takes 0, 1, 2 (the same as 1) or 3",
                           text);
        s->zero = v == 2 ? 1 : v;
        return TP_OK;
    }
    if (v < 1)
        return tp_fail(err, TP_E_USAGE,
                       "layout '%s': %s takes a degree from 1 to %d, for example %s2", text,
                       axis->name, SPEC_DEGREE_MAX, axis->name);
    *degree_of(s, axis->bit) = v;
    return TP_OK;
}

static tp_status check(const struct spec *s, const char *text, struct tp_err *err)
{
    long long world = (long long)s->tp * s->pp;

    if (world > SPEC_DEGREE_MAX || (world *= s->dp) > SPEC_DEGREE_MAX ||
        world * s->cp > SPEC_DEGREE_MAX)
        return tp_fail(err, TP_E_USAGE, "layout '%s' has more than %d ranks", text,
                       SPEC_DEGREE_MAX);
    return TP_OK;
}

tp_status spec_parse(struct spec *out, const char *text, struct tp_err *err)
{
    struct spec s = spec_default();
    const char *p = text;
    tp_status st;

    while (*p) {
        const struct spec_axis *axis;
        int v = 0;

        while (*p == ',' || *p == '-' || *p == ' ')
            p++;
        if (!*p)
            break;
        axis = axis_at(p);
        if (!axis)
            return tp_fail(err, TP_E_USAGE,
                           "layout '%s': '%s' is not an axis with its degree; write for example "
                           "tp8 or tp4pp2dp2 (axes: tp pp vpp dp cp ep sp zero; FSDP over 4 "
                           "ranks is dp4zero3)",
                           text, p);
        p += strlen(axis->name);
        if (s.given & axis->bit)
            return tp_fail(err, TP_E_USAGE, "layout '%s': %s is given twice", text, axis->name);
        s.given |= axis->bit;
        if (axis->bit == SPEC_SP) {
            s.sp = true;
            continue;
        }
        if (*p == '=')
            p++;
        v = read_degree(&p);
        if ((st = set_degree(&s, axis, v, text, err)))
            return st;
    }
    if (!s.given)
        return tp_fail(err, TP_E_USAGE, "layout '%s' names no axis; write for example tp8", text);
    if ((st = check(&s, text, err)))
        return st;
    *out = s;
    return TP_OK;
}

void spec_fill(struct spec *s, const struct spec *base)
{
    struct spec from = *base;

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        int *degree = degree_of(s, axes[i].bit);

        if (degree && !(s->given & axes[i].bit))
            *degree = *degree_of(&from, axes[i].bit);
    }
    if (!(s->given & SPEC_SP))
        s->sp = base->sp;
}

bool spec_matches(const struct spec *s, const struct spec *other)
{
    struct spec a = *s, b = *other;

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        int *degree = degree_of(&a, axes[i].bit);

        if (degree && (s->given & axes[i].bit) && *degree != *degree_of(&b, axes[i].bit))
            return false;
    }
    return !(s->given & SPEC_SP) || s->sp == other->sp;
}

static size_t append(char *buf, size_t used, const char *name, int v)
{
    return used + (size_t)snprintf(buf + used, SPEC_TEXT_MAX - used, "%s%d", name, v);
}

struct spec spec_kept(const struct spec *s, const struct spec *base)
{
    struct spec kept = spec_default(), plain = spec_default(), from = *base;

    for (size_t i = 0; i < sizeof axes / sizeof axes[0]; i++) {
        const unsigned bit = axes[i].bit;
        int *degree = degree_of(&kept, bit);

        if (!degree || (s->given & bit) || *degree_of(&from, bit) == *degree_of(&plain, bit))
            continue;
        *degree = *degree_of(&from, bit);
        kept.given |= bit;
    }
    if (base->sp && !(s->given & SPEC_SP)) {
        kept.sp = true;
        kept.given |= SPEC_SP;
    }
    return kept;
}

char *spec_format_given(char buf[SPEC_TEXT_MAX], const struct spec *s)
{
    size_t n = 0;

    buf[0] = 0;
    if (s->given & SPEC_TP)
        n = append(buf, n, "tp", s->tp);
    if (s->given & SPEC_PP)
        n = append(buf, n, "pp", s->pp);
    if (s->given & SPEC_VPP)
        n = append(buf, n, "vpp", s->vpp);
    if (s->given & SPEC_CP)
        n = append(buf, n, "cp", s->cp);
    if (s->given & SPEC_EP)
        n = append(buf, n, "ep", s->ep);
    if (s->given & SPEC_DP)
        n = append(buf, n, "dp", s->dp);
    if (s->given & SPEC_SP)
        n += (size_t)snprintf(buf + n, SPEC_TEXT_MAX - n, "sp");
    if (s->given & SPEC_ZERO)
        append(buf, n, "zero", s->zero);
    return buf;
}

char *spec_format(char buf[SPEC_TEXT_MAX], const struct spec *s)
{
    return spec_format_with(buf, s, 0);
}

char *spec_format_with(char buf[SPEC_TEXT_MAX], const struct spec *s, unsigned named)
{
    struct spec all = *s;

    all.given = (named & ~(unsigned)SPEC_SP) | SPEC_TP | (s->pp != 1 ? SPEC_PP : 0) |
                (s->vpp != 1 ? SPEC_VPP : 0) | (s->cp != 1 ? SPEC_CP : 0) |
                (s->ep > 1 ? SPEC_EP : 0) | (s->dp != 1 ? SPEC_DP : 0) | (s->sp ? SPEC_SP : 0) |
                (s->zero ? SPEC_ZERO : 0);
    return spec_format_given(buf, &all);
}

int spec_world(const struct spec *s)
{
    return s->tp * s->pp * s->dp * s->cp;
}

int mesh_ep_of(const struct spec *s, struct mesh_coord c)
{
    return s->ep > 1 ? (c.dp * s->cp + c.cp) % s->ep : 0;
}

struct mesh_coord mesh_coord_of(const struct spec *s, int rank)
{
    struct mesh_coord c;

    c.tp = rank % s->tp;
    rank /= s->tp;
    c.cp = rank % s->cp;
    rank /= s->cp;
    c.dp = rank % s->dp;
    c.pp = rank / s->dp;
    return c;
}

int mesh_rank_of(const struct spec *s, struct mesh_coord c)
{
    return ((c.pp * s->dp + c.dp) * s->cp + c.cp) * s->tp + c.tp;
}
