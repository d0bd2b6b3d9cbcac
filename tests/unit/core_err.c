/* tests/unit/core_err.c - a failure has a status, one sentence, and the documented exit code. */
#include "core/err.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>

Test(err, a_failure_keeps_its_status_and_message)
{
    struct tp_err err = { 0 };

    cr_expect_eq(tp_fail(&err, TP_E_LAYOUT, "tp %d does not divide %s", 3, "q_proj"), TP_E_LAYOUT);
    cr_expect(err.status == TP_E_LAYOUT);
    cr_expect_str_eq(err.msg, "tp 3 does not divide q_proj");
    cr_expect_eq(tp_fail_in(&err, "--layout %s", "tp3"), TP_E_LAYOUT);
    cr_expect_str_eq(err.msg, "--layout tp3: tp 3 does not divide q_proj");
}

Test(err, errno_is_added_in_words)
{
    struct tp_err err = { 0 };

    errno = ENOSPC;
    cr_expect_eq(tp_fail_errno(&err, "%s: cannot write", "/x"), TP_E_IO);
    cr_expect_str_eq(err.msg, "/x: cannot write: No space left on device");
}

Test(err, a_message_that_is_too_long_is_cut)
{
    struct tp_err err = { 0 };
    char text[2 * TP_ERR_MAX];

    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tp_fail(&err, TP_E_IO, "%s", text);
    cr_expect_eq(strlen(err.msg), TP_ERR_MAX - 1);
    cr_expect_eq(tp_fail_in(&err, "%s", text), TP_E_IO);
    cr_expect_eq(strlen(err.msg), TP_ERR_MAX - 1);
    errno = EIO;
    tp_fail_errno(&err, "%s", text);
    cr_expect_eq(strlen(err.msg), TP_ERR_MAX - 1);
}

Test(err, exit_codes_are_as_documented)
{
    static const struct {
        tp_status st;
        int code;
    } codes[] = {
        { TP_OK, 0 },         { TP_E_NO, 1 },     { TP_E_USAGE, 2 },    { TP_E_LAYOUT, 2 },
        { TP_E_NOTFOUND, 2 }, { TP_E_EXISTS, 2 }, { TP_E_BUDGET, 2 },   { TP_E_IO, 3 },
        { TP_E_CORRUPT, 3 },  { TP_E_NOMEM, 3 },  { TP_E_COMM, 3 },     { TP_E_GPU, 3 },
        { TP_E_GPU_FULL, 3 }, { TP_E_STALE, 3 },  { TP_E_INTERNAL, 3 }, { TP_E_STOPPED, 75 },
    };

    for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++)
        cr_expect_eq(tp_exit_code(codes[i].st), codes[i].code, "status %d", (int)codes[i].st);
}

static tp_status try_two(tp_status first, int *reached)
{
    tp_status st;

    TP_TRY(first);
    *reached = 1;
    TP_TRY(TP_OK);
done:
    return st;
}

Test(err, try_stops_at_the_first_failure)
{
    int reached = 0;

    cr_expect_eq(try_two(TP_E_IO, &reached), TP_E_IO);
    cr_expect_eq(reached, 0);
    cr_expect_eq(try_two(TP_OK, &reached), TP_OK);
    cr_expect_eq(reached, 1);
}
