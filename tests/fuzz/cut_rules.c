/* tests/fuzz/cut_rules.c - a file of --rules. By the rules that are accepted, tensors are cut: the
 * parts must together have each element of a tensor once. */
#include "layout/cut_rules.h"
#include "layout/layout.h"
#include "tests/fuzz/fuzz.h"

enum { TENSORS = 9, LAYERS = 3 };

/* The last three have sizes that only a hostile file has, which no bytes follow. */
static const struct tensor model[TENSORS] = {
    { .name = "a", .ndim = 2, .shape = { 24, 4 } },
    { .name = "b", .ndim = 1, .shape = { 7 } },
    { .name = "c", .ndim = 0 },
    { .name = "l.0.w", .ndim = 2, .shape = { 8, 48 } },
    { .name = "l.1.w", .ndim = 2, .shape = { 8, 48 } },
    { .name = "l.2.e.3", .ndim = 3, .shape = { 2, 6, 4 } },
    { .name = "x", .ndim = 2, .shape = { TENSOR_ELEMENTS_MAX, 0 } },
    { .name = "y", .ndim = 2, .shape = { 0, INT64_C(1) << 40 } },
    { .name = "z", .ndim = 1, .shape = { 0 } },
};

static void check_cut(const struct layout *l, int t)
{
    const struct tensor *tensor = &l->tensors[t];
    const struct box whole = box_whole(tensor->ndim, tensor->shape);
    int64_t found = 0;

    for (int rank = 0; rank < l->spec.tp; rank++) {
        struct box boxes[TENSOR_BOXES_MAX];
        int n = layout_tp_boxes(tensor, &l->spec, rank, boxes);

        fuzz_must(n >= 0 && n <= TENSOR_BOXES_MAX, "too many boxes");
        for (int i = 0; i < n; i++) {
            fuzz_must(box_contains(&whole, &boxes[i]), "a box outside the tensor");
            for (int k = 0; k < i; k++)
                fuzz_must(!box_meet(&(struct box){ 0 }, &boxes[i], &boxes[k]),
                          "boxes that overlap");
            if (layout_first_holder(tensor, &l->spec, rank) == rank)
                found += box_elements(&boxes[i]);
        }
    }
    fuzz_must(found == box_elements(&whole), "elements that are missing or held twice");
}

static void cut(struct tensor *tensors, int n, struct arena *arena)
{
    static const char *const specs[] = { "tp1", "tp2", "tp3", "tp4", "tp8", "dp2ep2" };
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct spec spec;
        struct layout l;
        tp_status st = spec_parse(&spec, specs[i], &err);

        fuzz_must(st == TP_OK, specs[i]);
        st = layout_make(&l, &spec, LAYERS, tensors, n, arena, &err);
        fuzz_check_error(st, &err);
        for (int t = 0; t < n && st == TP_OK; t++)
            check_cut(&l, t);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct tensor tensors[TENSORS];
    struct arena arena = { 0 };
    struct cut_rules rules;
    struct tp_err err = { 0 };
    tp_status st = cut_rules_parse(&rules, (const char *)data, size, "my.rules", &arena, &err);
    int n = 0;

    fuzz_check_error(st, &err);
    for (int i = 0; i < TENSORS && st == TP_OK; i++) {
        struct tensor t = model[i];
        tp_status applied;

        t.group = GROUP_PARAM;
        applied = cut_rules_apply(&rules, &t, &err);
        fuzz_check_error(applied, &err);
        if (applied == TP_OK && t.layer < LAYERS)
            tensors[n++] = t;
    }
    if (st == TP_OK)
        fuzz_check_error(cut_rules_check_used(&rules, &err), &err);
    cut_rules_count_experts(tensors, n);
    if (n > 0)
        cut(tensors, n, &arena);
    arena_free(&arena);
    return 0;
}
