/* tests/unit/ckpt_member.c - members of JSON objects: kind and range are checked, and named. */
#include "ckpt/member.h"

#include <criterion/criterion.h>
#include <string.h>

static struct tp_err err;
static struct arena arena;

static const struct member_reader reader = { "x/manifest.json", &arena, &err };

static const char text[] = "{\"n\": 7, \"big\": 9223372036854775807, \"real\": 1.0, \"yes\": true, "
                           "\"zero\": 0, \"s\": \"abc\", \"hex\": \"00ff\", \"list\": [1, 2, 3], "
                           "\"o\": {}, \"null\": null}";

/* The message must name the file and the member. */
static void check_refused(tp_status st, const char *key)
{
    char quoted[32];

    snprintf(quoted, sizeof quoted, "'%s'", key);
    cr_expect_eq(st, TP_E_CORRUPT, "%s", key);
    cr_expect(strncmp(err.msg, "x/manifest.json: ", 17) == 0 && strstr(err.msg, quoted), "%s",
              err.msg);
}

Test(member, integers_have_a_range)
{
    json_t *o = json_loads(text, 0, NULL);
    int64_t v = -5;
    int small = -5;

    cr_expect_eq(member_int(&reader, &v, o, "n", 7, 7), TP_OK);
    cr_expect_eq(v, 7);
    cr_expect_eq(member_int(&reader, &v, o, "big", 0, INT64_MAX), TP_OK);
    cr_expect_eq(v, INT64_MAX);
    cr_expect_eq(member_small(&reader, &small, o, "n", 0, 10), TP_OK);
    cr_expect_eq(small, 7);
    v = -5;
    check_refused(member_int(&reader, &v, o, "n", 8, 10), "n");
    check_refused(member_int(&reader, &v, o, "n", 0, 6), "n");
    check_refused(member_small(&reader, &small, o, "big", 0, INT32_MAX), "big");
    check_refused(member_int(&reader, &v, o, "real", 0, 10), "real");
    check_refused(member_int(&reader, &v, o, "s", 0, 10), "s");
    check_refused(member_int(&reader, &v, o, "missing", 0, 10), "missing");
    cr_expect_eq(v, -5, "unchanged after a failure");
    json_decref(o);
}

Test(member, members_of_another_kind_are_not_converted)
{
    json_t *o = json_loads(text, 0, NULL), *found = NULL;
    const char *s = NULL;
    char hex[5] = "";
    bool yes = false;
    size_t n = 0;

    cr_expect(member_bool(&reader, &yes, o, "yes") == TP_OK && yes);
    check_refused(member_bool(&reader, &yes, o, "zero"), "zero");
    cr_expect(member_text(&reader, &s, o, "s") == TP_OK && strcmp(s, "abc") == 0);
    check_refused(member_text(&reader, &s, o, "null"), "null");
    cr_expect(member_list(&reader, &found, &n, o, "list", 3) == TP_OK && n == 3);
    check_refused(member_list(&reader, &found, &n, o, "list", 2), "list");
    check_refused(member_list(&reader, &found, &n, o, "o", 9), "o");
    cr_expect_eq(member_object(&reader, &found, o, "o"), TP_OK);
    check_refused(member_object(&reader, &found, o, "list"), "list");
    cr_expect(member_hex(&reader, hex, 4, o, "hex") == TP_OK && strcmp(hex, "00ff") == 0);
    check_refused(member_hex(&reader, hex, 3, o, "hex"), "hex");
    check_refused(member_hex(&reader, hex, 4, o, "s"), "s");
    check_refused(member_hex(&reader, hex, 4, o, "n"), "n");
    json_decref(o);
}

Test(member, copied_text_is_valid_after_the_tree_is_freed)
{
    json_t *o = json_loads(text, 0, NULL);
    const char *s = NULL;

    cr_assert_eq(member_keep(&reader, &s, o, "s"), TP_OK);
    json_decref(o);
    cr_expect_str_eq(s, "abc");
    arena_free(&arena);
}
