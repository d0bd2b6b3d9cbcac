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

static bool is_option(const char *word)
{
    return word[0] == '-' && word[1] != 0;
}

static int refuse(const struct verb_program *p, int argc, char **argv)
{
    const char *word = argv[1], *verb = similar(p, word);
    struct tp_err err;
    bool json = false;

    for (int i = 1; i < argc; i++)
        json = json || strcmp(argv[i], "--json") == 0;
    if (is_option(word))
        tp_fail(&err, TP_E_USAGE,
                "'%.100s' comes before the verb; write the verb first (%s --help lists the verbs)",
                word, p->name);
    else if (verb)
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

/* Find the verb of this name, NULL: there is none. */
static const struct verb *find(const struct verb_program *p, const char *name)
{
    for (const struct verb *v = p->verbs; v->name; v++)
        if (strcmp(name, v->name) == 0)
            return v;
    return NULL;
}

/* Move the first word that is no option before the options, if it is a verb, or the file of a
 * program that needs no verb: PROG --json VERB FILE means PROG VERB --json FILE. */
static void move_options(const struct verb_program *p, int argc, char **argv)
{
    int i = 1;
    char *word;

    while (i < argc && is_option(argv[i]) && strcmp(argv[i], "--") != 0)
        i++;
    if (i == argc || is_option(argv[i]) || (!p->no_verb && !find(p, argv[i])))
        return;
    word = argv[i];
    for (; i > 1; i--)
        argv[i] = argv[i - 1];
    argv[1] = word;
}

/* Whether the word is among the options before the first other word. */
static bool asks_for(const char *word, int argc, char **argv)
{
    for (int i = 1; i < argc && is_option(argv[i]); i++)
        if (strcmp(argv[i], word) == 0)
            return true;
    return false;
}

int verb_main(const struct verb_program *p, int argc, char **argv)
{
    const struct verb *v;

    report_begin();
    if (argc < 2) {
        print_help(stderr, p);
        return tp_exit_code(TP_E_USAGE);
    }
    if (asks_for("--help", argc, argv) || asks_for("-h", argc, argv) ||
        strcmp(argv[1], "help") == 0) {
        print_help(stdout, p);
        return printed(p, 0);
    }
    if (asks_for("--version", argc, argv)) {
        printf("%s %s\n", p->name, TP_VERSION);
        return printed(p, 0);
    }
    move_options(p, argc, argv);
    if ((v = find(p, argv[1])))
        return run(p, v, argc - 1, argv + 1);
    if (p->no_verb &&
        (is_option(argv[1]) || access(argv[1], F_OK) == 0 || !means_verb(p, argv[1], argv[2])))
        return p->no_verb(argc, argv);
    return refuse(p, argc, argv);
}
