/* tests/unit/core_text.c - any bytes become text that is valid in JSON. */
#include "core/text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(const char *in, const char *out)
{
    char text[64];

    snprintf(text, sizeof text, "%s", in);
    cr_expect_str_eq(text_clean(text), out);
}

Test(text, valid_text_is_unchanged)
{
    expect("", "");
    expect("rank 3 died: \xe2\x80\x98no file\xe2\x80\x99 \xf0\x9f\x98\x80",
           "rank 3 died: \xe2\x80\x98no file\xe2\x80\x99 \xf0\x9f\x98\x80");
}

Test(text, other_bytes_become_question_marks)
{
    expect("caf\xe9 bar", "caf? bar");
    expect("\x1b[31mred\tx\x7f", "?[31mred?x?");
    expect("a\xc2\x9b"
           "2J",
           "a??2J");                           /* a control character of two bytes */
    expect("\xc0\xaf \xed\xa0\x80", "?? ???"); /* overlong, surrogate */
}

static void expect_escaped(const char *in, const char *out)
{
    char text[64];

    cr_expect_str_eq(text_escape(text, sizeof text, in), out);
}

Test(text, control_characters_are_escaped_for_people)
{
    expect_escaped("caf\xc3\xa9 \\n", "caf\xc3\xa9 \\n");
    expect_escaped("a\nb\r\tc", "a\\nb\\r\\tc");
    expect_escaped("\x1b]0;title\x07\x7f", "\\x1b]0;title\\x07\\x7f");
    expect_escaped("caf\xe9 bar", "caf\\xe9 bar");
    expect_escaped("\xc2\x9b"
                   "2J",
                   "\\xc2\\x9b"
                   "2J"); /* C1: the terminal's CSI */
    expect_escaped("a\xe2\x80", "a");
}

Test(text, an_escape_is_whole_or_left_out)
{
    char text[6];

    cr_expect_str_eq(text_escape(text, sizeof text, "ab\x1b"), "ab");
    cr_expect_str_eq(text_escape(text, sizeof text, "a\x1b"), "a\\x1b");
    cr_expect_str_eq(text_escape(text, sizeof text, "abcdefg"), "abcde");
}

static void expect_word(const char *in, const char *out)
{
    char word[TEXT_WORD_MAX];

    cr_expect_str_eq(text_shell_word(word, in), out);
}

Test(text, a_word_for_the_shell_is_quoted_where_needed)
{
    expect_word("runs/ckpt-tp4.2", "runs/ckpt-tp4.2");
    expect_word("s3://bucket/a=b", "s3://bucket/a=b");
    expect_word("", "''");
    expect_word("my model", "'my model'");
    expect_word("$(rm x);*", "'$(rm x);*'");
    expect_word("it's \\", "'it'\\''s \\'");
    expect_word("caf\xc3\xa9", "'caf\xc3\xa9'");
    expect_word("-o", "./-o");
    expect_word("-my model", "'./-my model'");
    expect_word("a\nit's \\ \x1b[1m", "$'a\\nit\\'s \\\\ \\x1b[1m'");
    expect_word("caf\xe9", "$'caf\\xe9'");
    expect_word("cut \xe2\x80", "$'cut \\xe2\\x80'");
}

Test(text, a_word_for_the_shell_is_whole_or_replaced)
{
    char path[2 * TEXT_WORD_MAX], word[TEXT_WORD_MAX];

    for (size_t n = 0; n + 1 < sizeof path; n++) {
        memset(path, n % 2 ? 'a' : '\'', n);
        path[n] = 0;
        text_shell_word(word, path);
        cr_assert(strcmp(word, "...") == 0 || strlen(word) >= n);
        cr_assert(n > 100 || strcmp(word, "...") != 0);
    }
}

Test(text, a_sequence_that_the_end_cuts_off_is_removed)
{
    expect("a\xe2\x80", "a");
    expect("a\xf0\x9f\x98", "a");
    expect("a\xe2", "a");
}

Test(text, random_bytes_become_valid_and_never_longer)
{
    unsigned seed = 7;

    for (int i = 0; i < 20000; i++) {
        char text[16] = { 0 };
        size_t n = (size_t)rand_r(&seed) % sizeof text, before;

        for (size_t k = 0; k < n; k++)
            text[k] = (char)(rand_r(&seed) % 4 ? 0x80 + rand_r(&seed) % 0x80 : rand_r(&seed));
        before = strlen(text);
        text_clean(text);
        cr_assert_leq(strlen(text), before);
        for (const char *p = text; *p; p += text_utf8_length(p))
            cr_assert(text_utf8_length(p) > 0 && (unsigned char)*p >= 0x20, "seed 7, text %d", i);
    }
}

Test(text, the_last_line_that_is_not_blank)
{
    char line[16];

    cr_expect_str_eq(text_last_line(line, sizeof line, "one\ntwo\r\n \t\n", ""), "two");
    cr_expect_str_eq(text_last_line(line, sizeof line, " 10%\r 20%\r", ""), " 20%");
    cr_expect_str_eq(text_last_line(line, sizeof line, "why\n{\n}\n", "{}"), "why");
    cr_expect_str_eq(text_last_line(line, sizeof line, "why\n{\n}\n", ""), "}");
    cr_expect_str_eq(text_last_line(line, sizeof line, "a line that is too long", ""),
                     "a line that is ");
    cr_expect_str_eq(text_last_line(line, sizeof line, "\n\n", ""), "");
    cr_expect_str_eq(text_last_line(line, sizeof line, "", ""), "");
}

Test(text, the_length_of_a_path_is_without_slashes_at_its_end)
{
    cr_expect_eq(text_path_length("a/b"), 3);
    cr_expect_eq(text_path_length("a/b//"), 3);
    cr_expect_eq(text_path_length("/"), 1);
    cr_expect_eq(text_path_length("//"), 1);
    cr_expect_eq(text_path_length(""), 0);
}

Test(text, the_base_name_follows_the_last_slash)
{
    cr_expect_str_eq(text_base_name("/usr/bin/tp-train"), "tp-train");
    cr_expect_str_eq(text_base_name("tp-train"), "tp-train");
    cr_expect_str_eq(text_base_name("bin/"), "");
}

Test(text, an_ending_has_something_before_it)
{
    cr_expect(text_ends_with("a.idx", ".idx"));
    cr_expect_not(text_ends_with(".idx", ".idx"));
    cr_expect_not(text_ends_with("a.bin", ".idx"));
    cr_expect_not(text_ends_with("x", ".idx"));
}

Test(text, a_name_is_compared_as_a_whole)
{
    static const char *const names[] = { "lr", "betas", NULL };

    cr_expect(text_is_one_of("lr", names));
    cr_expect(text_is_one_of("betas", names));
    cr_expect_not(text_is_one_of("beta", names));
    cr_expect_not(text_is_one_of("", names));
    cr_expect_not(text_is_one_of("lr", &names[2]));
}

Test(text, a_real_has_the_fewest_digits_that_read_back_as_it)
{
    char text[TEXT_REAL_MAX];

    cr_expect_str_eq(text_real(text, 1e-5), "1e-05");
    cr_expect_str_eq(text_real(text, 0.1), "0.1");
    cr_expect_str_eq(text_real(text, 500000), "500000");
    cr_expect_str_eq(text_real(text, 0.1 + 0.2), "0.30000000000000004");
}
