/* tests/unit/core_similar.c - which names are offered for a mistyped word; see core/similar.h. */
#include "core/similar.h"

#include <criterion/criterion.h>
#include <string.h>

/* Names of options of tp-train and tp-reshard. */
static const char *const names[] = { "to",   "from",       "format", "mem",    "eps",
                                     "link", "keep",       "step",   "steps",  "log",
                                     "ckpt", "save-every", "model",  "device", "weight-decay" };

/* Check what is offered for a word; NULL: nothing. */
static void check(const char *word, const char *name)
{
    struct similar s = similar_to(word);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        similar_try(&s, names[i]);
    if (name)
        cr_expect(s.name && strcmp(s.name, name) == 0, "%s: %s", word, s.name ? s.name : "nothing");
    else
        cr_expect_null(s.name, "%s: %s", word, s.name);
}

Test(similar, a_typing_error_is_found)
{
    check("frm", "from");
    check("form", "from"); /* two letters swapped are nearer than the two that "format" has more */
    check("stpes", "steps");
    check("stps", "steps");
    check("ckp", "ckpt");
    check("mm", "mem");
    check("too", "to");
    check("modle", "model");
    check("save-evry", "save-every");
    check("saveevery", "save-every");
    check("wieght-deacy", "weight-decay");
    check("steps", "steps");
}

Test(similar, nothing_is_offered_for_another_word)
{
    check("temp", NULL); /* two letters of four are those of step and of keep */
    check("lora", NULL);
    check("gpus", NULL);
    check("rank", NULL);
    check("no", NULL);
    check("size", NULL);
    check("x", NULL);
    check("", NULL);
    check("a-word-that-is-longer-than-any-name-of-an-option-that-there-is-anywhere", NULL);
}
