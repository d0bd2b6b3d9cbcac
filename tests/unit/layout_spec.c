/* tests/unit/layout_spec.c - the text of a mesh, and the coordinates of its ranks. */
#include <criterion/criterion.h>
#include <string.h>

#include "layout/spec.h"
#include "tests/unit/random_model.h"

static tp_status parse(struct spec *s, const char *text)
{
    struct tp_err err = { 0 };
    tp_status st = spec_parse(s, text, &err);

    cr_assert_eq(st != TP_OK, err.msg[0] != 0, "a failure says why");
    return st;
}

Test(spec, reads_every_documented_form)
{
    struct spec s;

    cr_assert_eq(parse(&s, "tp8"), TP_OK);
    cr_assert(s.tp == 8 && s.pp == 1 && s.dp == 1 && s.given == SPEC_TP);
    cr_assert_eq(parse(&s, "TP4pp2vpp2dp2zero1"), TP_OK);
    cr_assert(s.tp == 4 && s.pp == 2 && s.vpp == 2 && s.dp == 2 && s.zero == 1);
    cr_assert_eq(parse(&s, "tp=8,pp=2"), TP_OK);
    cr_assert(s.tp == 8 && s.pp == 2);
    cr_assert_eq(parse(&s, "zero2dp2sptp2cp3"), TP_OK);
    cr_assert(s.zero == 1 && s.sp && s.cp == 3);
}

Test(spec, refuses_other_text)
{
    static const char *const bad[] = { "",
                                       "8",
                                       "tp",
                                       "tp0",
                                       "tp-1",
                                       "tpx",
                                       "tp8tp4",
                                       "zero4",
                                       "xp2",
                                       "tp99999999999",
                                       "tp8;dp2",
                                       "sp2",
                                       "tp65536dp65536" };
    struct spec s;

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_expect_eq(parse(&s, bad[i]), TP_E_USAGE, "'%s'", bad[i]);
    cr_expect_eq(parse(&s, "ep0"), TP_E_USAGE);
}

Test(spec, text_reads_back_as_the_same_spec)
{
    struct rng r = rng_start("spec/round_trip");

    for (int i = 0; i < 1000; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m), back;
        char text[SPEC_TEXT_MAX];

        cr_assert_eq(parse(&back, spec_format(text, &s)), TP_OK, "%s", text);
        cr_assert(spec_matches(&back, &s) && spec_world(&back) == spec_world(&s), "%s", text);
    }
}

Test(spec, expert_parallel_ranks_are_neighbours_in_dp_and_cp)
{
    struct spec s;
    char text[SPEC_TEXT_MAX];

    cr_assert_eq(parse(&s, "dp4 cp2 tp2 ep4"), TP_OK);
    cr_assert_str_eq(spec_format(text, &s), "tp2cp2ep4dp4");
    cr_assert_eq(spec_world(&s), 16);
    for (int rank = 0; rank < 16; rank++)
        cr_assert_eq(mesh_ep_of(&s, mesh_coord_of(&s, rank)), rank / 2 % 4);
    cr_assert_eq(parse(&s, "dp4"), TP_OK);
    cr_assert_eq(mesh_ep_of(&s, (struct mesh_coord){ .dp = 3 }), 0);
}

Test(spec, fill_sets_only_missing_axes)
{
    struct spec base, s;

    cr_assert_eq(parse(&base, "tp8pp2dp4spzero1"), TP_OK);
    cr_assert_eq(parse(&s, "tp4"), TP_OK);
    cr_assert(!spec_matches(&s, &base));
    spec_fill(&s, &base);
    cr_assert(s.tp == 4 && s.pp == 2 && s.dp == 4 && s.sp && s.zero == 1);
}

Test(spec, kept_axes_are_those_that_fill_takes)
{
    static const struct {
        const char *base, *to, *kept;
    } cases[] = { { "tp8", "tp4", "" },
                  { "tp8", "dp2", "tp8" },
                  { "tp2pp2", "tp4", "pp2" },
                  { "tp8pp2vpp2cp3dp4spzero1", "cp1", "tp8pp2vpp2dp4spzero1" },
                  { "tp8pp2dp4spzero1", "tp1zero0", "pp2dp4sp" } };
    struct spec base, s, kept;
    char text[SPEC_TEXT_MAX];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cr_assert_eq(parse(&base, cases[i].base), TP_OK);
        cr_assert_eq(parse(&s, cases[i].to), TP_OK);
        kept = spec_kept(&s, &base);
        cr_expect_str_eq(spec_format_given(text, &kept), cases[i].kept);
    }
}

Test(spec, text_has_the_axes_that_must_be_named)
{
    struct spec s;
    char text[SPEC_TEXT_MAX];

    cr_assert_eq(parse(&s, "tp4dp2"), TP_OK);
    cr_expect_str_eq(spec_format_with(text, &s, 0), "tp4dp2");
    cr_expect_str_eq(spec_format_with(text, &s, SPEC_EP | SPEC_ZERO | SPEC_SP), "tp4ep1dp2zero0");
    s.sp = true;
    cr_expect_str_eq(spec_format_with(text, &s, SPEC_DP), "tp4dp2sp");
}

Test(spec, coordinates_count_tp_fastest)
{
    struct spec s;

    cr_assert_eq(parse(&s, "tp2cp3dp2pp2"), TP_OK);
    for (int rank = 0; rank < spec_world(&s); rank++)
        cr_assert_eq(mesh_rank_of(&s, mesh_coord_of(&s, rank)), rank);
    cr_assert_eq(mesh_coord_of(&s, 1).tp, 1);
    cr_assert_eq(mesh_coord_of(&s, 2).cp, 1);
    cr_assert_eq(mesh_coord_of(&s, 6).dp, 1);
    cr_assert_eq(mesh_coord_of(&s, 12).pp, 1);
}
