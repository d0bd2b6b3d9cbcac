/* tests/unit/layout_family.c - the tables of model families are complete and consistent.
 * covers: layout/tensor layout/family/llama layout/family/gpt2 layout/family/mistral
 * covers: layout/family/qwen2 layout/family/qwen3 layout/family/qwen3_moe layout/family/opt
 * covers: layout/family/gemma layout/family/gemma2 layout/family/gemma3 layout/family/phi3
 * covers: layout/family/olmo2 layout/family/gpt_neox layout/family/mixtral layout/family/granite
 * covers: layout/family/olmo3 layout/family/smollm3
 */
#include "layout/family.h"

#include <criterion/criterion.h>
#include <string.h>

#include "layout/parallel_plan.h"

Test(family, is_found_by_its_names)
{
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        const struct family *f = family_at((enum model_family)i);
        enum model_family found = MODEL_FAMILIES;

        cr_expect(family_find(&found, f->architecture, NULL) && (int)found == i);
        cr_expect(family_find(&found, NULL, f->model_type) && (int)found == i);
        cr_expect_not(family_find(&found, "BertModel", f->model_type),
                      "the architecture takes precedence");
    }
    cr_expect_not(family_find(&(enum model_family){ 0 }, NULL, NULL));
}

/* The member of struct model that a row sets can hold the row's value. */
Test(family, keys_fit_the_members_that_they_set)
{
    static const size_t sizes[] = {
        [FAMILY_VALUE_POSITIVE] = sizeof(double),
        [FAMILY_VALUE_AMOUNT] = sizeof(double),
        [FAMILY_VALUE_FLAG] = sizeof(bool),
        [FAMILY_VALUE_DROPOUT] = sizeof(double),
        [FAMILY_VALUE_ROPE] = sizeof(double),
        [FAMILY_VALUE_LOCAL] = sizeof(double),
        [FAMILY_VALUE_NOPE] = sizeof(bool *),
        [FAMILY_VALUE_LAYERS] = sizeof(bool *),
        [FAMILY_VALUE_CAP] = sizeof(double),
        [FAMILY_VALUE_GELU] = sizeof(bool),
        [FAMILY_VALUE_FIXED] = sizeof(bool),
        [FAMILY_VALUE_CONSTANT] = sizeof(double),
        [FAMILY_VALUE_ONLY] = 0,
        [FAMILY_VALUE_TRAINS] = 0,
    };

    for (int i = 0; i < MODEL_FAMILIES; i++)
        for (const struct family_key *k = family_at((enum model_family)i)->keys;
             k->value != FAMILY_VALUE_END; k++) {
            bool is_count = k->value == FAMILY_VALUE_NEED || k->value == FAMILY_VALUE_COUNT ||
                            k->value == FAMILY_VALUE_WINDOW;
            bool is_only = k->value == FAMILY_VALUE_ONLY || k->value == FAMILY_VALUE_TRAINS;

            if (is_count)
                cr_expect(k->max > 0 && (k->member_bytes == sizeof(int64_t) ||
                                         (k->member_bytes == sizeof(int) && k->max <= INT32_MAX)),
                          "%s", k->key);
            else
                cr_expect_eq(k->member_bytes, sizes[k->value], "%s", k->key);
            cr_expect_eq(k->only != NULL, is_only, "%s", k->key);
        }
}

Test(family, tensors_have_one_row_for_each_role_and_a_cut_that_the_role_allows)
{
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        const struct family *f = family_at((enum model_family)i);

        for (const struct family_tensor *t = f->tensors; t->role != ROLE_NONE; t++) {
            cr_expect_eq(family_tensor_find(f, t->role), t, "%s has two rows", t->name);
            const char *star = strchr(t->name, '*');

            cr_expect_eq(star != NULL, tensor_role_is_of_layer(t->role), "%s", t->name);
            cr_expect_eq(star && strchr(star + 1, '*'), tensor_role_is_of_expert(t->role), "%s",
                         t->name);
            cr_expect(tensor_role_allows(t->role, t->cut), "%s", t->name);
            cr_expect(t->shape[0] != DIM_NONE, "%s", t->name);
        }
    }
}

/* What modules have by another name is a tensor of the family, which has not that name. */
Test(family, modules_name_tensors_that_the_family_has)
{
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        const struct family *f = family_at((enum model_family)i);

        for (const struct family_module *m = f->modules; m && m->name; m++) {
            const char *star = strchr(m->name, '*');

            cr_expect_eq(star != NULL, tensor_role_is_of_layer(m->roles[0]), "%s", m->name);
            cr_expect_not(star && strchr(star + 1, '*'), "%s", m->name);
            cr_expect(m->roles[1] == ROLE_NONE || tensor_role_is_of_expert(m->roles[0]), "%s",
                      m->name);
            for (int k = 0; k < 2 && m->roles[k]; k++) {
                const struct family_tensor *t = family_tensor_find(f, m->roles[k]);

                cr_assert(t, "%s", m->name);
                cr_expect_str_neq(t->name, m->name);
                cr_expect_eq(tensor_role_is_of_expert(t->role),
                             tensor_role_is_of_expert(m->roles[0]), "%s", m->name);
            }
        }
    }
}

/* The kinds of norm, MLP and position of a layer need certain tensors. */
Test(family, has_the_tensors_that_its_arithmetic_needs)
{
    for (int i = 0; i < MODEL_FAMILIES; i++) {
        const struct family *f = family_at((enum model_family)i);

        bool has_gate = family_tensor_find(f, ROLE_GATE) || family_tensor_find(f, ROLE_GATE_UP) ||
                        family_tensor_find(f, ROLE_EXPERT_GATE);

        cr_expect_eq(has_gate, family_is_gated(f), "%s", f->architecture);
        cr_expect_eq(family_tensor_find(f, ROLE_POSITIONS) != NULL, f->position == FAMILY_LEARNED);
        cr_expect_eq(family_tensor_find(f, ROLE_FINAL_NORM_BIAS) != NULL,
                     f->norm == FAMILY_LAYER_NORM);
        cr_expect(family_tensor_find(f, ROLE_QKV) ||
                  (family_tensor_find(f, ROLE_Q) && family_tensor_find(f, ROLE_K) &&
                   family_tensor_find(f, ROLE_V)));
    }
}

Test(family, a_column_cut_takes_the_outputs_of_a_linear_layer)
{
    const struct family_tensor *q = family_tensor_find(&family_llama, ROLE_Q);
    const struct family_tensor *qkv = family_tensor_find(&family_gpt2, ROLE_QKV);
    const struct family_tensor *bias = family_tensor_find(&family_gpt2, ROLE_QKV_BIAS);

    cr_expect_eq(family_out_axis(&family_llama, q), 0);
    cr_expect_eq(family_out_axis(&family_gpt2, qkv), 1);
    cr_expect_eq(family_out_axis(&family_gpt2, bias), 0);
}
