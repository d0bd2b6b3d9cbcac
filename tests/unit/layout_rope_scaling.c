/* tests/unit/layout_rope_scaling.c - frequencies of scaled rotary embeddings are those of
 * transformers. tests/clients/test_families.py compares logits. */
#include "layout/rope_scaling.h"

#include <criterion/criterion.h>
#include <math.h>

static void expect_near(double got, double want, const char *what)
{
    cr_expect(fabs(got - want) <= 2e-6 * fabs(want), "%s: %.9g, not %.9g", what, got, want);
}

/* Pairs 0 to 7 of head_dim 16, as float32 numbers that transformers 5.23 computes. */
static void expect_frequencies(const struct rope_scaling_embedding *f, const double want[8])
{
    for (int i = 0; i < 8; i++)
        expect_near(rope_scaling_frequency(f, i), want[i], rope_scaling_name(f->scaling.type));
}

Test(rope_scaling, linear_divides_all_frequencies)
{
    static const double want[8] = { 0.25,          0.079056941,    0.0250000004,   0.00790569466,
                                    0.00249999994, 0.000790569466, 0.000250000012, 7.90569466e-05 };
    const struct rope_scaling_embedding f = { .rotary_dim = 16,
                                              .theta = 10000,
                                              .scaling = {
                                                  .type = ROPE_SCALING_LINEAR,
                                                  .factor = 4.0,
                                              } };

    expect_frequencies(&f, want);
    expect_near(rope_scaling_attention_factor(&f.scaling), 1, "attention factor");
}

Test(rope_scaling, llama3_divides_low_frequencies)
{
    static const double want[8] = { 1,
                                    0.193922758,
                                    0.0273441337,
                                    0.000911583134,
                                    0.000176776681,
                                    3.42810235e-05,
                                    6.64786967e-06,
                                    1.28917316e-06 };
    const struct rope_scaling_embedding f = { .rotary_dim = 16,
                                              .theta = 500000,
                                              .scaling = {
                                                  .type = ROPE_SCALING_LLAMA3,
                                                  .factor = 8.0,
                                                  .low_freq_factor = 1.0,
                                                  .high_freq_factor = 4.0,
                                                  .original_positions = 512,
                                              } };

    expect_frequencies(&f, want);
    expect_near(rope_scaling_attention_factor(&f.scaling), 1, "attention factor");
}

Test(rope_scaling, yarn_divides_low_frequencies_and_scales_logits)
{
    static const double want[8] = { 1,
                                    0.247052938,
                                    0.0562500022,
                                    0.01087033,
                                    0.00124999997,
                                    0.000395284733,
                                    0.000125000006,
                                    3.95284733e-05 };
    const struct rope_scaling_embedding f = { .rotary_dim = 16,
                                              .theta = 10000,
                                              .scaling = {
                                                  .type = ROPE_SCALING_YARN,
                                                  .beta_fast = 32,
                                                  .beta_slow = 1,
                                                  .truncate = true,
                                                  .factor = 8.0,
                                                  .original_positions = 512,
                                              } };

    expect_frequencies(&f, want);
    expect_near(rope_scaling_attention_factor(&f.scaling), 1.20794415, "attention factor");
}

Test(rope_scaling, yarn_takes_its_options)
{
    static const double want[8] = { 1,
                                    0.177827939,
                                    0.0187018029,
                                    0.00140585331,
                                    0.000250000012,
                                    4.44569851e-05,
                                    7.90569356e-06,
                                    1.40585337e-06 };
    const struct rope_scaling_embedding f = { .rotary_dim = 16,
                                              .theta = 1e+06,
                                              .scaling = {
                                                  .type = ROPE_SCALING_YARN,
                                                  .beta_fast = 16,
                                                  .beta_slow = 2,
                                                  .truncate = false,
                                                  .factor = 4.0,
                                                  .original_positions = 1024,
                                                  .mscale = 0.8,
                                                  .mscale_all_dim = 0.5,
                                              } };

    expect_frequencies(&f, want);
    expect_near(rope_scaling_attention_factor(&f.scaling), 1.03889298, "attention factor");
}

Test(rope_scaling, longrope_has_a_factor_for_each_pair_of_short_and_of_long_sequences)
{
    static const double short_factor[8] = { 1, 1.05, 1.1, 1.2, 1.25, 1.5, 1.75, 2 };
    static const double long_factor[8] = { 1.08, 1.5, 2.25, 4, 9.5, 18, 33, 64.5 };
    static const double want[2][8] = { { 1, 0.301169306, 0.0909090936, 0.0263523124, 0.00800000038,
                                         0.00210818532, 0.000571428565, 0.000158113893 },
                                       { 0.92592591, 0.210818499, 0.0444444455, 0.00790569466,
                                         0.00105263153, 0.0001756821, 3.03030301e-05,
                                         4.90275625e-06 } };
    struct rope_scaling_embedding f = { .rotary_dim = 16,
                                        .theta = 10000,
                                        .scaling = {
                                            .type = ROPE_SCALING_LONGROPE,
                                            .factor = 32,
                                            .original_positions = 4096,
                                            .short_factor = short_factor,
                                            .long_factor = long_factor,
                                            .n_short = 8,
                                            .n_long = 8,
                                        } };

    for (int is_long = 0; is_long <= 1; is_long++) {
        f.seq = 4096 + is_long;
        expect_frequencies(&f, want[is_long]);
    }
    expect_near(rope_scaling_attention_factor(&f.scaling), 1.19023807, "attention factor");
    f.scaling.factor = 1;
    expect_near(rope_scaling_attention_factor(&f.scaling), 1, "attention factor");
    f.scaling.attention_factor = 1.3;
    expect_near(rope_scaling_attention_factor(&f.scaling), 1.3, "attention factor");
}
