/* tests/unit/core_opt.c - one table parses the command line, names what is wrong, and prints the
 * help.
 * covers: core/similar */
#include "core/opt.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

struct values {
    const char *path, *extra, *name, *level;
    struct opt_list ignore;
    int jobs;
    int64_t steps, mem;
    double lr;
    bool json, jobs_given;
};

enum { TABLE_MAX = 16, ARGS_MAX = 24 };

static void make_table(struct opt table[TABLE_MAX], struct values *v)
{
    const struct opt opts[] = {
        OPT_ARG("CKPT", &v->path, "checkpoint"),
        OPT_ARG_OPT("NAME", &v->extra, "a tensor"),
        { OPT_KIND_INT, 'j', "jobs", "N", &v->jobs, "threads", &v->jobs_given },
        OPT_HEADING("numbers"),
        OPT_INT64(0, "steps", "N", &v->steps, "steps\nof the whole run"),
        OPT_SIZE(0, "mem", "SIZE", &v->mem, "memory"),
        OPT_DOUBLE(0, "lr", "X", &v->lr, "learning rate"),
        OPT_STR('n', "name", "TEXT", &v->name, "a name"),
        OPT_LIST('i', "ignore", "NAME", &v->ignore, "leave out"),
        OPT_STR_OPT(0, "zstd", "LEVEL", &v->level, "compress"),
        OPT_FLAG(0, "json", &v->json, "one JSON object"),
        OPT_END,
    };

    _Static_assert(sizeof opts / sizeof opts[0] <= TABLE_MAX, "TABLE_MAX is too small");
    memcpy(table, opts, sizeof opts);
}

/* Parse a command line that is written with blanks. */
static tp_status parse(struct values *v, const char *line, enum opt_result *result,
                       struct tp_err *err)
{
    struct opt table[TABLE_MAX];
    static char text[256];
    char *argv[ARGS_MAX] = { "prog" }, *save = NULL;
    int argc = 1;

    *v = (struct values){ .jobs = -1 };
    make_table(table, v);
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok_r(text, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    return opt_parse(table, argc, argv, result, err);
}

Test(opt, sets_every_kind_of_value)
{
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v;

    cr_assert_eq(
        parse(&v, "ckpt -j 4 --steps=12 --mem 64M --lr 1e-3 -n x --zstd=9 --json w", &result, &err),
        TP_OK, "%s", err.msg);
    cr_assert_eq(result, OPT_GO_ON);
    cr_assert_str_eq(v.path, "ckpt");
    cr_assert_str_eq(v.extra, "w");
    cr_assert(v.jobs == 4 && v.jobs_given && v.steps == 12 && v.mem == 64 << 20 && v.lr == 1e-3);
    cr_assert_str_eq(v.name, "x");
    cr_assert_str_eq(v.level, "9");
    cr_assert(v.json);
}

Test(opt, values_that_are_not_given_are_unchanged)
{
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v;

    cr_assert_eq(parse(&v, "--zstd ckpt", &result, &err), TP_OK, "%s", err.msg);
    cr_assert(v.jobs == -1 && !v.jobs_given && !v.json && !v.name && !v.extra);
    cr_assert_str_eq(v.level, "", "an optional value that is left out");
    cr_assert_str_eq(v.path, "ckpt");
    cr_assert_eq(parse(&v, "--name x -- --json", &result, &err), TP_OK, "%s", err.msg);
    cr_assert_str_eq(v.path, "--json", "after -- all words are arguments");
}

Test(opt, an_empty_argument_is_refused)
{
    struct opt table[TABLE_MAX];
    char prog[] = "prog", empty[] = "", path[] = "a", *argv[] = { prog, path, empty, NULL };
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v = { 0 };

    make_table(table, &v);
    cr_assert_eq(opt_parse(table, 3, argv, &result, &err), TP_E_USAGE);
    cr_assert_str_eq(err.msg, "NAME is empty: a tensor");
}

Test(opt, values_may_begin_with_a_dash)
{
    static const struct {
        const char *line, *name;
    } good[] = {
        { "a --name -", "-" },
        { "a --name=--json", "--json" },
        { "a --name -5", "-5" },
        { "a -n--json", "--json" },
    };
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v;

    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        cr_assert_eq(parse(&v, good[i].line, &result, &err), TP_OK, "%s", err.msg);
        cr_assert_str_eq(v.name, good[i].name);
        cr_assert(!v.json);
    }
    cr_assert_eq(parse(&v, "a --lr -1e-3", &result, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.lr, -1e-3);
}

Test(opt, help_and_version_need_no_arguments)
{
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v;

    cr_assert_eq(parse(&v, "--help", &result, &err), TP_OK);
    cr_assert_eq(result, OPT_HELP);
    cr_assert_eq(parse(&v, "-h --nonsense", &result, &err), TP_OK);
    cr_assert_eq(result, OPT_HELP);
    cr_assert_eq(parse(&v, "--version", &result, &err), TP_OK);
    cr_assert_eq(result, OPT_VERSION);
}

Test(opt, names_what_is_wrong)
{
    static const struct {
        const char *line, *says;
    } bad[] = {
        { "", "CKPT is missing" },
        { "a b c", "unexpected argument 'c'" },
        { "a --stpes 3", "did you mean --steps?" },
        { "a --frobnicate", "unknown option '--frobnicate'; --help" },
        { "a --jsno", "did you mean --json?" },
        { "a --lrs", "did you mean --lr?" },
        { "a --nao", "unknown option '--nao'; --help" },
        { "a -x", "unknown option '-x'; --help" },
        { "a -mem b", "unknown option '-mem'; did you mean --mem?" },
        { "a -qx b", "unknown option '-qx'; --help" },
        { "a --steps", "needs a value" },
        { "a --name --json", "--name needs a value, but '--json' follows; a value that begins" },
        { "a -n --json", "--name needs a value, but '--json' follows" },
        { "a --steps --mem 1G", "--steps needs a value, but '--mem' follows" },
        { "a --name -- b", "--name needs a value, but '--' follows" },
        { "a --json=1", "--json takes no value" },
        { "a -j x", "--jobs takes a whole number from 0 to 2147483647, not 'x'" },
        { "a -j 2147483648", "--jobs takes a whole number" },
        { "a --steps -1", "--steps takes a whole number" },
        { "a --steps 1.5", "--steps takes a whole number" },
        { "a --lr nan", "--lr takes a number, not 'nan'" },
        { "a --lr 1x", "--lr takes a number" },
        { "a --lr 1e400", "--lr takes a number, not '1e400', which is not finite" },
        { "a --mem lots", "--mem: 'lots' is not a size" },
    };

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct tp_err err = { 0 };
        enum opt_result result;
        struct values v;

        cr_expect_eq(parse(&v, bad[i].line, &result, &err), TP_E_USAGE, "'%s'", bad[i].line);
        cr_expect(strstr(err.msg, bad[i].says), "'%s': %s", bad[i].line, err.msg);
    }
}

Test(opt, help_has_every_row_of_the_table)
{
    static const char *const rows[] = {
        "usage: prog CKPT [NAME] [options]\n",
        "\nWhat it does.\n",
        "-j, --jobs N",
        "\nnumbers:\n",
        "steps\n                          of the whole run\n",
        "--zstd[=LEVEL]",
        "-h, --help",
        "--version",
        "\nExample: prog ckpt\n",
    };
    struct opt table[TABLE_MAX];
    struct values v;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    make_table(table, &v);
    opt_help(f, "prog", table, "What it does.", "Example: prog ckpt");
    fclose(f);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        cr_expect(strstr(text, rows[i]), "'%s' is not in:\n%s", rows[i], text);
    free(text);
}

Test(opt, help_has_all_words_of_a_long_list)
{
    const char *value;
    const struct opt table[] = { OPT_STR(0, "format",
                                         "alpha-alpha-alpha|beta-beta-beta-beta|gamma-gamma-gamma|"
                                         "delta-delta-delta|epsilon-epsilon-epsilon|zeta-zeta|eta",
                                         &value, "what it is"),
                                 OPT_END };
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    opt_help(f, "prog", table, NULL, NULL);
    fclose(f);
    cr_expect(strstr(text, "  --format alpha-alpha-alpha|beta-beta-beta-beta|gamma-gamma-gamma|"
                           "delta-delta-delta|\n           epsilon-epsilon-epsilon|zeta-zeta|eta\n"
                           "                          what it is\n"),
              "%s", text);
    free(text);
}

Test(opt, a_list_keeps_every_value_in_order_up_to_its_room)
{
    struct tp_err err = { 0 };
    enum opt_result result;
    struct values v;
    char line[256] = "ckpt";

    cr_assert_eq(parse(&v, "--ignore a ckpt -i b --ignore=c", &result, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.ignore.n, 3);
    cr_assert_str_eq(v.ignore.values[0], "a");
    cr_assert_str_eq(v.ignore.values[1], "b");
    cr_assert_str_eq(v.ignore.values[2], "c");
    cr_assert_eq(parse(&v, "ckpt --ignore", &result, &err), TP_E_USAGE);
    for (int i = 0; i < ARGS_MAX - 2; i++)
        strcat(line, " -ix");
    cr_assert_eq(parse(&v, line, &result, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.ignore.n, ARGS_MAX - 2);
}

Test(opt, a_list_that_is_full_is_refused)
{
    const char *argv[OPT_LIST_MAX + 2] = { "prog" };
    struct opt_list list = { 0 };
    const struct opt opts[] = { OPT_LIST('i', "ignore", "NAME", &list, "leave out"), OPT_END };
    struct tp_err err = { 0 };
    enum opt_result result;

    for (int i = 1; i < OPT_LIST_MAX + 2; i++)
        argv[i] = "-ix";
    cr_assert_eq(opt_parse(opts, OPT_LIST_MAX + 1, (char **)(uintptr_t)argv, &result, &err), TP_OK);
    list.n = 0;
    cr_assert_eq(opt_parse(opts, OPT_LIST_MAX + 2, (char **)(uintptr_t)argv, &result, &err),
                 TP_E_USAGE);
    cr_assert(strstr(err.msg, "at most 64 times"), "%s", err.msg);
}
