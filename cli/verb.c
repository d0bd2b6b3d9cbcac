/* cli/verb.c - see cli/verb.h. */
#include "cli/verb.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "cli/report.h"

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

int verb_main(const struct verb_program *p, int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "";
    struct tp_err err;

    report_begin();
    if (argc < 2) {
        print_help(p->no_verb ? stdout : stderr, p);
        return tp_exit_code(p->no_verb ? TP_OK : TP_E_USAGE);
    }
    for (const struct verb *v = p->verbs; v->name; v++)
        if (strcmp(word, v->name) == 0)
            return v->run(argc - 1, argv + 1);
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        print_help(stdout, p);
        return 0;
    }
    if (strcmp(word, "--version") == 0) {
        printf("%s %s\n", p->name, TP_VERSION);
        return 0;
    }
    if (p->no_verb)
        return p->no_verb(argc, argv);
    return report(p->name,
                  tp_fail(&err, TP_E_USAGE, "unknown verb '%.100s'; %s --help lists the verbs",
                          word, p->name),
                  &err);
}
