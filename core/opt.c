/* core/opt.c - see core/opt.h. */
#include "core/opt.h"

#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/similar.h"
#include "core/size.h"

enum { OPT_MAX = 64, LONG_BASE = 256, ID_HELP = 1000, ID_VERSION = 1001, HELP_COLUMN = 26 };

/* In --help, of an option and its value: columns, and bytes. */
enum { LEFT_MAX = 96, LEFT_BYTES = 512 };

static bool is_positional(const struct opt *o)
{
    return o->kind == OPT_KIND_ARG || o->kind == OPT_KIND_ARG_OPT;
}

static bool is_option(const struct opt *o)
{
    return !is_positional(o) && o->kind != OPT_KIND_HEADING;
}

static bool needs_value(const struct opt *o)
{
    return o->kind != OPT_KIND_FLAG && o->kind != OPT_KIND_STR_OPT;
}

static tp_status unknown_option(const struct opt *opts, const char *word, struct tp_err *err)
{
    struct similar similar;
    char name[64];

    snprintf(name, sizeof name, "%s", word + strspn(word, "-"));
    name[strcspn(name, "=")] = 0;
    similar = similar_to(name);
    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++)
        if (is_option(o))
            similar_try(&similar, o->name);
    if (similar.name && name[1])
        return tp_fail(err, TP_E_USAGE, "unknown option '%s'; did you mean --%s?", word,
                       similar.name);
    return tp_fail(err, TP_E_USAGE, "unknown option '%s'; --help lists the options", word);
}

/* The argument in which getopt found an option that it does not know. Of the letters in "-abc" it
 * goes to the next argument after the last one only, so `optind` does not tell. */
static const char *unknown_word(int argc, char **argv)
{
    for (int i = 1; optopt && i < argc; i++)
        if (argv[i][0] == '-' && argv[i][1] != '-' && strchr(argv[i], optopt))
            return argv[i];
    return argv[optind - 1];
}

static tp_status parse_integer(int64_t *out, int64_t max, const struct opt *o, const char *text,
                               struct tp_err *err)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < 0 || v > max)
        return tp_fail(err, TP_E_USAGE, "--%s takes a whole number from 0 to %lld, not '%s'",
                       o->name, (long long)max, text);
    *out = v;
    return TP_OK;
}

static tp_status parse_double(double *out, const struct opt *o, const char *text,
                              struct tp_err *err)
{
    char *end;
    double v = strtod(text, &end);

    if (end == text || *end || !isfinite(v))
        return tp_fail(err, TP_E_USAGE, "--%s takes a number, not '%s'%s", o->name, text,
                       end > text && !*end && isinf(v) ? ", which is not finite" : "");
    *out = v;
    return TP_OK;
}

static tp_status add_value(struct opt_list *list, const struct opt *o, const char *text,
                           struct tp_err *err)
{
    if (list->n == OPT_LIST_MAX)
        return tp_fail(err, TP_E_USAGE, "--%s can be given at most %d times", o->name,
                       OPT_LIST_MAX);
    list->values[list->n++] = text;
    return TP_OK;
}

static tp_status store_value(const struct opt *o, char *text, struct tp_err *err)
{
    int64_t v = 0;
    tp_status st = TP_OK;

    switch (o->kind) {
    case OPT_KIND_FLAG:
        *(bool *)o->out = true;
        break;
    case OPT_KIND_INT:
        if (!(st = parse_integer(&v, INT_MAX, o, text, err)))
            *(int *)o->out = (int)v;
        break;
    case OPT_KIND_INT64:
        st = parse_integer(o->out, INT64_MAX, o, text, err);
        break;
    case OPT_KIND_DOUBLE:
        st = parse_double(o->out, o, text, err);
        break;
    case OPT_KIND_SIZE:
        st = size_parse(o->out, text, err);
        if (st)
            return tp_fail_in(err, "--%s", o->name);
        break;
    case OPT_KIND_STR:
        *(const char **)o->out = text;
        break;
    case OPT_KIND_STR_OPT:
        *(const char **)o->out = text ? text : "";
        break;
    case OPT_KIND_LIST:
        st = add_value(o->out, o, text, err);
        break;
    default:
        return tp_fail(err, TP_E_INTERNAL, "option table: kind %d", (int)o->kind);
    }
    if (!st && o->given)
        *o->given = true;
    return st;
}

/* Make getopt's two tables. The id of an option is LONG_BASE + its index. */
static void getopt_tables(const struct opt *opts, struct option *longs, char *shorts)
{
    int n = 0;

    *shorts++ = ':';
    for (int i = 0; opts[i].kind != OPT_KIND_END && n < OPT_MAX; i++) {
        const struct opt *o = &opts[i];
        int has = o->kind == OPT_KIND_FLAG      ? no_argument
                  : o->kind == OPT_KIND_STR_OPT ? optional_argument
                                                : required_argument;

        if (!is_option(o))
            continue;
        longs[n++] = (struct option){ o->name, has, NULL, LONG_BASE + i };
        if (o->letter) {
            *shorts++ = o->letter;
            if (has == required_argument)
                *shorts++ = ':';
        }
    }
    longs[n++] = (struct option){ "help", no_argument, NULL, ID_HELP };
    longs[n++] = (struct option){ "version", no_argument, NULL, ID_VERSION };
    longs[n] = (struct option){ 0 };
    *shorts++ = 'h';
    *shorts = 0;
}

static const struct opt *find(const struct opt *opts, int id)
{
    if (id >= LONG_BASE)
        return &opts[id - LONG_BASE];
    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++)
        if (is_option(o) && o->letter == id)
            return o;
    return NULL;
}

/* getopt takes the next word as the value, whatever it is. One that begins with "--" is an option,
 * and the value was forgotten; -1 and - are values. */
static tp_status check_value(const struct opt *o, const char *value, const char *last_word,
                             struct tp_err *err)
{
    if (!needs_value(o) || value != last_word || strncmp(value, "--", 2) != 0)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "--%s needs a value, but '%s' follows; a value that begins with -- is written "
                   "--%s=%s",
                   o->name, value, o->name, value);
}

static tp_status parse_positionals(const struct opt *opts, int n, char **args, struct tp_err *err)
{
    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++) {
        if (!is_positional(o))
            continue;
        if (n > 0 && !**args)
            return tp_fail(err, TP_E_USAGE, "%s is empty: %s", o->name, o->help);
        if (n > 0) {
            *(const char **)o->out = *args++;
            n--;
        } else if (o->kind == OPT_KIND_ARG) {
            return tp_fail(err, TP_E_USAGE, "%s is missing: %s", o->name, o->help);
        }
    }
    if (n > 0)
        return tp_fail(err, TP_E_USAGE, "unexpected argument '%s'; --help shows the usage", *args);
    return TP_OK;
}

tp_status opt_parse(const struct opt *opts, int argc, char **argv, enum opt_result *result,
                    struct tp_err *err)
{
    struct option longs[OPT_MAX + 3];
    char shorts[3 * OPT_MAX];
    int id;

    getopt_tables(opts, longs, shorts);
    *result = OPT_GO_ON;
    optind = 0; /* glibc: forget the last call, and permute the arguments */
    opterr = 0;
    while ((id = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const struct opt *o;
        tp_status st;

        if (id == ID_HELP || id == 'h') {
            *result = OPT_HELP;
            return TP_OK;
        }
        if (id == ID_VERSION) {
            *result = OPT_VERSION;
            return TP_OK;
        }
        if (id == ':')
            return tp_fail(err, TP_E_USAGE, "'%s' needs a value", argv[optind - 1]);
        if (id == '?' && optopt >= LONG_BASE && optopt < ID_HELP)
            return tp_fail(err, TP_E_USAGE, "--%s takes no value", find(opts, optopt)->name);
        if (id == '?')
            return unknown_option(opts, unknown_word(argc, argv), err);
        o = find(opts, id);
        if ((st = check_value(o, optarg, argv[optind - 1], err)))
            return st;
        if ((st = store_value(o, optarg, err)))
            return st;
    }
    return parse_positionals(opts, argc - optind, argv + optind, err);
}

/* Print an option with its value. A long list of words continues on the next line, below its first
 * word. Returns the width of the last line. */
static int help_left(FILE *f, const char *left)
{
    const int indent = (int)strcspn(left, " ") + 3;
    int width = fprintf(f, "  ");

    while (*left) {
        int n = (int)strcspn(left, "|");

        n += left[n] == '|';
        if (width > indent && width + n > LEFT_MAX)
            width = fprintf(f, "\n%*s", indent, "") - 1;
        width += fprintf(f, "%.*s", n, left);
        left += n;
    }
    return width;
}

static void help_line(FILE *f, const char *left, const char *help)
{
    const char *line = help;
    int width = help_left(f, left);

    if (width >= HELP_COLUMN - 1) {
        fputc('\n', f);
        width = 0;
    }
    while (line && *line) {
        int n = (int)strcspn(line, "\n");

        fprintf(f, "%*s%.*s\n", HELP_COLUMN - width, "", n, line);
        width = 0;
        line = line[n] ? line + n + 1 : NULL;
    }
}

static void help_option(FILE *f, const struct opt *o)
{
    char left[LEFT_BYTES], value[LEFT_BYTES - 64] = "";

    if (o->kind == OPT_KIND_STR_OPT)
        snprintf(value, sizeof value, "[=%s]", o->value);
    else if (o->value)
        snprintf(value, sizeof value, " %s", o->value);
    if (o->letter)
        snprintf(left, sizeof left, "-%c, --%s%s", o->letter, o->name, value);
    else
        snprintf(left, sizeof left, "--%s%s", o->name, value);
    help_line(f, left, o->help);
}

void opt_help(FILE *f, const char *prog, const struct opt *opts, const char *intro,
              const char *tail)
{
    fprintf(f, "usage: %s", prog);
    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++)
        if (is_positional(o))
            fprintf(f, o->kind == OPT_KIND_ARG ? " %s" : " [%s]", o->name);
    fprintf(f, " [options]\n");
    if (intro)
        fprintf(f, "\n%s\n", intro);
    fputc('\n', f);
    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++) {
        if (is_positional(o))
            help_line(f, o->name, o->help);
        else if (o->kind == OPT_KIND_HEADING)
            fprintf(f, "\n%s:\n", o->help);
        else
            help_option(f, o);
    }
    help_line(f, "-h, --help", "print this help");
    help_line(f, "--version", "print the version");
    if (tail)
        fprintf(f, "\n%s\n", tail);
}
