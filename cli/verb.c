/* cli/verb.c - see cli/verb.h. */
#include "cli/verb.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/print.h"
#include "cli/report.h"
#include "core/similar.h"

static int widest(const struct verb *verbs, bool of_args)
{
    int width = 0;

    for (const struct verb *v = verbs; v->name; v++) {
        int n = (int)strlen(of_args ? v->args : v->name);

        if (v->help && n > width)
            width = n;
    }
    return width;
}

static void print_help(FILE *f, const struct verb_program *p)
{
    int name_width = widest(p->verbs, false), args_width = widest(p->verbs, true);

    fprintf(f, "%s\n", p->intro);
    for (const struct verb *v = p->verbs; v->name; v++)
        if (v->help)
            fprintf(f, "  %-*s  %-*s  %s\n", name_width, v->name, args_width, v->args, v->help);
    fprintf(f, "\n%s\n", p->tail);
}

/* The verb that `word` probably means, NULL: none is similar. Programs that take a file instead of
 * a verb also take any other word: it must look like a verb. */
static const char *similar(const struct verb_program *p, const char *word)
{
    struct similar similar = similar_to(word);

    if (word[strspn(word, "abcdefghijklmnopqrstuvwxyz-")] != 0)
        return NULL;
    for (const struct verb *v = p->verbs; v->name; v++)
        if (v->help)
            similar_try(&similar, v->name);
    return similar.name;
}

/* Whether the command line has the form PROG VERB FILE ..., where `word` is not a file. */
static bool means_verb(const struct verb_program *p, const char *word, const char *next)
{
    return similar(p, word) ||
           (word[strspn(word, "abcdefghijklmnopqrstuvwxyz-")] == 0 && next && next[0] != '-');
}

static int refuse(const struct verb_program *p, int argc, char **argv)
{
    const char *word = argv[1], *verb = similar(p, word);
    struct tp_err err;
    bool json = false;

    for (int i = 1; i < argc; i++)
        json = json || strcmp(argv[i], "--json") == 0;
    if (verb)
        tp_fail(&err, TP_E_USAGE,
                "unknown verb '%.100s'; did you mean '%s'? %s --help lists the verbs", word, verb,
                p->name);
    else
        tp_fail(&err, TP_E_USAGE, "unknown verb '%.100s'; %s --help lists the verbs", word,
                p->name);
    return report_json(json, p->name, TP_E_USAGE, &err);
}

/* The exit code of what ended with `code`, once its output is written. */
static int printed(const struct verb_program *p, int code)
{
    struct tp_err err = { 0 };

    return code ? code : report(p->name, print_done(&err), &err);
}

/* Verbs without help are for the program itself. What they print is not their result. */
static int run(const struct verb_program *p, const struct verb *v, int argc, char **argv)
{
    int code = v->run(argc, argv);

    return v->help ? printed(p, code) : code;
}

int verb_main(const struct verb_program *p, int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";

    report_begin();
    if (argc < 2) {
        print_help(stderr, p);
        return tp_exit_code(TP_E_USAGE);
    }
    for (const struct verb *v = p->verbs; v->name; v++)
        if (strcmp(word, v->name) == 0)
            return run(p, v, argc - 1, argv + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout, p);
        return printed(p, 0);
    }
    if (strcmp(word, "--version") == 0) {
        printf("%s %s\n", p->name, TP_VERSION);
        return printed(p, 0);
    }
    if (p->no_verb && (access(word, F_OK) == 0 || !means_verb(p, word, argv[2])))
        return p->no_verb(argc, argv);
    return refuse(p, argc, argv);
}
