/* reshard/formats/megatron/config_maker.c - see reshard/formats/megatron/config_maker.h. */
#include "reshard/formats/megatron/config_maker.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define COUNT_MAX (INT64_C(1) << 40)

/* ---- arguments ---- */

const struct pickle_value *config_maker_get(const struct config_maker *m, const char *name)
{
    const struct pickle_value *v = pickle_get(m->args, name);

    return pickle_is(v, PICKLE_NONE) ? NULL : v;
}

bool config_maker_is(const struct config_maker *m, const char *name)
{
    const struct pickle_value *v = config_maker_get(m, name);

    return pickle_is(v, PICKLE_BOOL) && v->number;
}

bool config_maker_is_text(const struct config_maker *m, const char *name, const char *text)
{
    const char *found = pickle_text(config_maker_get(m, name));

    return found && strcasecmp(found, text) == 0;
}

const char *config_maker_text(char buf[CONFIG_MAKER_TEXT], const struct pickle_value *v)
{
    const char *text = pickle_text(v);
    int64_t n;

    if (text)
        snprintf(buf, CONFIG_MAKER_TEXT, "%.40s", text);
    else if (pickle_is(v, PICKLE_BOOL))
        snprintf(buf, CONFIG_MAKER_TEXT, "%s", v->number ? "True" : "False");
    else if (pickle_int(&n, v))
        snprintf(buf, CONFIG_MAKER_TEXT, "%lld", (long long)n);
    else if (pickle_is(v, PICKLE_FLOAT))
        snprintf(buf, CONFIG_MAKER_TEXT, "%g", v->real);
    else
        snprintf(buf, CONFIG_MAKER_TEXT, "%s", v ? "a list or an object" : "None");
    return buf;
}

void config_maker_refuse(struct config_maker *m, const char *name, const char *why)
{
    char text[CONFIG_MAKER_TEXT];

    if (!m->st)
        m->st = tp_fail(m->err, TP_E_USAGE,
                        "%s: was saved with %s %s, %s, so no config.json can be made from its "
                        "arguments; give one with --config",
                        m->path, name, config_maker_text(text, config_maker_get(m, name)), why);
}

void config_maker_need(struct config_maker *m, const char *name)
{
    if (!config_maker_get(m, name) && !m->st)
        m->st = tp_fail(m->err, TP_E_USAGE,
                        "%s: has no config.json beside it, and its arguments have no %s to make "
                        "one from; give one with --config",
                        m->path, name);
}

int64_t config_maker_count(struct config_maker *m, const char *name)
{
    const struct pickle_value *v = config_maker_get(m, name);
    int64_t n = 0;

    config_maker_need(m, name);
    if (v && (!pickle_int(&n, v) || n < 1 || n > COUNT_MAX))
        config_maker_refuse(m, name, "which is not a size");
    return m->st ? 0 : n;
}

double config_maker_number(struct config_maker *m, const char *name, double fallback)
{
    const struct pickle_value *v = config_maker_get(m, name);
    int64_t n;

    if (!v)
        return fallback;
    if (pickle_int(&n, v))
        return (double)n;
    if (pickle_is(v, PICKLE_FLOAT) && isfinite(v->real))
        return v->real;
    config_maker_refuse(m, name, "which is not a number");
    return fallback;
}

/* ---- members of the config ---- */

void config_maker_set(struct config_maker *m, const char *key, json_t *v)
{
    if (json_object_set_new(m->root, key, v) != 0 && !m->st)
        m->st = tp_fail(m->err, TP_E_NOMEM, "%s: no memory for a config.json", m->path);
}

void config_maker_set_int(struct config_maker *m, const char *key, int64_t v)
{
    config_maker_set(m, key, json_integer(v));
}

void config_maker_set_number(struct config_maker *m, const char *key, double v)
{
    config_maker_set(m, key, json_real(v));
}

void config_maker_set_flag(struct config_maker *m, const char *key, bool v)
{
    config_maker_set(m, key, json_boolean(v));
}
