/* tests/unit/cli_print.c - results on stdout: text from files cannot control the terminal. */
#include "cli/print.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

Test(print, control_characters_are_escaped, .init = cr_redirect_stdout)
{
    print_safe("a\x1b[31mb\n\t\x7f \xc3\xa4");
    fflush(stdout);
    cr_assert_stdout_eq_str("a\\x1b[31mb\\n\\t\\x7f \xc3\xa4");
}

Test(print, json_keeps_the_order_of_members, .init = cr_redirect_stdout)
{
    json_t *o = json_pack("{s:i, s:s}", "z", 1, "a", "\xc3\xa4");

    print_json(o);
    json_decref(o);
    fflush(stdout);
    cr_assert_stdout_eq_str("{\n  \"z\": 1,\n  \"a\": \"\xc3\xa4\"\n}\n");
}

/* A print_entry_fn. */
static json_t *make_entry(const void *ctx, int i)
{
    return i == 0 ? json_pack("{s:s, s:[ii]}", "a\n", (const char *)ctx, "list", 1, 2)
                  : json_integer(i);
}

Test(print, json_with_a_long_list_is_printed_as_a_whole_one, .init = cr_redirect_stdout)
{
    json_t *head = json_pack("{s:i, s:f}", "z", 1, "real", 0.1);

    print_json_with_list(head, "long", 2, make_entry, "text");
    print_json_with_list(head, "none", 0, make_entry, NULL);
    json_decref(head);
    fflush(stdout);
    cr_assert_stdout_eq_str("{\n  \"z\": 1,\n  \"real\": 0.1,\n  \"long\": [\n"
                            "    {\n      \"a\\n\": \"text\",\n      \"list\": [\n        1,\n"
                            "        2\n      ]\n    },\n    1\n  ]\n}\n"
                            "{\n  \"z\": 1,\n  \"real\": 0.1,\n  \"none\": []\n}\n");
}

Test(print, a_text_that_is_not_utf8_is_still_a_json_string, .init = cr_redirect_stdout)
{
    json_t *list = json_pack("[o, o]", print_text("caf\xe9"), print_text("a\n\xc3\xa4"));

    print_json_line(list);
    json_decref(list);
    fflush(stdout);
    cr_assert_stdout_eq_str("[\"caf?\",\"a\\n\xc3\xa4\"]\n");
}

Test(print, numbers_have_the_fewest_digits_that_read_back)
{
    static const char *const cases[][2] = {
        { "{\"lr\": 0.00050000000000000001}", "{\"lr\": 0.0005}" },
        { "[1.0000000000000001e-05, 17, -3, 0.10000000000000001]", "[1e-05, 17, -3, 0.1]" },
        { "[0.30000000000000004, 1.0, 100000000000.0]",
          "[0.30000000000000004, 1.0, 100000000000.0]" },
        { "{\"a\\\"0.50000000000000000\": \"0.50000000000000000\"}",
          "{\"a\\\"0.50000000000000000\": \"0.50000000000000000\"}" },
        { "true", "true" },
        { "", "" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[128];

        snprintf(text, sizeof text, "%s", cases[i][0]);
        cr_expect_str_eq(print_shorten(text), cases[i][1]);
    }
}

Test(print, output_that_is_lost_is_an_error)
{
    struct tp_err err = { 0 };
    int full = open("/dev/full", O_WRONLY);

    cr_assert_geq(full, 0);
    cr_assert_eq(print_done(&err), TP_OK);
    cr_assert_eq(dup2(full, STDOUT_FILENO), STDOUT_FILENO);
    printf("a result");
    cr_assert_eq(print_done(&err), TP_E_IO);
    cr_assert(strstr(err.msg, "standard output"), "%s", err.msg);
    close(full);
    cr_assert(freopen("/dev/full", "w", stdout));
    putchar('a');
    fflush(stdout);
    errno = 0;
    cr_assert_eq(print_done(&err), TP_E_IO, "a failure of an earlier write counts");
    cr_assert_null(strstr(err.msg, "Success"), "%s", err.msg);
}
