/*
 * packaging/describe/verb.c - replaces verb_main of cli/verb.c: without arguments, a program with
 * verbs describes them as one JSON object; with a verb, the verb describes its options (opt.c).
 */
#include "cli/verb.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

static void describe(const struct verb_program *p)
{
    json_t *list = json_array(), *all;

    for (const struct verb *v = p->verbs; v->name; v++)
        if (v->help)
            json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "name", v->name, "args",
                                                  v->args, "help", v->help));
    all = json_pack("{s:s, s:s, s:s, s:s, s:o}", "program", p->name, "version", TP_VERSION, "intro",
                    p->intro, "tail", p->tail, "verbs", list);
    json_dumpf(all, stdout, JSON_INDENT(1));
    putchar('\n');
    json_decref(all);
}

int verb_main(const struct verb_program *p, int argc, char **argv)
{
    if (argc < 2) {
        describe(p);
        return 0;
    }
    for (const struct verb *v = p->verbs; v->name; v++)
        if (strcmp(argv[1], v->name) == 0)
            return v->run(argc - 1, argv + 1);
    return p->no_verb ? p->no_verb(argc, argv) : 2;
}
