/* tests/unit/core_json_scan.c - one value of a JSON text at a time, with bounds. */
#include "core/json_scan.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"

TestSuite(json_scan, .init = temp_dir_make, .fini = temp_dir_remove);

enum { SEEN = 1024 };

/* Append to what was seen. */
static void see(char *seen, const struct json_scan_text *t)
{
    size_t n = strlen(seen);

    snprintf(seen + n, SEEN - n, "%.*s|", t->n < 40 ? (int)t->n : 40, t->text);
}

static tp_status walk_member(char *seen, struct json_scan *s, struct tp_err *err)
{
    struct json_scan_text t;
    bool is_list, more = true;
    tp_status st;

    TP_TRY(json_scan_enter(s, '[', &is_list, err));
    if (!is_list) {
        TP_TRY(json_scan_value(s, &t, err));
        see(seen, &t);
        return TP_OK;
    }
    while (!(st = json_scan_entry(s, &more, err)) && more) {
        TP_TRY(json_scan_value(s, &t, err));
        see(seen, &t);
    }
done:
    return st;
}

/* Walk over an object: the keys, the entries of lists, and the other values; then once more,
 * skipping all. */
static tp_status walk(char seen[SEEN], const struct json_scan_input *in, struct tp_err *err)
{
    struct json_scan *s = NULL;
    struct json_scan_text key;
    bool more;
    tp_status st;

    seen[0] = 0;
    TP_TRY(json_scan_open(&s, in, err));
    TP_TRY(json_scan_enter(s, '{', NULL, err));
    while (!(st = json_scan_member(s, &key, &more, err)) && more) {
        see(seen, &key);
        TP_TRY(walk_member(seen, s, err));
    }
    TP_TRY(st);
    TP_TRY(json_scan_end(s, err));
    json_scan_rewind(s);
    TP_TRY(json_scan_skip(s, err));
    TP_TRY(json_scan_end(s, err));
done:
    json_scan_close(s);
    return st;
}

static tp_status walk_text(char seen[SEEN], const char *text, struct tp_err *err)
{
    const struct json_scan_input in = json_scan_input_text(text, strlen(text), "the text");

    return walk(seen, &in, err);
}

Test(json_scan, gives_out_keys_entries_and_values)
{
    static const char *const cases[][2] = {
        { "{}", "" },
        { " { } \n", "" },
        { "{\"a\":1}", "\"a\"|1|" },
        { "{\"a\":[],\"b\":[1,[2,3],{\"c\":[]}],\"d\":{\"e\":{}}}",
          "\"a\"|\"b\"|1|[2,3]|{\"c\":[]}|\"d\"|{\"e\":{}}|" },
        { "\t{ \"a\" : [ 1 , 2 ] ,\r\n\"b\" : null }", "\"a\"|1|2|\"b\"|null|" },
        { "{\"q\\\"}]\":\"\\\\\",\"u\":\"\\u00e9]}\"}",
          "\"q\\\"}]\"|\"\\\\\"|\"u\"|\"\\u00e9]}\"|" },
        { "{\"n\":-1.5e+7,\"t\":true,\"f\":false}", "\"n\"|-1.5e+7|\"t\"|true|\"f\"|false|" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tp_err err = { 0 };
        char seen[SEEN];

        cr_expect_eq(walk_text(seen, cases[i][0], &err), TP_OK, "%s: %s", cases[i][0], err.msg);
        cr_expect_str_eq(seen, cases[i][1]);
    }
}

Test(json_scan, what_is_not_json_is_refused_with_its_place)
{
    static const char *const texts[] = {
        "",
        "[]",
        "7",
        "{",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,}",
        "{\"a\":1,",
        "{,}",
        "{a:1}",
        "{\"a\" 1}",
        "{\"a\":}",
        "{\"a\":[1,]}",
        "{\"a\":[1 2]}",
        "{\"a\":[1}",
        "{\"a\":{]}",
        "{\"a\":1}}",
        "{\"a\":1} x",
        "{\"a\":\"b}",
        "{\"a\":\"\n\"}",
        "{\"a\":\"\\",
        "{\"a\":{\"b\"}}",
        "{\"a\":{1:2}}",
        "{\"a\":1 \"b\":2}",
        "{\"a\":[,1]}",
        "{\"a\":@}",
    };

    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct tp_err err = { 0 };
        char seen[SEEN];

        cr_expect_eq(walk_text(seen, texts[i], &err), TP_E_CORRUPT, "%s", texts[i]);
        cr_expect(strstr(err.msg, "the text: is not a JSON object: ") &&
                      strstr(err.msg, " at byte "),
                  "%s: %s", texts[i], err.msg);
    }
}

/* A value may begin and end anywhere in the windows in which a file is read. */
Test(json_scan, a_file_is_read_in_windows)
{
    enum { WINDOW = 1 << 20 };
    const char *end = "\"key\" : [\"one\", {\"two\": 2}, [3]], \"last\" : \"text\" }";
    size_t n = strlen(end);

    for (size_t cut = 0; cut <= n; cut++) { /* the first window ends in `end` */
        size_t size = WINDOW - cut + n;
        char *text = malloc(size), seen[SEEN];
        struct tp_err err = { 0 };
        struct json_scan_input in;
        int fd;

        memset(text, ' ', size);
        text[0] = '{';
        memcpy(text + WINDOW - cut, end, n);
        unlink(temp_path("file"));
        temp_write("file", text, size);
        fd = open(temp_path("file"), O_RDONLY);
        in = json_scan_input_file(fd, 0, (int64_t)size, "the file");
        cr_assert_eq(walk(seen, &in, &err), TP_OK, "cut %zu: %s", cut, err.msg);
        cr_assert_str_eq(seen, "\"key\"|\"one\"|{\"two\": 2}|[3]|\"last\"|\"text\"|", "cut %zu",
                         cut);
        in.size++;
        cr_assert_eq(walk(seen, &in, &err), TP_E_CORRUPT, "the file ends too early");
        close(fd);
        free(text);
    }
}

/* {"a": <n times unit, the first without its first byte> } */
static char *repeated(const char *open, const char *unit, size_t n, const char *close)
{
    size_t one = strlen(unit), head = strlen(open);
    char *text = malloc(head + n * one + strlen(close) + 1);

    memcpy(text, open, head);
    for (size_t i = 0; i < n; i++)
        memcpy(text + head + i * one, unit, one);
    strcpy(text + head + n * one, close);
    return text;
}

Test(json_scan, a_value_beyond_the_limits_is_refused_and_may_be_skipped)
{
    static const struct {
        const char *open, *unit, *close, *says;
        size_t n;
        bool skips; /* it can be skipped */
    } cases[] = {
        { "{\"a\":\"", "x", "\"}", "too long", JSON_VALUE_BYTES_MAX, true },
        { "{\"a\":{\"b\":[0", ",{}", "]}}", "too many parts", JSON_VALUE_PARTS_MAX, true },
        { "{\"a\":{\"b\":", "[", "", "too deeply", JSON_DEPTH_MAX, false },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *text = repeated(cases[i].open, cases[i].unit, cases[i].n, cases[i].close), seen[SEEN];
        const struct json_scan_input in = json_scan_input_text(text, strlen(text), "the text");
        struct json_scan *s;
        struct tp_err err = { 0 };

        cr_expect_eq(walk(seen, &in, &err), TP_E_CORRUPT, "case %zu", i);
        cr_expect(strstr(err.msg, cases[i].says), "%s", err.msg);
        cr_assert_eq(json_scan_open(&s, &in, &err), TP_OK);
        cr_expect_eq(json_scan_skip(s, &err), cases[i].skips ? TP_OK : TP_E_CORRUPT, "case %zu", i);
        json_scan_close(s);
        free(text);
    }
}

Test(json_scan, a_bounded_text_has_few_parts)
{
    char *many = repeated("[0", ",{}", 2 * JSON_VALUE_PARTS_MAX, "]");
    char *text = repeated("\"", ",{[", 3 * JSON_VALUE_PARTS_MAX, "\"");
    char *large = repeated("\"", "x", JSON_VALUE_BYTES_MAX, "\"");

    cr_expect(json_scan_is_bounded("{\"a\": [1, 2]}", 13));
    cr_expect(json_scan_is_bounded(text, strlen(text)), "brackets in a string are not parts");
    cr_expect_not(json_scan_is_bounded(many, strlen(many)));
    cr_expect_not(json_scan_is_bounded(large, strlen(large)));
    free(many);
    free(text);
    free(large);
}
