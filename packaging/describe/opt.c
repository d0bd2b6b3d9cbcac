/*
 * packaging/describe/opt.c - replaces the functions of core/opt.c in programs that describe their
 * options instead of running: as one JSON object on stdout, whatever the command line is.
 *
 * Manual pages and shell completions are generated from these objects, so release programs contain
 * nothing for that purpose.
 */
#include "core/opt.h"

#include <jansson.h>

static const char *kind_name(enum opt_kind kind)
{
    switch (kind) {
    case OPT_KIND_ARG:
        return "argument";
    case OPT_KIND_ARG_OPT:
        return "optional argument";
    case OPT_KIND_HEADING:
        return "heading";
    case OPT_KIND_FLAG:
        return "flag";
    case OPT_KIND_STR_OPT:
        return "optional value";
    default:
        return "value";
    }
}

static json_t *entry(enum opt_kind kind, const char *name, const char *letter, const char *value,
                     const char *help)
{
    return json_pack("{s:s, s:s?, s:s?, s:s?, s:s}", "kind", kind_name(kind), "name", name,
                     "letter", letter[0] ? letter : NULL, "value", value, "help", help);
}

tp_status opt_parse(const struct opt *opts, int argc, char **argv, enum opt_result *result,
                    struct tp_err *err)
{
    (void)opts;
    (void)argc;
    (void)argv;
    (void)err;
    *result = OPT_HELP;
    return TP_OK;
}

void opt_help(FILE *f, const char *prog, const struct opt *opts, const char *intro,
              const char *tail)
{
    json_t *list = json_array(), *all;

    for (const struct opt *o = opts; o->kind != OPT_KIND_END; o++) {
        const char letter[2] = { o->letter, 0 };

        json_array_append_new(list, entry(o->kind, o->name, letter, o->value, o->help));
    }
    json_array_append_new(list, entry(OPT_KIND_FLAG, "help", "h", NULL, "print the help and exit"));
    json_array_append_new(list,
                          entry(OPT_KIND_FLAG, "version", "", NULL, "print the version and exit"));
    all = json_pack("{s:s, s:s, s:s, s:s, s:o}", "program", prog, "version", TP_VERSION, "intro",
                    intro ? intro : "", "tail", tail ? tail : "", "options", list);
    json_dumpf(all, f, JSON_INDENT(1));
    fputc('\n', f);
    json_decref(all);
}
