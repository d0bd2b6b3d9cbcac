/* tests/unit/layout_train_option.c - letters are unique, and found by name. */
#include "layout/train_option.h"

#include <criterion/criterion.h>

Test(train_option, each_letter_and_each_name_is_unique)
{
    for (const struct train_option *a = train_options(); a->name; a++)
        for (const struct train_option *b = a + 1; b->name; b++)
            cr_expect((!a->letter || a->letter != b->letter) && strcmp(a->name, b->name) != 0,
                      "%s, %s", a->name, b->name);
}

Test(train_option, a_letter_is_found_by_its_name)
{
    cr_expect_eq(train_option_letter("steps"), 'n');
    cr_expect_eq(train_option_letter("quiet"), 'q');
    cr_expect_eq(train_option_letter("step"), 0, "the start of a name is not the name");
    cr_expect_eq(train_option_letter("seed"), 0);
}
