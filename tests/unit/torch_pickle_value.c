/* Unit tests of torch/pickle_value.h. */
#include <criterion/criterion.h>

#include "torch/pickle_value.h"

enum { ENTRIES = 100000 };

/* A dict in which entry i has the key keys(i) and the value i. */
static struct pickle_value make_dict(struct arena *arena, int64_t n, int64_t (*keys)(int64_t))
{
    struct pickle_value dict = { .kind = PICKLE_DICT }, *values;
    const struct pickle_value **items;

    values = arena_array(arena, 2 * (size_t)n, sizeof *values);
    items = arena_array(arena, 2 * (size_t)n, sizeof *items);
    cr_assert(values && items);
    for (int64_t i = 0; i < n; i++) {
        values[2 * i] = (struct pickle_value){ .kind = PICKLE_INT, .number = keys(i) };
        values[2 * i + 1] = (struct pickle_value){ .kind = PICKLE_INT, .number = i };
        items[2 * i] = &values[2 * i];
        items[2 * i + 1] = &values[2 * i + 1];
    }
    dict.list.items = items;
    dict.list.n = dict.list.room = 2 * n;
    return dict;
}

static int64_t backwards(int64_t i)
{
    return 3 * (ENTRIES - 1 - i);
}

static int64_t repeated(int64_t i)
{
    return i % 7 - 3;
}

Test(pickle_value, the_index_of_numbers_finds_every_key_and_no_other)
{
    struct arena arena = { 0 };
    struct pickle_value dict = make_dict(&arena, ENTRIES, backwards);
    struct pickle_numbers numbers;

    cr_assert(pickle_numbers_make(&numbers, &dict, &arena));
    cr_assert_eq(numbers.n, ENTRIES);
    for (int64_t key = -2; key < 3 * ENTRIES + 2; key++) { /* a linear search would take minutes */
        const struct pickle_value *v = pickle_numbers_find(&numbers, key);

        if (key >= 0 && key % 3 == 0 && key < 3 * ENTRIES)
            cr_assert(v && v->number == ENTRIES - 1 - key / 3, "key %lld", (long long)key);
        else
            cr_assert_null(v);
    }
    arena_free(&arena);
}

Test(pickle_value, of_a_repeated_key_the_last_value_counts_as_in_python)
{
    struct arena arena = { 0 };
    struct pickle_value dict = make_dict(&arena, 23, repeated);
    struct pickle_numbers numbers;

    cr_assert(pickle_numbers_make(&numbers, &dict, &arena));
    for (int64_t key = -4; key < 5; key++)
        cr_assert_eq(pickle_numbers_find(&numbers, key), pickle_get_number(&dict, key));
    cr_assert_eq(pickle_get_number(&dict, -2)->number, 22);
    arena_free(&arena);
}

Test(pickle_value, other_values_have_no_numbers)
{
    struct arena arena = { 0 };
    const struct pickle_value text = { .kind = PICKLE_TEXT };
    struct pickle_numbers numbers;

    cr_assert(pickle_numbers_make(&numbers, NULL, &arena));
    cr_assert_null(pickle_numbers_find(&numbers, 0));
    cr_assert(pickle_numbers_make(&numbers, &text, &arena));
    cr_assert_null(pickle_numbers_find(&numbers, 0));
    arena_free(&arena);
}

Test(pickle_value, a_dict_has_nothing_before_its_first_entry_and_after_its_last)
{
    struct arena arena = { 0 };
    struct pickle_value dict = make_dict(&arena, 3, repeated);

    dict.list.n = 4; /* the third entry is there, and is none of the dict's */
    for (int64_t i = -1; i <= 2; i++) {
        cr_assert_eq(pickle_key(&dict, i) != NULL, i == 0 || i == 1);
        cr_assert_eq(pickle_entry(&dict, i) != NULL, i == 0 || i == 1);
    }
    arena_free(&arena);
}

Test(pickle_value, a_real_is_a_float_or_an_integer)
{
    const struct pickle_value half = { .kind = PICKLE_FLOAT, .real = 0.5 };
    const struct pickle_value two = { .kind = PICKLE_INT, .number = 2 };
    const struct pickle_value text = { .kind = PICKLE_TEXT, .number = 7 };
    double x = 0;

    cr_assert(pickle_real(&x, &half));
    cr_assert_eq(x, 0.5);
    cr_assert(pickle_real(&x, &two));
    cr_assert_eq(x, 2);
    cr_assert_not(pickle_real(&x, &text));
    cr_assert_not(pickle_real(&x, NULL));
}
