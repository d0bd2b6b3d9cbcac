/* cli/print.c - see cli/print.h. */
#include "cli/print.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

void print_safe(const char *text)
{
    char unit[TEXT_UNIT_MAX];

    for (int n; (n = text_escape_unit(unit, text)); text += n)
        fputs(unit, stdout);
}

void print_field(const char *before, const char *text)
{
    fputs(before, stdout);
    print_safe(text);
    putchar('\n');
}

void print_tensor(const char *group, const char *name)
{
    print_safe(group);
    putchar('/');
    print_safe(name);
}

json_t *print_text(const char *text)
{
    char *copy = strdup(text);
    json_t *string;

    for (char *p = copy; p && *p;) {
        int n = text_utf8_length(p);

        if (!n)
            *p = '?';
        p += n ? n : 1;
    }
    string = copy ? json_string(copy) : NULL;
    free(copy);
    return string;
}

/* The fewest digits that read back as v; it stays a number with a fraction or exponent. */
static int format_real(char *buf, size_t size, double v)
{
    char real[TEXT_REAL_MAX];

    text_real(real, v);
    return snprintf(buf, size, "%s%s", real, strpbrk(real, ".en") ? "" : ".0");
}

/* Length of the number at p; 0: there is none with a fraction or exponent. */
static size_t real_length(const char *p)
{
    size_t n = strspn(p, "0123456789+-.eE");

    return n && n < 64 && memchr(p, '.', n) ? n : n && memchr(p, 'e', n) ? n : 0;
}

char *print_shorten(char *json)
{
    bool in_string = false;
    char *to = json;

    for (const char *p = json; *p;) {
        size_t n = in_string ? 0 : real_length(p);
        char number[64];
        int made = n ? format_real(number, sizeof number, strtod(p, NULL)) : 0;

        if (in_string && *p == '\\' && p[1])
            *to++ = *p++;
        else if (*p == '"')
            in_string = !in_string;
        if (made > 0 && (size_t)made <= n) {
            memcpy(to, number, (size_t)made);
            to += made;
            p += n;
        } else {
            n = n ? n : 1;
            memmove(to, p, n);
            to += n;
            p += n;
        }
    }
    *to = 0;
    return json;
}

/* malloc'ed; NULL: there is no memory. */
static char *text_of(const json_t *value, size_t flags)
{
    char *text = json_dumps(value, flags | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);

    return text ? print_shorten(text) : NULL;
}

static void dump(const json_t *value, size_t flags)
{
    char *text = text_of(value, flags);

    puts(text ? text : "null");
    free(text);
}

void print_json(const json_t *value)
{
    dump(value, JSON_INDENT(2));
}

/* Print a value inside a list that is a member of an object. */
static void print_inside(const json_t *value)
{
    char *text = text_of(value, JSON_INDENT(2));

    fputs("\n    ", stdout);
    for (const char *p = text ? text : "null"; *p; p++) {
        putchar(*p);
        if (*p == '\n')
            fputs("    ", stdout);
    }
    free(text);
}

void print_json_with_list(const json_t *head, const char *name, int n, print_entry_fn entry,
                          const void *ctx)
{
    char *text = text_of(head, JSON_INDENT(2));

    printf("%.*s,\n  \"%s\": [", text ? (int)strlen(text) - 2 : 0, text ? text : "", name);
    for (int i = 0; i < n; i++) {
        json_t *value = entry(ctx, i);

        if (i > 0)
            putchar(',');
        print_inside(value);
        json_decref(value);
    }
    puts(n > 0 ? "\n  ]\n}" : "]\n}");
    free(text);
}

void print_json_line(const json_t *value)
{
    dump(value, JSON_COMPACT);
}

json_t *print_int_list(const int64_t *values, int n)
{
    json_t *list = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

tp_status print_done(struct tp_err *err)
{
    if (fflush(stdout) != 0)
        return tp_fail_errno(err, "standard output");
    if (ferror(stdout)) /* why is no longer known */
        return tp_fail(err, TP_E_IO, "standard output: some of it could not be written");
    return TP_OK;
}

tp_status print_reported(tp_status st, const char *made, struct tp_err *err)
{
    return st ? tp_fail_in(err, "%.500s is complete, but its report is lost", made) : TP_OK;
}

tp_status print_json_joined(json_t *a, json_t *b, struct tp_err *err)
{
    tp_status st;

    if (!a || !b || json_object_update(a, b) != 0) {
        st = tp_fail(err, TP_E_NOMEM, "no memory for the result as JSON");
    } else {
        print_json(a);
        st = print_done(err);
    }
    json_decref(a);
    json_decref(b);
    return st;
}
