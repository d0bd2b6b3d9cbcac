/* tests/unit/ckpt_tensor_name.c - names that HDF5 links cannot hold, or that would be ambiguous. */
#include "ckpt/tensor_name.h"

#include <criterion/criterion.h>
#include <string.h>

static tp_status check(const char *group, const char *name, struct tp_err *err)
{
    const struct tensor t = { .group = group, .name = name };

    return tensor_name_check(&t, err);
}

Test(tensor_name, usual_names_and_any_utf8_are_accepted)
{
    static const char *const good[] = { "model.layers.3.self_attn.q_proj.weight", "a b", "..",
                                        "\xc3\xa4\xe6\x9d\xb1\xf0\x9f\x99\x82", "index" };
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        cr_expect_eq(check("param", good[i], &err), TP_OK, "%s: %s", good[i], err.msg);
}

Test(tensor_name, other_names_are_refused_as_tensor_and_as_group)
{
    static const struct {
        const char *name, *says;
    } bad[] = {
        { "", "is empty" },
        { ".", "not a valid name" },
        { "a/b", "'/' or '@'" },
        { "a@1", "'/' or '@'" },
        { "a\nb", "control character" },
        { "a\x7f", "control character" },
        { "\xff", "not UTF-8" },
        { "\xc3", "not UTF-8" },
        { "\xc0\x80", "not UTF-8" },     /* an overlong sequence */
        { "\xed\xa0\x80", "not UTF-8" }, /* a surrogate */
    };
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_expect_eq(check("param", bad[i].name, &err), TP_E_USAGE, "case %zu", i);
        cr_expect(strstr(err.msg, bad[i].says), "case %zu: %s", i, err.msg);
        cr_expect_eq(check(bad[i].name, "w", &err), TP_E_USAGE, "case %zu", i);
        cr_expect(strstr(err.msg, bad[i].says) && strstr(err.msg, "group"), "case %zu: %s", i,
                  err.msg);
    }
    cr_expect_eq(check("index", "w", &err), TP_E_USAGE, "/index is the table of the shard");
}

Test(tensor_name, a_name_has_at_most_1024_bytes)
{
    char name[TENSOR_NAME_BYTES_MAX + 2];
    struct tp_err err = { 0 };

    memset(name, 'a', sizeof name);
    name[TENSOR_NAME_BYTES_MAX] = 0;
    cr_expect_eq(check("param", name, &err), TP_OK, "%s", err.msg);
    name[TENSOR_NAME_BYTES_MAX] = 'a';
    name[TENSOR_NAME_BYTES_MAX + 1] = 0;
    cr_expect_eq(check("param", name, &err), TP_E_USAGE);
}
