/* ckpt/member.c - see ckpt/member.h. */
#include "ckpt/member.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

tp_status member_fail(const struct member_reader *p, const char *fmt, ...)
{
    char what[TP_ERR_MAX / 2];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return tp_fail(p->err, TP_E_CORRUPT, "%s: %s", p->path, what);
}

tp_status member_no_memory(const struct member_reader *p)
{
    return tp_fail(p->err, TP_E_NOMEM, "%s: no memory to read it", p->path);
}

tp_status member_int(const struct member_reader *p, int64_t *out, json_t *object, const char *key,
                     int64_t min, int64_t max)
{
    json_t *v = json_object_get(object, key);

    if (!json_is_integer(v))
        return member_fail(p, "member '%s' is missing or not an integer", key);
    if (json_integer_value(v) < min || json_integer_value(v) > max)
        return member_fail(p, "member '%s' is %lld, expected %lld to %lld", key,
                           (long long)json_integer_value(v), (long long)min, (long long)max);
    *out = json_integer_value(v);
    return TP_OK;
}

tp_status member_small(const struct member_reader *p, int *out, json_t *object, const char *key,
                       int min, int max)
{
    int64_t v = 0;
    tp_status st = member_int(p, &v, object, key, min, max);

    *out = (int)v;
    return st;
}

tp_status member_bool(const struct member_reader *p, bool *out, json_t *object, const char *key)
{
    json_t *v = json_object_get(object, key);

    if (!json_is_boolean(v))
        return member_fail(p, "member '%s' is missing or not a boolean", key);
    *out = json_is_true(v);
    return TP_OK;
}

tp_status member_text(const struct member_reader *p, const char **out, json_t *object,
                      const char *key)
{
    json_t *v = json_object_get(object, key);

    if (!json_is_string(v))
        return member_fail(p, "member '%s' is missing or not a string", key);
    *out = json_string_value(v);
    return TP_OK;
}

tp_status member_keep(const struct member_reader *p, const char **out, json_t *object,
                      const char *key)
{
    const char *text = "";
    tp_status st = member_text(p, &text, object, key);

    if (st)
        return st;
    *out = arena_strdup(p->arena, text);
    return *out ? TP_OK : member_no_memory(p);
}

tp_status member_list(const struct member_reader *p, json_t **out, size_t *n, json_t *object,
                      const char *key, size_t max)
{
    json_t *v = json_object_get(object, key);

    if (!json_is_array(v))
        return member_fail(p, "member '%s' is missing or not a list", key);
    if (json_array_size(v) > max)
        return member_fail(p, "member '%s' has %zu entries; the most is %zu", key,
                           json_array_size(v), max);
    *out = v;
    *n = json_array_size(v);
    return TP_OK;
}

tp_status member_object(const struct member_reader *p, json_t **out, json_t *object,
                        const char *key)
{
    *out = json_object_get(object, key);
    return json_is_object(*out) ? TP_OK
                                : member_fail(p, "member '%s' is missing or not an object", key);
}

tp_status member_hex(const struct member_reader *p, char *out, size_t digits, json_t *object,
                     const char *key)
{
    const char *text = "";
    tp_status st = member_text(p, &text, object, key);

    if (st)
        return st;
    if (strlen(text) != digits || strspn(text, "0123456789abcdef") != digits)
        return member_fail(p, "member '%s' does not have %zu hexadecimal digits", key, digits);
    memcpy(out, text, digits + 1);
    return TP_OK;
}
