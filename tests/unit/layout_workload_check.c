/* tests/unit/layout_workload_check.c - a refusal names a value that works, and unknown numbers
 * cause no refusal. tests/unit/orchestrator_fit.c compares the programs that use these rules.
 * covers: layout/same_bits */
#include "layout/workload_check.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "layout/same_bits.h"
#include "tests/unit/random_model.h"

static struct workload random_work(struct rng *r, const struct model *m)
{
    struct workload w = workload_default();

    w.dtype = rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
    w.seq_length = rng_int(r, 1, m->max_positions);
    w.global_batch_size = rng_int(r, 1, 48);
    w.micro_batch_size = rng_int(r, 0, 1) ? 0 : rng_int(r, 1, 8);
    w.same_bits = rng_int(r, 0, 1) ? 0 : 1 << rng_int(r, 0, 4);
    return w;
}

static tp_status check(const struct workload *w, const struct spec *s, const struct model *m,
                       struct tp_err *err)
{
    tp_status st = workload_check_run(w, m, err);

    st = st ? st : workload_check_mesh(w, s, m, err);
    return st ? st : workload_check_micro(w, s, err);
}

/* Follow the recommendation at the end of a message, "; FLAG N VERB". Returns false when there is
 * none. */
static bool follow(struct workload *w, const char *sentence)
{
    const char *instead = strrchr(sentence, ';');
    long n;

    if (!instead || !strpbrk(instead, "0123456789") || strstr(instead, "any number"))
        return false;
    n = strtol(strpbrk(instead, "0123456789"), NULL, 10);
    if (strstr(instead, "--seq "))
        w->seq_length = n;
    else if (strstr(instead, "--micro "))
        w->micro_batch_size = n;
    else if (strstr(instead, "--same-bits ") || strstr(instead, "nearest: "))
        w->same_bits = (int)n;
    else
        cr_assert(0, "%s", sentence);
    return true;
}

/* Whether two messages are of the same rule: without numbers, they start with the same words. */
static bool same_rule(const char *a, const char *b)
{
    static const char digits[] = "0123456789";

    for (int words = 0; words < 6; words++) {
        size_t n = strcspn(a, " "), k = strcspn(b, " ");

        if (!strchr(digits, a[0]) && (n != k || strncmp(a, b, n) != 0))
            return false;
        a += n + (a[n] == ' ');
        b += k + (b[k] == ' ');
    }
    return true;
}

Test(workload_check, what_a_refusal_recommends_is_not_refused_for_the_same_reason)
{
    struct rng r = rng_start("workload/instead");
    int followed = 0;

    for (int round = 0; round < 20000; round++) {
        struct model m = random_model(&r);
        struct workload w = random_work(&r, &m);
        struct spec s = random_spec(&r, &m);
        struct tp_err err = { 0 }, again = { 0 };

        if (!check(&w, &s, &m, &err) || !follow(&w, err.msg))
            continue;
        followed++;
        cr_assert(!check(&w, &s, &m, &again) || !same_rule(err.msg, again.msg),
                  "first: %s; after the change: %s", err.msg, again.msg);
    }
    cr_assert_gt(followed, 500);
}

/* Every dp rank runs the same number of microbatches, and together these are the batch. */
Test(workload_check, an_accepted_batch_divides_evenly)
{
    struct rng r = rng_start("workload/dealt");
    int accepted = 0;

    for (int round = 0; round < 20000; round++) {
        struct model m = random_model(&r);
        struct workload w = random_work(&r, &m);
        struct spec s = random_spec(&r, &m);
        int64_t micro = workload_micro(&w, &s), micros = workload_micros(&w, &s);
        struct tp_err err = { 0 };

        if (check(&w, &s, &m, &err))
            continue;
        accepted++;
        cr_assert_eq(micro * micros * s.dp, w.global_batch_size);
        cr_assert(s.vpp == 1 || micros % s.pp == 0);
        cr_assert(s.cp == 1 || w.seq_length / s.cp % 2 == 0);
        cr_assert(!s.sp || micro * w.seq_length % ((int64_t)s.cp * s.tp) == 0);
        cr_assert(!w.same_bits ||
                  same_bits_group_microbatches(&w) << same_bits_tree_levels(&w, &s) == micros);
    }
    cr_assert_gt(accepted, 500);
}

Test(workload_check, an_unknown_batch_or_length_causes_no_refusal)
{
    struct rng r = rng_start("workload/unknown");

    for (int round = 0; round < 2000; round++) {
        struct model m = random_model(&r);
        struct workload w = random_work(&r, &m);
        struct spec s = random_spec(&r, &m);
        struct tp_err err = { 0 };

        w.same_bits = 0;
        w.seq_length = w.global_batch_size = 0;
        cr_assert_eq(workload_check_mesh(&w, &s, NULL, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(workload_check_micro(&w, &s, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(workload_micros(&w, &s), 0);
        cr_assert_eq(workload_check_run(&w, &m, &err), TP_E_USAGE); /* tp-train always knows them */
    }
}
