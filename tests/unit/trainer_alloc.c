/*
 * tests/unit/trainer_alloc.c - a step that is warm allocates nothing, in whatever thread.
 *
 * This program's malloc and its relatives stand before those of libc and count who asks while a
 * step runs. oneDNN is counted apart: its products pack operands into memory of their own.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "comm/launch.h"
#include "kernels/cpu/thread.h"
#include "layout/model.h"
#include "trainer/data_parallel/zero_buckets.h"
#include "trainer/model/weight_init.h"
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
static atomic_llong asked, asked_by_onednn;

/* Whether the code at p is oneDNN's, or of the C++ library, which it alone uses. */
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
        asked_by_onednn++;
    else
        asked++;
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

/* Steps 3 to 6 in this rank; 0 when none asked for anything. */
static int run_steps(const struct train_config *c, const struct model *m, struct comm *world,
                     struct tp_err *err)
{
    struct trainer t;
    struct step_result r;
    int wrong = 0;

    kernels_set_threads(c->threads);
    if (trainer_open(&t, c, m, world, err))
        return complain(err->msg, 0);
    init_weights(&t.params, &t.layout, m, 1);
    if (zero_start(&t.params, &t.parallel, err))
        return complain(err->msg, 0);
    for (int step = 0; step < 6 && !wrong; step++) {
        counting = step >= 2;
        wrong = step_run(&t, &r, err) != TP_OK;
        counting = false;
    }
    if (wrong)
        return complain(err->msg, 0);
    if (asked)
        wrong += complain("allocations in four steps", asked);
    if (!asked_by_onednn)
        wrong += complain("oneDNN allocates nothing: this test counts nothing", 0);
    trainer_close(&t);
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
    struct trainer_size size;
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    int rank, code = 0, wrong;

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
    cr_assert_eq(trainer_measure(&size, &c, &MODEL, &err), TP_OK);
    cr_assert_eq(launch_ranks(spec_world(&c.spec), &rank, &code, &err), TP_OK, "%s", err.msg);
    if (rank < 0) {
        cr_expect_eq(code, 0, "%s, %s, %d threads", spec, dtype_name(dtype), threads);
        return;
    }
    if (comm_init(&world, size.shared + (1 << 20), &err))
        _exit(100);
    wrong = run_steps(&c, &MODEL, world, &err);
    comm_end(world, wrong ? TP_E_NO : TP_OK);
    _exit(wrong);
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
