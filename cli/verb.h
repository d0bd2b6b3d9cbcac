/*
 * cli/verb.h - programs with verbs: one table drives dispatch and --help, and the manual pages and
 * shell completions that are generated from it.
 */
#ifndef CLI_VERB_H
#define CLI_VERB_H

struct verb {
    const char *name;
    const char *args; /* its arguments, as --help lists them: "CKPT [NAME]" */
    const char *help; /* one line; NULL: the program's own verb, which --help does not list */
    int (*run)(int argc, char **argv); /* argv[0] is the verb; returns the exit code */
};

struct verb_program {
    const char *name;         /* "tp-ckpt" */
    const char *intro, *tail; /* of --help: before and after the list of verbs */
    const struct verb *verbs; /* ends with an entry without a name */
    int (*no_verb)(int argc,
                   char **argv); /* runs if the first word is not a verb; NULL: an error */
};

/* The whole main() of a program: find the verb and run it, or print --help or --version. Without
 * arguments it prints the help, which is an error. A word that is similar to a verb, and not a
 * file, is an error that names the verb. Flags may come before the verb; argv is reordered.
 * Returns the exit code. */
int verb_main(const struct verb_program *p, int argc, char **argv);

#endif
