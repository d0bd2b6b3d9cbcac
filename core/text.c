/* core/text.c - see core/text.h. */
#include "core/text.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int sequence_length(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    return first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
}

int text_utf8_length(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    int n = sequence_length(p[0]);
    unsigned code;

    if (n < 2)
        return n;
    code = p[0] & (0x7fu >> n);
    for (int i = 1; i < n; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        code = code << 6 | (p[i] & 0x3f);
    }
    if ((n == 3 && code < 0x800) || (n == 4 && code < 0x10000) || code > 0x10ffff)
        return 0;
    return code >= 0xd800 && code <= 0xdfff ? 0 : n;
}

/* Whether the text ends in the middle of the sequence at p. */
static int is_cut(const char *p)
{
    size_t n = strlen(p);

    if (n >= (size_t)sequence_length((unsigned char)*p))
        return 0;
    for (size_t i = 1; i < n; i++)
        if (((unsigned char)p[i] & 0xc0) != 0x80)
            return 0;
    return 1;
}

/* C0, DEL, and C1, which xterm obeys in UTF-8 too. n: the length of the UTF-8 sequence at p. */
static bool is_control(const char *p, int n)
{
    const unsigned char *u = (const unsigned char *)p;

    return n == 1 ? u[0] < 0x20 || u[0] == 0x7f : n == 2 && u[0] == 0xc2 && u[1] < 0xa0;
}

int text_escape_unit(char unit[TEXT_UNIT_MAX], const char *text)
{
    static const char named[] = "\n\r\t", letters[] = "nrt";
    const int n = text_utf8_length(text);
    const char *name = strchr(named, *text);

    unit[0] = 0;
    if (!*text || (n == 0 && is_cut(text)))
        return 0;
    if (n > 0 && !is_control(text, n)) {
        memcpy(unit, text, (size_t)n);
        unit[n] = 0;
        return n;
    }
    if (name)
        snprintf(unit, TEXT_UNIT_MAX, "\\%c", letters[name - named]);
    else
        snprintf(unit, TEXT_UNIT_MAX, "\\x%02x", (unsigned char)*text);
    return 1;
}

char *text_escape(char *out, size_t size, const char *text)
{
    char unit[TEXT_UNIT_MAX];
    size_t used = 0;

    for (int n; (n = text_escape_unit(unit, text)) && used + strlen(unit) < size; text += n)
        used += (size_t)snprintf(out + used, size - used, "%s", unit);
    out[used] = 0;
    return out;
}

/* Whether the shell leaves every character as it is. */
static bool is_plain_word(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "_-./:,+@%=";

    return *text && text[strspn(text, plain)] == 0;
}

static bool has_escapes(const char *text)
{
    for (int n; *text; text += n) {
        n = text_utf8_length(text);
        if (n == 0 || is_control(text, n))
            return true;
    }
    return false;
}

/* The character at the start of `text` within '...', or within $'...'. Returns its length there. */
static int quote_unit(char unit[TEXT_UNIT_MAX], const char *text, bool ansi)
{
    int n = text_utf8_length(text);

    if (*text == '\'') {
        snprintf(unit, TEXT_UNIT_MAX, "%s", ansi ? "\\'" : "'\\''");
        return 1;
    }
    if (ansi && *text == '\\') {
        snprintf(unit, TEXT_UNIT_MAX, "\\\\");
        return 1;
    }
    if (ansi)
        return text_escape_unit(unit, text);
    memcpy(unit, text, (size_t)n);
    unit[n] = 0;
    return n;
}

char *text_shell_word(char word[TEXT_WORD_MAX], const char *text)
{
    const char *dot = *text == '-' ? "./" : "";
    const bool ansi = has_escapes(text), plain = !ansi && is_plain_word(text);
    char unit[TEXT_UNIT_MAX];
    size_t used =
        (size_t)snprintf(word, TEXT_WORD_MAX, "%s%s%s", ansi ? "$" : "", plain ? "" : "'", dot);

    while (*text && used + TEXT_UNIT_MAX + 1 < TEXT_WORD_MAX) {
        int n = plain ? snprintf(unit, sizeof unit, "%c", *text) : quote_unit(unit, text, ansi);

        if (n == 0) { /* a sequence that the end cuts off */
            snprintf(unit, sizeof unit, "\\x%02x", (unsigned char)*text);
            n = 1;
        }
        used += (size_t)snprintf(word + used, TEXT_WORD_MAX - used, "%s", unit);
        text += n;
    }
    snprintf(word + used, TEXT_WORD_MAX - used, "%s", plain ? "" : "'");
    if (*text)
        snprintf(word, TEXT_WORD_MAX, "...");
    return word;
}

char *text_clean(char *text)
{
    for (char *p = text; *p;) {
        int n = text_utf8_length(p);

        if (n == 0 && is_cut(p)) {
            *p = 0;
            break;
        }
        if (n == 0 || is_control(p, n))
            memset(p, '?', n > 1 ? (size_t)n : 1);
        p += n > 1 ? n : 1;
    }
    return text;
}

/* Whether the first n bytes are more than blanks and ignored characters. */
static bool has_words(const char *p, size_t n, const char *ignored)
{
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", p[i]) && !strchr(ignored, p[i]))
            return true;
    return false;
}

char *text_last_line(char *line, size_t size, const char *text, const char *ignored)
{
    line[0] = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "\r\n");

        if (has_words(p, n, ignored))
            snprintf(line, size, "%.*s", (int)n, p);
        p += n + (p[n] != 0);
    }
    return line;
}

const char *text_base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

size_t text_path_length(const char *path)
{
    size_t n = strlen(path);

    while (n > 1 && path[n - 1] == '/')
        n--;
    return n;
}

bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);

    return n > m && strcmp(text + n - m, end) == 0;
}

bool text_is_one_of(const char *text, const char *const *names)
{
    for (; *names; names++)
        if (strcmp(text, *names) == 0)
            return true;
    return false;
}

char *text_real(char text[TEXT_REAL_MAX], double v)
{
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, TEXT_REAL_MAX, "%.*g", digits, v);
        if (strtod(text, NULL) == v)
            break;
    }
    return text;
}

int text_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}
