/*
 * tests/unit/trainer_alloc.c - after the first two steps, a step allocates nothing in any thread.
 *
 * This program defines malloc and its relatives in place of libc's. They count the calls during a
 * step. Calls by oneDNN are counted separately, because its products pack operands into memory
 * that they allocate.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "layout/model.h"
#include "tests/unit/trainer_ranks.h"
#include "trainer/step.h"

#ifdef TP_SANITIZE
Test(trainer_alloc, a_warm_step_allocates_nothing)
{
    cr_skip("the sanitizer's own malloc cannot be replaced");
}
#else

static const char TEXT[] = "/usr/share/common-licenses/GPL-3";

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t align, size_t n);

static atomic_bool counting;
static atomic_llong calls, calls_by_onednn;

/* Whether the code at p belongs to oneDNN or to the C++ library, which only oneDNN uses. */
static bool is_onednn(const void *p)
{
    Dl_info info;

    return dladdr(p, &info) && info.dli_fname &&
           (strstr(info.dli_fname, "libdnnl") || strstr(info.dli_fname, "libstdc++"));
}

static void count(const void *caller)
{
    if (!counting)
        return;
    if (is_onednn(caller))
        calls_by_onednn++;
    else
        calls++;
}

void *malloc(size_t n)
{
    count(__builtin_return_address(0));
    return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    count(__builtin_return_address(0));
    return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_realloc(p, n);
}

void *memalign(size_t align, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

void *aligned_alloc(size_t align, size_t n)
{
    count(__builtin_return_address(0));
    return __libc_memalign(align, n);
}

int posix_memalign(void **out, size_t align, size_t n)
{
    void *p;

    count(__builtin_return_address(0));
    p = __libc_memalign(align, n);
    if (!p)
        return ENOMEM;
    *out = p;
    return 0;
}

static int complain(const char *what, long long n)
{
    fprintf(stderr, "%s: %lld\n", what, n);
    return 1;
}

/* Run six steps in this rank. Returns 0 when the last four allocate nothing. */
static int run_steps(struct trainer *t, void *ctx)
{
    struct step_result r;
    struct tp_err err = { 0 };
    const struct train_config *c = ctx;
    int wrong = 0;

    for (int step = 0; step < 6 && !wrong; step++) {
        counting = step >= 2;
        wrong = step_run(t, &r, &err) != TP_OK;
        counting = false;
    }
    if (wrong)
        return complain(err.msg, 0);
    if (calls)
        wrong += complain("allocations in four steps", calls);
    if (!calls_by_onednn && c->dtype == DTYPE_F32) /* it need not multiply bf16 */
        wrong += complain("no allocation of oneDNN was counted, so this test shows nothing", 0);
    return wrong;
}

static const struct model MODEL = { .family = MODEL_LLAMA,
                                    .layers = 4,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 16,
                                    .hidden = 64,
                                    .ffn = 128,
                                    .vocab = 256,
                                    .norm_eps = 1e-5,
                                    .rope_theta = 1e4,
                                    .init_std = 0.02,
                                    .max_positions = 64 };

enum { RECOMPUTES = 1, SAME_BITS = 2 };

static void expect_none(const char *spec, enum dtype dtype, int threads, int more)
{
    struct train_config c = train_config_default();
    struct tp_err err = { 0 };

    c.data_path = TEXT;
    c.model_path = "a model";
    c.steps = 6;
    c.seq_length = 32;
    c.global_batch_size = 8;
    c.dtype = dtype;
    c.threads = threads;
    c.recompute = more & RECOMPUTES ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    c.same_bits = more & SAME_BITS ? 4 : 0;
    c.micro_batch_size = more & SAME_BITS ? 1 : 2;
    cr_assert_eq(spec_parse(&c.spec, spec, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(train_config_check(&c, &MODEL, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(run_trainers(&c, &MODEL, run_steps, &c), 0, "%s, %s, %d threads", spec,
                 dtype_name(dtype), threads);
}

Test(trainer_alloc, a_warm_step_allocates_nothing)
{
    static const char *const specs[] = { "tp1",
                                         "tp4",
                                         "tp2sp",
                                         "pp2vpp2",
                                         "dp2",
                                         "dp2zero1",
                                         "dp2zero3",
                                         "cp2",
                                         "cp2dp2zero1",
                                         "tp2cp2dp2spzero3",
                                         "tp2pp2dp2spzero1" };

    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
        expect_none(specs[i], i % 2 ? DTYPE_BF16 : DTYPE_F32, 1, i % 3 == 0 ? RECOMPUTES : 0);
    expect_none("tp1", DTYPE_F32, 2, 0);
    expect_none("tp1", DTYPE_BF16, 2, 0);
    expect_none("tp1", DTYPE_F32, 2, SAME_BITS);
    expect_none("tp2dp2zero1", DTYPE_F32, 1, SAME_BITS);
}

#endif
