/* tests/unit/reshard_compiled_name.c - names of parameters of compiled modules.
 *
 * covers: reshard/formats/pieces/compiled_name
 */
#include <criterion/criterion.h>

#include "reshard/formats/pieces/compiled_name.h"

Test(compiled_name, is_the_name_without_the_wrapper)
{
    static const char *const names[][2] = {
        { "_orig_mod.lm_head.weight", "lm_head.weight" },
        { "model.layers.3._orig_mod.mlp.up_proj.weight", "model.layers.3.mlp.up_proj.weight" },
        { "_orig_mod.model.layers.3._orig_mod.weight", "model.layers.3.weight" },
        { "_orig_mod._orig_mod.a", "a" },
        { "a._orig_mod.", "a." },
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct arena arena = { 0 };

        cr_expect(compiled_name_is(names[i][0]));
        cr_expect_str_eq(compiled_name_plain(&arena, names[i][0]), names[i][1]);
        arena_free(&arena);
    }
}

Test(compiled_name, other_names_stay)
{
    static const char *const names[] = {
        "", "a", "model.norm.weight", "_orig_mod", "my_orig_mod.weight", "a._orig_mod"
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct arena arena = { 0 };

        cr_expect_str_eq(compiled_name_plain(&arena, names[i]), names[i]);
        arena_free(&arena);
    }
}
